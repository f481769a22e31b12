"""Models that say the same in other words are sampled in the same way."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.tall import TallModel

N, G = 1500, 40
RNG = np.random.default_rng(21)
GROUP, X, Y = RNG.integers(0, G, N), RNG.normal(size=N), RNG.integers(0, 2, N)
SEEN = RNG.random(N) < 0.6

SPELLINGS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "product": lambda sd, z, b: sd * z[GROUP] + b * X,
    "divided at the end": lambda sd, z, b: sd * z[GROUP] / 3 + b * X / 10,
    "scale divided": lambda sd, z, b: (sd / 3) * z[GROUP] + b * (X / 10),
    "number first": lambda sd, z, b: 2 * sd * z[GROUP] + 100 * (3 * b) * X,
    "number last": lambda sd, z, b: sd * z[GROUP] * 0.3 + b * X * 7,
    "function of the scale": lambda sd, z, b: pt.sqrt(sd) * z[GROUP] * 0.5 + b * X,
    "all divided": lambda sd, z, b: (sd * z[GROUP] + b * X) / 7,
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("as_potential", [False, True])
def test_products_with_numbers(spelling: Callable[..., Any], as_potential: bool) -> None:
    """Rows read one effect of a factor and a coefficient, wherever numbers stand."""
    with pm.Model() as model:
        sd, z, b = pm.HalfNormal("sd"), pm.Normal("z", shape=G), pm.Normal("b")
        eta = spelling(sd, z, b)
        if as_potential:
            pm.Potential("y", pm.logp(pm.Bernoulli.dist(logit_p=eta), Y).sum())
        else:
            pm.Bernoulli("y", logit_p=eta, observed=Y)
    structure = TallModel(model).structure
    assert structure is not None
    assert len(structure.terms) == 2
    [effect] = [term for term in structure.terms if term.index is not None]
    assert effect.block.stop - effect.block.start == G


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_taken_from_one_of_two_effects(axis: int) -> None:
    """``u[0, group][seen]`` has effects of groups, not of rows."""
    with pm.Model() as model:
        u = pm.Normal("u", shape=(2, G) if axis else (G, 2))
        one, other = (u[k, GROUP] if axis else u[GROUP, k] for k in range(2))
        amount = (pm.Normal("a") + one + other * X)[SEEN]
        pm.Normal("y", amount, pm.HalfNormal("sigma"), observed=RNG.normal(size=SEEN.sum()))
    tall = TallModel(model)
    assert tall.n_rows == SEEN.sum()
    [levels] = locate(tall, 1.0).reference.surrogate.field.levels
    assert levels.latent.shape == (G, 2)


def test_loops_over_what_a_row_has() -> None:
    """Rows add the terms of a loop up, as likelihoods of histories do."""
    seen = RNG.integers(0, 2, (5, N)).astype(float)
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        effect = pm.Normal("z", shape=G)[GROUP]

        def one(seen: Any, total: Any, effect: Any, p: Any) -> Any:
            chance = pm.math.sigmoid(pm.math.logit(p) + effect)
            return total + seen * pt.log(chance) + (1.0 - seen) * pt.log1p(-chance)

        total = pytensor.scan(
            one,
            sequences=[pt.constant(seen)],
            outputs_info=[pt.zeros(N)],
            non_sequences=[effect, p],
            return_updates=False,
        )
        pm.Potential("histories", total[-1].sum())
    tall, rng = TallModel(model), np.random.default_rng(22)
    assert tall.n_rows == N
    point = tall.layout.unflatten(tall.start + 0.1 * rng.normal(size=tall.start.size))
    of_model = model.compile_logp(vars=model.potentials)(point)
    assert tall.row_logp(point, np.arange(N)).sum() == pytest.approx(float(of_model), rel=1e-10)


def with_missing_covariate(n_values: int, *, is_read: bool = True) -> pm.Model:
    """Return rows of groups that read a covariate of which PyMC imputes three values."""
    values = RNG.normal(size=n_values)
    values[[1, 2, 5]] = np.nan
    with pm.Model() as model:
        with pytest.warns(Warning, match="missing values"):
            x = pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("sd_x"), observed=values)
        eta = pm.HalfNormal("sd") * pm.Normal("z", shape=G)[GROUP]
        if is_read:
            eta = eta + pm.Normal("b") * (x[GROUP] if n_values == G else x)
        pm.Bernoulli("y", logit_p=eta, observed=Y)
    return model


@pytest.mark.parametrize("n_values", [G, N])
def test_missing_values_of_covariates_are_variables_like_others(n_values: int) -> None:
    model = with_missing_covariate(n_values)
    tall, rng = TallModel(model), np.random.default_rng(3)
    assert tall.n_rows == N
    assert "x_unobserved" in tall.layout.names
    point = tall.layout.unflatten(tall.start + 0.3 * rng.normal(size=tall.start.size))
    assert tall.logp(point) == pytest.approx(float(model.compile_logp()(point)), rel=1e-10)
    assert tall.structure is not None


def test_missing_values_that_no_row_reads_are_no_variables() -> None:
    model = with_missing_covariate(N, is_read=False)
    tall, rng = TallModel(model), np.random.default_rng(3)
    assert "x_unobserved" not in tall.layout.names
    point = tall.layout.unflatten(tall.start + 0.3 * rng.normal(size=tall.start.size))
    seen = [rv for rv in model.basic_RVs if rv.name != "x_unobserved"]
    expected = model.compile_logp(vars=seen)({**model.initial_point(), **point})
    assert tall.logp(point) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("end", [1e3, 1e6])
def test_intervals_that_never_end(end: float) -> None:
    """A large number for an end that is not known makes no derivative infinite."""
    rng = np.random.default_rng(2)
    begin = np.floor(10 * rng.weibull(1.5, N) / 3) * 3 + 0.1
    ends = np.where(begin > 20, end, begin + 3)
    with pm.Model() as model:
        shape, mean = pm.Gamma("shape", 4, 2), pm.Normal("mean", 2, 1)
        scale = pt.exp(mean + pm.HalfNormal("sd") * pm.Normal("z", shape=G))[GROUP]
        first, last = (begin / scale) ** shape, (ends / scale) ** shape
        pm.Potential("seen", -first + pt.log1mexp(-(last - first)))
    [levels] = locate(TallModel(model), 1.0).reference.surrogate.field.levels
    assert levels.latent.size == G


@pytest.mark.parametrize("as_data", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_several_levels_of_one_factor(as_data: bool, weighted: bool) -> None:
    """Rows that gather by a matrix of codes read one number, of a level for each column."""
    rng = np.random.default_rng(4)
    members, weights = rng.integers(0, G, (N, 3)), rng.dirichlet([1, 1, 1], N)
    with pm.Model() as model:
        codes = pm.Data("codes", members) if as_data else members
        u = pm.Normal("u", 0, pm.HalfNormal("sd"), shape=G)
        total = (weights * u[codes]).sum(axis=1) if weighted else u[codes].mean(axis=1)
        pm.Normal("y", pm.Normal("mu") + total, 1.0, observed=X)
    structure = TallModel(model).structure
    assert structure is not None
    assert len(structure.predictors) == 1
    assert sum(term.index is not None for term in structure.terms) == 3


@pytest.mark.parametrize("has_effects", [False, True])
def test_products_along_a_named_axis(has_effects: bool) -> None:
    """Stages of ordered answers: the last one is a product, of a length that dims determine."""
    answers = np.random.default_rng(5).integers(0, 3, N)
    with pm.Model(coords={"stage": range(2)}) as model:
        bounds, eta = pm.Normal("bounds", dims="stage"), pm.Normal("b") * X
        if has_effects:
            eta = eta + pm.Normal("u", 0, pm.HalfNormal("sd"), shape=G)[GROUP]
        q = pm.math.sigmoid(bounds - eta[:, None])
        p = pt.stack([q[:, 0], (1 - q[:, 0]) * q[:, 1], pt.prod(1 - q, axis=-1)], axis=1)
        pm.Categorical("y", p=p, observed=answers)
    step = pmb.MinibatchMH(model=model)
    assert (step.latent is not None) is has_effects
