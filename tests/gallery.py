"""A gallery of models whose rows are independent: what `TallModel` has to split.

Every function builds a model on a few rows and is listed in `GALLERY` by its name. Lengths differ
from the number of rows wherever nothing else is meant.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.transforms import ordered

N = 40
N_GROUPS = 5
N_SITES = 3
N_CLASSES = 4

RNG = np.random.default_rng(20240229)
X = RNG.normal(size=(N, 3))
BETA = np.array([0.5, -1.0, 0.2])
SLOPE = X[:, 0]
Y = X @ BETA + RNG.normal(size=N)
POSITIVE = np.exp(0.5 * Y)
UNIT = 1 / (1 + np.exp(-Y))
YES = (Y > 0).astype(int)
COUNTS = RNG.poisson(np.exp(0.5 * Y))
TRIALS = RNG.integers(8, 20, N)
SUCCESSES = RNG.binomial(TRIALS, UNIT)
EXPOSURE = RNG.uniform(0.5, 2.0, N)
GROUP = RNG.integers(0, N_GROUPS, N)
SITE = RNG.integers(0, N_SITES, N)
CLASS = RNG.integers(0, N_CLASSES, N)
PAIRS = RNG.normal(size=(N, 2)) + Y[:, None]
TABLE = RNG.multinomial(12, np.ones(N_CLASSES) / N_CLASSES, N)
ATTRIBUTES = RNG.normal(size=(N, N_CLASSES, 3))
SHARES = RNG.dirichlet(np.ones(N_CLASSES), N)

GALLERY: dict[str, Callable[[], pm.Model]] = {}
"""Models by name."""


def model(build: Callable[[], None]) -> Callable[[], pm.Model]:
    """Turn a function that declares variables into one that builds a model, and list it."""

    def built() -> pm.Model:
        with pm.Model() as context:
            build()
        return context

    built.__name__ = build.__name__
    GALLERY[build.__name__] = built
    return built


def coefficients(name: str = "beta") -> pt.TensorVariable:
    return pm.Normal(name, 0, 1, shape=3)


def wide(columns: int, name: str = "beta") -> pt.TensorVariable:
    """Several linear predictors, without a matrix product, which takes seconds to compile."""
    beta = pm.Normal(name, shape=(3, columns))
    return pt.stack([X @ beta[:, k] for k in range(columns)], axis=1)


def predictor(name: str = "x") -> pt.TensorVariable:
    return pm.Data(name, X) @ coefficients()


# --- Univariate likelihoods -------------------------------------------------------------------

LIKELIHOODS: dict[str, Callable[[pt.TensorVariable, pt.TensorVariable], object]] = {
    "AsymmetricLaplace": lambda eta, s: pm.AsymmetricLaplace(
        "y", kappa=1 + s, mu=eta, b=1.0, observed=Y
    ),
    "Beta": lambda eta, s: pm.Beta("y", mu=pm.math.invlogit(eta), nu=2 + s, observed=UNIT),
    "Cauchy": lambda eta, s: pm.Cauchy("y", eta, s, observed=Y),
    "ChiSquared": lambda eta, s: pm.ChiSquared("y", pt.exp(eta) + s, observed=POSITIVE),
    "ExGaussian": lambda eta, s: pm.ExGaussian("y", mu=eta, sigma=s, nu=1.5, observed=Y),
    "Exponential": lambda eta, s: pm.Exponential("y", scale=s * pt.exp(eta), observed=POSITIVE),
    "Gamma": lambda eta, s: pm.Gamma("y", alpha=s, beta=pt.exp(-eta), observed=POSITIVE),
    "Gumbel": lambda eta, s: pm.Gumbel("y", eta, s, observed=Y),
    "HalfCauchy": lambda eta, s: pm.HalfCauchy("y", s * pt.exp(eta), observed=POSITIVE),
    "HalfNormal": lambda eta, s: pm.HalfNormal("y", s * pt.exp(eta), observed=POSITIVE),
    "HalfStudentT": lambda eta, s: pm.HalfStudentT(
        "y", nu=3 + s, sigma=pt.exp(eta), observed=POSITIVE
    ),
    "Interpolated": lambda eta, s: pm.Interpolated(
        "y", np.linspace(-9, 9, 21), np.ones(21), observed=Y
    ),
    "InverseGamma": lambda eta, s: pm.InverseGamma(
        "y", alpha=1 + s, beta=pt.exp(eta), observed=POSITIVE
    ),
    "Kumaraswamy": lambda eta, s: pm.Kumaraswamy("y", a=1 + s, b=pt.exp(eta), observed=UNIT),
    "Laplace": lambda eta, s: pm.Laplace("y", eta, s, observed=Y),
    "LogNormal": lambda eta, s: pm.LogNormal("y", eta, s, observed=POSITIVE),
    "Logistic": lambda eta, s: pm.Logistic("y", eta, s, observed=Y),
    "LogitNormal": lambda eta, s: pm.LogitNormal("y", eta, s, observed=UNIT),
    "Moyal": lambda eta, s: pm.Moyal("y", eta, s, observed=Y),
    "Normal": lambda eta, s: pm.Normal("y", eta, s, observed=Y),
    "Pareto": lambda eta, s: pm.Pareto("y", alpha=pt.exp(eta) + s, m=0.01, observed=POSITIVE),
    "Rice": lambda eta, s: pm.Rice("y", nu=pt.exp(eta), sigma=s, observed=POSITIVE),
    "SkewNormal": lambda eta, s: pm.SkewNormal("y", mu=eta, sigma=s, alpha=1.5, observed=Y),
    "SkewStudentT": lambda eta, s: pm.SkewStudentT("y", mu=eta, sigma=s, a=2.0, b=3.0, observed=Y),
    "StudentT": lambda eta, s: pm.StudentT("y", nu=4.0, mu=eta, sigma=s, observed=Y),
    "Triangular": lambda eta, s: pm.Triangular("y", lower=-20.0, upper=20 + s, c=eta, observed=Y),
    "TruncatedNormal": lambda eta, s: pm.TruncatedNormal("y", eta, s, lower=0.0, observed=POSITIVE),
    "Uniform": lambda eta, s: pm.Uniform("y", eta - 20, eta + 20 + s, observed=Y),
    "VonMises": lambda eta, s: pm.VonMises("y", mu=eta, kappa=s, observed=np.arctan(Y)),
    "Wald": lambda eta, s: pm.Wald("y", mu=pt.exp(eta), lam=s, observed=POSITIVE),
    "Weibull": lambda eta, s: pm.Weibull("y", alpha=1 + s, beta=pt.exp(eta), observed=POSITIVE),
    "Bernoulli": lambda eta, s: pm.Bernoulli("y", logit_p=s * eta, observed=YES),
    "BetaBinomial": lambda eta, s: pm.BetaBinomial(
        "y", alpha=pt.exp(eta), beta=1 + s, n=TRIALS, observed=SUCCESSES
    ),
    "Binomial": lambda eta, s: pm.Binomial("y", n=TRIALS, logit_p=s * eta, observed=SUCCESSES),
    "Categorical": lambda eta, s: pm.Categorical(
        "y",
        logit_p=pt.stack([eta, s * eta, -eta, pt.zeros_like(eta)], axis=1),
        observed=CLASS,
    ),
    "DiscreteUniform": lambda eta, s: pm.DiscreteUniform("y", -1, TRIALS, observed=SUCCESSES),
    "DiscreteWeibull": lambda eta, s: pm.DiscreteWeibull(
        "y", q=pm.math.invlogit(eta), beta=s, observed=COUNTS
    ),
    "Geometric": lambda eta, s: pm.Geometric("y", pm.math.invlogit(s * eta), observed=COUNTS + 1),
    "HyperGeometric": lambda eta, s: pm.HyperGeometric(
        "y", N=60, k=30, n=TRIALS, observed=SUCCESSES
    ),
    "NegativeBinomial": lambda eta, s: pm.NegativeBinomial(
        "y", mu=pt.exp(eta), alpha=s, observed=COUNTS
    ),
    "OrderedLogistic": lambda eta, s: pm.OrderedLogistic(
        "y", eta=s * eta, cutpoints=np.array([-1.0, 0.2, 1.0]), observed=CLASS
    ),
    "OrderedProbit": lambda eta, s: pm.OrderedProbit(
        "y", eta=eta, sigma=1 + s, cutpoints=np.array([-1.0, 0.2, 1.0]), observed=CLASS
    ),
    "Poisson": lambda eta, s: pm.Poisson("y", EXPOSURE * pt.exp(eta) + s, observed=COUNTS),
}
"""Every univariate likelihood of PyMC, of a linear predictor `eta` and a scale `s`."""


def _likelihood(name: str) -> None:
    def build() -> None:
        eta, scale = predictor(), pm.HalfNormal("scale")
        LIKELIHOODS[name](eta, scale)

    build.__name__ = name
    model(build)


for _name in LIKELIHOODS:
    _likelihood(_name)


# --- Counts, classes and vectors --------------------------------------------------------------


@model
def counts_with_offset() -> None:
    eta = predictor() + pm.Data("log_exposure", np.log(EXPOSURE))
    pm.Poisson("y", pt.exp(eta), observed=pm.Data("counts", COUNTS))


@model
def binomial_data() -> None:
    trials = pm.Data("trials", TRIALS)
    pm.Binomial("y", n=trials, p=pm.math.invlogit(predictor()), observed=SUCCESSES)


@model
def softmax_regression() -> None:
    pm.Categorical("y", p=pm.math.softmax(wide(N_CLASSES), axis=-1), observed=CLASS)


@model
def ordinal() -> None:
    cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
    pm.OrderedLogistic("y", eta=predictor(), cutpoints=cuts, observed=CLASS)


@model
def multinomial() -> None:
    pm.Multinomial("y", n=12, p=pm.math.softmax(wide(N_CLASSES), axis=-1), observed=TABLE)


@model
def multinomial_of_simplex() -> None:
    pm.Multinomial("y", n=12, p=pm.Dirichlet("p", np.ones(N_CLASSES)), observed=TABLE)


@model
def dirichlet_multinomial() -> None:
    a = pt.exp(wide(N_CLASSES))
    pm.DirichletMultinomial("y", n=np.full(N, 12), a=a, observed=TABLE)


@model
def dirichlet() -> None:
    pm.Dirichlet("y", pt.exp(wide(N_CLASSES)), observed=SHARES)


@model
def vectors() -> None:
    cholesky, _, _ = pm.LKJCholeskyCov("cov", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(shape=2))
    pm.MvNormal("y", wide(2), chol=cholesky, observed=PAIRS)


@model
def heavy_vectors() -> None:
    mean = pm.Normal("mean", shape=2)
    pm.MvStudentT("y", nu=5.0, mu=mean, scale=np.eye(2) + 0.3, observed=PAIRS)


# --- Censored, truncated, mixed ---------------------------------------------------------------


@model
def censored() -> None:
    """Survival times, of which some ended with the study."""
    end = np.where(RNG.random(N) < 0.3, POSITIVE, np.inf)
    time = pm.Weibull.dist(alpha=pm.HalfNormal("shape") + 0.5, beta=pt.exp(predictor()))
    upper = np.where(np.isfinite(end), end, 1e6)
    pm.Censored("y", time, lower=None, upper=upper, observed=np.minimum(POSITIVE, upper))


@model
def censored_some() -> None:
    """A bound of infinity for those that were seen to the end."""
    end = np.where(YES, POSITIVE, np.inf)
    time = pm.Weibull.dist(alpha=pm.HalfNormal("shape") + 0.5, beta=pt.exp(predictor()))
    pm.Censored("y", time, lower=-np.inf, upper=end, observed=POSITIVE)


@model
def censored_both_sides() -> None:
    latent = pm.Normal.dist(predictor(), pm.HalfNormal("sigma"))
    pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=np.clip(Y, -1, 1))


@model
def truncated() -> None:
    latent = pm.Normal.dist(predictor(), pm.HalfNormal("sigma"))
    pm.Truncated("y", latent, lower=0.0, upper=None, observed=POSITIVE)


@model
def truncated_counts() -> None:
    pm.Truncated("y", pm.Poisson.dist(pt.exp(predictor())), lower=1, observed=COUNTS + 1)


@model
def censored_gamma() -> None:
    """Its distribution function has one derivative by the shape in PyTensor, and no second."""
    shape = pm.Gamma("shape", 2, 1)
    time = pm.Gamma.dist(alpha=shape, beta=shape / pt.exp(predictor()))
    pm.Censored("y", time, lower=None, upper=3.0, observed=np.minimum(POSITIVE, 3.0))


@model
def truncated_dispersed_counts() -> None:
    """As before, of the beta distribution."""
    count = pm.NegativeBinomial.dist(mu=pt.exp(predictor()), alpha=pm.Exponential("alpha", 0.5))
    pm.Truncated("y", count, lower=1, observed=COUNTS + 1)


@model
def mixture_of_normals() -> None:
    weights = pm.Dirichlet("weights", np.ones(2))
    centres = pm.Normal("centres", 0, 2, shape=2, transform=ordered, initval=[-1, 1])
    pm.NormalMixture("y", weights, centres, pm.HalfNormal("sigma"), observed=Y)


@model
def mixture_of_regressions() -> None:
    weights = pm.Dirichlet("weights", np.ones(2))
    parts = [
        pm.Normal.dist(predictor("x"), 1.0),
        pm.StudentT.dist(nu=3.0, mu=pm.Normal("centre"), sigma=2.0, shape=N),
    ]
    pm.Mixture("y", weights, parts, observed=Y)


@model
def zero_inflated_poisson() -> None:
    share = pm.Beta("share", 2, 2)
    pm.ZeroInflatedPoisson("y", share, pt.exp(predictor()), observed=COUNTS)


@model
def zero_inflated_binomial() -> None:
    share = pm.Beta("share", 2, 2)
    p = pm.math.invlogit(predictor())
    pm.ZeroInflatedBinomial("y", share, n=TRIALS, p=p, observed=SUCCESSES)


@model
def zero_inflated_negative_binomial() -> None:
    size = pm.Exponential("size", 1.0)
    mean = pt.exp(predictor())
    pm.ZeroInflatedNegativeBinomial("y", 0.7, mu=mean, alpha=size, observed=COUNTS)


@model
def hurdle_poisson() -> None:
    pm.HurdlePoisson("y", pm.Beta("share", 2, 2), pt.exp(predictor()), observed=COUNTS)


@model
def hurdle_negative_binomial() -> None:
    share, mean = pm.Beta("share", 2, 2), pt.exp(predictor())
    pm.HurdleNegativeBinomial("y", share, mu=mean, alpha=2.0, observed=COUNTS)


@model
def hurdle_gamma() -> None:
    share, mean = pm.Beta("share", 2, 2), pt.exp(predictor())
    pm.HurdleGamma("y", share, alpha=2.0, beta=1 / mean, observed=POSITIVE * YES)


@model
def hurdle_lognormal() -> None:
    share, mean = pm.Beta("share", 2, 2), predictor()
    pm.HurdleLogNormal("y", share, mu=mean, sigma=1.0, observed=POSITIVE * YES)


@model
def custom_logp() -> None:
    def logp(value: pt.TensorVariable, mean: pt.TensorVariable) -> pt.TensorVariable:
        return -pt.abs(value - mean) - np.log(2)

    pm.CustomDist("y", predictor(), logp=logp, observed=Y)


@model
def custom_dist() -> None:
    def dist(mean: pt.TensorVariable, sigma: pt.TensorVariable, size: object) -> object:
        return pt.exp(pm.Normal.dist(mean, sigma, size=size))

    pm.CustomDist("y", predictor(), pm.HalfNormal("sigma"), dist=dist, observed=POSITIVE)


# --- Groups -----------------------------------------------------------------------------------


@model
def centred_groups() -> None:
    alpha = pm.Normal("alpha", pm.Normal("mean"), pm.HalfNormal("spread"), shape=N_GROUPS)
    pm.Normal("y", alpha[GROUP], 1.0, observed=Y)


@model
def noncentred_groups() -> None:
    raw = pm.Normal("raw", shape=N_GROUPS)
    alpha = pm.Normal("mean") + pm.HalfNormal("spread") * raw
    pm.Bernoulli("y", logit_p=alpha[pm.Data("group", GROUP)], observed=YES)


@model
def crossed_effects() -> None:
    by_group = pm.ZeroSumNormal("by_group", shape=N_GROUPS)
    by_site = pm.Normal("by_site", shape=N_SITES)
    both = pm.Normal("both", shape=(N_GROUPS, N_SITES))
    eta = by_group[GROUP] + by_site[SITE] + both[GROUP, SITE]
    pm.Poisson("y", pt.exp(eta), observed=COUNTS)


@model
def varying_slopes() -> None:
    sd = pm.Exponential.dist(1.0, shape=2)
    cholesky, _, _ = pm.LKJCholeskyCov("cov", n=2, eta=2.0, sd_dist=sd)
    raw = pm.Normal("raw", shape=(2, N_GROUPS))
    effect = pm.Deterministic("effect", (cholesky[:, :, None] * raw).sum(axis=1).T)
    group = pm.Data("group", GROUP)
    pm.Normal("y", effect[group, 0] + effect[group, 1] * SLOPE, 1.0, observed=Y)


@model
def slopes_by_matrix_of_groups() -> None:
    beta = pm.Normal("beta", shape=(N_GROUPS, 3))
    pm.Normal("y", (beta[GROUP] * X).sum(axis=-1), 1.0, observed=Y)


@model
def negative_group_numbers() -> None:
    alpha = pm.Normal("alpha", shape=N_GROUPS)
    pm.Normal("y", alpha[GROUP - N_GROUPS], 1.0, observed=Y)


@model
def nested_groups() -> None:
    region = np.arange(N_GROUPS) % 2
    alpha = pm.Normal("alpha", pm.Normal("mean", shape=2)[region], 1.0, shape=N_GROUPS)
    pm.Normal("y", alpha[GROUP.astype("int8")], 1.0, observed=Y)


@model
def as_many_groups_as_rows() -> None:
    """The scales of the groups have the length of the rows but are no rows."""
    alpha = pm.Normal("alpha", shape=N)
    scales = np.linspace(0.5, 1.5, N)
    pm.Normal("y", (alpha * scales)[RNG.integers(0, N, N)], 1.0, observed=Y)


# --- Matrix products and networks -------------------------------------------------------------


@model
def spline() -> None:
    from scipy.interpolate import BSpline

    knots = np.concatenate([[-4.0] * 4, [-1.0, 0.0, 1.0], [4.0] * 4])
    basis = BSpline.design_matrix(SLOPE, knots, 3).toarray()
    weights = pm.Normal("weights", 0, 1, shape=basis.shape[1])
    pm.Normal("y", pt.dot(pt.constant(basis), weights), 1.0, observed=Y)


@model
def basis_of_a_gaussian_process() -> None:
    """A Hilbert space approximation: the process is a matrix product."""
    process = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
    pm.Normal("y", process.prior("f", X=SLOPE[:, None]), 1.0, observed=Y)


@model
def two_matrix_products() -> None:
    eta = predictor() + pt.dot(pm.Normal("gamma", shape=2), pm.Data("z", PAIRS.T))
    pm.Normal("y", eta, 1.0, observed=Y)


@model
def network() -> None:
    hidden = pt.tanh(pm.Data("x", X) @ pm.Normal("w1", shape=(3, 4)) + pm.Normal("b1", shape=4))
    hidden = pt.maximum(hidden @ pm.Normal("w2", shape=(4, 4)), 0.0)
    eta = (hidden @ pm.Normal("w3", shape=(4, 1)))[:, 0]
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@model
def heteroscedastic() -> None:
    pm.Normal("y", predictor("x"), pt.exp(X @ coefficients("log_sigma")), observed=Y)


@model
def polynomial() -> None:
    x = pm.Data("x", SLOPE)
    c = coefficients()
    pm.Normal("y", c[0] + c[1] * x + c[2] * x**2, 1.0, observed=Y)


@model
def change_point() -> None:
    day = np.arange(N)
    before, after = pm.Normal("before"), pm.Normal("after")
    change = pm.Uniform("change", 0, N)
    pm.Normal("y", pm.math.switch(day < change, before, after), 1.0, observed=Y)


# --- Several terms ----------------------------------------------------------------------------


@model
def several_observed() -> None:
    eta = predictor()
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=Y)
    pm.Poisson("counts", pt.exp(eta), observed=COUNTS)
    pm.MvNormal("pairs", pt.stack([eta, -eta], axis=1), cov=np.eye(2), observed=PAIRS)


@model
def terms_of_other_sizes() -> None:
    mu = pm.Normal("mu", shape=7)
    pm.Potential("pull", -((mu - np.arange(7.0)) ** 2))
    pm.Potential("sum_to_zero", -(mu.sum() ** 2))
    pm.Normal("pilot", mu[0], 2.0, observed=Y[:11])
    pm.Normal("known", mu[2], 2.0, observed=0.3)
    pm.Normal("y", mu[1], 1.0, observed=Y)


@model
def normalised_weights() -> None:
    """Reduced over coefficients, not over rows."""
    weights = pm.HalfNormal("weights", shape=3)
    pm.Normal("y", X @ (weights / weights.sum()), pm.Gamma("sigma", 2, 2), observed=Y)


# --- Where row data come from -----------------------------------------------------------------


@model
def data_with_dims() -> None:
    context = pm.modelcontext(None)
    context.add_coords({"row": np.arange(N), "coef": ["a", "b", "c"]})
    x = pm.Data("x", X, dims=("row", "coef"))
    beta = pm.Normal("beta", dims="coef")
    mean = pm.Deterministic("mean", x @ beta, dims="row")
    pm.Normal("y", mean, 1.0, observed=pm.Data("target", Y, dims="row"), dims="row")


@model
def frames() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, group=GROUP)
    alpha = pm.Normal("alpha", shape=N_GROUPS)
    slope = pm.Normal("slope")
    mean = alpha[frame["group"].to_numpy()] + slope * pt.as_tensor(frame["a"])
    pm.Normal("y", mean, 1.0, observed=frame["y"])


@model
def categories_of_a_frame() -> None:
    """Codes of a pandas categorical are int8."""
    codes, labels = pd.factorize(pd.Series(list("abcde"))[GROUP])
    pm.Normal("y", pm.Normal("alpha", shape=len(labels))[codes], 1.0, observed=pd.Series(Y))


@model
def labelled_arrays() -> None:
    rows = xr.DataArray(X, dims=("row", "coef"))
    pm.Normal("y", pt.dot(rows.values, coefficients()), 1.0, observed=xr.DataArray(Y, dims="row"))


@model
def single_precision() -> None:
    pm.Normal("y", (X.astype("float32") * coefficients()).sum(axis=1), 1.0, observed=Y)


@model
def transposed_constant() -> None:
    pm.Normal("y", coefficients() @ np.ascontiguousarray(X.T), 1.0, observed=Y)


@model
def transposed_data() -> None:
    pm.Normal("y", coefficients() @ pm.Data("x", X.T), 1.0, observed=Y)


@model
def transposed_in_the_graph() -> None:
    pm.Normal("y", (pm.Data("x", X.T).T * coefficients()).sum(axis=1), 1.0, observed=Y)


@model
def rows_in_the_middle() -> None:
    cube = RNG.normal(size=(2, N, 3))
    weights = pm.Normal("weights", shape=(2, 1, 3))
    pm.Normal("y", (cube * weights).sum(axis=(0, 2)), 1.0, observed=Y)


@model
def square_matrix() -> None:
    """Rows may lie along either axis."""
    pm.Normal("y", pm.Normal("beta", shape=N) @ RNG.normal(size=(N, N)), 1.0, observed=Y)


@model
def matrix_of_observations() -> None:
    pm.Normal("y", wide(2), pm.HalfNormal("sigma", shape=2), observed=PAIRS)


@model
def transposed_observations() -> None:
    """Rows of what is observed lie along the second axis."""
    pm.Normal("y", wide(2).T, pm.HalfNormal("sigma", shape=(2, 1)), observed=PAIRS.T)


@model
def column_vectors() -> None:
    """Everything has a trailing axis of length 1."""
    mean = pm.Data("x", X) @ pm.Normal("beta", shape=(3, 1))
    pm.Normal("y", mean, 1.0, observed=Y[:, None])


@model
def reshaped() -> None:
    x = pm.Data("x", X[:, None, :])
    pm.Normal("y", x.reshape((N, 3)) @ coefficients(), 1.0, observed=Y)


def _choice(attributes: pt.TensorLike) -> None:
    """What rows choose of four, by three attributes of each."""
    of_each = pt.concatenate([pt.zeros(1), pm.Normal("alpha", shape=N_CLASSES - 1)])
    pm.Categorical("y", logit_p=pt.dot(attributes, coefficients()) + of_each, observed=CLASS)


@model
def choice_by_attributes() -> None:
    _choice(ATTRIBUTES)


@model
def choice_by_attributes_in_data() -> None:
    _choice(pm.Data("x", ATTRIBUTES))


@model
def two_products_of_a_stack() -> None:
    beta = pm.Normal("beta", 0, 1, shape=(3, 2))
    mean = pt.dot(pm.Data("x", ATTRIBUTES), beta)
    pm.Normal("y", mean, 1.0, observed=ATTRIBUTES[:, :, :2])


@model
def columns_of_data() -> None:
    x = pm.Data("x", X)
    beta = coefficients()
    pm.Normal("y", beta[0] * x[:, 0] + beta[1] * x[:, 1] + beta[2], 1.0, observed=Y)


@model
def stacked_columns() -> None:
    x = pt.stack([pt.ones(N), pm.Data("a", SLOPE), pm.Data("b", X[:, 1])], axis=1)
    pm.Normal("y", x @ coefficients(), 1.0, observed=Y)


@model
def alike() -> None:
    """Every row is the same; nothing but its number tells one from another."""
    pm.Normal("y", pm.Normal("mu") * np.ones(N), 1.0, observed=np.ones(N))


@model
def logical_mask() -> None:
    treated = SLOPE > 0
    effect = pm.Normal("effect")
    pm.Normal("y", pt.switch(treated, effect, 0.0), 1.0, observed=Y)


@model
def discrete_parameter() -> None:
    alpha = pm.Normal("alpha", shape=2)
    pm.Normal("y", alpha[pm.Bernoulli("which", 0.5)] * SLOPE, 1.0, observed=Y)


def _bambi(formula: str, family: str) -> pm.Model:
    import bambi

    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame = frame.assign(y=Y, yes=YES, count=COUNTS, group=np.array(list("uvwxy"))[GROUP])
    built = bambi.Model(formula, frame, family=family)
    built.build()
    return built.backend.model


GALLERY["bambi_varying_slopes"] = lambda: _bambi("y ~ a + b + (1 + a | group)", "gaussian")
GALLERY["bambi_logistic"] = lambda: _bambi("yes ~ a * b + (1 | group)", "bernoulli")
GALLERY["bambi_spline"] = lambda: _bambi("count ~ bs(a, df=5) + group", "negativebinomial")
