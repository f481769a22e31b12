"""The exact test: detailed balance, the joint distribution with data, and known posteriors."""

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numba import njit
from row_pairs import at_both
from scipy.special import expit, log_expit, ndtr

import pymc_minibatch as pmb
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.acceptance.exact import MADE_UP, Ball, bound_factor
from pymc_minibatch.bounds.predictor import find_predictor
from pymc_minibatch.bounds.remainder import make_look
from pymc_minibatch.bounds.third import find_third
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.by_size import RowSizes
from pymc_minibatch.kernels.rows import make_readers
from pymc_minibatch.reference.density import Density

N_DECISIONS = 200_000
Z_MAX = 4.5
N_STARTS = 100
HERE, THERE = np.array([0.3, -0.5]), np.array([-0.4, 0.9])


@njit
def row(point, constants, batch):
    return point[0] * batch[0] + point[1] * batch[1]


ROWS = at_both(row)


@pytest.fixture(scope="module")
def count():
    decide = pmb.Exact().build(make_readers([1, 1], by_size=True))

    @njit
    def count(rng, n_decisions, psi, current, proposed, density, rows, parameters):
        n_accepted = n_read = 0
        for _ in range(n_decisions):
            decision = decide(rng, psi, current, proposed, density, rows, parameters)
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


def frequencies(count, x, sizes, ball, temperature, psi=0.0):
    """Acceptance and rows read, there and back."""
    sized = RowSizes.of(sizes)
    density = Density(x, (), row=address_of(ROWS, HERE, HERE, (), x))
    rows = row_workspace(x[0].size, sized.table)
    parameters = temperature, ball._replace(total=sized.total)
    rng = np.random.default_rng(2)
    return sized, [
        count(rng, N_DECISIONS, sign * psi, *points, density, rows, parameters)
        for sign, points in ((1, (HERE, THERE)), (-1, (THERE, HERE)))
    ]


@pytest.mark.parametrize("psi", [0.0, 0.6, -1.0, -4.0])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("total", [0.0, 0.7, -1.1])
def test_detailed_balance(count, total, temperature, psi):
    """The ratio of the two acceptance probabilities is that of the target.

    The first stage lets moves through by Metropolis's rule for what the second does not take over.
    """
    x, sizes, ball = remainders(total)
    sized, [(there, rows_read), (back, _)] = frequencies(count, x, sizes, ball, temperature, psi)
    error = np.sqrt((1 - there) / there + (1 - back) / back) / np.sqrt(N_DECISIONS)
    assert abs(np.log(there / back) - psi - total / temperature) < Z_MAX * error
    expected = sized.total * bound_factor(HERE, THERE, ball)[1] / temperature
    passed = np.exp(min(0.0, psi + MADE_UP * expected)) if psi < 0 else 1.0
    variance = passed * (expected + (1 - passed) * expected**2)
    assert rows_read == pytest.approx(
        passed * expected, abs=Z_MAX * np.sqrt(variance / N_DECISIONS)
    )


@pytest.mark.parametrize("total", [4.0, -4.0])
def test_remainders_make_up_for_the_approximation(count, total):
    """In a heavy tail both nearly cancel. Tests on each in turn would accept exp(-4) at most."""
    x, sizes, ball = remainders(total)
    _, [(there, _), (back, _)] = frequencies(count, x, sizes, ball, 1.0, psi=-total)
    assert min(there, back) > np.exp(-4) + Z_MAX * np.sqrt(0.03 / N_DECISIONS)


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


@pytest.mark.parametrize(("here", "there"), [(0.3, 1.7), (-2.0, 0.5), (1.5, -1.5)])
def test_the_bound_is_reached_by_cubes(here, there):
    """The remainder z³/6 has third derivative 1: along a line the bound is an equality."""
    axis = np.array([0.6, 0.8])
    ball = Ball(np.array([1.0, -2.0]), np.array([[2.0, 0.5], [0.0, 1.5]]), np.inf, 1.0)
    points = [ball.reference + np.linalg.solve(ball.whiten, z * axis) for z in (here, there)]
    largest, factor = bound_factor(*points, ball)
    assert factor == pytest.approx(abs(there**3 - here**3) / 6)
    assert largest == pytest.approx(max(abs(here), abs(there)))


