"""What an error of each decision does to means and standard deviations, where the answer is known.

    python -m benchmarks.decision_error

First the worst case, without chance. A chain on a standard normal distribution accepts each move
with the probability of its test plus or minus the error, with the sign that moves the mean, or the
standard deviation, most. Its stationary distribution follows on a grid by linear algebra. Then runs
of the sampler on models whose posterior is known in closed form or by quadrature, with a control
variate of first order only, so that batches have the noise that the limit on their error is for.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from scipy import stats
from scipy.special import expit, ndtr

import pymc_minibatch as pmb
from benchmarks.report import machine, table, versions

ERRORS = 1e-3, 1e-2
"""Of the acceptance probability of each decision."""

GRID = np.linspace(-6.0, 6.0, 601)
"""Points of the target, in standard deviations."""

MOVES = {
    "independent": None,
    "random walk, sd 2.4": 2.4,
    "random walk, sd 1": 1.0,
    "random walk, sd 0.3": 0.3,
}
"""Standard deviation of a step; None proposes from the target itself, as `Laplace` does."""

LIMITS: tuple[float | None, ...] = 1e-3, 1e-2, None
"""``test_error`` of the tests, None for no limit."""

TUNE = 2000


# --- The worst case ---------------------------------------------------------------------------


def penalty(log_ratio: np.ndarray, sigma: float = 0.3) -> np.ndarray:
    """Return the acceptance probability of the penalty test."""
    z = log_ratio / sigma - sigma / 2
    return ndtr(z) + np.exp(np.minimum(log_ratio, 700)) * ndtr(-z - sigma)


def stationary(
    step: float | None, error: float, sign: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """Return mean and standard deviation of a chain whose decisions are off.

    Parameters
    ----------
    step
        As in `MOVES`.
    error
        Of each acceptance probability.
    sign
        ``(here, there)`` says which way decisions err.
    """
    here, there = GRID[:, None], GRID[None, :]
    log_target = -0.5 * GRID**2
    log_ratio = log_target[None, :] - log_target[:, None]
    if step is None:
        proposal, log_ratio = np.tile(np.exp(log_target), (GRID.size, 1)), 0.0 * log_ratio
    else:
        proposal = np.exp(-0.5 * ((there - here) / step) ** 2)
        proposal /= proposal[GRID.size // 2].sum()  # symmetric: what leaves the grid stays
    if step is None:
        proposal /= proposal.sum(axis=1, keepdims=True)
    accepted = np.clip(penalty(log_ratio) + error * sign(here, there), 0.0, 1.0)
    chain = proposal * accepted
    np.fill_diagonal(chain, 0.0)
    np.fill_diagonal(chain, 1.0 - chain.sum(axis=1))
    system = chain.T - np.eye(GRID.size)
    system[0] = 1.0
    density = np.linalg.solve(system, np.eye(GRID.size)[0])
    mean = float(density @ GRID)
    return mean, float(np.sqrt(density @ (GRID - mean) ** 2))


def upwards(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Accept moves to larger values too often, and others too seldom."""
    return np.sign(there - here)


def outwards(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Accept moves away from the mode too often."""
    return np.sign(np.abs(there) - np.abs(here))


def worst_cases() -> list[list[str]]:
    """Return the lines of the first table."""
    lines = []
    for name, step in MOVES.items():
        exact = stationary(step, 0.0, upwards)
        for error in ERRORS:
            mean = stationary(step, error, upwards)[0] - exact[0]
            sd = stationary(step, error, outwards)[1] / exact[1] - 1.0
            lines.append([name, f"{error:g}", f"{mean:.4f}", f"{100 * sd:+.2f} %"])
    return lines


# --- Runs of the sampler ----------------------------------------------------------------------


class Known(NamedTuple):
    """A model, one of its variables, and what is known of that.

    Attributes
    ----------
    model
        The model.
    name
        A value variable.
    mean, sd
        Of it, exactly.
    """

    model: pm.Model
    name: str
    mean: float
    sd: float


def times() -> Known:
    """Return exponential times, the log of whose rate is that of a gamma variable."""
    y = np.random.default_rng(1).exponential(2.0, size=2000)
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Exponential("y", rate, observed=y)
    law = stats.loggamma(2.0 + y.size, loc=-np.log(1.0 + y.sum()))
    return Known(model, "rate_log__", float(law.mean()), float(law.std()))


def rare_events() -> Known:
    """Return a logistic regression with one event in 40, integrated on a grid."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=4000)
    y = (rng.random(x.size) < expit(-4.0 + 0.7 * x)).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)

    def log_density(point: np.ndarray) -> float:
        eta = point[0] + point[1] * x
        rows = y @ eta - np.logaddexp(0, eta).sum()
        return float(rows - 0.5 * (point[0] / 5) ** 2 - 0.5 * (point[1] / 2) ** 2)

    return Known(model, "b", *_by_quadrature(log_density, np.array([-4.0, 0.7]), 1))


