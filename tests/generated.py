"""Small models put together at random: what a run makes of models that nobody has thought of.

A model is made of parts, each picked at random: predictors in raw units, priors of coefficients
(with kinks, heavy tails, bounds), group effects and their priors, a family, potentials, odd shapes
and a few rows of another kind. :func:`generate` builds the same model for the same numbers, and,
with `unit`, the same model with its predictors in other units. :func:`check` says what a short run
makes of it, and :func:`check_posterior` compares a longer one with importance sampling. As a
program it checks many::

    python -m tests.generated --models 2000 --seed 1
    python -m tests.generated --models 400 --posterior
"""

import argparse
import logging
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.blocking import DictToArrayBijection, RaveledVars
from pymc.logprob.utils import ParameterValueError
from scipy import stats
from scipy.optimize import minimize

import pymc_minibatch as pmb

TUNE, DRAWS = 120, 60
"""Draws of a short run. The witness looks when it has tuned."""

SIZES = (100, 150, 240, 400, 700, 1500)
RARE = 3
"""Rows of another kind, at most."""

UNDERFLOW = -700.0
"""A density below its exponential may be rounded to 0, as the model's graph is evaluated here."""

Tensor = Any


class Generated(NamedTuple):
    """A model and what it is made of.

    Attributes
    ----------
    model : pymc.Model
        The model.
    recipe : tuple of str
        Its parts, as ``kind=choice``.
    """

    model: pm.Model
    recipe: tuple[str, ...]


class Outcome(NamedTuple):
    """What became of a model.

    Attributes
    ----------
    kind : str
        "agreed", "refused" or "fault".
    words : str
        How it was sampled, why it was refused, or what is wrong.
    """

    kind: str
    words: str


class Cook:
    """What makes one model: random numbers, rows, and the recipe.

    Parameters
    ----------
    seed, number : int
        Which model.
    unit : float, optional
        Unit of all predictors, in place of a random one.
    """

    def __init__(self, seed: int, number: int, unit: float | None) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.recipe: list[str] = []
        self.n = int(self.rng.choice(SIZES, p=[0.2, 0.2, 0.25, 0.2, 0.1, 0.05]))
        self.note("rows", self.n)
        drawn = 10.0 ** self.rng.integers(-6, 8) if self.rng.random() < 0.3 else 1.0
        self.unit = drawn if unit is None else unit
        self.note("unit", f"{self.unit:g}")
        self.truth = np.zeros(self.n)
        self.count = Counter[str]()
        self.priors: Sequence[Callable[..., Tensor]] = PRIORS
        self.effects = EFFECTS

    def note(self, what: str, choice: object) -> None:
        """Add a line to the recipe."""
        self.recipe.append(f"{what}={choice}")

    def pick(
        self, what: str, choices: Sequence[Any], weights: Sequence[float] | None = None
    ) -> Any:
        """Pick one at random, and note it."""
        p = None if weights is None else np.array(weights) / np.sum(weights)
        choice = choices[int(self.rng.choice(len(choices), p=p))]
        self.note(what, getattr(choice, "__name__", choice))
        return choice

    def name(self, stem: str) -> str:
        """Return a name that no other variable has."""
        self.count[stem] += 1
        return stem if self.count[stem] == 1 else f"{stem}{self.count[stem]}"


# --- Priors -----------------------------------------------------------------------------------


