"""A chain is stopped by the witness, and its draws are saved."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pymc.exceptions import SamplingError

from pymc_minibatch.messages import with_id
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.checksum import checksum
from pymc_minibatch.witness import SurpriseError

__all__ = ["stopped"]


def stopped(surprise: SurpriseError, tall: TallModel, draws: Sequence[np.ndarray]) -> SamplingError:
    """Save the draws so far, and return the error that says why the chain stops."""
    path = Path(tempfile.mkdtemp(prefix="pymc_minibatch_")) / "draws.npz"
    points, layout = np.array(draws), tall.layout
    saved: dict[str, Any] = {
        name: points[:, where].reshape(-1, *shape)
        for (name, where), shape in zip(layout.slices.items(), layout.shapes, strict=True)
    }
    np.savez(path, **saved)
    why, remedy = (
        f"{surprise}",
        "Please report this model. To sample it meanwhile, pass another acceptance test or "
        "proposal.",
    )
    if tall.partitions is None and checksum(tall.data) != tall.checksum:
        why = "Arrays of the data were changed in place since the step was set up"
        remedy = "Make the step again, on data that stay as they are."
    return SamplingError(
        with_id(
            "PMB304",
            f"{why}. The chain is stopped after {len(points)} draws, which are saved, "
            f"unconstrained, in {path}: they are not those of the posterior. {remedy}",
        )
    )
