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


ONE_BY_ONE: dict[str, Callable[[Any], Any]] = {
    "Bernoulli": lambda eta: pm.Bernoulli.dist(logit_p=eta),
    "Beta": lambda eta: pm.Beta.dist(2.0 + eta**2, 3.0),
    "BetaBinomial": lambda eta: pm.BetaBinomial.dist(n=9, alpha=2.0, beta=1.0 + eta**2),
    "Binomial": lambda eta: pm.Binomial.dist(n=9, logit_p=eta),
    "Exponential": lambda eta: pm.Exponential.dist(pm.math.exp(eta)),
    "LogNormal": lambda eta: pm.LogNormal.dist(eta, 0.5),
    "NegativeBinomial": lambda eta: pm.NegativeBinomial.dist(mu=pm.math.exp(eta), alpha=3.0),
    "Pareto": lambda eta: pm.Pareto.dist(2.0 + eta**2, 1.0),
    "StudentT": lambda eta: pm.StudentT.dist(nu=4, mu=eta, sigma=2.0),
    "Triangular": lambda eta: pm.Triangular.dist(lower=-1.0, c=0.5 + 0 * eta, upper=2.0),
    "TruncatedNormal": lambda eta: pm.TruncatedNormal.dist(eta, 1.0, lower=0.0, upper=4.0),
    "Uniform": lambda eta: pm.Uniform.dist(-1.0 - eta**2, 1.0),
    "VonMises": lambda eta: pm.VonMises.dist(eta, 2.0),
    "Wald": lambda eta: pm.Wald.dist(pm.math.exp(eta), 2.0),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_draws_are_possible_values_of_a_point(name: str) -> None:
    eta = np.linspace(-1.0, 1.0, 40)
    values = np.asarray(pm.draw(ONE_BY_ONE[name](eta), random_seed=1))
    y = np.ma.masked_array(values, np.arange(40) % 4 == 0)
    with pm.Model() as model:
        at = eta + pm.Normal("b")
        row = ONE_BY_ONE[name](at)
        model.register_rv(row, "y", observed=y)
    [response] = missing_responses(model)
    draw, point = MissingResponses(model), {**model.initial_point(), "b": np.array(0.1)}
    logp = model.compile_logp(vars=[response])
    for seed in range(20):
        found = draw(np.random.default_rng(seed), point)
        assert np.isfinite(logp({**point, **found}))


def test_densities_of_unknown_integral_are_refused() -> None:
    def logp(value: Any, mu: Any) -> Any:
        return -((value - mu) ** 2)

    y = masked(X)
    with pm.Model() as own:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=y)
    with pm.Model() as flat:
        pm.Flat("y", observed=y)
        pm.Normal("z", pm.Normal("mu"), 1.0, observed=X)
    for model in (own, flat):
        assert missing_responses(model) == []
        with pytest.raises(pmb.NotTallError, match=r"y has .* missing values"):
            pmb.MinibatchMH(model=model)


def test_parameters_out_of_range_at_a_missing_row_are_an_error() -> None:
    x, is_missing = np.append(-40.0, np.ones(500)), np.arange(501) == 0
    y = np.ma.masked_array(RNG.normal(0.0, 1.5, 501), is_missing)
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1 + pm.Normal("b") * x, observed=y)
    draw, point = MissingResponses(model), model.initial_point()
    with pytest.raises(pm.exceptions.SamplingError, match="y_unobserved cannot be drawn"):
        draw(np.random.default_rng(1), {**point, "b": np.array(0.5)})


def test_models_of_many_rows_are_sampled_by_minibatches() -> None:
    n = 12_000
    x, rng = RNG.normal(size=n), np.random.default_rng(5)
    y = np.ma.masked_array(rng.normal(0.5 * x), rng.random(n) < 0.05)
    with pm.Model() as model:
        data = pm.Data("x", x)
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * data, 1.0, observed=y)
    tall = TallModel(model)
    assert tall.given_model is model
    step = pmb.MinibatchMH(data=tall, model=model)
    assert step.tall is tall
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pmb.sample(
            model, 30, tune=30, chains=1, fallback="error", random_seed=1, progressbar=False
        )
        approximation = pmb.approximate(model, draws=20, random_seed=1)
        assert pmb.MinibatchMH(start=approximation, model=model).n_rows == tall.n_rows
    assert "n_likelihood" in idata.sample_stats
    with pytest.raises(ValueError, match="store is for models without missing values"):
        pmb.sample(model, 10, method="minibatch", store="nowhere")
    with model:
        pm.set_data({"x": x[::-1].copy()})
    step.setup_chain(np.random.default_rng(1), 0, 1)
    start = model.initial_point()
    assert (step.step(start)[0]["y_unobserved"] != start["y_unobserved"]).all()


def test_other_data_must_be_complete() -> None:
    with pytest.raises(pmb.NotTallError, match=r"y has .* missing values"):
        TallModel(grouped(counts), data={"y_observed": np.ones(5)})


def test_an_interrupted_draw_of_them_is_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    with grouped(counts) as model:
        step = pmb.MinibatchMH()
    step.setup_chain(np.random.default_rng(1), 0, 2)
    start, before = model.initial_point(), step.rng.bit_generator.state

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MissingResponses, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            step.step(start)
    assert step.rng.bit_generator.state == before
    assert step.n_draws == 0


def test_steps_have_other_variables_to_move() -> None:
    with pytest.raises(ValueError, match="stands for missing values of a response"):
        pmb.MinibatchMH(["y_unobserved"], model=grouped(counts))


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
