"""Warnings and errors about the reference point name the variable, the share and the cause."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import logistic_model
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_minibatch as pmb
from pymc_minibatch.reference.decide import decide_control_variate


def only_warning(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decide_control_variate(pmb.TallModel(model), None, "auto", 1.0)
    [message] = [str(warning.message) for warning in caught]
    return message


def test_a_variable_that_rows_tell_little_of():
    """Rows are flat in it to second order."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 3000))
    y -= x * (x @ y) / (x @ x)
    with pm.Model() as model:
        flat, mean = pm.Normal("flat"), pm.Normal("mean")
        pm.Normal("y", mean + flat**3 * x, 1.0, observed=y)
    message = only_warning(model)
    assert "Most of the misfit comes from flat (" in message
    assert "more informative prior" in message
    assert "choose the moves" not in message


def test_where_the_log_density_is_not_concave():
    """The log-density of the second one has a minimum at the start, and no maximum."""
    y = np.random.default_rng(3).normal(size=500)
    with pm.Model() as model:
        mu, bowl = pm.Normal("mu"), pm.Flat("bowl")
        pm.Potential("up", pm.math.log(1 + bowl**2))
        pm.Normal("y", mu, 1.0, observed=y)
    with pytest.raises(pmb.reference.NoReferenceError, match="bowl"):
        pmb.find_reference(model)


def test_second_derivatives_that_are_not_finite():
    """SciPy's own message about infs and NaNs names neither the model nor a remedy."""
    y = np.random.default_rng(7).normal(-1.0, 1.0, 500)
    with pm.Model() as model:
        mu = pm.Normal("mu", initval=1.0)
        pm.Potential("edge", -(pm.math.maximum(mu, 0.0) ** 1.5))  # 0 / 0 in its second derivative
        pm.Normal("y", mu, 1.0, observed=y)
    with pytest.raises(pmb.NoReferenceError, match=r"second derivatives .* not finite .* by mu"):
        pmb.find_reference(model)


def test_a_step_too_far_is_not_the_end_of_the_search():
    """All rows but one, which a subsample misses, tell nothing of the rate."""
    n_rows = 60_000
    x = np.full(n_rows, 1e-4)
    x[12_345] = 300.0
    y = np.zeros(n_rows)
    y[12_345] = 50
    with pm.Model() as model:
        rate = pm.Normal("rate")
        pm.Poisson("y", pm.math.exp(rate * x), observed=y)
    reference = pmb.find_reference(model)
    assert abs(model.compile_dlogp()(dict(reference.mode))[0]) < 1e-2 / np.sqrt(
        reference.covariance[0, 0]
    )


def test_a_start_for_the_search():
    """Of two modes the one near the start is found."""
    y = np.random.default_rng(4).normal(size=2000)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3)
        pm.Normal("y", mu**2 - 4, 1.0, observed=y)
    tall = pmb.TallModel(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The posterior seems to have several modes")
        for sign in (-1.0, 1.0):
            reference = pmb.find_reference(data=tall, start={"mu": 1.9 * sign})
            assert abs(reference.flat[0] - 2 * sign) < 0.1
            assert pmb.find_reference(data=tall, start=reference).flat[0] * sign > 1.9
    for start, kind, message in (
        ({"nu": 1.0}, ValueError, r"start names nu, which is not .*\['mu'\]"),
        ({"mu": [1.0, 2.0]}, ValueError, r"mu has shape \(2,\) in start, and \(\) in the model"),
        ({"mu": np.nan}, ValueError, "start must be finite"),
        ("mode", TypeError, "start must be a dict of values by name, or a Reference"),
    ):
        with pytest.raises(kind, match=message):
            pmb.find_reference(data=tall, start=start)
    other = pmb.TallModel(logistic_model())
    with pytest.raises(ValueError, match="reference is of another model"):
        pmb.find_reference(data=other, start=reference)


def test_discrete_variables_that_rows_read():
    y = np.random.default_rng(5).normal(size=500)
    with pm.Model() as model:
        switch = pm.Bernoulli("switch", 0.5)
        mu = pm.Normal("mu")
        pm.Normal("y", mu + 0.1 * switch, 1.0, observed=y)
    with pytest.warns(UserWarning, match=r"discrete variables \['switch'\].*control_variate=0"):
        pmb.MinibatchMH(["mu"], model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pmb.MinibatchMH(["mu"], model=model, control_variate=0)
    with pytest.raises(ValueError, match=r"\['switch'\] are discrete"):
        pmb.MinibatchMH(["mu"], model=model, control_variate=2)
    with pytest.raises(pmb.NoReferenceError, match=r"the discrete variables \['switch'\]"):
        pmb.find_reference(model)


def test_discrete_variables_that_rows_do_not_read():
    """They are held where the search starts, and the mode is that given them."""
    y = np.random.default_rng(6).normal(3.0, 1.0, 500)
    with pm.Model() as model:
        level = pm.Poisson("level", 4.0)
        mu = pm.Normal("mu", level, 0.1)
        pm.Normal("y", mu, 1.0, observed=y)
    for given in (2, 7):
        reference = pmb.find_reference(model, start={"level": given})
        assert reference.mode["level"] == given
        assert reference.mode["mu"] == pytest.approx((given * 100 + y.sum()) / 600, abs=1e-4)
        at = reference.flat.size - 1 if model.value_vars[-1].name == "mu" else 0
        assert reference.covariance[at, at] == pytest.approx(1 / 600)


class Squared(Op):
    """A square without a derivative, or with a first one only."""

    __props__ = ("times",)

    def __init__(self, times):
        self.times = times

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] ** 2)

    def pullback(self, inputs, outputs, output_gradients):
        if not self.times:
            raise NotImplementedError("no derivative")
        return [2 * output_gradients[0] * pt.sqrt(Squared(0)(inputs[0]))]


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize("where", ["dense", "levels", "prior"])
def test_operations_without_derivatives(where, times):
    """Some have none, or a first one only: in rows by what they read, in others, in the prior."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    square = Squared(times)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        if where == "prior":
            pm.Potential("edge", -pt.sum(square(beta)))
        mean = beta[rng.integers(0, 3, 200)] if where == "levels" else pt.dot(X, beta)
        pm.Normal("y", mean if where == "prior" else square(mean), 1.0, observed=y)
    with pytest.raises(pmb.NoReferenceError, match="cannot be differentiated twice"):
        pmb.find_reference(model)


def test_functions_of_numbers_without_derivatives():
    """A Bessel function has none by its order."""
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        order, scale = pm.Gamma("order", 2, 1), pm.Gamma("scale", 2, 1)
        x = rng.gamma(2.0, 1.0, 200)
        pm.Potential("rows", pt.log(pt.ive(order, scale * x)))
    with pytest.raises(pmb.NoReferenceError, match="cannot be differentiated twice"):
        pmb.find_reference(model)
