"""Decide whether a control variate pays, and find its reference point."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.linalg import solve_triangular

from pymc_minibatch.arguments import checked_type
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.find import discrete_in_rows, fitting, search
from pymc_minibatch.reference.reference import NoReferenceError, Reference, SeveralModesError
from pymc_minibatch.reference.taylor import row_term
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = [
    "check_control_variate",
    "check_reference",
    "choose_order",
    "decide_control_variate",
    "drawn_about_mode",
    "gaussian_acceptance",
    "log_density",
    "nearer_start",
    "start_near_mode",
]

_log = logging.getLogger("pymc_minibatch")

TRIAL_ROWS = 1000
TRIAL_PAIRS = 16

MOST_ROWS = 0.5
"""If full-size moves need a larger share of the rows than this, there is a warning."""

TOGETHER = 0.5
"""Variables that each take a larger share of the remainder with them act together."""

TRIAL_DRAWS = 1000

START_SPREAD = 2.0
"""Chains that are moved near the mode start so many posterior standard deviations about it."""

FAR_OUT = 10.0
"""Standard deviations of the squared distance from the mode beyond which a chain does not start."""


def check_reference(reference: Any) -> None:
    """Refuse what is no reference.

    Raises
    ------
    TypeError
    """
    remedy = "Make one with pmb.find_reference(), or read one with pmb.Reference.load(path)."
    checked_type("reference", reference, Reference, remedy)


def check_control_variate(reference: Any, control_variate: Any) -> None:
    """Refuse arguments that are wrong whatever the model.

    Raises
    ------
    TypeError, ValueError
    """
    check_reference(reference)
    whole = isinstance(control_variate, int | np.integer) and not isinstance(control_variate, bool)
    if control_variate != "auto" and not (whole and control_variate in (0, 1, 2)):
        raise ValueError(f"control_variate must be 'auto', 0, 1 or 2; got {control_variate!r}.")


def decide_control_variate(
    tall: TallModel,
    reference: Reference | None,
    control_variate: Literal["auto", 0, 1, 2],
    temperature: float,
    *,
    one_mode: bool = True,
    will_be_witnessed: bool = False,
) -> ControlVariate | None:
    """Return a control variate, of order 0 if it does not pay; None without reference point.

    If moves will be compared with the model's own density at once, by a witness, the split is not
    compared with it here.

    Raises
    ------
    SeveralModesError
        If there are several modes, unless this is for `one_mode` all the same, with a warning.
    ValueError
        If a control variate is asked for that cannot be had, or the reference does not fit.
    """
    check_control_variate(reference, control_variate)
    if reference is not None:
        reference = fitting(tall, reference)
    discrete = discrete_in_rows(tall)
    if discrete and control_variate == "auto":
        warn(
            "PMB105",
            f"No control variate: the rows depend on the discrete variables {discrete}, and a "
            "Taylor expansion is valid for one of their values only. Batches will be large, up to "
            "all rows, and moves short. Marginalize the discrete variables if you can; "
            "control_variate=0 silences this warning.",
        )
    if control_variate == 0 or (control_variate == "auto" and discrete):
        return None if reference is None else ControlVariate(reference, 0, temperature)
    if discrete:
        raise ValueError(
            "A control variate needs derivatives by everything on which the rows depend, and "
            f"{discrete} are discrete. Set control_variate=0."
        )
    try:
        reference = reference or _search_one_mode(
            tall, temperature, control_variate, will_be_witnessed
        )
    except NoReferenceError as error:
        mode_sampler = isinstance(error, SeveralModesError) and not one_mode
        if control_variate != "auto" or mode_sampler:
            raise
        warn(
            "PMB104",
            f"No control variate: {error}. Sampling will be slower; control_variate=0 silences "
            "this warning.",
        )
        return None
    if control_variate != "auto":
        return ControlVariate(reference, control_variate, temperature)
    order, gain, share = choose_order(tall, reference, temperature)
    _log.info(
        f"Control variate of order {order}: the Taylor remainder of a row varies {gain:.3g} times "
        "less than its log-likelihood."
    )
    control = ControlVariate(reference, order, temperature)
    if share > MOST_ROWS and not reference.has_kinks:  # few rows, drawn by size, tell of kinks
        warn(
            "PMB103",
            "The Taylor expansion about the mode fits this posterior poorly, so minibatches save "
            f"little: a decision on a full-size move takes {share:.0%} of the rows. "
            f"{_cause(tall, control)} Chains may mix slowly: check R-hat and the effective sample "
            "size.",
        )
    return control


def _search_one_mode(
    tall: TallModel,
    temperature: float,
    control_variate: Literal["auto", 0, 1, 2],
    will_be_witnessed: bool,
) -> Reference:
    """Search a reference point; where it would hide other modes, take it only if asked to."""
    reference = search(tall, temperature, will_be_witnessed=will_be_witnessed)
    if reference.several_modes and control_variate == "auto":
        raise SeveralModesError(
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
        2 if the Taylor remainders vary less than the log-likelihoods, else 0; 1 in place of 2 where
        second derivatives are all zero, as of lines between kinks.
    gain
        The factor by which their variance is smaller (median over pairs of posterior points).
    share
        The share of the rows at which s² = 1 for such a pair (median), with that order.
    """
    rng = np.random.default_rng(0)
    batch = _trial_rows(tall, rng)
    highest = 2 if reference.hessian.any() else 1
    size = (TRIAL_PAIRS, 2)
    points = rng.multivariate_normal(
        reference.center, reference.covariance, size, method="cholesky"
    )
    kinds = [row_term(tall, reference, order) for order in (0, highest)]
    terms = np.array([[[term(p, batch) for p in pair] for term in kinds] for pair in points])
    with np.errstate(invalid="ignore", over="ignore"):  # where a row is impossible
        without, with_it = np.diff(terms, axis=2)[:, :, 0].var(axis=-1).T
        with_it = np.maximum(with_it, np.finfo(float).tiny)
        gain = float(np.nan_to_num(np.median(without / with_it)))
    order = highest if gain > 1 else 0
    needed = tall.n_rows / temperature**2 * np.median(with_it if order else without)
    share = float(1 - 1 / (1 + needed)) if np.isfinite(needed) else 1.0
    return order, gain, share


