"""A step on each path, for what looks at all of them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm

import pymc_minibatch as pmb
from pymc_minibatch.latent.moves import costs

N, G = 400, 12


def rows(seed: int = 1) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    g, h, x = rng.integers(0, G, N), rng.integers(0, 5, N), rng.normal(size=(N, 2))
    eta = 0.5 * rng.normal(size=G)[g] + x @ [0.4, -0.3]
    return SimpleNamespace(g=g, h=h, x=x, y=eta + rng.normal(size=N), event=rng.random(N) < 0.4)


def flat(kind: str) -> pm.Model:
    data = rows()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=data.x @ beta, observed=data.event.astype(int))
        else:
            pm.StudentT("y", nu=4, mu=data.x @ beta, sigma=1.0, observed=data.y)
    return model


def grouped(rows_are: str = "normal", effects: str = "centred", crossed: bool = False) -> pm.Model:
    data = rows()
    with pm.Model() as model:
        mu, sd = pm.Normal("mu"), pm.HalfNormal("sd")
        if effects == "centred":
            u = pm.Normal("u", mu, sd, shape=G)
        elif effects == "heavy":
            u = pm.StudentT("u", nu=5, mu=mu, sigma=sd, shape=G)
        elif effects == "apart from their mean":
            u = pm.Normal("u", 0, sd, shape=G)
        else:
            u = mu + sd * pm.Normal("z", shape=G)
        eta = u[data.g] + (mu if effects == "apart from their mean" else 0.0)
        eta = eta + pm.Normal("b") * data.x[:, 0]
        if crossed:
            eta = eta + pm.Normal("v", 0, pm.HalfNormal("sd_v"), shape=5)[data.h]
        if rows_are == "normal":
            pm.Normal("y", eta, pm.HalfNormal("s"), observed=data.y)
        elif rows_are == "heavy":
            pm.StudentT("y", nu=4, mu=eta, sigma=1.0, observed=data.y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=data.event.astype(int))
    return model


def shrunken() -> pm.Model:
    """Many coefficients, each with a scale of its own, and groups."""
    data = rows()
    x = np.random.default_rng(2).normal(size=(N, 12))
    with pm.Model() as model:
        scale = pm.HalfNormal("tau") * pm.HalfCauchy("own", 1.0, shape=12)
        eta = pm.math.dot(x, scale * pm.Normal("raw", shape=12)) + pm.Normal("z", shape=G)[data.g]
        pm.Bernoulli("y", logit_p=eta, observed=data.event.astype(int))
    return model


def correlated() -> pm.Model:
    """Effects of three columns, with a covariance and means that rows do not read themselves."""
    data = rows()
    x = np.column_stack([np.ones(N), 50.0 + 9.0 * data.x[:, 0], data.x[:, 1]])
    with pm.Model() as model:
        own = pm.HalfNormal.dist(np.array([1.0, 0.1, 1.0]), shape=3)
        chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=own)
        u = pm.MvNormal("u", pm.Normal("mu", 0, [1.0, 0.1, 1.0]), chol=chol, shape=(G, 3))
        pm.Bernoulli("y", logit_p=(u[data.g] * x).sum(axis=1), observed=data.event.astype(int))
    return model


def costly(make: Callable[[], Any]) -> Any:
    """A step that takes factoring for costly."""
    kept = costs.COSTLY
    costs.COSTLY = 1.0
    try:
        return make()
    finally:
        costs.COSTLY = kept


STEPS: dict[str, Callable[[], Any]] = {
    "laplace": lambda: pmb.MinibatchMH(
        acceptance="penalty", proposal="laplace", model=flat("logistic")
    ),
    "exact": lambda: pmb.MinibatchMH(acceptance="exact", model=flat("logistic")),
    "random walk": lambda: pmb.MinibatchMH(control_variate=0, model=flat("heavy")),
    "hamiltonian": lambda: pmb.MinibatchMH(
        proposal="surrogate_hamiltonian", acceptance="penalty", model=flat("heavy")
    ),
    "tempered": lambda: pmb.MinibatchMH(
        acceptance="penalty", temperature=3.0, proposal="laplace", model=flat("heavy")
    ),
    "sums": lambda: pmb.MinibatchMH(model=grouped()),
    "all rows": lambda: pmb.MinibatchMH(model=grouped("event", "not centred")),
    "covariance": lambda: pmb.MinibatchMH(model=correlated()),
    "own scales": lambda: pmb.MinibatchMH(model=shrunken()),
    "heavy effects": lambda: pmb.MinibatchMH(model=grouped("heavy", "heavy")),
    "batches": lambda: pmb.MinibatchMH(acceptance="penalty", model=grouped("heavy")),
    "linear": lambda: costly(
        lambda: pmb.MinibatchMH(model=grouped(effects="apart from their mean", crossed=True))
    ),
    "costly": lambda: costly(
        lambda: pmb.MinibatchMH(acceptance="penalty", model=grouped("heavy", crossed=True))
    ),
    "flymc": lambda: pmb.FlyMC(tune_bounds=False, model=flat("logistic")),
    "flymc effects": lambda: pmb.FlyMC(model=grouped("event")),
    "sgfs": lambda: pmb.SGFS(model=flat("logistic")),
}
