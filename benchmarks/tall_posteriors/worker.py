"""Run one program on one posterior in this process, and write what was measured to a file."""

import argparse
import json
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.outcome import Clock, peak_memory
from benchmarks.tall_posteriors import scores
from benchmarks.tall_posteriors.catalogue import posterior_of, program_of
from benchmarks.tall_posteriors.jobs import CannotError, Job, Run
from benchmarks.tall_posteriors.tables import MissingPackageError, Table, scaled

__all__ = ["load", "measured"]

WANTED = (400, 1000)


def load(posterior: Any, n_rows: int | None) -> Table:
    """Read the rows of a posterior, all of them or as many as are wanted."""
    table = posterior.table()
    return table if n_rows is None else scaled(table, n_rows)


def measured(program: Any, job: Job, reference: scores.Reference | None) -> tuple[Run, dict]:
    """Run a program and reduce what it found to numbers."""
    run = program.run(job)
    job.clock.mark("sampling")
    total, peak = sum(job.clock.phases.values()), peak_memory()
    result: dict[str, Any] = {
        "seconds": total,
        "phases": job.clock.phases,
        "peak_bytes": peak,
        "rows": job.table.n_rows,
        "rows_read": run.rows_read,
        "notes": dict(run.notes),
    }
    ess = None
    if run.draws and program.EXACT is not None:
        ess, name = scores.effective(run.draws)
        result |= {"effective": ess, "worst_parameter": name}
    for wanted in WANTED:
        result[f"seconds_to_{wanted}"] = _seconds(total, run.sampling, ess, wanted)
    if reference is not None:
        result |= scores.errors(run.draws, run.moments, reference)
    return run, result


def _seconds(total: float, sampling: float | None, ess: float | None, wanted: int) -> float | None:
    """Seconds until so many effective draws; those of approximations are independent."""
    if ess is None:
        return total
    if not ess > 0:
        return None
    drawing = total if sampling is None else sampling
    return total - drawing + drawing * wanted / ess


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def work(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run what the command line says; a reason in place of numbers if it cannot be done."""
    clock = Clock(arguments.started)
    try:
        posterior, program = posterior_of(arguments.posterior), program_of(arguments.program)
        clock.mark("import")
        with clock.stopped():
            table = load(posterior, arguments.rows)
        job = Job(posterior, table, clock, length=arguments.length, seed=arguments.seed)
        same = arguments.rows is None
        reference = scores.read(arguments.posterior) if same else None
        run, result = measured(program, job, reference)
    except (CannotError, MissingPackageError) as error:
        return {"failed": str(error)}
    except ModuleNotFoundError as error:
        return {"failed": f"not installed: {error.name}"}
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {first[0][:200] if first else ''}"}
    if arguments.save is not None:
        np.savez(arguments.save, **run.draws)
    packages = ("pymc", "pytensor", "numba", "numpy", *program.PACKAGES)
    return result | {"failed": None, "versions": versions(packages)}


def main() -> None:
    """Read the command line, as the parent process wrote it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posterior", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--length", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.write_text(json.dumps(work(arguments)))


if __name__ == "__main__":
    main()
