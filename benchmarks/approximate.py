"""How far approximate posteriors are off, and how long they take.

    python -m benchmarks.approximate                       # all tables, as Markdown
    python -m benchmarks.approximate accuracy --only 0 10  # the first ten models
    python -m benchmarks.approximate speed

The first table compares the means and standard deviations of all variables with those of long
chains of :class:`MinibatchMH`: ten models with effects on simulated rows, ten on data of
statsmodels and scikit-learn, ten of which a Gaussian is wrong, and ten others. Errors are in
posterior standard deviations; noise is what Monte Carlo errors alone would make of the largest of
them, so that of thousands of effects the largest is mostly noise: those of the chains for means,
and for standard deviations those of the draws, too. "few" leaves out variables with more than
twenty elements. The second table has seconds and memory at a million rows, set-up and check
included, when everything is compiled.
"""

import argparse
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import sklearn.datasets
import statsmodels.api as sm

import pymc_minibatch as pmb

N_ROWS, N_BIG = 20_000, 1_000_000
DRAWS, TUNE, CHAINS = 2400, 400, 3
FEW = 20

LOOK_SECONDS = 0.2
"""Between looks at how much memory is held."""


def effects(name: str, n: int, sd: float = 1.0) -> Any:
    """Effects about zero, written non-centred."""
    return pm.HalfNormal(f"sd_{name}", sd) * pm.Normal(f"z_{name}", shape=n)


def grouped(family: str, n_groups: int, *, slopes: bool = False, n_rows: int = N_ROWS) -> pm.Model:
    """Build a model of groups with intercepts, and slopes if asked for."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, n_groups, n_rows), rng.normal(size=n_rows)
    eta = -0.5 + 0.3 * x + 0.6 * rng.normal(size=n_groups)[group]
    if slopes:
        eta = eta + 0.3 * rng.normal(size=n_groups)[group] * x
    with pm.Model() as model:
        predictor = pm.Normal("mu", 0, 2) + pm.Normal("slope", 0, 1) * x
        predictor = predictor + effects("g", n_groups)[group]
        if slopes:
            predictor = predictor + effects("x", n_groups)[group] * x
        observe(family, predictor, eta, rng)
    return model


def crossed(family: str, sizes: tuple[int, int] = (200, 40)) -> pm.Model:
    """Build a model with two crossed factors."""
    rng = np.random.default_rng(2)
    one, other = (rng.integers(0, size, N_ROWS) for size in sizes)
    eta = -0.5 + 0.6 * rng.normal(size=sizes[0])[one] + 0.4 * rng.normal(size=sizes[1])[other]
    with pm.Model() as model:
        predictor = pm.Normal("mu", 0, 2) + effects("a", sizes[0])[one]
        observe(family, predictor + effects("b", sizes[1])[other], eta, rng)
    return model


def observe(family: str, predictor: object, eta: np.ndarray, rng: np.random.Generator) -> None:
    """Add rows of a family."""
    if family == "bernoulli":
        pm.Bernoulli("y", logit_p=predictor, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))
    elif family == "poisson":
        pm.Poisson("y", pm.math.exp(predictor), observed=rng.poisson(np.exp(eta)))
    elif family == "student":
        rows = eta + rng.standard_t(5, eta.size)
        pm.StudentT("y", nu=5, mu=predictor, sigma=pm.HalfNormal("sigma", 2), observed=rows)
    else:
        rows = eta + rng.normal(size=eta.size)
        pm.Normal("y", predictor, pm.HalfNormal("sigma", 2), observed=rows)


def regression() -> pm.Model:
    """Build a model of ten coefficients, without effects."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS, 10))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=10)
        rows = rng.binomial(1, 1 / (1 + np.exp(-X[:, 0] + 1)))
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + X @ beta, observed=rows)
    return model


