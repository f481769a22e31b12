"""Doctor visits in the RAND Health Insurance Experiment: MinibatchMH beside NUTS.

A negative binomial regression of the number of visits to a doctor (20,190 person-years) on the
terms of the insurance and on health. The data ship with statsmodels.

Run it with ``make demo``, or ``python examples/quickstart.py [--draws N] [--figure FILE]``.
"""

import argparse
import time
from pathlib import Path

import arviz as az
import pymc as pm
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from statsmodels.datasets import randhie
from xarray import DataTree

import pymc_minibatch as pmb

SEED = 20190


def build_model() -> pm.Model:
    """Regress visits on standardised predictors, with over-dispersion."""
    data = randhie.load_pandas().data
    predictors = data.drop(columns="mdvis")
    X = ((predictors - predictors.mean()) / predictors.std()).to_numpy()
    with pm.Model(coords={"predictor": list(predictors.columns)}) as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, dims="predictor")
        dispersion = pm.HalfNormal("dispersion", 1)
        mean = pm.math.exp(intercept + pm.Data("X", X) @ beta)
        visits = data["mdvis"].to_numpy().astype(int)
        pm.NegativeBinomial("visits", mu=mean, alpha=dispersion, observed=visits)
    return model


def fit(model: pm.Model, draws: int) -> tuple[dict[str, DataTree], dict[str, float]]:
    """Sample the same posterior twice; return the results and the seconds they took."""
    results, seconds = {}, {}
    settings = {"draws": draws, "chains": 2, "cores": 2, "random_seed": SEED}
    with model:
        start = time.perf_counter()
        step = pmb.MinibatchMH(steps_per_draw=10)
        results["MinibatchMH"] = pm.sample(step=step, tune=500, **settings)
        seconds["MinibatchMH"] = time.perf_counter() - start
        start = time.perf_counter()
        results["NUTS"] = pm.sample(tune=500, nuts_sampler="pymc", **settings)
        seconds["NUTS"] = time.perf_counter() - start
    return results, seconds


def comparison(results: dict[str, DataTree]) -> Table:
    """Put the posteriors side by side."""
    minibatch, nuts = (
        az.summary(results[name], round_to="none") for name in ("MinibatchMH", "NUTS")
    )
    table = Table(title="The same posterior: MinibatchMH (left) beside NUTS", box=SIMPLE_HEAD)
    table.add_column("parameter", no_wrap=True)
    for header in ("mean", "sd", "R-hat", "ESS", "NUTS mean", "sd", "ESS", "difference in SDs"):
        table.add_column(header, justify="right")
    for name, ours, theirs in zip(
        minibatch.index, minibatch.itertuples(), nuts.itertuples(), strict=True
    ):
        table.add_row(
            escape(name),
            f"{ours.mean:.4f}",
            f"{ours.sd:.4f}",
            f"{ours.r_hat:.3f}",
            f"{ours.ess_bulk:,.0f}",
            f"{theirs.mean:.4f}",
            f"{theirs.sd:.4f}",
            f"{theirs.ess_bulk:,.0f}",
            f"{(ours.mean - theirs.mean) / theirs.sd:+.2f}",
        )
    return table


def report_rows(stats: DataTree, n_rows: int) -> str:
    """Say how many rows the decisions took."""
    rows = stats["batch_size"].mean().item()
    error = stats["test_error"].max().item()
    return (
        f"MinibatchMH read {rows:,.0f} of {n_rows:,} rows per decision on average "
        f"({rows / n_rows:.1%}), and accepted {stats['acceptance_rate'].mean().item():.0%} of its "
        f"moves. The estimated error of an acceptance probability is at most {error:.0e}."
    )


def save_figure(results: dict[str, DataTree], path: Path) -> None:
    """Overlay the marginals."""
    plots = az.plot_dist(
        results,
        kind="kde",
        backend="matplotlib",
        visuals={"point_estimate": False, "point_estimate_text": False, "credible_interval": False},
        figure_kwargs={"figsize": (12, 9), "layout": "constrained"},
    )
    plots.add_legend("model")
    plots.savefig(path)


def main() -> None:
    """Fit, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000, help="draws of each chain that are kept")
    parser.add_argument("--figure", type=Path, default=Path("quickstart.png"))
    arguments = parser.parse_args()

    console = Console(width=max(100, Console().width))
    results, seconds = fit(build_model(), arguments.draws)
    n_rows = results["NUTS"].observed_data["visits"].size
    console.print(comparison(results))
    console.print(report_rows(results["MinibatchMH"].sample_stats, n_rows))
    for name, spent in seconds.items():
        console.print(f"{name}: {spent:.0f} seconds, with compilation and tuning.")
    save_figure(results, arguments.figure)
    console.print(f"The marginals are drawn in {arguments.figure}.")


if __name__ == "__main__":
    main()
