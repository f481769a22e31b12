"""Small models that several test files share."""

from functools import partial

import numpy as np
import pymc as pm

from pymc_minibatch import MinibatchMH

N_ROWS = 600
N_GROUPS = 4

PlainMH = partial(MinibatchMH, control_variate=0, steps_per_draw=1)
"""A step that reads rows as they are, so that it has to grow its batches."""


UNREPEATED = ("setup_seconds", "n_witnessed", "witness_error")
"""Stats that a chain that is resumed has anew: it is not known how far the first part had been."""


def normal_model() -> pm.Model:
    """Mean and standard deviation of normal rows."""
    y = np.random.default_rng(1).normal(0.5, 1.5, N_ROWS)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=y)
    return model


def grouped_model() -> pm.Model:
    """Group means with a common mean and spread; the rows know their group."""
    rng = np.random.default_rng(2)
    group = rng.integers(0, N_GROUPS, N_ROWS)
    y = rng.normal(np.linspace(-1, 1, N_GROUPS)[group], 0.8)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        tau = pm.HalfNormal("tau")
        alpha = pm.Normal("alpha", mu, tau, shape=N_GROUPS)
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", alpha[group], sigma, observed=y)
    return model


def logistic_model(n_rows: int = N_ROWS) -> pm.Model:
    """Two coefficients; the rows are named, so that others can take their place."""
    X, y = logistic_rows(n_rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    return model


def logistic_rows(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and outcomes."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, 2))
    return X, rng.binomial(1, 1 / (1 + np.exp(-X @ [0.8, -0.5])))


def random_point(model: pm.Model, seed: int, spread: float = 0.4) -> dict[str, np.ndarray]:
    """Return a point near the start, where every row of these models is possible."""
    rng = np.random.default_rng(seed)
    return {
        name: value + spread * rng.standard_normal(np.shape(value))
        for name, value in model.initial_point().items()
    }
