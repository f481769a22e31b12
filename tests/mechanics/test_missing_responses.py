"""Missing values of responses are drawn given all else, and tell nothing about it."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import pymc_minibatch as pmb
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.missing_responses import (
    MissingResponses,
    completed_sizes,
    missing_responses,
    without_missing_responses,
)

N, G = 3000, 8
RNG = np.random.default_rng(20261130)
GROUP = RNG.integers(0, G, N)
X = RNG.normal(50.0, 10.0, N)
IS_MISSING = RNG.random(N) < 0.1
Z = 3.9  # of one number: once in 10⁴ runs

pytestmark = pytest.mark.filterwarnings("ignore:Data in .* contains missing values")


def masked(values: np.ndarray) -> np.ma.MaskedArray:
    """Mask values as PyMC takes missing ones."""
    return np.ma.masked_array(values, IS_MISSING)


def grouped(likelihood: Callable[..., Any]) -> pm.Model:
    """Return rows of groups with a predictor in units of its own."""
    with pm.Model(coords={"group": range(G)}) as model:
        effect = pm.Normal("effect", 0.0, pm.HalfNormal("sd"), dims="group")
        eta = pm.Normal("intercept") + effect[GROUP] + pm.Normal("slope", 0, 0.1) * (X - 50.0)
        likelihood(eta)
    return model


def counts(eta: Any) -> None:
    """Observe counts."""
    pm.Poisson("y", pm.math.exp(eta), observed=masked(RNG.poisson(2.0, N)))


def amounts(eta: Any) -> None:
    """Observe positive amounts, whose missing values are free on another scale."""
    y = masked(RNG.gamma(3.0, 1.0, N))
    pm.Gamma("y", alpha=3.0, beta=3.0 * pm.math.exp(-eta), observed=y)


@pytest.mark.parametrize("likelihood", [counts, amounts])
def test_the_other_variables_have_the_density_of_the_model_without_them(likelihood) -> None:
    model = grouped(likelihood)
    tall = TallModel(model)
    assert tall.n_rows == (~IS_MISSING).sum()
    assert "y_unobserved" not in " ".join(tall.layout.names)
    point = tall.layout.unflatten(tall.start + 0.1 * RNG.normal(size=tall.start.size))
    observed = [rv for rv in model.basic_RVs if rv not in missing_responses(model)]
    expected = model.compile_logp(vars=observed)({**model.initial_point(), **point})
    assert tall.logp(point) == pytest.approx(float(expected), rel=1e-10)
    assert tall.structure is not None


@pytest.mark.parametrize("likelihood", [counts, amounts])
def test_draws_have_the_density_of_the_missing_rows(likelihood) -> None:
    model = grouped(likelihood)
    draw, point, rng = MissingResponses(model), model.initial_point(), np.random.default_rng(1)
    point["slope"], point["intercept"] = np.array(0.03), np.array(0.4)
    eta = 0.4 + point["effect"][GROUP] + 0.03 * (X - 50.0)
    [name] = draw.names
    found = np.array([draw(rng, point)[name] for _ in range(400)])
    assert found.dtype == model.initial_point()[name].dtype
    assert found.shape[1:] == model.initial_point()[name].shape
    if likelihood is counts:
        mean, sd = np.exp(eta), np.exp(0.5 * eta)
    else:
        found, mean, sd = np.exp(found), np.exp(eta), np.exp(eta) / np.sqrt(3.0)
    away = (found - mean[IS_MISSING]) / sd[IS_MISSING]
    squares = np.sqrt(len(found)) * away.mean(axis=0).ravel()
    assert stats.kstest(squares, "norm").pvalue > 1e-4
    assert abs(away.mean()) < Z * away.std() / np.sqrt(away.size)
    assert away.var() == pytest.approx(1.0, abs=0.03)


def test_posterior_is_that_of_the_rows_that_were_seen() -> None:
    y = masked(RNG.normal(1.0, 2.0, N))
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", 0.0, 10.0), 2.0, observed=y)
        idata = pm.sample(
            2000,
            tune=200,
            chains=2,
            cores=1,
            step=pmb.MinibatchMH(),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    mu, missing = idata.posterior["mu"].values, idata.posterior["y_unobserved"].values
    precision = 1 / 100.0 + (~IS_MISSING).sum() / 4.0
    mean, sd = y.compressed().sum() / 4.0 / precision, precision**-0.5
    error = pm.stats.mcse(idata.posterior.to_dataset(), var_names=["mu"])["mu"].item()
    assert abs(mu.mean() - mean) < Z * error
    assert mu.std() == pytest.approx(sd, rel=0.1)
    away = missing - mu[..., None]
    assert abs(away.mean()) < Z * 2.0 / np.sqrt(away.size)
    assert away.std() == pytest.approx(2.0, rel=0.01)
    # Without their share in it they would not vary with mu: cov(y, mu) is the variance of mu.
    together = np.cov(missing.mean(axis=-1).ravel(), mu.ravel())
    assert together[0, 1] == pytest.approx(mu.var(), rel=0.3)
    whole = idata.posterior["y"].values
    assert_array_equal(whole[..., IS_MISSING], missing)
    assert_array_equal(whole[0, 7, ~IS_MISSING], y.compressed())


def test_results_and_approximations_take_models_with_them() -> None:
    model = grouped(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pmb.sample(
            model, 60, tune=60, chains=1, method="minibatch", random_seed=1, progressbar=False
        )
        again = pmb.sample(
            model, 60, tune=60, chains=1, method="minibatch", random_seed=1, progressbar=False
        )
        approximation = pmb.approximate(model, draws=50, random_seed=1)
    assert_array_equal(idata.posterior["y_unobserved"], again.posterior["y_unobserved"])
    assert "y_unobserved" not in approximation.posterior
    assert_allclose(
        approximation.posterior["slope"].mean(), idata.posterior["slope"].mean(), atol=0.01
    )
    assert "y_unobserved" not in pmb.check(model).updates
    with model:
        loo = pmb.loo(idata)
    assert loo.n_data_points == (~IS_MISSING).sum()


def test_a_step_of_some_variables_draws_them_too() -> None:
    with grouped(counts) as model:
        step = pmb.MinibatchMH(["slope", "y_unobserved"])
    assert [var.name for var in step.vars] == ["slope", "y_unobserved"]
    assert step.var_names == ["slope"]
    step.setup_chain(np.random.default_rng(1), 0, 2)
    start = model.initial_point()
    point, _ = step.step(start)
    assert (point["y_unobserved"] != start["y_unobserved"]).any()
    assert_array_equal(point["effect"], start["effect"])


def test_variables_that_others_read_are_not_missing_responses() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), 1.0, observed=masked(X))
        pm.Normal("y", pm.Normal("b") * x, 1.0, observed=X)
    assert missing_responses(model) == []
    assert without_missing_responses(model) is model
    assert completed_sizes(model) == {}


def test_whole_responses_count_as_values_of_rows() -> None:
    model = grouped(counts)
    assert completed_sizes(model) == {"y": N}
    with pytest.warns(UserWarning, match=re.escape("['y'] have one value for each")):
        pmb.MinibatchMH(model=model)
