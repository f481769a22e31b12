"""The projector A(h), by which what rows read depends on the latent field, and AᵀKA."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_minibatch.latent.arrowhead import (
    ArrowheadMatrix,
    Matrix,
    by_columns,
    compact,
    congruent,
    denser,
    is_empty,
    multiply_each,
)
from pymc_minibatch.latent.batched import multiply_blocks, multiply_matrices

__all__ = ["ProjectedCurvature", "Projector"]


@dataclass(frozen=True)
class ProjectedCurvature:
    """What the dense part of z sees of a curvature K.

    Attributes
    ----------
    curvature : ArrowheadMatrix
        K.
    by : ndarray or sparse array, shape (P_dense, p)
        A_dd.
    """

    curvature: ArrowheadMatrix
    by: Matrix

    @cached_property
    def dense(self) -> Matrix:
        """``A_ddᵀ K_dd A_dd``, shape (p, p)."""
        return congruent(self.curvature.dense, self.by)

    @cached_property
    def through(self) -> Matrix:
        """``K_gd A_dd``, shape (G q', p)."""
        return compact(by_columns(self.curvature.cross, self.by))


@dataclass(frozen=True)
class Projector:
    """A(h) in the layouts of φ (rows) and z (columns).

    Attributes
    ----------
    dense : ndarray or sparse array, shape (P_dense, p)
        What the dense part of φ takes from the dense part of z.
    cross : ndarray or sparse array, shape (G q', p)
        What the groups of φ take from the dense part of z.
    blocks : ndarray, shape (G, q', q)
        What each group of φ takes from its own z.
    """

    dense: Matrix
    cross: Matrix
    blocks: np.ndarray

    def project_dense(self, joined: ProjectedCurvature, blocks: np.ndarray) -> Matrix:
        """Return the dense part of ``Aᵀ K A``.

        Given is what the dense part of A makes of K, and K's blocks.
        """
        dense, c = joined.dense, self.cross
        if not is_empty(c):
            mixed = c.T @ joined.through
            dense = dense + mixed + mixed.T + c.T @ multiply_each(blocks, c)
        return denser(dense)

    def project_blocks(self, blocks: np.ndarray) -> np.ndarray:
        """Return the groups' blocks of ``Aᵀ K A``."""
        return multiply_matrices(self._transposed_blocks, multiply_matrices(blocks, self.blocks))

    def project_cross(self, joined: ProjectedCurvature, blocks: np.ndarray) -> Matrix:
        """Return what ``Aᵀ K A`` has between groups and the dense part."""
        through, c = joined.through, self.cross
        if not is_empty(c):
            through = through + multiply_each(blocks, c)
        return multiply_each(self._transposed_blocks, denser(through))

    @cached_property
    def _transposed(self) -> tuple[Matrix, Matrix]:
        """What takes from the dense part of z; SciPy checks a matrix each time it makes one."""
        return self.dense.T, self.cross.T

    @cached_property
    def _transposed_blocks(self) -> np.ndarray:
        return np.ascontiguousarray(self.blocks.transpose(0, 2, 1))

    def times(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``A z``."""
        of_groups = multiply_blocks(self.blocks, groups)
        if not is_empty(self.cross):
            of_groups = of_groups + (self.cross @ dense).reshape(of_groups.shape)
        return self.dense @ dense, of_groups

    def transposed(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Aᵀ y``."""
        of_dense = self._transposed[0] @ dense
        if not is_empty(self.cross):
            of_dense += self._transposed[1] @ groups.ravel()
        return of_dense, multiply_blocks(self._transposed_blocks, groups)
