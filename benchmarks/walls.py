"""Each step on densities that end at a wall, against closed forms.

    python -m benchmarks.walls [--steps MinibatchMH FlyMC] [--draws 4000]

Two coefficients of Gaussian rows are independent a posteriori, each with sd 1 after scaling. A wall
lies -1, 0, 1 or 3 sds above the mode, along one of them or across both, so the posterior along the
normal of the wall is a truncated normal distribution, and across it a normal one.

What is printed is the worst error of two means, in sds, and of two sds, as a share, over both
directions. Exact steps are right if all are within `Z` Monte Carlo errors. Steps that follow noisy
gradients are biased by their step sizes as they are without a wall: up to `BIAS` is allowed to
them. Methods that are made for a nearly Gaussian posterior refuse walls near the mode in words.
"""

import argparse
import logging
import platform
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.exceptions import SamplingError
from scipy.stats import truncnorm

import pymc_minibatch as pmb

WALLS = (-1.0, 0.0, 1.0, 3.0)
"""Distances from the mode in sds: beyond 3 of them lies a tail of 0.1 %."""

N_ROWS = 400
SD = 1 / np.sqrt(N_ROWS)
MODE = np.array([0.7, -0.4])
Z = 4.5
BIAS = 0.12
"""In sds and as a share of the sd."""


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Draw orthogonal columns, and rows whose least squares estimate is the mode."""
    rng = np.random.default_rng(20261126)
    X, _ = np.linalg.qr(rng.normal(size=(N_ROWS, 2)))
    X *= np.sqrt(N_ROWS)
    noise = rng.normal(size=N_ROWS)
    noise -= X @ (X.T @ noise) / N_ROWS
    return X, X @ MODE + noise


X, Y = rows()


class Wall(NamedTuple):
    """Where a density ends.

    Attributes
    ----------
    model
        With that wall.
    normal
        Unit vector along which the posterior is truncated.
    """

    model: pm.Model
    normal: np.ndarray


def along_one(sds: float, prior: Callable[[float, float], Any]) -> Wall:
    """End the prior of one coefficient."""
    wall = MODE[0] + sds * SD
    with pm.Model() as model:
        b = pt.stack([prior(wall, wall + SD / 10), pm.Flat("other", initval=MODE[1])])
        pm.Normal("y", X @ b, 1.0, observed=Y)
    return Wall(model, np.array([1.0, 0.0]))


def across_both(sds: float) -> Wall:
    """Constrain the sum of both by a potential."""
    wall = MODE.sum() + sds * SD * np.sqrt(2)
    with pm.Model() as model:
        one = pm.Flat("b", initval=wall - MODE[1] + SD / 10)
        other = pm.Flat("other", initval=MODE[1])
        pm.Normal("y", X @ pt.stack([one, other]), 1.0, observed=Y)
        pm.Potential("wall", pt.switch(one + other > wall, 0.0, -np.inf))
    return Wall(model, np.full(2, np.sqrt(0.5)))


FORMS: dict[str, Callable[[float], Wall]] = {
    "potential": across_both,
    "uniform": lambda sds: along_one(
        sds, lambda wall, start: pm.Uniform("b", wall, 50, default_transform=None, initval=start)
    ),
    "truncated": lambda sds: along_one(
        sds,
        lambda wall, start: pm.TruncatedNormal(
            "b", 0, 1e4, lower=wall, default_transform=None, initval=start
        ),
    ),
}

STEPS: dict[str, Callable[..., Any]] = {
    "MinibatchMH": pmb.MinibatchMH,
    "FlyMC": pmb.FlyMC,
    "SGFS": lambda **options: pmb.SGFS(steps_per_draw=20, **options),
    "SGLD": lambda **options: pmb.SGLD(steps_per_draw=20, **options),
    "SGHMC": lambda **options: pmb.SGHMC(steps_per_draw=20, **options),
    "SGNHT": lambda **options: pmb.SGNHT(steps_per_draw=20, **options),
}
EXACT = ("MinibatchMH", "FlyMC")
ESTIMATOR = "multilevel_sgld"


class Found(NamedTuple):
    """What a cell of the table shows."""

    mean: float
    sd: float
    z: float
    beyond: float

    def is_right(self, exact: bool) -> bool:
        """Whether it is what the step promises."""
        small = self.z < Z if exact else max(self.mean, self.sd) < BIAS + Z * self.error
        return small and self.beyond == 0

    @property
    def error(self) -> float:
        """Monte Carlo error of the worst of them."""
        return max(self.mean, self.sd) / self.z if self.z else 0.0


def truth(sds: float) -> tuple[float, float]:
    """Return mean and sd of a standard normal variable beyond a wall."""
    return truncnorm.mean(sds, np.inf), truncnorm.std(sds, np.inf)


def judged(draws: np.ndarray, wall: Wall, sds: float) -> Found:
    """Compare draws of both coefficients, shape (n, 2), with the closed forms."""
    scaled = (draws - MODE) / SD
    across = np.array([-wall.normal[1], wall.normal[0]])
    errors = []
    for z, (mean, sd) in ((scaled @ wall.normal, truth(sds)), (scaled @ across, (0.0, 1.0))):
        for values, true, scale in ((z, mean, sd), ((z - mean) ** 2, sd**2, 2 * sd**2)):
            error = values.std() / np.sqrt(float(az.ess(values[None])))
            errors.append((abs(values.mean() - true) / scale, error / scale))
    sizes, noise = np.array(errors).T
    beyond = float(np.mean(scaled @ wall.normal < sds - 1e-9))
    return Found(sizes[::2].max(), sizes[1::2].max(), (sizes / noise).max(), beyond)


def run(step: str, form: str, sds: float, *, draws: int = 4000, tune: int = 1000) -> Found:
    """Fill a cell of the table.

    Raises
    ------
    ValueError, SamplingError
        If the step refuses the wall.
    """
    wall = FORMS[form](sds)
    if step == ESTIMATOR:
        return estimated(wall, sds)
    with wall.model:
        posterior = pm.sample(
            draws,
            tune=tune,
            chains=1,
            cores=1,
            step=STEPS[step](model=wall.model),
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        ).posterior
    found = np.column_stack([posterior[name].values.ravel() for name in ("b", "other")])
    return judged(found, wall, sds)


def estimated(wall: Wall, sds: float) -> Found:
    """Compare the estimates of mean and variance of one coefficient by multilevel SGLD."""
    found = pmb.multilevel_sgld(["b"], model=wall.model, random_seed=1).summary
    (mean, sd), part = truth(sds), wall.normal[0] ** 2
    variance = part * sd**2 + 1 - part
    true = np.array([MODE[0] + SD * wall.normal[0] * mean, SD**2 * variance])
    off = np.abs(found["estimate"].to_numpy() - true)
    z = off / np.hypot(found["standard_error"], found["bias"])
    return Found(off[0] / SD, off[1] / (2 * true[1]), float(z.max()), 0.0)


def main() -> None:
    """Print a line for each step and form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", default=[*STEPS, ESTIMATOR])
    parser.add_argument("--draws", type=int, default=4000)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(f"PyMC {pm.__version__}, Python {platform.python_version()}, {platform.machine()}\n")
    walls = " | ".join(f"{sds:+g} sds" for sds in WALLS)
    print(f"| step | wall by | {walls} | right | seconds |\n|{' --- |' * (len(WALLS) + 4)}")
    for step in args.steps:
        for form in FORMS:
            started, shown, right = time.perf_counter(), [], True
            for sds in WALLS:
                try:
                    found = run(step, form, sds, draws=args.draws)
                except (ValueError, SamplingError) as error:
                    is_told = "hard constraint" in str(error)
                    shown.append("refused" if is_told else f"refused: {error}")
                    right &= is_told
                    continue
                shown.append(f"{found.mean:.2f}, {found.sd:.2f}")
                right &= found.is_right(step in EXACT)
            taken = time.perf_counter() - started
            cells = " | ".join(shown)
            verdict = "yes" if right else "**no**"
            print(f"| {step} | {form} | {cells} | {verdict} | {taken:.0f} |", flush=True)


if __name__ == "__main__":
    main()
