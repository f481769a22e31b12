"""SGFS against SGLD, as in Ahn, Korattikara and Welling (2012), section 5.1.

Bayesian Posterior Sampling via Stochastic Gradient Fisher Scoring. Logistic regression of sevens
against nines on 50 random projections of the pixels, with 10,000 rows, batches of 300 and standard
normal priors, sampled by SGFS with the full information (SGFS-f) and with its diagonal (SGFS-d) at
several alpha, and by SGLD without a preconditioner at several step sizes.

Two panels show the relative errors of mean and covariance (Frobenius norm) against a long run of
NUTS, over the autocorrelation time in steps, averaged over the coefficients. The grey line is the
error that as many steps would have if they came from the posterior itself. The third panel shows
two coefficients at alpha = 0: ellipses at two standard deviations, of the pair for which those of
SGFS-d and NUTS differ most. A step size that diverges is in the table and not in the figure.

Rows are digits, each in several copies that small shifts, rotations and deformations tell apart.
Their mean is taken off; with it one direction is so steep that SGLD needs far smaller steps.

Run ``python examples/sgfs_figure.py [--quick] [--steps N] [--nuts N] [--digits FILE] [--figure
FILE]``: N steps for each of two chains, N draws for each of NUTS's. FILE is an ``.npz`` with
`images` of shape (n, 784) and `labels`; without, scikit-learn downloads MNIST. ``--quick`` takes
2,000 rows, 5 projections and a few short runs; the whole, some ten minutes on two idle cores.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from digits import deformed_rows, load_digits
from matplotlib.ticker import NullFormatter
from pymc.exceptions import SamplingError

import pymc_minibatch as pmb

SEED = 2012
SEVEN, NINE = 7, 9
STRENGTH = 0.33
"""Of the deformations: shifts of a third of a pixel, rotations of 2 degrees."""

BURN_IN = 3000
CHAINS = 2
QUIET = {
    "progressbar": False,
    "compute_convergence_checks": False,
    "random_seed": SEED,
    "cores": CHAINS,
}


class Size(NamedTuple):
    """How much is computed; steps are those of a chain, `thin` of which make a draw."""

    n_rows: int
    n_projections: int
    batch_size: int
    n_steps: int
    thin: int
    nuts_draws: int
    settings: dict[str, tuple[float, ...]]


WHOLE = Size(
    n_rows=10_000,
    n_projections=50,
    batch_size=300,
    n_steps=500_000,
    thin=20,
    nuts_draws=20_000,
    settings={
        "SGFS-f": (0, 1, 2, 3, 4, 6),
        "SGFS-d": (0, 1, 2, 3),
        "SGLD": (1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 1e-4),
    },
)
QUICK = Size(
    n_rows=2_000,
    n_projections=5,
    batch_size=100,
    n_steps=20_000,
    thin=10,
    nuts_draws=1_000,
    settings={"SGFS-f": (0, 1), "SGFS-d": (0,), "SGLD": (1e-3, 1e-4)},
)


class Moments(NamedTuple):
    """Mean, covariance and autocorrelation time in steps, of a run of so many steps."""

    mean: np.ndarray
    covariance: np.ndarray
    time: float
    n_steps: int


def build_model(path: str | None, size: Size) -> pm.Model:
    rng = np.random.default_rng(SEED)
    images, labels = load_digits(path)
    chosen = rng.permutation(np.flatnonzero(np.isin(labels, [SEVEN, NINE])))
    rows = chosen[np.arange(size.n_rows) % chosen.size]
    pixels = deformed_rows(images[rows], rng, STRENGTH)
    scale = np.sqrt(size.n_projections)
    projection = rng.normal(size=(pixels.shape[1], size.n_projections)) / scale
    X = (pixels - pixels.mean(axis=0)) @ projection
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=size.n_projections)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=(labels[rows] == NINE))
    return model


def make_step(kind: str, setting: float, reference: pmb.Reference, size: Size):
    """Return a step without a control variate, as in the paper, that starts near the reference."""
    options = {
        "reference": reference,
        "control_variate": 0,
        "batch_size": size.batch_size,
        "steps_per_draw": size.thin,
    }
    if kind == "SGLD":
        return pmb.SGLD(step_size=setting, preconditioner="identity", **options)
    variant = "full" if kind == "SGFS-f" else "diagonal"
    return pmb.SGFS(variant=variant, alpha=setting, **options)


def moments(idata, thin: int = 1) -> Moments:
    draws = idata.posterior["beta"].values
    n_steps = thin * draws.shape[0] * draws.shape[1]
    effective = az.ess(idata.posterior.to_dataset(), method="mean")["beta"].values
    flat = draws.reshape(-1, draws.shape[-1])
    return Moments(flat.mean(axis=0), np.cov(flat.T), float(np.mean(n_steps / effective)), n_steps)


def relative_errors(found: Moments, truth: Moments) -> tuple[float, float]:
    """Of mean and covariance."""
    mean, covariance = found.mean - truth.mean, found.covariance - truth.covariance
    return (
        float(np.linalg.norm(mean) / np.linalg.norm(truth.mean)),
        float(np.linalg.norm(covariance) / np.linalg.norm(truth.covariance)),
    )


def floor(truth: Moments, time: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors to expect of so many steps if each were from a normal posterior."""
    trace = np.trace(truth.covariance)
    squared = np.linalg.norm(truth.covariance) ** 2
    share = time / n_steps
    return (
        np.sqrt(trace * share) / np.linalg.norm(truth.mean),
        np.sqrt((1 + trace**2 / squared) * share),
    )


