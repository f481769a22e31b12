"""Held-out predictions of a small network: SGHMC beside PyMC's NUTS by nutpie.

Regression on four inputs with 8 tanh units, 100,000 rows, standard normal weights. SGHMC samples by
``pm.sample(step=pmb.SGHMC())`` with all defaults but `cores`; NUTS has four chains, of as many
draws as are asked for. The log predictive density of 20,000 held-out rows is that of the mixture of
the draws, of each chain and of all together. ± is the standard error of the mean over rows of the
difference to the density that made the rows.

Run ``python benchmarks/network.py [--nutpie PYTHON] [--tune T] [--draws D] [--depth M]``, with an
interpreter that has nutpie; it may be another one than that which has this package.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import pymc as pm
from scipy.special import logsumexp
from scipy.stats import norm

N_ROWS, N_HELD_OUT, UNITS, SD = 100_000, 20_000, 8, 0.5
SCORED = 200
"""Draws of each chain that are scored."""

VARIABLES = ("W", "b", "v", "sigma")


def function(X: np.ndarray) -> np.ndarray:
    """Return the mean that made the rows."""
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] / 2 + abs(X[:, 3])


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and outcomes, of which the last are held out."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N_ROWS + N_HELD_OUT, 4))
    return X, function(X) + SD * rng.normal(size=len(X))


def build(X: np.ndarray, y: np.ndarray) -> pm.Model:
    """Return the network."""
    with pm.Model() as model:
        W, b = pm.Normal("W", shape=(4, UNITS)), pm.Normal("b", shape=UNITS)
        mu = pm.math.tanh(X @ W + b) @ pm.Normal("v", shape=UNITS)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y)
    return model


def log_predictive(draws: dict[str, np.ndarray], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log density of each row for each chain, with draws of shape (chain, draw, ...)."""
    n_chains, n_draws = draws["sigma"].shape
    chosen = np.unique(np.linspace(0, n_draws - 1, SCORED).astype(int))
    found = np.empty((n_chains, len(chosen), len(y)))
    for chain in range(n_chains):
        for i, draw in enumerate(chosen):
            W, b, v, sigma = (draws[name][chain, draw] for name in VARIABLES)
            found[chain, i] = norm.logpdf(y, np.tanh(X @ W + b) @ v, sigma)
    return logsumexp(found, axis=1) - np.log(len(chosen))


def by_sghmc(model: pm.Model) -> dict[str, np.ndarray]:
    """Sample with the defaults."""
    import pymc_minibatch as pmb

    with model:
        idata = pm.sample(step=pmb.SGHMC(), cores=1, progressbar=False, random_seed=1)
    return {name: idata.posterior[name].values for name in VARIABLES}


def by_nuts(model: pm.Model, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Sample by nutpie."""
    import nutpie

    idata = nutpie.sample(
        nutpie.compile_pymc_model(model),
        draws=arguments.draws,
        tune=arguments.tune,
        chains=4,
        cores=arguments.cores,
        maxdepth=arguments.depth,
        seed=1,
        progress_bar=False,
    )
    return {name: idata.posterior[name].values for name in VARIABLES}


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Sample by one method, and score its predictions."""
    X, y = simulate()
    model = build(X[:N_ROWS], y[:N_ROWS])
    started = time.perf_counter()
    draws = by_nuts(model, arguments) if arguments.one == "NUTS" else by_sghmc(model)
    seconds = time.perf_counter() - started
    X, y = X[N_ROWS:], y[N_ROWS:]
    best = norm.logpdf(y, function(X), SD)
    chains = log_predictive(draws, X, y)
    pooled = logsumexp(chains, axis=0) - np.log(len(chains)) - best
    return {
        "seconds": seconds,
        "best": float(best.mean()),
        "chains": (chains - best).mean(axis=1).tolist(),
        "pooled": float(pooled.mean()),
        "error": float(pooled.std() / np.sqrt(len(y))),
    }


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nutpie", metavar="PYTHON", help="interpreter that has nutpie")
    parser.add_argument("--tune", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--depth", type=int, default=8, help="NUTS takes at most 2^M steps a draw")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--one", choices=("SGHMC", "NUTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments)))
        return
    print("method | seconds | pooled | chains")
    for name, python in (("SGHMC", sys.executable), ("NUTS", arguments.nutpie)):
        if python is None:
            continue
        command = [python, __file__, *sys.argv[1:], "--one", name]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(finished.stdout.splitlines()[-1])
        chains = ", ".join(f"{value:.4f}" for value in sorted(found["chains"], reverse=True))
        pooled = f"{found['pooled']:.4f} ± {found['error']:.4f}"
        print(f"{name} | {found['seconds']:.0f} | {pooled} | {chains}", flush=True)


if __name__ == "__main__":
    main()
