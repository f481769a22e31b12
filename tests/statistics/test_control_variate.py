"""Chains with a control variate and moves about the mode, against NUTS and closed forms."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.stats import kstest

import pymc_minibatch as pmb

SETTINGS = {
    "chains": 2,
    "cores": 2,
    "random_seed": 3,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def negative_binomial():
    """Counts with an unknown dispersion: the remainder has terms in all pairs of parameters."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20_000, 3))
    mean = np.exp(X @ [0.3, -0.5, 0.2])
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + mean))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        alpha = pm.HalfNormal("alpha", 3)
        pm.NegativeBinomial("y", mu=pm.math.exp(X @ beta), alpha=alpha, observed=y)
    return model


@pytest.fixture(scope="module")
def counts():
    return negative_binomial()


@pytest.fixture(scope="module")
def nuts(counts):
    with counts:
        return pm.sample(2000, tune=500, nuts_sampler="pymc", **SETTINGS).posterior


def assert_same_posterior(ours, theirs):
    """Means within 4.5 Monte Carlo standard errors, which are small; sds within 5% and noise."""
    for name in theirs.data_vars:
        sd = theirs[name].std(("chain", "draw")).values
        error = np.hypot(az.mcse(ours)[name].values, az.mcse(theirs)[name].values)
        difference = (ours[name] - theirs[name].mean(("chain", "draw"))).mean(("chain", "draw"))
        assert (error < 0.05 * sd).all()
        assert (abs(difference.values) < 4.5 * error).all()
        noise = np.hypot(
            az.mcse(ours, method="sd")[name].values, az.mcse(theirs, method="sd")[name].values
        )
        assert (abs(ours[name].std(("chain", "draw")).values - sd) < 0.05 * sd + 2 * noise).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"control_variate": 1},
        {"proposal": pmb.RandomWalk()},
        {"proposal": pmb.Laplace(random_walk=0.5)},
    ],
    ids=["default", "first order", "random walk", "mostly random walk"],
)
def test_same_posterior_as_nuts(counts, nuts, options):
    with counts:
        step = pmb.MinibatchMH(steps_per_draw=25, **options)
        idata = pm.sample(2000, tune=500, step=step, **SETTINGS)
    assert idata.sample_stats.batch_size.mean() < 0.25 * 20_000
    assert idata.sample_stats.test_error.max() <= 1e-3
    assert_same_posterior(idata.posterior, nuts)


@pytest.mark.slow
def test_skewed_posterior_of_few_rows():
    """Ten events in 200 rows: the Gaussian is a poor guide, and the draws are right all the same.

    With a gamma prior on the rate its posterior is a gamma distribution.
    """
    y = np.repeat([1, 0], [10, 190])
    with pm.Model():
        rate = pm.Gamma("rate", 0.5, 1.0)
        pm.Poisson("y", rate, observed=y)
        step = pmb.MinibatchMH(steps_per_draw=40, batch_size=40)
        idata = pm.sample(4000, tune=300, step=step, **SETTINGS)
    draws = idata.posterior.rate.values
    assert az.ess(draws) > 5000
    thinned = draws[:, ::4].ravel()
    assert kstest(thinned, "gamma", args=(10.5, 0, 1 / 201)).pvalue > 1e-4


@pytest.mark.slow
def test_heavy_tails_are_visited():
    """A prior with heavier tails than the Gaussian moves, and hardly any data: Student's t.

    Its tail beyond four scale units has probability 0.016; a chain without random-walk moves would
    stick there or not get there.
    """
    with pm.Model():
        shift = pm.StudentT("shift", nu=4, mu=0.0, sigma=1.0)
        pm.Normal("y", shift, 1e4, observed=np.zeros(50))
        step = pmb.MinibatchMH(steps_per_draw=40, batch_size=20)
        idata = pm.sample(5000, tune=300, step=step, **SETTINGS)
    draws = idata.posterior["shift"].values
    assert az.ess(draws) > 2000
    thinned = draws[:, ::5].ravel()
    assert kstest(thinned, "t", args=(4,)).pvalue > 1e-4


