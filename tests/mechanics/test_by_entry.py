"""Matrices of observations whose entries are the rows, as persons and items have effects."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb

PERSONS, ITEMS = 60, 7


def _items(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    ability = pm.Normal("ability", shape=shape[0])
    log_slope, level = pm.Normal("log_slope", shape=shape[1]), pm.Normal("level", shape=shape[1])
    school = rng.integers(0, 5, shape[0])
    of_school = pm.Normal("of_school", shape=5)
    slope = pt.exp(log_slope)[None, :]
    eta = slope * (ability[:, None] - level[None, :]) + of_school[school][:, None]
    pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, shape))


def _dates(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    y = rng.normal(size=(shape[0], shape[1] + 1))
    rho, sd = pm.Uniform("rho", -1, 1), pm.HalfNormal("sd")
    effect = pm.Normal("effect", 0, sd, shape=shape[0])
    noise = pm.HalfNormal("noise", shape=shape[1])
    pm.Normal("y", rho * y[:, :-1] + effect[:, None], noise, observed=y[:, 1:])


def _scores(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    loading = pm.Normal("loading", shape=(shape[1], 2))
    score = pm.Normal("score", shape=(shape[0], 2))
    x, beta = rng.normal(size=(*shape, 3)), pm.Normal("beta", shape=3)
    mean = pt.dot(score, loading.T) + (x * beta).sum(axis=-1)
    pm.Normal("y", mean, 1.0, observed=pm.Data("data", rng.normal(size=shape)))


def _codes(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    person, kind = pm.Normal("person", shape=shape[0]), pm.Normal("kind", shape=4)
    codes = rng.integers(0, 4, shape)
    pm.Poisson("y", pt.exp(person[:, None] + kind[codes]), observed=rng.poisson(2, shape))


@pytest.mark.parametrize("build", [_items, _dates, _scores, _codes])
@pytest.mark.parametrize("shape", [(PERSONS, ITEMS), (ITEMS, PERSONS)])
def test_entries_are_rows(build: Callable[..., None], shape: tuple[int, int]) -> None:
    with pm.Model() as model:
        build(np.random.default_rng(1), shape)
        tall = pmb.TallModel()
    if tall.n_rows == max(shape):  # those of the longer axis are independent
        assert shape == (ITEMS, PERSONS)
        return
    assert tall.n_rows == PERSONS * ITEMS
    point = tall.start + np.random.default_rng(2).normal(0, 0.3, tall.start.size)
    found = tall.row_logp(tall.layout.unflatten(point), np.arange(tall.n_rows))
    [whole] = model.logp(vars=model.observed_RVs, sum=False)
    evaluate = model.compile_fn(whole, inputs=model.value_vars, on_unused_input="ignore")
    expected = evaluate(tall.layout.unflatten(point))
    np.testing.assert_allclose(found, np.asarray(expected).ravel(), rtol=1e-10)
    assert tall.structure is not None


def test_no_entries_where_columns_act_together() -> None:
    """A row is a choice of one column."""
    rng = np.random.default_rng(1)
    with pm.Model():
        effect = pm.Normal("effect", shape=PERSONS)
        shares: Any = pm.math.softmax(effect[:, None] * rng.normal(size=(PERSONS, ITEMS)), axis=-1)
        pm.Multinomial("y", 5, shares, observed=rng.multinomial(5, np.ones(ITEMS) / ITEMS, PERSONS))
        assert pmb.TallModel().n_rows == PERSONS


def test_effects_of_persons_are_moved_as_a_factor() -> None:
    rng = np.random.default_rng(3)
    y = rng.normal(size=(300, 8)) + rng.normal(size=(300, 1))
    with pm.Model():
        sd, mean = pm.HalfNormal("sd"), pm.Normal("mean")
        effect = pm.Normal("effect", mean, sd, shape=300)
        pm.Normal("y", effect[:, None], 1.0, observed=y)
        step = pmb.MinibatchMH()
        draws = pm.sample(
            300, tune=300, chains=2, cores=1, step=step, random_seed=1, progressbar=False
        )
    assert step.latent is not None
    within, between = y.var(axis=1, ddof=1).mean(), y.mean(axis=1).var(ddof=1)
    assert within == pytest.approx(1.0, abs=0.2)
    sds = draws.posterior["sd"].values
    assert sds.mean() == pytest.approx(np.sqrt(between - 1 / 8), abs=6 * sds.std())
    assert sds.std() < 0.1


def _lifetimes(n_intervals: int) -> pm.Model:
    """Count deaths of persons by intervals: a row reads the hazards of all intervals."""
    rng = np.random.default_rng(7)
    n = 300
    x, begins = rng.normal(size=n), np.arange(n_intervals)
    ends = np.minimum(rng.exponential(8 * np.exp(-0.3 * x)), n_intervals)
    exposure = np.clip(ends[:, None] - begins, 0, 1)
    died = (ends[:, None] > begins) & (ends[:, None] <= begins + 1)
    with pm.Model() as model:
        hazard = pm.Gamma("hazard", 1, 1, shape=n_intervals)
        of_person = pm.Deterministic("of_person", pt.exp(pm.Normal("b") * x))
        mean = exposure * pt.outer(of_person, hazard) + 1e-12
        pm.Poisson("died", mean, observed=died.astype(int))
    return model


@pytest.mark.parametrize(("n_intervals", "n_rows"), [(5, 300), (20, 6000)])
def test_rows_that_read_too_many_numbers_are_split_into_entries(
    n_intervals: int, n_rows: int
) -> None:
    model = _lifetimes(n_intervals)
    tall = pmb.TallModel(model)
    assert tall.n_rows == n_rows
    assert tall.structure is not None
    density, point = model.compile_logp(), model.initial_point()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        point = {name: value + rng.normal(size=value.shape) for name, value in point.items()}
        own = float(tall.prior_logp(point) + tall.row_logp(point, np.arange(n_rows)).sum())
        np.testing.assert_allclose(own, density(point), rtol=1e-10)


def test_wide_rows_of_few_numbers_stay_rows() -> None:
    """Rows of 20 columns that read one number, and some whose columns act together."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=200), rng.normal(size=(200, 20))
    with pm.Model() as alike:
        pm.Normal("y", (pm.Normal("b") * x)[:, None], 1.0, observed=y)
    with pm.Model() as together:
        pm.MvNormal("y", pm.Normal("m", shape=20), np.eye(20), observed=y)
    for model in (alike, together):
        tall = pmb.TallModel(model)
        assert tall.n_rows == 200
        assert float(tall.row_logp(model.initial_point(), [0])[0]) < 0
