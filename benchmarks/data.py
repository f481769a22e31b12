"""Data of the benchmarks, made up from a seed: the same rows in every process.

Each regression has X (rows by columns, float64) and y (int64 counts or float64), and the
hierarchical one has the group of each row.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["MODELS", "N_GROUPS", "Data", "simulate"]

N_GROUPS = 200

type Data = dict[str, np.ndarray]


def simulate(model: str, n_rows: int) -> Data:
    """Make up rows for a model, named as in :data:`MODELS`."""
    n_columns, respond = MODELS[model]
    rng = np.random.default_rng(20)
    beta = rng.normal(0, 0.3, n_columns)
    X = rng.standard_normal((n_rows, n_columns))
    return {"X": X} | respond(rng, X @ beta)


def _bernoulli(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(np.int64)


def _logistic(rng: np.random.Generator, eta: np.ndarray) -> Data:
    return {"y": _bernoulli(rng, eta)}


def _poisson(rng: np.random.Generator, eta: np.ndarray) -> Data:
    return {"y": rng.poisson(np.exp(eta))}


def _negbinomial(rng: np.random.Generator, eta: np.ndarray) -> Data:
    alpha = 1.5
    return {"y": rng.poisson(np.exp(eta) * rng.gamma(alpha, 1 / alpha, len(eta)))}


def _student(rng: np.random.Generator, eta: np.ndarray) -> Data:
    return {"y": eta + 0.7 * rng.standard_t(4, len(eta))}


def _hierarchical(rng: np.random.Generator, eta: np.ndarray) -> Data:
    intercept = rng.normal(-0.5, 0.6, N_GROUPS)
    group = rng.integers(0, N_GROUPS, len(eta))
    return {"group": group, "y": _bernoulli(rng, intercept[group] + eta)}


MODELS: dict[str, tuple[int, Callable[[np.random.Generator, np.ndarray], Data]]] = {
    "logistic": (20, _logistic),
    "poisson": (10, _poisson),
    "negbinomial": (10, _negbinomial),
    "student": (10, _student),
    "hierarchical": (5, _hierarchical),
}
"""Number of columns of X, and what draws the rest from the linear predictor."""
