"""The moves of effects and scales leave the posterior as it is (Geweke, 2004).

A point from the prior and data made with it are a draw from the joint density, and so they are
after any number of moves of the point: means of what is read off it must not change. The complete
simulation-based calibration is ``python -m benchmarks.calibration``.
"""

import numpy as np
import pytest

from benchmarks.calibration import MODELS, Calibration, ranked

N_REPLICATIONS = 80
N_ROUNDS = 6


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS])
def test_moves_keep_the_joint_density(name: str) -> None:
    calibration, rng = Calibration(MODELS[name]()), np.random.default_rng(1)
    changes: dict[str, list[float]] = {}
    for truth, y in calibration.truths(N_REPLICATIONS, seed=2):
        sampler, point = calibration.fit(y), truth.copy()
        sampler.draw(rng, point, N_ROUNDS, False, sampler.initial_state(), 50)
        before, after = (ranked(calibration.tall, flat) for flat in (truth, point))
        for quantity, value in after.items():
            changes.setdefault(quantity, []).append(value - before[quantity])
            changes.setdefault(f"{quantity} squared", []).append(value**2 - before[quantity] ** 2)
    for quantity, differences in changes.items():
        error = np.std(differences, ddof=1) / np.sqrt(N_REPLICATIONS)
        assert abs(np.mean(differences)) < 4.5 * error, quantity
