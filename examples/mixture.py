"""The mixture of two normals of Seita et al. (2017): figure 2 and table 1.

An Efficient Minibatch Acceptance Test for Metropolis-Hastings, section 6.1. A million rows of a
mixture of normals with unknown means, at temperature 10,000, sampled by random walks of standard
deviation 0.15 with three acceptance tests: MinibatchMH (the corrected Barker test), AustereMH(c)
with an error bound of 0.005, and MHSubLhd with γ = p = 2 and δ = 0.01. Table 1 is the mean number
of rows for a decision over several trials; figure 2 is the histogram of one trial, on logarithmic
axes.

Run ``python examples/mixture.py [--quick] [--trials N] [--draws N] [--figure FILE]``. ``--quick``
takes a hundredth of the rows and of the temperature, which leaves the posterior as it is, and 300
draws of one trial.
"""

import argparse
from pathlib import Path

import numpy as np
import pymc as pm
from xarray import DataTree

import pymc_minibatch as pmb

SEED = 20_111
SD1, SD2, SD_X = np.sqrt(10.0), 1.0, np.sqrt(2.0)
STEP_SD = 0.15
PAPER = {"MinibatchMH": 172, "AustereMH(c)": 12_562, "MHSubLhd": 67_508}


def tests(error_bound: float) -> dict[str, tuple]:
    """Each acceptance test, and the rows of its first batch."""
    return {
        "MinibatchMH": (pmb.CorrectedBarker(test_error=None), 50),
        "AustereMH(c)": (pmb.Austere(error_bound=error_bound), None),
        "MHSubLhd": (pmb.SubLhd(p=2.0, gamma=2.0, delta=0.01), 50),
    }


def build_model(n_rows: int) -> pm.Model:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 2, n_rows) + rng.normal(0.0, SD_X, n_rows)
    with pm.Model() as model:
        theta1 = pm.Normal("theta1", 0.0, SD1)
        theta2 = pm.Normal("theta2", 0.0, SD2)
        components = [pm.Normal.dist(theta1, SD_X), pm.Normal.dist(theta1 + theta2, SD_X)]
        pm.Mixture("x", [0.5, 0.5], components, observed=x)
    return model


def run(model: pm.Model, temperature: float, test: tuple, draws: int, trials: int) -> DataTree:
    """Sample with one acceptance test; a trial is a chain."""
    acceptance, batch_size = test
    with model:
        step = pmb.MinibatchMH(
            acceptance=acceptance,
            proposal=pmb.RandomWalk(cov=STEP_SD**2, adapt=False),
            batch_size=batch_size,
            temperature=temperature,
            control_variate=0,
            steps_per_draw=1,
        )
        return pm.sample(
            draws=draws,
            tune=50,
            chains=trials,
            cores=min(trials, 2),
            step=step,
            random_seed=SEED,
            initvals={"theta1": 0.0, "theta2": 1.0},
            progressbar=False,
            compute_convergence_checks=False,
        )


def table(runs: dict[str, DataTree]) -> str:
    """Table 1: rows for a decision, mean and standard deviation over trials."""
    lines = ["test          rows for a decision   rows scanned besides   accepted   paper"]
    for name, result in runs.items():
        stats = result.sample_stats
        means = stats.batch_size.mean("draw").values
        spread = f"± {means.std(ddof=1):,.0f}" if means.size > 1 else ""
        scanned = stats.n_scanned.mean().item() / 2
        lines.append(
            f"{name:13} {means.mean():9,.0f} {spread:<11} {scanned:16,.0f}"
            f" {stats.acceptance_rate.mean().item():14.2f} {PAPER[name]:9,}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows, one trial")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--error-bound", type=float, default=0.005, help="of AustereMH(c)")
    parser.add_argument("--figure", type=Path, default=Path("mixture.png"))
    args = parser.parse_args()
    n_rows = 10_000 if args.quick else 1_000_000
    trials, draws = (1, 300) if args.quick else (args.trials, args.draws)
    model, temperature = build_model(n_rows), n_rows / 100
    runs = {}
    for name, test in tests(args.error_bound).items():
        runs[name] = run(model, temperature, test, draws, trials)
        print(table({name: runs[name]}).split("\n")[1], flush=True)
    print(f"{n_rows:,} rows, temperature {temperature:,.0f}, {trials} trials of {draws} draws")
    print(table(runs))
    one_trial = {name: result.isel(chain=[0]) for name, result in runs.items()}
    pmb.plots.batch_sizes(one_trial).savefig(args.figure)
    print(f"figure: {args.figure}")


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    main()
