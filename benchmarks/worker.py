"""Run one sampler in this process and write what was measured to a file.

Started by ``python -m benchmarks``; samplers are imported here and nowhere else, because each
process should pay for its own libraries only.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.data import Data, simulate
from benchmarks.outcome import Clock, Outcome, Settings, summarise

__all__ = ["sampler"]


def sampler(name: str) -> Callable[[Settings, Data, Clock], Outcome]:
    """Import a sampler."""
    if name in ("minibatch", "flymc"):
        from benchmarks.sampler_minibatch import sample_flymc, sample_minibatch

        return {"minibatch": sample_minibatch, "flymc": sample_flymc}[name]
    if name == "nutpie":
        from benchmarks.sampler_nutpie import sample as sample_nutpie

        return sample_nutpie
    from benchmarks.sampler_numpyro import prepare, sample_hmcecs, sample_nuts

    prepare()
    return {"numpyro-nuts": sample_nuts, "hmcecs": sample_hmcecs}[name]


def main() -> None:
    """Read the settings from the command line, as the parent process wrote them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sampler", required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    clock, settings = Clock(arguments.started), Settings(**arguments.settings)
    run = sampler(arguments.sampler)
    clock.mark("import")
    with clock.stopped():
        data = simulate(settings.model, settings.rows)
    outcome = run(settings, data, clock)
    arguments.output.write_text(json.dumps(summarise(outcome)))


if __name__ == "__main__":
    main()
