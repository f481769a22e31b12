"""Models with so many groups that other samplers are out of reach, with defaults.

    python -m benchmarks.many_groups --model slopes
    python -m benchmarks.many_groups --model tens

Only coefficients and hyperparameters are traced. Memory is what the process holds at most beyond
what it held with the model built, and what each of the two chains holds at most.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_minibatch as pmb
from benchmarks.report import machine, table, versions

WANTED = 400
LARGEST = 10_000


def slopes(n_rows: int) -> pm.Model:
    """Logistic regression, 20 coefficients, intercepts and slopes of groups of 1 to 10,000 rows."""
    rng = np.random.default_rng(1)
    n_groups = n_rows // 100
    # The density of sizes falls like size^-1.5, so that their mean is 100.
    size = (1 - rng.random(n_groups) * (1 - LARGEST**-0.5)) ** -2
    group = rng.choice(n_groups, n_rows, p=size / size.sum())
    group[:n_groups] = np.arange(n_groups)
    X = rng.normal(size=(n_rows, 20))
    X[:, 0] = 1.0
    effect = rng.normal(size=(n_groups, 2)) * [0.6, 0.3]
    log_odds = X @ rng.normal(0, 0.3, 20) + effect[group, 0] + effect[group, 1] * X[:, 1]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=20)
        z = pm.Normal("z", shape=(2, n_groups))
        sd = pm.HalfNormal("sd", 1, shape=2)
        by_group = sd[0] * z[0][group] + sd[1] * z[1][group] * X[:, 1]
        y = rng.random(n_rows) < expit(log_odds)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta) + by_group, observed=y)
    return model


def tens(n_rows: int) -> pm.Model:
    """Count in groups of ten rows, an effect each."""
    rng = np.random.default_rng(2)
    n_groups = n_rows // 10
    group = np.repeat(np.arange(n_groups), 10)
    rate = np.exp(0.5 + 0.5 * rng.normal(size=n_groups)[group])
    with pm.Model() as model:
        effect = pm.Normal("mu", 0, 1) + pm.HalfNormal("sd", 1) * pm.Normal("z", shape=n_groups)
        pm.Poisson("y", pm.math.exp(effect[group]), observed=rng.poisson(rate))
    return model


MODELS: dict[str, Callable[[int], pm.Model]] = {f.__name__: f for f in (slopes, tens)}


def resident() -> float:
    """Return the memory in use, in GB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def peak(who: int) -> float:
    """Return the most memory that was in use, in GB."""
    return resource.getrusage(who).ru_maxrss / 1e6


def measure(name: str, n_rows: int, tune: int, draws: int) -> dict[str, Any]:
    """Sample with two chains."""
    model = MODELS[name](n_rows)
    before, started = resident(), time.perf_counter()
    with model:
        step = pmb.MinibatchMH()
        set_up = time.perf_counter() - started
        beside = peak(resource.RUSAGE_SELF) - before
        traced = [rv.name for rv in model.free_RVs if rv.name != "z"]
        idata = pm.sample(
            draws,
            tune=tune,
            chains=2,
            cores=2,
            step=step,
            var_names=traced,
            random_seed=1,
            progressbar=False,
        )
    sampling = time.perf_counter() - started - set_up
    kept = sampling * draws / (tune + draws)
    ess, r_hat = az.ess(idata), az.rhat(idata)
    worst = min(float(ess[name].min()) for name in traced)
    evaluated = float(idata.sample_stats["n_likelihood"].mean())
    swept = float(idata.sample_stats["rows_per_sweep"].mean())
    return {
        "rows": f"{n_rows:,}",
        "set-up (s)": f"{set_up:.1f}",
        "sampling (s)": f"{sampling:.1f}",
        "worst ESS": f"{worst:.0f}",
        "R-hat": f"{max(float(r_hat[name].max()) for name in traced):.3f}",
        f"s to {WANTED}": f"{set_up + sampling - kept + kept * WANTED / worst:.0f}",
        "rows a sweep": f"{swept / n_rows:.2%}",
        "rows a draw": f"{evaluated / 2 / n_rows:.1%}",
        "GB, set-up": f"{beside:.2f}",
        "GB, a chain": f"{peak(resource.RUSAGE_CHILDREN):.2f}",
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_groups", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=[*MODELS], default="slopes")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    found = measure(options.model, options.rows, options.tune, options.draws)
    print(f"{MODELS[options.model].__doc__}\n\n{table([*found], [[*found.values()]])}")
    print(f"\n{machine()}; {versions()}")


if __name__ == "__main__":
    main()