def normal(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Normal(name, 0, sd, shape=shape)


def laplace(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Laplace(name, 0, 0.3 * sd, shape=shape)


def student(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.StudentT(name, nu=cook.pick("nu", [1.5, 2.5, 4.0]), sigma=0.5 * sd, shape=shape)


def cauchy(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Cauchy(name, 0, 0.5 * sd, shape=shape)


def half_normal(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.HalfNormal(name, sd, shape=shape)


def gamma(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Gamma(name, 2.0, 4.0 / sd, shape=shape)


def log_normal(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.LogNormal(name, np.log(0.3 * sd), 1.0, shape=shape)


def uniform(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Uniform(name, -3 * sd, 4 * sd, shape=shape)


def uniform_as_it_is(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.Uniform(name, -3 * sd, 4 * sd, shape=shape, default_transform=None)


def horseshoe(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    tau = pm.HalfCauchy(name + "_tau", 1.0)
    lam = pm.HalfCauchy(name + "_lam", 1.0, shape=shape)
    return pm.Deterministic(name, sd * tau * lam * pm.Normal(name + "_z", shape=shape))


def shrunken(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    scale = pm.HalfNormal(name + "_sd", sd)
    return pm.Laplace(name, 0, scale, shape=shape)


def elastic(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    b = pm.Normal(name, 0, sd, shape=shape)
    pm.Potential(name + "_penalty", -4.0 / sd * pt.sum(pt.abs(b)))
    return b


def hinged(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    b = pm.Normal(name, 0, sd, shape=shape)
    pm.Potential(name + "_hinge", -8.0 / sd * pt.sum(pt.maximum(b - 0.2 * sd, 0.0)))
    return b


def skewed(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    return pm.SkewNormal(name, mu=0.0, sigma=sd, alpha=4.0, shape=shape)


def own_scales(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    sds = sd * 10.0 ** cook.rng.uniform(-5, 1, shape)
    return pm.Normal(name, 0, sds, shape=shape)


def not_centred_coefficients(cook: Cook, name: str, sd: float, shape: Any) -> Tensor:
    scale = pm.HalfNormal(name + "_sd", sd)
    return scale * pm.Normal(name + "_z", shape=shape)


PRIORS: tuple[Callable[..., Tensor], ...] = (
    normal,
    laplace,
    student,
    cauchy,
    half_normal,
    gamma,
    log_normal,
    uniform,
    uniform_as_it_is,
    horseshoe,
    shrunken,
    elastic,
    hinged,
    skewed,
    own_scales,
    not_centred_coefficients,
)

SCALES: dict[str, Callable[[str, float], Tensor]] = {
    "half-normal": lambda name, s: pm.HalfNormal(name, s),
    "half-Cauchy": lambda name, s: pm.HalfCauchy(name, s),
    "exponential": lambda name, s: pm.Exponential(name, scale=s),
    "gamma": lambda name, s: pm.Gamma(name, 2.0, 2.0 / s),
    "log-normal": lambda name, s: pm.LogNormal(name, np.log(0.5 * s), 0.7),
    "uniform": lambda name, s: pm.Uniform(name, 0.0, 3.0 * s),
    "inverse gamma": lambda name, s: pm.InverseGamma(name, 3.0, 2.0 * s),
    "half-t": lambda name, s: pm.HalfStudentT(name, nu=3.0, sigma=s),
    "of its log": lambda name, s: pt.exp(pm.Normal(name + "_log", np.log(s), 1.0)),
}


# --- Predictors -------------------------------------------------------------------------------


def column(cook: Cook) -> np.ndarray:
    """Return a predictor, of sd about 1."""
    kind = cook.pick("column", ["normal", "skewed", "dummy", "rare", "outlier"], [5, 1, 2, 1, 1])
    x = cook.rng.normal(size=cook.n)
    if kind == "skewed":
        return np.exp(x) / 2
    if kind == "dummy":
        return (x > 0).astype(float)
    if kind == "rare":
        return (np.arange(cook.n) < RARE).astype(float)
    if kind == "outlier":
        x[cook.rng.integers(cook.n)] = 30.0
    return x


def coefficients(cook: Cook) -> Tensor:
    """Return the part of the predictor that all rows share."""
    p = int(cook.rng.integers(0, 4))
    mu = pm.Normal("intercept", 0, 2)
    cook.truth = cook.truth + cook.rng.normal(0, 0.3)
    if not p:
        return mu
    X = np.column_stack([column(cook) for _ in range(p)])
    if p > 1 and cook.rng.random() < 0.15:
        cook.note("columns", "collinear")
        X[:, 1] = X[:, 0] + 1e-3 * cook.rng.normal(size=cook.n)
    prior = cook.pick("coefficients", cook.priors, [4, *[1] * (len(cook.priors) - 1)])
    b = prior(cook, "b", 1.0 / cook.unit, p)
    signs = 1.0 if prior in (half_normal, gamma, log_normal) else cook.rng.choice([-1, 1], p)
    cook.truth = cook.truth + X @ (signs * cook.rng.uniform(0, 0.5, p))
    return mu + _read(cook, cook.unit * X, b)


def _read(cook: Cook, X: np.ndarray, b: Tensor) -> Tensor:
    """Return X b, as people write it."""
    how = cook.pick("written", ["X @ b", "data", "spelled", "float32", "sum"], [3, 2, 2, 1, 1])
    if how == "data":
        return pm.Data("X", X) @ b
    if how == "spelled":
        return sum(b[k] * X[:, k] for k in range(X.shape[1]))
    if how == "float32":
        return pt.dot(X.astype(np.float32), b)
    if how == "sum":
        return (X * b).sum(axis=-1)
    return X @ b


# --- Effects ----------------------------------------------------------------------------------


def labels(cook: Cook, n_groups: int) -> np.ndarray:
    """Return a group for each row."""
    if cook.pick("sizes", ["balanced", "unbalanced"]) == "balanced":
        return np.arange(cook.n) % n_groups
    shares = cook.rng.dirichlet(np.full(n_groups, 0.7))
    rest = cook.rng.choice(n_groups, cook.n - n_groups, p=shares)
    return cook.rng.permutation(np.r_[np.arange(n_groups), rest])


def levels(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    """Return effects of n levels."""
    how = cook.pick("effects", list(cook.effects), [4, 4, 2, *[1] * (len(cook.effects) - 3)])
    return cook.effects[how](cook, name, n, sd)


def _scale(cook: Cook, name: str, sd: float) -> Tensor:
    return SCALES[cook.pick("scale", list(SCALES), [3, *[1] * (len(SCALES) - 1)])](name, sd)


def _centred(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return pm.Normal(name, 0, _scale(cook, name + "_sd", sd), shape=n)


def _not_centred(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return _scale(cook, name + "_sd", sd) * pm.Normal(name + "_z", shape=n)


def _of_a_prior(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    several = [normal, laplace, student, cauchy, elastic, hinged, skewed, own_scales, horseshoe]
    prior = cook.pick("levels", [*several, uniform, half_normal])
    return prior(cook, name, 0.7 * sd, n)


def _student(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    nu = cook.pick("nu", [1.5, 3.0])
    return pm.StudentT(name, nu=nu, sigma=_scale(cook, name + "_sd", 0.5 * sd), shape=n)


def _student_not_centred(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return _scale(cook, name + "_sd", 0.5 * sd) * pm.StudentT(name + "_z", nu=2.5, shape=n)


def _laplace(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return pm.Laplace(name, 0, _scale(cook, name + "_sd", 0.5 * sd), shape=n)


def _walk(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    first = pm.Normal.dist(0, sd)
    return pm.GaussianRandomWalk(
        name, sigma=_scale(cook, name + "_sd", sd), init_dist=first, steps=n - 1
    )


def _zero_sum(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return pm.ZeroSumNormal(name, sigma=_scale(cook, name + "_sd", sd), shape=n)


def _nearly_zero_sum(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    u = _centred(cook, name, n, sd)
    pm.Potential(name + "_sum", -0.5 * (pt.sum(u) / (1e-2 * sd * n)) ** 2)
    return u


def _fused(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    u = pm.Normal(name, 0, sd, shape=n)
    pm.Potential(name + "_fused", -5.0 / sd * pt.sum(pt.abs(u[1:] - u[:-1])))
    return u


def _with_mean(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    mean = pm.Normal(name + "_mean", 0, sd)
    return pm.Normal(name, mean, _scale(cook, name + "_sd", sd), shape=n)


def _two_variances(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    scales = pm.HalfNormal(name + "_sd", sd, shape=2)
    return pm.Normal(name, 0, scales[np.arange(n) % 2], shape=n)


def _squared(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return pm.Normal(name + "_root", 0.0, 1.0) ** 2 * sd * pm.Normal(name + "_z", shape=n)


EFFECTS: dict[str, Callable[[Cook, str, int, float], Tensor]] = {
    "centred": _centred,
    "not centred": _not_centred,
    "of a prior": _of_a_prior,
    "Student": _student,
    "Student, not centred": _student_not_centred,
    "Laplace": _laplace,
    "walk": _walk,
    "zero sum": _zero_sum,
    "nearly zero sum": _nearly_zero_sum,
    "fused": _fused,
    "with a mean": _with_mean,
    "two variances": _two_variances,
    "squared": _squared,
}


def effects(cook: Cook) -> Tensor:
    """Return what groups add to the predictor."""
    designs = ["none", "one", "slopes", "slopes alone", "crossed", "nested", "correlated"]
    design = cook.pick("groups", designs, [3, 3, 2, 1, 1, 1, 0.5])
    if design == "none":
        return 0.0
    n_groups = cook.pick("levels of groups", [4, 12, 40], [1, 3, 1])
    group = labels(cook, n_groups)
    cook.truth = cook.truth + cook.rng.normal(0, 0.5, n_groups)[group]
    if design == "correlated":
        return _correlated(cook, group, n_groups)
    total = 0.0
    if design != "slopes alone":
        total = levels(cook, "u", n_groups, 1.0)[group]
    if design.startswith("slopes"):
        slopes = levels(cook, "w", n_groups, 0.5 / cook.unit)
        total = total + slopes[group] * (cook.unit * cook.rng.normal(size=cook.n))
    if design == "crossed":
        total = total + levels(cook, "w", 7, 0.5)[labels(cook, 7)]
    if design == "nested":
        total = total + levels(cook, "w", 2 * n_groups, 0.5)[2 * group + np.arange(cook.n) % 2]
    return total


def _correlated(cook: Cook, group: np.ndarray, n_groups: int) -> Tensor:
    sds = pm.HalfNormal.dist(np.array([1.0, 1.0 / cook.unit]), shape=2)
    chol, _, _ = pm.LKJCholeskyCov("cov", n=2, eta=2.0, sd_dist=sds)
    u = pm.Normal("u_z", shape=(n_groups, 2)) @ chol.T
    return u[group, 0] + u[group, 1] * (cook.unit * cook.rng.normal(size=cook.n))


# --- Families ---------------------------------------------------------------------------------


def _noise(cook: Cook) -> np.ndarray:
    return cook.truth + 0.7 * cook.rng.normal(size=cook.n)


def _positive(cook: Cook) -> np.ndarray:
    return np.exp(np.clip(cook.truth, -3, 3)) * cook.rng.gamma(2.0, 0.5, cook.n) + 1e-3


def _counts(cook: Cook) -> np.ndarray:
    return cook.rng.poisson(np.exp(np.clip(cook.truth, -3, 3)))


def _share(cook: Cook) -> np.ndarray:
    return 1 / (1 + np.exp(-cook.truth))


def _sigma(cook: Cook) -> Tensor:
    return _scale(cook, "sigma", 1.0) if cook.rng.random() < 0.7 else 0.7


def _gaussian(cook: Cook, eta: Tensor) -> None:
    pm.Normal("y", eta, _sigma(cook), observed=_noise(cook))


def _gaussian_column(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)[:, None]
    pm.Normal("y", eta[:, None], _sigma(cook), observed=y)


def _gaussian_matrix(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)[:, None] + cook.rng.normal(size=(cook.n, 3))
    sigma = pm.HalfNormal("sigma", shape=3)
    pm.Normal("y", eta[:, None] + pm.Normal("shift", shape=3), sigma, observed=y)


def _gaussian_rows_last(cook: Cook, eta: Tensor) -> None:
    y = (_noise(cook)[:, None] + cook.rng.normal(size=(cook.n, 2))).T
    pm.Normal("y", eta + pm.Normal("shift", shape=(2, 1)), pm.HalfNormal("sigma"), observed=y)


def _two_instruments(cook: Cook, eta: Tensor) -> None:
    kind = (np.arange(cook.n) >= cook.rng.integers(1, RARE + 1)).astype(int)
    sigma = pm.HalfNormal("sigma", shape=2)
    pm.Normal("y", eta, sigma[cook.rng.permutation(kind)], observed=_noise(cook))


def _rare_laplace(cook: Cook, eta: Tensor) -> None:
    y, sigma = _noise(cook), pm.HalfNormal("sigma")
    few = np.arange(cook.n) < cook.pick("rows of another kind", [1, RARE, cook.n // 2])
    few = cook.rng.permutation(few)
    rows = pt.switch(
        few,
        pm.logp(pm.Laplace.dist(eta, sigma), y),
        pm.logp(pm.Normal.dist(eta, sigma), y),
    )
    pm.Potential("rows", rows)


def _rare_censored(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)
    upper = np.full(cook.n, np.inf)
    few = cook.rng.permutation(cook.n)[: cook.pick("censored rows", [1, RARE, cook.n // 5])]
    upper[few] = y[few]
    pm.Censored("y", pm.Normal.dist(eta, _sigma(cook)), lower=None, upper=upper, observed=y)


def _tobit(cook: Cook, eta: Tensor) -> None:
    latent = pm.Normal.dist(eta, _sigma(cook))
    y = np.maximum(_noise(cook), -0.5)
    pm.Censored("y", latent, lower=-0.5, upper=None, observed=y)


def _top_coded(cook: Cook, eta: Tensor) -> None:
    count = pm.Poisson.dist(pt.exp(eta))
    pm.Censored("y", count, lower=None, upper=4, observed=np.minimum(_counts(cook), 4))


def _truncated(cook: Cook, eta: Tensor) -> None:
    latent = pm.Normal.dist(eta, _sigma(cook))
    y = np.abs(_noise(cook))
    pm.Truncated("y", latent, lower=0.0, upper=None, observed=y)


def _truncated_counts(cook: Cook, eta: Tensor) -> None:
    pm.Truncated("y", pm.Poisson.dist(pt.exp(eta)), lower=1, observed=_counts(cook) + 1)


def _student_rows(cook: Cook, eta: Tensor) -> None:
    nu = pm.Gamma("nu", 2, 0.1) if cook.rng.random() < 0.5 else 4.0
    pm.StudentT("y", nu=nu, mu=eta, sigma=_sigma(cook), observed=_noise(cook))


def _laplace_rows(cook: Cook, eta: Tensor) -> None:
    pm.Laplace("y", eta, _sigma(cook), observed=_noise(cook))


def _asymmetric(cook: Cook, eta: Tensor) -> None:
    pm.AsymmetricLaplace("y", q=0.25, mu=eta, b=2.0, observed=_noise(cook))


def _skew_rows(cook: Cook, eta: Tensor) -> None:
    pm.SkewNormal("y", mu=eta, sigma=_sigma(cook), alpha=2.0, observed=_noise(cook))


def _gumbel(cook: Cook, eta: Tensor) -> None:
    pm.Gumbel("y", eta, _sigma(cook), observed=_noise(cook))


def _bernoulli(cook: Cook, eta: Tensor) -> None:
    link = cook.pick("link", ["logit", "probit", "cloglog", "logit_p"], [1, 2, 1, 3])
    y = cook.rng.binomial(1, _share(cook))
    if link == "logit_p":
        pm.Bernoulli("y", logit_p=eta, observed=y)
    else:
        links = {"logit": pm.math.invlogit, "probit": pm.math.invprobit}
        p = links.get(link, lambda e: 1 - pt.exp(-pt.exp(e)))(eta)
        pm.Bernoulli("y", p=p, observed=y)


def _binomial(cook: Cook, eta: Tensor) -> None:
    trials = cook.rng.integers(1, 9, cook.n)
    y = cook.rng.binomial(trials, _share(cook))
    pm.Binomial("y", n=trials, logit_p=eta, observed=y)


def _beta_binomial(cook: Cook, eta: Tensor) -> None:
    y = cook.rng.binomial(8, _share(cook))
    p, kappa = pm.math.invlogit(eta), 2.0 + pm.Exponential("kappa", 0.2)
    pm.BetaBinomial("y", n=8, alpha=p * kappa, beta=(1 - p) * kappa, observed=y)


def _poisson(cook: Cook, eta: Tensor) -> None:
    link = cook.pick("link", ["log", "softplus", "offset"], [3, 1, 1])
    if link == "softplus":
        mean = pt.softplus(eta) + 1e-3
    elif link == "offset":
        mean = cook.rng.uniform(0.5, 2.0, cook.n) * pt.exp(eta)
    else:
        mean = pt.exp(eta)
    pm.Poisson("y", mean, observed=_counts(cook))


def _negative_binomial(cook: Cook, eta: Tensor) -> None:
    size = _scale(cook, "size", 2.0)
    pm.NegativeBinomial("y", mu=pt.exp(eta), alpha=size + 0.05, observed=_counts(cook))


def _zero_inflated(cook: Cook, eta: Tensor) -> None:
    y = _counts(cook) * cook.rng.binomial(1, 0.7, cook.n)
    pm.ZeroInflatedPoisson("y", pm.Beta("share", 2, 2), pt.exp(eta), observed=y)


def _hurdle(cook: Cook, eta: Tensor) -> None:
    y = _positive(cook) * cook.rng.binomial(1, 0.6, cook.n)
    pm.HurdleGamma("y", pm.Beta("share", 2, 2), alpha=2.0, beta=2 / pt.exp(eta), observed=y)


def _gamma_rows(cook: Cook, eta: Tensor) -> None:
    shape = _scale(cook, "shape", 2.0) + 0.1
    pm.Gamma("y", alpha=shape, beta=shape / pt.exp(eta), observed=_positive(cook))


def _exponential(cook: Cook, eta: Tensor) -> None:
    pm.Exponential("y", scale=pt.exp(eta), observed=_positive(cook))


def _weibull(cook: Cook, eta: Tensor) -> None:
    pm.Weibull("y", alpha=1.5, beta=pt.exp(eta), observed=_positive(cook))


def _censored_weibull(cook: Cook, eta: Tensor) -> None:
    time = pm.Weibull.dist(alpha=pm.HalfNormal("shape", 2) + 0.1, beta=pt.exp(eta))
    y = np.minimum(_positive(cook), 2.5)
    pm.Censored("y", time, lower=None, upper=2.5, observed=y)


def _log_normal_rows(cook: Cook, eta: Tensor) -> None:
    pm.LogNormal("y", eta, _sigma(cook), observed=_positive(cook))


def _beta(cook: Cook, eta: Tensor) -> None:
    p = np.clip(_share(cook) + 0.1 * cook.rng.normal(size=cook.n), 0.01, 0.99)
    nu = _scale(cook, "precision", 5.0) + 0.1
    pm.Beta("y", mu=pm.math.invlogit(eta), nu=nu, observed=p)


def _ordered(cook: Cook, eta: Tensor) -> None:
    cuts = pm.Normal(
        "cuts", 0, 2, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0]
    )
    y = np.digitize(_noise(cook), [-0.5, 0.5])
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=y)


def _categorical(cook: Cook, eta: Tensor) -> None:
    y = np.digitize(_noise(cook), [-0.5, 0.5])
    classes = [pt.zeros_like(eta), eta, pm.Normal("gap") - 0.5 * eta]
    pm.Categorical("y", logit_p=pt.stack(classes, axis=1), observed=y)


def _mixture(cook: Cook, eta: Tensor) -> None:
    weights = pm.Dirichlet("weights", np.ones(2))
    parts = [pm.Normal.dist(eta, 0.6), pm.Normal.dist(eta, 3.0)]
    pm.Mixture("y", weights, parts, observed=_noise(cook))


def _summed_potential(cook: Cook, eta: Tensor) -> None:
    y, sigma = _noise(cook), pm.HalfNormal("sigma")
    rows = -0.5 * ((y - eta) / sigma) ** 2 - pt.log(sigma)
    pm.Potential("rows", pt.sum(rows))


def _huber(cook: Cook, eta: Tensor) -> None:
    error = pt.abs(_noise(cook) - eta)
    pm.Potential("rows", -pt.sum(pt.switch(error < 1, 0.5 * error**2, error - 0.5)))


def _weighted(cook: Cook, eta: Tensor) -> None:
    y, weight = _noise(cook), cook.rng.uniform(0.2, 3.0, cook.n)
    pm.Potential("rows", weight * pm.logp(pm.Normal.dist(eta, pm.HalfNormal("sigma")), y))


def _deadzone(cook: Cook, eta: Tensor) -> None:
    """Flat, with walls behind."""
    error = pt.abs(_noise(cook) - eta) - 3.0
    pm.Potential("rows", -20.0 * pt.maximum(error, 0.0) ** 2)


def _by_row_scale(cook: Cook, eta: Tensor) -> None:
    z = cook.rng.normal(size=cook.n)
    sigma = pt.exp(pm.Normal("c", 0, 1) + pm.Normal("d", 0, 1) * z)
    pm.Normal("y", eta, sigma, observed=_noise(cook))


def _two_outcomes(cook: Cook, eta: Tensor) -> None:
    pm.Normal("y", eta, _sigma(cook), observed=_noise(cook))
    pm.Bernoulli("yes", logit_p=eta, observed=cook.rng.binomial(1, _share(cook)))


FAMILIES: tuple[Callable[[Cook, Tensor], None], ...] = (
    _gaussian,
    _bernoulli,
    _poisson,
    _binomial,
    _student_rows,
    _gaussian_column,
    _gaussian_matrix,
    _gaussian_rows_last,
    _two_instruments,
    _rare_laplace,
    _rare_censored,
    _tobit,
    _top_coded,
    _truncated,
    _truncated_counts,
    _laplace_rows,
    _asymmetric,
    _skew_rows,
    _gumbel,
    _beta_binomial,
    _negative_binomial,
    _zero_inflated,
    _hurdle,
    _gamma_rows,
    _exponential,
    _weibull,
    _censored_weibull,
    _log_normal_rows,
    _beta,
    _ordered,
    _categorical,
    _mixture,
    _summed_potential,
    _huber,
    _weighted,
    _deadzone,
    _by_row_scale,
    _two_outcomes,
)


# --- Potentials -------------------------------------------------------------------------------


def potential(cook: Cook, model: pm.Model) -> None:
    """Tie parameters by a potential, once in a while."""
    kinds = ["none", "sum", "joint", "kink", "bound", "quartic"]
    kind = cook.pick("potential", kinds, [10, 1, 1, 1, 1, 1])
    free = [v for v in model.free_RVs if v.ndim < 2 and v.name not in ("cuts", "weights", "cov")]
    if kind == "none" or not free:
        return
    a, b = (free[int(cook.rng.integers(len(free)))] for _ in range(2))
    cook.note("of", f"{a.name}, {b.name}")
    unit = cook.unit if a.name[0] in "bw" else 1.0
    a = a * unit
    b = b * (cook.unit if b.name[0] in "bw" else 1.0)
    terms = {
        "sum": lambda: -0.5 * (pt.sum(a) + pt.sum(b) - 1.0) ** 2,
        "joint": lambda: -pt.softplus(a.sum() + b.sum()) if a.ndim else -(a**2),
        "kink": lambda: -3.0 * pt.sum(pt.abs(a - 0.1)),
        "bound": lambda: pt.switch(pt.sum(a) < 8.0, 0.0, -np.inf),
        "quartic": lambda: -pt.sum(a**4),
    }
    pm.Potential("tie", terms[kind]())


def generate(seed: int, number: int, unit: float | None = None) -> Generated:
    """Build a model.

    Parameters
    ----------
    seed, number : int
        Which model.
    unit : float, optional
        Unit of all predictors; a random one if not given.
    """
    cook = Cook(seed, number, unit)
    with pm.Model() as model:
        eta = coefficients(cook) + effects(cook)
        if eta.ndim == 0:  # all rows read one number
            eta = (
                pt.broadcast_to(eta, (cook.n,))
                if cook.rng.random() < 0.5
                else eta + np.zeros(cook.n)
            )
        family = cook.pick("family", FAMILIES, [4, 4, 3, 2, 2, *[1] * (len(FAMILIES) - 5)])
        family(cook, eta)
        potential(cook, model)
    return Generated(model, tuple(cook.recipe))


# --- Checks -----------------------------------------------------------------------------------

REFUSALS: tuple[type[Exception], ...] = (pmb.NotTallError,)
"""What a model may be refused with."""


def check(made: Generated, seed: int = 0) -> Outcome:
    """Say what a short run makes of a model."""
    try:
        return _checked(made.model, seed)
    except Exception as error:
        return _as_outcome(error)


def _as_outcome(error: Exception) -> Outcome:
    """Say whether an error is a refusal; every other one is a fault."""
    if isinstance(error, REFUSALS):
        return Outcome("refused", str(error))
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({where.filename.split('/')[-1]}:{where.lineno})"
    return Outcome("fault", text)


def _checked(model: pm.Model, seed: int) -> Outcome:
    """Run; discrete variables stay where they are, as another step would move them."""
    several = [model.values_to_rvs[value] for value in model.continuous_value_vars]
    own = {"vars": several} if model.discrete_value_vars else {}
    step = pmb.MinibatchMH(model=model, rng=seed, **own)
    unlike = log_densities_differ(model, step.tall, seed)
    if unlike:
        return Outcome("fault", unlike)
    point = model.initial_point()
    for _ in range(TUNE):
        point, _ = step.step(point)
    step.stop_tuning()
    for _ in range(DRAWS):
        point, [stats] = step.step(point)
    if not stats["n_witnessed"]:
        return Outcome("fault", f"no witness: {step.choice}")
    if not all(np.isfinite(value).all() for value in point.values()):
        return Outcome("fault", "a draw is not finite")
    return Outcome("agreed", step.choice)


def check_split(made: Generated, seed: int = 0) -> Outcome:
    """Compare the log-density of a split with the model's, and run nothing."""
    try:
        unlike = log_densities_differ(made.model, pmb.TallModel(made.model), seed)
    except Exception as error:
        return _as_outcome(error)
    return Outcome("fault" if unlike else "agreed", unlike)


def log_densities_differ(model: pm.Model, tall: pmb.TallModel, seed: int) -> str:
    """Compare a split with the model at draws of the prior."""
    logp = model.compile_logp(mode="FAST_COMPILE")
    rng, start = np.random.default_rng(seed), model.initial_point()
    for spread in (0.0, 0.3, 1.5):
        point = {
            k: v if v.dtype.kind in "iu" else v + spread * rng.standard_normal(np.shape(v))
            for k, v in start.items()
        }
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                expected = float(logp(point))
            except ParameterValueError:
                continue
            found = tall.logp(point)
        if np.isfinite(expected) and not np.isclose(found, expected, rtol=1e-6, atol=1e-6):
            return f"tall.logp is {found:.8g}, the model's {expected:.8g}"
        if not np.isfinite(expected) and found > UNDERFLOW:
            return f"tall.logp is {found:.8g}, the model's {expected}"
    return ""


# --- Posteriors -------------------------------------------------------------------------------

MOST_PARAMETERS = 6
"""Of a posterior that is known by importance sampling."""

LEARNT, WEIGHTED = 1000, 5000
"""Points that a proposal is learnt from, in each of some turns, and that are weighted."""

LEAST_EFFECTIVE = 700.0
"""Of them, with which a posterior counts as known."""

ALIKE = 3.5
"""Standard errors of their difference by which two proposals may differ."""

FAR = 5.0
"""Standard errors by which a mean or a variance may be off."""

LONG_TUNE, LONG = 1000, 4000
"""Draws of a run whose moments are compared."""


class Known(NamedTuple):
    """Means and variances of a posterior on unconstrained scales, and their standard errors."""

    mean: np.ndarray
    variance: np.ndarray
    mean_error: np.ndarray
    variance_error: np.ndarray


def known_posterior(model: pm.Model, seed: int) -> Known | None:
    """Integrate a posterior by importance sampling; None if it is not found that way.

    It is known if two proposals that are learnt apart agree: standard errors of weights that
    vary much are too small.
    """
    both = [found for k in (0, 1) if (found := _integrated(model, 2 * seed + k)) is not None]
    if len(both) < 2:
        return None
    one, other = both
    for of, error in (("mean", "mean_error"), ("variance", "variance_error")):
        apart = getattr(one, of) - getattr(other, of)
        if np.any(np.abs(apart) > ALIKE * np.hypot(getattr(one, error), getattr(other, error))):
            return None
    mean, variance = (np.mean(pair, axis=0) for pair in zip(one[:2], other[:2], strict=True))
    return Known(mean, variance, *(np.fmax(*pair) for pair in zip(one[2:], other[2:], strict=True)))


def _integrated(model: pm.Model, seed: int) -> Known | None:
    """Integrate a posterior by importance sampling; None if weights vary too much.

    The proposal is a Student distribution, learnt from weighted points: nothing of the package
    takes part in it.
    """
    start, logp = (
        DictToArrayBijection.map(model.initial_point()),
        model.compile_logp(mode="FAST_COMPILE"),
    )

    def log_density(flat: np.ndarray) -> float:
        point = DictToArrayBijection.rmap(RaveledVars(flat, start.point_map_info))
        try:
            value = float(logp(point))
        except ParameterValueError:
            return -np.inf
        return value if np.isfinite(value) else -np.inf

    with np.errstate(all="ignore"):
        found = minimize(
            lambda flat: min(-log_density(flat), 1e100),
            start.data,
            method="Nelder-Mead",
            options={"maxfev": 100 * start.data.size, "fatol": 1e-3, "adaptive": True},
        )
        units = _widths(log_density, found.x)  # a law in raw units would seem degenerate
        centre, covariance = np.zeros(units.size), np.eye(units.size)
        rng, n = np.random.default_rng(seed), LEARNT
        for turn in range(6):
            n = WEIGHTED if turn == 5 else LEARNT
            law = stats.multivariate_t(centre, covariance, df=4, allow_singular=True, seed=rng)
            points = np.atleast_2d(law.rvs(n).reshape(n, -1))
            logs = [log_density(found.x + units * point) for point in points]
            logs -= law.logpdf(points)
            weights = np.exp(logs - logs.max())
            weights /= weights.sum()
            if turn < 5 and weights.max() > 0.05:  # a few points must not narrow the proposal
                weights = np.minimum(weights, 0.05)
                weights /= weights.sum()
            centre = weights @ points
            covariance = np.atleast_2d(np.cov(points.T, aweights=weights + 1e-300, ddof=0))
            if not np.isfinite(covariance).all():
                return None
        if 1.0 / np.sum(weights**2) < LEAST_EFFECTIVE:
            return None
    away = points - centre
    variance = weights @ away**2
    return Known(
        found.x + units * centre,
        units**2 * variance,
        units * np.sqrt(weights**2 @ away**2),
        units**2 * np.sqrt(weights**2 @ (away**2 - variance) ** 2),
    )


def _widths(log_density: Callable[[np.ndarray], float], mode: np.ndarray) -> np.ndarray:
    """Return how far along each axis the density falls by half a unit."""
    top, widths = log_density(mode), np.ones(mode.size)
    for i in range(mode.size):
        step = np.zeros(mode.size)
        for widths[i] in 10.0 ** np.arange(3, -12, -0.5):
            step[i] = widths[i]
            if min(top - log_density(mode + step), top - log_density(mode - step)) < 1.0:
                break
    return widths


def check_posterior(made: Generated, seed: int = 0) -> Outcome:
    """Compare the draws of a model with its posterior, where that is known."""
    try:
        return _compared(made.model, seed)
    except Exception as error:
        return _as_outcome(error)


def _compared(model: pm.Model, seed: int) -> Outcome:
    if sum(np.size(value) for value in model.initial_point().values()) > MOST_PARAMETERS:
        return Outcome("unknown", "many parameters")
    if model.discrete_value_vars:
        return Outcome("unknown", "discrete")
    known = known_posterior(model, seed)
    if known is None:
        return Outcome("unknown", "importance sampling")
    step = pmb.MinibatchMH(model=model, rng=seed)
    step.setup_chain(np.random.default_rng(seed), LONG_TUNE, LONG)
    point = model.initial_point()
    for _ in range(LONG_TUNE):
        point, _ = step.step(point)
    step.stop_tuning()
    draws = np.empty((LONG, known.mean.size))
    for i in range(LONG):
        point, _ = step.step(point)
        draws[i] = DictToArrayBijection.map(point).data
    away = draws - known.mean
    found = []
    for what, values, right, error in (
        ("mean", draws, known.mean, known.mean_error),
        ("variance", away**2, known.variance, known.variance_error),
    ):
        effective = np.array([float(az.ess(values[None, :, i])) for i in range(draws.shape[1])])
        noise = np.hypot(values.std(axis=0) / np.sqrt(np.fmax(effective, 1.0)), error)
        z = (values.mean(axis=0) - right) / noise
        worst = int(np.argmax(np.abs(z)))
        text = f"{what} {worst}: z {z[worst]:.1f}, of {effective[worst]:.0f} draws"
        found.append((abs(z[worst]), text))
    kind = "fault" if max(found)[0] > FAR else "agreed"
    return Outcome(kind, f"{max(found)[1]}; {step.choice}")


def main(build: Callable[[int, int], Generated] = generate) -> None:
    """Check many models, and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--posterior", action="store_true", help="compare small ones' draws")
    parser.add_argument("--split", action="store_true", help="compare log-densities only")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so many")
    options = parser.parse_args()
    look = check_posterior if options.posterior else check_split if options.split else check
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pymc_minibatch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    counts, started, n = Counter[str](), time.perf_counter(), 0
    for number in range(options.first, options.first + options.models):
        if time.perf_counter() - started > options.seconds:
            break
        before = time.perf_counter()
        made = build(options.seed, number)
        outcome = look(made)
        counts[outcome.kind] += 1
        n += 1
        seconds = time.perf_counter() - before
        print(f"{number} {outcome.kind} {seconds:.1f} s: {outcome.words[:300]}", flush=True)
        if outcome.kind != "agreed":
            print(f"    {' '.join(made.recipe)}", flush=True)
    rate = n / (time.perf_counter() - started)
    print(f"{n} models, {rate:.3f} a second: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
