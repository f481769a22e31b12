"""Networks sampled by SGFS, as in Ahn, Korattikara and Welling (2012), sections 5.2 and 5.3.

Bayesian Posterior Sampling via Stochastic Gradient Fisher Scoring. Three models, in which averaged
predictions of SGFS are compared with those of other samplers, and with those of SGD, at equal
processor time:

- Health: regression on 139 features, 147,473 rows, by a network of 30 logistic units (SGFS-d,
  α = 6). The data are simulated like those of the paper: counts, mostly zero, and the logarithm of
  days in hospital.
- Digits: ten classes, 20 random projections, by a network of 30 logistic units (SGFS-f, α = 2,
  batches of 2,000).
- RBM: the same digits in 50 projections, by a discriminative restricted Boltzmann machine with 41
  hidden units (SGFS-d, α = 2).

Each run has its seconds of processor time, the start included: a climb by Adam for Health, as the
package's default has it, and random weights for the others. Predictions for held-out rows
are not counted. They are averages over the draws since half of the time before; for SGD, which
makes no draws, they are those of its last point; "nan" where a step still tunes. Errors are means
and standard deviations over seeds, which change the data and the chain.

Run ``OMP_NUM_THREADS=1 python examples/sgfs_networks.py [--quick] [--digits FILE] [--seeds N]
[--seconds S] [--only NAME]``. FILE is an ``.npz`` with `images` of shape (n, 784) and `labels`;
without, the 8 × 8 digits that come with scikit-learn are taken. ``--quick`` takes 5 units, few
rows and one seed.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from digits import load_digits
from pytensor.tensor.variable import TensorVariable
from sklearn import datasets

import pymc_minibatch as pmb

UNITS, RBM_UNITS, QUICK_UNITS = 30, 41, 5
PROJECTIONS, RBM_PROJECTIONS = 20, 50
QUICK_SECONDS = 3.0
TRAINED = 0.7
"""Share of the rows that are learned from; the others are held out."""

FROM_PRIOR = {"control_variate": 0}
"""No chain climbs, nor is a mode searched for; the weights start from their prior."""

MOST_DRAWS = 100_000
SHARES = (0.25, 0.5, 1.0)
"""Of the time, after which errors are computed."""


class Descent(pmb.Polynomial):
    """Polynomial steps without noise, by which SGLD becomes SGD."""

    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        sizes, noisy = super().of_draw(draw, steps_per_draw)
        return sizes, np.zeros_like(noisy)


class Split(NamedTuple):
    """Inputs and outcomes, to learn from and held out."""

    X: np.ndarray
    y: np.ndarray
    X_held_out: np.ndarray
    y_held_out: np.ndarray


def split(X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Split:
    order = rng.permutation(len(y))
    kept, held_out = np.split(order, [int(TRAINED * len(y))])
    return Split(X[kept], y[kept], X[held_out], y[held_out])


# --- Health: a network for regression ---------------------------------------------------------


def simulate_health(rng: np.random.Generator, n_rows: int, n_features: int = 139) -> Split:
    """Counts that depend on ten traits, and the logarithm of one and the days in hospital."""
    traits = rng.normal(size=(n_rows, 10))
    rates = np.exp(traits @ rng.normal(0, 0.3, (10, n_features)) + rng.normal(-1, 1, n_features))
    X = np.log1p(rng.poisson(rates))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    units = np.tanh(X @ rng.normal(0, n_features**-0.5, (n_features, 10)) + rng.normal(size=10))
    rate = np.exp(units @ rng.normal(0, 0.8, 10) - 1)
    days = np.minimum(rng.poisson(rate * rng.gamma(2.0, 0.5, n_rows)), 15)
    return split(X, np.log1p(days), rng)


def health_model(X: np.ndarray, y: np.ndarray, units: int) -> tuple[pm.Model, TensorVariable]:
    n_features = X.shape[1]
    with pm.Model() as model:
        features = pm.Data("X", X)
        W = pm.Normal("W", 0, n_features**-0.5, shape=(n_features, units))
        b = pm.Normal("b", shape=units)
        v, c = pm.Normal("v", shape=units), pm.Normal("c")
        mu = pm.math.sigmoid(features @ W + b) @ v + c
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y)
    return model, mu


def root_mean_square(predicted: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - y) ** 2)))


# --- Digits: a network and a restricted Boltzmann machine for classes ---------------------------


def project_digits(rng: np.random.Generator, path: str | None, n_projections: int) -> Split:
    if path is None:
        images, labels = datasets.load_digits(return_X_y=True)
    else:
        images, labels = load_digits(path)
    X = (images - images.mean(axis=0)) @ rng.normal(size=(images.shape[1], n_projections))
    return split(X / X.std(axis=0), labels, rng)


def digits_model(X: np.ndarray, y: np.ndarray, units: int) -> tuple[pm.Model, TensorVariable]:
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        W = pm.Normal("W", shape=(X.shape[1], units), initval="prior")
        V = pm.Normal("V", shape=(units, 10), initval="prior")
        b, c = pm.Normal("b", shape=units), pm.Normal("c", shape=10)
        scores = pm.math.sigmoid(inputs @ W + b) @ V + c
        pm.Categorical("y", logit_p=scores, observed=y)
    return model, pm.math.softmax(scores, axis=-1)


def rbm_model(X: np.ndarray, y: np.ndarray, units: int) -> tuple[pm.Model, TensorVariable]:
    """log p(y | x) = c_y + Σ_j softplus(d_j + x·U_j + W_jy) up to a constant: no sum over states.

    Larochelle and Bengio (2008), Classification using discriminative restricted Boltzmann machines.
    """
    shape = X.shape[1], units
    start = np.random.default_rng(1).normal(0, X.shape[1] ** -0.5, shape)
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        U = pm.Normal("U", shape=shape, initval=start)
        W = pm.Normal("W", shape=(10, units), initval="prior")
        d = pm.Normal("d", shape=units)
        fields = (inputs @ U + d)[:, None, :] + W
        scores = pm.math.log1pexp(fields).sum(axis=-1) + pm.Normal("c", shape=10)
        pm.Categorical("y", logit_p=scores, observed=y)
    return model, pm.math.softmax(scores, axis=-1)


def misclassified(predicted: np.ndarray, y: np.ndarray) -> float:
    return 100 * float(np.mean(predicted.argmax(axis=-1) != y))


# --- Experiments --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A model, its data, and the settings of SGD and of the samplers."""

    measure: str
    data: Callable[[np.random.Generator, argparse.Namespace], Split]
    model: Callable[[np.ndarray, np.ndarray, int], tuple[pm.Model, TensorVariable]]
    units: int
    error: Callable[[np.ndarray, np.ndarray], float]
    tune: int
    every: int
    methods: dict[str, Callable[[], Any]]


