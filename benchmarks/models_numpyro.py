"""The models of the benchmarks in NumPyro; models_pymc.py has the same in PyMC.

Each takes the data and a `subsample_size`: how many rows to read at a time, None for all.
"""

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from benchmarks.data import N_GROUPS

__all__ = ["MODELS"]


def _slopes(X: Any) -> Any:
    return numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))


def _rows(y: Any, subsample_size: int | None) -> numpyro.plate:
    return numpyro.plate("rows", len(y), subsample_size=subsample_size)


def _batch(array: Any) -> Any:
    return numpyro.subsample(array, event_dim=array.ndim - 1)


def _logistic(X: Any, y: Any, subsample_size: int | None = None) -> None:
    beta = _slopes(X)
    with _rows(y, subsample_size):
        numpyro.sample("y", dist.Bernoulli(logits=_batch(X) @ beta), obs=_batch(y))


def _poisson(X: Any, y: Any, subsample_size: int | None = None) -> None:
    beta = _slopes(X)
    with _rows(y, subsample_size):
        numpyro.sample("y", dist.Poisson(jnp.exp(_batch(X) @ beta)), obs=_batch(y))


def _negbinomial(X: Any, y: Any, subsample_size: int | None = None) -> None:
    beta = _slopes(X)
    alpha = numpyro.sample("alpha", dist.HalfNormal(5.0))
    with _rows(y, subsample_size):
        mu = jnp.exp(_batch(X) @ beta)
        numpyro.sample("y", dist.NegativeBinomial2(mu, alpha), obs=_batch(y))


def _student(X: Any, y: Any, subsample_size: int | None = None) -> None:
    beta = _slopes(X)
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with _rows(y, subsample_size):
        numpyro.sample("y", dist.StudentT(nu, _batch(X) @ beta, sigma), obs=_batch(y))


def _hierarchical(X: Any, y: Any, group: Any, subsample_size: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    intercept = numpyro.sample("intercept", dist.Normal(mu, tau).expand([N_GROUPS]).to_event(1))
    beta = _slopes(X)
    with _rows(y, subsample_size):
        eta = intercept[_batch(group)] + _batch(X) @ beta
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=_batch(y))


MODELS = {
    "logistic": _logistic,
    "poisson": _poisson,
    "negbinomial": _negbinomial,
    "student": _student,
    "hierarchical": _hierarchical,
}
