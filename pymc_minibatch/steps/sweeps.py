"""What steps share that sweep over the effects of a model."""

from typing import Any

import numpy as np

from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.tall import TallModel

__all__ = ["scans_of_draw", "stats_of_effects"]

ROUNDS, ROUNDS_WITH_DETERMINISTICS = 2, 4
"""Moves of all effects for a draw; and for one at which PyMC evaluates a number for each row."""

MANY_ROWS = 200_000
"""With fewer rows this evaluation is cheaper than a round."""


def scans_of_draw(tall: TallModel) -> int:
    """Return how many rounds of moves make a draw, where that is left open."""
    many = tall.n_rows >= MANY_ROWS and bool(tall.deterministics_of_rows())
    return ROUNDS_WITH_DETERMINISTICS if many else ROUNDS


def stats_of_effects(counts: MoveCounts) -> dict[str, Any]:
    """Return the acceptance rate of all moves, and the stats of effects."""
    shares = counts.by_stat()
    kinds = {stat: float(np.mean(accepted or [np.nan])) for stat, accepted in shares.items()}
    return {
        "acceptance_rate": float(np.mean([a for accepted in shares.values() for a in accepted])),
        "acceptance_rate_hyper": kinds["hyper"],
        "acceptance_rate_dense": kinds["dense"],
        "acceptance_rate_groups": kinds["groups"],
        "n_sweeps": counts.sweeps,
        "rows_per_sweep": counts.sweep_rows / counts.sweeps if counts.sweeps else np.nan,
    }
