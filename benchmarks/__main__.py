"""Compare this package with NUTS and HMCECS on the same data.

    python -m benchmarks --model logistic --rows 1000000

Every sampler runs in processes of its own with 2 chains: once with empty caches of compiled code
("cold"), then again with what that left behind ("warm").
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.data import MODELS
from benchmarks.outcome import Settings, caches_in
from benchmarks.report import Contender, report, write_section

FEW = 10
"""Draws of a run that only compiles."""

NUTS_LABELS = ("PyMC NUTS (nutpie)", "NumPyro NUTS")


def contenders(model: str, rows: int, nuts_draws: int) -> list[tuple[str, str, Settings]]:
    """Return label, sampler and settings of all samplers.

    Draws are about as many as 1000 effective ones take.
    """

    def settings(tune: int, draws: int, rate_draws: int, **options: Any) -> Settings:
        return Settings(model, rows, tune, draws, rate_draws, options)

    def hmcecs(rate_draws: int, subsample_size: int, num_blocks: int) -> Settings:
        sizes = {"subsample_size": subsample_size, "num_blocks": num_blocks}
        return settings(500, 500, rate_draws, **sizes)

    nuts = settings(nuts_draws, nuts_draws, 0)
    flymc = ("FlyMC", "flymc", settings(500, 1000, 20_000, steps_per_draw=5))
    return [
        ("MinibatchMH", "minibatch", settings(500, 1000, 20_000)),
        ("MinibatchMH, Penalty", "minibatch", settings(500, 1000, 20_000, acceptance="penalty")),
        (
            "MinibatchMH, CorrectedBarker",
            "minibatch",
            settings(500, 1000, 20_000, acceptance="corrected_barker"),
        ),
        *([flymc] if model in ("logistic", "hierarchical") else []),
        ("NumPyro HMCECS, 100 rows", "hmcecs", hmcecs(10_000, 100, 10)),
        ("NumPyro HMCECS, 1000 rows", "hmcecs", hmcecs(2000, 1000, 100)),
        (NUTS_LABELS[0], "nutpie", nuts),
        (NUTS_LABELS[1], "numpyro-nuts", replace(nuts, rate_draws=nuts_draws // 2)),
    ]


def run(
    sampler: str, settings: Settings, caches: Path, budget: float, errors: Path
) -> dict[str, Any] | str:
    """Run a sampler in a fresh process; return what it measured, or why there is nothing."""
    environment = caches_in(caches)
    output = caches / "outcome.json"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.worker", "--sampler", sampler]
    command += ["--settings", json.dumps(asdict(settings)), "--output", str(output)]
    command += ["--started", repr(time.perf_counter())]
    with errors.open("a") as log:
        try:
            done = subprocess.run(
                command, env=environment, stdout=log, stderr=log, timeout=budget, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not done within {budget:.0f} seconds"
    if done.returncode:
        return f"failed with exit code {done.returncode}; see {errors.name}"
    return json.loads(output.read_text())


def measure(
    label: str, sampler: str, settings: Settings, budget: float, log: Path, warm_only: bool
) -> Contender:
    """Run a sampler cold and warm; or cold for a few draws, which fills the caches, and warm."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"{label}: cold ...", file=sys.stderr, flush=True)
        first = replace(settings, rate_draws=0)
        if warm_only:
            first = replace(first, tune=FEW, draws=FEW)
        cold = run(sampler, first, Path(folder), budget, log)
        if isinstance(cold, str):
            return Contender(label, settings, cold, None)
        if warm_only:
            cold = None
        print(f"{label}: warm ...", file=sys.stderr, flush=True)
        return Contender(label, settings, cold, run(sampler, settings, Path(folder), budget, log))


def main() -> None:
    """Run what the command line asks for, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=list(MODELS), default="logistic")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="samplers named so, in part; =NAME for all of it"
    )
    parser.add_argument(
        "--nuts-draws", type=int, default=600, help="for each chain; as many to tune"
    )
    parser.add_argument(
        "--warm-only", nargs="+", default=[], help="samplers, named so in part, not measured cold"
    )
    parser.add_argument("--budget", type=float, default=3600, help="seconds for each process")
    parser.add_argument("--output", type=Path, help="a page to put the tables on as well")
    options = parser.parse_args()
    log = Path(tempfile.gettempdir()) / f"benchmarks-{os.getpid()}.log"

    def named(label: str, parts: list[str]) -> bool:
        return any(
            part.lower() in label.lower() or part.lower() == f"={label.lower()}" for part in parts
        )

    measured = [
        measure(label, sampler, settings, options.budget, log, named(label, options.warm_only))
        for label, sampler, settings in contenders(options.model, options.rows, options.nuts_draws)
        if named(label, options.only)
    ]
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    text = report(command, options.model, options.rows, measured, NUTS_LABELS)
    print(text)
    if options.output:
        write_section(options.output, text)


if __name__ == "__main__":
    main()
