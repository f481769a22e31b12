"""Levels that batches let go where their own rows object."""

import math

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_minibatch as pmb
from pymc_minibatch.latent import weight_check as weight_check_module
from pymc_minibatch.latent.minibatch import MinibatchSampler
from pymc_minibatch.latent.weight_check import farthest

N_GROUPS, N_ROWS = 60, 20_000


def model() -> pm.Model:
    """Logistic regression with groups of 4 to some 1,900 rows in a factor, crossed with another."""
    rng = np.random.default_rng(8)
    share = np.geomspace(1, 400, N_GROUPS)
    group, other = rng.choice(N_GROUPS, N_ROWS, p=share / share.sum()), rng.integers(0, 50, N_ROWS)
    log_odds = rng.normal(0, 0.7, N_GROUPS)[group] + rng.normal(0, 0.4, 50)[other]
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd", 1), shape=N_GROUPS)
        crossed = pm.Normal("crossed", 0, pm.HalfNormal("sd_crossed", 1), shape=50)
        y = rng.random(N_ROWS) < expit(log_odds)
        pm.Bernoulli("y", logit_p=effect[group] + crossed[other], observed=y)
    return model


@pytest.fixture(scope="module")
def step() -> pmb.MinibatchMH:
    """A step that decides by batches, whatever that costs."""
    with model():
        return pmb.MinibatchMH(acceptance=pmb.Penalty())


@pytest.fixture
def sampler(step: pmb.MinibatchMH) -> MinibatchSampler:
    """What draws."""
    assert isinstance(step.latent, MinibatchSampler)
    return step.latent


def drawn(sampler: MinibatchSampler, n_scans: int, seed: int) -> np.ndarray:
    """Move a point from near the mode."""
    rng, state = np.random.default_rng(seed), sampler.initial_state()
    point = sampler.near_mode(rng, sampler.tall.start).copy()
    sampler.draw(rng, point, n_scans, True, state)
    return point


def test_draws_raise_no_alarm(sampler: MinibatchSampler) -> None:
    """With r what rows add from where a level is expected to where it is, e^(-r) averages one."""
    weight_check, gains = sampler.weight_check, []
    rng, state = np.random.default_rng(3), sampler.initial_state()
    point = drawn(sampler, 50, 1)
    for _ in range(40):
        sampler.draw(rng, point, 2, False, state)
        inside = sampler.coordinates.from_model(point)
        assert weight_check.look(inside) is None
        predictor = weight_check.surrogate.read(inside)
        for levels, table in zip(sampler.field.levels, weight_check.tables, strict=True):
            expected, _ = weight_check.expected(inside, predictor, levels)
            every = np.arange(levels.latent.shape[0])
            gains.append(weight_check.gains((expected, predictor), levels, table, every))
    ratios = np.exp(-np.concatenate(gains))
    assert 0.8 < ratios.mean() < 1.2
    assert ratios.max() < math.exp(weight_check_module.IMPOSSIBLE / 4)


@pytest.mark.parametrize(
    ("name", "element", "move"),
    [("effect", 2, -10.0), ("effect", 52, -5.0), ("crossed", 22, 4.0)],
    ids=["three rows", "a thousand rows", "another factor"],
)
def test_a_level_where_it_cannot_be(
    name: str, element: int, move: float, step: pmb.MinibatchMH, sampler: MinibatchSampler
) -> None:
    """Where a polynomial thinks that it can be, it is named, and once."""
    point = drawn(sampler, 50, 2)
    away = point.copy()
    away[step.tall.layout.slices[name].start + element] += move
    step.setup_chain(np.random.default_rng(0), 1, 0)
    step.n_draws = weight_check_module.LOOK_EVERY
    assert step.warning_of_a_level(point) is None
    warning = step.warning_of_a_level(away)
    assert warning is not None
    assert warning.startswith(
        f"{name}[{element}] has moved to a value that its own rows contradict"
    )
    assert step.warning_of_a_level(away) is None


def test_gains_are_what_rows_say(sampler: MinibatchSampler) -> None:
    """The log-likelihood of the rows of a level, less what the surrogate says of them."""
    point = sampler.coordinates.from_model(drawn(sampler, 30, 4))
    surrogate, weight_check = sampler.reference.surrogate, sampler.weight_check
    levels, table = surrogate.field.levels[0], weight_check.tables[0]
    predictor = surrogate.read(point)
    predictors = weight_check.expected(point, predictor, levels)[0], predictor
    some = np.array([40, 3, 21])
    gains = weight_check.gains(predictors, levels, table, some)
    guess = surrogate.change_of_levels(predictors, levels)
    given, expected = surrogate.conditional(point[surrogate.field.hyper]), point.copy()
    expected[levels.latent] = surrogate.given_others(given, point, predictor, levels)[0]
    layout, to_model = sampler.tall.layout, sampler.coordinates.to_model
    for g, gain in zip(some, gains, strict=True):
        own = table.rows[table.starts[g] : table.starts[g + 1]]
        there, here = (
            sampler.tall.row_logp(layout.unflatten(to_model(each)), own).sum()
            for each in (expected, point)
        )
        assert gain == pytest.approx(here - there - guess[g], abs=1e-6)


def test_the_farthest_are_looked_at(
    sampler: MinibatchSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are far out, so many that their rows are not too many, but one at least."""
    table = sampler.weight_check.tables[0]
    sizes, distances = np.diff(table.starts), np.zeros(N_GROUPS)
    assert farthest(distances, table).size == 0
    distances[[5, 30, 59]] = 5.0, 7.0, 6.0
    assert list(farthest(distances, table)) == [30, 59, 5]
    monkeypatch.setattr(weight_check_module, "MOST_ROWS", int(sizes[30] + sizes[59]))
    assert list(farthest(distances, table)) == [30, 59]
    monkeypatch.setattr(weight_check_module, "MOST_ROWS", 1)
    assert list(farthest(distances, table)) == [30]


def test_where_all_rows_decide_nothing_is_overlooked() -> None:
    """Few rows for each group: all of them are read at each decision."""
    with model():
        step = pmb.FlyMC()
    assert step.latent is not None
    assert step.latent.contradicted(step.tall.start) is None
