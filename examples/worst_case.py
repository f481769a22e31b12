"""The worst case of Seita et al. (2017), section 2.2: a normal mean with N rows.

An Efficient Minibatch Acceptance Test for Metropolis-Hastings, lemma 1. Rows are normal with known
variance 1, the prior of the mean is flat, so that the posterior's standard deviation is 1/√N. With
steps of that size the sequential tests, AustereMH and MHSubLhd, read all rows with a probability
that does not fall with N: whatever the data, now and then the threshold is too near the mean.

The table and the figure show rows for a decision against N, and the share of decisions that read
all. The corrected Barker test needs s² < 1 instead, a number of rows that goes with the square of
the step: it too needs a share of N with full steps, which steps a tenth as long make a hundred
times smaller. With the quadratic control variate, exact here, it needs none.

Run ``python examples/worst_case.py [--quick] [--draws N] [--figure FILE]``. ``--quick`` takes 1,000
and 10,000 rows, two of the tests and 300 draws.
"""

import argparse
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib import pyplot as plt

import pymc_minibatch as pmb

SEED = 22
SIZES = (1_000, 10_000, 100_000, 1_000_000)
STEPS = (1.0, 0.1)
"""Standard deviation of a step, in posterior standard deviations."""

FIRST_BATCH = 100

TESTS = {
    "MinibatchMH": (pmb.CorrectedBarker(test_error=None), 0),
    "AustereMH(nc)": (pmb.Austere(variant="nc"), 0),
    "AustereMH(c)": (pmb.Austere(), 0),
    "MHSubLhd": (pmb.SubLhd(), 0),
    "MinibatchMH, control variate": (pmb.CorrectedBarker(test_error=None), 2),
}


QUICK = ("MinibatchMH", "AustereMH(nc)")


def build_model(n_rows: int) -> pm.Model:
    x = np.random.default_rng(SEED).normal(size=n_rows)
    with pm.Model() as model:
        theta = pm.Flat("theta")
        pm.Normal("x", theta, 1.0, observed=x - x.mean())
    return model


def rows_read(model: pm.Model, n_rows: int, test: str, step_sd: float, draws: int) -> np.ndarray:
    """Return the rows of each decision of a chain that starts at the posterior mean."""
    acceptance, order = TESTS[test]
    with model:
        step = pmb.MinibatchMH(
            acceptance=acceptance,
            proposal=pmb.RandomWalk(cov=step_sd**2 / n_rows, adapt=False),
            batch_size=None if isinstance(acceptance, pmb.Austere) else FIRST_BATCH,
            control_variate=order,
        )
        result = pm.sample(
            draws=draws,
            tune=0,
            chains=1,
            step=step,
            random_seed=SEED,
            initvals={"theta": 0.0},
            progressbar=False,
            compute_convergence_checks=False,
        )
    return result.sample_stats.batch_size.values[0]


def draw(curves: dict[tuple[str, float], list[float]], sizes: tuple[int, ...], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, step_sd in zip(panels, STEPS, strict=True):
        panel.plot(sizes, sizes, color="lightgrey", label="all rows")
        for k, test in enumerate(TESTS):
            if (test, step_sd) in curves:
                style = {"color": pmb.plots.COLORS[k], "marker": "osD^v"[k], "markersize": 4}
                panel.plot(sizes, curves[test, step_sd], label=test, **style)
        panel.set_title(f"steps of {step_sd:g} posterior sd")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("rows of the data")
    panels[0].set_ylabel("rows for a decision, mean")
    panels[0].legend(fontsize="small")
    figure.savefig(path)
    print(f"figure: {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sizes, two tests, few draws")
    parser.add_argument("--draws", type=int, default=1000, help="for each line of the table")
    parser.add_argument("--figure", type=Path, default=Path("worst_case.png"))
    options = parser.parse_args(arguments)
    sizes, draws = ((1_000, 10_000), 300) if options.quick else (SIZES, options.draws)
    tests = QUICK if options.quick else TESTS
    print(f"share of all rows for a decision (share of decisions that read all), {draws} draws")
    print("| step | test |" + "".join(f" N = {size:,} |" for size in sizes))
    print("| ---: | --- |" + " ---: |" * len(sizes))
    models = {size: build_model(size) for size in sizes}
    curves = {}
    for step_sd in STEPS:
        for test in tests:
            rows = [rows_read(models[size], size, test, step_sd, draws) for size in sizes]
            curves[test, step_sd] = [read.mean() for read in rows]
            cells = [
                f" {read.mean() / size:.2%} ({np.mean(read == size):.0%}) |"
                for read, size in zip(rows, sizes, strict=True)
            ]
            print(f"| {step_sd:g} | {test} |" + "".join(cells), flush=True)
    draw(curves, sizes, options.figure)


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
