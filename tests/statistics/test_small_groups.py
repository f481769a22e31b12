"""Many small groups, where what all groups share has a mode far from its mean.

Normal rows and effects, so that effects and mean can be integrated out in closed form, and both
scales by quadrature; and two yeses or noes for each group, with effects, mean and scale integrated
out by quadrature. Groups of all sizes decide in blocks, where a batch must not be led astray.
"""

from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.special import expit

import pymc_minibatch as pmb
from benchmarks.many_groups import slopes
from pymc_minibatch.latent.batch_decisions import MinibatchDecisions
from pymc_minibatch.latent.moves.decisions import LevelMoves, LevelWalks

N_GROUPS, N_ROWS = 4000, 3
"""Groups, and rows of each: at the mode of all effects log s is 19 standard deviations too low."""

DRAWS = 1000


N_BINARY = 8000
"""Groups of two yeses or noes: at Laplace's mode log sd is some 10 standard deviations too low."""


def exact(y: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of mu, log sd and log s; y has a row for each group."""
    log_sd, log_s = np.linspace(-0.7, 0.0, 400)[:, None], np.linspace(-0.1, 0.1, 300)
    means, variance = y.mean(axis=1), np.exp(2 * log_sd) + np.exp(2 * log_s) / N_ROWS
    within = np.sum((y - means[:, None]) ** 2)
    between = np.sum((means - means.mean()) ** 2)
    of_mean = 1.0 + variance / N_GROUPS  # variance of the mean of all rows, with mu ~ N(0, 1)
    log_posterior = (
        -(N_ROWS - 1) * N_GROUPS * log_s
        - 0.5 * within * np.exp(-2 * log_s)
        - 0.5 * (N_GROUPS - 1) * np.log(variance)
        - 0.5 * between / variance
        - 0.5 * np.log(of_mean)
        - 0.5 * means.mean() ** 2 / of_mean
        + (log_sd - 0.5 * np.exp(2 * log_sd))  # both are HalfNormal(1)
        + (log_s - 0.5 * np.exp(2 * log_s))
    )
    share = np.exp(log_posterior - log_posterior.max())
    share /= share.sum()

    def moments(value: np.ndarray, spread: np.ndarray | float = 0.0) -> tuple[float, float]:
        mean = float(np.sum(share * value))
        return mean, float(np.sqrt(np.sum(share * ((value - mean) ** 2 + spread))))

    shrunk, left = means.mean() / of_mean, (of_mean - 1.0) / of_mean
    return {"mu": moments(shrunk, left), "sd": moments(log_sd), "s": moments(log_s)}


def test_scale_of_rows_in_many_small_groups() -> None:
    """It is right from the first draw on, since the expansion is about the mean of the field."""
    rng = np.random.default_rng(3)
    y = 1.0 + 0.7 * rng.normal(size=(N_GROUPS, 1)) + rng.normal(size=(N_GROUPS, N_ROWS))
    group = np.repeat(np.arange(N_GROUPS), N_ROWS)
    with pm.Model():
        mu, sd, s = pm.Normal("mu", 0, 1), pm.HalfNormal("sd", 1), pm.HalfNormal("s", 1)
        z = pm.Normal("z", shape=N_GROUPS)
        pm.Normal("y", mu + sd * z[group], s, observed=y.ravel())
        idata = sampled(["mu", "sd", "s"])
    assert_moments(idata, exact(y), least_ess=200)


def exact_binary(y: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of mu and log sd; y has a row for each group."""
    mu, log_sd = np.linspace(-2.5, -1.5, 200)[:, None], np.linspace(0.1, 0.7, 200)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    p = expit(mu[..., None] + np.exp(log_sd)[:, None] * nodes)
    log_posterior = -0.5 * (mu / 2) ** 2 + log_sd - 0.5 * (np.exp(log_sd) / 2) ** 2
    for n_yes, n_groups in zip(*np.unique(y.sum(axis=1), return_counts=True), strict=True):
        likelihood = (p**n_yes * (1 - p) ** (2 - n_yes)) @ weights / weights.sum()
        log_posterior = log_posterior + n_groups * np.log(likelihood)
    share = np.exp(log_posterior - log_posterior.max())
    share /= share.sum()
    edges = np.concatenate([share[0], share[-1], share[:, 0], share[:, -1]])
    assert edges.max() < 1e-6 * share.max()

    def moments(value: np.ndarray) -> tuple[float, float]:
        mean = float(np.sum(share * value))
        return mean, float(np.sqrt(np.sum(share * (value - mean) ** 2)))

    return {"mu": moments(mu), "sd": moments(log_sd)}


def test_many_groups_of_two_yeses_or_noes() -> None:
    """Few rows of a group leave its effect far from Gaussian, and Laplace's mode far off."""
    rng = np.random.default_rng(6)
    chance = expit(-2 + 1.5 * rng.normal(size=(N_BINARY, 1)))
    y = (rng.random((N_BINARY, 2)) < chance).astype(int)
    group = np.repeat(np.arange(N_BINARY), 2)
    with pm.Model():
        mu, sd = pm.Normal("mu", 0, 2), pm.HalfNormal("sd", 2)
        z = pm.Normal("z", shape=N_BINARY)
        pm.Bernoulli("y", logit_p=mu + sd * z[group], observed=y.ravel())
        idata = sampled(["mu", "sd"])
    assert_moments(idata, exact_binary(y), least_ess=50)


def sampled(names: list[str]) -> xr.DataTree:
    """Sample the model whose context is open."""
    return pm.sample(
        DRAWS,
        tune=200,
        chains=2,
        cores=2,
        step=pmb.MinibatchMH(),
        var_names=names,
        random_seed=4,
        progressbar=False,
    )


def assert_moments(
    idata: xr.DataTree, moments: dict[str, tuple[float, float]], least_ess: float
) -> None:
    """Compare mean and standard deviation; scales are compared by their logarithms."""
    for name, (mean, deviation) in moments.items():
        draws = idata.posterior[name].values
        draws = draws if name == "mu" else np.log(draws)
        assert float(az.ess(draws)) > least_ess, name
        error = float(az.mcse(draws, method="mean"))
        assert abs(draws.mean() - mean) < 4.5 * error, name
        error = float(az.mcse(draws, method="sd"))
        assert abs(draws.std() - deviation) < 5 * error, name


@pytest.mark.slow
def test_levels_far_out_stay_where_the_posterior_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard normal effects of 500 groups, of which one in 10^4 runs has one beyond 6.5.

    Levels that walk decide by all of their rows. If blocks decided on long walks they would accept
    some at 10 and more, as batches miss the few rows that object.
    """
    often = LevelWalks(0.5, 1.5)
    monkeypatch.setattr(MinibatchDecisions, "level_walks", lambda *_: often)
    with slopes(50_000):
        step = pmb.MinibatchMH(acceptance="penalty")
        idata = pm.sample(
            300, tune=200, chains=1, step=step, random_seed=1, progressbar=False, var_names=["z"]
        )
    assert "levels in blocks" in step.choice
    assert float(np.abs(idata.posterior["z"].values).max()) < 6.5


@pytest.mark.slow
def test_levels_that_batches_let_go_are_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If blocks decide on walks, effects stay, or the run says which went where."""
    often = LevelWalks(0.5, 1.5)
    decide = MinibatchDecisions.on_levels

    def in_blocks(
        decisions: MinibatchDecisions, rng: Any, moves: LevelMoves, counts: Any
    ) -> np.ndarray:
        lets = moves.moving & (-rng.standard_exponential(moves.moving.size) < moves.log_ratios)
        return decide(
            decisions, rng, moves._replace(moving=lets, walks=np.zeros_like(lets)), counts
        )

    monkeypatch.setattr(MinibatchDecisions, "level_walks", lambda *_: often)
    monkeypatch.setattr(MinibatchDecisions, "on_levels", in_blocks)
    with slopes(50_000):
        step = pmb.MinibatchMH(acceptance="penalty", witness=False)
        idata = pm.sample(300, tune=200, chains=1, step=step, random_seed=1, progressbar=False)
    told = "has moved to a value that its own rows contradict" in caplog.text
    assert told or float(np.abs(idata.posterior["z"].values).max()) < 6.5
