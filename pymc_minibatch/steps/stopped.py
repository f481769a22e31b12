"""A chain is stopped by the witness, and its draws are saved."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pymc.exceptions import SamplingError

from pymc_minibatch.messages import with_id
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.witness import SurpriseError

__all__ = ["stopped"]


def stopped(
    surprise: SurpriseError, layout: PointLayout, draws: Sequence[np.ndarray]
) -> SamplingError:
    """Save the draws so far, and return the error that says why the chain stops."""
    path = Path(tempfile.mkdtemp(prefix="pymc_minibatch_")) / "draws.npz"
    points = np.array(draws)
    saved: dict[str, Any] = {
        name: points[:, where].reshape(-1, *shape)
        for (name, where), shape in zip(layout.slices.items(), layout.shapes, strict=True)
    }
    np.savez(path, **saved)
    return SamplingError(
        with_id(
            "PMB304",
            f"{surprise}. The chain is stopped after {len(points)} draws, which are saved, "
            f"unconstrained, in {path}: they are not those of the posterior. Please report this "
            "model. To sample it meanwhile, pass another acceptance test or proposal.",
        )
    )
