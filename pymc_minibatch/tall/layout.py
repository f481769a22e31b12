"""The order in which a point's value variables lie in one flat vector."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["PointLayout"]


@dataclass(frozen=True)
class PointLayout:
    """Value variables raveled into one float64 vector.

    Integers keep their value exactly up to 2**53.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, point: Mapping[str, np.ndarray], names: Sequence[str]) -> "PointLayout":
        """Take shapes and dtypes from a point."""
        values = [np.asarray(point[name]) for name in names]
        return cls(
            tuple(names),
            tuple(value.shape for value in values),
            tuple(value.dtype.name for value in values),
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of each variable."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """Number of elements of the flat vector."""
        return sum(self.sizes)

    def empty(self) -> np.ndarray:
        """Return a flat vector without values."""
        return np.empty(self.size)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Position of each variable in the flat vector."""
        starts = itertools.accumulate(self.sizes, initial=0)
        ends = itertools.pairwise(starts)
        return {name: slice(*pair) for name, pair in zip(self.names, ends, strict=True)}

    @cached_property
    def discrete(self) -> dict[str, slice]:
        """Positions of the discrete variables in it."""
        return {
            name: where
            for (name, where), dtype in zip(self.slices.items(), self.dtypes, strict=True)
            if not np.issubdtype(dtype, np.floating)
        }

    @cached_property
    def is_continuous(self) -> np.ndarray:
        """Whether an element of the flat vector belongs to a continuous variable."""
        found = np.ones(self.size, dtype=bool)
        for where in self.discrete.values():
            found[where] = False
        return found

    def name_of(self, position: int) -> str:
        """Name the variable at a position of the flat vector."""
        [name] = [n for n, s in self.slices.items() if s.start <= position < s.stop]
        return name

    def names_of(self, positions: np.ndarray) -> tuple[str, ...]:
        """Name the variables at some positions, each once, in their order.

        Parameters
        ----------
        positions : ndarray of int64
            Of elements of the flat vector.
        """
        return tuple(
            name
            for name, where in self.slices.items()
            if np.any((where.start <= positions) & (positions < where.stop))
        )

    def flatten(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Ravel a point."""
        if not self.names:
            return np.empty(0)
        return np.concatenate([np.ravel(point[name]) for name in self.names]).astype(np.float64)

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Undo :meth:`flatten`."""
        return {
            name: flat[where].reshape(shape).astype(dtype)
            for (name, where), shape, dtype in zip(
                self.slices.items(), self.shapes, self.dtypes, strict=True
            )
        }

    def symbolic(self, flat: TensorVariable) -> dict[str, TensorVariable]:
        """Build the graph of :meth:`unflatten`."""
        return {
            name: pt.cast(flat[where].reshape(shape), dtype)
            for (name, where), shape, dtype in zip(
                self.slices.items(), self.shapes, self.dtypes, strict=True
            )
        }
