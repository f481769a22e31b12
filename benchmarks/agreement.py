"""Posteriors of models beside those of NUTS, in Monte Carlo standard errors.

Seven models have the groups that real data have: of all sizes, nested, crossed, some without rows,
with a single row, with half of all rows. One has no groups, and :class:`~pymc_minibatch.Exact`
decides on its moves. Every free parameter is compared, hyperparameters
included: z is the difference of two means, or of two standard deviations, in its standard error.
Where both samplers are right, the root mean square of z is about 1, and the largest z of P
parameters about √(2 log P).

Models of :mod:`benchmarks.effects` and :mod:`benchmarks.priors` can be named too. Of some of the
former NUTS gets another form of the same posterior that is easier for it: rows alike summed up
where there are few kinds of them, and effects in coordinates that rows see.

    python -m benchmarks.agreement --model nested crossed
    python -m benchmarks.agreement --priors --rows 5000
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from scipy.special import expit

from benchmarks import effects, priors
from benchmarks.effects import (
    NUTS_ACCEPTS,
    Run,
    by_minibatch,
    by_nutpie,
    chains_of,
    differences,
    free_only,
    worst,
)
from benchmarks.report import machine, table, versions

N_GROUPS = 200
MINIBATCH_TUNE = 500


def grouped(seed: int, n_rows: int, share: np.ndarray) -> tuple[np.random.Generator, Any, Any]:
    """Put rows into groups, each with a skewed predictor; also return what made them."""
    rng = np.random.default_rng(seed)
    group = rng.choice(share.size, n_rows, p=share / share.sum())
    return rng, group, rng.exponential(size=n_rows) - 1.0


def uneven(seed: int, n_groups: int = N_GROUPS) -> np.ndarray:
    """Return shares of groups, of which a few are fifty times as large as others."""
    return np.random.default_rng(seed).lognormal(0.0, 1.0, n_groups)


def one_intercept(
    rng: np.random.Generator, group: np.ndarray, x: np.ndarray, centred: bool
) -> pm.Model:
    """Logistic regression with an intercept for each group."""
    p = expit(-2.0 + 0.4 * x + 0.5 * rng.normal(size=N_GROUPS)[group])
    with pm.Model() as model:
        mu, slope, sd = pm.Normal("mu", 0, 2), pm.Normal("slope"), pm.HalfNormal("sd")
        if centred:
            effect = pm.Normal("effect", mu, sd, shape=N_GROUPS)
        else:
            effect = mu + sd * pm.Normal("z", shape=N_GROUPS)
        pm.Bernoulli("y", logit_p=effect[group] + slope * x, observed=rng.random(p.size) < p)
    return model


def nested(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups in 20 regions."""
    rng, group, x = grouped(1, n_rows, uneven(1))
    region = group // 10
    truth = -2.0 + 0.4 * x + 0.5 * rng.normal(size=20)[region] + 0.4 * rng.normal(size=200)[group]
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 0, 2), pm.Normal("slope")
        of_region = pm.Normal("region", mu, pm.HalfNormal("sd_region"), shape=20)
        of_group = pm.HalfNormal("sd_group") * pm.Normal("z", shape=N_GROUPS)
        log_odds = of_region[region] + of_group[group] + slope * x
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.random(n_rows) < expit(truth))
    return model


def crossed(n_rows: int) -> pm.Model:
    """Poisson regression, 200 groups crossed with 50."""
    rng, first, x = grouped(2, n_rows, uneven(2))
    share = uneven(3, 50)
    second = rng.choice(50, n_rows, p=share / share.sum())
    truth = -1.0 + 0.3 * x + 0.5 * rng.normal(size=200)[first] + 0.3 * rng.normal(size=50)[second]
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 0, 2), pm.Normal("slope")
        a = pm.Normal("a", mu, pm.HalfNormal("sd_a"), shape=N_GROUPS)
        b = pm.HalfNormal("sd_b") * pm.Normal("z_b", shape=50)
        rate = pm.math.exp(a[first] + b[second] + slope * x)
        pm.Poisson("y", rate, observed=rng.poisson(np.exp(truth)))
    return model


def slopes(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups with intercepts and slopes, not centred."""
    rng, group, x = grouped(4, n_rows, uneven(4))
    effect = rng.normal(size=(2, N_GROUPS)) * [[0.5], [0.3]]
    p = expit(-1.5 + 0.4 * x + effect[0][group] + effect[1][group] * x)
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 0, 2), pm.Normal("slope")
        sd, z = pm.HalfNormal("sd", shape=2), pm.Normal("z", shape=(2, N_GROUPS))
        log_odds = mu + slope * x + sd[0] * z[0][group] + sd[1] * z[1][group] * x
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.random(n_rows) < p)
    return model


def lkj(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups with correlated intercepts and slopes, not centred."""
    rng, group, x = grouped(5, n_rows, uneven(5))
    effect = rng.multivariate_normal([-1.5, 0.4], [[0.25, 0.06], [0.06, 0.09]], N_GROUPS)
    p = expit(effect[group, 0] + effect[group, 1] * x)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
        z = pm.Normal("z", shape=(N_GROUPS, 2))
        by_group = pm.Normal("mean", 0, 2, shape=2) + pm.math.dot(z, chol.T)
        log_odds = by_group[group, 0] + by_group[group, 1] * x
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.random(n_rows) < p)
    return model


