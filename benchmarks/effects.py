"""Models with effects beside NUTS: seconds until the worst parameter has 400 effective draws.

Every free variable of the model counts, hyperparameters included, and both posteriors are compared:
means in Monte Carlo standard errors, standard deviations by their ratio. Some models need Bambi.
Longer runs of models that are harder to get right: ``python -m benchmarks.agreement``.

    python -m benchmarks.effects --model intercepts walk --rows 50000
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from rich.console import Console
from rich.table import Table

import pymc_minibatch as pmb

WANTED = 400

NUTS_ACCEPTS = 0.8
"""Share of moves that NUTS aims to accept, unless more is asked for."""

N_BASIS = 25
"""Coefficients of a Gaussian process."""

KNOWN = 12
"""Those of them that rows know better than the prior."""


def inverse_logit(x: np.ndarray) -> np.ndarray:
    """Return probabilities."""
    return 1 / (1 + np.exp(-x))


def intercepts(n_rows: int) -> pm.Model:
    """Logistic regression, 300 groups with intercepts and slopes, not centred."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, 300, n_rows), rng.normal(size=(n_rows, 2))
    effect = rng.normal(size=(2, 300)) * [[0.6], [0.3]]
    p = inverse_logit(-0.4 + x @ [0.5, -0.3] + effect[0][group] + effect[1][group] * x[:, 0])
    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 0, 2), pm.Normal("beta", 0, 1, shape=2)
        sd, z = pm.HalfNormal("sd", 1, shape=2), pm.Normal("z", shape=(2, 300))
        by_group = sd[0] * z[0][group] + sd[1] * z[1][group] * x[:, 0]
        pm.Bernoulli("y", logit_p=mu + x @ beta + by_group, observed=rng.random(n_rows) < p)
    return model


