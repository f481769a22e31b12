"""The two figures of Giles et al. (2016): multilevel SGLD on logistic regressions, MALA beside it.

The expectation is that of |β − mode|². The first figure shows how coupled paths come together, and
how variance and mean of the differences fall with the level, for four variants. The second shows
the error by cost, and the cost of a relative error of 5 % (10 % in the quick mode) by the number of
rows. MALA reads all rows at each step; it has the preconditioner of the multilevel runs and the
step size that is optimal for a Gaussian. Cost is counted in evaluations of rows: MALA's gradient
counts as one for each row, that with a Taylor expansion as three.

The truth is the mean of all chains of MALA together with what is known for many rows: the trace of
the covariance at the mode, relative to which it differs by c/N. It is that of the chains up to 10⁴
rows, and with c from these for more.

Run ``python examples/multilevel.py [--quick] [--repetitions N] [--figures DIR]``. ``--quick`` takes
less than a minute, the whole with up to 10⁶ rows most of an hour.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from numba import njit

import pymc_minibatch as pmb
from pymc_minibatch.multilevel.estimand import make_estimand
from pymc_minibatch.multilevel.level import Schedule
from pymc_minibatch.multilevel.paths import Paths, identity
from pymc_minibatch.multilevel.result import MultilevelResult
from pymc_minibatch.multilevel.run import Accuracy
from pymc_minibatch.multilevel.sgld import estimate
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.gradient import make_gradient_target

DIM, BATCH = 3, 32

VARIANTS = {  # antithetic, Taylor, average
    "plain": (False, False, 1),
    "antithetic": (True, False, 1),
    "antithetic, Taylor": (True, True, 1),
    "antithetic, Taylor, averaged": (True, True, 32),
}


class Problem(NamedTuple):
    """A logistic regression and its mode."""

    X: np.ndarray
    y: np.ndarray
    model: pm.Model
    reference: pmb.Reference

    def squared_distance(self, beta):
        return ((beta - self.reference.mode["beta"]) ** 2).sum()


class Size(NamedTuple):
    """How much is computed."""

    n_rows: list[int]
    rtols: list[float]
    repetitions: int
    mala_steps: list[int]
    n_levels: int
    samples: int


QUICK = Size([1_000, 10_000], [0.2, 0.1], 3, [2_000, 2_000], 4, 50)
WHOLE = Size(
    [1_000, 10_000, 100_000, 1_000_000],
    [0.1, 0.05, 0.02, 0.01, 0.005],
    50,
    [20_000, 20_000, 2_000, 1_000],
    5,
    500,
)
LARGEST_MALA = 10_000
"""Rows up to which the truth is that of the chains alone."""


def problem(n_rows: int) -> Problem:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.uniform(-1, 1, (n_rows, DIM - 1)), np.ones(n_rows)])
    y = rng.binomial(1, 1 / (1 + np.exp(-X @ np.linspace(-1, 1, DIM))))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=DIM)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    return Problem(X, y.astype(float), model, pmb.find_reference(model))


# --- MALA -------------------------------------------------------------------------------------


@njit(fastmath=True, nogil=True)
def density(X, y, beta, gradient):
    """Log-density, and its gradient, in one pass."""
    value = 0.0
    for j in range(beta.size):
        value -= beta[j] ** 2 / 2
        gradient[j] = -beta[j]
    for i in range(X.shape[0]):
        eta = 0.0
        for j in range(beta.size):
            eta += X[i, j] * beta[j]
        odds = np.exp(-abs(eta))
        value += y[i] * eta - max(eta, 0.0) - np.log1p(odds)
        p = 1 / (1 + odds) if eta > 0 else odds / (1 + odds)
        for j in range(beta.size):
            gradient[j] += (y[i] - p) * X[i, j]
    return value


@njit(nogil=True)
def mala(X, y, mode, factor, n_steps, seed):
    """|β − mode|² along a chain that starts at the mode."""
    np.random.seed(seed)
    dim = mode.size
    h = 1.65**2 / dim ** (1 / 3)
    here, here_gradient, there_gradient = mode.copy(), np.empty(dim), np.empty(dim)
    value = density(X, y, here, here_gradient)
    trace = np.empty(n_steps)
    for t in range(n_steps):
        xi = np.random.standard_normal(dim)
        there = here + factor @ (h / 2 * (factor.T @ here_gradient) + np.sqrt(h) * xi)
        there_value = density(X, y, there, there_gradient)
        whitened = np.linalg.solve(factor, here - there)
        back = (whitened - h / 2 * (factor.T @ there_gradient)) / np.sqrt(h)
        if np.log(np.random.random()) < there_value - value + (xi @ xi - back @ back) / 2:
            here, value = there, there_value
            here_gradient[:] = there_gradient
        trace[t] = ((here - mode) ** 2).sum()
    return trace


def mala_traces(p: Problem, n_steps: int, repetitions: int) -> np.ndarray:
    """Chains, shape (repetitions, steps), less a twentieth."""
    factor = np.linalg.cholesky(p.reference.covariance)

    def chain(seed: int) -> np.ndarray:
        return mala(p.X, p.y, p.reference.flat, factor, n_steps, seed)

    with ThreadPoolExecutor(2) as pool:
        chains = list(pool.map(chain, range(repetitions)))
    return np.array(chains)[:, n_steps // 20 :]


def truths(problems: list[Problem], traces: list[np.ndarray]) -> list[float]:
    laplace = [np.trace(p.reference.covariance) for p in problems]
    means = [trace.mean() for trace in traces]
    c = len(problems[0].y) * (means[0] / laplace[0] - 1)
    return [
        mean if len(p.y) <= LARGEST_MALA else trace * (1 + c / len(p.y))
        for p, mean, trace in zip(problems, means, laplace, strict=True)
    ]


# --- First figure: coupling -------------------------------------------------------------------


def coupling_figure(p: Problem, size: Size, path: Path) -> None:
    tall = pmb.TallModel(p.model)
    estimand = make_estimand(p.squared_distance, tall, p.reference.flat)
    figure, (apart, variance, mean) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    print("log2 of the fall per level, from level 2   variance   mean")
    for name, (antithetic, taylor, average) in VARIANTS.items():
        control = ControlVariate(p.reference, 2 if taylor else 0, 1.0)
        target = make_gradient_target(tall, control)
        paths = Paths(tall, p.reference, target, np.random.default_rng(1), 2)
        schedule = Schedule(1 / 16, 64, average, antithetic, BATCH, 3 if taylor else 1)
        if name == "antithetic":
            separations(paths, schedule, size, apart)
        levels = np.arange(1, size.n_levels + 1)
        differences = []
        for level in levels:
            function = paths.address(estimand.function)
            n = max(20, size.samples * 2 // 2**level)
            fine, coarse = paths.run(schedule.coupling(int(level)), n, function, 1)
            differences.append(fine - coarse)
        variances = [d.var(ddof=1) for d in differences]
        means = [abs(d.mean()) for d in differences]
        variance.semilogy(levels, variances, "o-", label=name)
        mean.semilogy(levels, means, "o-", label=name)
        fall = [-np.polyfit(levels[1:], np.log2(x[1:]), 1)[0] for x in (variances, means)]
        print(f"{name:42} {fall[0]:9.2f} {fall[1]:6.2f}")
    apart.set(xlabel="time", ylabel="mean squared distance, fine to coarse")
    variance.set(xlabel="level", ylabel="variance of the difference")
    mean.set(xlabel="level", ylabel="mean of the difference")
    mean.legend(frameon=False, fontsize="small")
    figure.savefig(path)


def separations(paths: Paths, schedule: Schedule, size: Size, axes: plt.Axes) -> None:
    """Draw the distance of coupled paths, which start apart, over time."""
    point = identity()
    address, times = paths.address(point), np.arange(2, 17, 2)
    for level in range(1, size.n_levels):
        distances = []
        for time in times:
            n_joint = int(time * 16 * 2 ** (level - 1))
            coupling = schedule.coupling(level)._replace(n_alone=0, n_joint=n_joint)
            fine, coarse = paths.run(coupling, 32, address, DIM, apart=True)
            distances.append(((fine - coarse) ** 2).sum(axis=1).mean())
        axes.semilogy(times, distances, "o-", label=f"level {level}")
    axes.legend(frameon=False, fontsize="small")


# --- Second figure: cost ----------------------------------------------------------------------


def compiled_once(p: Problem) -> Callable[[float, int], MultilevelResult]:
    """`multilevel_sgld` as a function of `rtol` and the seed."""
    tall, reference = pmb.TallModel(p.model), p.reference
    estimand = make_estimand(p.squared_distance, tall, reference.flat)
    target = make_gradient_target(tall, ControlVariate(reference, 2, 1.0))

    def result(rtol: float, seed: int) -> MultilevelResult:
        paths = Paths(tall, reference, target, np.random.default_rng(seed), 2)
        accuracy = Accuracy(rtol, 1e10)
        run = estimate(tall, target, paths, estimand, accuracy, True, True, None, BATCH)
        return run.result(tall.n_rows, reference.passes)

    return result


def cost_figure(problems: list[Problem], size: Size, path: Path) -> None:
    figure, (error, cost) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    goal = 0.05 if 0.05 in size.rtols else size.rtols[-1]
    costs: dict[str, list[float]] = {"multilevel SGLD": [], "MALA": []}
    traces = [
        mala_traces(p, n_steps, size.repetitions)
        for p, n_steps in zip(problems, size.mala_steps, strict=True)
    ]
    print("\n| rows | rtol | relative error | row evaluations | epochs |")
    print("| --- | --- | --- | --- | --- |")
    for p, trace, truth in zip(problems, traces, truths(problems, traces), strict=True):
        n_rows, burned = len(p.y), trace.shape[1] // 19
        steps = np.unique(np.geomspace(50, trace.shape[1] / 5, 20).astype(int))
        running = np.cumsum(trace, axis=1)[:, steps - 1] / steps
        mala_error = np.sqrt(np.mean((running / truth - 1) ** 2, axis=0))
        [line] = error.loglog(steps + burned, mala_error, ":")
        epochs, errors, multilevel = [], [], compiled_once(p)
        for rtol in size.rtols:
            runs = [multilevel(rtol, seed) for seed in range(size.repetitions)]
            epochs.append(np.mean([run.epochs for run in runs]))
            errors.append(np.sqrt(np.mean([(run.estimate / truth - 1) ** 2 for run in runs])))
            spent = epochs[-1] * n_rows
            print(
                f"| {n_rows:,} | {rtol} | {errors[-1]:.4f} | {spent:,.0f} | {epochs[-1]:.4g} |",
                flush=True,
            )
            if rtol == goal:
                costs["multilevel SGLD"].append(spent)
        error.loglog(epochs, errors, "o-", color=line.get_color(), label=f"{n_rows:,} rows")
        # The error of a mean falls like the root of the number of steps.
        needed = np.median(mala_error**2 * steps) / goal**2
        costs["MALA"].append(needed * n_rows)
    sizes = np.array(size.n_rows)
    print(f"\nevaluations for a relative error of {goal:g} grow with the rows to the power")
    for name, values in costs.items():
        power = round(np.polyfit(np.log(sizes), np.log(values), 1)[0], 2) + 0.0  # no minus zero
        cost.loglog(sizes, values, "o-", label=f"{name}: power {power:.2f}")
        print(f"{name:16} {power:5.2f}")
    error.plot([], [], ":", color="grey", label="dotted: MALA")
    error.set(xlabel="epochs", ylabel="relative error (RMSE)")
    cost.set(xlabel="rows", ylabel=f"row evaluations for a relative error of {goal:g}")
    error.legend(frameon=False, fontsize="small", loc="lower left")
    cost.legend(frameon=False, fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows and repetitions")
    parser.add_argument("--repetitions", type=int, help="runs and chains of each kind")
    parser.add_argument("--figures", type=Path, default=Path("."), metavar="DIR")
    options = parser.parse_args()
    size = QUICK if options.quick else WHOLE
    if options.repetitions:
        size = size._replace(repetitions=options.repetitions)
    problems = [problem(n_rows) for n_rows in size.n_rows]
    coupling_figure(problems[0], size, options.figures / "multilevel_coupling.png")
    cost_figure(problems, size, options.figures / "multilevel_cost.png")


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
