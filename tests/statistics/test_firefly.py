"""Firefly draws are exact: a joint test, calibration, and posteriors known by quadrature.

The joint test (after Geweke, 2004) draws parameters from the prior, data given these, and updates
the parameters given the data, which must leave the joint distribution of both as it was. What is
drawn of z has to be Bernoulli(1 − B/L) besides. Both see any error in a bound, in its sums, or in
an acceptance probability.
"""

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import logistic_model
from scipy.special import expit, logsumexp
from scipy.stats import chisquare
from scipy.stats import t as t_distribution

import pymc_minibatch as pmb

N_ROWS = 40
KERNELS = ("hamiltonian", "langevin", "metropolis", "slice")
TOUCH = np.array([0.6, -0.4])
"""Where the bounds touch: bounds are valid wherever they do."""


X = np.random.default_rng(8).normal(size=(N_ROWS, 2))


def logistic_step(kernel, **options):
    """Make a step whose data are replaced later."""
    with pm.Model():
        beta = pm.Normal("beta", shape=2)
        y = pm.Data("y_rows", np.arange(N_ROWS) % 2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
        return pmb.FlyMC(proposal=kernel, rng=1, **options)


def replace_data(step, y, stretch=1.0):
    """Put other data into a step, and collapse its bounds; their curvature may be made wrong."""
    inputs = step.tall.row_inputs
    inputs["y_rows"] = replace(inputs["y_rows"], values=read_only(y))
    constants = [*step.target.constants(TOUCH)]
    n_pinned = len(step.target.data) if step.target.pinned.size else 0  # their data come last
    constants[-1 - n_pinned] = stretch * constants[-1 - n_pinned]
    step.chosen = replace(step.chosen, constants=tuple(constants))


def read_only(values):
    """Compiled code tells such arrays from others; rows always are."""
    values.flags.writeable = False
    return values


def fix_tuning(step, q=0.15, scale=0.7):
    step.tune = False
    step.tuning.q[0], step.tuning.log_step[0] = q, np.log(scale)


def draw_data(beta, rng):
    return rng.binomial(1, expit(X @ beta))


def bright_probability(step, beta):
    rows = np.setdiff1d(np.arange(N_ROWS), step.target.pinned)
    return -np.expm1(-step.target.gaps(beta, TOUCH, rows))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_joint_distribution(kernel):
    step = logistic_step(kernel)
    for z_update in ("implicit", "explicit"):
        step.z_update, step.fraction = z_update, 0.3
        before, after, z_excess = simulate_jointly(step, n_pairs=2000)
        for change in (after - before).T:
            assert abs(change.mean()) < 5 * standard_error(change)
        assert abs(z_excess.mean()) < 5 * standard_error(z_excess)
        assert standard_error(z_excess) < 0.05


@pytest.mark.slow
def test_the_joint_distribution_shows_a_wrong_bound():
    step = logistic_step("hamiltonian")
    before, after, _ = simulate_jointly(step, n_pairs=500, stretch=1.2)
    assert max(abs(change.mean()) / standard_error(change) for change in (after - before).T) > 6


def simulate_jointly(step, n_pairs, stretch=1.0):
    """Draw parameters, then data, then update the parameters; their joint law stays the same."""
    rng = np.random.default_rng(5)
    before, after, excess = [], [], []
    fix_tuning(step)
    for _ in range(n_pairs):
        beta = rng.normal(size=2)
        y = draw_data(beta, rng)
        replace_data(step, y, stretch)
        before.append(joint_quantities(beta, y))
        step.iterate(beta, 20, redraw_z=True)
        after.append(joint_quantities(beta, y))
        excess.append(step.brightness.n_bright[0] - bright_probability(step, beta).sum())
    return np.array(before), np.array(after), np.array(excess)


def joint_quantities(beta, y):
    return [*beta, *beta**2, *(beta * ((y - 0.5) @ X)), quantities(beta[None], y)[0, 2]]


def standard_error(x):
    return x.std() / np.sqrt(x.size)


N_REPLICATIONS, N_DRAWS = 1500, 15


@pytest.mark.slow
def test_ranks_are_uniform():
    """Simulation-based calibration (Talts et al., 2018)."""
    step = logistic_step("hamiltonian")
    rng = np.random.default_rng(9)
    ranks = []
    for _ in range(N_REPLICATIONS):
        truth = rng.normal(size=2)
        y = draw_data(truth, rng)
        replace_data(step, y)
        fix_tuning(step)
        beta = np.zeros(2)
        step.iterate(beta, 20, redraw_z=True)
        draws = []
        for _ in range(N_DRAWS):
            step.iterate(beta, 12, redraw_z=False)
            draws.append(beta.copy())
        ranks.append((quantities(np.array(draws), y) < quantities(truth[None], y)).sum(axis=0))
    for ranks_of_one in np.transpose(ranks):
        assert chisquare(np.bincount(ranks_of_one, minlength=N_DRAWS + 1)).pvalue > 3e-5


def quantities(beta, y):
    """Return what is ranked: both coefficients and the log-likelihood."""
    eta = beta @ X.T
    return np.column_stack([beta, (y * eta - np.logaddexp(0.0, eta)).sum(axis=-1)])


# --- Known posteriors -------------------------------------------------------------------------


def logistic_posterior(data_rng):
    X = data_rng.normal(size=(300, 2))
    y = data_rng.binomial(1, expit(X @ [1.0, -0.6]))
    beta = pm.Normal("beta", shape=2)
    pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)

    def log_density(a, b):
        eta = a * X[:, 0] + b * X[:, 1]
        return (y * eta - np.logaddexp(0, eta)).sum(-1)

    return log_density


