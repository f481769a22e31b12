"""Predictions of a small network: SGHMC with defaults, beside NUTS.

Regression on four inputs by 8 tanh units, 100,000 rows and 20,000 held out, noise with standard
deviation 0.5. Of each sampler: seconds, set-up included, and the mean log predictive density of
the held-out rows, for each chain and for all chains together, with its standard error over chains.
NUTS gets as many draws and as deep trees as it has time for.

Run ``python -m benchmarks.network [--nuts] [--draws 150] [--tune 250] [--depth 8]``.
"""

import argparse
import time

import numpy as np
import pymc as pm
from scipy.special import logsumexp

N_ROWS, HELD_OUT = 100_000, 20_000
INPUTS, UNITS, NOISE = 4, 8, 0.5
N_CHAINS = 4
DRAWS = 250
"""Of each chain, by which predictions are compared."""


def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Make inputs and outcomes, the held-out ones last."""
    X = rng.normal(size=(N_ROWS + HELD_OUT, INPUTS))
    mean = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] / 2 + np.tanh(3 * X[:, 3])
    return X, mean + NOISE * rng.normal(size=len(X))


def build(X: np.ndarray, y: np.ndarray) -> pm.Model:
    """Return the model as a user would write it."""
    with pm.Model() as model:
        W = pm.Normal("W", shape=(INPUTS, UNITS))
        b, v = pm.Normal("b", shape=UNITS), pm.Normal("v", shape=UNITS)
        mu = pm.math.tanh(X @ W + b) @ v + pm.Normal("c")
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y)
    return model


def log_densities(draws: dict[str, np.ndarray], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log p(y | θ) of each row, shape (draws, rows)."""
    found = np.empty((len(draws["c"]), len(y)))
    for i, (W, b, v, c, sigma) in enumerate(
        zip(*(draws[name] for name in ("W", "b", "v", "c", "sigma")), strict=True)
    ):
        z = (y - np.tanh(X @ W + b) @ v - c) / sigma
        found[i] = -0.5 * z**2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    return found


def pooled(densities: np.ndarray) -> float:
    """Return the mean log predictive density of all draws, shape (chains, draws, rows)."""
    n_chains, n_draws, _ = densities.shape
    return float(np.mean(logsumexp(densities, axis=(0, 1)) - np.log(n_chains * n_draws)))


def show(name: str, seconds: float, posterior: dict[str, np.ndarray], held_out: tuple) -> None:
    """Print a line; the standard error is that of the jackknife over chains."""
    n_draws = posterior["c"].shape[1]
    kept = np.linspace(0, n_draws - 1, min(DRAWS, n_draws)).astype(int)
    densities = np.array(
        [
            log_densities({k: v[chain, kept] for k, v in posterior.items()}, *held_out)
            for chain in range(N_CHAINS)
        ]
    )
    single = [pooled(densities[chain : chain + 1]) for chain in range(N_CHAINS)]
    without = [pooled(np.delete(densities, chain, axis=0)) for chain in range(N_CHAINS)]
    error = np.sqrt((N_CHAINS - 1) * np.var(without))
    chains = ", ".join(f"{value:.4f}" for value in single)
    print(
        f"{name}: {seconds:.0f} s; all chains {pooled(densities):.4f} ± {error:.4f}; each {chains}",
        flush=True,
    )


def run_ours(model: pm.Model) -> dict[str, np.ndarray]:
    """Sample with default settings."""
    import pymc_minibatch as pmb

    with model:
        trace = pm.sample(step=pmb.SGHMC(), chains=N_CHAINS, random_seed=1, progressbar=False)
    return {v.name: trace.posterior[v.name].values for v in model.free_RVs}


def run_nuts(model: pm.Model, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Sample with nutpie."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model, backend="jax", gradient_backend="jax")
    trace = nutpie.sample(
        compiled,
        draws=options.draws,
        tune=options.tune,
        chains=N_CHAINS,
        cores=2,
        seed=1,
        maxdepth=options.depth,
        progress_bar=False,
    )
    return {v.name: trace.posterior[v.name].values for v in model.free_RVs}


def main() -> None:
    """Run it and print a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nuts", action="store_true", help="run nutpie's NUTS as well")
    parser.add_argument("--draws", type=int, default=150, help="of each chain of NUTS")
    parser.add_argument("--tune", type=int, default=250)
    parser.add_argument("--depth", type=int, default=8, help="of its trees")
    options = parser.parse_args()
    X, y = simulate(np.random.default_rng(1))
    held_out = X[N_ROWS:], y[N_ROWS:]
    model = build(X[:N_ROWS], y[:N_ROWS])
    print(f"the true mean and noise: {-np.log(NOISE) - 0.5 * np.log(2 * np.pi * np.e):.4f}")
    start = time.perf_counter()
    posterior = run_ours(model)
    show("SGHMC", time.perf_counter() - start, posterior, held_out)
    if options.nuts:
        start = time.perf_counter()
        posterior = run_nuts(model, options)
        show("NUTS", time.perf_counter() - start, posterior, held_out)


if __name__ == "__main__":
    main()
