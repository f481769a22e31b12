"""Multilevel models whose effects have other priors than normal ones, for :mod:`.agreement`.

Sixty groups of very uneven sizes. Positive levels are rates of counts, real ones means of normal
rows, and shares probabilities. The levels that made the data are gamma, normal and beta: a prior
need not be the law that its effects were drawn from.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

__all__ = ["MODELS"]

N_GROUPS = 60
POWER = 0.8
"""The size of the k-th largest group is proportional to k to minus this power."""


def half(name: str, sd: float = 1.0) -> Any:
    """Make a positive hyperparameter."""
    return pm.HalfNormal(name, sd)


POSITIVE: dict[str, Callable[..., Any]] = {
    "log-normal": lambda **of: pm.LogNormal("level", pm.Normal("mu", 0, 2), half("s"), **of),
    "exponential": lambda **of: pm.Exponential("level", pm.Gamma("rate", 2, 1), **of),
    "gamma": lambda **of: pm.Gamma("level", mu=half("m", 5), sigma=half("s", 3), **of),
    "frailty": lambda **of: half("base", 5) * pm.Gamma("level", a := half("a", 5), a, **of),
    "inverse-gamma": lambda **of: pm.InverseGamma("level", half("a", 5), half("b", 5), **of),
    "weibull": lambda **of: pm.Weibull("level", half("a", 3), half("b", 5), **of),
    "half-normal": lambda **of: pm.HalfNormal("level", half("s", 5), **of),
    "pareto": lambda **of: pm.Pareto("level", half("a", 2), 0.05, **of),
    "uniform": lambda **of: pm.Uniform("level", 0, half("top", 10), **of),
}
REAL: dict[str, Callable[..., Any]] = {
    "logistic": lambda **of: pm.Logistic("level", pm.Normal("mu", 0, 2), half("s"), **of),
    "student-t": lambda **of: pm.StudentT(
        "level", nu=pm.Gamma("nu", 2, 0.1), mu=pm.Normal("mu", 0, 2), sigma=half("s"), **of
    ),
    "laplace": lambda **of: pm.Laplace("level", pm.Normal("mu", 0, 2), half("s"), **of),
    "skew-normal": lambda **of: pm.SkewNormal(
        "level", mu=pm.Normal("mu", 0, 2), sigma=half("s"), alpha=pm.Normal("alpha", 0, 3), **of
    ),
    "gumbel": lambda **of: pm.Gumbel("level", pm.Normal("mu", 0, 2), half("s"), **of),
    "moyal": lambda **of: pm.Moyal("level", pm.Normal("mu", 0, 2), half("s"), **of),
    "truncated": lambda **of: pm.TruncatedNormal(
        "level", pm.Normal("mu", 0, 2), half("s"), lower=-2.5, upper=2.5, **of
    ),
    "mixture": lambda **of: pm.NormalMixture(
        "level", pm.Dirichlet("w", [2.0, 2.0]), [-0.7, 0.7], half("s"), **of
    ),
    "zero-sum": lambda **of: pm.Normal("mu", 0, 2) + pm.ZeroSumNormal("level", half("s"), **of),
    "sine": lambda **of: 2 * pm.math.sin(pm.VonMises("level", 0, half("kappa", 2), **of)),
    "exp": lambda **of: pm.math.exp(pm.Normal("mu") + half("s") * pm.Normal("level", **of)) - 1,
}
SHARES: dict[str, Callable[..., Any]] = {
    "beta": lambda **of: pm.Beta("level", half("a", 5), half("b", 5), **of),
    "kumaraswamy": lambda **of: pm.Kumaraswamy("level", half("a", 5), half("b", 5), **of),
}


def model_of(prior: Callable[..., Any], kind: str, n_rows: int) -> pm.Model:
    """Build the model of a prior, with rows of its kind."""
    rng = np.random.default_rng(1)
    share = np.arange(1, N_GROUPS + 1) ** -POWER
    group = rng.choice(N_GROUPS, n_rows, p=share / share.sum())
    group[:N_GROUPS] = np.arange(N_GROUPS)
    with pm.Model() as model:
        level = prior(shape=N_GROUPS)[group]
        if kind == "positive":
            pm.Poisson("y", level, observed=rng.poisson(rng.gamma(4, 0.5, N_GROUPS)[group]))
        elif kind == "real":
            x = rng.normal(size=n_rows)
            mean = 0.8 * rng.normal(size=N_GROUPS)[group] + 0.4 * x
            eta = level + pm.Normal("slope") * x
            pm.Normal("y", eta, half("sigma", 2), observed=rng.normal(mean))
        else:
            p = rng.beta(3, 5, N_GROUPS)[group]
            pm.Bernoulli("y", level, observed=rng.random(n_rows) < p)
    return model


MODELS: dict[str, Callable[[int], pm.Model]] = {
    name: partial(model_of, prior, kind)
    for kind, priors in (("positive", POSITIVE), ("real", REAL), ("share", SHARES))
    for name, prior in priors.items()
}