def alike(index: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the kinds of rows, shape (k, kinds), how many each has, and their sums of y."""
    kinds, kind = np.unique(index, axis=1, return_inverse=True)
    return kinds, np.bincount(kind), np.bincount(kind, y).astype(int)


def observe_binary(
    log_odds: Callable[..., Any], index: np.ndarray, y: np.ndarray, summed: bool
) -> None:
    """Observe rows with log odds of their indices, or how many ones rows alike have."""
    if summed:
        kinds, n, ones = alike(index, y)
        pm.Binomial("y", n, logit_p=log_odds(*kinds), observed=ones)
    else:
        pm.Bernoulli("y", logit_p=log_odds(*index), observed=y)


def scaled(name: str, sd: Any, shape: Any, centred: bool) -> Any:
    """Return sd times a standard normal variable, of which either may be what is sampled."""
    if not centred:
        return sd * pm.Normal(name, shape=shape)
    effect = pm.Normal(f"{name}_centred", 0, sd, shape=shape)
    pm.Deterministic(name, effect / sd)
    return effect


def poststratification(n_rows: int, for_nuts: bool = False) -> pm.Model:
    """Logistic regression on states, ages, educations and states by educations."""
    rng = np.random.default_rng(2)
    state = rng.choice(51, n_rows, p=rng.dirichlet(np.full(51, 2.0)))
    age, education = rng.integers(0, 6, n_rows), rng.integers(0, 5, n_rows)
    sizes = {"state": (51, 0.4), "age": (6, 0.3), "education": (5, 0.3), "both": ((51, 5), 0.2)}
    index = {"state": state, "age": age, "education": education, "both": (state, education)}
    truth = sum(sd * rng.normal(size=n)[index[name]] for name, (n, sd) in sizes.items())
    y = rng.random(n_rows) < inverse_logit(truth - 0.3)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1.5)
        effects = [
            scaled(f"z_{name}", pm.HalfNormal(f"sd_{name}", 1), n, centred=for_nuts)
            for name, (n, _) in sizes.items()
        ]

        def log_odds(state: np.ndarray, age: np.ndarray, education: np.ndarray) -> Any:
            each = state, age, education, (state, education)
            return mu + sum(effect[i] for effect, i in zip(effects, each, strict=True))

        observe_binary(log_odds, np.stack([state, age, education]), y, summed=for_nuts)
    return model


def correlated(n_rows: int) -> pm.Model:
    """Fit a normal regression, 200 groups with correlated intercepts and slopes."""
    rng = np.random.default_rng(4)
    group, x = rng.integers(0, 200, n_rows), rng.normal(size=n_rows)
    truth = rng.multivariate_normal([0.5, -0.3], [[0.25, 0.06], [0.06, 0.09]], 200)
    y = truth[group, 0] + truth[group, 1] * x + 0.8 * rng.normal(size=n_rows)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2)
        )
        effect = pm.Normal("mu", 0, 1, shape=2) + pm.math.dot(
            pm.Normal("z", shape=(200, 2)), chol.T
        )
        pm.Normal("y", effect[group, 0] + effect[group, 1] * x, pm.HalfNormal("s"), observed=y)
    return model


def counts(n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make up where counts are taken, their exposures, and counts."""
    rng = np.random.default_rng(3)
    x, exposure = np.sort(rng.uniform(-3, 3, n_rows)), rng.uniform(0.5, 2, n_rows)
    return x, exposure, rng.poisson(exposure * np.exp(0.3 + np.sin(2 * x) / 2))


def smooth(n_rows: int, for_nuts: bool = False) -> pm.Model:
    """Poisson regression with exposure and a Hilbert space Gaussian process."""
    x, exposure, y = counts(n_rows)
    with pm.Model() as model:
        scale, length = pm.HalfNormal("scale", 1), pm.InverseGamma("length", 3, 2)
        covariance = scale**2 * pm.gp.cov.ExpQuad(1, ls=length)
        process = pm.gp.HSGP(m=[N_BASIS], c=1.5, cov_func=covariance)
        if for_nuts:
            log_rate = whitened(*process.prior_linearized(X=x[:, None]), weight=y)
            pm.Poisson("y", exposure * pm.math.exp(log_rate), observed=y)
        else:
            f = process.prior("f", X=pm.Data("x", x)[:, None])
            rate = pm.Data("exposure", exposure) * pm.math.exp(pm.Normal("mu", 0, 1) + f)
            pm.Poisson("y", rate, observed=y)
    return model


def whitened(basis: Any, spread: Any, weight: np.ndarray) -> Any:
    """Return ``mu`` and a Gaussian process, sampled in coordinates that rows see alike.

    These are mu and the first coefficients, with the prior that they have elsewhere, times a
    matrix. Of the others, of which rows say little, what is standard normal is sampled.
    """
    columns = np.column_stack([np.ones(len(weight)), basis.eval()])
    known, rest = columns[:, : KNOWN + 1], columns[:, KNOWN + 1 :]
    precision = (known.T * weight) @ known + np.eye(KNOWN + 1)
    projector = np.linalg.inv(np.linalg.cholesky(precision)).T
    both = projector @ pm.Flat("whitened", shape=KNOWN + 1)
    mu, first = pm.Deterministic("mu", both[0]), both[1:]
    pm.Potential("prior_of_mu", pm.logp(pm.Normal.dist(0, 1), mu))
    pm.Potential("prior", pm.logp(pm.Normal.dist(0, spread[:KNOWN]), first).sum())
    z = pm.Normal("z", shape=rest.shape[1])
    pm.Deterministic("f_hsgp_coeffs", pm.math.concatenate([first / spread[:KNOWN], z]))
    return known @ both + rest @ (z * spread[KNOWN:])


def walk(n_rows: int, for_nuts: bool = False) -> pm.Model:
    """Count with a level for each of 365 days, a random walk."""
    rng = np.random.default_rng(5)
    day, truth = rng.integers(0, 365, n_rows), np.cumsum(rng.normal(size=365) * 0.05)
    y = rng.poisson(np.exp(0.5 + truth[day]))
    with pm.Model() as model:
        level = pm.GaussianRandomWalk(
            "level", sigma=pm.HalfNormal("s", 0.2), init_dist=pm.Normal.dist(0, 1), shape=365
        )
        if for_nuts:
            (days,), n, sums = alike(day[None], y)
            pm.Poisson("y", n * pm.math.exp(level[days]), observed=sums)
        else:
            pm.Poisson("y", pm.math.exp(level[day]), observed=y)
    return model


def ratings(n_rows: int) -> pm.Model:
    """Fit ratings by 2,972 students, 1,128 lecturers and 14 departments, crossed, as Bambi does."""
    rng = np.random.default_rng(6)
    sizes = {"s": 2972, "l": 1128, "d": 14}
    shares = {"s": rng.pareto(2.5, 2972) + 0.3, "l": rng.pareto(1.5, 1128) + 0.2}
    index = {k: rng.choice(v.size, n_rows, p=v / v.sum()) for k, v in shares.items()}
    index["d"] = rng.choice(14, 1128)[index["l"]]
    elsewhere = rng.random(n_rows) < 0.15
    index["d"][elsewhere] = rng.integers(14, size=elsewhere.sum())
    service = rng.integers(0, 2, n_rows).astype(float)
    truth = 3.2 - 0.07 * service
    for k, sd in (("s", 0.33), ("l", 0.5), ("d", 0.2)):
        truth = truth + sd * rng.normal(size=sizes[k])[index[k]]
    y = truth + 1.18 * rng.normal(size=n_rows)
    centered = service - service.mean()
    with pm.Model() as model:
        mu = pm.Normal("Intercept", y.mean(), 2.5 * y.std())
        mu = mu + pm.Normal("service", 0, 2.5 * y.std() / service.std()) * centered
        for k, n in sizes.items():
            sd = pm.HalfNormal(f"{k}_sigma", 2.5 * y.std())
            mu = mu + (sd * pm.Normal(f"{k}_offset", shape=n))[index[k]]
        pm.Normal("y", mu, pm.HalfStudentT("sigma", nu=4, sigma=y.std()), observed=y)
    return model


def few_groups(n_rows: int, for_nuts: bool = False) -> pm.Model:
    """100 groups, an intercept each, not centred, whose scale is known to a tenth."""
    rng = np.random.default_rng(7)
    group = rng.integers(0, 100, n_rows)
    p = inverse_logit(-0.2 + 0.44 * rng.normal(size=100)[group])
    with pm.Model() as model:
        effect = pm.Normal("mu", 0, 1.5) + pm.HalfNormal("tau", 1) * pm.Normal("z", shape=100)
        y = rng.random(n_rows) < p
        observe_binary(lambda group: effect[group], group[None], y, summed=for_nuts)
    return model


def by_formula(n_rows: int, n_groups: int, scale: float) -> pm.Model:
    """Build Bambi's default for intercepts and slopes of groups."""
    import bambi as bmb
    import pandas as pd

    rng = np.random.default_rng(8)
    x, group = rng.normal(size=(n_rows, 2)), rng.integers(0, n_groups, n_rows)
    effect = scale * rng.normal(size=(2, n_groups)) * [[0.6], [0.3]]
    p = inverse_logit(-0.4 + x @ [0.5, -0.3] + effect[0][group] + effect[1][group] * x[:, 0])
    y = (rng.random(n_rows) < p).astype(int)
    frame = pd.DataFrame({"y": y, "x1": x[:, 0], "x2": x[:, 1], "g": group.astype(str)})
    model = bmb.Model("y ~ x1 + x2 + (1 + x1 | g)", frame, family="bernoulli")
    model.build()
    return model.backend.model


def bambi(n_rows: int) -> pm.Model:
    """Bambi's `y ~ x1 + x2 + (1 + x1 | g)`, 300 groups."""
    return by_formula(n_rows, 300, 1.0)


def small_groups(n_rows: int) -> pm.Model:
    """Fit the same with five rows for each group."""
    return by_formula(n_rows, n_rows // 5, 1.0)


def no_effects(n_rows: int) -> pm.Model:
    """Fit the same where the true standard deviations are zero."""
    return by_formula(n_rows, 300, 0.0)


def quantiles(n_rows: int) -> pm.Model:
    """Fit the 0.8 quantile of rows with heavy tails, with eight coefficients and no effects."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n_rows, 8))
    y = X @ rng.normal(0, 0.5, 8) + rng.standard_t(5, n_rows)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2) + pm.Data("X", X) @ pm.Normal("beta", 0, 2, shape=8)
        pm.AsymmetricLaplace("y", mu=mu, b=1 / pm.HalfNormal("s", 1), q=0.8, observed=y)
    return model


def responses(n_rows: int) -> pm.Model:
    """Fit three normal responses with an unknown covariance, on two predictors."""
    rng = np.random.default_rng(10)
    X, slopes = rng.normal(size=(n_rows, 2)), [[0.5, -0.2, 0.1], [0.3, 0.4, -0.6]]
    covariance = [[1.0, 0.5, 0.2], [0.5, 2.0, 0.3], [0.2, 0.3, 0.5]]
    Y = X @ slopes + rng.multivariate_normal(np.zeros(3), covariance, n_rows)
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=3) + pm.Data("X", X) @ pm.Normal("beta", shape=(2, 3))
        sds = pm.Exponential.dist(1.0, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=sds)
        pm.MvNormal("y", mu=mu, chol=chol, observed=Y)
    return model


def horseshoe(n_rows: int) -> pm.Model:
    """Logistic regression on 30 predictors, five of them in use; regularized horseshoe prior."""
    rng = np.random.default_rng(11)
    X, truth = rng.normal(size=(n_rows, 30)), np.zeros(30)
    truth[:5] = 0.5, -0.4, 0.3, 0.2, -0.1
    y = rng.random(n_rows) < inverse_logit(X @ truth)
    with pm.Model() as model:
        tau = pm.HalfStudentT("tau", 2, sigma=5 / 25 * 2 / np.sqrt(n_rows))
        local, slab = pm.HalfStudentT("local", 5, shape=30), pm.InverseGamma("slab", 1, 1)
        bounded = local * pm.math.sqrt(slab / (slab + tau**2 * local**2))
        beta = pm.Normal("z", shape=30) * tau * bounded
        pm.Bernoulli("y", logit_p=pm.Normal("mu", 0, 2) + pm.Data("X", X) @ beta, observed=y)
    return model


MODELS = {
    f.__name__: f
    for f in (
        intercepts,
        poststratification,
        correlated,
        smooth,
        walk,
        ratings,
        few_groups,
        bambi,
        small_groups,
        no_effects,
        quantiles,
        responses,
        horseshoe,
    )
}


def free_only(model: pm.Model) -> list[str]:
    """Return the names of the free variables."""
    return [rv.name for rv in model.free_RVs]


class Run(NamedTuple):
    """What is asked of a sampler; None of the variables to keep stands for all."""

    draws: int
    tune: int
    chains: int = 2
    cores: int = 2
    var_names: list[str] | None = None


def by_minibatch(model: pm.Model, run: Run) -> tuple[xr.DataTree, float, float]:
    """Return draws, seconds of set-up and of sampling."""
    started = time.perf_counter()
    with model:
        step = pmb.MinibatchMH()
        ready = time.perf_counter()
        idata = pm.sample(
            **run._asdict(),
            step=step,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,  # which are made of both samplers' draws below
        )
    return idata, ready - started, time.perf_counter() - ready


def by_nutpie(
    model: pm.Model, run: Run, accepts: float = NUTS_ACCEPTS
) -> tuple[xr.DataTree, float, float]:
    """Return draws, seconds of set-up and of sampling."""
    import nutpie

    started = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model, var_names=run.var_names)
    ready = time.perf_counter()
    options = run._asdict()
    del options["var_names"]
    idata = nutpie.sample(compiled, **options, target_accept=accepts, seed=1, progress_bar=False)
    return idata, ready - started, time.perf_counter() - ready


def chains_of(idata: xr.DataTree, model: pm.Model) -> np.ndarray:
    """Join all free variables, shape (chains, draws, parameters)."""
    values = [idata.posterior[rv.name].values for rv in model.free_RVs]
    return np.concatenate([v.reshape(*v.shape[:2], -1) for v in values], axis=2)


def worst(chains: np.ndarray) -> tuple[float, float]:
    """Return the smallest number of effective draws and the largest R-hat."""
    each = list(np.moveaxis(chains, 2, 0))
    return min(float(az.ess(x)) for x in each), max(float(az.rhat(x)) for x in each)


class Differences(NamedTuple):
    """How far draws of two samplers are apart, for each parameter.

    Attributes
    ----------
    means, sds : ndarray, shape (P,)
        Differences of means and of standard deviations, in Monte Carlo standard errors.
    log_ratio : ndarray, shape (P,)
        Log ratio of standard deviations.
    noise : ndarray, shape (P,)
        The Monte Carlo standard error of that.
    """

    means: np.ndarray
    sds: np.ndarray
    log_ratio: np.ndarray
    noise: np.ndarray


def differences(first: np.ndarray, second: np.ndarray) -> Differences:
    """Compare draws, each of shape (chains, draws, P)."""
    found = []
    for a, b in zip(np.moveaxis(first, 2, 0), np.moveaxis(second, 2, 0), strict=True):
        of_mean, of_sd = (
            [float(az.mcse(draws, method=method)) for draws in (a, b)] for method in ("mean", "sd")
        )
        found.append(
            (
                (a.mean() - b.mean()) / np.hypot(*of_mean),
                (a.std() - b.std()) / np.hypot(*of_sd),
                np.log(a.std() / b.std()),
                np.hypot(of_sd[0] / a.std(), of_sd[1] / b.std()),
            )
        )
    return Differences(*np.array(found).T)


def measure(name: str, options: argparse.Namespace) -> None:
    """Sample one model by both, and print a table."""
    model = MODELS[name](options.rows)
    about = str(MODELS[name].__doc__).splitlines()[0]
    table = Table(title=f"{about} {options.rows:,} rows, two chains")
    columns = "set-up (s)", "sampling (s)", "worst ESS", "R-hat", "ESS/s", f"s to {WANTED}"
    for column in ("sampler", *columns):
        table.add_column(column, justify="right")
    found, var_names = [], free_only(model) if options.free_only else None
    for sampler_name, sampler, draws, tune in (
        ("MinibatchMH", by_minibatch, options.draws, 500),
        ("nutpie", by_nutpie, options.nuts_draws, options.nuts_tune),
    ):
        idata, set_up, sampling = sampler(model, Run(draws, tune, var_names=var_names))
        chains = chains_of(idata, model)
        found.append(chains)
        ess, r_hat = worst(chains)
        tuning = sampling * tune / (tune + draws)
        wanted = set_up + tuning + (sampling - tuning) * WANTED / ess
        numbers = set_up, sampling, ess, r_hat, ess / (sampling - tuning), wanted
        formats = ",.1f", ",.1f", ",.0f", ".3f", ",.2f", ",.0f"
        cells = (f"{n:{f}}" for n, f in zip(numbers, formats, strict=True))
        table.add_row(sampler_name, *cells)
    Console(width=100).print(table)
    compared = differences(*found)
    of_means, of_sds = (np.abs(z).max() for z in (compared.means, compared.sds))
    print(
        f"Largest of {found[0].shape[2]:,} differences: means {of_means:.1f} standard errors; "
        f"standard deviations {np.expm1(np.abs(compared.log_ratio).max()):.0%}, "
        f"{of_sds:.1f} standard errors.\n",
        flush=True,
    )


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS], nargs="+", default=["intercepts"])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--nuts-draws", type=int, default=300)
    parser.add_argument("--nuts-tune", type=int, default=500)
    parser.add_argument(
        "--free-only", action="store_true", help="keep no Deterministics, as Bambi's fit does"
    )
    options = parser.parse_args()
    for name in options.model:
        measure(name, options)


if __name__ == "__main__":
    main()
