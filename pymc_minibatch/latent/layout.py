"""Where dense entries and groups lie in a flat vector."""

from dataclasses import dataclass

import numpy as np

__all__ = ["ArrowheadLayout", "BorderAndBlocks"]

BorderAndBlocks = tuple[np.ndarray, np.ndarray]
"""The dense part of a vector, (p,), and its groups, (G, q)."""


@dataclass(frozen=True)
class ArrowheadLayout:
    """Positions of a dense part and of groups in a flat vector.

    Attributes
    ----------
    dense : ndarray of int64, shape (p,)
        Positions of the dense part.
    groups : ndarray of int64, shape (G, q)
        Positions of the entries of each group.
    """

    dense: np.ndarray
    groups: np.ndarray

    def split(self, flat: np.ndarray) -> BorderAndBlocks:
        """Return the dense part and the groups of a vector."""
        return flat[self.dense], flat[self.groups]

    def put(self, flat: np.ndarray, dense: np.ndarray, groups: np.ndarray) -> None:
        """Write both parts into a vector."""
        flat[self.dense], flat[self.groups] = dense, groups

    def noise(self, rng: np.random.Generator) -> BorderAndBlocks:
        """Draw a standard normal vector."""
        return rng.standard_normal(self.dense.shape), rng.standard_normal(self.groups.shape)
