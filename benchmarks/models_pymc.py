"""The models of the benchmarks in PyMC; models_numpyro.py has the same in NumPyro."""

from typing import Any

import pymc as pm

from benchmarks.data import N_GROUPS, Data

__all__ = ["build"]


def build(name: str, data: Data) -> pm.Model:
    """Return a model on data that :func:`benchmarks.data.simulate` made for it."""
    with pm.Model() as model:
        X = pm.Data("X", data["X"])
        eta = X @ pm.Normal("beta", 0, 1, shape=data["X"].shape[1])
        MODELS[name](eta, data)
    return model


def _logistic(eta: Any, data: Data) -> None:
    pm.Bernoulli("y", logit_p=eta, observed=data["y"])


def _poisson(eta: Any, data: Data) -> None:
    pm.Poisson("y", mu=pm.math.exp(eta), observed=data["y"])


def _negbinomial(eta: Any, data: Data) -> None:
    alpha = pm.HalfNormal("alpha", 5)
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=data["y"])


def _student(eta: Any, data: Data) -> None:
    nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 2)
    pm.StudentT("y", nu=nu, mu=eta, sigma=sigma, observed=data["y"])


def _hierarchical(eta: Any, data: Data) -> None:
    mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
    intercept = pm.Normal("intercept", mu, tau, shape=N_GROUPS)
    group = pm.Data("group", data["group"])
    pm.Bernoulli("y", logit_p=intercept[group] + eta, observed=data["y"])


MODELS = {
    "logistic": _logistic,
    "poisson": _poisson,
    "negbinomial": _negbinomial,
    "student": _student,
    "hierarchical": _hierarchical,
}