def regressed(
    family: str, y: np.ndarray, X: np.ndarray, group: np.ndarray | None = None
) -> pm.Model:
    """Build a regression on columns that are standardized here, with effects of groups if any."""
    X = np.asarray(X, dtype=float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    with pm.Model() as model:
        eta = pm.Normal("mu", 0, 3) + pt.dot(X, pm.Normal("beta", 0, 1, shape=X.shape[1]))
        if group is not None:
            eta = eta + effects("g", int(group.max()) + 1)[group]
        if family == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=y)
        elif family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
        elif family == "negative binomial":
            pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("a", 5), observed=y)
        elif family == "student":
            scale, nu = pm.HalfNormal("sigma", 100), pm.Gamma("nu", 2, 0.1)
            pm.StudentT("y", nu=nu, mu=50 * eta, sigma=scale, observed=y)
        else:
            pm.Normal("y", 50 * eta, pm.HalfNormal("sigma", 100), observed=y)
    return model


def table(name: str) -> Any:
    """Load a table of statsmodels."""
    return getattr(sm.datasets, name).load_pandas().data


def codes(*columns: Any) -> np.ndarray:
    """Give a number to each combination that there are of some columns."""
    both = np.column_stack([np.asarray(column) for column in columns])
    return np.unique(both, axis=0, return_inverse=True)[1].ravel()


def digits(threshold: int) -> pm.Model:
    """Tell digits from others by eight principal components."""
    X, y = sklearn.datasets.load_digits(return_X_y=True)
    X = X - X.mean(axis=0)
    return regressed("bernoulli", (y >= threshold).astype(int), X @ np.linalg.svd(X)[2][:8].T)


def tumours() -> pm.Model:
    """Tell malignant tumours by three measurements."""
    X, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
    return regressed("bernoulli", y, X[:, [0, 1, 8]])


def progression(family: str) -> pm.Model:
    """Model the progression of diabetes."""
    X, y = sklearn.datasets.load_diabetes(return_X_y=True)
    return regressed(family, y, X[:, [0, 1, 2, 3, 8]])


def visits(family: str) -> pm.Model:
    """Model visits to doctors."""
    data = table("randhie")
    return regressed(family, data["mdvis"], data[["lncoins", "lpi", "fmde", "physlm", "disea"]])


def affairs() -> pm.Model:
    """Model whether there were affairs, by pairs of occupations."""
    data = table("fair")
    group = codes(data["occupation"], data["occupation_husb"])
    X = data[["rate_marriage", "age", "yrs_married", "religious"]]
    return regressed("bernoulli", np.asarray(data["affairs"] > 0).astype(int), X, group)


def votes() -> pm.Model:
    """Model votes of 1996 by education and age; groups are degrees of party identification."""
    data = table("anes96")
    return regressed("bernoulli", data["vote"], data[["educ", "age", "income"]], codes(data["PID"]))


def news() -> pm.Model:
    """Model days with news on television, by age and education."""
    data = table("anes96")
    group = codes(data["age"])
    return regressed("poisson", data["TVnews"], data[["educ", "income", "selfLR"]], group)


MODELS: dict[str, Callable[[], pm.Model]] = {
    "200 groups, Bernoulli": lambda: grouped("bernoulli", 200),
    "2,000 groups, Bernoulli": lambda: grouped("bernoulli", 2000),
    "200 groups with slopes, Bernoulli": lambda: grouped("bernoulli", 200, slopes=True),
    "200 groups, Poisson": lambda: grouped("poisson", 200),
    "2,000 groups, Poisson": lambda: grouped("poisson", 2000),
    "200 groups, normal": lambda: grouped("normal", 200),
    "200 groups with slopes, normal": lambda: grouped("normal", 200, slopes=True),
    "200 groups, Student t": lambda: grouped("student", 200),
    "200 × 40 crossed, Bernoulli": lambda: crossed("bernoulli"),
    "200 × 40 crossed, normal": lambda: crossed("normal"),
    "digits": lambda: digits(5),
    "digits, nines": lambda: digits(9),
    "tumours": tumours,
    "diabetes, normal": lambda: progression("normal"),
    "diabetes, Student t": lambda: progression("student"),
    "visits, Poisson": lambda: visits("poisson"),
    "visits, negative binomial": lambda: visits("negative binomial"),
    "affairs by occupations": affairs,
    "votes by party": votes,
    "news by age": news,
}


