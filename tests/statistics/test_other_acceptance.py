"""Naive, Barker, Austere and SubLhd against their own theory, and their bias where they have one.

In the first part a decision is repeated many times on the same rows; in the second, chains sample
the mean of normal rows, whose posterior at any temperature is known.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numba import njit
from row_pairs import at_both
from scipy.special import ndtr
from scipy.stats import norm
from scipy.stats import t as student

from pymc_minibatch import Austere, Barker, CorrectedBarker, MinibatchMH, Naive, RandomWalk, SubLhd
from pymc_minibatch.acceptance.austere import choose
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.acceptance.design import designs, error_and_rows
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.rows import make_readers
from pymc_minibatch.reference.density import Density

N_ROWS, N_DECISIONS, Z_MAX = 10_000, 200_000, 4.8
PSI = -0.4
X = np.random.default_rng(3).permutation(norm.ppf((np.arange(N_ROWS) + 0.5) / N_ROWS))
SD = X.std(ddof=1)


@njit
def row(point, constants, batch):
    return point[0] + point[1] * batch[0]


ROWS = at_both(row)
ROW = address_of(ROWS, np.zeros(2), np.zeros(2), (), (X,))
READERS = make_readers([1])


def repeat(test):
    """Return a function that decides many times and counts."""
    decide = test.build(READERS)

    @njit
    def count(rng, n_decisions, current, proposed, density, rows, parameters):
        n_accepted, batch_rows, n_scanned, error = 0, 0.0, 0.0, 0.0
        for _ in range(n_decisions):
            decision = decide(rng, PSI, current, proposed, density, rows, parameters)
            n_accepted += decision.accepted
            batch_rows += decision.batch_size
            n_scanned += decision.n_scanned
            error += decision.test_error
        return (
            n_accepted / n_decisions,
            batch_rows / n_decisions,
            n_scanned / n_decisions,
            error / n_decisions,
        )

    return count


COUNT = {cls: repeat(cls()) for cls in (Naive, Barker, Austere, SubLhd)}


def frequency(test, delta, spread, temperature, batch_size=100, n_decisions=N_DECISIONS):
    """Decide on rows with log ratio Δ in all, `spread` their standard deviation in the data."""
    proposed = np.array([(delta - PSI) * temperature / N_ROWS, spread])
    return COUNT[type(test)](
        np.random.default_rng(5),
        n_decisions,
        np.zeros(2),
        proposed,
        Density((X,), (), row=ROW),
        row_workspace(N_ROWS),
        test.parameters(temperature, np.array([batch_size]), N_ROWS),
    )


def naive_probability(delta, s):
    """E min(1, exp(Δ + s z))."""
    return ndtr(delta / s) + np.exp(delta + s**2 / 2) * ndtr(-delta / s - s)


def barker_probability(delta, s):
    return ndtr(delta / max(1.702, s))


@pytest.mark.parametrize(
    ("test", "probability"),
    [(Naive(), naive_probability), (Barker(), barker_probability)],
    ids=["Naive", "Barker"],
)
@pytest.mark.parametrize("s", [0.5, 1.5, 3.0])
def test_fixed_batches(test, probability, s):
    temperature, batch_size = 100.0, 100
    unseen = 1 / batch_size - 1 / N_ROWS
    spread = s * temperature / N_ROWS / np.sqrt(unseen) / SD
    for delta in (-3.0, -1.0, 0.5, 2.0):
        accepted, batch_rows, *_ = frequency(test, delta, spread, temperature, batch_size)
        expected = probability(delta, s)
        # 2e-3 for s² that is near 1.702² and estimated.
        allowance = Z_MAX * np.sqrt(expected * (1 - expected) / N_DECISIONS)
        allowance += 2e-3 if (isinstance(test, Barker) and s == 1.5) else 0.0
        assert abs(accepted - expected) < allowance
        assert batch_rows == batch_size


@pytest.mark.parametrize("variant", ["c", "nc"])
@pytest.mark.parametrize("mu_std", [0.3, 3.0, 8.0])
def test_austere_errs_as_designed(variant, mu_std):
    """At a low temperature u hardly moves the threshold, so that every decision is the same."""
    test = Austere(error_bound=0.05, variant=variant)
    n_decisions = 4_000
    # T/N is the effect of log u on the threshold, in units of which the mean is mu_std √N away.
    temperature, spread = 1.0, 1.0
    delta = mu_std * SD * spread * np.sqrt(N_ROWS)
    accepted, batch_rows, n_scanned, _ = frequency(
        test, delta, spread, temperature, n_decisions=n_decisions
    )
    grid = designs(N_ROWS, test.batch_sizes, test.thresholds)
    k, _ = choose(grid, mu_std if variant == "nc" else 0.0, N_ROWS, test.error_bound)
    error, rows = error_and_rows(grid, k, mu_std, N_ROWS)
    noise = Z_MAX * np.sqrt(max(error, 1e-3) / n_decisions)
    assert abs((1 - accepted) - error) < 0.1 * error + noise
    # Where the drift is strong, the first looks overshoot more than the design allows for.
    assert batch_rows == pytest.approx(rows, rel=0.05 if mu_std < 5 else 0.2)
    assert n_scanned == (N_ROWS if variant == "nc" else 0)


def looks(test, log_ratios, batch_size):
    """Rows, mean and half width at each look, from the formulas."""
    n, k = batch_size, 0
    while n <= log_ratios.size:
        k += 1
        seen = log_ratios[:n]
        sd = seen.std(ddof=1)
        if isinstance(test, SubLhd):
            log_odds = np.log(3 / ((test.p - 1) / (test.p * k**test.p) * test.delta))
            half = sd * np.sqrt(2 * log_odds / n) * np.sqrt(1 - (n - 1) / N_ROWS)
            yield n, seen.mean(), half + 3 * np.ptp(LOG_RATIOS) * log_odds / n
            n = int(np.ceil(test.gamma * n))
        else:
            se = sd / np.sqrt(n) * np.sqrt(1 - (n - 1) / (N_ROWS - 1))
            yield n, seen.mean(), student.isf(test.design(N_ROWS)[1], n - 1) * se
            n += batch_size


LOG_RATIOS = 0.003 * X + 2e-5


@pytest.mark.parametrize("test", [SubLhd(), Austere(0.05)], ids=["SubLhd", "Austere"])
def test_the_batch_stops_at_the_first_clear_look(test):
    """A decision's batch is read again by NumPy, which must have stopped at the same look."""
    decide = test.build(READERS)
    temperature, n_early = 300.0, 0
    batch_size = 100 if isinstance(test, SubLhd) else test.design(N_ROWS)[0]
    rows, proposed = row_workspace(N_ROWS), np.array([2e-5, 0.003])
    parameters = test.parameters(temperature, np.array([batch_size]), N_ROWS)
    density = Density((X,), (), row=ROW)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        mu0 = -temperature * (np.random.default_rng(seed).standard_exponential() + PSI) / N_ROWS
        decision = decide(rng, PSI, np.zeros(2), proposed, density, rows, parameters)
        clear = (
            n
            for n, mean, half in looks(test, LOG_RATIOS[rows.drawn[: rows.n_drawn[0]]], batch_size)
            if 2 * n <= N_ROWS and abs(mean - mu0) >= half
        )
        expected = next(clear, N_ROWS)
        assert decision.batch_size == expected
        seen = LOG_RATIOS[rows.drawn[:expected]] if expected < N_ROWS else LOG_RATIOS
        assert decision.accepted == (seen.mean() > mu0)
        n_early += expected < N_ROWS
    assert n_early > 20