def _cause(tall: TallModel, control: ControlVariate) -> str:
    """Say which variables make the log-likelihood far from quadratic, and what helps.

    A variable counts with the share of the variance of the remainders that goes where the variable
    is held at its mode.
    """
    spread = _spread(tall, control, None)
    shares = {
        name: 1 - _spread(tall, control, where) / spread
        for name, where in tall.layout.slices.items()
    }
    if not np.isfinite(spread) or not all(np.isfinite(share) for share in shares.values()):
        return "Some rows have probability zero at points near the mode."
    first, *others = sorted(shares, key=lambda name: -shares[name])
    found = f"{first} ({shares[first]:.0%})"
    if others and shares[others[0]] > TOGETHER:
        return (
            f"Most of the misfit comes from {found} and {others[0]} ({shares[others[0]]:.0%}), "
            "which act together, as the factors of a product do. If these are the effects of "
            "groups and their scale, let MinibatchMH choose the moves: leave out vars, reference, "
            "proposal and control_variate."
        )
    return (
        f"Most of the misfit comes from {found}, whose posterior is wide because few rows inform "
        "it. A more informative prior on it, or more rows that depend on it, will help."
    )


def _spread(tall: TallModel, control: ControlVariate, at: slice | None) -> float:
    """Variance over rows of the log ratios of posterior points that agree in some variables."""
    reference, order = control.reference, control.order
    rng = np.random.default_rng(0)
    batch = _trial_rows(tall, rng)
    term = row_term(tall, reference, order)
    free = np.ones(reference.flat.size, dtype=bool)
    if at is not None:
        free[at] = False
    points = np.tile(reference.center, (TRIAL_PAIRS, 2, 1))
    precision = reference.precision_at(reference.temperature)[np.ix_(free, free)]
    z = rng.standard_normal((points[..., 0].size, int(free.sum())))
    factor = np.linalg.cholesky(precision)
    away = solve_triangular(factor, z.T, lower=True, trans="T").T
    points[..., free] += away.reshape(*points.shape[:2], -1)
    ratios = [term(there, batch) - term(here, batch) for here, there in points]
    with np.errstate(invalid="ignore"):  # where a row is impossible
        return float(np.median([ratio.var() for ratio in ratios]))


