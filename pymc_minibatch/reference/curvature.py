"""Gradient and Hessian of the log-likelihood by what the rows read.

A row reads φ(θ) through k predictors vₙ = Jₙ φ. With f' and f'' its derivatives by these,

    G = Σ Jₙᵀ f',   H = Σ Jₙᵀ f'' Jₙ

are sums by φ, in which BLAS does most of the work, where a Hessian-vector product for each
parameter would go through the rows D times. Predictors that gather, each row a few of many entries,
have sparse Jₙ. By θ, with A the Jacobian of φ, they are

    AᵀG,   AᵀHA + Σ_i G_i ∇²φ_i,

and no row is read for the change.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad, pushforward
from pytensor.graph.replace import vectorize_graph
from scipy.sparse import csr_array

from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import DesignTerms, RowFunctions
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["Curvature", "is_cheaper"]

type _Columns = np.ndarray | csr_array

AT_ONCE = 64
"""Points at which rows are looked at together."""


def is_cheaper(structure: RowStructure, dim: int) -> bool:
    """Whether derivatives by what rows read take less than a product for each of D parameters.

    They do if most of what rows read are dense columns, which BLAS is for, or if rows have fewer
    second derivatives than there are parameters.
    """
    k = len(structure.predictors)
    is_dense = 2 * RowFunctions(structure).reads.dense.size > structure.n_read
    return is_dense or k * (k + 1) // 2 < dim


class Curvature:
    """Sums derivatives over rows, and takes them from φ to θ.

    Parameters
    ----------
    structure
        What the rows read.

    Raises
    ------
    NotImplementedError, NullTypeGradError, MethodNotDefined
        If an operation has no derivative.
    """

    def __init__(self, structure: RowStructure) -> None:
        self.rows = RowFunctions(structure, evaluator)
        _ = self.rows.derivatives  # raises, before work starts
        flat, phi = structure.flat, structure.phi
        slope, vector = pt.dvector("slope"), pt.dvector("vector")
        along: Any = pushforward(phi, flat, vector)
        rise: Any = grad(pt.sum(phi * slope), flat)
        curved: Any = grad(pt.sum(rise * vector), flat, disconnected_inputs="ignore")
        self._phi = evaluator([flat], [phi])
        self._rise = evaluator([flat, slope], [rise])
        self._chain = evaluator(
            [flat, slope, (units := pt.dmatrix())],
            [*vectorize_graph([along, curved], {vector: units})],
        )

    def slope_at(self, theta: np.ndarray) -> Callable[..., tuple[float, np.ndarray]]:
        """Return ``(*batch) -> (value, G)`` at a point, which can be pickled."""
        rows = self.rows
        functions = rows.predictors_at, rows.first, rows.arrays
        return partial(_slopes, *functions, rows.reads, self._phi(theta))

    def sums_at(self, theta: np.ndarray) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        """Return ``(*batch) -> (G, H)`` at a point, which can be pickled."""
        rows = self.rows
        functions = rows.predictors_at, rows.derivatives, rows.arrays
        return partial(_sums, *functions, rows.reads, self._phi(theta))

    def values_at(self, thetas: np.ndarray) -> Callable[..., tuple[np.ndarray]]:
        """Return ``(*batch) -> (values,)`` at many points, which can be pickled."""
        rows, phis = self.rows, np.array([self._phi(theta) for theta in thetas])
        return partial(_values, rows.predictors_at, rows.row, rows.arrays, rows.reads, phis)

    def slope_by_parameters(self, theta: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Return the gradient by θ, given G."""
        return np.asarray(self._rise(theta, slope))

    def by_parameters(
        self, theta: np.ndarray, slope: np.ndarray, hessian: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and Hessian by θ, given G and H."""
        columns, bends = self._chain.outputs(theta, slope, np.eye(theta.size))
        return columns @ slope, columns @ hessian @ columns.T + bends


def _slopes(
    predictors_at: Evaluator,
    first: Evaluator,
    arrays: Evaluator,
    reads: DesignTerms,
    phi: np.ndarray,
    *batch: np.ndarray,
) -> tuple[float, np.ndarray]:
    value, *slopes = first(predictors_at(phi, *batch), *batch)
    slope = np.zeros(phi.size)
    jacobians = _jacobians(arrays.outputs(*batch), reads)
    for each, (rows, columns) in zip(slopes, jacobians, strict=True):
        slope[rows] += each @ columns
    return value.sum(), slope


def _values(
    predictors_at: Evaluator,
    row: Evaluator,
    arrays: Evaluator,
    reads: DesignTerms,
    phis: np.ndarray,
    *batch: np.ndarray,
) -> tuple[np.ndarray]:
    """Sum the rows at many points; BLAS multiplies the columns with some of these at once."""
    first, values = predictors_at(phis[0], *batch), []
    jacobians = _jacobians(arrays.outputs(*batch), reads)
    for some in np.array_split(phis - phis[0], math.ceil(len(phis) / AT_ONCE)):
        moved = np.array([columns @ some[:, rows].T for rows, columns in jacobians])
        values += [row(first + v, *batch).sum() for v in np.moveaxis(moved, 2, 0)]
    return (np.array(values),)


def _sums(
    predictors_at: Evaluator,
    derivatives: Evaluator,
    arrays: Evaluator,
    reads: DesignTerms,
    phi: np.ndarray,
    *batch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    jacobians = _jacobians(arrays.outputs(*batch), reads)
    found = derivatives(predictors_at(phi, *batch), *batch)[1:]
    first, second = np.split(found, [len(jacobians)])
    slope, hessian = np.zeros(phi.size), np.zeros((phi.size, phi.size))
    for i, (rows, columns) in enumerate(jacobians):
        slope[rows] += first[i] @ columns
        for j, (others, other_columns) in enumerate(jacobians[: i + 1]):
            block = columns.T @ _weighted(second[second_order(i, j)], other_columns)
            block = block.toarray() if isinstance(block, csr_array) else block
            hessian[np.ix_(rows, others)] += block
            if i != j:
                hessian[np.ix_(others, rows)] += block.T
    return slope, hessian


def _weighted(weights: np.ndarray, columns: _Columns) -> _Columns:
    """Multiply each row by a number."""
    if isinstance(columns, np.ndarray):
        return np.asarray(weights[:, None] * columns)
    by_entry = np.repeat(weights, np.diff(columns.indptr))
    return csr_array(
        (by_entry * columns.data, columns.indices, columns.indptr), shape=columns.shape
    )


def _jacobians(
    arrays: Sequence[np.ndarray], reads: DesignTerms
) -> list[tuple[np.ndarray, _Columns]]:
    """Return for each predictor the entries of φ that it reads, and by which columns.

    These are sparse if it gathers.
    """
    columns, entries, weights = arrays
    n = len(entries)
    found = []
    for predictor in range(reads.n_predictors):
        dense = np.flatnonzero(reads.dense_predictor == predictor)
        gathered = np.flatnonzero(reads.predictor == predictor)
        if dense.size and not gathered.size and np.all(np.diff(reads.dense[dense]) > 0):
            adjoining = dense.size == dense[-1] - dense[0] + 1
            own = columns[:, dense[0] : dense[-1] + 1] if adjoining else columns[:, dense]
            found.append((reads.dense[dense], own))
            continue
        read, position = np.unique(
            np.concatenate([reads.dense[dense], entries[:, gathered].ravel()]), return_inverse=True
        )
        at = np.concatenate(
            [
                np.broadcast_to(position[: dense.size], (n, dense.size)),
                position[dense.size :].reshape(n, gathered.size),
            ],
            axis=1,
        )
        values = np.concatenate([columns[:, dense], weights[:, gathered]], axis=1)
        starts = np.arange(n + 1) * at.shape[1]
        own = csr_array((values.ravel(), at.ravel(), starts), shape=(n, read.size))
        found.append((read, own))
    return found
