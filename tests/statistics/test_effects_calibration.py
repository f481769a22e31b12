"""Each move of effects and scales leaves the posterior as it is (Geweke, 2004).

A point from the prior and data made with it are a draw from the joint density, and so they are
after any number of moves of the point: means of what is read off it must not change. Each kind of
move is on its own, since others would repair what it does wrong. The complete simulation-based
calibration is ``python -m benchmarks.calibration``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
import pytest

from benchmarks.calibration import MODELS, Calibration, ranked
from pymc_minibatch.latent.expansion import Expansion, expand
from pymc_minibatch.latent.firefly import FireflyDecisions, FireflySampler, bounded
from pymc_minibatch.latent.moves import coefficients, kernels
from pymc_minibatch.latent.moves.collapsed import collapsed_pairs
from pymc_minibatch.latent.moves.decisions import LevelMoves, MoveCounts
from pymc_minibatch.latent.moves.levels import LevelsOfFactor
from pymc_minibatch.latent.moves.scan import LatentMoves, step
from pymc_minibatch.latent.sampler import LatentSampler, LatentState
from pymc_minibatch.tall import TallModel

N_REPLICATIONS = 80
N_TRUTHS = 400
RARE = 20
"""One of so many outcomes is 0 in the data at whose mode bounds touch."""
N_HELD, N_OTHERS = 25, 6
"""Moves of single hyperparameters, and of other kinds."""


def moves_of(
    sampler: LatentSampler, rng: np.random.Generator, state: LatentState | None = None
) -> dict[str, Callable[[np.ndarray], None]]:
    """Return what moves a point in place, by move, untuned unless a state is given."""
    moves, tuning = sampler.moves, sampler.settings(state or sampler.initial_state(), False)
    assert isinstance(moves, LatentMoves)
    run = moves.run(tuning, MoveCounts())

    def times(name: str, targets: Callable[[], Any], n: int) -> Callable[[np.ndarray], None]:
        def move(point: np.ndarray) -> None:
            made = moves.state_at(point)
            for _ in range(n):
                for target in targets():
                    made = step(rng, moves.by_name[name], made, target, run)
            point[:], moves.last = made.point, made

        return move

    def swept(point: np.ndarray) -> None:
        made = moves.state_at(point)
        for _ in range(N_OTHERS):
            for planned in moves.plan:
                if isinstance(planned.move, LevelsOfFactor):
                    made = step(rng, planned.move, made, None, run)
        point[:], moves.last = made.point, made

    def some_coefficients() -> list[np.ndarray]:
        n_dense = sampler.field.latent.dense.size
        return [rng.permutation(n_dense)[: rng.integers(1, n_dense + 1)]]

    def direction() -> list[Any]:
        every = moves.by_name["centered"].targets(rng, tuning.tuners["centered"])
        return list(every[:1])

    found = {
        "centered": times("centered", direction, N_HELD),
        "noncentered": times("noncentered", lambda: [None], N_OTHERS),
        "border": times("border", some_coefficients, N_OTHERS),
        "swept": swept,
    }

    def shifts() -> list[str]:
        return [name for name in moves.by_name if name.startswith("shift ")]

    def shifted(point: np.ndarray) -> None:
        made = moves.state_at(point)
        for _ in range(N_OTHERS):
            for name in shifts():
                size = sampler.field.shifts[int(name.split()[1])].variables.size
                made = step(rng, moves.by_name[name], made, np.arange(size), run)
        point[:], moves.last = made.point, made

    if shifts():
        found["shifted"] = shifted
    if "coefficients" in moves.by_name:
        found["coefficients"] = times("coefficients", lambda: [None], N_OTHERS)
    if sampler.collapsed:
        pairs = range(len(sampler.collapsed))
        found["collapsed"] = times("collapsed", lambda: pairs, N_OTHERS)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "costly"),
    [("noncentred", False), ("nested", True), ("crossed", True)],
    ids=["noncentred", "nested", "crossed"],
)
def test_moves_keep_the_joint_density(
    name: str, costly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where factoring is costly, factors for usual hyperparameters serve all."""
    monkeypatch.setattr(coefficients, "SHORT", np.inf)
    calibration, rng = Calibration(MODELS[name]()), np.random.default_rng(1)
    changes: dict[str, list[float]] = {}
    for truth, y in calibration.truths(N_REPLICATIONS, seed=2):
        sampler = calibration.fit(y)
        if costly:
            sampler.work, sampler.collapsed = 1e12, collapsed_pairs(sampler.reference.surrogate)
            assert sampler.collapsed
        sampler.draw(rng, truth.copy(), 1, False, sampler.initial_state())
        levels = sampler.field.levels
        swept = [planned.move for planned in sampler.plan]
        n_swept = [
            levels[move.factor].rows.shape[0] for move in swept if isinstance(move, LevelsOfFactor)
        ]
        assert (
            n_swept == {"noncentred": [20], "nested": [40, 10, 40], "crossed": [20, 12, 20]}[name]
        )
        before = ranked(calibration.tall, truth)
        for kind, move in moves_of(sampler, rng).items():
            point = truth.copy()
            move(point)
            for quantity, after in ranked(calibration.tall, point).items():
                old = before[quantity]
                changes.setdefault(f"{quantity}, {kind}", []).append(after - old)
                changes.setdefault(f"{quantity} squared, {kind}", []).append(after**2 - old**2)
    for quantity, differences in changes.items():
        error = np.std(differences, ddof=1) / np.sqrt(N_REPLICATIONS)
        assert abs(np.mean(differences)) <= 4.5 * error, quantity


