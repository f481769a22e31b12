"""Tall posteriors: measure, list, make references, write the table.

    python -m benchmarks.tall_posteriors run [POSTERIOR ...] [--program NAME ...]
    python -m benchmarks.tall_posteriors list
    python -m benchmarks.tall_posteriors reference POSTERIOR
    python -m benchmarks.tall_posteriors table

A run takes each posterior with each program, in processes of their own: cold, then warm. Records
go to results.json beside this file, in the place of older ones of the same cell.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.tall_posteriors import measure
from benchmarks.tall_posteriors.catalogue import POSTERIORS, PROGRAMS, posterior_of, program_of

DOCS = Path(__file__).parents[2] / "docs"


def run(options: argparse.Namespace) -> None:
    """Measure cells."""
    for posterior in options.posteriors or POSTERIORS:
        for program in options.program or PROGRAMS:
            print(f"{posterior} by {program} ...", file=sys.stderr, flush=True)
            rows = None if options.rows is None else int(options.rows)
            record = measure.cell(posterior, program, options.limit, rows=rows)
            if rows is not None:
                record["wanted_rows"] = rows
            print(short(record), flush=True)
            measure.keep(record, options.results)


def short(record: dict) -> str:
    """Return a line about a record."""
    if record["failed"] is not None:
        return f"  {record['failed']}"
    warm, cold = record["seconds_to_400_warm"], record["seconds_to_400_cold"]
    return (
        f"  to 400 effective: {warm} s warm, {cold} s cold; ESS {record['effective']}; "
        f"{record['peak_bytes'] / 1e9:.2f} GB; worst z {record['worst_z']} "
        f"({record.get('worst_z_of')}), mean off by {record['worst_mean_error']} sd"
    )


def show(options: argparse.Namespace) -> None:
    """Print posteriors and programs."""
    for name in POSTERIORS:
        module = posterior_of(name)
        print(f"{name:24} {module.__doc__.splitlines()[0]} [{', '.join(module.PACKAGES)}]")
    print()
    for name in PROGRAMS:
        print(f"{name:24} {program_of(name).SETTINGS}")


def reference(options: argparse.Namespace) -> None:
    """Make the reference of a posterior from two samplers."""
    from benchmarks.tall_posteriors.reference import make

    print(make(options.posterior, options.samplers, options.length, options.limit, options.keep))


def table(options: argparse.Namespace) -> None:
    """Write the page and its picture."""
    from benchmarks.tall_posteriors.page import draw, write

    read = measure.records(options.results)
    write(read, options.page)
    draw(read, options.image)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tall_posteriors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure cells")
    runs.add_argument("posteriors", nargs="*", metavar="POSTERIOR", help="all if none is named")
    runs.add_argument("--program", nargs="+", metavar="NAME", choices=PROGRAMS)
    runs.add_argument("--limit", type=float, default=measure.LIMIT, help="seconds for each process")
    runs.add_argument(
        "--rows", type=float, help="resample so many rows, with noise if they are more"
    )
    runs.add_argument("--results", type=Path, default=measure.RESULTS)
    runs.set_defaults(command=run)
    commands.add_parser("list", help="posteriors and programs").set_defaults(command=show)
    made = commands.add_parser("reference", help="make a reference from long runs of two samplers")
    made.add_argument("posterior", choices=POSTERIORS)
    made.add_argument("--samplers", nargs="+", default=["minibatch", "nutpie"], choices=PROGRAMS)
    made.add_argument("--length", type=float, nargs="+", default=[10.0, 4.0])
    made.add_argument("--limit", type=float, default=3600.0, help="seconds for each sampler")
    made.add_argument("--keep", type=Path, help="a folder for the draws; what is there is used")
    made.set_defaults(command=reference)
    tables = commands.add_parser("table", help="write the page of the documentation")
    tables.add_argument("--results", type=Path, default=measure.RESULTS)
    tables.add_argument("--page", type=Path, default=DOCS / "tall_posteriors.md")
    tables.add_argument("--image", type=Path, default=DOCS / "images" / "tall_posteriors.svg")
    tables.set_defaults(command=table)
    options = parser.parse_args()
    unknown = set(getattr(options, "posteriors", [])) - set(POSTERIORS)
    if unknown:
        parser.error(f"no posterior is called {', '.join(sorted(unknown))}")
    options.command(options)


if __name__ == "__main__":
    main()