def run(size: Size, model: pm.Model) -> tuple[Moments, dict[tuple[str, float], Moments]]:
    with model:
        reference = pmb.find_reference()
        step = pm.NUTS(scaling=reference.covariance, is_cov=True)
        nuts = pm.sample(size.nuts_draws, tune=500, chains=CHAINS, step=step, **QUIET)
    truth, found = moments(nuts), {}
    print("| sampler | setting | autocorrelation time | error of mean | error of covariance |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for kind, settings in size.settings.items():
        for setting in settings:
            name = f"| {kind} | {'ε' if kind == 'SGLD' else 'α'} = {setting:g} |"
            with model:
                step = make_step(kind, setting, reference, size)
                draws, tune = size.n_steps // size.thin, BURN_IN // size.thin
                try:
                    idata = pm.sample(draws, tune=tune, chains=CHAINS, step=step, **QUIET)
                except SamplingError:
                    print(f"{name} diverges | | |", flush=True)
                    continue
            result = found[kind, setting] = moments(idata, size.thin)
            mean, covariance = relative_errors(result, truth)
            print(f"{name} {result.time:,.0f} | {mean:.3f} | {covariance:.3f} |", flush=True)
    return truth, found


# --- Figure -----------------------------------------------------------------------------------


def ellipse(found: Moments, pair: np.ndarray) -> np.ndarray:
    """Two standard deviations about the mean of two coefficients, shape (2, n)."""
    angle = np.linspace(0, 2 * np.pi, 200)
    lower = np.linalg.cholesky(found.covariance[np.ix_(pair, pair)])
    return found.mean[pair, None] + 2 * lower @ [np.cos(angle), np.sin(angle)]


def most_different(found: Moments, truth: Moments) -> np.ndarray:
    """Return the pair whose covariances differ most, relative to the true standard deviations."""
    scale = np.sqrt(np.diag(truth.covariance))
    difference = abs(found.covariance - truth.covariance) / np.outer(scale, scale)
    np.fill_diagonal(difference, 0)
    return np.array(np.unravel_index(difference.argmax(), difference.shape))


def draw(truth: Moments, found: dict[tuple[str, float], Moments], path: Path) -> None:
    figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    color = dict(zip(kinds, pmb.plots.COLORS, strict=False))
    for k, kind in enumerate(kinds):
        runs = [result for (name, _), result in found.items() if name == kind]
        times = [result.time for result in runs]
        errors = zip(*[relative_errors(result, truth) for result in runs], strict=True)
        for panel, error in zip(panels, errors, strict=False):
            panel.loglog(times, error, marker="osD"[k], color=color[kind], label=kind)
    n_steps = next(iter(found.values())).n_steps
    ends = [result.time for result in found.values()]
    time = np.geomspace(min(ends), max(ends))
    for panel, error, what in zip(
        panels, floor(truth, time, n_steps), ("mean", "covariance"), strict=False
    ):
        panel.loglog(time, error, color="lightgrey", label="exact draws", zorder=0)
        panel.set(xlabel="autocorrelation time, steps", ylabel=f"relative error of the {what}")
        panel.xaxis.set_minor_formatter(NullFormatter())
    panels[0].legend(fontsize="small")
    pair = most_different(found["SGFS-d", 0], truth)
    panels[2].plot(*ellipse(truth, pair), color="lightgrey", linewidth=4, label="NUTS")
    for kind in ("SGFS-f", "SGFS-d"):
        panels[2].plot(*ellipse(found[kind, 0], pair), color=color[kind], label=f"{kind}, α = 0")
    panels[2].set(xlabel=f"coefficient {pair[0]}", ylabel=f"coefficient {pair[1]}")
    panels[2].legend(fontsize="small", loc="upper right")
    figure.savefig(path)
    print(f"figure: {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rows, projections and runs")
    parser.add_argument("--steps", type=int, help="of a chain of SGFS or SGLD")
    parser.add_argument("--nuts", type=int, help="draws of a chain of NUTS")
    parser.add_argument("--digits", metavar="FILE", help=".npz with images and labels")
    parser.add_argument("--figure", type=Path, default=Path("sgfs_figure.png"))
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else WHOLE
    size = size._replace(
        n_steps=options.steps or size.n_steps, nuts_draws=options.nuts or size.nuts_draws
    )
    truth, found = run(size, build_model(options.digits, size))
    draw(truth, found, options.figure)


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