def softmax_posterior(data_rng):
    X = data_rng.normal(size=(300, 1))
    y = data_rng.choice(3, p=[0.2, 0.3, 0.5], size=300)
    beta = pm.Normal("beta", shape=2)
    slopes = pt.concatenate([pt.zeros(1), beta])
    pm.Categorical("y", logit_p=pm.Data("X", X) @ slopes[None, :], observed=y)

    def log_density(a, b):
        eta = np.stack(np.broadcast_arrays(0.0, a * X[:, 0], b * X[:, 0]), axis=-1)
        chosen = eta[..., np.arange(y.size), y]
        return (chosen - logsumexp(eta, axis=-1)).sum(-1)

    return log_density


def student_t_posterior(data_rng):
    """The second coefficient is the log of the scale, under a normal prior."""
    X = data_rng.normal(size=(300, 1))
    y = 0.7 * X[:, 0] + 0.5 * data_rng.standard_t(4, size=300)
    beta = pm.Normal("beta", shape=2)
    mu = pm.Data("X", X) @ beta[:1]
    pm.StudentT("y", nu=4, mu=mu, sigma=pt.exp(beta[1]), observed=y)

    def log_density(a, b):
        return t_distribution(4, a * X[:, 0], np.exp(b)).logpdf(y).sum(-1)

    return log_density


