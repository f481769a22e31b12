"""Whether the posterior has heavier tails than its Gaussian approximation.

Paths start from that approximation, and are as long as paths near the mode need to come together.
How often they are far out, and how long they stay there, levels do not tell; so a density that is
far larger there than the Gaussian is refused.
"""

import numpy as np

from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.taylor import row_term
from pymc_minibatch.tall import TallModel

__all__ = ["refuse_heavy_tails"]

ROWS = 2000
"""By which what the Taylor expansion leaves of the log-likelihood is estimated."""

FAR = 4.0
"""Standard deviations from the mode."""

MOST = 3.0
"""Nats by which the log-density there may exceed the Gaussian's: a Student-t with 10 degrees of
freedom exceeds it by 3.1, one with 3 by 4.8, and one with 30 by 1.6."""


def refuse_heavy_tails(tall: TallModel, reference: Reference) -> None:
    """Refuse a posterior that is far larger than its Gaussian approximation at some sds.

    Looks along one line for each parameter: the mean of the others given it.

    Raises
    ------
    ValueError
        Naming the variable.
    """
    covariance, mode = np.linalg.inv(reference.precision_at(1.0)), reference.center
    lines = covariance / np.sqrt(np.diag(covariance))
    ends = np.vstack([mode + FAR * lines.T, mode - FAR * lines.T])
    with np.errstate(all="ignore"):
        excess = _log_densities(tall, reference, ends) + FAR**2 / 2
    worst = int(np.argmax(np.nan_to_num(excess, nan=-np.inf, neginf=-np.inf)))
    if not excess[worst] > MOST:
        return
    name = tall.layout.name_of(worst % mode.size)
    raise ValueError(
        f"The posterior has heavier tails than its Gaussian approximation, mostly along {name}: "
        f"{FAR:g} standard deviations from the mode its density is {np.exp(excess[worst]):.2g} "
        "times the Gaussian's. Paths start from that approximation and are too short to visit the "
        "tails as often as they should, and neither standard error nor bias would show it. Use "
        "MinibatchMH, or a parametrisation in which the posterior is nearer to a Gaussian."
    )


def _log_densities(tall: TallModel, reference: Reference, points: np.ndarray) -> np.ndarray:
    """Log-density at some points less that at the mode; what is left of rows from a sample."""
    n = min(ROWS, tall.n_rows)
    batch = tall.batch(np.linspace(0, tall.n_rows - 1, n).astype(np.int64))
    term = row_term(tall, reference, 2)

    def value(point: np.ndarray) -> float:
        delta = point - reference.flat
        of_rows = delta @ reference.gradient + 0.5 * delta @ reference.hessian @ delta
        rest = tall.n_rows * float(np.mean(term(point, batch)))
        return float(tall.compiled_prior_logp(point)) + float(of_rows) + rest

    at_mode = value(reference.center)
    return np.array([value(point) for point in points]) - at_mode
