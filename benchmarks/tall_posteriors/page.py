"""The page of the documentation: a table, a picture, and what cells say, from the records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tall_posteriors.catalogue import POSTERIORS, PROGRAMS, posterior_of, program_of

__all__ = ["draw", "write"]

Record = dict[str, Any]

MARKERS = "osD^v<>PX*hdp"
"""A marker for each program."""

HEAD = """# Tall posteriors

<!-- Written by `python -m benchmarks.tall_posteriors table`. -->

This page compares programs that sample or approximate posteriors of real data, which ship with
Python packages. A cell shows the seconds from the start of Python until the worst parameter has 400
effective draws (bulk effective sample size, over all parameters), in a second run / in a first run,
which also compiles. An empty cell was not run. "no" means that the run did not get there; the
second table gives the reason.

The columns are in three groups. Samplers of the posterior itself come first. HMCECS, SGLD and SGHMC
follow. They sample an approximation of the posterior, so compare their seconds only together with
their errors. The last programs return an approximation or an estimate.
"""

NOTES = """
Reading the data from disk is not counted; building the model, compiling, tuning and sampling are.
If a run has more or fewer than 400 effective draws, its sampling time is scaled. Approximations
have no tuning and no Monte Carlo error to wait for: their cells show the seconds until they end,
and say nothing about their error.

"Worst z" is the largest difference from a reference run, over means and standard deviations, in
Monte Carlo errors. A dash means that there is no reference or nothing to compare.

Run a cell with `python -m benchmarks.tall_posteriors run POSTERIOR --program NAME`. Make a
reference with `python -m benchmarks.tall_posteriors reference POSTERIOR`.

PyINLA 0.1.13 was not run: at its first use, its wheel downloads the R-INLA program from another
host, which the machine of these measurements cannot reach.
"""


def seconds(value: float | None) -> str:
    """Write seconds, or a dash."""
    return "–" if value is None else f"{value:.3g}"


def cell(record: Record | None) -> str:
    """Return what the table says of a record."""
    if record is None:
        return ""
    if record["failed"] is not None or record["seconds_to_400_warm"] is None:
        return "no"
    warm, cold = record["seconds_to_400_warm"], record["seconds_to_400_cold"]
    return f"{seconds(warm)} / {seconds(cold)}{'*' if record['busy'] else ''}"


def write(records: Sequence[Record], page: Path) -> None:
    """Write the page."""
    found = {(r["posterior"], r["program"]): r for r in records if r.get("wanted_rows") is None}
    shown = [name for name in PROGRAMS if any(program == name for _, program in found)]
    head = ["posterior", "rows", *(program_of(name).TITLE for name in shown)]
    lines = [_line(head), _line(["---", "---:", *["---:" for _ in shown]])]
    for posterior in POSTERIORS:
        row = [found.get((posterior, program)) for program in shown]
        counts = {r["rows"] for r in row if r is not None and r["rows"] is not None}
        title, rows = posterior_of(posterior).TITLE, f"{min(counts):,}" if counts else ""
        lines.append(_line([title, rows, *map(cell, row)]))
    parts = [HEAD, "\n".join(lines) + "\n", _busy(found.values())]
    parts += ["![Seconds to 400 effective draws](images/tall_posteriors.svg)\n"]
    parts += [_faster(found), _details(found.values()), NOTES]
    page.write_text("\n".join(part for part in parts if part))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _busy(records: Any) -> str:
    if not any(r["busy"] for r in records):
        return ""
    return (
        "\\* The load of the machine was above one before the run, partly because of the preceding "
        "run. Compare cells within a row only.\n"
    )


def _faster(found: Mapping[tuple[str, str], Record]) -> str:
    """List the posteriors on which another sampler of the posterior itself is faster."""
    samplers = [name for name in PROGRAMS if program_of(name).EXACT]
    lines = []
    for posterior in POSTERIORS:
        times = {
            name: found[posterior, name]["seconds_to_400_warm"] or float("inf")
            for name in samplers
            if (posterior, name) in found
        }
        ours = times.get("minibatch", 0.0)
        lines += [
            f"- {posterior_of(posterior).TITLE}: {program_of(name).TITLE}, {seconds(time)} s."
            for name, time in times.items()
            if time < ours
        ]
    if not lines:
        return ""
    return "Samplers of the posterior itself that were faster than `MinibatchMH`:\n\n" + (
        "\n".join(lines) + "\n"
    )


def _details(records: Any) -> str:
    """List what each record says beside the seconds."""
    lines = ["| posterior | program | result | ESS, worst | peak | worst z | measured |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | --- |"]
    for r in records:
        drawn = f"{seconds(r['seconds_to_1000_warm'])} s to 1,000, warm"
        result = r["failed"] or ("an approximation" if r["effective"] is None else drawn)
        ess = "–" if r["effective"] is None else f"{r['effective']:,.0f}"
        peak = "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e9:.2f} GB"
        made = f"{r['date'][:10]}, {r['commit']}, load {r['load']}"
        row = [r["posterior"], r["program"], result, ess, peak, seconds(r["worst_z"]), made]
        lines.append(_line(row))
    return "\n".join(lines)


def draw(records: Sequence[Record], image: Path) -> None:
    """Draw the seconds of the second runs."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "tall posteriors"
    figure, axes = plt.subplots(figsize=(6.5, 0.5 * len(POSTERIORS) + 1.2))
    for k, program in enumerate(PROGRAMS):
        points = [
            (r["seconds_to_400_warm"], -POSTERIORS.index(r["posterior"]))
            for r in records
            if r["program"] == program and r["seconds_to_400_warm"] and not r.get("wanted_rows")
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, MARKERS[k % len(MARKERS)], label=program_of(program).TITLE)
    axes.set(xscale="log", xlabel="seconds to 400 effective draws, second run")
    axes.set_yticks(
        [-k for k in range(len(POSTERIORS))], [posterior_of(n).TITLE for n in POSTERIORS]
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(image, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