def small(build: Callable[[np.random.Generator], None]) -> Callable[[], pm.Model]:
    """Make a function that builds a model."""

    def made() -> pm.Model:
        with pm.Model() as model:
            build(np.random.default_rng(5))
        return model

    return made


def counts(rng: np.random.Generator) -> None:
    """Observe overdispersed counts of groups."""
    group, x = rng.integers(0, 200, N_ROWS), rng.normal(size=N_ROWS)
    mean = np.exp(0.5 + 0.3 * x + 0.5 * rng.normal(size=200)[group])
    eta = pm.Normal("mu", 0, 2) + pm.Normal("b") * x + effects("g", 200)[group]
    rows = rng.poisson(mean * rng.gamma(3.0, 1 / 3.0, N_ROWS))
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 5), observed=rows)


def amounts(rng: np.random.Generator) -> None:
    """Observe gamma amounts of groups."""
    group = rng.integers(0, 200, N_ROWS)
    mean = np.exp(1.0 + 0.4 * rng.normal(size=200)[group])
    eta, shape = pm.Normal("mu", 0, 2) + effects("g", 200)[group], pm.HalfNormal("shape", 5)
    rows = rng.gamma(2.0, mean / 2.0)
    pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(eta), observed=rows)


def ordered(rng: np.random.Generator) -> None:
    """Observe ordered answers of persons."""
    group = rng.integers(0, 300, N_ROWS)
    eta = 0.8 * rng.normal(size=300)[group] + rng.logistic(size=N_ROWS)
    cuts = pm.Normal(
        "cuts",
        [-1.0, 0.5, 1.5],
        2.0,
        shape=3,
        transform=pm.distributions.transforms.ordered,
    )
    answers = np.searchsorted([-1.0, 0.5, 1.5], eta)
    eta_of_row = effects("g", 300)[group]
    pm.OrderedLogistic("y", eta=eta_of_row, cutpoints=cuts, observed=answers, compute_p=False)


def zeros(rng: np.random.Generator) -> None:
    """Observe counts of groups, of which a fifth are zeros for another reason."""
    group = rng.integers(0, 200, N_ROWS)
    rows = rng.poisson(np.exp(0.5 + 0.5 * rng.normal(size=200)[group]))
    eta = pm.Normal("mu", 0, 2) + effects("g", 200)[group]
    observed = rows * (rng.random(N_ROWS) < 0.8)
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 2, 2), mu=pm.math.exp(eta), observed=observed)


def correlated(rng: np.random.Generator) -> None:
    """Observe groups whose intercepts and slopes are correlated."""
    group, x = rng.integers(0, 150, N_ROWS), rng.normal(size=N_ROWS)
    both = rng.multivariate_normal([1.0, 0.5], [[0.5, 0.2], [0.2, 0.3]], 150)[group]
    chol = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))[0]
    effect = pm.Normal("z", shape=(150, 2)) @ chol.T
    mean = pm.Normal("b", 0, 2, shape=2) + effect
    rows = both[:, 0] + both[:, 1] * x + rng.normal(size=N_ROWS)
    predictor = mean[group, 0] + mean[group, 1] * x
    pm.Normal("y", predictor, pm.HalfNormal("sigma", 2), observed=rows)


def nested(rng: np.random.Generator) -> None:
    """Observe pupils of classes of schools."""
    school_of = rng.integers(0, 50, 400)
    group = rng.integers(0, 400, N_ROWS)
    school = 0.5 * rng.normal(size=50)[school_of]
    eta = (school + 0.4 * rng.normal(size=400))[group]
    predictor = pm.Normal("mu", 0, 2) + effects("school", 50)[school_of[group]]
    predictor = predictor + effects("class", 400)[group]
    pm.Bernoulli("y", logit_p=predictor, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))


