"""What a draw of a model with groups costs, against groups and against rows.

Logistic regressions with five coefficients and an intercept for each group, whose sizes are
log-normal, a thousandfold from smallest to largest.

    python -m benchmarks.sweeps --figure docs/images/sweeps.svg
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_minibatch as pmb
from benchmarks.report import machine, table, versions

ROWS, GROUPS = 10**6, 10**3
BY_GROUPS = [(ROWS, groups) for groups in (10**2, 10**3, 10**4, 10**5)]
BY_ROWS = [(rows, GROUPS) for rows in (10**4, 10**5, 10**6, 10**7)]

TUNE, DRAWS = 100, 100
N_COLUMNS = 5


class Cost(NamedTuple):
    """Of a draw: the median of milliseconds; the mean of likelihoods of a row at one point."""

    rows: int
    groups: int
    set_up: float
    milliseconds: float
    likelihoods: float

    def cells(self) -> list[str]:
        """Write a line of a table."""
        share = self.likelihoods / self.rows
        times = f"{self.set_up:.1f}", f"{self.milliseconds:.2f}"
        sizes = f"{self.rows:,}", f"{self.groups:,}"
        return [*sizes, *times, f"{self.likelihoods:,.0f}", f"{share:.2%}"]


def make_model(n_rows: int, n_groups: int) -> pm.Model:
    """Make up rows in groups of unequal sizes."""
    rng = np.random.default_rng(30)
    size = np.exp(1.2 * rng.normal(size=n_groups))
    group = rng.choice(n_groups, n_rows, p=size / size.sum())
    X = rng.normal(size=(n_rows, N_COLUMNS))
    eta = X @ np.linspace(-0.4, 0.4, N_COLUMNS) + 0.5 * rng.normal(size=n_groups)[group]
    with pm.Model() as model:
        beta, sd = pm.Normal("beta", 0, 1, shape=N_COLUMNS), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", pm.Normal("mu", 0, 2), sd, shape=n_groups)
        y = rng.random(n_rows) < 1 / (1 + np.exp(-eta))
        pm.Bernoulli("y", logit_p=X @ beta + effect[group], observed=y)
    return model


def measure(n_rows: int, n_groups: int) -> Cost:
    """Sample by hand, so that what PyMC does with a draw is not in the times."""
    model = make_model(n_rows, n_groups)
    started = time.perf_counter()
    step = pmb.MinibatchMH(model=model, rng=1)
    set_up = time.perf_counter() - started
    point = model.initial_point()
    for _ in range(TUNE):
        point, _ = step.step(point)
    step.stop_tuning()
    times, evaluated = [], []
    for _ in range(DRAWS):
        started = time.perf_counter()
        point, [stats] = step.step(point)
        times.append(time.perf_counter() - started)
        evaluated.append(stats["n_likelihood"])
    milliseconds = 1e3 * float(np.median(times))
    return Cost(n_rows, n_groups, set_up, milliseconds, float(np.mean(evaluated)))


def draw(by_groups: list[Cost], by_rows: list[Cost], path: Path) -> None:
    """Draw milliseconds and likelihoods of a draw, on logarithmic axes."""
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.4), sharey=True)
    for axis, costs, along in zip(axes, (by_groups, by_rows), ("groups", "rows"), strict=True):
        x = [getattr(cost, along) for cost in costs]
        axis.plot(x, [cost.milliseconds for cost in costs], "o-", color="#0b6e75", label="ms")
        likelihoods = [cost.likelihoods / 1e3 for cost in costs]
        axis.plot(x, likelihoods, "s--", color="#c2571a", label="1,000 likelihoods of a row")
        axis.set(xscale="log", yscale="log", xlabel=along)
        axis.grid(which="major", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(f"{ROWS:,} rows", fontsize=10)
    axes[1].set_title(f"{GROUPS:,} groups", fontsize=10)
    axes[0].set_ylabel("of one draw")
    axes[0].legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print a table, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    costs = {sizes: measure(*sizes) for sizes in dict.fromkeys(BY_GROUPS + BY_ROWS)}
    titles = ["rows", "groups", "set-up (s)", "ms per draw", "likelihoods", "of rows"]
    print(table(titles, [cost.cells() for cost in costs.values()]))
    print(f"\n{machine()}; {versions()}")
    if options.figure:
        draw([costs[s] for s in BY_GROUPS], [costs[s] for s in BY_ROWS], options.figure)


if __name__ == "__main__":
    main()
