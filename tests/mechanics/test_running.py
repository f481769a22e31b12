"""Means over draws of functions of the parameters."""

import numpy as np
import pymc as pm
import pytest
from models import normal_model

from pymc_minibatch import SGLD, RunningMean

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}


def test_the_mean_over_all_chains():
    """Over every third draw after tuning, for other rows than the model's."""
    x = np.linspace(-1, 1, 200)
    with pm.Model():
        slope, data = pm.Normal("slope"), pm.Data("x", x)
        pm.Normal("y", slope * data, pm.HalfNormal("sigma"), observed=2 * x + np.sin(9 * x))
        predicted = RunningMean(pm.math.exp(slope * data), data={"x": [0.0, 0.5]}, every=3)
        step = SGLD(step_size=1e-4, preconditioner="identity", control_variate=0)
        idata = pm.sample(20, tune=5, chains=2, cores=1, step=step, callback=predicted, **QUIET)
    slopes = idata.posterior["slope"].values
    kept = np.concatenate([chain[(np.arange(20) + 5) % 3 == 0] for chain in slopes])
    assert predicted.n_draws == len(kept)
    np.testing.assert_allclose(predicted.mean, np.exp(np.outer([0.0, 0.5], kept)).mean(axis=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"f": "nu"}, "nu is not a variable of the model"),
        ({"f": "mu", "data": {"z": 1.0}}, r"no pm.Data named \['z'\]"),
        ({"f": "mu", "every": 0}, "every must be"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        RunningMean(**arguments, model=normal_model())