SMALL = np.random.default_rng(7).normal(size=(40, 2))
SIMULATED = {
    "logistic": (
        lambda eta, y: pm.Bernoulli("y", logit_p=eta, observed=y),
        lambda eta, rng: (rng.random(eta.size) < expit(eta)).astype(np.int64),
        lambda y: (y - 0.5, np.full(y.size, -0.25)),
    ),
    "poisson": (
        lambda eta, y: pm.Poisson("y", pm.math.exp(eta), observed=y),
        lambda eta, rng: rng.poisson(np.exp(eta)),
        lambda y: (y - 1.0, -np.ones(y.size)),
    ),
    "probit": (
        lambda eta, y: pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=y),
        lambda eta, rng: (rng.random(eta.size) < ndtr(eta)).astype(np.int64),
        lambda y: ((2 * y - 1) * np.sqrt(2 / np.pi), np.full(y.size, -2 / np.pi)),
    ),
    "binomial": (
        lambda eta, y: pm.Binomial("y", 5, logit_p=eta, observed=y),
        lambda eta, rng: rng.binomial(5, expit(eta)),
        lambda y: (y - 2.5, np.full(y.size, -1.25)),
    ),
    "negative_binomial": (
        lambda eta, y: pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=2.0, observed=y),
        lambda eta, rng: rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, eta.size)),
        lambda y: (y - (y + 2) / 3, -(y + 2) * 2 / 9),
    ),
    "exponential": (
        lambda eta, y: pm.Exponential("y", scale=pm.math.exp(eta), observed=y),
        lambda eta, rng: rng.exponential(np.exp(eta)),
        lambda y: (y - 1, -y),
    ),
    "gamma": (
        lambda eta, y: pm.Gamma("y", 2.5, 2.5 / pm.math.exp(eta), observed=y),
        lambda eta, rng: rng.gamma(2.5, np.exp(eta) / 2.5),
        lambda y: (2.5 * (y - 1), -2.5 * y),
    ),
    "weibull": (
        lambda eta, y: pm.Weibull("y", 1.5, pm.math.exp(eta), observed=y),
        lambda eta, rng: np.exp(eta) * rng.weibull(1.5, eta.size),
        lambda y: (1.5 * (y**1.5 - 1), -(1.5**2) * y**1.5),
    ),
    "student_t": (
        lambda eta, y: pm.StudentT("y", 4, mu=eta, sigma=0.5, observed=y),
        lambda eta, rng: eta + 0.5 * rng.standard_t(4, eta.size),
        lambda y: (5 * y / (1 + y**2), -5 * (1 - y**2) / (1 + y**2) ** 2),
    ),
    "normal": (
        lambda eta, y: pm.Normal("y", eta, 1.5, observed=y),
        lambda eta, rng: rng.normal(eta, 1.5),
        lambda y: (y / 2.25, np.full(y.size, -1 / 2.25)),
    ),
}
"""How rows are observed and simulated, and two derivatives of their log-likelihood at 0."""

OF_TEST = ("logistic", "poisson")
"""There the test itself is what is looked at, in long runs; in others it is the bounds."""

OF_DATA = ("negative_binomial", "exponential", "gamma", "weibull", "student_t")
"""Families whose bounds depend on what is observed."""


