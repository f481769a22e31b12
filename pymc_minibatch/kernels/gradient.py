"""What the stochastic-gradient kernels share: the gradient of a batch.

Rows are drawn with replacement, so that the gradient N ḡ of a batch of n has covariance N² V / n.
If V itself is not needed, the rows are summed as the gradient is taken, and the difference of
two halves of the batch tells of the noise.

A kernel that is made for a density that is `bounded`, by a hard constraint or the end of a prior,
looks at each point it moves to, and does not go where the density is zero. A Langevin step stays
where it was, as a random walk that is exact on a part of the space does; with momentum, a drift
that leads out turns the momentum round instead, which like the drift is its own inverse once the
momentum is turned round again, and so leaves the same density as it is.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.entry import answer_signals
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.pointers import call_array, call_matrix
from pymc_minibatch.jit.triangular import squared_norm
from pymc_minibatch.kernels.rows import make_take, put
from pymc_minibatch.reference.density import Density

__all__ = [
    "DIVERGED",
    "STRONGEST",
    "add_gradient",
    "diverges",
    "make_draw_gradients",
    "make_estimate",
    "move_inside",
    "tame",
]

STRONGEST = 3.0
"""Near a wall where the log-density falls to −∞ its gradient has no limit. Once a chain has tuned,
the push of a step is at most so many times the noise that the step is made for."""

DIVERGED = 1e6
"""A squared drift so many times that of the first step is the mark of a step that diverges."""


def make_draw_gradients(ndims: Sequence[int]) -> Callable[..., np.ndarray]:
    """Make ``(rng, point, density, rows) -> row gradients``, which draws the rows afresh."""
    take = make_take(ndims)

    @jit_part
    def draw_gradients(
        rng: np.random.Generator, point: np.ndarray, density: Density, rows: np.ndarray
    ) -> np.ndarray:
        answer_signals()
        n_rows = density.data[0].shape[0]
        for i in range(rows.size):
            rows[i] = int(rng.random() * n_rows)
        return call_matrix(density.row, (point, density.constants, take(density.data, rows)))

    return draw_gradients


def make_estimate(ndims: Sequence[int]) -> Callable[..., None]:
    """Make ``(rng, point, active, density, rows, gradient, noise)``, which draws the rows afresh.

    It writes the gradient of the active parameters, base + N ḡ, to `gradient`. Unless `noise` is
    empty, a random vector with the mean 0 and the covariance of that estimate goes there:
    N √(n₁n₂)/n times the difference between the means of two halves. `density` has the sums of the
    rows' gradients.
    """
    take = make_take(ndims)

    @jit_part
    def estimate(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
        rows: np.ndarray,
        gradient: np.ndarray,
        noise: np.ndarray,
    ) -> None:
        answer_signals()
        n, n_rows = rows.size, density.data[0].shape[0]
        for i in range(n):
            rows[i] = int(rng.random() * n_rows)
        base = call_array(density.base, (point, density.constants))
        first = n // 2 if noise.size else n
        total = call_array(
            density.row, (point, density.constants, take(density.data, rows[:first]))
        )
        for j in range(active.size):
            at = np.uint64(active[j])  # never counted from the end, which takes time
            gradient[j] = base[at] + n_rows / n * total[at]
        if not noise.size:
            return
        second = n - first
        other = call_array(
            density.row, (point, density.constants, take(density.data, rows[first:]))
        )
        scale = n_rows * math.sqrt(first * second) / n
        for j in range(active.size):
            gradient[j] += n_rows / n * other[active[j]]
            noise[j] = scale * (total[active[j]] / first - other[active[j]] / second)

    return estimate


@register_jitable
def is_possible(point: np.ndarray, density: Density) -> bool:
    """Whether the log-density of the prior part is finite: elsewhere the base is NaN."""
    return not math.isnan(call_array(density.base, (point, density.constants))[0])


@register_jitable
def move_inside(
    point: np.ndarray, active: np.ndarray, step: np.ndarray, kept: np.ndarray, density: Density
) -> bool:
    """Move the active parameters unless the density is zero there; return whether it is."""
    add(point, active, step, kept)
    if is_possible(point, density):
        return False
    put(kept, active, point)
    return True


@register_jitable
def add(point: np.ndarray, active: np.ndarray, step: np.ndarray, kept: np.ndarray) -> None:
    """Move the active parameters, and keep where they were."""
    for i in range(active.size):
        kept[i] = point[active[i]]
        point[active[i]] += step[i]


@register_jitable
def add_gradient(
    point: np.ndarray,
    active: np.ndarray,
    density: Density,
    gradients: np.ndarray,
    mean: np.ndarray,
    total: np.ndarray,
) -> None:
    """Write ḡ and the whole gradient, base + N ḡ, of the active parameters."""
    base = call_array(density.base, (point, density.constants))
    n, n_rows = gradients.shape[0], density.data[0].shape[0]
    mean[:] = 0.0
    for i in range(n):
        for j in range(active.size):
            mean[j] += gradients[i, active[j]]
    for j in range(active.size):
        mean[j] /= n
        total[j] = base[active[j]] + n_rows * mean[j]


@register_jitable
def tame(push: np.ndarray, most: float) -> None:
    """Shorten a push that is longer than the most (a tamed Euler scheme).

    Reference: Hutzenthaler, Jentzen and Kloeden (2012), Strong convergence of an explicit numerical
    method for SDEs with nonglobally Lipschitz continuous coefficients.
    """
    length = math.sqrt(squared_norm(push))
    if length > most:
        for i in range(push.size):
            push[i] *= most / length


@register_jitable
def diverges(squared_drift: float, dim: int, limit: np.ndarray) -> bool:
    """Whether a step is far longer than the first one, to which `limit` is set."""
    if limit[0] == 0.0:
        limit[0] = DIVERGED * max(squared_drift, float(dim))
    return not squared_drift < limit[0]
