"""Levels whose moves are correlated are moved more often, and stay right."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_minibatch as pmb

N_LEVELS, N_EACH = 60, 10


@pytest.mark.parametrize("acceptance", ["auto", "penalty"])
def test_a_level_between_outliers_mixes(acceptance: str) -> None:
    """Its rows agree on one of two places, between which the density is low."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(N_LEVELS), N_EACH)
    y = rng.normal(size=N_LEVELS)[group] + 0.1 * rng.standard_t(3, size=group.size)
    y[:N_EACH] = np.repeat([-0.25, 0.25], N_EACH // 2) + rng.normal(0, 0.05, N_EACH)
    with pm.Model():
        level = pm.Normal("level", 0, 1, shape=N_LEVELS)
        pm.StudentT("y", nu=3, mu=level[group], sigma=0.1, observed=y)
        step = pmb.MinibatchMH(acceptance=acceptance)
        found = pm.sample(
            1000,
            tune=300,
            step=step,
            chains=1,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = found["posterior"]["level"].values[0, :, 0]
    ess = float(az.ess(draws[None]))
    grid = np.linspace(-2, 2, 8001)
    of_rows = stats.t.logpdf((y[:N_EACH, None] - grid) / 0.1, 3).sum(axis=0)
    density = np.exp(of_rows - 0.5 * grid**2 - of_rows.max())
    density /= density.sum()
    right, spread = density[grid > 0].sum(), np.sqrt(density @ grid**2 - (density @ grid) ** 2)
    assert ess > 600
    assert abs((draws > 0).mean() - right) < 4.5 * 0.5 / np.sqrt(ess)
    assert abs(draws.mean() - density @ grid) < 4.5 * spread / np.sqrt(ess)
