"""Models put together at random of more kinds than :mod:`generated` has.

Priors, effects, predictors and rows that people write less often: ordered and bounded
coefficients, smooths, random walks, correlated fields, products of effects, change points,
measurement errors, missing values, weights, rows of several shapes. As a program::

    python -m tests.wider --models 2000 --seed 1
    python -m tests.wider --models 400 --posterior
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered

from tests.generated import (
    EFFECTS,
    FAMILIES,
    PRIORS,
    Cook,
    Generated,
    Tensor,
    coefficients,
    column,
    effects,
    labels,
    levels,
    main,
    potential,
)

# --- Priors of coefficients -------------------------------------------------------------------


def multivariate(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    correlation = np.full((shape, shape), 0.6) + 0.4 * np.eye(shape)
    return pm.MvNormal(name, np.zeros(shape), cov=sd**2 * correlation)


def simplex(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    shares = pm.Dirichlet(name + "_shares", np.ones(shape + 1))
    return pm.HalfNormal(name + "_size", sd) * shares[:-1]


def truncated(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.TruncatedNormal(name, 0, sd, lower=-0.5 * sd, shape=shape)


def spike_and_slab(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.NormalMixture(name, [0.6, 0.4], mu=0.0, sigma=[0.05 * sd, sd], shape=shape)


def triangular(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.Triangular(name, lower=-2 * sd, c=0.0, upper=3 * sd, shape=shape)


def flat(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.Flat(name, shape=shape)


def logistic(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.Logistic(name, 0, 0.4 * sd, shape=shape)


def gumbel_prior(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.Gumbel(name, 0, 0.5 * sd, shape=shape)


def asymmetric_prior(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return pm.AsymmetricLaplace(name, kappa=2.0, mu=0.0, b=2.0 / sd, shape=shape)


def shares_of_unit(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return sd * pm.Beta(name + "_unit", 1.5, 3.0, shape=shape)


def included(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    is_in = pm.Bernoulli(name + "_in", 0.5, shape=shape)
    return is_in * pm.Normal(name, 0, sd, shape=shape)


def increasing(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    start = sd * np.linspace(-0.5, 0.5, shape)
    return pm.Normal(name, 0, sd, shape=shape, transform=ordered, initval=start)


def product(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    return sd * pm.Normal(name + "_left", shape=shape) * pm.Normal(name + "_right", 1, 0.5)


def of_log_scale(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    log_sd = pm.Normal(name + "_log_sd", np.log(sd), 0.7, shape=shape)
    return pm.Normal(name, 0, pt.exp(log_sd))


def own_density(cook: Cook, name: str, sd: float, shape: int) -> Tensor:
    """Heavier than Gaussian, and with a flat top."""

    def logp(value: Tensor, scale: Tensor) -> Tensor:
        return -pt.log1p((value / scale) ** 4)

    return pm.CustomDist(name, sd, logp=logp, shape=shape)


MORE_PRIORS: tuple[Callable[..., Tensor], ...] = (
    multivariate,
    simplex,
    truncated,
    spike_and_slab,
    triangular,
    flat,
    logistic,
    gumbel_prior,
    asymmetric_prior,
    shares_of_unit,
    included,
    increasing,
    product,
    of_log_scale,
    own_density,
)


# --- Levels of groups -------------------------------------------------------------------------


def _scale(name: str, sd: float) -> Tensor:
    return pm.HalfNormal(name + "_sd", sd)


def _ar1(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    rho = pm.Uniform(name + "_rho", -0.95, 0.95)
    first = pm.Normal.dist(0, sd)
    sigma = _scale(name, sd)
    return pm.AR(name, rho=[rho], sigma=sigma, init_dist=first, ar_order=1, steps=n - 1)


def _icar(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    near = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) == 1).astype(int)
    return _scale(name, sd) * pm.ICAR(name + "_phi", W=near)


def _car(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    near = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) == 1).astype(int)
    tau = pm.Gamma(name + "_tau", 2.0, 2.0 * sd**2)
    return pm.CAR(name, mu=np.zeros(n), W=near, alpha=pm.Beta(name + "_alpha", 2, 2), tau=tau)


def _gaussian_process(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    place = np.linspace(0, 3, n)
    length = pm.InverseGamma(name + "_length", 5, 5)
    distance = (place[:, None] - place[None, :]) / length
    K = pt.exp(-0.5 * distance**2) + 1e-4 * np.eye(n)
    return _scale(name, sd) * (pt.linalg.cholesky(K) @ pm.Normal(name + "_z", shape=n))


def _known_covariance(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    kinship = 0.5 * np.eye(n) + 0.5 * np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n))))
    return pm.MvNormal(name, np.zeros(n), chol=_scale(name, sd) * np.linalg.cholesky(kinship))


def _regressed(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    z = cook.rng.normal(size=n)
    return pm.Normal(name, pm.Normal(name + "_g", 0, sd) * z, _scale(name, sd), shape=n)


def _of_regions(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    region = np.arange(n) % 3
    upper = pm.Normal(name + "_region", 0, sd, shape=3)
    return pm.Normal(name, upper[region], _scale(name, sd), shape=n)


def _reference_level(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    return pt.concatenate([[0.0], pm.Normal(name, 0, _scale(name, sd), shape=n - 1)])


def _sum_to_zero_by_hand(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    u = pm.Normal(name, 0, _scale(name, sd), shape=n - 1)
    return pt.concatenate([u, -pt.sum(u, keepdims=True)])


def _minus_mean(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    u = pm.Normal(name, 0, _scale(name, sd), shape=n)
    return u - pt.mean(u)


def _own_sds(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    sds = pm.HalfNormal(name + "_sd", _scale(name + "_of", sd), shape=n)
    return pm.Normal(name, 0, sds + 0.05 * sd)


def _mixed(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    share = pm.Beta(name + "_share", 2, 2)
    weights = pt.stack([share, 1 - share])
    return pm.NormalMixture(name, weights, mu=[-0.5 * sd, 0.5 * sd], sigma=0.3 * sd, shape=n)


def _log_gamma(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    """Gamma frailties, on the scale of the predictor."""
    shape = pm.Gamma(name + "_shape", 2, 0.5) + 0.3
    return sd * pt.log(pm.Gamma(name, shape, shape, shape=n))


def _monotone(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    steps = pm.Dirichlet(name + "_steps", np.ones(n - 1))
    rise = pm.Normal(name + "_rise", 0, sd)
    return rise * pt.concatenate([[0.0], pt.cumsum(steps)])


def _second_differences(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    u = pm.Normal(name, 0, 2 * sd, shape=n)
    scale = _scale(name, sd)
    bends = u[2:] - 2 * u[1:-1] + u[:-2]
    pm.Potential(name + "_smooth", -0.5 * pt.sum((bends / scale) ** 2) - (n - 2) * pt.log(scale))
    return u


def _spline(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    place, knots = np.linspace(0, 1, n), np.linspace(0, 1, 4)
    basis = np.exp(-0.5 * ((place[:, None] - knots) / 0.3) ** 2)
    return basis @ pm.Normal(name, 0, _scale(name, sd), shape=4)


def _shared_scale(cook: Cook, name: str, n: int, sd: float) -> Tensor:
    """Split a variance between a structured and an unstructured part."""
    scale, share = _scale(name, sd), pm.Beta(name + "_share", 1, 1)
    z, v = pm.Normal(name + "_z", shape=n), pm.Normal(name + "_v", shape=n)
    return scale * (pt.sqrt(share) * z + pt.sqrt(1 - share) * v)


MORE_EFFECTS: dict[str, Callable[[Cook, str, int, float], Tensor]] = {
    "AR(1)": _ar1,
    "ICAR": _icar,
    "CAR": _car,
    "Gaussian process": _gaussian_process,
    "known covariance": _known_covariance,
    "regressed": _regressed,
    "of regions": _of_regions,
    "reference level": _reference_level,
    "sum to zero by hand": _sum_to_zero_by_hand,
    "minus mean": _minus_mean,
    "own sds": _own_sds,
    "mixed": _mixed,
    "log-gamma": _log_gamma,
    "monotone": _monotone,
    "second differences": _second_differences,
    "spline": _spline,
    "shared scale": _shared_scale,
}


# --- What is added to the predictor -----------------------------------------------------------


def _smooth(cook: Cook, eta: Tensor) -> Tensor:
    x = cook.rng.uniform(-1, 1, cook.n)
    covariance = pm.HalfNormal("amplitude") ** 2 * pm.gp.cov.ExpQuad(
        1, ls=pm.InverseGamma("length", 5, 3)
    )
    process = pm.gp.HSGP(m=[5], L=[1.5], cov_func=covariance)
    return eta + process.prior("f", X=x[:, None])


def _item_response(cook: Cook, eta: Tensor) -> Tensor:
    person, item = labels(cook, 15), labels(cook, 6)
    ability = pm.Normal("ability", shape=15)
    slope, place = pm.LogNormal("slope", 0, 0.4, shape=6), pm.Normal("place", 0, 1, shape=6)
    return eta + slope[item] * (ability[person] - place[item])


def _bilinear(cook: Cook, eta: Tensor) -> Tensor:
    left, right = labels(cook, 8), labels(cook, 6)
    u, v = pm.Normal("left", shape=(8, 2)), pm.Normal("right", 0, 0.5, shape=(6, 2))
    return eta + (u[left] * v[right]).sum(axis=1)


def _multiple_members(cook: Cook, eta: Tensor) -> Tensor:
    first, second = labels(cook, 10), cook.rng.permutation(labels(cook, 10))
    u = levels(cook, "member", 10, 0.7)
    share = cook.rng.uniform(size=cook.n)
    return eta + share * u[first] + (1 - share) * u[second]


def _weights_matrix(cook: Cook, eta: Tensor) -> Tensor:
    W = cook.rng.dirichlet(np.ones(6), cook.n)
    return eta + W @ levels(cook, "source", 6, 0.7)


def _change_point(cook: Cook, eta: Tensor) -> Tensor:
    x = np.sort(cook.rng.uniform(0, 1, cook.n))
    at = pm.Uniform("at", 0, 1)
    return eta + pt.switch(x > at, pm.Normal("jump"), 0.0)


def _broken_stick(cook: Cook, eta: Tensor) -> Tensor:
    x = cook.rng.uniform(-1, 1, cook.n)
    return eta + pm.Normal("bend") * pt.maximum(x - pm.Normal("knot", 0, 0.5), 0.0)


def _cycle(cook: Cook, eta: Tensor) -> Tensor:
    x = cook.rng.uniform(0, 6, cook.n)
    return eta + pm.HalfNormal("amplitude") * pt.sin(x + pm.VonMises("phase", 0, 0.5))


def _saturation(cook: Cook, eta: Tensor) -> Tensor:
    dose = cook.rng.gamma(2.0, 1.0, cook.n)
    top, half = pm.HalfNormal("top"), pm.LogNormal("half", 0, 0.7)
    return eta + top * dose / (half + dose)


def _saturation_by_group(cook: Cook, eta: Tensor) -> Tensor:
    dose, group = cook.rng.gamma(2.0, 1.0, cook.n), labels(cook, 8)
    rate = pt.exp(pm.Normal("rate_mean") + 0.5 * pm.Normal("rate", shape=8))
    return eta + pm.Normal("top") * (1 - pt.exp(-rate[group] * dose))


def _offset(cook: Cook, eta: Tensor) -> Tensor:
    return eta + cook.rng.normal(0, 0.5, cook.n)


def _exponent(cook: Cook, eta: Tensor) -> Tensor:
    x = cook.rng.uniform(0.1, 3, cook.n)
    return eta + 0.5 * x ** pm.HalfNormal("exponent")


def _quadratic(cook: Cook, eta: Tensor) -> Tensor:
    return eta + pm.Normal("quadratic", 0, 0.3) * eta**2


def _measured(cook: Cook, eta: Tensor) -> Tensor:
    """Few true values, measured with error."""
    group = labels(cook, 12)
    true = pm.Normal("true", 0, 1, shape=12)
    pm.Normal("measured", true, 0.3, observed=cook.rng.normal(size=12))
    return eta + pm.Normal("effect", 0, 1) * true[group]


def _imputed(cook: Cook, eta: Tensor) -> Tensor:
    x = cook.rng.normal(size=cook.n)
    x[cook.rng.permutation(cook.n)[:5]] = np.nan
    mean = pm.Normal("x_mean")
    return eta + pm.Normal("effect") * pm.Normal("x", mean, 1.0, observed=np.ma.masked_invalid(x))


def _network(cook: Cook, eta: Tensor) -> Tensor:
    X = np.column_stack([column(cook) for _ in range(2)])
    hidden = pt.tanh(X @ pm.Normal("first", shape=(2, 3)))
    return eta + hidden @ pm.Normal("second", shape=3)


def _discrete(cook: Cook, eta: Tensor) -> Tensor:
    kind = pm.Categorical("kind", np.ones(3) / 3)
    return eta + pm.Normal("of_kind", 0, 1, shape=3)[kind]


def _latent_classes(cook: Cook, eta: Tensor) -> Tensor:
    group = labels(cook, 10)
    member = pm.Bernoulli("member", 0.4, shape=10)
    return eta + pm.Normal("of_class", 0, 1, shape=2)[member][group]


def _nested_index(cook: Cook, eta: Tensor) -> Tensor:
    county = labels(cook, 12)
    state_of = pm.Data("state_of", np.arange(12) % 4)
    return eta + levels(cook, "state", 4, 0.7)[state_of][county]


def _triple(cook: Cook, eta: Tensor) -> Tensor:
    for name, n in (("day", 7), ("month", 12), ("store", 9)):
        eta = eta + levels(cook, name, n, 0.4)[labels(cook, n)]
    return eta


def _slopes_of_two(cook: Cook, eta: Tensor) -> Tensor:
    group, X = labels(cook, 8), cook.rng.normal(size=(cook.n, 2))
    w = pm.Normal("slopes", 0, pm.HalfNormal("slopes_sd", shape=2), shape=(8, 2))
    return eta + (w[group] * X).sum(axis=-1)


def _correlated_three(cook: Cook, eta: Tensor) -> Tensor:
    group = labels(cook, 9)
    Z = np.column_stack([np.ones(cook.n), cook.rng.normal(size=(cook.n, 2))])
    chol, _, _ = pm.LKJCholeskyCov("cov3", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    u = pm.MvNormal("u3", np.zeros(3), chol=chol, shape=(9, 3))
    return eta + (u[group] * Z).sum(axis=1)


ADDITIONS: tuple[Callable[[Cook, Tensor], Tensor], ...] = (
    _smooth,
    _item_response,
    _bilinear,
    _multiple_members,
    _weights_matrix,
    _change_point,
    _broken_stick,
    _cycle,
    _saturation,
    _saturation_by_group,
    _offset,
    _exponent,
    _quadratic,
    _measured,
    _imputed,
    _network,
    _discrete,
    _latent_classes,
    _nested_index,
    _triple,
    _slopes_of_two,
    _correlated_three,
)


# --- Rows -------------------------------------------------------------------------------------


def _noise(cook: Cook) -> np.ndarray:
    return cook.truth + 0.7 * cook.rng.normal(size=cook.n)


def _counts(cook: Cook) -> np.ndarray:
    return cook.rng.poisson(np.exp(np.clip(cook.truth, -3, 3)))


def _yes(cook: Cook) -> np.ndarray:
    return cook.rng.binomial(1, 1 / (1 + np.exp(-cook.truth)))


def _positive(cook: Cook) -> np.ndarray:
    return np.exp(np.clip(cook.truth, -3, 3)) * cook.rng.gamma(2.0, 0.5, cook.n) + 1e-3


def missing_outcomes(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)
    y[cook.rng.permutation(cook.n)[:3]] = np.nan
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=np.ma.masked_invalid(y))


def sd_by_group(cook: Cook, eta: Tensor) -> None:
    group = labels(cook, 8)
    log_sd = pm.Normal("log_sd", -0.3, 0.5) + 0.3 * pm.Normal("log_sd_z", shape=8)
    pm.Normal("y", eta, pt.exp(log_sd)[group], observed=_noise(cook))


def sd_of_mean(cook: Cook, eta: Tensor) -> None:
    pm.Normal("y", eta, 0.3 + pm.HalfNormal("more") * pt.softplus(eta), observed=_noise(cook))


def ordered_probit(cook: Cook, eta: Tensor) -> None:
    cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
    y = np.digitize(_noise(cook), [-0.7, 0.0, 0.7])
    pm.OrderedProbit("y", eta=eta, cutpoints=cuts, sigma=1.0, observed=y)


def cuts_of_gaps(cook: Cook, eta: Tensor) -> None:
    gaps = pm.Exponential("gaps", 1.0, shape=2)
    cuts = pt.concatenate([[-0.5], -0.5 + pt.cumsum(gaps)])
    y = np.digitize(_noise(cook), [-0.5, 0.3, 0.8])
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, compute_p=False, observed=y)


def two_lengths(cook: Cook, eta: Tensor) -> None:
    some = np.sort(cook.rng.permutation(cook.n)[: cook.n // 3])
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=_noise(cook))
    pm.Poisson("count", pt.exp(eta[some]), observed=_counts(cook)[some])


def three_outcomes(cook: Cook, eta: Tensor) -> None:
    load = pm.Normal("load", 1, 0.5, shape=2)
    pm.Normal("y", eta, 0.7, observed=_noise(cook))
    pm.Bernoulli("yes", logit_p=load[0] * eta, observed=_yes(cook))
    pm.Poisson("count", pt.exp(load[1] * eta), observed=_counts(cook))


def zero_inflated_nb(cook: Cook, eta: Tensor) -> None:
    y = _counts(cook) * cook.rng.binomial(1, 0.7, cook.n)
    psi, alpha = pm.Beta("psi", 2, 2), pm.Gamma("alpha", 2, 1)
    pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=pt.exp(eta), alpha=alpha + 0.1, observed=y)


def zero_inflated_binomial(cook: Cook, eta: Tensor) -> None:
    y = cook.rng.binomial(6, 1 / (1 + np.exp(-cook.truth))) * cook.rng.binomial(1, 0.7, cook.n)
    pm.ZeroInflatedBinomial("y", pm.Beta("psi", 2, 2), n=6, p=pm.math.invlogit(eta), observed=y)


def inflation_by_predictor(cook: Cook, eta: Tensor) -> None:
    y = _counts(cook) * cook.rng.binomial(1, 0.7, cook.n)
    psi = pm.math.invlogit(
        pm.Normal("psi_0", 1, 1) + pm.Normal("psi_1") * cook.rng.normal(size=cook.n)
    )
    pm.ZeroInflatedPoisson("y", psi, pt.exp(eta), observed=y)


def hurdle_poisson(cook: Cook, eta: Tensor) -> None:
    pm.HurdlePoisson("y", psi=pm.Beta("psi", 2, 2), mu=pt.exp(eta), observed=_counts(cook))


def hurdle_log_normal(cook: Cook, eta: Tensor) -> None:
    y = _positive(cook) * cook.rng.binomial(1, 0.6, cook.n)
    pm.HurdleLogNormal("y", psi=pm.Beta("psi", 2, 2), mu=eta, sigma=0.8, observed=y)


def mixture_of_lines(cook: Cook, eta: Tensor) -> None:
    weights = pm.Dirichlet("weights", np.ones(2))
    parts = [pm.Normal.dist(eta, 0.7), pm.Normal.dist(pm.Normal("other", 3, 1) + 0 * eta, 0.7)]
    pm.Mixture("y", weights, parts, observed=_noise(cook))


def gates(cook: Cook, eta: Tensor) -> None:
    gate = pm.Normal("gate_0") + pm.Normal("gate_1") * cook.rng.normal(size=cook.n)
    y = _noise(cook)
    one = pm.logp(pm.Normal.dist(eta, 0.6), y) - pt.softplus(-gate)
    other = pm.logp(pm.Normal.dist(0.0, 2.0), y) - pt.softplus(gate)
    pm.Potential("rows", pt.logaddexp(one, other))


def intervals(cook: Cook, eta: Tensor) -> None:
    low = np.floor(_noise(cook))
    latent = pm.Normal.dist(eta, pm.HalfNormal("sigma"))
    pm.Potential("rows", pm.math.logdiffexp(pm.logcdf(latent, low + 1), pm.logcdf(latent, low)))


def censored_both(cook: Cook, eta: Tensor) -> None:
    y = np.clip(_noise(cook), -0.8, 1.2)
    latent = pm.Normal.dist(eta, pm.HalfNormal("sigma"))
    pm.Censored("y", latent, lower=-0.8, upper=1.2, observed=y)


def censored_by_row(cook: Cook, eta: Tensor) -> None:
    end = cook.rng.exponential(3.0, cook.n)
    y = np.minimum(_positive(cook), end)
    pm.Censored("y", pm.Exponential.dist(scale=pt.exp(eta)), lower=None, upper=end, observed=y)


def truncated_by_row(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)
    upper = y + cook.rng.exponential(1.0, cook.n)
    pm.Truncated("y", pm.Normal.dist(eta, 0.8), lower=None, upper=upper, observed=y)


def survival_by_hand(cook: Cook, eta: Tensor) -> None:
    time, event = _positive(cook), cook.rng.binomial(1, 0.6, cook.n)
    shape = pm.Gamma("shape", 4, 3)
    log_hazard = pt.log(shape) + (shape - 1) * np.log(time) - shape * eta
    pm.Potential("rows", event * log_hazard - (time / pt.exp(eta)) ** shape)


def weights_of_counts(cook: Cook, eta: Tensor) -> None:
    weight = cook.rng.poisson(1.0, cook.n).astype(float)
    pm.Potential("rows", (weight * pm.logp(pm.Poisson.dist(pt.exp(eta)), _counts(cook))).sum())


def weights_of_yes(cook: Cook, eta: Tensor) -> None:
    weight = 10.0 ** cook.rng.uniform(-3, 1, cook.n)
    pm.Potential("rows", weight * pm.logp(pm.Bernoulli.dist(logit_p=eta), _yes(cook)))


def multinomial(cook: Cook, eta: Tensor) -> None:
    logits = pt.stack([pt.zeros_like(eta), eta, pm.Normal("gap") + 0.3 * eta], axis=1)
    y = cook.rng.multinomial(5, [0.3, 0.4, 0.3], cook.n)
    pm.Multinomial("y", n=5, p=pm.math.softmax(logits, axis=1), observed=y)


def dirichlet_multinomial(cook: Cook, eta: Tensor) -> None:
    a = pt.exp(pt.stack([0.5 + 0 * eta, 0.3 * eta, pm.Normal("gap") + 0 * eta], axis=1))
    y = cook.rng.multinomial(5, [0.3, 0.4, 0.3], cook.n)
    pm.DirichletMultinomial("y", n=5, a=a, observed=y)


def two_correlated(cook: Cook, eta: Tensor) -> None:
    y = np.column_stack([_noise(cook), _noise(cook)])
    chol, _, _ = pm.LKJCholeskyCov("noise", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    pm.MvNormal("y", pt.stack([eta, 0.5 * eta], axis=1), chol=chol, observed=y)


def quantile(cook: Cook, eta: Tensor) -> None:
    error = _noise(cook) - eta
    pm.Potential("rows", -2.0 * pt.maximum(0.9 * error, -0.1 * error))


def angles(cook: Cook, eta: Tensor) -> None:
    y = np.angle(np.exp(1j * _noise(cook)))
    pm.VonMises("y", mu=2 * pt.arctan(eta), kappa=pm.HalfNormal("kappa", 3), observed=y)


def wald(cook: Cook, eta: Tensor) -> None:
    pm.Wald("y", mu=pt.exp(eta), lam=pm.Gamma("lam", 2, 1) + 0.1, observed=_positive(cook))


def ex_gaussian(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook) + cook.rng.exponential(0.5, cook.n)
    nu = pm.HalfNormal("nu") + 0.1
    pm.ExGaussian("y", mu=eta, sigma=pm.HalfNormal("sigma"), nu=nu, observed=y)


def inverse_gamma_rows(cook: Cook, eta: Tensor) -> None:
    pm.InverseGamma("y", mu=pt.exp(eta), sigma=pt.exp(eta), observed=_positive(cook))


def logistic_rows(cook: Cook, eta: Tensor) -> None:
    pm.Logistic("y", eta, pm.HalfNormal("sigma"), observed=_noise(cook))


def cauchy_rows(cook: Cook, eta: Tensor) -> None:
    pm.Cauchy("y", eta, pm.HalfNormal("sigma"), observed=_noise(cook))


def geometric(cook: Cook, eta: Tensor) -> None:
    pm.Geometric("y", pm.math.invlogit(-eta), observed=1 + _counts(cook))


def kumaraswamy(cook: Cook, eta: Tensor) -> None:
    y = np.clip(cook.rng.beta(2, 2, cook.n), 0.01, 0.99)
    pm.Kumaraswamy("y", a=pt.exp(0.5 * eta), b=pm.HalfNormal("b_rows", 2) + 0.2, observed=y)


def logit_normal(cook: Cook, eta: Tensor) -> None:
    y = 1 / (1 + np.exp(-_noise(cook)))
    pm.LogitNormal("y", mu=eta, sigma=pm.HalfNormal("sigma"), observed=y)


def log_logistic(cook: Cook, eta: Tensor) -> None:
    def logp(value: Tensor, mu: Tensor, beta: Tensor) -> Tensor:
        z = beta * (pt.log(value) - mu)
        return pt.log(beta) + z - pt.log(value) - 2 * pt.softplus(z)

    beta = pm.Gamma("beta", 4, 2)
    pm.CustomDist("y", eta, beta, logp=logp, observed=_positive(cook))


def pareto(cook: Cook, eta: Tensor) -> None:
    pm.Pareto("y", alpha=pt.exp(0.5 * eta), m=0.5, observed=0.5 + _positive(cook))


def tweedie_like(cook: Cook, eta: Tensor) -> None:
    """Gamma where positive, logistic regression of zeros on the same predictor."""
    y = _positive(cook) * cook.rng.binomial(1, 0.7, cook.n)
    slope = pm.Normal("slope_of_zero")
    yes = y > 0
    gamma = pm.logp(pm.Gamma.dist(alpha=2.0, beta=2.0 / pt.exp(eta)), np.where(yes, y, 1.0))
    logit = 1.0 + slope * eta
    pm.Potential("rows", pt.switch(yes, gamma - pt.softplus(-logit), -pt.softplus(logit)))


def lapse(cook: Cook, eta: Tensor) -> None:
    share = pm.Beta("share", 1, 9)
    p = share / 2 + (1 - share) * pm.math.invlogit(eta)
    pm.Bernoulli("y", p=p, observed=_yes(cook))


def probit_by_potential(cook: Cook, eta: Tensor) -> None:
    sign = 2.0 * _yes(cook) - 1
    pm.Potential("rows", pm.logcdf(pm.Normal.dist(0, 1), sign * eta))


def pairs(cook: Cook, eta: Tensor) -> None:
    """Conditional logit of pairs of rows."""
    half = cook.n // 2
    gain = eta[:half] - eta[half : 2 * half]
    pm.Bernoulli("y", logit_p=gain, observed=_yes(cook)[:half])


def series(cook: Cook, eta: Tensor) -> None:
    y = pd.Series(_noise(cook).astype(np.float32), index=np.arange(cook.n)[::-1])
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=y)


def lagged(cook: Cook, eta: Tensor) -> None:
    y = _noise(cook)
    rho = pm.Uniform("rho", -1, 1)
    pm.Normal("y", eta[1:] + rho * y[:-1], pm.HalfNormal("sigma"), observed=y[1:])


def boolean(cook: Cook, eta: Tensor) -> None:
    pm.Bernoulli("y", logit_p=eta, observed=_yes(cook).astype(bool))


def entries(cook: Cook, eta: Tensor) -> None:
    """Rows by items, with a difficulty for each item."""
    y = cook.rng.binomial(1, 0.5, (cook.n, 4))
    pm.Bernoulli("y", logit_p=eta[:, None] - pm.Normal("item", shape=4), observed=y)


def student_by_row(cook: Cook, eta: Tensor) -> None:
    sd = 10.0 ** cook.rng.uniform(-1.5, 0.5, cook.n)
    extra = pm.HalfNormal("extra")
    pm.StudentT("y", nu=3, mu=eta, sigma=pt.sqrt(sd**2 + extra**2), observed=_noise(cook))


def known_errors(cook: Cook, eta: Tensor) -> None:
    """A meta-analysis."""
    sd = 10.0 ** cook.rng.uniform(-2, 0.5, cook.n)
    tau = pm.HalfNormal("tau")
    pm.Normal(
        "y", eta, pt.sqrt(sd**2 + tau**2), observed=cook.truth + sd * cook.rng.normal(size=cook.n)
    )


MORE_FAMILIES: tuple[Callable[[Cook, Tensor], None], ...] = (
    missing_outcomes,
    sd_by_group,
    sd_of_mean,
    ordered_probit,
    cuts_of_gaps,
    two_lengths,
    three_outcomes,
    zero_inflated_nb,
    zero_inflated_binomial,
    inflation_by_predictor,
    hurdle_poisson,
    hurdle_log_normal,
    mixture_of_lines,
    gates,
    intervals,
    censored_both,
    censored_by_row,
    truncated_by_row,
    survival_by_hand,
    weights_of_counts,
    weights_of_yes,
    multinomial,
    dirichlet_multinomial,
    two_correlated,
    quantile,
    angles,
    wald,
    ex_gaussian,
    inverse_gamma_rows,
    logistic_rows,
    cauchy_rows,
    geometric,
    kumaraswamy,
    logit_normal,
    log_logistic,
    pareto,
    tweedie_like,
    lapse,
    probit_by_potential,
    pairs,
    series,
    lagged,
    boolean,
    entries,
    student_by_row,
    known_errors,
)


# --- Models -----------------------------------------------------------------------------------


def generate(seed: int, number: int, unit: float | None = None) -> Generated:
    """Build a model of more kinds.

    Parameters
    ----------
    seed, number : int
        Which model.
    unit : float, optional
        Unit of all predictors; a random one if not given.
    """
    cook = Cook(seed, number, unit)
    cook.priors, cook.effects = (*PRIORS, *MORE_PRIORS), {**EFFECTS, **MORE_EFFECTS}
    with pm.Model() as model:
        eta = coefficients(cook)
        if cook.rng.random() < 0.4:
            eta = eta + effects(cook)
        if cook.rng.random() < 0.5:
            eta = cook.pick("addition", ADDITIONS)(cook, eta)
        if eta.ndim == 0:
            eta = eta + np.zeros(cook.n)
        cook.pick("family", (*FAMILIES, *MORE_FAMILIES))(cook, eta)
        potential(cook, model)
    return Generated(model, tuple(cook.recipe))


if __name__ == "__main__":
    main(generate)