def group_effects(centred):
    """Groups that do not differ: the posterior of their variance piles up at zero, in a funnel."""
    rng = np.random.default_rng(1)
    group = np.arange(300) % 6
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 0.5)
        if centred:
            alpha = pm.Normal("alpha", mu, tau, shape=6)
        else:
            alpha = mu + tau * pm.Normal("z", 0, 1, shape=6)
        pm.Bernoulli("y", logit_p=alpha[group], observed=rng.random(300) < 0.3)
    return model


@pytest.fixture(scope="module")
def nuts_of_group_effects():
    with group_effects(centred=False):
        idata = pm.sample(4000, tune=1000, nuts_sampler="pymc", target_accept=0.95, **SETTINGS)
    return idata.posterior


@pytest.mark.slow
@pytest.mark.parametrize(
    ("centred", "batch_size", "rows_read"),
    [(False, None, 300), (True, 30, 60)],
    ids=["all rows", "batches"],
)
def test_a_group_variance_near_zero(centred, batch_size, rows_read, nuts_of_group_effects):
    """A posterior that no Gaussian fits: the draws are right, from all rows or a part of them."""
    with group_effects(centred):
        step = pmb.MinibatchMH(batch_size=batch_size)
        idata = pm.sample(4000, tune=1000, step=step, **SETTINGS)
    assert idata.sample_stats.batch_size.mean() <= rows_read
    ours, theirs = idata.posterior, nuts_of_group_effects
    for method in ("mean", "sd"):
        errors = [az.mcse(draws, method=method) for draws in (ours, theirs)]
        for name in ("mu", "tau"):
            values = [
                getattr(d[name], method.replace("sd", "std"))().item() for d in (ours, theirs)
            ]
            error = np.hypot(*[e[name].item() for e in errors])
            assert error < 0.15 * theirs[name].std().item()
            assert abs(values[0] - values[1]) < 4.5 * error


@pytest.mark.slow
def test_rows_of_a_rare_category_are_not_missed():
    """Seven rows alone tell a coefficient: with 100 rows a batch it would be off by 0.2 sd.

    The rows of each category enter the posterior by their number and that of their ones.
    """
    n = np.array([8_000, 7])
    ones = np.array([160, 2])
    category = np.repeat([0, 1], n)
    y = np.concatenate([np.arange(size) < k for size, k in zip(n, ones, strict=True)])
    a, b = np.meshgrid(np.linspace(-5, -3, 400), np.linspace(-6, 12, 1200), indexing="ij")
    log_p = -(a**2 + b**2) / 50
    for size, k, eta in zip(n, ones, (a, a + b), strict=True):
        log_p += k * eta - size * np.logaddexp(0, eta)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = (p * b).sum()
    sd = np.sqrt((p * (b - mean) ** 2).sum())
    with pm.Model():
        intercept, slope = pm.Normal("intercept", 0, 5), pm.Normal("slope", 0, 5)
        eta = intercept + slope * pm.Data("category", category)
        pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
        step = pmb.MinibatchMH(steps_per_draw=5)
        idata = pm.sample(3000, tune=500, step=step, **SETTINGS)
    assert idata.sample_stats.batch_size.mean() < 500
    draws = idata.posterior["slope"].values
    error = sd / np.sqrt(float(az.ess(draws)))
    assert error < 0.03 * sd
    assert abs(draws.mean() - mean) < 4.5 * error
    # Of ten seeds the ratio was 0.98 ± 0.03: the posterior is skewed.
    assert draws.std() == pytest.approx(sd, rel=0.16)


@pytest.mark.slow
def test_compound_step_with_conditional_moves():
    """Coefficients by minibatch, their scale by NUTS: the conditional precision is what counts."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(5000, 4))
    y = X @ [0.5, -0.2, 0.1, 0.8] + rng.normal(0, 2, 5000)
    with pm.Model():
        tau = pm.HalfNormal("tau", 1)
        beta = pm.Normal("beta", 0, tau, shape=4, initval=np.full(4, 0.3))
        sigma = pm.HalfNormal("sigma", 3)
        pm.Normal("y", X @ beta, sigma, observed=y)
        steps = [pmb.MinibatchMH(["beta", "sigma"], steps_per_draw=10), pm.NUTS([tau])]
        ours = pm.sample(2000, tune=500, step=steps, **SETTINGS).posterior
        theirs = pm.sample(2000, tune=500, nuts_sampler="pymc", **SETTINGS).posterior
    assert_same_posterior(ours, theirs)
