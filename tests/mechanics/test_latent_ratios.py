"""What moves of a latent field add to the log ratio of densities, against differences.

A move turns a point and noise into another point. So its log ratio is the difference of log
densities, log |∂z'/∂z| of the latent variables at the same noise, and the ratio of how likely the
hyperparameters, and what is rotated, go back and there.
"""

import math
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.stats import kstest

from pymc_minibatch.acceptance import Penalty
from pymc_minibatch.latent import sampler as sampler_module
from pymc_minibatch.latent import whole as whole_module
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.exact import ExactDecisions, ExactSampler
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves import levels as levels_module
from pymc_minibatch.latent.moves.bank import FactorBank
from pymc_minibatch.latent.moves.centered import CenteredWalks
from pymc_minibatch.latent.moves.collapsed import Collapsed, collapsed_pairs
from pymc_minibatch.latent.moves.decisions import Candidate, LevelMoves, LevelWalks, MoveCounts
from pymc_minibatch.latent.moves.protocol import Setting
from pymc_minibatch.latent.moves.scan import LatentMoves, Run, step
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import PCN_ANGLES, StepSizes, Walks
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.latent.whole import WholeSampler
from pymc_minibatch.tall import TallModel

STEP = 1e-3
SEEDS = range(6)
TURN = 3
"""Angle of what is rotated: not a right one, at which all else is forgotten."""


def shared_scale_model() -> pm.Model:
    """Two crossed factors with one scale, of which few rows tell."""
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 8, 60), rng.integers(0, 5, 60)
    with pm.Model() as model:
        scale, a, b = pm.HalfNormal("scale"), pm.Normal("a", shape=8), pm.Normal("b", shape=5)
        log_odds = pm.Normal("mu", 0, 2) + scale * (a[first] + b[second])
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.integers(0, 2, 60))
    return model


def mixed_model() -> pm.Model:
    """Two crossed factors, one of them centred, and a slope."""
    rng = np.random.default_rng(2)
    first, second, x = rng.integers(0, 7, 50), rng.integers(0, 5, 50), rng.normal(size=50)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("sd_a"), shape=7)
        b = pm.HalfNormal("sd_b") * pm.Normal("z_b", shape=5)
        rate = pm.math.exp(a[first] + b[second] + pm.Normal("slope") * x)
        pm.Poisson("y", rate, observed=rng.poisson(1.0, 50))
    return model


def normal_model() -> pm.Model:
    """Two crossed factors and an unknown scale of the rows, of which sums say everything."""
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 6, 40), rng.integers(0, 4, 40)
    with pm.Model() as model:
        a = pm.HalfNormal("sd_a") * pm.Normal("a", shape=6)
        b = pm.HalfNormal("sd_b") * pm.Normal("b", shape=4)
        mu = pm.Normal("mu", 0, 2) + a[first] + b[second]
        pm.Normal("y", mu, pm.HalfNormal("s"), observed=rng.normal(size=40))
    return model


@pytest.fixture(scope="module", params=[shared_scale_model, mixed_model, normal_model])
def sampler(request: pytest.FixtureRequest) -> LatentSampler:
    test = None if request.param is normal_model else Penalty()
    found = make_latent_sampler(TallModel(request.param()), test, 1.0)
    assert isinstance(found, ExactSampler) == (test is None)
    # As if factoring were costly, which allows all kinds of moves.
    found.work, found.collapsed = 1e12, collapsed_pairs(found.reference.surrogate)
    assert found.collapsed
    return found


@pytest.fixture
def moves(sampler: LatentSampler, monkeypatch: pytest.MonkeyPatch) -> LatentMoves:
    """Return the general moves; how often walks are chosen depends on h more than it does."""
    monkeypatch.setattr(sampler_module, "find_linear", lambda surrogate: None)
    monkeypatch.setattr(kernels, "hyper_walk_share", share)
    assert isinstance(sampler.moves, LatentMoves)
    return sampler.moves


def share(z: np.ndarray) -> float:
    return 0.5 + 0.3 * math.tanh(float(z[0]))


def start(sampler: LatentSampler, seed: int) -> np.ndarray:
    """Return a point away from the mode."""
    rng, reference = np.random.default_rng(seed), sampler.reference
    hyper = reference.hyper + 0.5 * reference.hyper_cholesky @ rng.normal(size=reference.hyper.size)
    dense, groups = sampler.field.latent.noise(rng)
    return reference.surrogate.conditional(hyper).frame.color((dense, groups))


def log_density(sampler: LatentSampler, point: np.ndarray) -> float:
    surrogate = sampler.reference.surrogate
    return surrogate.log_density(point, surrogate.read(point))


