"""Can the fast posterior be trusted? One table and seven figures of one model.

A logistic regression with 50,000 made-up rows and five coefficients is sampled by MinibatchMH,
FlyMC and NUTS. The table is that of :func:`pymc_minibatch.compare`; the figures are all of
:mod:`pymc_minibatch.plots`. No paper's experiment is repeated here.

Run ``python examples/trust.py [--quick] [--figures FOLDER]``. ``--quick`` takes a tenth of the rows
and of the draws.
"""

import argparse
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from matplotlib import pyplot as plt

import pymc_minibatch as pmb

SEED = 1
BETA = np.array([0.5, -1.0, 0.0, 0.3, 0.8])


def rows(n_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n_rows, BETA.size))
    return X, rng.binomial(1, 1 / (1 + np.exp(-X @ BETA)))


def build_model(X: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=BETA.size)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    return model


def fit(model: pm.Model, draws: int) -> dict[str, xr.DataTree]:
    """Sample with three steps."""
    settings = {"draws": draws, "tune": 500, "chains": 2, "random_seed": SEED, "progressbar": False}
    with model:
        return {
            "MinibatchMH": pm.sample(
                step=pmb.MinibatchMH(acceptance="corrected_barker"), **settings
            ),
            "FlyMC": pm.sample(step=pmb.FlyMC(), **settings),
            "NUTS": pm.sample(nuts_sampler="pymc", **settings),
        }


def accuracy(run: xr.DataTree, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the share of right predictions, in per cent, by the mean of the draws so far."""
    beta = run.posterior["beta"].values
    mean = np.cumsum(beta, axis=1) / np.arange(1, beta.shape[1] + 1)[:, None]
    return 100 * (((mean @ X.T) > 0) == y).mean(axis=2)


def draw(runs: dict[str, xr.DataTree], held_out: tuple[np.ndarray, ...], folder: Path) -> None:
    """Draw each figure of the package into a file."""
    curves = {name: accuracy(run, *held_out) for name, run in runs.items()}
    label = "accuracy on rows held out (%)"
    figures = {
        "marginals": pmb.plots.marginals(runs),
        "running_mean": pmb.plots.running_mean(runs, "NUTS"),
        "error_by_rows": pmb.plots.error_by_rows(runs, "NUTS"),
        "accuracy_by_rows": pmb.plots.accuracy_by_rows(runs, curves, label=label),
        "batch_sizes": pmb.plots.batch_sizes(runs["MinibatchMH"]),
        "noise": pmb.plots.noise(runs["MinibatchMH"]),
        "bright_rows": pmb.plots.bright_rows(runs["FlyMC"]),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"trust_{name}.png")
    plt.close("all")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and the draws")
    parser.add_argument("--figures", metavar="FOLDER", type=Path, default=Path())
    options = parser.parse_args(arguments)
    size = 1 if options.quick else 10
    rng = np.random.default_rng(SEED)
    runs = fit(build_model(*rows(5_000 * size, rng)), draws=200 * size)
    print(pmb.compare(runs, baseline="NUTS").T.to_string(float_format="{:,.3g}".format))
    draw(runs, rows(2_000, rng), options.figures)
    print(f"figures: {options.figures}/trust_*.png")


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