def langevin(schedule: pmb.Polynomial, step_size: float, **options: Any) -> pmb.SGLD:
    return pmb.SGLD(
        step_size=step_size,
        schedule=schedule,
        preconditioner="identity",
        steps_per_draw=20,
        **options,
    )


def diagonal(alpha: float, steps_per_draw: int, **options: Any) -> pmb.SGFS:
    return pmb.SGFS(variant="diagonal", alpha=alpha, steps_per_draw=steps_per_draw, **options)


def of_digits(
    model: Callable[[np.ndarray, np.ndarray, int], tuple[pm.Model, TensorVariable]],
    units: int,
    *,
    n_projections: int,
    tune: int,
    longest: float,
    scoring: dict[str, Callable[[], Any]],
) -> Experiment:
    """Compare Fisher scoring with SGD and SGLD, whose first step is the longest."""
    return Experiment(
        measure="misclassified (%)",
        data=lambda rng, options: project_digits(rng, options.digits, n_projections),
        model=model,
        units=units,
        error=misclassified,
        tune=tune,
        every=1,
        methods={
            "SGD": lambda: langevin(Descent(b=300, gamma=1), longest, **FROM_PRIOR),
            "SGLD": lambda: langevin(pmb.Polynomial(b=300, gamma=1), longest, **FROM_PRIOR),
            **scoring,
        },
    )


