"""Persons with a level and a log scale of their own: at their joint mode few rows fit too well."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.convergence import convergence

PERSONS = 250
DRAWS = {
    "chains": 1,
    "cores": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def model() -> pm.Model:
    rng = np.random.default_rng(1)
    n_rows = rng.poisson(5, PERSONS) + 1
    person = np.repeat(np.arange(PERSONS), n_rows)
    male = (np.arange(PERSONS)[person] % 2).astype(float)
    age = rng.uniform(-1, 1, PERSONS)[person] + 0.3 * rng.normal(size=person.size)
    scale = np.exp(1.9 - 0.2 * male + 0.35 * rng.normal(size=PERSONS)[person])
    y = 50 - 8 * male + 2 * age + 12 * rng.normal(size=PERSONS)[person]
    with pm.Model() as made:
        mean = pm.Normal("intercept", 50, 20) + pm.Normal("of_male", 0, 10) * male
        mean += pm.Normal("of_age", 0, 10) * age
        mean += pm.Normal("level", 0, pm.HalfNormal("sd_level", 20), shape=PERSONS)[person]
        log_sd = pm.Normal("log_sd", 2, 1)
        log_sd += pm.Normal("own", 0, pm.HalfNormal("sd_own", 1), shape=PERSONS)[person]
        pm.Normal("y", mean, pm.math.exp(log_sd), observed=y + scale * rng.normal(size=person.size))
    return made


@pytest.mark.slow
def test_levels_and_scales_of_persons() -> None:
    """Means agree with NUTS, and the intercept, which levels follow exactly, mixes."""
    with model():
        step = pmb.MinibatchMH()
        found = pm.sample(1500, tune=500, step=step, random_seed=1, **DRAWS)["posterior"]
        nuts = pm.sample(1500, tune=1000, random_seed=2, **DRAWS)["posterior"]
    for name in ("intercept", "of_male", "of_age", "log_sd", "sd_level", "sd_own", "level", "own"):
        draws = [x[name].values.reshape(1, 1500, -1) for x in (found, nuts)]
        errors = [x.std(axis=(0, 1)) / np.sqrt(convergence(x).ess_bulk) for x in draws]
        away = np.abs(draws[0].mean(axis=(0, 1)) - draws[1].mean(axis=(0, 1)))
        assert np.all(away <= 5.5 * np.hypot(*errors)), name
        if name in ("intercept", "of_male", "log_sd"):
            assert convergence(draws[0]).ess_bulk.min() > 150, name
