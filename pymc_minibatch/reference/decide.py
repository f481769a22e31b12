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
    order, gain = choose_order(tall, reference)
    _log.info(
        f"Control variate of order {order}: the Taylor remainder of a row varies {gain:.3g} times "
        "less than its log-likelihood."
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


def choose_order(tall: TallModel, reference: Reference) -> tuple[int, float]:
    """Compare the variance of the log ratio of random rows with and without the control variate.

    Returns
    -------
    order
        2 if the Taylor remainders vary less than the log-likelihoods, else 0.
    gain
        The factor by which their variance is smaller (median over pairs of posterior points).
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, tall.n_rows, TRIAL_ROWS)
    batch = [np.ascontiguousarray(values[rows]) for values in tall.data]
    remainder = compile_remainder(tall, 2)
    size = (TRIAL_PAIRS, 2)
    points = rng.multivariate_normal(reference.flat, reference.covariance, size, method="cholesky")
    gains = []
    for current, proposed in points:
        plain = tall.compiled_row_logp(proposed, *batch) - tall.compiled_row_logp(current, *batch)
        less = remainder(proposed, reference.flat, *batch) - remainder(
            current, reference.flat, *batch
        )
        gains.append(np.var(plain) / max(np.var(less), np.finfo(float).tiny))
    gain = float(np.nan_to_num(np.median(gains)))
    return (2 if gain > 1 else 0), gain


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
    covariance = np.linalg.inv(precision)
    deltas = rng.multivariate_normal(
        np.zeros_like(reference.flat), covariance, (TRIAL_PAIRS, 2), method="cholesky"
    )
    prior = np.array(
        [[tall.compiled_prior_logp(reference.flat + delta) for delta in pair] for pair in deltas]
    )
    rest = precision + reference.hessian / temperature
    log_weights = (
        prior
        + deltas @ reference.gradient / temperature
        + 0.5 * np.einsum("pki,ij,pkj->pk", deltas, rest, deltas)
    )
    return float(np.exp(np.minimum(0.0, np.nan_to_num(np.diff(log_weights), nan=-np.inf))).mean())


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
