"""Checks of parameters concern the row that they read, not all rows of a batch."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_minibatch as pmb

N, GROUPS = 600, 20


def _rows(kind: str, group: np.ndarray, effect: Any, scale: Any, x: np.ndarray) -> None:
    rate = pm.math.sigmoid(effect[group])
    if kind == "beta binomial":
        trials = np.full(N, 9)
        alpha, beta = 50 * rate, 50 * (1 - rate)
        pm.BetaBinomial("y", n=trials, alpha=alpha, beta=beta, observed=np.full(N, 4))
    elif kind == "several conditions":
        log_size = pm.Normal("log_size", shape=GROUPS)
        mean, size = pt.exp(-effect[group]), pt.exp(log_size[group])
        pm.NegativeBinomial("y", mu=mean, alpha=size, observed=np.full(N, 4))
    elif kind == "two columns":
        mean = pt.exp(effect[group])[:, None] * np.ones(2)
        pm.Gamma("y", mu=mean, sigma=scale, observed=np.column_stack([x, x]))
    else:
        pm.Gamma("y", mu=pt.exp(effect[group]), sigma=scale, observed=pm.Data("x", x))


@pytest.mark.parametrize(
    "kind", ["beta binomial", "two columns", "several conditions", "data that can be set"]
)
def test_one_impossible_row(kind: str) -> None:
    rng = np.random.default_rng(1)
    group, x = np.arange(N) % GROUPS, rng.gamma(2.0, 1.0, N)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        effect = pm.Normal("effect", 0, 1, shape=GROUPS)
        _rows(kind, group, effect, scale, x)
        tall = pmb.TallModel()
    point = {k: np.asarray(v, dtype=float) for k, v in model.initial_point().items()}
    usual = tall.row_logp(point, np.arange(N))
    far = {**point, "effect": np.where(np.arange(GROUPS) == 3, 800.0, 0.0)}
    if kind not in ("beta binomial", "several conditions"):
        far["effect"] *= -1.0
    found = tall.row_logp(far, np.arange(N))
    np.testing.assert_array_equal(found[group != 3], usual[group != 3])
    if kind == "several conditions":  # which are that the size is positive, and a share in [0, 1]
        far = {**point, "log_size": np.where(np.arange(GROUPS) == 3, -800.0, 0.0)}
        found = tall.row_logp(far, np.arange(N))
        np.testing.assert_array_equal(found[group != 3], usual[group != 3])
    assert not np.isfinite(found[group == 3]).any()
    alone = {**point, "scale_log__": np.array(-800.0)}  # of all rows
    if kind not in ("beta binomial", "several conditions"):
        assert not np.isfinite(tall.row_logp(alone, np.arange(N))).any()


def test_three_conditions_of_a_row() -> None:
    """As of negative binomial rows that have a dispersion each: 0 ≤ p, p ≤ 1 and n > 0."""
    rng = np.random.default_rng(2)
    group, y = np.arange(N) % GROUPS, rng.poisson(2.0, N)
    with pytensor.config.change_flags(on_opt_error="raise"), pm.Model() as model:
        effect, of_alpha = pm.Normal("effect", shape=GROUPS), pm.Normal("of_alpha", shape=GROUPS)
        mu, alpha = pt.exp(effect)[group], pt.exp(of_alpha)[group]
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=y)
        tall = pmb.TallModel()
    point = {name: rng.normal(size=GROUPS) for name in model.initial_point()}
    n, mean = np.exp(point["of_alpha"])[group], np.exp(point["effect"])[group]
    expected = stats.nbinom.logpmf(y, n, n / (n + mean))
    np.testing.assert_allclose(tall.row_logp(point, np.arange(N)), expected)


def test_levels_move_beside_one_that_cannot() -> None:
    """All decide by themselves, also where a level wants to go where no rate is possible."""
    rng = np.random.default_rng(3)
    trials, group = rng.integers(5, 200, 4000), rng.integers(0, 200, 4000)
    rate = 1 / (1 + np.exp(2 - rng.normal(0, 0.7, 200)[group]))
    successes = rng.binomial(trials, rate)
    with pm.Model():
        sd = pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", -2, sd, shape=200)
        share = pm.math.sigmoid(effect[group])
        pm.BetaBinomial("y", n=trials, alpha=50 * share, beta=50 * (1 - share), observed=successes)
        step = pmb.MinibatchMH()
    assert step.latent is not None
    rows = step.tall.batch(np.arange(4000))
    far = step.tall.start.copy()
    far[-1] = 400.0
    values = step.tall.vector_row_logp(far, *rows)
    np.testing.assert_array_equal(np.isfinite(values), group != 199)