@pytest.mark.parametrize("family", SIMULATED)
def test_joint_distribution_with_data(family):
    """Transitions and new data in turn leave the joint distribution invariant (Geweke, 2004).

    They start from it again and again: a chain stays where it is far out for long, so that by
    itself it does not tell how far off its moments are. All is expanded about the point 0:
    gradient, curvature and bounds are those of the new data.
    """
    observe, simulate, slopes = SIMULATED[family]
    X, n_draws = (SMALL, 30_000) if family in OF_TEST else (SMALL[:8], 8_000)
    rng = np.random.default_rng(8)
    y = simulate(np.zeros(len(X)), rng)
    zero = np.zeros(2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.5, shape=2)
        observe(pm.Data("X", X) @ beta, pm.Data("rows", y))
    hessian = (X.T * slopes(y)[1]) @ X
    reference = replace(
        pmb.find_reference(model),
        flat=zero,
        mode={"beta": zero},
        hessian=hessian,
        curvature=np.minimum(hessian, 0) - np.eye(2) if family == "student_t" else hessian,
        row_logps=pmb.TallModel(model).row_logp({"beta": zero}, range(len(X)))[
            np.unique(np.linspace(0, len(X) - 1, 20).astype(int))
        ],
    )
    step = pmb.MinibatchMH(
        model=model,
        acceptance="exact",
        reference=reference,
        steps_per_draw=4,
        witness=False,  # the reference is no mode of these data
        rng=1,
    )
    step.tune = False
    names = [row.name for row in step.tall.row_inputs.values()]
    predictor = find_predictor(step.tall)
    third = find_third(step.tall, predictor, zero)
    ball, flat, draws, n_read = step.ball, np.zeros(2), [], 0
    size_of = make_look(predictor, third, zero, ball.whiten.T, ball.radius)
    with one_blas_thread():
        for draw in range(n_draws):
            if draw % (n_draws // N_STARTS) == 0:
                flat[:] = 0.5 * rng.standard_normal(2)
            y = simulate(X @ flat, rng)
            slope, curvature = slopes(y)
            data = tuple(
                y.astype(values.dtype) if name == "rows" else values
                for name, values in zip(names, step.density.data, strict=True)
            )
            constants = (zero, X.T @ slope, (X.T * curvature) @ X)
            step.density = step.density._replace(data=data, constants=constants)
            if family in OF_DATA:
                lengths, bounds = size_of(*data)
                sized = RowSizes.of((bounds * lengths**3).astype(np.float32) + np.float32(1e-9))
                step.workspace = row_workspace(len(X), sized.table)
                step.test_parameters = (
                    *step.test_parameters[:-1],
                    ball._replace(total=sized.total),
                )
            n_read += step.make_transitions(flat, 4).batch_rows
            draws.append(flat.copy())
    assert n_read / (4 * n_draws) < len(X)
    assert n_read > n_draws / 50 or family == "normal"
    for values in np.transpose(draws) / 0.5:
        for moment, expected in ((values, 0.0), (values**2, 1.0)):
            means = moment.reshape(N_STARTS, -1).mean(axis=1)
            error = means.std(ddof=1) / np.sqrt(N_STARTS)
            assert error < (0.15 if family in OF_TEST else 0.25)
            assert abs(moment.mean() - expected) < Z_MAX * error


X = np.random.default_rng(3).normal(size=400)
RARE = (np.random.default_rng(4).random(400) < 0.03).astype(int)
FAMILIES = {
    "logistic": (
        lambda eta: pm.Bernoulli("y", logit_p=eta, observed=RARE),
        lambda eta, i: log_expit((2 * RARE[i] - 1) * eta),
        (-7, -1, -3, 3),
    ),
    "poisson": (
        lambda eta: pm.Poisson("y", pm.math.exp(eta), observed=RARE),
        lambda eta, i: RARE[i] * eta - np.exp(eta),
        (-7, -1, -3, 3),
    ),
    "student": (
        lambda eta: pm.StudentT("y", 3, mu=eta, sigma=0.3, observed=X**2),
        lambda eta, i: -2 * np.log1p((X[i] ** 2 - eta) ** 2 / 0.27),
        (-0.5, 1.5, -1, 1),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_from_a_skewed_posterior(family):
    """Few events, or errors that do not fit: the posterior is not Gaussian, and known on a grid."""
    observe, logp, (a_low, a_high, b_low, b_high) = FAMILIES[family]
    a, b = np.meshgrid(
        np.linspace(a_low, a_high, 400), np.linspace(b_low, b_high, 400), indexing="ij"
    )
    log_p = -(a**2 + b**2) / 18
    for i, x in enumerate(X):
        log_p += logp(a + b * x, i)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    with pm.Model():
        observe(pm.Normal("a", 0, 3) + pm.Normal("b", 0, 3) * X)
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