class Accepting(ExactDecisions):
    """Accepts everything, and remembers the log ratios."""

    def __init__(self) -> None:
        self.ratios: list[float] = []

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        self.ratios.append(move.log_ratio)
        return True


def added(
    sampler: LatentSampler,
    name: str,
    seed: int,
    target: Any = None,
    tuner: Any = None,
    bank: FactorBank[Any] | None = None,
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Return what a move adds to the ratio of densities, log |∂z'/∂z|, and both points."""
    moves, surrogate = sampler.moves, sampler.reference.surrogate
    assert isinstance(moves, LatentMoves)
    tuning, decisions = sampler.settings(sampler.initial_state(), False), Accepting()
    if tuner is not None:
        tuning = tuning._replace(tuners={name: tuner})
    setting = Setting(tuning.tuners, tuning.scale, decisions, bank)
    run = Run(decisions, tuning, MoveCounts(), setting)
    layout, before = sampler.field.latent, start(sampler, seed)
    latent = np.concatenate([layout.dense, layout.groups.ravel()])

    def moved(shift: float = 0.0, position: int = 0) -> np.ndarray:
        point = before.copy()
        point[position] += shift
        state, rng = ChainState(surrogate, point), np.random.default_rng(seed)
        return step(rng, moves.by_name[name], state, target, run).point

    after = moved()
    [ratio] = decisions.ratios
    columns = [(moved(STEP, j) - moved(-STEP, j))[latent] / (2 * STEP) for j in latent]
    log_jacobian = np.linalg.slogdet(np.array(columns))[1]
    densities = [log_density(sampler, point) for point in (before, after)]
    return ratio - densities[1] + densities[0], log_jacobian, before, after


@pytest.mark.parametrize("seed", SEEDS)
def test_hyperparameters_with_the_field_following(
    sampler: LatentSampler, moves: LatentMoves, seed: int
) -> None:
    scale, step_sizes = sampler.initial_state().scale, StepSizes.untuned()
    step_sizes.current[0] = TURN
    found, log_jacobian, *points = added(sampler, "noncentered", seed, tuner=step_sizes)
    tails, hypers = sampler.tails, [point[sampler.field.hyper] for point in points]
    assert max(tails.left.max(), tails.right.max()) > 0.01  # or they would not be missed
    ws = [tails.from_hyper(hyper) for hyper in hypers]
    z, there = (np.linalg.solve(scale.cholesky, w - scale.mean) for w in ws)
    walks = np.random.default_rng(seed).random() < share(z)
    odds = [share(x) if walks else 1.0 - share(x) for x in (z, there)]
    back_and_there = math.log(odds[1] / odds[0])
    if not walks:
        back_and_there += log_rotation(there, z) - log_rotation(z, there)
    slopes = [
        np.log((tails.to_hyper(w + STEP) - tails.to_hyper(w - STEP)) / (2 * STEP)).sum() for w in ws
    ]
    back_and_there += slopes[1] - slopes[0]
    assert found == pytest.approx(log_jacobian + back_and_there, abs=1e-6)


def log_rotation(z: np.ndarray, there: np.ndarray) -> float:
    """Return how likely a rotation goes from one point to another."""
    angle = PCN_ANGLES[TURN]
    return -0.5 * float(np.sum((there - math.cos(angle) * z) ** 2)) / math.sin(angle) ** 2


@pytest.mark.parametrize("seed", SEEDS)
def test_hyperparameters_with_one_factor_following(
    sampler: LatentSampler, moves: LatentMoves, seed: int
) -> None:
    """A hyperparameter walks, or is drawn from what is known of it."""
    scale, collapsed = sampler.initial_state().scale, moves.by_name["collapsed"]
    sds = np.linalg.norm(scale.cholesky, axis=1)
    assert isinstance(collapsed, Collapsed)
    assert len(collapsed.pairs) > 1
    walks = Walks.of(np.full(len(collapsed.pairs), math.log(0.3)))
    for i, (axis, _) in enumerate(collapsed.pairs):
        found, log_jacobian, *points = added(sampler, "collapsed", seed, target=i, tuner=walks)
        z, there = (
            (point[sampler.field.hyper][axis : axis + 1] - scale.mean[axis]) / sds[axis]
            for point in points
        )
        of_walk = math.log(share(there) / share(z))
        of_draw = 0.5 * float(there[0] ** 2 - z[0] ** 2)
        of_draw += math.log((1 - share(there)) / (1 - share(z)))
        assert min(abs(found - log_jacobian - q) for q in (of_walk, of_draw)) < 1e-6
        assert abs(log_jacobian) > 1e-3  # or it would not be missed


@pytest.mark.parametrize("costly", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_coefficients(
    sampler: LatentSampler,
    moves: LatentMoves,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    costly: bool,
) -> None:
    """All but what is rotated; where factoring is costly, there and back from an h of the bank."""
    scale, n_dense = sampler.initial_state().scale, sampler.field.latent.dense.size
    some = np.random.default_rng(seed).permutation(n_dense)[: 1 + n_dense // 2]
    assert moves.bank is not None
    nearest = moves.bank.nearest(start(sampler, seed + 50)[sampler.field.hyper], scale)
    monkeypatch.setattr(moves.bank, "nearest", lambda *_: nearest)
    monkeypatch.setattr(StepSizes, "chosen", lambda *_: (PCN_ANGLES[TURN], True))
    whitened: list[np.ndarray] = []

    def rotated(rng: np.random.Generator, z: np.ndarray, angle: float) -> tuple[np.ndarray, float]:
        moved, _ = found = as_always(rng, z, angle)
        whitened.extend([z, moved])
        return found

    as_always = kernels.rotated
    monkeypatch.setattr(kernels, "rotated", rotated)
    found, log_jacobian, *_ = added(
        sampler, "border", seed, target=some, bank=moves.bank if costly else None
    )
    eta, there = whitened[:2]
    back_and_there = log_rotation(there, eta) - log_rotation(eta, there)
    log_jacobian -= some.size * math.log(math.cos(PCN_ANGLES[TURN]))
    assert found == pytest.approx(log_jacobian + back_and_there, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_hyperparameters_with_effects_held(
    sampler: LatentSampler, moves: LatentMoves, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows read the same, so that priors and the Jacobian decide."""
    field, settings = sampler.field, sampler.settings(sampler.initial_state(), True)
    rates: list[float] = []
    monkeypatch.setattr(Walks, "tune", lambda _, i, rate: rates.append(rate))
    walks = Walks.of(np.full(field.hyper.size, math.log(0.5)))
    tuners = {"centered": CenteredWalks(walks, walks)}
    run = moves.run(settings._replace(tuners=tuners), MoveCounts())
    jacobians = []
    for i in range(field.hyper.size):
        before, rng = start(sampler, seed), np.random.default_rng(seed)
        state = ChainState(sampler.reference.surrogate, before)
        step(rng, moves.by_name["centered"], state, ("axis", i), run)
        hyper = before[field.hyper]
        hyper[i] += 0.5 * np.random.default_rng(seed).standard_normal()
        centered = field.with_effects_held(before, hyper)
        assert centered is not None
        jacobians.append(centered.log_jacobian())
        ratio = log_density(sampler, centered.point) - log_density(sampler, before) + jacobians[-1]
        assert rates[-1] == pytest.approx(math.exp(min(ratio, 0.0)))
    assert np.any(np.abs(jacobians) > 1e-3)


def ratio_beside_remainders(
    sampler: LatentSampler, levels: GroupEffects, before: np.ndarray, after: np.ndarray
) -> float:
    """Return the log ratio of the surrogate with the higher orders of a factor."""
    surrogate = sampler.reference.surrogate
    cubic, values = surrogate.cubic(levels.rows), []
    for point in (before, after):
        predictor = surrogate.read(point)
        value = surrogate.log_density(point, predictor) - predictor.higher.sum()
        value -= surrogate.expansion.smoothing_correction @ predictor.phi
        if cubic is not None:
            value += surrogate.of_third_order(cubic, predictor).sum()
        values.append(value)
    return float(values[1] - values[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_levels(
    sampler: LatentSampler, moves: LatentMoves, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """They are drawn from a Gaussian, which is found from what is proposed with known noise.

    It has to be that of the hyperparameters of now, where those of before are still in memory.
    """
    surrogate = sampler.reference.surrogate
    run = moves.run(sampler.settings(sampler.initial_state(), False), MoveCounts())
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def recorded(*args: Any) -> np.ndarray:
        psi = level_ratios(*args)
        seen.append((args[1][1].copy(), psi))
        return psi

    level_ratios = surrogate.level_ratios
    monkeypatch.setattr(surrogate, "level_ratios", recorded)
    monkeypatch.setattr(levels_module, "level_walk_shares", lambda z, _: np.full(len(z), 1e-9))
    for factor, levels in enumerate(sampler.field.levels):
        before, where = start(sampler, seed), levels.latent[:, 0]
        for point, noise in ((start(sampler, seed + 100), 0.0), (before, 0.0), (before, 1.0)):
            monkeypatch.setattr(
                kernels, "rotated", lambda _, z, __, noise=noise: (0.0 * z + noise, 0.0)
            )
            move = moves.by_name[f"levels of factor {factor}"]
            step(np.random.default_rng(seed), move, ChainState(surrogate, point), None, run)
        (mean, _), (proposed, psi) = seen[-2:]
        z = (before - mean)[where] / (proposed - mean)[where]
        for g, position in enumerate(where):
            one = before.copy()
            one[position] = proposed[position]
            ratio = ratio_beside_remainders(sampler, levels, before, one)
            assert psi[g] == pytest.approx(ratio + 0.5 * (1.0 - z[g] ** 2), abs=1e-7)


class Constant:
    """What draws the same exponential number always."""

    def __init__(self, value: float | np.ndarray) -> None:
        self.value = value

    def standard_exponential(self, size: int | None = None) -> Any:
        return self.value


@pytest.fixture(scope="module", params=[shared_scale_model, mixed_model])
def whole(request: pytest.FixtureRequest) -> WholeSampler:
    tall = TallModel(request.param())
    return WholeSampler(tall, locate(tall, 2.0), 2.0)


def tempered(sampler: WholeSampler, point: np.ndarray) -> float:
    """Return the log density at T = 2."""
    values = sampler.tall.layout.unflatten(sampler.coordinates.to_model(point))
    prior, rows = compiled_parts(sampler.tall.model)
    return float(prior(values) + rows(values) / 2.0)


@cache
def compiled_parts(model: pm.Model) -> tuple[Any, Any]:
    return model.compile_logp(model.free_RVs), model.compile_logp(model.observed_RVs)


@pytest.mark.parametrize("n_threads", [2, 5])
def test_values_of_all_rows_do_not_depend_on_threads(
    whole: WholeSampler, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row is impossible, or has lost all digits."""
    monkeypatch.setattr(whole_module, "CHUNK_ROWS", 4)
    decisions = copy(whole.decisions)
    decisions.__dict__.pop("_chunks", None)
    phi = decisions.surrogate.phi(decisions.surrogate.center)
    impossible = phi.copy()
    impossible[0] = np.nan
    for at in (phi, impossible):
        found = []
        for n in (1, n_threads):
            monkeypatch.setattr(whole_module, "n_idle_cores", lambda n=n: n)
            found.append(decisions.of_all(at))
        np.testing.assert_array_equal(*found)
        expected = decisions.rows.values(at, *decisions.data)[0] / decisions.temperature
        expected = np.where(np.isnan(expected), -np.inf, expected)
        np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    assert np.isneginf(found[0]).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_rows_decide(whole: WholeSampler, seed: int) -> None:
    """Whatever the surrogate says, the log density decides."""
    surrogate, decisions = whole.reference.surrogate, whole.decisions
    before, after = start(whole, seed), start(whole, seed + 20)
    wanted = tempered(whole, after) - tempered(whole, before)
    log_ratio = log_density(whole, after) - log_density(whole, before)
    states = ChainState(surrogate, before), ChainState(surrogate, after)
    for shift, decided in ((1e-6, True), (-1e-6, False)):
        rng: Any = Constant(shift - wanted)
        found = decisions.on_all(rng, Candidate(log_ratio, states), MoveCounts())
        assert found is decided


def test_all_rows_decide_where_the_surrogate_leaves_no_digits(
    whole: WholeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its square of exp(60), say: rows must not be added to it, nor it taken off again."""
    before, after = start(whole, SEEDS[0]), start(whole, SEEDS[0] + 20)
    wanted = tempered(whole, after) - tempered(whole, before)
    surrogate, decisions, found = (
        whole.reference.surrogate,
        whole.decisions,
        Surrogate.log_likelihood,
    )
    far = surrogate.phi(after)

    def huge(self: Surrogate, predictor: PredictorState) -> float:
        return found(self, predictor) - 1e20 * np.array_equal(predictor.phi, far)

    monkeypatch.setattr(Surrogate, "log_likelihood", huge)
    states = ChainState(surrogate, before), ChainState(surrogate, after)
    move = Candidate(states[1].log_density - states[0].log_density, states)
    assert decisions.log_ratio(move) == pytest.approx(wanted, abs=1e-6)
    for shift, decided in ((1e-6, True), (-1e-6, False)):
        rng: Any = Constant(shift - wanted)
        assert decisions.on_all(rng, move, MoveCounts()) is decided


@pytest.mark.parametrize("seed", SEEDS)
def test_all_rows_of_a_level_decide(whole: WholeSampler, seed: int) -> None:
    surrogate, decisions = whole.reference.surrogate, whole.decisions
    before, there = start(whole, seed), start(whole, seed + 20)
    for factor, levels in enumerate(whole.field.levels):
        after = before.copy()
        after[levels.latent] = there[levels.latent]
        wanted = []
        for level in levels.latent:
            one = before.copy()
            one[level] = there[level]
            change = tempered(whole, one) - tempered(whole, before)
            wanted.append(change - ratio_beside_remainders(whole, levels, before, one))
        predictor = surrogate.read(before)
        predictors = predictor, surrogate.read_levels(after, predictor, levels)
        odd = np.arange(len(wanted)) % 2 == 1
        undecided = np.linspace(-2.0, 3.0, odd.size)
        for moving in (np.ones_like(odd), odd):
            shift = np.where(odd, 1e-6, -1e-6)
            rng: Any = Constant(shift - np.array(wanted) - undecided)
            moves = LevelMoves(predictors, factor, moving, undecided)
            np.testing.assert_array_equal(decisions.on_levels(rng, moves, MoveCounts()), odd)


def test_levels_that_walk_stay_where_they_are_likely() -> None:
    """Normal levels remain so, however much how likely they walk depends on where they are."""
    rng = np.random.default_rng(40)
    eta = rng.standard_normal((100_000, 2))
    for _ in range(4):
        moved, log_q, _ = levels_module.moved_levels(rng, eta, 1.2, LevelWalks(0.3, 0.0))
        accepted = -rng.standard_exponential(len(eta)) < log_q
        assert 0.3 < accepted.mean() < 0.95
        eta = np.where(accepted[:, None], moved, eta)
    assert kstest(np.sum(eta**2, axis=1), "chi2", args=(2,)).pvalue > 1e-4
    assert kstest(eta[:, 0], "norm").pvalue > 1e-4


def test_levels_that_would_walk_too_far_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is proposed then, which is no impossible move: others of a sweep are compared."""
    monkeypatch.setattr(levels_module, "FARTHEST_WALK", 1.0)
    rng = np.random.default_rng(2)
    eta = 0.1 * rng.standard_normal((400, 2))
    moved, log_q, walks = levels_module.moved_levels(rng, eta, 1.2, LevelWalks(0.5, 0.0))
    stay = walks & np.isclose(moved, eta).all(axis=1)
    assert 10 < stay.sum() < walks.sum()
    np.testing.assert_allclose(log_q[stay], 0.0, atol=1e-9)
    assert np.isfinite(log_q).all()


def test_levels_that_walk_decide_by_all_of_their_rows(whole: WholeSampler) -> None:
    """A batch would not see how wrong the surrogate is where no row was sized for."""
    sampler = make_latent_sampler(whole.tall, Penalty(), 1.0)
    moves, surrogate = sampler.moves, sampler.reference.surrogate
    assert isinstance(moves, LatentMoves)
    before, there, rng = start(sampler, 3), start(sampler, 23), np.random.default_rng(5)
    for factor, levels in enumerate(sampler.field.levels):
        after, predictor = before.copy(), surrogate.read(before)
        after[levels.latent] = there[levels.latent]
        n = len(levels.latent)
        everyone = LevelMoves(
            (predictor, surrogate.read_levels(after, predictor, levels)),
            factor,
            moving=np.ones(n, dtype=np.bool_),
            undecided=np.zeros(n),
            points=(before, after),
            walks=np.ones(n, dtype=np.bool_),
        )
        of_rows, odd = moves.decisions.of_rows_by_level(everyone), np.arange(n) % 2 == 1
        almost_sure = np.where(odd, 40.0, -40.0) - of_rows
        decided = moves.decisions.on_levels(
            rng, everyone._replace(undecided=almost_sure), MoveCounts()
        )
        np.testing.assert_array_equal(decided, odd)


def test_an_impossible_row_is_told(whole: WholeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is impossible where a chain is; where it might go, it does not go."""
    surrogate, decisions = whole.reference.surrogate, whole.decisions
    before, after = (ChainState(surrogate, start(whole, seed)) for seed in (0, 1))
    states, predictors = (before, after), (before.predictors, after.predictors)
    bad = np.zeros(whole.tall.n_rows)
    bad[7] = np.nan
    counts, rng = MoveCounts(), np.random.default_rng(1)
    for known, there in ((bad, 0 * bad), (np.zeros(bad.size), bad)):
        decisions.known = [(r.phi, v) for r, v in zip(predictors, (known, there), strict=True)]
        assert not decisions.on_all(rng, Candidate(1e9, states), counts)
        assert counts.impossible_row == (7 if known is bad else -1)
        counts = MoveCounts()
    decisions.known = []
