"""The bound on the error of an acceptance probability, against simulated batches.

Each batch is replaced by the probability with which the test accepts it, so that the mean over the
batches has a small standard error; the mean bound is compared with the distance of that mean from
the acceptance probability without noise.
"""

import numpy as np
import pytest
from scipy.special import expit, ndtr

from pymc_minibatch import CorrectedBarker, Penalty
from pymc_minibatch.acceptance.decision import batch_variance
from pymc_minibatch.acceptance.growing import moments, noise

DELTAS = np.array([-2.0, -1.0, -0.3, 0.3, 1.0, 2.0])
N_BATCHES, N_ROWS = 15_000, 10**9
ROWS = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "gamma": lambda rng, size: (rng.gamma(0.25, size=size) - 0.25) / 0.5,
    "rare": lambda rng, size: ((rng.random(size) < 0.03) - 0.03) / np.sqrt(0.03 * 0.97),
    "heavy tails": lambda rng, size: rng.standard_t(5, size) / np.sqrt(5 / 3),
}


def barker_probability(estimate, s2, details):
    """Probability of acceptance given the batch."""
    sigma2, atoms, cumulative = details
    weights = np.diff(cumulative, prepend=0.0)
    return ndtr((estimate[:, None] + atoms) / np.sqrt(sigma2 - s2)[:, None]) @ weights


def penalty_probability(estimate, s2, details):
    tau2 = details[0] - s2
    y, tau = estimate - details[0] / 2, np.sqrt(tau2)
    return ndtr(y / tau) + np.exp(y + tau2 / 2) * ndtr(-y / tau - tau)


def without_noise(test, details, deltas):
    if isinstance(test, CorrectedBarker):
        return expit(deltas)
    return penalty_probability(deltas, np.zeros_like(deltas), details)


def simulate(test, probability, draw, n, s2):
    """Return the largest error over `DELTAS`, its standard error and the mean bound."""
    rng = np.random.default_rng(5)
    rows = draw(rng, (N_BATCHES, n)) * np.sqrt(s2 / n)  # their sum has variance s2
    limits, details = test.parameters(1.0, np.array([n]), N_ROWS)
    noises, bounds = np.empty(N_BATCHES), np.empty(N_BATCHES)
    scale = float(N_ROWS)
    for i, batch in enumerate(rows):
        seen = moments(batch / scale * n)
        noises[i] = batch_variance(scale, seen.variance, n, N_ROWS)
        _, bound = noise(n, N_ROWS, scale, seen, 1.0, limits)
        bounds[i] = min(1.0, bound)
    decided = noises < limits.variance
    assert decided.mean() > 0.95
    estimates = rows.sum(axis=1)[decided]
    errors, standard_errors = [], []
    for delta, exact in zip(DELTAS, without_noise(test, details, DELTAS), strict=True):
        accepted = probability(delta + estimates, noises[decided], details)
        errors.append(abs(accepted.mean() - exact))
        standard_errors.append(accepted.std() / np.sqrt(accepted.size))
    worst = int(np.argmax(errors))
    return errors[worst], standard_errors[worst], bounds[decided].mean()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(30, 0.1), (30, 0.3), (100, 0.3), (100, 0.5)])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("test", "probability"),
    [(CorrectedBarker(), barker_probability), (Penalty(0.6), penalty_probability)],
    ids=["Barker", "penalty"],
)
def test_the_bound_is_one(test, probability, rows, n, share):
    """`share` is that of the batch in the variance that the test has room for."""
    error, standard_error, bound = simulate(test, probability, ROWS[rows], n, share * test.sigma**2)
    assert error < bound + 4.5 * standard_error


@pytest.mark.slow
def test_the_bound_is_not_empty():
    """For skewed rows the error is seen, and no more than a few times below the bound."""
    error, standard_error, bound = simulate(
        CorrectedBarker(), barker_probability, ROWS["gamma"], 100, 0.5
    )
    assert error > 6 * standard_error
    assert error > bound / 8
