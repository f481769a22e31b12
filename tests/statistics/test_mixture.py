"""The mixture of two normals of Seita et al. (2017), section 6.1: two modes, a million rows.

At temperature 10^4 the posterior is that of a hundred rows, with modes near (0, 1) and (1, -1). It
is computed on a grid, from all rows. Random-walk steps have standard deviation 0.15; the paper
reports a mean batch of 172 rows.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import softmax
from scipy.stats import norm

import pymc_minibatch as pmb

N_ROWS = 1_000_000
TEMPERATURE = 1e4
SD1, SD2, SD_X = np.sqrt(10.0), 1.0, np.sqrt(2.0)
EDGES1, EDGES2 = np.linspace(-1.5, 2.5, 9), np.linspace(-3.0, 3.0, 9)
CELL = 16
"""Grid points across one cell of the histogram."""


def simulate():
    rng = np.random.default_rng(20_111)
    return rng.integers(0, 2, N_ROWS) + rng.normal(0.0, SD_X, N_ROWS)


def build_model(x):
    with pm.Model() as model:
        theta1 = pm.Normal("theta1", 0.0, SD1)
        theta2 = pm.Normal("theta2", 0.0, SD2)
        components = [pm.Normal.dist(theta1, SD_X), pm.Normal.dist(theta1 + theta2, SD_X)]
        pm.Mixture("x", [0.5, 0.5], components, observed=x)
    return model


def midpoints(edges, n_each):
    """Return the centres of cells that split each interval in `n_each`."""
    width = (edges[1] - edges[0]) / n_each
    return edges[0] + width * (np.arange(n_each * (len(edges) - 1)) + 0.5)


def grid_posterior(x):
    """Return the probabilities of the cells of a grid that is `CELL` times finer than `EDGES`.

    Rows are counted in 2000 bins, less than 0.01 wide: that moves the log-density by 3e-4, at all
    points alike to 4e-5.
    """
    counts, edges = np.histogram(x, 2000)
    centres = (edges[1:] + edges[:-1]) / 2
    theta2 = midpoints(EDGES2, CELL)
    log_density = []
    for theta1 in midpoints(EDGES1, CELL):
        first = norm.logpdf(centres, theta1, SD_X)
        second = norm.logpdf(centres[:, None], theta1 + theta2, SD_X)
        rows = np.logaddexp(first[:, None], second) + np.log(0.5)
        prior = norm.logpdf(theta1, 0.0, SD1) + norm.logpdf(theta2, 0.0, SD2)
        log_density.append(prior + counts @ rows / TEMPERATURE)
    return softmax(log_density)


@pytest.fixture(scope="module")
def x():
    return simulate()


@pytest.fixture(scope="module")
def exact(x):
    return grid_posterior(x)


@pytest.fixture(scope="module")
def sampled(x):
    with build_model(x):
        step = pmb.MinibatchMH(
            acceptance=pmb.CorrectedBarker(sigma=1.0, test_error=None),
            proposal=pmb.RandomWalk(cov=0.15**2, adapt=False),
            batch_size=75,
            temperature=TEMPERATURE,
            control_variate=0,
            steps_per_draw=100,
        )
        return pm.sample(
            draws=6000,
            tune=50,
            chains=2,
            cores=2,
            step=step,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )


def exact_moments(exact, quantity):
    """Return mean and standard deviation of a function of both parameters."""
    values = quantity(midpoints(EDGES1, CELL)[:, None], midpoints(EDGES2, CELL))
    mean = (exact * values).sum()
    return mean, np.sqrt((exact * (values - mean) ** 2).sum())


def histogram(sampled):
    """Return the share of draws in each cell between `EDGES`."""
    theta1, theta2 = (sampled.posterior[name].values.ravel() for name in ("theta1", "theta2"))
    return np.histogram2d(theta1, theta2, [EDGES1, EDGES2])[0] / theta1.size


def total_variation(p, q):
    return abs(p - q).sum() / 2


@pytest.mark.slow
def test_few_rows_are_read(sampled):
    stats = sampled.sample_stats
    assert stats.batch_size.mean() <= 350
    assert stats.n_likelihood.mean() / 100 <= 2 * 350
    assert stats.log_ratio_var.mean() > 0.3


@pytest.mark.slow
def test_both_modes_are_visited(sampled, exact):
    """Each chain crosses often, and the modes have the right mass."""
    up = (sampled.posterior.theta2.values > 0).astype(float)
    assert (np.diff(up, axis=1) != 0).sum(axis=1).min() > 100
    expected, _ = exact_moments(exact, lambda theta1, theta2: (theta2 > 0) + 0 * theta1)
    assert abs(up.mean() - expected) < 4.5 * az.mcse(up)


QUANTITIES = {
    "component mean": lambda theta1, theta2: theta1 + theta2 / 2,
    "distance": lambda theta1, theta2: abs(theta2),
    "theta1": lambda theta1, theta2: theta1 + 0 * theta2,
    "theta2": lambda theta1, theta2: theta2 + 0 * theta1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTITIES)
def test_moments(name, sampled, exact):
    """Batches this small have an error of a few hundredths of a standard deviation."""
    quantity = QUANTITIES[name]
    draws = quantity(sampled.posterior.theta1.values, sampled.posterior.theta2.values)
    mean, sd = exact_moments(exact, quantity)
    assert abs(draws.mean() - mean) < 0.06 * sd + 4.5 * az.mcse(draws)
    assert abs(draws.std() - sd) < 0.05 * sd + 4.5 * az.mcse(draws, method="sd")


@pytest.mark.slow
def test_histogram(sampled, exact):
    expected = exact.reshape(8, CELL, 8, CELL).sum(axis=(1, 3))
    ess = az.ess(sampled.posterior.theta2.values)
    noise = np.sqrt(expected * (1 - expected) / ess).sum() / 2
    assert total_variation(histogram(sampled), expected) < 0.04 + noise
