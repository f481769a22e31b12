"""Compare acceptance tests by the number of parameters, by the kernel alone.

    python -m benchmarks.dimensions --dims 20 100 300 500 --rows 1000000

Dense logistic regressions with float32 predictors. `pm.sample` takes no part: a step makes draws by
itself, in one process. The last column says which test the defaults take.
"""

import argparse
import time
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_minibatch as pmb
from benchmarks.report import machine, table, versions

TESTS = ("exact", "penalty", "corrected_barker")
TUNE, FEWEST_DRAWS = 200, 200
WATCHED = 20
"""Coefficients whose effective sample size is taken."""


class Speed(NamedTuple):
    """What the transitions of a step did."""

    rows: float
    accepted: float
    ess_per_second: float


def build(rows: int, dim: int) -> pm.Model:
    """Return a dense logistic regression, whose predictors tell about as much at any dimension."""
    rng = np.random.default_rng(dim)
    X = rng.standard_normal((rows, dim), dtype=np.float32)
    X[:, 0] = 1.0
    y = rng.random(rows) < expit(X @ (rng.normal(size=dim) / np.sqrt(dim)).astype(np.float32))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=dim)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y.astype(np.int8))
    return model


def speed(step: pmb.MinibatchMH, seconds: float) -> Speed:
    """Tune, and make draws for some seconds."""
    step.setup_chain(np.random.default_rng(1), TUNE, 0)
    point = step.tall.model.initial_point()
    for _ in range(TUNE):
        point, _ = step.step(point)
    step.stop_tuning()
    flat = step.tall.layout.flatten(point)
    draws, counts = [], np.zeros(4)
    started = time.perf_counter()
    while len(draws) < FEWEST_DRAWS or time.perf_counter() - started < seconds:
        totals = step.make_transitions(flat, step.steps_per_draw)
        counts += (totals.batch_rows, totals.n_decisions, totals.n_accepted, step.steps_per_draw)
        draws.append(flat[:WATCHED].copy())
    took = time.perf_counter() - started
    ess = min(float(az.ess(values[None])) for values in np.transpose(draws))
    return Speed(counts[0] / max(counts[1], 1), counts[2] / counts[3], ess / took)


def compared(rows: int, dim: int, seconds: float) -> list[list[str]]:
    """Return the lines of one number of parameters."""
    model = build(rows, dim)
    reference = pmb.find_reference(model)
    started = time.perf_counter()
    chosen = type(pmb.MinibatchMH(model=model, reference=reference).acceptance).__name__
    set_up = time.perf_counter() - started
    found = {}
    for name in TESTS:
        step = pmb.MinibatchMH(model=model, reference=reference, acceptance=name)
        found[type(step.acceptance).__name__] = speed(step, seconds)
    best = max(result.ess_per_second for result in found.values())
    return [
        [
            str(dim),
            name,
            f"{result.rows:,.0f}",
            f"{result.accepted:.2f}",
            f"{result.ess_per_second:,.0f}",
            f"{result.ess_per_second / best:.2f}",
            f"{reference.seconds:.0f} + {set_up:.0f}",
            "default" if name == chosen else "",
        ]
        for name, result in found.items()
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[20, 100, 300, 500])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of draws, for each test")
    options = parser.parse_args()
    print(machine(), versions(), sep="\n\n")
    lines = []
    for dim in options.dims:
        lines += compared(options.rows, dim, options.seconds)
        print(*(" ".join(line) for line in lines[-len(TESTS) :]), sep="\n", flush=True)
    header = [
        "parameters",
        "test",
        "rows per decision",
        "accepted",
        "effective per second",
        "of the best",
    ]
    print("\n" + table([*header, "set-up, s", ""], lines))


if __name__ == "__main__":
    main()