def _trial_rows(tall: TallModel, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return tall.batch(tall.random_rows(rng, TRIAL_ROWS))


def gaussian_acceptance(tall: TallModel, control: ControlVariate) -> float:
    """Say how Gaussian the surrogate is, prior times quadratic likelihood, without reading a row.

    Returns
    -------
    float
        Mean acceptance probability of independent draws from the Gaussian approximation, were the
        surrogate the posterior; 1 if that is Gaussian.
    """
    reference, temperature = control.gaussian, control.temperature
    rng = np.random.default_rng(0)
    precision = reference.precision_at(temperature)
    away = rng.multivariate_normal(
        np.zeros_like(reference.flat), np.linalg.inv(precision), TRIAL_DRAWS, method="cholesky"
    )
    deltas = reference.center - reference.flat + away
    prior = np.array([tall.compiled_prior_logp(reference.flat + delta) for delta in deltas])
    log_weights = np.nan_to_num(
        prior
        + deltas @ reference.gradient / temperature
        + 0.5 * _squares(deltas, reference.curvature / temperature)
        + 0.5 * _squares(away, precision),
        nan=-np.inf,
    )
    # With w the ratio of the densities, a chain at x accepts x' with probability min(1, w'/w), and
    # is at x with a density of w times the Gaussian's: E min(w, w') / E w over Gaussian pairs.
    weights = np.sort(np.exp(log_weights - log_weights.max()))
    n_larger = np.arange(TRIAL_DRAWS)[::-1]
    smaller_of_pair = 2 * (weights @ n_larger) / (TRIAL_DRAWS * (TRIAL_DRAWS - 1))
    return float(smaller_of_pair / weights.mean())


def _squares(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return vᵀAv of each vector."""
    return np.asarray(np.einsum("ki,ij,kj->k", vectors, matrix, vectors))


def start_near_mode(
    tall: TallModel,
    control: ControlVariate,
    active: np.ndarray,
    point: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> Mapping[str, np.ndarray]:
    """Return a draw from the Gaussian approximation, if `point` lies far outside of it.

    Only the parameters at the positions `active` move: the approximation is that given the others,
    or where these are too far away for it to hold, the one about the mode.
    """
    reference, temperature = control.gaussian, control.temperature
    precision, mode = reference.precision_at(temperature), reference.center[active]
    others = np.setdiff1d(np.arange(reference.flat.size), active)
    own = precision[np.ix_(active, active)]
    whiten = np.linalg.cholesky(own).T
    if not others.size:
        return nearer_start(tall, mode, whiten, temperature, active, point, rng)
    away = tall.layout.flatten(point)[others] - reference.center[others]
    given_others = mode - np.linalg.solve(own, precision[np.ix_(active, others)] @ away)
    starts = [
        nearer_start(tall, center, whiten, temperature, active, point, rng)
        for center in (given_others, mode)
    ]
    return max(starts, key=lambda start: log_density(tall, temperature, start))


def drawn_about_mode(
    control: ControlVariate, active: np.ndarray, flat: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw the parameters at the positions `active` from the Gaussian approximation about the mode.

    No row is read, so that the draw may be impossible.
    """
    reference, drawn = control.gaussian, flat.copy()
    precision = reference.precision_at(control.temperature)[np.ix_(active, active)]
    away = np.linalg.solve(np.linalg.cholesky(precision).T, rng.standard_normal(active.size))
    drawn[active] = reference.center[active] + away
    return drawn


def nearer_start(
    tall: TallModel,
    mode: np.ndarray,
    whiten: np.ndarray,
    temperature: float,
    active: np.ndarray,
    point: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> Mapping[str, np.ndarray]:
    """Return a draw from a wide Gaussian, if `point` lies far outside of it.

    Far from the mode the approximation is no guide, and a chain would need thousands of moves to
    come near. The point is kept if it is the more probable of the two. In the coordinates
    ``whiten @ (theta - mode)`` of the parameters at the positions `active`, the Gaussian is a
    standard normal. Chains start `START_SPREAD` times as far apart, so that R-hat can tell whether
    they forget where they started, or nearer where a draw is impossible.
    """
    flat = tall.layout.flatten(point)
    z = whiten @ (flat[active] - mode)
    if z @ z < z.size + FAR_OUT * math.sqrt(2 * z.size):
        return point
    here = log_density(tall, temperature, point)
    away = np.linalg.solve(whiten, rng.standard_normal(z.size))
    for spread in (START_SPREAD, 1.0, 0.0):
        flat[active] = mode + spread * away
        candidate = tall.layout.unflatten(flat)
        if log_density(tall, temperature, candidate) > here:
            return candidate
    return point


def log_density(tall: TallModel, temperature: float, point: Mapping[str, np.ndarray]) -> float:
    """Log-density of the posterior at a temperature; -inf if it is not a number."""
    value = (1 - 1 / temperature) * tall.prior_logp(point) + tall.trial_logp(point) / temperature
    return value if np.isfinite(value) else -math.inf