def smooth(rng: np.random.Generator) -> None:
    """Observe counts along a curve (a Gaussian process in a basis)."""
    x = np.sort(rng.uniform(0, 10, N_ROWS))
    length, size = pm.InverseGamma("length", 5, 5), pm.HalfNormal("size", 1)
    curve = pm.gp.HSGP(m=[20], c=1.5, cov_func=size**2 * pm.gp.cov.ExpQuad(1, ls=length))
    f = curve.prior("f", X=x[:, None])
    rows = rng.poisson(np.exp(0.5 + np.sin(x)))
    pm.Poisson("y", pm.math.exp(pm.Normal("mu", 0, 2) + f), observed=rows)


def lifetimes(rng: np.random.Generator) -> None:
    """Observe Weibull lifetimes of makes."""
    group, x = rng.integers(0, 100, N_ROWS), rng.normal(size=N_ROWS)
    log_scale = 1.0 + 0.2 * x + 0.3 * rng.normal(size=100)[group]
    eta = pm.Normal("mu", 0, 2) + pm.Normal("b") * x + effects("g", 100)[group]
    rows = np.exp(log_scale) * rng.weibull(1.5, N_ROWS)
    pm.Weibull("y", alpha=pm.HalfNormal("alpha", 3), beta=pm.math.exp(eta), observed=rows)


def uneven(rng: np.random.Generator) -> None:
    """Observe groups of which some have thousands of rows and many have two."""
    group = np.unique(np.minimum(rng.zipf(1.3, N_ROWS), 2000), return_inverse=True)[1]
    size = int(group.max()) + 1
    eta = -1.0 + 0.7 * rng.normal(size=size)[group]
    predictor = pm.Normal("mu", 0, 2) + effects("g", size)[group]
    pm.Bernoulli("y", logit_p=predictor, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))


def trials(rng: np.random.Generator) -> None:
    """Observe successes among some trials, centred effects."""
    group, n = rng.integers(0, 200, N_ROWS), rng.integers(1, 20, N_ROWS)
    p = 1 / (1 + np.exp(1.0 - 0.6 * rng.normal(size=200)[group]))
    effect = pm.Normal("effect", pm.Normal("mu", 0, 2), pm.HalfNormal("sd", 1), shape=200)
    pm.Binomial("y", n=n, logit_p=effect[group], observed=rng.binomial(n, p))


def square(rng: np.random.Generator) -> None:
    """Observe a square: two modes of the same height."""
    pm.Normal("y", pm.Normal("theta", 0, 2) ** 2, 1.0, observed=rng.normal(1.0, 1.0, 1000))


def product(rng: np.random.Generator) -> None:
    """Multiply two coefficients, of which rows tell little."""
    x = rng.normal(size=500)
    slope = pm.Normal("a", 0, 1) * pm.Normal("b", 0, 1)
    pm.Normal("y", slope * x, 1.0, observed=0.1 * x + rng.normal(size=500))


def funnel(rng: np.random.Generator, n_rows: int = 2, sd: float = 0.0) -> None:
    """Observe groups of few rows."""
    group = np.repeat(np.arange(200), n_rows)
    effect = pm.Normal("z", 0, pm.HalfCauchy("sd", 5), shape=200)
    p = 1 / (1 + np.exp(-sd * rng.normal(size=200)[group]))
    pm.Bernoulli("y", logit_p=effect[group], observed=rng.binomial(1, p))


def cauchy(rng: np.random.Generator) -> None:
    """Observe a separated coefficient with a Cauchy prior."""
    x = (rng.random(1000) < 0.02).astype(float)
    y = np.maximum(x, rng.integers(0, 2, 1000)).astype(int)
    pm.Bernoulli("y", logit_p=pm.Normal("mu") + pm.Cauchy("b", 0, 2.5) * x, observed=y)


def separated(rng: np.random.Generator) -> None:
    """Observe levels with ones alone, and a Cauchy scale."""
    group = rng.integers(0, 20, 300)
    p = 1 / (1 + np.exp(-4 * rng.normal(size=20)[group]))
    effect = pm.Normal("z", 0, pm.HalfCauchy("sd", 25), shape=20)
    pm.Bernoulli("y", logit_p=effect[group], observed=rng.binomial(1, p))


