"""What the stochastic-gradient kernels share: the gradient of a batch.

Rows are drawn with replacement, so that the gradient N ḡ of a batch of n has covariance N² V / n.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from pymc_minibatch.jit.pointers import call_array, call_matrix
from pymc_minibatch.kernels.rows import make_take
from pymc_minibatch.reference.source import Source

__all__ = [
    "DIVERGED",
    "add_gradient",
    "diverges",
    "make_draw_gradients",
]

DIVERGED = 1e6
"""A squared drift so many times that of the first step is the mark of a step that diverges."""


def make_draw_gradients(ndims: Sequence[int]) -> Callable[..., np.ndarray]:
    """Make ``(rng, point, source, rows) -> row gradients``, which draws the rows afresh."""
    take = make_take(ndims)

    @njit
    def draw_gradients(
        rng: np.random.Generator, point: np.ndarray, source: Source, rows: np.ndarray
    ) -> np.ndarray:
        n_rows = source.data[0].shape[0]
        for i in range(rows.size):
            rows[i] = int(rng.random() * n_rows)
        return call_matrix(source.row, (point, source.constants, take(source.data, rows)))

    return draw_gradients


@njit
def add_gradient(
    point: np.ndarray,
    active: np.ndarray,
    source: Source,
    gradients: np.ndarray,
    mean: np.ndarray,
    total: np.ndarray,
) -> None:
    """Write ḡ and the whole gradient, base + N ḡ, of the active parameters."""
    base = call_array(source.base, (point, source.constants))
    n, n_rows = gradients.shape[0], source.data[0].shape[0]
    mean[:] = 0.0
    for i in range(n):
        for j in range(active.size):
            mean[j] += gradients[i, active[j]]
    for j in range(active.size):
        mean[j] /= n
        total[j] = base[active[j]] + n_rows * mean[j]


@njit
def diverges(squared_drift: float, dim: int, limit: np.ndarray) -> bool:
    """Whether a step is far longer than the first one, to which `limit` is set."""
    if limit[0] == 0.0:
        limit[0] = DIVERGED * max(squared_drift, float(dim))
    return not squared_drift < limit[0]