def heavy_tails() -> Known:
    """Return rows of a Student distribution with three degrees of freedom about a place."""
    y = stats.t(3).rvs(size=2000, random_state=3)
    with pm.Model() as model:
        place = pm.Normal("place", 0, 10)
        pm.StudentT("y", nu=3, mu=place, sigma=1.0, observed=y)

    def log_density(point: np.ndarray) -> float:
        return float(stats.t(3).logpdf(y - point[0]).sum() - 0.5 * (point[0] / 10) ** 2)

    return Known(model, "place", *_by_quadrature(log_density, np.zeros(1), 0))


def _by_quadrature(
    log_density: Callable[[np.ndarray], float], start: np.ndarray, which: int
) -> tuple[float, float]:
    """Return mean and standard deviation of one of up to two variables, on a grid."""
    from scipy.optimize import minimize

    mode = minimize(lambda point: -log_density(point), start, method="BFGS")
    root = np.linalg.cholesky(mode.hess_inv)
    axes = np.meshgrid(*[np.linspace(-7, 7, 81)] * start.size, indexing="ij")
    points = mode.x + np.stack([axis.ravel() for axis in axes], axis=1) @ root.T
    logs = np.array([log_density(point) for point in points])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = float(weights @ points[:, which])
    return mean, float(np.sqrt(weights @ (points[:, which] - mean) ** 2))


CASES = {"exponential times": times, "rare events": rare_events, "heavy tails": heavy_tails}


def run(known: Known, limit: float | None, draws: int) -> list[str]:
    """Sample by hand; return the error of the mean and of the standard deviation."""
    step = pmb.MinibatchMH(
        acceptance=pmb.Penalty(sigma=1.0, test_error=limit),
        control_variate=1,
        steps_per_draw=10,
        batch_size=None,
        model=known.model,
    )
    step.setup_chain(np.random.default_rng(1), TUNE, draws)
    point, kept, sizes = known.model.initial_point(), np.empty(draws), np.empty(draws)
    for _ in range(TUNE):
        point, _ = step.step(point)
    step.stop_tuning()
    for i in range(draws):
        point, [stat] = step.step(point)
        kept[i], sizes[i] = float(point[known.name]), stat["batch_size"]
    effective = float(az.ess(kept[None, :]))
    mean, sd = (kept.mean() - known.mean) / known.sd, kept.std() / known.sd - 1.0
    noise = effective**-0.5
    return [
        "none" if limit is None else f"{limit:g}",
        f"{sizes.mean():,.0f} of {step.n_rows:,}",
        f"{mean:+.4f} ± {noise:.4f}",
        f"{100 * sd:+.2f} ± {100 * noise / 2**0.5:.2f} %",
    ]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=150_000, help="of each run")
    options = parser.parse_args()
    print(machine(), versions(), sep="\n\n", end="\n\n")
    print(
        table(["moves", "error", "error of the mean, SDs", "error of the SD"], worst_cases()),
        flush=True,
    )
    lines = []
    for name, build in CASES.items():
        known = build()
        for limit in LIMITS:
            lines.append([name, *run(known, limit, options.draws)])
            print(*lines[-1], flush=True)
    header = [
        "posterior",
        "limit",
        "rows per decision",
        "error of the mean, SDs",
        "error of the SD",
    ]
    print("\n" + table(header, lines))


if __name__ == "__main__":
    main()
