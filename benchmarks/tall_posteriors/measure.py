"""Run cells of the table, each in processes of its own, and keep their records."""

import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.outcome import caches_in

__all__ = ["KEYS", "LIMIT", "RESULTS", "cell", "keep", "process", "records"]

RESULTS = Path(__file__).parent / "results.json"

LIMIT = 600.0
"""Seconds that a program has."""

COMMAND = ("-m", "benchmarks.tall_posteriors.worker")
"""What a worker runs."""

BUSY = 0.5
"""Load of the machine before a run, for each core, beyond which the record says that it is busy."""

KEYS = (
    "posterior",
    "program",
    "seconds_to_400_warm",
    "seconds_to_400_cold",
    "seconds_to_1000_warm",
    "seconds_to_1000_cold",
    "peak_bytes",
    "worst_z",
    "worst_mean_error",
    "worst_sd_error",
    "effective",
    "rows",
    "rows_read",
    "failed",
    "versions",
    "machine",
    "load",
    "busy",
    "commit",
    "date",
)
"""What every record has."""

MEASURED = ("peak_bytes", "worst_z", "worst_mean_error", "worst_sd_error", "effective")
MEASURED += ("worst_parameter", "worst_z_of", "compared", "rows_read", "phases", "notes")


def process(
    posterior: str,
    program: str,
    caches: Path,
    limit: float = LIMIT,
    *,
    rows: int | None = None,
    length: float = 1.0,
    seed: int = 1,
    save: Path | None = None,
) -> dict[str, Any]:
    """Run a program in a fresh process, whose compiled code is kept in the folder `caches`."""
    environment = caches_in(caches) | {
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    output = caches / "outcome.json"
    output.unlink(missing_ok=True)
    command = [sys.executable, *COMMAND]
    command += ["--posterior", posterior, "--program", program, "--output", str(output)]
    command += ["--length", str(length), "--seed", str(seed)]
    command += [] if rows is None else ["--rows", str(rows)]
    command += [] if save is None else ["--save", str(save)]
    log = Path(tempfile.gettempdir()) / f"tall-posteriors-{posterior}-{program}.log"
    command += ["--started", repr(time.perf_counter())]
    with log.open("w") as errors:
        worker = subprocess.Popen(
            command, env=environment, stdout=errors, stderr=errors, start_new_session=True
        )
        try:
            code = worker.wait(limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done within {limit:.0f} s"}
        finally:
            _end(worker)
    if code or not output.exists():
        return {"failed": f"ended with exit code {code}; see {log.name}"}
    return json.loads(output.read_text())


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End a worker and the processes of its chains, which would disturb the next cell."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def cell(
    posterior: str,
    program: str,
    limit: float = LIMIT,
    *,
    rows: int | None = None,
    cold: bool = True,
) -> dict[str, Any]:
    """Measure a cell: first without compiled code, then with what that left behind."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        first = process(posterior, program, Path(folder), limit, rows=rows)
        again = first
        if first["failed"] is None:
            again = process(posterior, program, Path(folder), limit, rows=rows)
    record: dict[str, Any] = dict.fromkeys(KEYS)
    record |= {"posterior": posterior, "program": program, "rows": again.get("rows", rows)}
    # What is not done the second time, on a busy machine, was done the first time.
    last = again if again["failed"] is None else first
    record |= {name: last.get(name) for name in MEASURED}
    for wanted in (400, 1000):
        key = f"seconds_to_{wanted}"
        record |= {f"{key}_cold": first.get(key) if cold else None, f"{key}_warm": again.get(key)}
    record |= {"failed": again["failed"], "versions": last.get("versions", {})}
    return rounded(record) | provenance(before)


def provenance(load: float) -> dict[str, Any]:
    """Return when and with what a record was made."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    cores = os.cpu_count() or 1
    return {
        "machine": f"{platform.machine()}, {cores} cores, {platform.system()}, "
        f"Python {platform.python_version()}",
        "load": round(load, 1),
        "busy": load > BUSY * cores,
        "commit": commit or None,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }


def rounded(value: Any) -> Any:
    """Keep four digits of all floating-point numbers; infinite ones and NaN become null."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < float("inf") else None
    return value


def records(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Read the records."""
    return json.loads(path.read_text()) if path.exists() else []


def keep(record: dict[str, Any], path: Path = RESULTS) -> None:
    """Put a record in the place of the last one of the same cell and number of rows."""

    def cell_of(r: dict[str, Any]) -> tuple[Any, ...]:
        return r["posterior"], r["program"], r.get("wanted_rows")

    others = [r for r in records(path) if cell_of(r) != cell_of(record)]
    lines = [json.dumps(r) for r in sorted([*others, record], key=lambda r: str(cell_of(r)))]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