def empty(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups, ten of them without rows, centred."""
    share = uneven(6)
    share[-10:] = 0.0
    return one_intercept(*grouped(6, n_rows, share), centred=True)


def single(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups, half of them with one row, not centred."""
    rng, group, x = grouped(7, n_rows, uneven(7, 100))
    group[:100] = np.arange(100, 200)
    return one_intercept(rng, group, x, centred=False)


def half(n_rows: int) -> pm.Model:
    """Logistic regression, 200 groups, one of them with half of the rows, centred."""
    share = uneven(8)
    share[0] = share[1:].sum()
    return one_intercept(*grouped(8, n_rows, share), centred=True)


def plain(n_rows: int) -> pm.Model:
    """Logistic regression without groups, ten skewed predictors."""
    rng = np.random.default_rng(9)
    X = rng.exponential(size=(n_rows, 10)) - 1.0
    y = rng.random(n_rows) < expit(-1.0 + X @ rng.normal(0, 0.3, 10))
    with pm.Model() as model:
        log_odds = pm.Normal("mu", 0, 2) + pm.Data("X", X) @ pm.Normal("beta", shape=10)
        pm.Bernoulli("y", logit_p=log_odds, observed=y)
    return model


MODELS: dict[str, Callable[[int], pm.Model]] = {
    f.__name__: f for f in (nested, crossed, slopes, lkj, empty, single, half, plain)
}

NAMED = {**MODELS, **effects.MODELS, **priors.MODELS}
FOR_NUTS = {
    f.__name__: f
    for f in (effects.poststratification, effects.smooth, effects.walk, effects.few_groups)
}
"""Models of which NUTS gets another form."""


def largest(errors: np.ndarray) -> float:
    """Return the expected largest of normal variables with these standard deviations."""
    drawn = np.random.default_rng(1).normal(size=(1000, errors.size)) * errors
    return float(np.abs(drawn).max(axis=1).mean())


def rms(z: np.ndarray) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(z**2)))


def compare(first: np.ndarray, second: np.ndarray) -> dict[str, str]:
    """Describe how far draws of two samplers are apart, each of shape (chains, draws, P)."""
    found = differences(first, second)
    health = list(zip(worst(first), worst(second), strict=True))
    ratio, noise = np.expm1([np.abs(found.log_ratio).max(), largest(found.noise)])
    return {
        "parameters": f"{first.shape[2]}",
        "worst ESS": " / ".join(f"{ess:,.0f}" for ess in health[0]),
        "worst R-hat": " / ".join(f"{r_hat:.3f}" for r_hat in health[1]),
        "means, largest z": f"{np.abs(found.means).max():.1f}",
        "rms": f"{rms(found.means):.2f}",
        "sds, largest z": f"{np.abs(found.sds).max():.1f}",
        "rms ": f"{rms(found.sds):.2f}",
        "largest ratio of sds": f"{ratio:.1%}",
        "by noise": f"{noise:.1%}",
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, str]:
    """Sample a model by both."""
    model = NAMED[name](options.rows)
    others = options.chains, options.cores, free_only(model)
    idata, *ours = by_minibatch(model, Run(options.draws, MINIBATCH_TUNE, *others))
    of_nuts = FOR_NUTS[name](options.rows, for_nuts=True) if name in FOR_NUTS else model
    asked = Run(options.nuts_draws, options.nuts_tune, *others)
    nuts, *theirs = by_nutpie(of_nuts, asked, options.nuts_accepts)
    diverged = int(nuts.sample_stats["diverging"].sum())
    compared = compare(chains_of(idata, model), chains_of(nuts, model))
    seconds = f"{sum(ours):.0f} / {sum(theirs):.0f}"
    return {"model": f"`{name}`", **compared, "divergences": str(diverged), "seconds": seconds}


def main() -> None:
    """Print a table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=[*NAMED], nargs="+", default=[*MODELS])
    parser.add_argument("--priors", action="store_true", help="all models of benchmarks.priors")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--draws", type=int, default=1500, help="of each chain of MinibatchMH")
    parser.add_argument("--nuts-draws", type=int, default=1000)
    parser.add_argument("--nuts-tune", type=int, default=400)
    parser.add_argument("--nuts-accepts", type=float, default=NUTS_ACCEPTS)
    options = parser.parse_args()
    print(f"{machine()} {versions()}\n\nMinibatchMH / NUTS:\n")
    for i, name in enumerate(priors.MODELS if options.priors else options.model):
        found = measure(name, options)
        lines = table([*found], [[*found.values()]]).splitlines()
        print("\n".join(lines[2 if i else 0 :]), flush=True)


if __name__ == "__main__":
    main()
