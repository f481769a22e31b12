"""Extreme rows: a few that are read at every decision, since no expansion says what they do.

The log-likelihood of one row may bend over a length far below the posterior standard deviation: a
predictor of 10⁵ among standard normals makes a wall in a logistic regression, on one side of which
it is flat. If the mode lies on the wall, its curvature there is that of the row, and the Gaussian
approximation is many times too narrow, or too wide if it lies beside it. With F these few rows,

    log p(θ) = log prior(θ) + (1/T) [Gᵀδ + ½ δᵀHδ + Σ_F ℓₙ(θ)] + (1/T) Σ_{n ∉ F} rₙ(θ) + constant,

where G and H are sums over the others. All but the last sum reads these few rows only. So it can
be sampled before a chain starts. The mean of these draws is the point from which δ is counted, and
moves follow a Gaussian with their mean and covariance. Nothing is approximated by that; the last
sum is estimated from a batch as ever.

Reference
---------
Murray, Adams and MacKay (2010), Elliptical slice sampling, for the draws.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.linalg import solve_triangular

from pymc_minibatch.reference.control_variate import ControlVariate, PinnedRows
from pymc_minibatch.reference.reference import Reference
from pymc_minibatch.reference.search_density import SearchDensity
from pymc_minibatch.reference.taylor import make_base_with_rows
from pymc_minibatch.tall import TallModel

__all__ = ["may_be_extreme", "read_always", "rows_to_pin", "slice_draws"]

EXTREME = 0.5
"""A row is extreme if its size, in nats, is larger: its remainder tells in a decision, on average
or somewhere within four standard deviations of what it reads, or much farther out."""

MOST_ROWS, MOST_SHARE = 2000, 0.02
"""If more rows are extreme they are none of them taken out, as to read them always takes long: they
are drawn by the largest that they add."""

BOUNDED_AT = 4.0
"""Standard deviations at which bounds tell whether a row may be extreme."""

MOST_PARAMETERS = 200

DRAWS, DRAWS_PER_PARAMETER = 2000, 40
"""So many draws tell mean and covariance well enough."""

WIDER = 0.2
"""Moves are made by a Gaussian whose sds are larger by this over √D, which rejects the same share
of them for any D: beyond a wall the tail is that of an exponential, heavier than a Gaussian's."""


def rows_to_pin(tall: TallModel, control: ControlVariate, sizes: np.ndarray) -> np.ndarray:
    """Find the rows that had better be read always, by the sizes of all rows: their numbers.

    None if there are too many, or if the expansion is not one of second order.
    """
    rows = np.flatnonzero(sizes > EXTREME * control.temperature)
    smooth = control.order == 2 and not control.reference.has_kinks
    few = rows.size <= min(MOST_ROWS, MOST_SHARE * tall.n_rows)
    small = tall.layout.size <= MOST_PARAMETERS and not tall.layout.discrete
    return rows if smooth and few and small else rows[:0]


def may_be_extreme(control: ControlVariate, bounds: np.ndarray) -> bool:
    """Whether bounds cₙ on the remainders, which are below cₙ |z|³ / 6, let a row be extreme."""
    return bool(bounds.max() * BOUNDED_AT**3 / 6 > EXTREME * control.temperature)


def read_always(
    tall: TallModel, control: ControlVariate, rows: np.ndarray
) -> ControlVariate | None:
    """Leave rows out of the expansion, besides those that are left out already.

    Returns
    -------
    ControlVariate or None
        About the mean of the posterior to second order; None if the other rows and the prior do
        not determine all parameters.
    """
    rows = np.union1d(rows, control.always_read)
    whole, temperature = control.whole, control.temperature
    expansion = ExpansionOfMost(tall, whole, rows)
    rest = expansion.about(control.reference.flat)
    first = ControlVariate(rest, control.order, temperature, PinnedRows(rows, rest, whole))
    precision = rest.precision_at(temperature)
    try:
        root = np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return None
    base, constants = make_base_with_rows(tall, first)
    slope = expansion.prior_gradient(rest.flat) + rest.gradient / temperature
    center = rest.flat + np.linalg.solve(precision, slope)
    draws = slice_draws(
        lambda point: base(point, constants),
        center,
        solve_triangular(root.T, np.eye(center.size), lower=False),
        whole.flat,
        max(DRAWS, DRAWS_PER_PARAMETER * center.size),
    )
    mean, covariance = draws.mean(axis=0), np.atleast_2d(np.cov(draws, rowvar=False))
    covariance *= (1 + WIDER / math.sqrt(mean.size)) ** 2
    rest = expansion.about(mean)
    moves = _with_gaussian(rest, expansion.prior_gradient(mean), covariance, temperature)
    return ControlVariate(rest, control.order, temperature, PinnedRows(rows, moves, whole))


def _with_gaussian(
    rest: Reference, prior_gradient: np.ndarray, covariance: np.ndarray, temperature: float
) -> Reference:
    """Give a reference the quadratic log-likelihood with which the posterior is a Gaussian."""
    precision = np.linalg.inv(covariance)
    return replace(
        rest,
        gradient=-temperature * prior_gradient,
        curvature=-temperature * ((precision + precision.T) / 2 + rest.prior_hessian),
    )


def slice_draws(
    log_density: Callable[[np.ndarray], float],
    center: np.ndarray,
    root: np.ndarray,
    start: np.ndarray,
    n: int,
) -> np.ndarray:
    """Draw from a density by elliptical slices about a Gaussian.

    The Gaussian has mean `center` and covariance ``root @ root.T``; it need not be a good
    approximation. A tenth of the draws is made before and dropped.

    Returns
    -------
    ndarray, shape (n, D)
    """
    rng = np.random.default_rng(1)

    def beyond(z: np.ndarray) -> float:
        value = log_density(center + root @ z)
        return float(value + 0.5 * z @ z) if np.isfinite(value) else -np.inf

    z = np.linalg.solve(root, start - center)
    value, draws = beyond(z), np.empty((n + n // 10, center.size))
    for draw in draws:
        other, level = rng.standard_normal(z.size), value - rng.standard_exponential()
        angle = rng.uniform(0, 2 * math.pi)
        low, high = angle - 2 * math.pi, angle
        while True:
            proposed = math.cos(angle) * z + math.sin(angle) * other
            value = beyond(proposed)
            if value > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        z = proposed
        draw[:] = center + root @ z
    return draws[n // 10 :]


class ExpansionOfMost:
    """Expansions of the log-likelihood of all but a few rows.

    Parameters
    ----------
    tall
        The model.
    whole
        An expansion of all rows.
    rows
        The few.
    """

    def __init__(self, tall: TallModel, whole: Reference, rows: np.ndarray) -> None:
        self.whole = whole
        self._density = SearchDensity(tall, whole.temperature, False, whole.flat)
        self._few, self._share = tall.batch(rows), rows.size / tall.n_rows

    def about(self, flat: np.ndarray) -> Reference:
        """Expand about a point, in one pass."""
        of_all = self._density.row_derivatives(flat, None)
        of_few = self._density.row_derivatives(flat, self._few)  # as an estimate for all
        gradient, hessian = (a - self._share * b for a, b in zip(of_all, of_few, strict=True))
        return replace(
            self.whole,
            mode=self._density.tall.layout.unflatten(flat),
            flat=flat,
            gradient=gradient,
            hessian=hessian,
            curvature=hessian,
            prior_hessian=self._density.prior_hessian(flat),
        )

    def prior_gradient(self, flat: np.ndarray) -> np.ndarray:
        """Gradient of the prior part."""
        return self._density.prior_gradient(flat)
