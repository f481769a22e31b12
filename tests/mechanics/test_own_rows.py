"""Levels that step by their own density, from their prior and all of their rows."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy.stats import kstest, multivariate_t

from pymc_minibatch.acceptance import Penalty
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.level_steps import DEGREES, LevelSteps, OwnRowMoves, draw_steps, log_t
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.minibatch import MinibatchSampler
from pymc_minibatch.latent.moves.slow_levels import SlowLevels
from pymc_minibatch.latent.own_rows import Elsewhere, rows_of_levels
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.whole import WholeSampler
from pymc_minibatch.tall import TallModel

N, G, H = 600, 40, 7
TEMPERATURE = 2.0


def slopes_model(prior: str = "normal") -> pm.Model:
    """Levels with slopes beside a crossed factor, rows of Student's t with outliers."""
    rng = np.random.default_rng(1)
    g, h, x = rng.integers(0, G, N), rng.integers(0, H, N), rng.normal(size=N)
    y = rng.normal(size=G)[g] + 0.5 * x + 0.3 * rng.standard_t(2, N)
    with pm.Model() as model:
        sd, other = pm.HalfNormal("sd", shape=2), pm.HalfNormal("other")
        if prior == "normal":
            level = pm.Normal("level", pm.Normal("mu"), sd[0], shape=G)
        else:
            level = pm.StudentT("level", nu=3, mu=pm.Normal("mu"), sigma=sd[0], shape=G)
        slope = sd[1] * pm.Normal("slope", shape=G)
        eta = level[g] + slope[g] * x + pm.Normal("area", 0, other, shape=H)[h]
        pm.StudentT("y", nu=3, mu=eta, sigma=pm.HalfNormal("s"), observed=y)
    return model


@pytest.fixture(scope="module", params=["whole", "batches", "whole, heavy"])
def sampler(request: pytest.FixtureRequest) -> LatentSampler:
    tall = TallModel(slopes_model("heavy" if "heavy" in request.param else "normal"))
    place = locate(tall, TEMPERATURE)
    if "whole" in request.param:
        return WholeSampler(tall, place, TEMPERATURE)
    return MinibatchSampler(tall, place, Penalty(), TEMPERATURE, by_size=True)


def density_of(sampler: LatentSampler) -> Callable[[np.ndarray], float]:
    """Make the log density of the model, tempered."""
    model = sampler.tall.model
    parts = [model.logp(vars=part, sum=True) for part in (model.free_RVs, model.observed_RVs)]
    evaluate = model.compile_fn(parts, inputs=model.value_vars, mode="FAST_COMPILE")

    def log_density(point: np.ndarray) -> float:
        prior, of_rows = evaluate(
            sampler.tall.layout.unflatten(sampler.coordinates.to_model(point))
        )
        return float(prior + of_rows / TEMPERATURE)

    return log_density


def test_rows_of_some_levels() -> None:
    rows, starts = np.array([4, 0, 2, 5, 1, 3]), np.array([0, 2, 2, 5, 6])
    numbers, level = rows_of_levels(rows, starts, np.array([2, 1, 0]))
    np.testing.assert_array_equal(numbers, [2, 5, 1, 4, 0])
    np.testing.assert_array_equal(level, [0, 0, 0, 2, 2])


def test_changes_are_those_of_the_model(sampler: LatentSampler) -> None:
    """Of each level by itself, twice in a row, of each factor."""
    rng, log_density = np.random.default_rng(2), density_of(sampler)
    point = sampler.reference.surrogate.center.copy()
    for factor, levels in enumerate(sampler.field.levels):
        chosen = np.array([0, 3, 4])
        moves = OwnRowMoves("own", factor, chosen, times=1, again=False)
        here = sampler.decisions.own_rows(moves).about(point)
        for _ in range(2):
            steps = rng.normal(size=(chosen.size, levels.latent.shape[1]))
            before, bars = here.point.copy(), np.array([[-np.inf, np.inf, -np.inf]])
            np.testing.assert_allclose(
                here.change(steps),
                change := here.step(LevelSteps.symmetric(steps[None]), bars)[0],
                rtol=1e-12,
            )
            for k, level in enumerate(levels.latent[chosen]):
                there = before.copy()
                there[level] += steps[k]
                expected = log_density(there) - log_density(before)
                assert change[k] == pytest.approx(expected, rel=1e-7, abs=1e-7)
            moved = here.point - before
            np.testing.assert_allclose(moved[levels.latent[chosen[::2]]], steps[::2], rtol=1e-9)
            assert not moved[levels.latent[3]].any()


