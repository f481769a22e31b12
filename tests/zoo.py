"""Hierarchical models as people write them, with what a row of each reads.

Every function builds a model on a few rows. `ZOO` says how many local inputs its rows have, and
which effects are gathered.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

N = 60
RNG = np.random.default_rng(20250312)
X = RNG.normal(size=(N, 3))
ONE = X[:, 0]
Y = RNG.normal(size=N)
YES = (Y > 0).astype(int)
COUNTS = RNG.poisson(2.0, N)
GROUP = RNG.integers(0, 7, N)
GROUP[:7] = np.arange(7)
STATE = RNG.integers(0, 5, N)
AGE = RNG.integers(0, 4, N)
EDUCATION = RNG.integers(0, 3, N)
DAY = RNG.integers(0, 30, N)
CLASS = RNG.integers(0, 4, N)
EXPOSURE = RNG.uniform(0.5, 2, N)


class Case(NamedTuple):
    """A model and its structure: local inputs, gathered blocks (with sizes), dense entries."""

    build: Callable[[], pm.Model]
    n_predictors: int
    gathers: dict[str, int]
    n_dense: int


ZOO: dict[str, Case] = {}


def case(n_predictors: int, gathers: dict[str, int], n_dense: int) -> Callable[..., object]:
    def listed(declare: Callable[[], None]) -> Callable[[], None]:
        def build() -> pm.Model:
            with pm.Model() as model:
                declare()
            return model

        ZOO[declare.__name__] = Case(build, n_predictors, gathers, n_dense)
        return declare

    return listed


# --- Groups -----------------------------------------------------------------------------------


def effects(name: str, shape: object) -> pt.TensorVariable:
    """Effects about zero, written non-centred."""
    return pm.HalfNormal(f"sd_{name}") * pm.Normal(f"z_{name}", shape=shape)


@case(2, {"alpha": 7}, 1)
def intercepts() -> None:
    alpha = pm.Normal("alpha", pm.Normal("mu"), pm.HalfNormal("tau"), shape=7)
    pm.Normal("y", alpha[GROUP], pm.HalfNormal("sigma"), observed=Y)


@case(1, {"alpha[:, 0]": 7, "alpha[:, 1]": 7}, 0)
def columns_of_effects() -> None:
    alpha = pm.Normal("alpha", shape=(7, 2))
    pm.Bernoulli("y", logit_p=alpha[GROUP, 0] + alpha[GROUP, 1] * ONE, observed=YES)


@case(1, {"alpha[:, 0]": 7, "alpha[:, 1]": 7}, 0)
def row_of_effects_taken_apart() -> None:
    own = pm.Normal("alpha", shape=(7, 2))[GROUP]
    pm.Bernoulli("y", logit_p=own[:, 0] + own[:, 1] * ONE, observed=YES)


@case(1, {"f(mu, sd_g, z_g)": 7}, 0)
def gathered_after_shift() -> None:
    pm.Bernoulli("y", logit_p=(pm.Normal("mu") + effects("g", 7))[GROUP], observed=YES)


@case(1, {"f(z, sd)": 7}, 1)
def scaled_after_gather() -> None:
    z = pm.Normal("z", shape=7)
    eta = pm.Normal("mu") + pm.HalfNormal("sd") * z[GROUP]
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(1, {"f(sd_g, z_g)": 7}, 1)
def slopes() -> None:
    eta = pm.Normal("mu") + effects("g", 7)[GROUP] * ONE
    pm.Poisson("y", pt.exp(eta), observed=COUNTS)


@case(1, {"f(z, sd)": 7}, 0)
def slopes_scaled_last() -> None:
    z, sd = pm.Normal("z", shape=7), pm.HalfNormal("sd")
    pm.Poisson(
        "y", pm.math.exp(z[pm.Data("group", GROUP)] * pm.Data("x", ONE) * sd), observed=COUNTS
    )


@case(1, {"f(sd_g, z_g)": 7, "f(sd_s, z_s)": 5}, 1)
def spread_of_groups_by_region() -> None:
    """Scales of their own for each group, gathered by the same index."""
    sd = pm.HalfNormal("sd_g", shape=7)
    z = pm.Normal("z_g", shape=7)
    eta = pm.Normal("mu") + sd[GROUP] * z[GROUP] + effects("s", 5)[STATE]
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(2, {"f(mu, tau, z)": 7}, 1)
def eight_schools_of_rows() -> None:
    theta = pm.Deterministic(
        "f(mu, tau, z)", pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=7)
    )
    pm.StudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=theta[GROUP], sigma=1.0, observed=Y)


@case(1, {"state": 5, "age": 4, "education": 3, "both": 15}, 1)
def poststratification() -> None:
    parts = {"state": 5, "age": 4, "education": 3, "both": (5, 3)}
    alpha = {n: pm.Deterministic(n, effects(n, shape)) for n, shape in parts.items()}
    eta = pm.Normal("intercept") + alpha["state"][STATE] + alpha["age"][AGE]
    eta = eta + alpha["education"][EDUCATION] + alpha["both"][STATE, EDUCATION]
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(1, {"effect[:, 0]": 7, "effect[:, 1]": 7}, 2)
def correlated_slopes() -> None:
    sd = pm.Exponential.dist(1.0, shape=2)
    cholesky, _, _ = pm.LKJCholeskyCov("cov", n=2, eta=2.0, sd_dist=sd)
    z = pm.Normal("z", shape=(2, 7))
    effect = pm.Deterministic("effect", pm.math.dot(cholesky, z).T)
    beta = pm.Normal("beta", shape=2)
    eta = beta[0] + effect[GROUP, 0] + (beta[1] + effect[GROUP, 1]) * ONE
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(1, {"effect": 14}, 2)
def correlated_slopes_by_rows() -> None:
    sd = pm.Exponential.dist(1.0, shape=2)
    cholesky, _, _ = pm.LKJCholeskyCov("cov", n=2, eta=2.0, sd_dist=sd)
    effect = pm.Deterministic("effect", pm.Normal("z", shape=(7, 2)) @ cholesky.T)
    design = np.column_stack([np.ones(N), ONE])
    eta = design @ pm.Normal("beta", shape=2) + (design * effect[GROUP]).sum(axis=1)
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(1, {"f(cov, z)": 7, "f(cov, z) (2)": 7}, 0)
def correlated_after_gather() -> None:
    cholesky, _, _ = pm.LKJCholeskyCov(
        "cov", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2)
    )
    own = pm.Normal("z", shape=(7, 2))[GROUP] @ cholesky.T
    pm.Bernoulli("y", logit_p=own[:, 0] + own[:, 1] * ONE, observed=YES)


@case(2, {"level": 30}, 1)
def random_walk_of_days() -> None:
    level = pm.GaussianRandomWalk("level", sigma=0.1, init_dist=pm.Normal.dist(), shape=30)
    pm.Normal("y", level[DAY], pm.HalfNormal("sigma"), observed=Y)


@case(2, {"level": 30}, 1)
def cumulated_steps() -> None:
    steps = pm.Normal("steps", shape=30)
    level = pm.Deterministic("level", pm.Normal("start") + pm.HalfNormal("step") * pt.cumsum(steps))
    pm.Normal("y", level[pm.Data("day", DAY)], pm.HalfNormal("sigma"), observed=Y)


@case(1, {"a": 7, "b": 5}, 1)
def sums_to_zero() -> None:
    a, b = pm.ZeroSumNormal("a", shape=7), pm.ZeroSumNormal("b", shape=5)
    pm.Poisson("y", EXPOSURE * pt.exp(pm.Normal("mu") + a[GROUP] + b[STATE]), observed=COUNTS)


@case(1, {"skill": 7}, 0)
def pairwise_comparisons() -> None:
    skill = pm.Normal("skill", shape=7)
    other = (GROUP + 1 + STATE) % 7
    pm.Bernoulli("y", logit_p=skill[GROUP] - skill[other], observed=YES)


@case(2, {"mu": 7, "log_sigma_log__": 7}, 0)
def scales_of_groups() -> None:
    mu, sigma = pm.Normal("mu", shape=7), pm.LogNormal("log_sigma", shape=7)
    pm.Normal("y", mu[GROUP], sigma[GROUP], observed=Y)


@case(1, {"region": 7}, 1)
def groups_within_regions() -> None:
    region_of = np.array([0, 0, 1, 1, 2, 2, 2])
    region = pm.Normal("regions", shape=3)
    alpha = pm.Deterministic("region", region[region_of] + effects("g", 7))
    pm.Bernoulli("y", logit_p=alpha[GROUP] + pm.Normal("b") * ONE, observed=YES)


@case(1, {"county": 7, "region": 3}, 0)
def region_of_the_group_of_a_row() -> None:
    region_of = pt.constant(np.array([0, 0, 1, 1, 2, 2, 2]))
    county, region = pm.Normal("county", shape=7), pm.Normal("region", shape=3)
    group = pm.Data("group", GROUP)
    pm.Bernoulli("y", logit_p=county[group] + region[region_of[group]], observed=YES)


@case(1, {"theta": 12}, 0)
def item_response_with_equal_discrimination() -> None:
    theta = pm.Normal("theta", shape=12)
    person, item = GROUP, STATE + 7
    pm.Bernoulli("y", logit_p=theta[person] - theta[item], observed=YES)


@case(2, {"discrimination_log__": 5, "theta": 7, "difficulty": 5}, 0)
def two_parameter_item_response() -> None:
    """Effects gathered by different indices are not multiplied: discrimination stays apart."""
    theta, difficulty = pm.Normal("theta", shape=7), pm.Normal("difficulty", shape=5)
    discrimination = pm.LogNormal("discrimination", shape=5)
    eta = discrimination[STATE] * (theta[GROUP] - difficulty[STATE])
    pm.Bernoulli("y", logit_p=eta, observed=YES)


# --- Coefficients -----------------------------------------------------------------------------


@case(1, {}, 3)
def product_with_data() -> None:
    pm.Bernoulli(
        "y", logit_p=pm.math.dot(pm.Data("x", X), pm.Normal("beta", shape=3)), observed=YES
    )


@case(2, {}, 4)
def spelled_out() -> None:
    b = pm.Normal("b", shape=3)
    mu = pm.Normal("a") + b[0] * X[:, 0] + b[1] * X[:, 1]
    pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=Y)


@case(1, {}, 3)
def shrunken_coefficients() -> None:
    """Horseshoe."""
    scale = pm.HalfCauchy("tau", 1) * pm.HalfCauchy("lam", 1, shape=3)
    beta = pm.Deterministic("beta", scale * pm.Normal("z", shape=3))
    pm.Bernoulli("y", logit_p=X @ beta, observed=YES)


@case(1, {}, 9)
def gaussian_process() -> None:
    length = pm.InverseGamma("length", 2, 1)
    process = pm.gp.HSGP(
        m=[8], c=1.5, cov_func=pm.HalfNormal("eta") ** 2 * pm.gp.cov.ExpQuad(1, ls=length)
    )
    f = process.prior("f", X=ONE[:, None])
    pm.Poisson("y", EXPOSURE * pt.exp(pm.Normal("mu") + f), observed=COUNTS)


@case(1, {}, 8)
def linearised_process() -> None:
    process = pm.gp.HSGP(
        m=[8], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("length", 2, 1))
    )
    basis, density = process.prior_linearized(ONE[:, None])
    f = basis @ (pm.Normal("z", shape=8) * pt.sqrt(density))
    pm.Poisson("y", pt.exp(f), observed=COUNTS)


@case(1, {"B": 21}, 3)
def coefficients_of_groups() -> None:
    B = pm.Normal("B", pm.Normal("mean", shape=3), pm.HalfNormal("sd", shape=3), shape=(7, 3))
    eta = (pm.Data("x", X) * B[GROUP]).sum(-1) + X @ pm.Normal("beta", shape=3)
    pm.Bernoulli("y", logit_p=eta, observed=YES)


@case(1, {"f(z, sd)": 21}, 0)
def scaled_coefficients_of_groups() -> None:
    B = pm.Normal("z", shape=(7, 3))
    sd = pm.HalfNormal("sd", shape=3)
    pm.Bernoulli("y", logit_p=(X * B[GROUP] * sd).sum(-1), observed=YES)


@case(3, {}, 9)
def classes() -> None:
    eta = X @ pm.Normal("B", shape=(3, 3))
    eta = pt.concatenate([pt.zeros((N, 1)), eta], axis=1)
    pm.Categorical("y", logit_p=eta, observed=CLASS)


@case(3, {"alpha": 21}, 9)
def classes_with_groups() -> None:
    eta = X @ pm.Normal("B", shape=(3, 3)) + pm.Normal("alpha", shape=(7, 3))[GROUP]
    eta = pt.concatenate([pt.zeros((N, 1)), eta], axis=1)
    pm.Categorical("y", p=pm.math.softmax(eta, axis=1), observed=CLASS)


@case(2, {}, 8)
def location_and_scale() -> None:
    mu = pm.Normal("a") + X @ pm.Normal("beta", shape=3)
    sigma = pt.exp(pm.Normal("c") + X @ pm.Normal("gamma", shape=3))
    pm.Normal("y", mu, sigma, observed=Y)


@case(2, {"alpha": 7}, 4)
def overdispersed() -> None:
    eta = X @ pm.Normal("beta", shape=3) + pm.Normal("alpha", shape=7)[GROUP]
    mu = EXPOSURE * pm.math.exp(eta)
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("phi", 1.0), observed=COUNTS)


@case(3, {}, 5)
def robust() -> None:
    mu = X @ pm.Normal("beta", shape=3)
    pm.StudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=mu, sigma=pm.HalfNormal("sigma"), observed=Y)


@case(2, {}, 4)
def censored() -> None:
    time = pm.Weibull.dist(
        alpha=pm.HalfNormal("shape"), beta=pt.exp(X @ pm.Normal("beta", shape=3))
    )
    pm.Censored("y", time, lower=None, upper=3.0, observed=np.minimum(np.exp(Y), 3.0))


@case(4, {}, 7)
def outliers() -> None:
    mu = pm.Normal("a") + X @ pm.Normal("beta", shape=3)
    share = pm.Dirichlet("share", np.ones(2))
    parts = [pm.Normal.dist(mu, pm.HalfNormal("sigma")), pm.Normal.dist(mu, pm.HalfNormal("wide"))]
    pm.Mixture("y", share, parts, observed=Y)


@case(2, {"alpha": 7}, 4)
def two_outcomes() -> None:
    eta = X @ pm.Normal("beta", shape=3) + pm.Normal("alpha", shape=7)[GROUP]
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=Y)
    pm.Bernoulli("yes", logit_p=eta, observed=YES)


@case(1, {"alpha": 7}, 3)
def probit() -> None:
    eta = pm.Normal("alpha", shape=7)[GROUP] + X @ pm.Normal("beta", shape=3)
    pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=YES)


def _bambi(formula: str, family: str) -> pm.Model:
    import bambi

    frame = pd.DataFrame(X, columns=["x1", "x2", "x3"])
    frame = frame.assign(y=Y, yes=YES, count=COUNTS, g=GROUP.astype(str), s=STATE.astype(str))
    built = bambi.Model(formula, frame, family=family)
    built.build()
    return built.backend.model


BAMBI = {
    "bambi_slopes": ("yes ~ x1 + x2 + (1 + x1 | g)", "bernoulli", 1, {"1|g": 7, "x1|g": 7}, 3),
    "bambi_crossed": ("y ~ x1 + (1 | g) + (1 | s)", "gaussian", 2, {"1|g": 7, "1|s": 5}, 3),
    "bambi_nested": ("y ~ x1 + (1 | g:s)", "gaussian", 2, {"1|g:s": 35}, 3),
    "bambi_counts": ("count ~ x1 + (x2 | g)", "poisson", 1, {"1|g": 7, "x2|g": 7}, 2),
    "bambi_by_category": ("yes ~ s * x1 + (0 + s | g)", "bernoulli", 1, {"s|g": 35}, 10),
    "bambi_spline": ("y ~ bs(x1, df=5) + (1 | g)", "t", 3, {"1|g": 7}, 8),
}
for _name, (_formula, _family, *_rest) in BAMBI.items():
    ZOO[_name] = Case(lambda f=_formula, k=_family: _bambi(f, k), *_rest)
