"""Points that a model makes impossible: probes are replaced, and starts give way."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.kernels.rows import subtract

N = 3000


def gamma_rows(start: float | None = None, n: int = N) -> pm.Model:
    """A gamma regression with reciprocal link: a negative mean raises an error."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    y = rng.gamma(3.0, np.exp(0.5 + 0.2 * x) / 3.0)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2.5, shape=2, initval=None if start is None else [start, 0.0])
        alpha = pm.Exponential("alpha", 1)
        mean = 1 / (b[0] + b[1] * x)
        pm.Gamma("y", alpha=alpha, beta=alpha / mean, observed=y)
    return model


@pytest.mark.parametrize("start", [None, 0.1])
def test_probes_and_starts_that_are_impossible_are_replaced(start):
    model = gamma_rows(start)
    tall = pmb.TallModel(model)
    point = tall.layout.unflatten(tall.start)
    assert point["b"][0] > 0
    if start is not None:
        np.testing.assert_array_equal(point["b"], [start, 0.0])
    rows = tall.row_logp(point, np.arange(N))
    assert np.isfinite(rows).all()
    assert tall.logp(point) == pytest.approx(float(model.compile_logp()(point)))


def test_a_chain_leaves_an_impossible_start():
    model = gamma_rows()
    reference = pmb.find_reference(model)
    step = pmb.MinibatchMH(model=model, reference=reference)
    found = pm.sample(
        draws=200, tune=100, chains=1, step=step, model=model, random_seed=1, progressbar=False
    )
    mode = reference.mode["b"]
    sd = np.sqrt(np.diagonal(reference.covariance)[:2])
    means = found.posterior["b"].values.mean(axis=(0, 1))
    assert (np.abs(means - mode) < sd).all()


def test_a_start_that_was_asked_for_is_refused():
    model = gamma_rows()
    step = pmb.MinibatchMH(model=model, control_variate=0)
    with pytest.raises(ValueError, match="starting point"):
        step.step({**model.initial_point(), "b": np.array([-1.0, 0.0])})


def test_a_model_that_is_possible_nowhere_near_says_so():
    y = np.random.default_rng(1).gamma(3.0, size=N)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Gamma("y", alpha=b - 100.0, beta=1.0, observed=y)
    with pytest.raises(pmb.NotTallError, match="initval"):
        pmb.TallModel(model)


def test_a_density_without_digits_is_impossible():
    """Of a Poisson distribution without 0 nothing is left at a rate of e⁻⁴⁰, in 16 digits."""
    rng = np.random.default_rng(4)
    group = np.arange(240) % 6
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("s"), shape=6)
        rows = pm.Poisson.dist(pm.math.exp(pm.Normal("a") + u[group]))
        pm.Truncated("y", rows, lower=1, observed=np.maximum(rng.poisson(1.0, 240), 1))
    step = pmb.MinibatchMH(model=model)
    point = step.tall.model.initial_point() | {"a": np.array(-40.0)}
    assert step.tall.row_logp(point, np.arange(240)).max() == np.inf
    assert step.model_density(step.tall.layout.flatten(point)) == -np.inf
    surrogate = step.latent.reference.surrogate
    far = np.full(surrogate.phi(surrogate.center).shape, -40.0)
    assert (step.latent.decisions.of_all(far) == -np.inf).all()


def test_log_ratios_of_rows_without_digits():
    log_ratios = np.empty(4)
    proposed, current = np.array([np.inf, np.nan, -np.inf, 2.0]), np.ones(4)
    assert subtract(proposed, current, log_ratios) == -1
    np.testing.assert_array_equal(log_ratios, [-np.inf, -np.inf, -np.inf, 1.0])
