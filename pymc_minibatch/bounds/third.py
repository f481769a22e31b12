r"""Bounds on the third derivative of a row by its predictor.

For a row f(η), K is to be a number with \|f'''\| ≤ K on an interval about η̂. The families are told
apart by identities of their derivatives on random rows; so it does not matter how a likelihood is
written. Then each row has to have the remainder of its family, by its values (:mod:`.row_claims`).

- *Normal*: f''' = 0.
- *Exponential form*, f''' ∝ exp(s η) (Poisson with log link, Exponential, Gamma and Weibull with
  log link and known shape): \|f'''\| is monotone, and largest at an end of the interval.
- *Logistic form*, f'' = −n σ'(u) with u = η − a (Bernoulli and Binomial with logit link, a = 0;
  NegativeBinomial with log link, known α, n = y + α and a = log α): f''' = −n h(u) with
  h = σ(1 − σ)(1 − 2σ). With s = σ(u), dh/ds = 1 − 6 s + 6 s² vanishes at s = ½ (1 ± 1/√3), that is
  u = ± log((√3 + 1)/(√3 − 1)), where \|h\| = √3/18. Between −∞, these two, 0 and ∞ \|h\| is
  monotone. So the largest value on an interval is √3/18 if one of the two lies in it, and that at
  an end if not.
- *Probit*, f = log Φ(u), u = ±η: since Φ(u) = φ(u) ∫ exp(u t − t²/2) dt over t > 0, f''' is the
  third cumulant of a normal variable N(u, 1) that is truncated to t > 0, and f'''' its fourth. That
  law is log-concave with a variance of at most 1, so its excess kurtosis is at most 6 (that of the
  exponential distribution), and at least −2 as any: \|f''''\| ≤ 6. On a grid with spacing 10⁻³ from
  −12 to 12 the largest \|f'''\| is below 0.2958, so that it is below 0.2958 + 6 · 10⁻³/2 < 0.2989
  between; beyond, \|f'''\| ≤ 2 var^(3/2) (log-concave laws have a skewness of at most 2), where the
  variance is at most 1/u² for u < 0, and \|f'''\| ≤ φ(u)/Φ(u) · (u + 1)(u + 2) for u > 12: below
  0.002. K = 0.3.
- *Student-t*, f = −(ν+1)/2 log(1 + v²), v = (y − η)/(σ√ν): \|f'''\| = (ν+1)/2 \|g\| / (σ√ν)³ with
  g = 4 v (v² − 3)/(1 + v²)³. dg/dv is proportional to v⁴ − 6 v² + 1, which vanishes at
  v = ±√2 ± 1. So the largest \|g\| on an interval is that at an end or at one of these within.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from scipy.special import expit, log_ndtr

from pymc_minibatch.bounds.likelihood import NoBoundError, recognise
from pymc_minibatch.bounds.predictor import NoPredictorError, Predictor
from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.tall import TallModel

__all__ = ["KNOWN", "LOGISTIC_PEAK", "PROBIT", "Third", "find_third"]

type _OfSteps = Callable[[np.ndarray], np.ndarray]
type _Taylor = Sequence[np.ndarray]
type Remainder = Callable[[np.ndarray, _Taylor, Sequence[np.ndarray]], _OfSteps]
"""``(η, (f, f', f''), batch)`` gives ``t -> f(η + t) − f − f' t − f'' t²/2`` of each row."""


class Third(NamedTuple):
    """A family of rows.

    Attributes
    ----------
    bound
        ``(lowest η, highest η, batch) -> K`` of each row.
    remainder
        What it has beyond second order.
    """

    bound: Callable[[np.ndarray, np.ndarray, Sequence[np.ndarray]], np.ndarray]
    remainder: Remainder

    def __call__(
        self, lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Bound the third derivatives on intervals."""
        return self.bound(lowest, highest, batch)


LOGISTIC_PEAK = np.log((np.sqrt(3) + 1) / (np.sqrt(3) - 1))
PROBIT = 0.3
SINGLE = float(np.sqrt(2) / np.sqrt(np.float32(2)))
"""``pm.math.invprobit`` divides by √2 in single precision."""

STUDENT_PEAKS = (np.sqrt(2) - 1, np.sqrt(2) + 1, 1 - np.sqrt(2), -1 - np.sqrt(2))

KNOWN = (
    "Bernoulli (logit, probit), Binomial (logit), Poisson, NegativeBinomial, Exponential, Gamma "
    "and Weibull (log link), StudentT and Normal, with known scale and shape"
)

TRIAL_ROWS = 500
STEPS = (-1.7, -0.6, 0.4, 1.3)
"""How far from η̂ the identities are verified."""

TOLERANCE = 1e-6


def find_third(tall: TallModel, predictor: Predictor, reference: np.ndarray) -> Third:
    """Find the family of the rows, and with it a bound.

    Raises
    ------
    NoPredictorError
        If no bound is known.
    """
    rng = np.random.default_rng(20240719)
    rows = np.sort(tall.random_rows(rng, min(TRIAL_ROWS, tall.n_rows)))
    batch = tall.batch(rows)
    eta = predictor.vector_eta(reference, *batch)
    derivatives = predictor.vector_derivatives.outputs
    families: Sequence[Callable[..., Third | None]] = (
        _normal,
        _exponential,
        _logistic,
        _probit,
        _student_t,
    )
    if not np.any(derivatives(eta, *batch)[0]):
        families = ()  # lines between kinks, as of Laplace errors, have no second derivative
    with np.errstate(all="ignore"):
        for family in families:
            third = family(tall, derivatives, eta, batch)
            if third is not None:
                return third
    raise NoPredictorError(
        f"no bound on the third derivative of {' + '.join(tall.row_names)} by its predictor is "
        f"known; it is for {KNOWN}"
    )


type _Derivatives = Callable[..., tuple[np.ndarray, ...]]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether numbers agree, up to rounding of those that are hardly anything."""
    scale = np.maximum(np.abs(one), np.abs(other))
    floor = 1e-9 * np.max(scale, initial=0.0)
    return bool(np.all(np.abs(one - other) <= TOLERANCE * scale + floor))


def _normal(
    tall: TallModel, derivatives: _Derivatives, eta: np.ndarray, batch: Sequence[np.ndarray]
) -> Third | None:
    at_mode = derivatives(eta, *batch)[0]
    for step in STEPS:
        second, third = derivatives(eta + step, *batch)
        if not (np.all(np.abs(third) <= 1e-12 * np.abs(second)) and _same(second, at_mode)):
            return None  # parabolas and lines between kinks, as Huber's, are not of this family
    return Third(
        lambda lowest, highest, batch: np.zeros(lowest.size),
        lambda eta, taylor, batch: np.zeros_like,
    )


def _exponential(
    tall: TallModel, derivatives: _Derivatives, eta: np.ndarray, batch: Sequence[np.ndarray]
) -> Third | None:
    _, at_mode = derivatives(eta, *batch)
    rates = []
    for step in STEPS:
        _, third = derivatives(eta + step, *batch)
        if not np.array_equal(third == 0, at_mode == 0):
            return None
        told = at_mode != 0
        rates.append(np.log(third[told] / at_mode[told]) / step)
    found = np.concatenate(rates)
    if found.size == 0 or not _same(found, np.full_like(found, found[0])) or abs(found[0]) < 1e-3:
        return None

    def third_of(
        lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        ends = [np.abs(derivatives(end, *batch)[1]) for end in (lowest, highest)]
        return np.maximum(*ends)

    rate = float(np.median(found))

    def remainder(eta: np.ndarray, taylor: _Taylor, batch: Sequence[np.ndarray]) -> _OfSteps:
        def of_steps(t: np.ndarray) -> np.ndarray:
            u = rate * t
            return taylor[2] / rate**2 * (np.expm1(u) - u - u**2 / 2)

        return of_steps

    return Third(third_of, remainder)


def _logistic(
    tall: TallModel, derivatives: _Derivatives, eta: np.ndarray, batch: Sequence[np.ndarray]
) -> Third | None:
    def shape_of(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return n and a, from the derivatives at 0."""
        second, third = derivatives(np.zeros(len(batch[0])), *batch)
        shift = 2 * np.arctanh(
            np.divide(third, second, where=second != 0, out=np.zeros(len(third)))
        )
        return -second / (expit(shift) * expit(-shift)), shift

    size, shift = shape_of(batch)
    for step in STEPS:
        second = derivatives(eta + step, *batch)[0]
        s = expit(eta + step - shift)
        if not (_same(second, -size * s * (1 - s)) and np.all(size >= 0)):
            return None

    def third_of(
        lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        size, shift = shape_of(batch)
        return size * largest_logistic(lowest - shift, highest - shift)

    def remainder(eta: np.ndarray, taylor: _Taylor, batch: Sequence[np.ndarray]) -> _OfSteps:
        size, shift = shape_of(batch)
        u = eta - shift
        s, last = expit(u), np.logaddexp(0, u)

        def of_steps(t: np.ndarray) -> np.ndarray:
            way = u + t
            rise = np.log1p(np.exp(-np.abs(way))) + np.maximum(way, 0) - last
            return -size * (rise - t * (s + s * (1 - s) * t / 2))

        return of_steps

    return Third(third_of, remainder)


def largest_logistic(lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of σ(1 − σ)(1 − 2σ) on intervals."""
    ends = [expit(u) * expit(-u) * np.abs(np.tanh(u / 2)) for u in (lowest, highest)]
    holds_peak = np.zeros(lowest.shape, bool)
    for peak in (-LOGISTIC_PEAK, LOGISTIC_PEAK):
        holds_peak |= (lowest <= peak) & (peak <= highest)
    return np.where(holds_peak, np.sqrt(3) / 18, np.maximum(*ends))


def _probit(
    tall: TallModel, derivatives: _Derivatives, eta: np.ndarray, batch: Sequence[np.ndarray]
) -> Third | None:
    near = [derivatives(eta + step, *batch)[0] for step in STEPS]

    def of_normal(scale: Any) -> list[np.ndarray]:
        points = [scale * (eta + step) for step in STEPS]
        ratios = [np.exp(-(u**2) / 2 - log_ndtr(u)) / np.sqrt(2 * np.pi) for u in points]
        return [-(scale**2) * r * (u + r) for u, r in zip(points, ratios, strict=True)]

    def misses(scale: float) -> np.ndarray:
        return np.asarray(sum(map(abs, np.subtract(near, of_normal(scale)))))

    # Both signs give the same at 0, so that one point does not suffice.
    size = min((1.0, SINGLE), key=lambda c: np.minimum(misses(c), misses(-c)).sum())
    if not all(map(_same, near, of_normal(np.where(misses(size) < misses(-size), size, -size)))):
        return None

    def remainder(eta: np.ndarray, taylor: _Taylor, batch: Sequence[np.ndarray]) -> _OfSteps:
        _, slope, second = taylor
        scale = np.where(slope < 0, -size, size)

        def of_steps(t: np.ndarray) -> np.ndarray:
            rise = log_ndtr(scale * (eta + t)) - log_ndtr(scale * eta)
            return np.asarray(rise - slope * t - second * t**2 / 2)

        return of_steps

    return Third(lambda lowest, highest, batch: np.full(lowest.size, PROBIT), remainder)


def _student_t(
    tall: TallModel, derivatives: _Derivatives, eta: np.ndarray, batch: Sequence[np.ndarray]
) -> Third | None:
    try:
        likelihood = recognise(tall)
    except NoBoundError:
        return None
    if likelihood.family != "student_t":
        return None
    assert likelihood.scale is not None
    known: list[Any] = [likelihood.observed, likelihood.parameters["nu"], likelihood.scale]
    parameters = evaluator(likelihood.inputs, [pt.cast(graph, "float64") for graph in known])
    point = tall.start.copy()

    def parts(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, nu, sigma = parameters.outputs(point, *batch)
        return y, nu, sigma * np.sqrt(nu)

    y, nu, width = parts(batch)
    for step in STEPS:
        v = (y - eta - step) / width
        if not _same(
            derivatives(eta + step, *batch)[1],
            (nu + 1) / 2 * 4 * v * (v**2 - 3) / (1 + v**2) ** 3 / width**3,
        ):
            return None

    def third_of(
        lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        y, nu, width = parts(batch)
        largest = largest_student((y - highest) / width, (y - lowest) / width)
        return (nu + 1) / 2 * largest / width**3

    def remainder(eta: np.ndarray, taylor: _Taylor, batch: Sequence[np.ndarray]) -> _OfSteps:
        y, nu, width = parts(batch)
        _, slope, second = taylor

        def of_steps(t: np.ndarray) -> np.ndarray:
            here, there = ((y - x) / width for x in (eta, eta + t))
            rise = -(nu + 1) / 2 * (np.log1p(there**2) - np.log1p(here**2))
            return np.asarray(rise - slope * t - second * t**2 / 2)

        return of_steps

    return Third(third_of, remainder)


def largest_student(lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of 4 v (v² − 3)/(1 + v²)³ on intervals."""

    def size(v: Any) -> Any:
        return np.abs(4 * v * (v**2 - 3)) / (1 + v**2) ** 3

    largest = np.maximum(size(lowest), size(highest))
    for peak in STUDENT_PEAKS:
        within = (lowest <= peak) & (peak <= highest)
        largest = np.where(within, np.maximum(largest, size(peak)), largest)
    return largest
