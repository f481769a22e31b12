"""Where the microseconds of a transition go.

Times the parts of the compiled loop by themselves, on a logistic regression: medians over
repetitions, each of thousands of calls within compiled code.

    python benchmarks/transition.py --rows 1000000 --columns 20
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import pymc as pm
from numba import njit
from rich.console import Console
from rich.table import Table

import pymc_minibatch as pmb
from pymc_minibatch.jit.pointers import call_scalar
from pymc_minibatch.kernels.by_size import draw_by_size
from pymc_minibatch.kernels.rows import draw_rows, log_ratios_of, make_take
from pymc_minibatch.proposals.proposal import ProposalContext

CALLS = 20_000
REPETITIONS = 7


def logistic(n_rows: int, n_columns: int) -> pm.Model:
    """Build a logistic regression on simulated data."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n_rows, n_columns))
    y = rng.random(n_rows) < 1 / (1 + np.exp(-X @ rng.normal(0, 0.5, n_columns)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=n_columns)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y.astype(float))
    return model


def microseconds(run: Callable[[int], object]) -> float:
    """Time one call, in a loop that is compiled: the median of several."""
    run(10)
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        run(CALLS)
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return float(np.median(times))


def parts(step: pmb.MinibatchMH) -> dict[str, float]:
    """Time the parts of a transition of a tuned step."""
    rng = np.random.default_rng(2)
    point = step.reference.flat.copy()
    density, rows, place = (
        step.density,
        step.workspace,
        ProposalContext(step.guide, point, step._active),
    )
    proposed, candidate = point + 1e-3, point.copy()
    n, n_rows = int(step._first_batch[0]), step.n_rows
    propose, _ = step.proposal.build()
    state = step.proposal_state
    take = make_take([values.ndim for values in step.tall.data])
    by_size, weights = step.row_sizes is not None, np.empty(n)
    batch = take(density.data, np.arange(n))

    def bound(function: Callable[..., None], *arguments: object) -> Callable[[int], None]:
        return lambda calls: function(*arguments, calls)

    @njit
    def proposals(rng, point, candidate, state, place, calls):
        for _ in range(calls):
            propose(rng, point, candidate, state, place)

    @njit
    def bases(point, density, calls):
        total = 0.0
        for _ in range(calls):
            total += call_scalar(density.base, (point, density.constants))
        return total

    @njit
    def draw(rng, rows, n_rows, n, weights):
        if by_size:
            draw_by_size(rng, rows.table, rows.drawn[:n], weights)
        else:
            draw_rows(rng, n_rows, rows, 0, n)

    @njit
    def draws(rng, rows, n_rows, n, weights, calls):
        for _ in range(calls):
            draw(rng, rows, n_rows, n, weights)

    @njit
    def gathers(rng, density, rows, n_rows, n, weights, calls):
        total = 0.0
        for _ in range(calls):
            draw(rng, rows, n_rows, n, weights)
            total += take(density.data, rows.drawn[:n])[0][0, 0]
        return total

    @njit
    def evaluations(point, proposed, density, batch, log_ratios, calls):
        for _ in range(calls):
            log_ratios_of(point, proposed, density, batch, log_ratios)

    drawing = microseconds(bound(draws, rng, rows, n_rows, n, weights))
    gathering = microseconds(bound(gathers, rng, density, rows, n_rows, n, weights))
    values = {
        "proposal": microseconds(bound(proposals, rng, point, candidate, state, place)),
        "prior and surrogate": microseconds(bound(bases, point, density)),
        f"drawing {n} row numbers": drawing,
        f"gathering {n} rows": gathering - drawing,
        f"evaluating {n} rows twice": microseconds(
            bound(evaluations, point, proposed, density, batch, rows.log_ratios)
        ),
    }
    whole = microseconds(lambda calls: step.make_transitions(point, calls))
    values["decision and the rest"] = whole - sum(values.values())
    return values | {"a transition": whole}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--penalty", action="store_true", help="use the penalty test")
    parser.add_argument("--draw", choices=("size", "uniform"), default="uniform")
    options = parser.parse_args()
    acceptance = pmb.Penalty() if options.penalty else pmb.CorrectedBarker()
    with logistic(options.rows, options.columns) as model:
        step = pmb.MinibatchMH(acceptance=acceptance, row_sampling=options.draw, steps_per_draw=1)
        step.setup_chain(np.random.default_rng(3), 500, 0)
        point = model.initial_point()
        for _ in range(500):
            point, _ = step.step(point)
        step.stop_tuning()
        start = time.perf_counter()
        for _ in range(5000):
            point, _ = step.step(point)
        python = (time.perf_counter() - start) / 5000 * 1e6
    table = Table("part", "µs", title=f"{options.rows:,} rows, {options.columns} columns")
    values = parts(step)
    for name, value in values.items():
        table.add_row(name, f"{value:.2f}")
    table.add_row("Python of a draw", f"{python - values['a transition']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
