"""Gradients of the rows of a batch against derivatives taken another way."""

import numpy as np
import pymc as pm
import pytest
from models import grouped_model, random_point

from pymc_minibatch import TallModel
from pymc_minibatch.tall.gradients import compile_row_gradients


def softmax_model():
    """Class probabilities from a matrix of coefficients, of which one column is fixed."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 4))
    with pm.Model() as model:
        B = pm.Normal("B", shape=(4, 2))
        eta = pm.math.concatenate([np.zeros((300, 1)), X @ B], axis=1)
        pm.Categorical("y", logit_p=eta, observed=rng.integers(0, 3, 300))
    return model


def counts_model():
    """Overdispersed counts with an exposure and two predictors, one with its own data."""
    rng = np.random.default_rng(5)
    X, exposure = rng.normal(size=(300, 3)).astype("float32"), rng.uniform(0.5, 2, 300)
    with pm.Model(coords={"predictor": ["a", "b", "c"]}) as model:
        data = pm.Data("X", X, dims=("row", "predictor"))
        beta = pm.Normal("beta", dims="predictor")
        shift = pm.Normal("shift")
        phi = pm.Exponential("phi", 1.0)
        mu = exposure * pm.math.exp(pm.math.dot(data, beta) + shift)
        pm.NegativeBinomial("y", mu, phi, observed=rng.poisson(exposure), dims="row")
    return model


def vectors_model():
    """Rows of several entries, through a fixed matrix."""
    rng = np.random.default_rng(6)
    A = rng.normal(size=(3, 2))
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=A @ mu, sigma=1.5, observed=rng.normal(size=(300, 3)))
    return model


def linear_model():
    """A scale that is not known, after a vector of coefficients."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(300, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", X @ beta, sigma, observed=X[:, 0] + rng.normal(size=300))
    return model


MODELS = [grouped_model, softmax_model, counts_model, vectors_model, linear_model]


def differences(function, point, direction, h=1e-4):
    """Differentiate along a direction, with an error of the order of h**4."""
    one, two = (
        function(point + k * h * direction) - function(point - k * h * direction) for k in (1, 2)
    )
    return (8 * one - two) / (12 * h)


@pytest.mark.parametrize("build", MODELS)
def test_against_differences(build):
    model = build()
    tall = TallModel(model)
    rows = np.array([0, 7, 7, 299, 31])
    batch = [np.ascontiguousarray(values[rows]) for values in tall.data]
    point, reference = (
        tall.layout.flatten(random_point(model, seed, spread=0.3)) for seed in (1, 2)
    )

    def row_logp(theta):
        return tall.compiled_row_logp(theta, *batch)

    def gradients(theta, order=0):
        return compiled[order](theta, reference, *batch)

    compiled = [compile_row_gradients(tall, order) for order in (0, 1, 2)]
    expected = [differences(row_logp, point, e) for e in np.eye(point.size)]
    plain = gradients(point)
    assert plain.shape == (5, tall.layout.size)
    np.testing.assert_allclose(plain, np.transpose(expected), rtol=1e-7, atol=1e-9)

    first = plain - gradients(reference)
    np.testing.assert_allclose(gradients(point, 1), first, rtol=1e-9, atol=1e-11)

    second = first - differences(gradients, reference, point - reference)
    np.testing.assert_allclose(gradients(point, 2), second, rtol=1e-6, atol=1e-8)
    assert abs(second).max() > 1e-3
