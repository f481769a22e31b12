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


class Draw:
    """What `pm.sample` hands to a callback."""

    tuning, chain = False, 1

    def __init__(self, index, **point):
        self.draw_idx, self.point = index, point


def test_variables_are_found_by_name():
    model = normal_model()
    point = model.initial_point()
    mean = RunningMean("sigma", model=model)
    mean(None, Draw(0, **point))
    mean(None, Draw(1, other=1.0, **dict(reversed(point.items()))))
    np.testing.assert_allclose(mean.mean, np.exp(point["sigma_log__"]))
    with pytest.raises(ValueError, match=r"lack \['sigma_log__'\].* the model that is sampled"):
        mean(None, Draw(2, mu=0.0))


def test_draws_at_which_it_is_not_finite_are_counted():
    model = normal_model()
    point = model.initial_point()
    mean = RunningMean(pm.math.log(model["mu"]), model=model)
    mean(None, Draw(0, **point | {"mu": np.e}))
    with pytest.warns(UserWarning, match="not finite at draw 1 of chain 1"):
        mean(None, Draw(1, **point | {"mu": -1.0}))
    mean(None, Draw(2, **point | {"mu": -1.0}))
    assert (mean.n_draws, mean.n_left_out) == (1, 2)
    assert mean.mean == pytest.approx(1.0)


def test_the_draws_of_a_result():
    """The same mean as that of a callback, also where a prior reads data and f is a variable."""
    x = np.linspace(-1, 1, 200)
    with pm.Model():
        width, data = pm.Data("width", 2.0), pm.Data("x", x)
        slope, sigma = pm.Normal("slope", 0, width), pm.HalfNormal("sigma")
        pm.Normal("y", slope * data, sigma, observed=2 * x + np.sin(9 * x))
        fs = slope, pm.math.log(sigma) * data * width, slope * width
        there, after = ([RunningMean(f, data={"width": 3.0}) for f in fs] for _ in range(2))
        step = SGLD(step_size=1e-4, preconditioner="identity", control_variate=0)
        idata = pm.sample(
            20,
            tune=5,
            chains=2,
            cores=1,
            step=step,
            callback=lambda **draw: [mean(**draw) for mean in there],
            **QUIET,
        )
    for one, other in zip(there, after, strict=True):
        other.add(idata)
        assert one.n_draws == other.n_draws == 40
        np.testing.assert_allclose(one.mean, other.mean)
    with pytest.raises(ValueError, match=r"The posterior lacks \['sigma'\]"):
        after[1].add(
            idata.map_over_datasets(lambda group: group.drop_vars("sigma", errors="ignore"))
        )
