"""Decide whether a control variate pays, and find its reference point."""

import logging
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from pymc_minibatch.reference.find import NoReferenceError, Reference, search
from pymc_minibatch.reference.taylor import compile_remainder
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = [
    "choose_order",
    "decide_control_variate",
    "gaussian_acceptance",
    "nearer_start",
    "start_near_mode",
]

_log = logging.getLogger("pymc_minibatch")

TRIAL_ROWS = 1000
TRIAL_PAIRS = 16

MOST_ROWS = 0.5
"""Where full-size moves need a larger share of the rows than this, there is a warning."""

TRIAL_DRAWS = 1000

FAR_OUT = 10.0
"""Standard deviations of the squared distance from the mode beyond which a chain does not start."""


def decide_control_variate(
    tall: TallModel,
    reference: Reference | None,
    control_variate: Literal["auto", 0, 1, 2],
    temperature: float,
) -> tuple[Reference | None, int]:
    """Return a reference point, None where there is none, and the order of the control variate.

    Raises
    ------
    ValueError
        If a control variate is asked for that cannot be had, or the reference does not fit.
    """
    if control_variate not in ("auto", 0, 1, 2):
        raise ValueError(f"control_variate must be 'auto', 0, 1 or 2; got {control_variate!r}.")
    if reference is not None:
        reference.check_fits(tall)
    discrete = [var.name for var in tall.model.discrete_value_vars]
    if control_variate == 0 or (control_variate == "auto" and discrete):
        return reference, 0
    if discrete:
        raise ValueError(
            f"A control variate differentiates by all variables, and {discrete} are discrete. Set "
            "control_variate=0."
        )
    try:
        reference = reference or _search_one_mode(tall, temperature, control_variate)
    except NoReferenceError as error:
        if control_variate != "auto":
            raise
        warn(
            f"No control variate: {error}. Sampling will be slow; control_variate=0 silences this "
            "warning."
        )
        return None, 0
    if control_variate != "auto":
        return reference, control_variate
    order, gain, share = choose_order(tall, reference, temperature)
    _log.info(
        f"Control variate of order {order}: the Taylor remainder of a row varies {gain:.3g} times "
        "less than its log-likelihood."
    )
    if share > MOST_ROWS:
        warn(
            "At the scale of the posterior the log-likelihood is far from quadratic about its "
            f"mode, so minibatches save little: a decision on a full-size move takes {share:.0%} "
            "of the rows. Chains may mix slowly; look at R-hat and the effective sample size. A "
            "frequent cause are effects of groups with many rows that are written as mu + sd * z: "
            "write them centred, as Normal(mu, sd)."
        )
    return reference, order


def _search_one_mode(
    tall: TallModel, temperature: float, control_variate: Literal["auto", 0, 1, 2]
) -> Reference:
    """Search a reference point; where it would hide other modes, take it only if asked to."""
    reference = search(tall, temperature)
    if reference.several_modes and control_variate == "auto":
        raise NoReferenceError(
            "the posterior seems to have several modes, and moves about one would not reach the "
            "others. To sample about one mode pass reference=pmb.find_reference()"
        )
    return reference


def choose_order(
    tall: TallModel, reference: Reference, temperature: float = 1.0
) -> tuple[int, float, float]:
    """Compare the variance of the log ratio of random rows with and without the control variate.

    Returns
    -------
    order
        2 if the Taylor remainders vary less than the log-likelihoods, else 0.
    gain
        The factor by which their variance is smaller (median over pairs of posterior points).
    share
        The share of the rows at which s² = 1 for such a pair (median), with that order.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, tall.n_rows, TRIAL_ROWS)
    batch = [np.ascontiguousarray(values[rows]) for values in tall.data]
    remainder = compile_remainder(tall, 2)
    size = (TRIAL_PAIRS, 2)
    points = rng.multivariate_normal(reference.flat, reference.covariance, size, method="cholesky")
    terms = np.array(
        [
            [
                (tall.compiled_row_logp(point, *batch), remainder(point, reference.flat, *batch))
                for point in pair
            ]
            for pair in points
        ]
    )
    with np.errstate(invalid="ignore", over="ignore"):  # where a row is impossible
        without, with_it = np.diff(terms, axis=1)[:, 0].var(axis=-1).T
        with_it = np.maximum(with_it, np.finfo(float).tiny)
        gain = float(np.nan_to_num(np.median(without / with_it)))
    order = 2 if gain > 1 else 0
    needed = tall.n_rows / temperature**2 * np.median(with_it if order else without)
    share = float(1 - 1 / (1 + needed)) if np.isfinite(needed) else 1.0
    return order, gain, share


def gaussian_acceptance(tall: TallModel, reference: Reference, temperature: float) -> float:
    """Say how Gaussian the surrogate is, prior times Taylor likelihood, without reading a row.

    Returns
    -------
    float
        Mean acceptance probability of independent draws from the Gaussian approximation, were the
        surrogate the posterior; 1 if that is Gaussian.
    """
    rng = np.random.default_rng(0)
    precision = reference.precision_at(temperature)
    deltas = rng.multivariate_normal(
        np.zeros_like(reference.flat), np.linalg.inv(precision), TRIAL_DRAWS, method="cholesky"
    )
    prior = np.array([tall.compiled_prior_logp(reference.flat + delta) for delta in deltas])
    rest = precision + reference.hessian / temperature
    log_weights = np.nan_to_num(
        prior
        + deltas @ reference.gradient / temperature
        + 0.5 * np.einsum("ki,ij,kj->k", deltas, rest, deltas),
        nan=-np.inf,
    )
    # With w the ratio of the densities, a chain at x accepts x' with probability min(1, w'/w), and
    # is at x with a density of w times the Gaussian's: E min(w, w') / E w over Gaussian pairs.
    weights = np.sort(np.exp(log_weights - log_weights.max()))
    n_larger = np.arange(TRIAL_DRAWS)[::-1]
    smaller_of_pair = 2 * (weights @ n_larger) / (TRIAL_DRAWS * (TRIAL_DRAWS - 1))
    return float(smaller_of_pair / weights.mean())


def start_near_mode(
    tall: TallModel,
    reference: Reference,
    temperature: float,
    point: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> Mapping[str, np.ndarray]:
    """Return a draw from the Gaussian approximation, if `point` lies far outside of it."""
    whiten = np.linalg.cholesky(reference.precision_at(temperature)).T
    return nearer_start(tall, reference.flat, whiten, temperature, point, rng)


def nearer_start(
    tall: TallModel,
    mode: np.ndarray,
    whiten: np.ndarray,
    temperature: float,
    point: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> Mapping[str, np.ndarray]:
    """Return a draw from a Gaussian, if `point` lies far outside of it.

    Far from the mode the approximation is no guide, and a chain would need thousands of moves to
    come near. The point is kept if it is the more probable of the two. In the coordinates
    ``whiten @ (theta - mode)`` the Gaussian is a standard normal.
    """
    z = whiten @ (tall.layout.flatten(point) - mode)
    if z @ z < z.size + FAR_OUT * math.sqrt(2 * z.size):
        return point
    draw = mode + np.linalg.solve(whiten, rng.standard_normal(z.size))
    candidate = tall.layout.unflatten(draw)
    here, there = (
        (1 - 1 / temperature) * tall.prior_logp(p) + tall.logp(p) / temperature
        for p in (point, candidate)
    )
    return candidate if there > here else point