EXPERIMENTS = {
    "health": Experiment(
        measure="root mean square error",
        data=lambda rng, options: simulate_health(rng, 3000 if options.quick else 147_473),
        model=health_model,
        units=UNITS,
        error=root_mean_square,
        tune=5,
        every=10,
        methods={
            "SGD": lambda: langevin(Descent(b=5000, gamma=1), 3e-7),
            "SGLD": lambda: langevin(pmb.Polynomial(b=5000, gamma=1), 3e-7),
            "SGHMC": pmb.SGHMC,
            "SGFS-d": lambda: diagonal(alpha=6, steps_per_draw=20),
        },
    ),
    "digits": of_digits(
        digits_model,
        UNITS,
        n_projections=PROJECTIONS,
        tune=40,
        longest=1e-2,
        scoring={
            "SGFS-f": lambda: pmb.SGFS(alpha=2, batch_size=2000, steps_per_draw=2, **FROM_PRIOR)
        },
    ),
    "RBM": of_digits(
        rbm_model,
        RBM_UNITS,
        n_projections=RBM_PROJECTIONS,
        tune=20,
        longest=3e-3,
        scoring={"SGFS-d": lambda: diagonal(alpha=2, steps_per_draw=150, **FROM_PRIOR)},
    ),
}


# --- Sampling -----------------------------------------------------------------------------------


@dataclass
class Progress:
    """A callback of ``pm.sample`` that notes errors of predictions, and ends the run in time.

    At each of the times the average starts anew. The clock stands still in the callback.
    """

    predicted: pmb.RunningMean
    error: Callable[[np.ndarray], float]
    times: list[float]
    is_average: bool
    began: float
    errors: list[float] = field(default_factory=list)

    def __call__(self, trace: Any, draw: Any) -> None:
        now = time.process_time()
        n_done = len(self.errors)
        is_due = n_done < len(self.times) and now - self.began >= self.times[n_done]
        if self.is_average or is_due:
            self.predicted(trace, draw)
        if is_due:
            known = self.predicted.n_draws > 0
            self.errors.append(self.error(self.predicted.mean) if known else np.nan)
            self.predicted.n_draws = 0
        if len(self.errors) == len(self.times) and not draw.tuning:
            raise KeyboardInterrupt  # as PyMC's documentation has it
        self.began += time.process_time() - now


def run(experiment: Experiment, method: str, seed: int, options: argparse.Namespace) -> list[float]:
    data = experiment.data(np.random.default_rng(seed), options)
    units = QUICK_UNITS if options.quick else experiment.units
    model, prediction = experiment.model(data.X, data.y, units)
    with model:
        step = experiment.methods[method]()
        is_average = method != "SGD"
        every = experiment.every if is_average else 1
        progress = Progress(
            pmb.RunningMean(prediction, data={"X": data.X_held_out}, every=every),
            lambda predicted: experiment.error(predicted, data.y_held_out),
            [share * options.seconds for share in SHARES],
            is_average=is_average,
            began=time.process_time(),
        )
        pm.sample(
            MOST_DRAWS,
            tune=experiment.tune,
            chains=1,
            step=step,
            callback=progress,
            var_names=["c"],
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return progress.errors


def show(name: str, options: argparse.Namespace) -> None:
    """Print the table of an experiment."""
    experiment = EXPERIMENTS[name]
    times = " | ".join(f"{share * options.seconds:.3g} s" for share in SHARES)
    print(f"\n{name}: {experiment.measure}, {options.seeds} seeds\n\n| method | {times} |")
    print("| --- | ---: | ---: | ---: |")
    at_once = argparse.Namespace(**{**vars(options), "seconds": 0.0})
    errors = {}
    for method in experiment.methods:
        run(experiment, method, 0, at_once)  # what it compiles is not timed
        found = [run(experiment, method, seed, options) for seed in range(options.seeds)]
        errors[method] = np.array(found)
        print(f"| {method} | {' | '.join(cells(errors[method]))} |", flush=True)
    for method in list(errors)[1:]:
        less = cells(errors[method] - errors["SGD"])
        print(f"| {method} less SGD, seed by seed | {' | '.join(less)} |", flush=True)


def cells(errors: np.ndarray) -> list[str]:
    """Write the mean and standard deviation over seeds, the first axis."""
    mean, sd = errors.mean(axis=0), errors.std(axis=0, ddof=min(1, len(errors) - 1))
    return [f"{m:.4g} ± {s:.2g}" for m, s in zip(mean, sd, strict=True)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small networks, 3 seconds each")
    parser.add_argument("--digits", metavar="FILE", help=".npz with images and labels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of each run")
    parser.add_argument("--only", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.seconds = 1, QUICK_SECONDS
    for name in options.only:
        show(name, options)


if __name__ == "__main__":
    main()
