"""Gradient and Hessian of the log-likelihood by what the rows read.

A row reads φ(θ) through k local inputs vₙ = Jₙ φ. With f' and f'' its derivatives by these,

    G = Σ Jₙᵀ f',   H = Σ Jₙᵀ f'' Jₙ

are sums by φ, in which BLAS does most of the work, where a Hessian-vector product for each
parameter would go through the rows D times. By θ, with A the Jacobian of φ, they are

    AᵀG,   AᵀHA + Σ_i G_i ∇²φ_i,

and no row is read for the change.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad, pushforward

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.reference.rows import Reads, RowFunctions, second_order
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["Curvature", "is_dense"]


def is_dense(structure: RowStructure) -> bool:
    """Whether most of what rows read they read as dense columns, which BLAS is for."""
    return 2 * RowFunctions(structure).reads.dense.size > structure.n_read


class Curvature:
    """Sums derivatives over rows, and takes them from φ to θ.

    Parameters
    ----------
    structure
        What the rows read.
    """

    def __init__(self, structure: RowStructure) -> None:
        self.rows = RowFunctions(structure)
        flat, phi = structure.flat, structure.phi
        slope, vector = pt.dvector("slope"), pt.dvector("vector")
        along: Any = pushforward(phi, flat, vector)
        rise: Any = grad(pt.sum(phi * slope), flat)
        bend: Any = grad(pt.sum(rise * vector), flat, disconnected_inputs="ignore")
        self._chain = compile_numba([flat, slope, vector], [phi, along, bend])

    def sums_at(self, theta: np.ndarray) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        """Return ``(*batch) -> (G, H)`` at a point, which can be pickled."""
        none = np.zeros(theta.size)
        phi = self._chain(theta, np.zeros(self.rows.structure.n_read), none)
        rows = self.rows
        functions = rows.local_inputs, rows.derivatives, rows.arrays
        return partial(_sums, *functions, rows.reads, phi)

    def by_parameters(
        self, theta: np.ndarray, slope: np.ndarray, hessian: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and Hessian by θ, given G and H."""
        columns, bends = zip(
            *(self._chain.outputs(theta, slope, unit)[1:] for unit in np.eye(theta.size)),
            strict=True,
        )
        jacobian = np.array(columns).T
        return slope @ jacobian, jacobian.T @ hessian @ jacobian + np.array(bends)


def _sums(
    local_inputs: CompiledFunction,
    derivatives: CompiledFunction,
    arrays: CompiledFunction,
    reads: Reads,
    phi: np.ndarray,
    *batch: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    v = local_inputs(phi, *batch)
    k = len(v)
    first, second = np.split(derivatives(v, *batch)[1:], [k])
    columns, entries, weights = arrays.outputs(*batch)
    jacobians = _jacobians(columns, entries, weights, reads, (k, phi.size))
    slope, hessian = np.zeros(phi.size), np.zeros((phi.size, phi.size))
    for i in range(k):
        slope += first[i] @ jacobians[i]
        for j in range(i + 1):
            block = jacobians[i].T @ (second[second_order(i, j)][:, None] * jacobians[j])
            hessian += block if i == j else block + block.T
    return slope, hessian


def _jacobians(
    columns: np.ndarray,
    entries: np.ndarray,
    weights: np.ndarray,
    reads: Reads,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return what each local input takes from φ, shape (k, b, P)."""
    k, n_read = shape
    jacobians = np.zeros((k, len(columns), n_read))
    for c, (entry, local) in enumerate(zip(reads.dense, reads.dense_local, strict=True)):
        jacobians[local, :, entry] += columns[:, c]
    each = np.arange(len(entries))
    for s, local in enumerate(reads.local):
        jacobians[local, each, entries[:, s]] += weights[:, s]
    return jacobians
