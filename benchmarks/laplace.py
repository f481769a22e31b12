"""Compare draws with the Laplace approximation, which a million rows make all but exact.

    python -m benchmarks.laplace --rows 1000000

NUTS takes minutes for the few hundred effective draws that tell 5 % of a standard deviation. The
mode and the Hessian of all rows tell 1 % at once: what they leave out falls as 1/√N. (Not so for
group effects, whose posterior the number of rows does not make normal.)
"""

import argparse

import numpy as np
import pymc as pm

import pymc_minibatch as pmb
from benchmarks.data import simulate
from benchmarks.models_pymc import build
from benchmarks.outcome import N_CHAINS
from benchmarks.report import machine, table, versions


def compared(name: str, rows: int, draws: int) -> list[str]:
    """Sample a model; return a line of the table."""
    with build(name, simulate(name, rows)) as model:
        reference = pmb.find_reference()
        idata = pm.sample(
            draws,
            tune=500,
            step=pmb.MinibatchMH(reference=reference, steps_per_draw=5),
            chains=N_CHAINS,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
            idata_kwargs={"include_transformed": True},
        )
    groups = [idata[group] for group in ("posterior", "unconstrained_posterior") if group in idata]
    found = {name: group[name].values for group in groups for name in group.data_vars}
    flat = np.concatenate(
        [found[v.name].reshape(N_CHAINS * draws, -1) for v in model.value_vars], axis=1
    )
    sd = np.sqrt(np.diag(reference.covariance))
    ratio = flat.std(axis=0) / sd
    difference = np.abs(flat.mean(axis=0) - reference.flat) / sd
    return [name, f"{difference.max():.3f}", f"{ratio.min():.3f} to {ratio.max():.3f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--draws", type=int, default=20_000, help="of each of two chains")
    options = parser.parse_args()
    print(machine(), versions(), sep="\n\n")
    models = ("logistic", "poisson", "negbinomial", "student")
    header = ["against mode and Hessian", "largest difference of means, SDs", "ratio of SDs"]
    print("\n" + table(header, [compared(name, options.rows, options.draws) for name in models]))


if __name__ == "__main__":
    main()
