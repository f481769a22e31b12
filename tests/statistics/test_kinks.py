"""Draws from posteriors of rows with kinks, against quadrature."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N_ROWS = 5000
Q = 0.2
Z_MAX = 4.5


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning:pymc_minibatch")
def test_a_quantile():
    """The posterior of a quantile of 5000 numbers is piecewise exponential, and known on a grid."""
    y = np.random.default_rng(1).gamma(2.0, size=N_ROWS)
    with pm.Model():
        mu = pm.Normal("mu", 0, 10)
        pm.AsymmetricLaplace("y", q=Q, mu=mu, b=1.0, observed=y)
        idata = pm.sample(
            3000,
            tune=500,
            chains=2,
            cores=1,
            step=pmb.MinibatchMH(),
            random_seed=2,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = idata.posterior["mu"].values
    grid = np.linspace(draws.min() - 0.1, draws.max() + 0.1, 4001)
    residual = y[:, None] - grid
    loss = np.where(residual > 0, Q * residual, (Q - 1) * residual).sum(0)
    log_p = -loss / np.sqrt(Q * (1 - Q)) - grid**2 / 200
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ grid
    sd = np.sqrt(p @ (grid - mean) ** 2)
    error = sd / np.sqrt(float(az.ess(draws)))
    assert error < 0.03 * sd
    assert abs(draws.mean() - mean) < Z_MAX * error
    assert abs(draws.std() - sd) < Z_MAX * float(az.mcse(draws, method="sd"))
    assert float(idata.sample_stats["batch_size"].mean()) < N_ROWS / 4


SIZES = np.array([1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 1000])
GROUP_Q, SCALE = 0.8, 0.7


def log_likelihoods(y: np.ndarray, group: np.ndarray, effects: np.ndarray) -> np.ndarray:
    """Sum the rows of each group at each effect."""
    kappa = np.sqrt(GROUP_Q / (1 - GROUP_Q))
    away = (y[:, None] - effects) / SCALE
    rows = np.where(away > 0, -kappa * away, away / kappa)
    return np.array([rows[group == g].sum(0) for g in range(SIZES.size)])


def moments_of_groups(y: np.ndarray, group: np.ndarray) -> dict[str, np.ndarray]:
    """Integrate over effects, which are independent given mean and scale: first two moments."""
    effects = np.linspace(-2.5, 5.5, 6001)
    likelihoods = log_likelihoods(y, group, effects)
    mu, log_tau = np.linspace(-1.5, 3.5, 80), np.linspace(-3.5, 1.7, 80)
    log_p = np.empty((mu.size, log_tau.size))
    first, second = np.empty((2, SIZES.size, mu.size, log_tau.size))
    for i, m in enumerate(mu):
        for j, log_t in enumerate(log_tau):
            t = np.exp(log_t)
            terms = likelihoods - 0.5 * ((effects - m) / t) ** 2 - log_t
            peak = terms.max(axis=1, keepdims=True)
            p = np.exp(terms - peak)
            total = p.sum(axis=1)
            log_p[i, j] = (np.log(total) + peak[:, 0]).sum() - m**2 / 2 - t**2 / 2 + log_t
            first[:, i, j], second[:, i, j] = p @ effects / total, p @ effects**2 / total
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    edges = p[0], p[-1], p[:, 0], p[:, -1]
    assert max(edge.max() for edge in edges) < 1e-6 * p.max()
    functions = np.array([mu[:, None] + 0 * p, log_tau + 0 * p, *first])
    squares = np.array([mu[:, None] ** 2 + 0 * p, log_tau**2 + 0 * p, *second])
    means, sums = (functions * p).sum((1, 2)), (squares * p).sum((1, 2))
    return {"mean": means, "sd": np.sqrt(sums - means**2)}


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning:pymc_minibatch")
@pytest.mark.parametrize("centred", [False, True])
def test_quantiles_of_groups(centred):
    rng = np.random.default_rng(3)
    group = rng.permutation(np.repeat(np.arange(SIZES.size), SIZES))
    y = 1 + 0.4 * rng.normal(size=SIZES.size)[group] + rng.gumbel(size=group.size)
    with pm.Model():
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        if centred:
            effect = pm.Normal("effect", mu, tau, shape=SIZES.size)
        else:
            effect = pm.Deterministic("effect", mu + tau * pm.Normal("z", shape=SIZES.size))
        pm.AsymmetricLaplace("y", q=GROUP_Q, mu=effect[group], b=1 / SCALE, observed=y)
        step = pmb.MinibatchMH()
        assert step.latent is not None
        assert step.latent.rows.kinked
        idata = pm.sample(
            3000, tune=600, chains=2, cores=1, step=step, random_seed=4, progressbar=False
        )
    posterior = idata.posterior
    hyper = np.stack([posterior["mu"].values, np.log(posterior["tau"].values)], axis=-1)
    draws = np.concatenate([hyper, posterior["effect"].values], axis=-1)
    right = moments_of_groups(y, group)
    for j in range(draws.shape[-1]):
        chain = draws[:, :, j]
        error = float(az.mcse(chain, method="mean"))
        assert error < 0.06 * right["sd"][j]
        assert abs(chain.mean() - right["mean"][j]) < Z_MAX * error
        assert abs(chain.std() - right["sd"][j]) < Z_MAX * float(az.mcse(chain, method="sd"))
