"""Draw seconds against rows, from the tables of the page of benchmarks.

    python -m benchmarks.figure docs/benchmarks.md docs/images/seconds_by_rows.svg

The tables are those of ``python -m benchmarks --model logistic``, so each number of the figure can
be read on the page.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt

__all__ = ["Point", "draw", "read_points"]

WANTED = 1000
"""Effective samples of the worst parameter."""

SHOWN = {
    "PyMC NUTS (nutpie)": ("NUTS (nutpie)", "#c2571a", "o"),
    "NumPyro NUTS": ("NUTS (NumPyro)", "#8a6d00", "v"),
    "NumPyro HMCECS, 1000 rows": ("HMCECS, 1000 rows", "#8f6bb8", "D"),
    "NumPyro HMCECS, 100 rows": ("HMCECS, 100 rows (its best)", "#5b3a8c", "s"),
    "MinibatchMH": ("MinibatchMH", "#0b6e75", "^"),
}
"""For each sampler its label, colour and marker."""

TITLE = re.compile(r"^## logistic, (?P<rows>[\d,]+) rows(?P<more>.*)$", re.MULTILINE)
"""Of a section; those with more in the title were written by hand, and come second."""


class Point(NamedTuple):
    """A row of a table: seconds to 1000 effective samples; None where they were not measured."""

    sampler: str
    rows: int
    cold: float | None
    warm: float | None
    sampling: float


def read_points(page: str) -> list[Point]:
    """Read all tables of seconds for the logistic regression; the first of each sampler counts."""
    found: dict[tuple[str, int], Point] = {}
    for title in sorted(TITLE.finditer(page), key=lambda title: bool(title["more"])):
        rows = int(title["rows"].replace(",", ""))
        section = page[title.end() :].split("\n## ")[0]
        for point in _of_section(section, rows):
            found.setdefault((point.sampler, rows), point)
    return list(found.values())


def _of_section(section: str, rows: int) -> list[Point]:
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    header = next(line for line in lines if line[0] == "sampler")
    points = []
    for line in lines[lines.index(header) + 2 :]:
        if len(line) != len(header):
            break
        cells = dict(zip(header, line, strict=True))
        if cells["sampler"] in SHOWN and (rate := _number(cells["all chains"])):
            cold, warm = (
                _number(cells[k]) for k in (f"seconds to {WANTED} effective, cold", "warm")
            )
            points.append(Point(cells["sampler"], rows, cold, warm, WANTED / rate))
    return points


def _number(cell: str) -> float | None:
    cleaned = cell.replace(",", "").replace("*", "").strip()
    return float(cleaned) if re.fullmatch(r"[\d.]+", cleaned) else None


def draw(points: list[Point], path: Path) -> None:
    """Draw the whole time and that of sampling against the number of rows, on logarithmic axes."""
    matplotlib.rcParams.update(
        {"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    figure, (whole, sampling) = plt.subplots(1, 2, figsize=(6.4, 4), sharey=True)
    for sampler, (label, colour, marker) in SHOWN.items():
        mine = sorted((p for p in points if p.sampler == sampler), key=lambda p: p.rows)
        for axis, kind, line in (
            (whole, "cold", "--"),
            (whole, "warm", "-"),
            (sampling, "sampling", "-"),
        ):
            known = [(p.rows, y) for p in mine if (y := getattr(p, kind)) is not None]
            filled = colour if line == "-" else "white"
            axis.plot(
                *zip(*known, strict=True) if known else ([], []),
                line,
                color=colour,
                marker=marker,
                markerfacecolor=filled,
                label=label if kind == "sampling" else None,
            )
    whole.set_title("from the start (dashed: first run)", fontsize=10)
    sampling.set_title("sampling alone", fontsize=10)
    whole.set_ylabel(f"seconds to {WANTED:,} effective draws")
    for axis in (whole, sampling):
        axis.set(xscale="log", yscale="log", xlabel="rows")
        axis.grid(which="major", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)
    figure.tight_layout(rect=(0, 0.19, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("page", type=Path)
    parser.add_argument("image", type=Path)
    options = parser.parse_args()
    draw(read_points(options.page.read_text()), options.image)


if __name__ == "__main__":
    main()
