"""Priors that PyTensor differentiates once, such as interpolations by lines, against a grid."""

import numpy as np
import pymc as pm
from scipy.special import log_expit

import pymc_minibatch as pmb

KNOTS = np.linspace(-1.0, 1.0, 9)
DENSITY = np.array([0.0, 0.2, 1.0, 0.3, 0.1, 0.8, 1.0, 0.1, 0.0])
"""With two modes."""


def test_an_interpolated_prior():
    rng = np.random.default_rng(1)
    x = rng.normal(size=100)
    y = rng.random(100) < 0.5
    with pm.Model():
        b = pm.Interpolated("b", KNOTS, DENSITY)
        pm.Bernoulli("y", logit_p=b * x, observed=y.astype(int))
        step = pmb.MinibatchMH(control_variate=0, steps_per_draw=20)
        options = {"progressbar": False, "compute_convergence_checks": False}
        idata = pm.sample(500, tune=300, chains=2, cores=1, step=step, random_seed=1, **options)
    drawn = idata.posterior["b"].values.ravel()
    grid = np.linspace(-1, 1, 4001)
    density = np.interp(grid, KNOTS, DENSITY)
    density *= np.exp(log_expit(np.where(y, 1.0, -1.0) * grid[:, None] * x).sum(axis=1))
    density /= density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    assert abs(drawn.mean() - mean) < 0.25 * sd
    assert abs(np.log(drawn.std() / sd)) < 0.2
