"""Tables in Markdown of what was measured."""

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.outcome import N_CHAINS, Settings

__all__ = ["Contender", "machine", "report", "table", "versions", "write_section"]

WANTED, MANY = 1000, 20_000
"""Effective samples of the worst parameter."""

PACKAGES = ["pymc-minibatch", "pymc", "pytensor", "numba", "numpy", "nutpie", "numpyro", "jax"]

type Summary = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """What a sampler did cold and warm; text where it did not end, None where it was not run."""

    label: str
    settings: Settings
    cold: Summary | str | None
    warm: Summary | str | None


def report(
    command: str, model: str, rows: int, measured: Sequence[Contender], references: Sequence[str]
) -> str:
    """Write the section of one run."""
    done = [c for c in measured if isinstance(c.warm, dict)]
    known = {c.label: c.warm for c in done if isinstance(c.warm, dict)}
    labels = [label for label in references if label in known]
    reference = max(labels, key=lambda label: known[label]["ess_of_sd"], default=None)
    parts = [
        f"## {model}, {rows:,} rows\n",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}. {machine()}\n\n{versions()}\n",
        table(_speed_header(), [_speed_row(c) for c in measured]),
    ]
    if reference is not None:
        posterior = [_posterior_row(c, reference, known[reference]) for c in done]
        parts.append(table(_posterior_header(reference), posterior))
    parts += [_phases(done), _ratios(done)]
    return "\n".join(part for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def seconds_to_wanted(summary: Summary, seconds_per_draw: float, wanted: int = WANTED) -> float:
    """Return the time of the whole run, had it ended at the wanted number of effective samples."""
    total = sum(summary["phases"].values())
    drawing = seconds_per_draw * summary["draws"]
    return float(total - drawing + drawing * wanted / summary["ess"])


def _speed_header() -> list[str]:
    return [
        "sampler",
        f"seconds to {WANTED} effective, cold",
        "warm",
        f"to {MANY}, warm",
        "effective per second and chain",
        "all chains",
        "row evaluations per effective",
        "peak memory, MB",
        "draws (effective)",
    ]


def _speed_row(contender: Contender) -> list[str]:
    cold, warm = contender.cold, contender.warm
    if isinstance(cold, str):
        return [contender.label, cold, *[""] * 7]
    if not isinstance(warm, dict):
        return [contender.label, "", warm or "", *[""] * 6]
    draw = warm["seconds_per_draw"]
    rate = warm["ess_per_second"]
    times = [_time(cold, draw) if cold else "", _time(warm, draw)]
    times.append(f"{seconds_to_wanted(warm, draw, MANY):,.1f}")
    memory = max(summary["memory"] for summary in (cold, warm) if summary)
    return [
        contender.label,
        *times,
        f"{rate / N_CHAINS:,.3g}" if rate < 1e3 * N_CHAINS else f"{rate / N_CHAINS:,.0f}",
        f"{rate:,.3g}" if rate < 1e3 else f"{rate:,.0f}",
        f"{warm['row_evaluations_per_ess']:,.0f}",
        f"{memory / 1e6:,.0f}",
        f"{N_CHAINS} × {warm['draws']:,} ({warm['ess']:,.0f})",
    ]


def _time(summary: Summary, seconds_per_draw: float) -> str:
    mark = "*" if summary["ess"] < WANTED else ""
    return f"{seconds_to_wanted(summary, seconds_per_draw):,.1f}{mark}"


def _posterior_header(reference: str) -> list[str]:
    return [
        f"against {reference}",
        "largest difference of means, in SDs",
        "Monte Carlo error of it",
        "ratio of SDs",
        "Monte Carlo error of it",
    ]


def _posterior_row(contender: Contender, reference: str, truth: Summary) -> list[str]:
    assert isinstance(contender.warm, dict)
    if contender.label == reference:
        return [reference, *["reference"] * 4]
    names = list(truth["mean"])
    mean, other_mean, sd, other_sd = (
        np.concatenate([np.ravel(summary[key][name]) for name in names])
        for key in ("mean", "sd")
        for summary in (truth, contender.warm)
    )
    ratio = other_sd / sd
    inverse = [1 / truth[key] + 1 / contender.warm[key] for key in ("ess_of_mean", "ess_of_sd")]
    # Expected largest of as many independent normal variables.
    largest = np.sqrt(2 * np.log(max(2, mean.size)))
    return [
        contender.label,
        f"{np.max(np.abs(mean - other_mean) / sd):.3f}",
        f"{largest * np.sqrt(inverse[0]):.3f}",
        f"{ratio.min():.3f} to {ratio.max():.3f}",
        f"± {largest * np.sqrt(inverse[1] / 2):.3f}",
    ]


def _phases(done: Sequence[Contender]) -> str:
    """Say where the seconds of the whole runs went."""
    rows = []
    for contender in done:
        for name, summary in (("cold", contender.cold), ("warm", contender.warm)):
            if not isinstance(summary, dict):
                continue
            spent = ", ".join(f"{k} {v:.1f}" for k, v in summary["phases"].items())
            notes = ", ".join(f"{k} {v:.3g}" for k, v in summary["notes"].items())
            rows.append([f"{contender.label}, {name}", spent, notes])
    return table(["where the seconds went", "phases", "notes"], rows) if rows else ""


def _ratios(done: Sequence[Contender]) -> str:
    """Compare the first sampler with the others."""
    if len(done) < 2:
        return ""
    first, others = done[0], done[1:]
    rows = []
    for other in others:
        rates = [c.warm["ess_per_second"] for c in (first, other) if isinstance(c.warm, dict)]
        row = [f"{first.label} against {other.label}", f"{rates[0] / rates[1]:,.1f}"]
        for which in ("cold", "warm"):
            seconds = []
            for contender in (other, first):
                summary, warm = getattr(contender, which), contender.warm
                assert isinstance(warm, dict)
                if summary:
                    seconds.append(seconds_to_wanted(summary, warm["seconds_per_draw"]))
            row.append(f"{seconds[0] / seconds[1]:,.1f}" if len(seconds) == 2 else "")
        rows.append(row)
    header = ["times faster", "effective per second", f"to {WANTED} effective, cold", "warm"]
    return table(header, rows)


def write_section(page: Path, section: str) -> None:
    """Put a section on a page, in place of an earlier one with the same title."""
    text = page.read_text() if page.exists() else ""
    head, *others = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    title = section.splitlines()[0]
    kept = [other for other in others if other.splitlines()[0] != title]
    page.write_text("\n\n".join(part.strip() for part in (head, *kept, section)).lstrip() + "\n")


def machine() -> str:
    """Describe the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores ({processor}), {memory:.0f} GiB, {platform.system()}."


def versions() -> str:
    """List the versions of what took part."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed", file=sys.stderr)
    return ", ".join(found) + "."
