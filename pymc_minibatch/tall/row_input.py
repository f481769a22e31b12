"""An array that holds row data, and how it travels to other processes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from pymc_minibatch.tall.sources import (
    RowFile,
    share,
)

__all__ = ["RowInput", "read_only"]


@dataclass(frozen=True)
class RowInput:
    """An array that holds row data.

    Attributes
    ----------
    name
        Name of the variable, or ``"constant"`` for an unnamed array in the graph.
    leaf
        The variable of the model's graph.
    axis
        The axis of the model's array along which the rows lie.
    values
        The data with rows along the first axis.
    """

    name: str
    leaf: Variable
    axis: int
    values: np.ndarray

    def taken(self, rows: np.ndarray) -> "RowInput":
        """Return some rows as an input of its own."""
        return RowInput(self.name, self.leaf, self.axis, self.values[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle large arrays by reference to a file, so that processes share them."""
        return _restored_input, (self.name, self.leaf, self.axis, share(self.values))


def read_only(values: np.ndarray) -> np.ndarray:
    """View an array so that it cannot be written: compiled code tells such arrays from others."""
    view = values.view()
    view.flags.writeable = False
    return view


def _restored_input(name: str, leaf: Variable, axis: int, values: np.ndarray | RowFile) -> RowInput:
    opened = values.open() if isinstance(values, RowFile) else values
    return RowInput(name, leaf, axis, read_only(opened))