def by_quadrature(log_density, center, sds):
    """Mean and variance of both coefficients, on a grid of 10 sds about a point near the mode."""
    axes = [c + s * np.linspace(-10, 10, 161) for c, s in zip(center, sds, strict=True)]
    a, b = np.meshgrid(*axes, indexing="ij")
    log_p = np.array([log_density(a[i, :, None], b[i, :, None]) for i in range(161)])
    log_p = log_p.reshape(a.shape) - (a**2 + b**2) / 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = np.array([(p * x).sum() for x in (a, b)])
    return means, np.array([(p * (x - m) ** 2).sum() for x, m in zip((a, b), means, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("build", [logistic_posterior, softmax_posterior, student_t_posterior])
def test_moments(build):
    with pm.Model() as model:
        log_density = build(np.random.default_rng(4))
        step = pmb.FlyMC(rng=3)
    draws, stats = walk(step, model.initial_point(), n_tune=500, n_draws=15_000)
    assert stats < 0.2 * step.n_rows
    assert_moments(draws, log_density)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The likelihood depends on:UserWarning")
def test_moments_where_another_step_moves_the_degrees_of_freedom():
    """The bounds depend on ν, so they change between two updates of the coefficient."""
    data_rng = np.random.default_rng(6)
    X = data_rng.normal(size=(300, 1))
    y = 0.7 * X[:, 0] + data_rng.standard_t(3, size=300)
    with pm.Model():
        beta, log_nu = pm.Normal("beta", shape=1), pm.Normal("log_nu")
        pm.StudentT("y", nu=pt.exp(log_nu), mu=pm.Data("X", X) @ beta, sigma=1, observed=y)
        posterior = pm.sample(
            draws=8000,
            step=[pmb.FlyMC(vars=[beta]), pm.Slice([log_nu])],
            chains=1,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        ).posterior
    draws = np.column_stack([posterior["beta"].values.ravel(), posterior["log_nu"].values.ravel()])
    assert_moments(
        draws, lambda a, b: t_distribution(np.exp(b), a * X[:, 0], 1.0).logpdf(y).sum(-1)
    )


def assert_moments(draws, log_density):
    """Means and variances are those by quadrature, within the Monte Carlo errors."""
    means, variances = by_quadrature(log_density, draws.mean(axis=0), draws.std(axis=0))
    for i in range(2):
        centred = draws[:, i] - means[i]
        for change in (centred, centred**2 - variances[i]):
            error = np.sqrt(change.var() / float(az.ess(change[None])))
            assert abs(change.mean()) < 4.5 * error
            assert error < 0.05 * np.sqrt(variances[i])


def walk(step, point, n_tune, n_draws):
    """Return draws of beta, and the mean number of bright rows."""
    draws, n_bright = [], []
    for i in range(n_tune + n_draws):
        if i == n_tune:
            step.stop_tuning()
        point, [stat] = step.step(point)
        draws.append(point["beta"])
        n_bright.append(stat["n_bright"])
    return np.array(draws[n_tune:]), np.mean(n_bright[n_tune:])


@pytest.mark.slow
def test_bright_rows_do_not_grow_with_the_data():
    """Bounds are as much tighter at the posterior as there are more rows."""
    n_bright = []
    for n_rows in (2_000, 200_000):
        model = logistic_model(n_rows)
        step = pmb.FlyMC(model=model, rng=2)
        n_bright.append(walk(step, model.initial_point(), n_tune=300, n_draws=2000)[1])
    assert 0 < n_bright[1] < 2 * n_bright[0]


@pytest.mark.slow
def test_a_category_with_one_outcome():
    """The likelihood of its rows is flat beyond the mode, and their bounds are not."""
    n_rows, n_in, sd = 5000, 400, 2.5
    inside = np.arange(n_rows) < n_in
    y = inside | (np.random.default_rng(3).random(n_rows) < 0.3)
    with pm.Model():
        base, effect = pm.Normal("base", 0, sd), pm.Normal("effect", 0, sd)
        pm.Bernoulli("y", logit_p=base + effect * inside.astype(float), observed=y)
        step = pmb.FlyMC(steps_per_draw=3)
        idata = pm.sample(
            1500, tune=500, step=step, chains=2, cores=1, random_seed=1, progressbar=False
        )
    np.testing.assert_array_equal(step.target.pinned, np.flatnonzero(inside))
    outside = y[~inside]
    bases, effects = np.linspace(-1.3, -0.4, 200)[:, None], np.linspace(2.0, 20.0, 2000)
    logp = (
        -(bases**2 + effects**2) / (2 * sd**2)
        + outside.sum() * bases
        - outside.size * np.logaddexp(0, bases)
        - n_in * np.logaddexp(0, -bases - effects)
    )
    weights = np.exp(logp - logsumexp(logp)).sum(axis=0)
    mean = weights @ effects
    exact_sd = np.sqrt(weights @ (effects - mean) ** 2)
    draws = idata.posterior["effect"]
    assert az.ess(draws) > 500
    assert abs(draws.mean() - mean) < 5 * exact_sd / np.sqrt(500)
    assert abs(draws.std() / exact_sd - 1) < 0.2
