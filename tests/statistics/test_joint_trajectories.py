"""Trajectories of hyperparameters and effects leave the posterior as it is (Geweke, 2004).

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


@pytest.mark.parametrize("name", ["noncentred", "crossed"])
def test_trajectories_keep_the_joint_density(name: str) -> None:
    calibration, rng = Calibration(MODELS[name]()), np.random.default_rng(1)
    changes: dict[str, list[float]] = {}
    accepted = []
    for truth, y in calibration.truths(N_REPLICATIONS, seed=2):
        calibration.put(y)
        sampler = WholeSampler(calibration.tall, calibration.latent_model(), 1.0)
        moves, counts = sampler.moves, MoveCounts()
        assert isinstance(moves, LatentMoves)
        run = moves.run(sampler.settings(sampler.initial_state(), False), counts)
        before = ranked(calibration.tall, truth)
        for kind in ("trajectory", "trajectory of the field"):
            state = moves.state_at(sampler.coordinates.from_model(truth).copy())
            for _ in range(N_MOVES):
                state = step(rng, moves.by_name[kind], state, None, run)
            point = sampler.coordinates.to_model(state.point)
            for quantity, after in ranked(calibration.tall, point).items():
                old = before[quantity]
                changes.setdefault(f"{quantity}, {kind}", []).append(after - old)
                changes.setdefault(f"{quantity} squared, {kind}", []).append(after**2 - old**2)
        accepted += counts.accepted["trajectory"]
    assert 0.3 < np.mean(accepted) < 1.0
    for quantity, differences in changes.items():
        error = np.std(differences, ddof=1) / np.sqrt(N_REPLICATIONS)
        assert abs(np.mean(differences)) <= 4.5 * error, quantity