TEMPERATURE = 100.0


@pytest.fixture(scope="module")
def rows_of_a_normal():
    return np.random.default_rng(8).normal(0.2, 1.0, N_ROWS)


def sample_mean(y, test):
    """Return the draws in units of the exact posterior at the temperature."""
    with pm.Model():
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu, 1.0, observed=y)
        precision = 1 / 100 + y.size / TEMPERATURE
        mean, sd = y.sum() / TEMPERATURE / precision, precision**-0.5
        step = MinibatchMH(
            acceptance=test,
            proposal=RandomWalk(cov=(0.6 * sd) ** 2, adapt=False),
            batch_size=60,
            temperature=TEMPERATURE,
            control_variate=0,
            steps_per_draw=40,
        )
        draws = pm.sample(
            draws=10_000,
            tune=20,
            chains=2,
            cores=1,
            step=step,
            random_seed=11,
            initvals={"mu": mean},
            progressbar=False,
            compute_convergence_checks=False,
        ).posterior.mu.values
    return (draws - mean) / sd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "least_excess"),
    [(Naive(), 0.05), (Barker(), 0.015), (CorrectedBarker(), None)],
    ids=["Naive", "Barker", "CorrectedBarker"],
)
def test_bias(test, least_excess, rows_of_a_normal):
    """Without a correction the posterior comes out too wide; with it, it does not."""
    z = sample_mean(rows_of_a_normal, test)
    error, noise = z.std() - 1, az.mcse(z, method="sd")
    print(type(test).__name__, error, noise, az.ess(z))
    if least_excess is None:
        assert abs(error) < 4 * noise
        assert abs(z.mean()) < 4 * az.mcse(z)
        assert noise < 0.006
    else:
        assert error > least_excess
        assert error > 5 * noise