@pytest.mark.slow
def test_how_often_random_walks_are_chosen_does_not_change_the_posterior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share that grows with a hyperparameter and one that falls give the same mean."""
    calibration, rng = Calibration(MODELS["noncentred"]()), np.random.default_rng(1)
    truth, y = next(calibration.truths(1, seed=2))
    sampler, point = calibration.fit(y), truth.copy()
    state = sampler.initial_state()
    sampler.draw(rng, point, 300, True, state)
    sampler.end_tuning(state)
    kinds = moves_of(sampler, rng, state)
    means, variances = [], []
    for sign in (1, -1):
        monkeypatch.setattr(
            kernels,
            "hyper_walk_share",
            lambda z, sign=sign: 0.5 + 0.45 * sign * np.tanh(3 * z[0]),
        )
        first = []
        for _ in range(1000):
            for kind in ("noncentered", "border", "swept"):
                kinds[kind](point)
            first.append(point[sampler.field.hyper[0]])
        means.append(np.mean(first))
        variances.append(np.var(first) / float(az.ess(np.array(first)[None])))
    assert abs(means[0] - means[1]) <= 4.5 * np.sqrt(sum(variances))


def z_tuning(sampler: FireflySampler, rng: np.random.Generator, point: np.ndarray) -> float:
    """Draw which rows are bright; return how many are expected to be."""
    sampler.moves.forget()
    sampler.redraw(rng, point)
    sampler.decisions.q = 0.3
    return expected_bright(sampler, point)


def expected_bright(sampler: FireflySampler, point: np.ndarray) -> float:
    surrogate = sampler.reference.surrogate
    phi = surrogate.phi(sampler.coordinates.from_model(point))
    gaps = sampler.rows.remainders(phi, phi, surrogate.expansion.at, sampler.tall.data)[0]
    return float(-np.expm1(-np.delete(gaps, sampler.pinned)).sum())


def looked_at(tall: TallModel, flat: np.ndarray) -> dict[str, float]:
    """Return what is ranked, and the last entry of each vector, which may have the most rows."""
    last = {f"last of {name}": flat[s.stop - 1] for name, s in tall.layout.slices.items()}
    return ranked(tall, flat) | last


def changes_by_bright_rows(name: str, n: int, costly: bool = False) -> dict[str, np.ndarray]:
    """Return what moves of each kind change in draws from the joint density.

    All bounds touch at the mode of data that are hardly ever 0. They are bounds wherever they
    touch, and far from there many rows are bright.
    """
    calibration, rng = (
        Calibration(MODELS[name](), by_bright_rows=True),
        np.random.default_rng(1),
    )
    assert calibration.bounded_rows is not None
    calibration.put(np.arange(calibration.tall.n_rows) % RARE > 0)
    latent_model, changes = calibration.latent_model(), {}
    for truth, y in calibration.truths(n, seed=2):
        calibration.put(y)
        sampler = bounded(calibration.tall, calibration.bounded_rows, latent_model)
        if costly:
            sampler.work, sampler.collapsed = 1e12, collapsed_pairs(sampler.reference.surrogate)
            assert sampler.collapsed
        before = looked_at(calibration.tall, truth)
        for kind, move in moves_of(sampler, rng).items():
            point = truth.copy()
            z_tuning(sampler, rng, point)
            move(point)
            excess = sampler.decisions.bright.size - expected_bright(sampler, point)
            changes.setdefault(f"bright rows, {kind}", []).append(excess)
            for quantity, after in looked_at(calibration.tall, point).items():
                old = before[quantity]
                changes.setdefault(f"{quantity}, {kind}", []).append(after - old)
                changes.setdefault(f"{quantity} squared, {kind}", []).append(after**2 - old**2)
    return {quantity: np.array(differences) for quantity, differences in changes.items()}


def standardised(changes: dict[str, np.ndarray]) -> dict[str, float]:
    """Return mean changes in standard errors."""
    found = {}
    for quantity, values in changes.items():
        error = np.std(values, ddof=1) / np.sqrt(values.size)
        found[quantity] = float(np.mean(values) / error) if error else 0.0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "costly"), [("noncentred", False), ("nested", True)], ids=["noncentred", "nested"]
)
def test_moves_by_bright_rows_keep_the_joint_density(name: str, costly: bool) -> None:
    """And rows stay bright as often as they should, given the point."""
    for quantity, z in standardised(changes_by_bright_rows(name, N_TRUTHS, costly)).items():
        assert abs(z) <= 4.5, quantity


@pytest.mark.slow
def test_the_joint_density_shows_levels_that_decide_without_bright_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_move(self: FireflyDecisions, rng: Any, moves: LevelMoves, counts: Any) -> np.ndarray:
        readings, factor, moving = moves[:3]
        self._changes(readings, counts)
        levels = self.row_levels[factor][np.concatenate([self.bright, self.pinned])]
        self._keep(moving[levels])
        return moving

    monkeypatch.setattr(FireflyDecisions, "on_levels", all_move)
    found = standardised(changes_by_bright_rows("noncentred", N_TRUTHS))
    assert max(abs(z) for quantity, z in found.items() if "swept" in quantity) > 6


@pytest.mark.slow
def test_the_joint_density_shows_wrong_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of all rows that are a little too curved, while gaps are right."""

    def too_curved(*args: Any) -> Expansion:
        expansion = expand(*args)
        return replace(expansion, curvature=expansion.curvature.scaled(1.15))

    monkeypatch.setattr("pymc_minibatch.latent.firefly.expand", too_curved)
    found = standardised(changes_by_bright_rows("noncentred", N_TRUTHS // 3))
    assert max(map(abs, found.values())) > 6
