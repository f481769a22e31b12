"""Moves that all rows decide leave the posterior as it is (Geweke, 2004): trajectories of
hyperparameters and effects, hyperparameters given surrogate data, and many by the surrogate.

As in :mod:`test_effects_calibration`: a draw from the prior with data made with it is one from the
joint density before and after a move.
"""

import numpy as np
import pytest

from benchmarks.calibration import MODELS, Calibration, ranked
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.moves.scan import LatentMoves, step
from pymc_minibatch.latent.whole import WholeSampler

N_REPLICATIONS, N_MOVES = 80, 6
KINDS = "trajectory", "trajectory of the field", "surrogate data"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("noncentred", KINDS), ("crossed", KINDS), ("shrunken", ("by surrogate",))],
)
def test_moves_keep_the_joint_density(name: str, kinds: tuple[str, ...]) -> None:
    calibration, rng = Calibration(MODELS[name]()), np.random.default_rng(1)
    changes: dict[str, list[float]] = {}
    accepted: dict[str, list[float]] = {kind: [] for kind in kinds}
    for truth, y in calibration.truths(N_REPLICATIONS, seed=2):
        calibration.put(y)
        sampler = WholeSampler(calibration.tall, calibration.latent_model(), 1.0)
        moves, counts = sampler.moves, MoveCounts()
        assert isinstance(moves, LatentMoves)
        run = moves.run(sampler.settings(sampler.initial_state(), False), counts)
        before = ranked(calibration.tall, truth)
        for kind in kinds:
            state = moves.state_at(sampler.coordinates.from_model(truth).copy())
            for _ in range(N_MOVES):
                move, tuner = moves.by_name[kind], run.tuning.tuners[kind]
                for target in move.targets(rng, tuner):
                    state = step(rng, move, state, target, run)
            point = sampler.coordinates.to_model(state.point)
            for quantity, after in ranked(calibration.tall, point).items():
                old = before[quantity]
                changes.setdefault(f"{quantity}, {kind}", []).append(after - old)
                changes.setdefault(f"{quantity} squared, {kind}", []).append(after**2 - old**2)
            accepted[kind] += counts.accepted[kind]
    assert all(0.1 < np.mean(shares) < 1.0 for shares in accepted.values()), accepted
    for quantity, differences in changes.items():
        error = np.std(differences, ddof=1) / np.sqrt(N_REPLICATIONS)
        assert abs(np.mean(differences)) <= 4.5 * error, quantity
