"""Effects and their scales against the exact posterior, found by quadrature.

A random-intercept logistic regression has a posterior that can be integrated: given mean and scale
the groups are independent, and each is an integral over one effect.
"""

from functools import partial

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import expit, logsumexp

import pymc_minibatch as pmb

SIZES = np.array([1, 2, 3, 5, 8, 12, 20, 30, 40, 60, 60, 80, 100, 100, 150, 200, 250, 300, 0, 700])
DRAWS = 3000


def counts(tau: float, seed: int) -> np.ndarray:
    """Draw the number of ones of each group."""
    rng = np.random.default_rng(seed)
    return rng.binomial(SIZES, expit(-0.4 + tau * rng.normal(size=SIZES.size)))


def model_of(ones: np.ndarray, centred: bool) -> pm.Model:
    """Write the model with one row for each trial, in random order."""
    group = np.repeat(np.arange(SIZES.size), SIZES)
    y = np.concatenate([np.arange(size) < k for size, k in zip(SIZES, ones, strict=True)]).astype(
        int
    )
    order = np.random.default_rng(0).permutation(group.size)
    group, y = group[order], y[order]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        if centred:
            effect = pm.Normal("effect", mu, tau, shape=SIZES.size)
        else:
            z = pm.Normal("z", shape=SIZES.size)
            effect = pm.Deterministic("effect", mu + tau * z)
        pm.Bernoulli("y", logit_p=effect[pm.Data("group", group)], observed=y)
    return model


def exact(ones: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Integrate: mean and standard deviation of mu, log tau and each effect."""
    mu = np.linspace(-2.5, 1.8, 50)
    log_tau = np.linspace(-9.0, 1.6, 80)
    nodes = np.linspace(-7.0, 7.0, 700)  # fine enough for the effect of the largest group
    weights = -0.5 * nodes**2 - logsumexp(-0.5 * nodes**2)
    effect = mu[:, None, None] + np.exp(log_tau)[None, :, None] * nodes
    log_posterior = (
        -0.5 * mu[:, None] ** 2 - 0.5 * np.exp(2 * log_tau)[None] + log_tau[None]
    ) * np.ones((mu.size, log_tau.size))
    moments = []
    log_one, log_zero = -np.logaddexp(0, -effect), -np.logaddexp(0, effect)
    for k, n in zip(ones, SIZES, strict=True):
        terms = weights + k * log_one + (n - k) * log_zero
        total = logsumexp(terms, axis=-1)
        share = np.exp(terms - total[..., None])
        moments.append(((share * effect).sum(-1), (share * effect**2).sum(-1)))
        log_posterior += total
    density = np.exp(log_posterior - log_posterior.max())
    density /= density.sum()

    def summary(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
        mean = float((density * first).sum())
        return mean, float(np.sqrt((density * second).sum() - mean**2))

    grid_mu, grid_tau = np.meshgrid(mu, log_tau, indexing="ij")
    effects = np.array([summary(*pair) for pair in moments])
    found = {"mu": summary(grid_mu, grid_mu**2), "log_tau": summary(grid_tau, grid_tau**2)}
    result = {name: (np.array([m]), np.array([s])) for name, (m, s) in found.items()}
    return {**result, "effect": (effects[:, 0], effects[:, 1])}


def compare(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray, name: str) -> None:
    """Means and standard deviations within five of their Monte Carlo errors."""
    for j in range(mean.size):
        chain = draws[:, :, j]
        z_mean = (chain.mean() - mean[j]) / az.mcse(chain, method="mean")
        z_sd = (chain.std() - sd[j]) / az.mcse(chain, method="sd")
        assert abs(z_mean) < 5, f"mean of {name}[{j}]: {chain.mean()} where {mean[j]} is right"
        assert abs(z_sd) < 5, f"sd of {name}[{j}]: {chain.std()} where {sd[j]} is right"


@pytest.mark.parametrize(
    ("tau", "centred"), [(0.6, False), (0.6, True), (0.0, False)], ids=["plain", "centred", "zero"]
)
@pytest.mark.parametrize(
    "kind",
    [partial(pmb.MinibatchMH, acceptance="penalty"), pmb.MinibatchMH, pmb.FlyMC],
    ids=["minibatch", "whole", "firefly"],
)
def test_random_intercepts(kind: type, tau: float, centred: bool) -> None:
    """One group has no rows, and one has a single row."""
    ones = counts(tau, seed=5)
    with model_of(ones, centred):
        step = kind()
        assert step.latent is not None
        idata = pm.sample(
            draws=DRAWS, tune=600, chains=2, cores=1, step=step, random_seed=2, progressbar=False
        )
    posterior = idata.posterior
    right = exact(ones)
    compare(posterior["mu"].values[..., None], *right["mu"], "mu")
    compare(np.log(posterior["tau"].values)[..., None], *right["log_tau"], "log tau")
    compare(posterior["effect"].values, *right["effect"], "effect")
