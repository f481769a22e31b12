r"""Rows whose curvature is that of the logistic function: f'' = −n σ'(u) with u = η − a.

That is Bernoulli and Binomial with logit link (a = 0), and NegativeBinomial with log link and known
α (n = y + α and a = log α). f''' = −n h(u) with h = σ(1 − σ)(1 − 2σ). With s = σ(u),
dh/ds = 1 − 6 s + 6 s² vanishes at s = ½ (1 ± 1/√3), that is u = ± log((√3 + 1)/(√3 − 1)), where
\|h\| = √3/18. Between −∞, these two, 0 and ∞ \|h\| is monotone. So the largest value on an interval
is √3/18 if one of the two lies in it, and that at an end if not.
"""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.random.basic import BernoulliRV, BinomialRV
from scipy.special import expit

from pymc_minibatch.bounds.families.family import Family, OfSteps, Taylor, Third, Trial
from pymc_minibatch.bounds.jaakkola_jordan import JaakkolaJordan
from pymc_minibatch.bounds.likelihood import Likelihood, Reader

__all__ = ["LOGISTIC", "PEAK", "largest"]

PEAK = np.log((np.sqrt(3) + 1) / (np.sqrt(3) - 1))
"""Point at which \\|h\\| is largest."""


def third(trial: Trial) -> tuple[Third, np.ndarray]:
    """Tell n and a of each row from its derivatives at 0."""
    derivatives = trial.derivatives

    def shape_of(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        second, third = derivatives(np.zeros(len(batch[0])), *batch)
        shift = 2 * np.arctanh(
            np.divide(third, second, where=second != 0, out=np.zeros(len(third)))
        )
        return -second / (expit(shift) * expit(-shift)), shift

    size, shift = shape_of(trial.batch)

    def second(eta: np.ndarray) -> np.ndarray:
        s = expit(eta - shift)
        curvature: np.ndarray = -size * s * (1 - s)
        return curvature

    fits = trial.fits(2, second) & (size >= 0)

    def bound(lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        size, shift = shape_of(batch)
        return size * largest(lowest - shift, highest - shift)

    def remainder(eta: np.ndarray, taylor: Taylor, batch: Sequence[np.ndarray]) -> OfSteps:
        size, shift = shape_of(batch)
        u = eta - shift
        s, last = expit(u), np.logaddexp(0, u)

        def of_steps(t: np.ndarray) -> np.ndarray:
            way = u + t
            rise = np.log1p(np.exp(-np.abs(way))) + np.maximum(way, 0) - last
            return -size * (rise - t * (s + s * (1 - s) * t / 2))

        return of_steps

    return Third(bound, remainder), fits


def largest(lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of σ(1 − σ)(1 − 2σ) on intervals."""
    ends = [expit(u) * expit(-u) * np.abs(np.tanh(u / 2)) for u in (lowest, highest)]
    holds_peak = np.zeros(lowest.shape, bool)
    for peak in (-PEAK, PEAK):
        holds_peak |= (lowest <= peak) & (peak <= highest)
    return np.where(holds_peak, np.sqrt(3) / 18, np.maximum(*ends))


SAYS = "the sigmoid (inverse logit)"


def bernoulli(reader: Reader, p: Variable) -> Likelihood:
    """Read the log odds of one trial."""
    eta = reader.per_row(reader.unlinked(p, Sigmoid, SAYS))
    return reader.likelihood("logistic", eta, {"trials": pt.ones_like(eta)})


def binomial(reader: Reader, n: Variable, p: Variable) -> Likelihood:
    """Read the number of trials and the log odds."""
    trials = reader.rows("trials", n)
    eta = reader.per_row(reader.unlinked(p, Sigmoid, SAYS))
    return reader.likelihood("logistic", eta, {"trials": trials})


LOGISTIC = Family(
    name="logistic",
    rows=("Bernoulli and Binomial (logit)", "NegativeBinomial (log link) of known dispersion"),
    third=third,
    likelihoods={BernoulliRV: bernoulli, BinomialRV: binomial},
    bound=JaakkolaJordan(),
)