def test_rows_of_any_layout() -> None:
    """Rows picked from an array in the order of Fortran are not in that of C."""
    rng = np.random.default_rng(6)
    g, x = rng.integers(0, G, N), np.asfortranarray(rng.normal(size=(N, 4, 3)))
    y = rng.normal(size=G)[g] + x.sum(axis=(1, 2)) + rng.standard_t(3, N)
    with pm.Model() as model:
        level = pm.Normal("level", 0, pm.HalfNormal("sd"), shape=G)
        of_rows = (pm.Data("x", x) * pm.Normal("slope", 1, 1, shape=3)).sum(axis=(1, 2))
        pm.StudentT("y", nu=3, mu=level[pm.Data("g", g)] + of_rows, sigma=1.0, observed=y)
    tall = TallModel(model, data={"x": x, "g": g, "y": y})
    sampler = WholeSampler(tall, locate(tall, TEMPERATURE), TEMPERATURE)
    own = sampler.decisions.own_rows(OwnRowMoves("own", 0, np.arange(5), times=1, again=False))
    here = own.about(sampler.reference.surrogate.center)
    np.testing.assert_allclose(here.change(np.zeros((5, 1))), 0.0, atol=1e-12)


@pytest.mark.parametrize("seen", [False, True])
def test_steps_leave_the_density_of_a_level_alone(sampler: LatentSampler, seen: bool) -> None:
    """Of one level of the last factor, given all else, against its density on a grid."""
    rng, factor = np.random.default_rng(3), len(sampler.field.levels) - 1
    levels = sampler.field.levels[factor]
    surrogate = sampler.reference.surrogate
    point, given = surrogate.center.copy(), surrogate.conditional(sampler.reference.hyper)
    moves = OwnRowMoves("own", factor, np.array([1]), times=20, again=True)
    if seen:
        values = point[levels.latent] + rng.normal(0, 0.2, size=(20, *levels.latent.shape))
        moves = moves._replace(seen=values, jumps=np.array([[[0.7]], [[0.0]]]))
    own, [[entry]] = sampler.decisions.own_rows(moves), levels.latent[1:2]
    draws = []
    for _ in range(1500):
        point = own.walk(rng, point, given, moves).point
        draws.append(point[entry])
    here = own.about(point)
    grid = np.linspace(min(draws) - 0.3, max(draws) + 0.3, 400)
    log_f = np.array([here.change(np.array([[x - point[entry]]]))[0] for x in grid])
    cdf = np.cumsum(np.exp(log_f - log_f.max()))
    assert kstest(draws, lambda x: np.interp(x, grid, cdf / cdf[-1])).pvalue > 1e-4


def leverage_model() -> pm.Model:
    """Each level has two rows far out that ask for different slopes, so that it has two modes."""
    rng = np.random.default_rng(4)
    g, x = np.repeat(np.arange(60), 22), rng.normal(0, 0.3, (60, 22))
    y = 0.2 * rng.normal(size=x.shape)
    x[:, :2], y[:, 0], y[:, 1] = 6.0, 5.0, -5.0
    y[:, :2] += 0.2 * rng.normal(size=(60, 2))
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 2, shape=60)
        pm.StudentT("y", nu=2, mu=slope[g] * x.ravel(), sigma=0.2, observed=y.ravel())
    return model