def few(rng: np.random.Generator) -> None:
    """Observe twelve rows of a logistic regression."""
    X = rng.normal(size=(12, 3))
    y = (X[:, 0] > 0).astype(int)
    pm.Bernoulli("y", logit_p=pt.dot(X, pm.Normal("b", 0, 5, shape=3)), observed=y)


def wall(rng: np.random.Generator) -> None:
    """Observe a coefficient at the end of its range."""
    x = rng.normal(size=500)
    pm.Normal("y", pm.Uniform("b", 0, 1) * x, 1.0, observed=rng.normal(size=500) - 0.05 * x)


def overlap(rng: np.random.Generator) -> None:
    """Observe two components that overlap."""
    y = np.where(rng.random(200) < 0.3, 1.2, 0.0) + rng.normal(size=200)
    w, centers = pm.Beta("w", 2, 2), pm.Normal("centers", [0.0, 2.0], 1.0, shape=2)
    parts = [pm.Normal.dist(centers[k], 1.0) for k in range(2)]
    pm.Mixture("y", w=pt.stack([1 - w, w]), comp_dists=parts, observed=y)


def horseshoe(rng: np.random.Generator) -> None:
    """Observe ten coefficients with a horseshoe prior."""
    X = rng.normal(size=(200, 10))
    width = pm.HalfCauchy("local", 1, shape=10) * pm.HalfCauchy("tau", 0.2)
    beta = pm.Normal("beta", shape=10) * width
    pm.Normal("y", pt.dot(X, beta), 1.0, observed=X[:, 0] + rng.normal(size=200))


OTHERS: dict[str, Callable[[], pm.Model]] = {
    "overdispersed counts": small(counts),
    "gamma amounts": small(amounts),
    "ordered answers": small(ordered),
    "counts with more zeros": small(zeros),
    "correlated slopes": small(correlated),
    "classes of schools": small(nested),
    "a smooth curve": small(smooth),
    "lifetimes": small(lifetimes),
    "uneven groups": small(uneven),
    "successes in trials": small(trials),
}

BAD: dict[str, Callable[[], pm.Model]] = {
    "two modes": small(square),
    "product of coefficients": small(product),
    "groups of two rows": small(funnel),
    "groups of two unlike rows": small(partial(funnel, sd=2.0)),
    "Cauchy tail": small(cauchy),
    "separated levels": small(separated),
    "twelve separated rows": small(few),
    "a wall": small(wall),
    "overlapping components": small(overlap),
    "horseshoe": small(horseshoe),
}

BIG: dict[str, Callable[[], pm.Model]] = {
    "1,000 groups": lambda: grouped("bernoulli", 1000, n_rows=N_BIG),
    "10,000 groups with slopes": lambda: grouped("bernoulli", 10_000, slopes=True, n_rows=N_BIG),
    "100,000 groups": lambda: grouped("bernoulli", 100_000, n_rows=N_BIG),
}


def accuracy(
    first: int = 0, last: int = 100, draws: int = 1000, of_chains: int = DRAWS
) -> Iterator[str]:
    """Give the rows of the first table, with so many draws and so many of each chain."""
    errors = "mean, few | mean | noise | sd, few | sd | noise"
    yield f"| model | s | verdict | largest shift | k̂ | {errors} |"
    yield f"| {' | '.join(['---'] * 11)} |"
    for name, build in list((MODELS | BAD | OTHERS).items())[first:last]:
        model = build()
        try:
            idata = pmb.approximate(model, draws=draws, random_seed=1)
        except pmb.NoReferenceError:
            yield f"| {name} | | refused | | | | | | | | |"
            continue
        with model:
            chains = pm.sample(
                of_chains,
                tune=TUNE,
                chains=CHAINS,
                cores=1,
                step=pmb.MinibatchMH(start=idata),
                random_seed=2,
                progressbar=False,
            )
        yield f"| {name} | {_cells(idata)} | {_errors(idata, chains)} |"


