"""A root of a large positive definite matrix of which only products are made.

What elimination of the groups leaves for the dense part, ``S = A − WᵀW``, fills in where groups
meet many of its entries, as persons do who rate films. Its factor would take time with the cube of
its size. So nothing is factored: with s the root of the inverse of its diagonal and
``B = diag(s) S diag(s)``,

    S = L Lᵀ,   L = diag(s)⁻¹ B^½,

and ``B^½`` and ``B^−½`` of a vector are found in the Krylov space of the vector (Lanczos's method),
as far as double precision goes. The eigenvalues of B are close together, but for a few such as that
of the intercept, whatever the number of rows and levels, so that some tens of products do.
The log-determinant is an estimate: averages of ``zᵀ log(B) z`` over a few vectors of signs, the
same for every matrix, so that it is a smooth function of hyperparameters. It serves to find where
they are. No decision may rest on it.

References
----------
Chow and Saad (2014), Preconditioned Krylov subspace methods for sampling multivariate Gaussian
distributions, SIAM J. Sci. Comput. 36.
Ubaru, Chen and Saad (2017), Fast estimation of tr(f(A)) via stochastic Lanczos quadrature, SIAM J.
Matrix Anal. Appl. 38.
Pandolfi, Papaspiliopoulos and Zanella (2024), Conjugate gradient methods for high-dimensional
GLMMs, arXiv 2411.04729, for the eigenvalues.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, eigh_tridiagonal

from pymc_minibatch.jit.compiled import jit_kept

__all__ = ["KrylovRoot"]

ACCURACY = 1e-11
"""Relative change of the result, over as many products as lie between two looks, at the end."""

EVERY = 5
"""Products from one look at the result to the next."""

MOST_PRODUCTS = 400
"""With more than these the matrix counts as singular: eigenvalues would span 10 orders or more."""

PROBES, PROBE_ACCURACY, SEED = 4, 1e-3, 2017
"""Vectors of signs for the log-determinant, and nats by which it still changes with each at the
end. With four of them its derivatives by hyperparameters were right to 10⁻³."""

PRODUCTS = 20
"""Products that a draw takes: 15 for a million ratings of 3,706 films by 6,040 users."""

ROOM = 64
"""Vectors for which there is room at first."""

NOT_POSITIVE = "The dense part is not positive definite."


@dataclass(frozen=True)
class KrylovRoot:
    """A root L of ``A − WᵀW``, by products alone.

    Attributes
    ----------
    dense : ndarray or sparse array, shape (p, p)
        A.
    reduced : ndarray or sparse array, shape (G q, p)
        W.
    has_determinant : bool
        Whether the log-determinant is exact.
    """

    dense: Any
    reduced: Any
    has_determinant = False

    @cached_property
    def scale(self) -> np.ndarray:
        """The root s of the inverse of the diagonal, shape (p,).

        Raises
        ------
        LinAlgError
            If an entry of the diagonal is not positive.
        """
        squares = self.reduced.multiply(self.reduced) if self._is_sparse else self.reduced**2
        diagonal = self.dense.diagonal() - np.asarray(squares.sum(axis=0)).ravel()
        if not np.all(diagonal > 0.0):
            raise LinAlgError(NOT_POSITIVE)
        return np.asarray(1.0 / np.sqrt(diagonal))

    @property
    def _is_sparse(self) -> bool:
        return bool(sparse.issparse(self.reduced))

    @property
    def work(self) -> float:
        """About how many multiplications a draw takes."""
        n_entries = self.reduced.nnz if self._is_sparse else self.reduced.size
        return 2.0 * PRODUCTS * n_entries

    def product(self, vector: np.ndarray) -> np.ndarray:
        """Return ``B x``."""
        scaled = self.scale * vector
        result = np.asarray(self.dense @ scaled)
        if self._is_sparse and self.reduced.format == "csr":
            of_rows = self.reduced
            subtract_normal(of_rows.indptr, of_rows.indices, of_rows.data, scaled, result)
        else:
            result -= self.reduced.T @ (self.reduced @ scaled)
        return np.asarray(self.scale * result)

    def log_determinant(self) -> float:
        """Return an estimate of log |L|, NaN if the matrix is not positive definite."""
        return self._log_determinant

    @cached_property
    def _log_determinant(self) -> float:
        rng, size = np.random.default_rng(SEED), self.scale.size
        total = 0.0
        for _ in range(PROBES):
            krylov = _Krylov(self.product, rng.choice([-1.0, 1.0], size))
            found, before = 0.0, np.inf
            while krylov.grows and abs(found - before) > PROBE_ACCURACY:
                for _ in range(EVERY):
                    if krylov.grows:
                        krylov.grow()
                values, weights = krylov.spectrum()
                found, before = size * float(weights**2 @ np.log(values)), found
            total += found
        return total / (2 * PROBES) - float(np.log(self.scale).sum())

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻¹ x``."""
        return self._of_matrix(_inverse_root, self.scale * vector)

    def solve_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``L⁻ᵀ x``."""
        return self.scale * self._of_matrix(_inverse_root, vector)

    def multiply_transposed(self, vector: np.ndarray) -> np.ndarray:
        """Return ``Lᵀ x``."""
        return self._of_matrix(np.sqrt, vector / self.scale)

    def _of_matrix(
        self, function: Callable[[np.ndarray], np.ndarray], vector: np.ndarray
    ) -> np.ndarray:
        """Return ``f(B) x``."""
        if not vector.any():
            return np.zeros_like(vector)
        krylov = _Krylov(self.product, vector)
        last = np.zeros(0)
        while True:
            for _ in range(EVERY):
                if krylov.grows:
                    krylov.grow()
            found = krylov.coordinates(function)
            before = np.zeros(found.size)
            before[: last.size] = last
            change = np.linalg.norm(found - before)
            if not krylov.grows or change <= ACCURACY * np.linalg.norm(found):
                return krylov.combined(found)
            if krylov.size >= MOST_PRODUCTS:
                raise LinAlgError("The dense part is nearly singular.")
            last = found


class _Krylov:
    """An orthonormal basis of the Krylov space of a vector, and the matrix in it."""

    def __init__(self, product: Callable[[np.ndarray], np.ndarray], vector: np.ndarray) -> None:
        self.product, self.length = product, float(np.linalg.norm(vector))
        self._basis = np.empty((ROOM, vector.size))
        self._basis[0] = vector / self.length
        self.diagonal: list[float] = []
        self.beside: list[float] = []
        self.grows = True

    @property
    def size(self) -> int:
        """How many products were made."""
        return len(self.diagonal)

    def grow(self) -> None:
        """Add the product of the last vector, what lies in the space so far taken out."""
        last = self._basis[self.size]
        following = self.product(last)
        self.diagonal.append(float(following @ last))
        basis = self._basis[: self.size]
        for _ in range(2):  # once leaves rounding errors that grow
            following -= (basis @ following) @ basis
        length = float(np.linalg.norm(following))
        self.beside.append(length)
        self.grows = length > 1e-13 * abs(self.diagonal[0]) and self.size < following.size
        if self.grows:
            if self.size == len(self._basis):
                self._basis = np.concatenate([self._basis, np.empty_like(self._basis)])
            self._basis[self.size] = following / length

    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = eigh_tridiagonal(self.diagonal, self.beside[:-1])
        if not values[0] > 0.0:
            raise LinAlgError(NOT_POSITIVE)
        return values, vectors

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues in the space, and the share of each in the vector that spans it."""
        values, vectors = self._eigen()
        return values, vectors[0]

    def coordinates(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return f(B) x in the basis."""
        values, vectors = self._eigen()
        return np.asarray(self.length * (vectors @ (function(values) * vectors[0])))

    def combined(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the vector with these coordinates."""
        return np.asarray(coordinates @ self._basis[: self.size])


def _inverse_root(values: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / np.sqrt(values))


@jit_kept
def subtract_normal(
    starts: np.ndarray,
    columns: np.ndarray,
    entries: np.ndarray,
    vector: np.ndarray,
    result: np.ndarray,
) -> None:
    """Subtract ``WᵀW x``, given the rows of a sparse W, in one pass over its entries."""
    for i in range(starts.size - 1):
        total = 0.0
        for k in range(starts[i], starts[i + 1]):
            total += entries[k] * vector[columns[k]]
        if total != 0.0:
            for k in range(starts[i], starts[i + 1]):
                result[columns[k]] -= entries[k] * total