def test_two_modes_of_a_level_have_their_shares() -> None:
    """Of 60 levels the sum of the shares of positive slopes, against quadrature."""
    model = leverage_model()
    sampler = make_latent_sampler(TallModel(model), None, 1.0)
    moves = OwnRowMoves("own", 0, np.arange(60), times=1, again=True)
    surrogate, [levels] = sampler.reference.surrogate, sampler.field.levels
    assert sampler.decisions.level_rows is not None
    assert np.all(sampler.decisions.level_rows.elsewhere[0].highest > -5.0)
    here = sampler.decisions.own_rows(moves).about(surrogate.center)
    grid = np.linspace(-3, 3, 3000)
    at = [here.change(x - surrogate.center[levels.latent]) for x in grid]
    density = np.exp(at - np.max(at, axis=0))
    expected = density[grid > 0].sum(axis=0) / density.sum(axis=0)

    rng, point, state = np.random.default_rng(5), model.initial_point(), sampler.initial_state()
    flat = sampler.tall.layout.flatten(point)
    shares = []
    for draw in range(1200):
        sampler.draw(rng, flat, 1, draw < 200, state)
        shares.append(sampler.tall.layout.unflatten(flat)["slope"] > 0)
    seen = np.array(shares[200:])
    error = np.sqrt(seen.mean(axis=1).var() / 100)  # of a tenth as many draws
    assert seen.mean() == pytest.approx(expected.mean(), abs=4 * error)
    both = seen.any(axis=0) & ~seen.all(axis=0)
    assert both.mean() > 0.9


def test_more_slow_levels_move_if_all_rows_decide_anyway() -> None:
    """Of 100 levels of 300 rows 40 are slow; if all rows decide, there is time for all of these."""
    n_levels, n_rows = 100, 300
    field = SimpleNamespace(levels=[SimpleNamespace(latent=np.arange(n_levels)[:, None])])
    shares = np.where(np.arange(n_levels) < 40, 0.1, 0.9)
    level_rows = SimpleNamespace(
        counted=lambda factor: np.full(n_levels, n_rows),
        elsewhere=[Elsewhere(np.full(n_levels, -np.inf), np.zeros((1, n_levels, 1)))],
    )
    chosen, times = {}, {}
    for all_rows in (0, n_levels * n_rows):
        move = SlowLevels(SimpleNamespace(field=field, all_rows=all_rows), 0)
        of_all = SimpleNamespace(n_moves=np.array([100.0]), one_minus_correlation=shares)
        setting = SimpleNamespace(tuners={move.name: move.initial(), move.of_all: of_all})
        state = SimpleNamespace(point=np.zeros(n_levels))
        chosen[all_rows] = move.choose(np.random.default_rng(1), state, level_rows, setting)
        times[all_rows] = move.times(np.full(chosen[all_rows].size, n_rows))
    few, many = chosen.values()
    assert 3 <= few.size <= 15
    assert np.array_equal(many, np.arange(40))
    assert times[n_levels * n_rows] * 40 <= 4.5 * n_levels


def test_values_are_drawn_from_the_density_that_counts() -> None:
    """Of levels that are drawn anew: distances from the mean, and the log-density."""
    rng, chosen = np.random.default_rng(8), np.array([0, 2, 4])
    seen = rng.normal(size=(30, 5, 2)) @ np.array([[1.0, 0.8], [0.0, 0.3]])
    moves = OwnRowMoves("own", 0, chosen, times=12_000, again=True, seen=seen)
    steps = draw_steps(rng, np.tile(np.eye(2), (3, 1, 1)), moves)
    assert 0.4 < steps.is_anew.mean() < 0.6
    for s in range(3):
        mean, precision = steps.mean[s], steps.precision[s]
        drawn = steps.by[steps.is_anew[:, s], s]
        squares = np.einsum("ni,ij,nj->n", drawn, precision, drawn)
        assert kstest(squares / 2, "f", args=(2, DEGREES)).pvalue > 1e-4
        law = multivariate_t(mean, np.linalg.inv(precision), df=DEGREES, seed=1)
        expected = law.logpdf(drawn[:9] + mean)
        found = [log_t(value + mean, mean, precision) for value in drawn[:9]]
        np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-9)
        at = steps.at(int(np.flatnonzero(steps.is_anew[:, s])[0]))
        assert at.log_q(at.from_levels(np.zeros((3, 2))))[s] == pytest.approx(found[0])
