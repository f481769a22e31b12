"""The exact test: detailed balance of single decisions, and draws against a known posterior."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numba import njit
from scipy.special import log_expit

import pymc_minibatch as pmb
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.acceptance.exact import Ball, bound_factor
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.by_size import RowSizes
from pymc_minibatch.kernels.rows import make_readers
from pymc_minibatch.reference.source import Source

N_DECISIONS = 200_000
Z_MAX = 4.5
HERE, THERE = np.array([0.3, -0.5]), np.array([-0.4, 0.9])


@njit
def row(point, constants, batch):
    return point[0] * batch[0] + point[1] * batch[1]


@pytest.fixture(scope="module")
def count():
    decide = pmb.Exact().build(*make_readers([1, 1], by_size=True))

    @njit
    def count(rng, n_decisions, psi, current, proposed, source, rows, parameters):
        n_accepted = n_read = 0
        for _ in range(n_decisions):
            decision = decide(rng, psi, current, proposed, source, rows, parameters)
            if decision.impossible_row >= 0:
                return -1.0, 0.0
            n_accepted += decision.accepted
            n_read += decision.n_evaluated
        return n_accepted / n_decisions, n_read / n_decisions

    return count


def remainders(total, seed=1, n_rows=200):
    """Rows whose log ratios add up to `total`, and bounds of uneven tightness."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, n_rows)) * rng.exponential(size=n_rows) * 0.1
    step = THERE - HERE
    log_ratios = step @ x
    x[0] += (total - log_ratios.sum()) / n_rows / step[0]
    ball = Ball(np.zeros(2), np.array([[1.5, 0.2], [0.0, 0.8]]), np.inf, 1.0)
    _, factor = bound_factor(HERE, THERE, ball)
    sizes = np.abs(step @ x) / factor * (1 + 2 * rng.random(n_rows))
    return tuple(x), sizes.astype(np.float32), ball


def frequencies(count, x, sizes, ball, temperature, psi=100.0):
    """Acceptance and rows read, there and back."""
    sized = RowSizes.of(sizes)
    source = Source(x, (), row=address_of(row, HERE, (), x))
    rows = row_workspace(x[0].size, sized.table)
    parameters = temperature, ball._replace(total=sized.total)
    rng = np.random.default_rng(2)
    return sized, [
        count(rng, N_DECISIONS, psi, *points, source, rows, parameters)
        for points in ((HERE, THERE), (THERE, HERE))
    ]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("total", [0.0, 0.7, -1.1])
def test_detailed_balance_of_the_second_stage(count, total, temperature):
    """The ratio of the two acceptance probabilities is that of the target that is left."""
    x, sizes, ball = remainders(total)
    sized, [(there, rows_read), (back, _)] = frequencies(count, x, sizes, ball, temperature)
    error = np.sqrt((1 - there) / there + (1 - back) / back) / np.sqrt(N_DECISIONS)
    assert abs(np.log(there / back) - total / temperature) < Z_MAX * error
    expected = sized.total * bound_factor(HERE, THERE, ball)[1] / temperature
    assert rows_read == pytest.approx(expected, abs=Z_MAX * np.sqrt(expected / N_DECISIONS))


def test_the_first_stage_is_metropolis(count):
    x, sizes, ball = remainders(0.0)
    _, [(certain, _), _] = frequencies(count, x, sizes, ball, 1.0)
    _, [(there, _), _] = frequencies(count, x, sizes, ball, 1.0, psi=-0.8)
    error = np.sqrt(there * (1 - there) / N_DECISIONS)
    assert there == pytest.approx(certain * np.exp(-0.8), abs=Z_MAX * 1.5 * error)


@pytest.mark.parametrize("limit", ["outside", "many rows"])
def test_all_rows_are_read_where_bounds_do_not_help(count, limit):
    x, sizes, ball = remainders(-0.9)
    if limit == "outside":
        ball = ball._replace(radius=0.5)
    else:
        sizes = sizes * np.float32(100)
    _, [(there, rows_read), (back, _)] = frequencies(count, x, sizes, ball, 1.0)
    assert rows_read == x[0].size
    assert back == 1
    assert there == pytest.approx(np.exp(-0.9), abs=Z_MAX * 0.5 / np.sqrt(N_DECISIONS))


def test_a_row_beyond_its_bound_is_reported(count):
    x, sizes, ball = remainders(0.0)
    _, [(there, _), _] = frequencies(count, x, sizes * np.float32(0.3), ball, 1.0)
    assert there == -1


@pytest.mark.slow
def test_draws_from_a_skewed_posterior():
    """Logistic rows and few events: the posterior is far from Gaussian, and known on a grid."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=400)
    y = (rng.random(400) < 0.03).astype(int)
    a, b = np.meshgrid(np.linspace(-7, -1, 400), np.linspace(-3, 3, 400), indexing="ij")
    log_p = -(a**2 + b**2) / 18
    for xi, yi in zip(x, y, strict=True):
        log_p += log_expit((2 * yi - 1) * (a + b * xi))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    with pm.Model():
        eta = pm.Normal("a", 0, 3) + pm.Normal("b", 0, 3) * x
        pm.Bernoulli("y", logit_p=eta, observed=y)
        step = pmb.MinibatchMH(acceptance=pmb.Exact(), steps_per_draw=20)
        idata = pm.sample(
            4000,
            tune=300,
            chains=2,
            cores=1,
            step=step,
            random_seed=4,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert (idata.sample_stats.test_error == 0).all()
    for name, grid in (("a", a), ("b", b)):
        draws = idata.posterior[name].values
        mean = (p * grid).sum()
        sd = np.sqrt((p * (grid - mean) ** 2).sum())
        error = sd / np.sqrt(float(az.ess(draws)))
        assert error < 0.02 * sd
        assert abs(draws.mean() - mean) < Z_MAX * error
        spread_error = float(az.mcse(draws, method="sd"))
        assert abs(draws.std() - sd) < Z_MAX * spread_error