def speed() -> Iterator[str]:
    """Give the rows of the second table."""
    yield "| a million rows | s | set-up | verdict | GB, the data | GB at most, beside these |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, build in BIG.items():
        model = build()
        before = _held()
        with _Peak() as peak:
            pmb.approximate(model, draws=10, random_seed=1)  # compiles
            started = time.perf_counter()
            idata = pmb.approximate(model, random_seed=1)
            seconds = time.perf_counter() - started
        held = f"{before:.1f} | {peak.gigabytes - before:.1f}"
        set_up, verdict = idata.attrs["setup_seconds"], idata.attrs["verdict"]
        yield f"| {name} | {seconds:.1f} | {set_up:.1f} | {verdict} | {held} |"


class _Peak:
    """The most memory that this process and its children hold together while it is entered."""

    def __init__(self) -> None:
        self.gigabytes, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.gigabytes = max(self.gigabytes, _held())


def _held() -> float:
    """Return the gigabytes of this process and its children, shared pages counted once (Linux)."""
    total, pids = 0, [str(os.getpid())]
    for children in Path("/proc/self/task").glob("*/children"):
        pids += children.read_text().split()
    for pid in pids:
        with suppress(OSError):  # has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 2**20


def _cells(idata: object) -> str:
    attrs = idata.attrs  # type: ignore[attr-defined]
    shift = f"{attrs['largest_shift']:.2f} ± {attrs['largest_shift_error']:.2f}"
    verdict = attrs["verdict"] + (" (corrected)" if attrs["corrected"] else "")
    return f"{attrs['seconds']:.1f} | {verdict} | {shift} | {attrs['pareto_k']:.1f}"


def _errors(idata: Any, chains: Any) -> str:
    """Return the largest errors of a mean and of an sd, each with its noise."""
    of_mean, of_sd, noise, noise_of_sd, is_few = [], [], [], [], []
    ess = az.ess(chains.posterior.to_dataset())
    for name in idata.posterior.data_vars:
        drawn = np.atleast_3d(idata.posterior[name].values)[0]
        long = chains.posterior[name]
        effective = np.ravel(ess[name].values)
        values = long.values.reshape(long.shape[0] * long.shape[1], -1)
        drawn = drawn.reshape(len(drawn), -1)
        varies = values.std(axis=0) > 0  # the diagonal of a matrix of correlations does not
        drawn, values, effective = drawn[:, varies], values[:, varies], effective[varies]
        sd = values.std(axis=0)
        of_mean += list(np.abs(drawn.mean(axis=0) - values.mean(axis=0)) / sd)
        of_sd += list(np.abs(drawn.std(axis=0) / sd - 1))
        normal = np.abs(np.random.default_rng(1).normal(size=sd.size))
        noise += list(normal / np.sqrt(effective))
        noise_of_sd += list(normal * np.sqrt(0.5 / effective + 0.5 / len(drawn)))
        is_few += [sd.size <= FEW] * sd.size
    some = np.flatnonzero(is_few)
    means = f"{np.max(np.array(of_mean)[some]):.3f} | {max(of_mean):.3f} | {max(noise):.3f}"
    sds = f"{np.max(np.array(of_sd)[some]):.1%} | {max(of_sd):.1%} | {max(noise_of_sd):.1%}"
    return f"{means} | {sds}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["accuracy", "speed", "both"], nargs="?", default="both")
    parser.add_argument("--only", type=int, nargs=2, default=(0, 100), metavar=("FIRST", "LAST"))
    parser.add_argument("--draws", type=int, default=1000, help="of the approximation")
    parser.add_argument("--of-chains", type=int, default=DRAWS, help="of each of the chains")
    options = parser.parse_args()
    packages = [f"{each} {version(each)}" for each in ("pymc", "pytensor", "pymc-minibatch")]
    print(f"{', '.join(packages)}; {platform.processor() or platform.machine()}", flush=True)
    if options.table != "speed":
        for line in accuracy(*options.only, options.draws, options.of_chains):
            print(line, flush=True)
    if options.table != "accuracy":
        for line in speed():
            print(line, flush=True)
