"""Metropolis-Hastings with scalable subsampling, by its authors."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from benchmarks.tall_posteriors.jobs import CHAINS, CannotError, Job, Run

TITLE = "pymhss, MH-SS"
SETTINGS = (
    "`MH_SS` with control variates of second order at the mode, whose curvature is the proposal's; "
    "2,000 steps to burn in and 200,000 of which every 20th is kept, in each chain; flat priors, "
    "as it has no others."
)
EXACT = True
PACKAGES = ("pymhss",)
BURN, STEPS, THIN = 2000, 200_000, 20


def run(job: Job) -> Run:
    """Find the mode, then run the chains, a process for each."""
    linear = job.linear()
    if linear.family != "bernoulli" or linear.groups:
        raise CannotError("cannot express: it has flat logistic, probit and Poisson regressions")
    X = np.column_stack([np.ones(len(linear.y)), linear.X])
    y = linear.y.astype(float)
    job.clock.mark("model")
    mode, covariance = _mode(X, y)
    job.clock.mark("mode")
    steps = round(STEPS * job.length)
    with ProcessPoolExecutor(CHAINS, mp_context=get_context("spawn")) as pool:
        seeds = [job.seed + chain for chain in range(CHAINS)]
        made = [pool.submit(_chain, X, y, mode, covariance, steps, seed) for seed in seeds]
        draws, shares, seconds = zip(*[chain.result() for chain in made], strict=True)
    found = np.stack(draws)
    return Run(
        {"intercept": found[..., 0], "beta": found[..., 1:]},
        sampling=max(seconds) * steps / (steps + BURN),
        rows_read=float(sum(shares) * len(y) * (steps + BURN) * 2),
    )


def _mode(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode under flat priors, and the inverse of the curvature there."""

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = X @ theta
        return float(np.mean(np.logaddexp(0, eta) - y * eta)), X.T @ (expit(eta) - y) / len(y)

    mode = minimize(loss, np.zeros(X.shape[1]), jac=True, method="BFGS").x
    p = expit(X @ mode)
    return mode, np.linalg.inv(X.T @ (X * (p * (1 - p))[:, None]))


def _chain(
    X: np.ndarray, y: np.ndarray, mode: np.ndarray, covariance: np.ndarray, steps: int, seed: int
) -> tuple[np.ndarray, float, float]:
    """Run a chain: its draws, the mean share of rows that a step reads, and its seconds."""
    from PyMHSS.algorithms import MH_SS

    np.random.seed(seed)
    found: dict[str, Any] = MH_SS(
        y, X, covariance, mode, BURN, steps, "logistic", "vectorised", taylor_order=2, nthin=THIN
    )
    return found["parameters"], float(np.mean(found["BoverN"])), float(found["cpu_time"])
