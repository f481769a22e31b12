"""Reference posteriors: long runs of two samplers, which must agree."""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tall_posteriors import scores
from benchmarks.tall_posteriors.catalogue import posterior_of
from benchmarks.tall_posteriors.measure import process, provenance

__all__ = ["AGREE", "make"]

AGREE = 4.5
"""Monte Carlo errors by which two right samplers may differ: of some hundred numbers each, beyond
that less than once in a thousand references."""


def make(
    posterior: str,
    samplers: list[str],
    lengths: list[float],
    limit: float,
    folder: Path | None = None,
) -> str:
    """Run the samplers in processes of their own, pool their draws, and write the reference.

    Parameters
    ----------
    lengths
        Multiple of the usual draws, for each sampler.
    folder
        Where draws are kept. Those that are there already are not made again.

    Returns
    -------
    str
        What was done, in a line.

    Raises
    ------
    RuntimeError
        If a sampler failed, or if they disagree.
    """
    runs = {}
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch) if folder is None else folder
        kept.mkdir(parents=True, exist_ok=True)
        for sampler, length in zip(samplers, lengths, strict=True):
            path = kept / f"{posterior}-{sampler}.npz"
            if not path.exists():
                options = {"length": length, "seed": 7, "save": path}
                done = process(posterior, sampler, Path(scratch), limit, **options)
                if done["failed"] is not None:
                    raise RuntimeError(f"{sampler} on {posterior}: {done['failed']}")
            with np.load(path) as file:
                runs[sampler] = dict(file)
    found = scores.combined(runs, getattr(posterior_of(posterior), "NOT_COMPARED", ()))
    apart = found["furthest_apart"]
    if apart is not None and apart > AGREE:
        raise RuntimeError(f"The samplers disagree on {posterior}: by {apart} Monte Carlo errors.")
    made = provenance(0.0)
    scores.write(posterior, {"commit": made["commit"], "date": made["date"]} | found)
    return f"{posterior}: {found['samplers']}, furthest apart {apart} of {found['compared']}"
