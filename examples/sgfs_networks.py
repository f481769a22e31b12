"""Neural networks sampled by stochastic gradients, as in Ahn, Korattikara and Welling (2012).

Bayesian Posterior Sampling via Stochastic Gradient Fisher Scoring, sections 5.2 and 5.3:

- health: regression on 139 features by 30 logistic units. The data of the paper, of a contest, are
  not public; rows are simulated, as many and as wide, and 70 % of them are for training.
- digits: digits in 20 random projections, 30 logistic units, 940 parameters, batches of 2,000.
- rbm: a discriminative restricted Boltzmann machine on the same projections, whose p(y | x) is
  known in closed form.

Each is sampled by SGFS, SGLD, SGHMC and stochastic gradient descent (SGD, SGLD without its noise).
What is predicted for rows held out is averaged over the draws so far, and its error is printed
against the time since the first draw of tuning: the root mean square, or the share of digits that
are taken for others; means over the seeds, with standard errors.

Run ``python examples/sgfs_networks.py [--quick] [--seconds S] [--seeds K] [--digits FILE]``: S for
each run. FILE is an ``.npz`` with `images` of shape (n, 784) and `labels`; without, the second and
third part take scikit-learn's small digits. ``--quick`` takes few rows, one seed and 2 seconds.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_minibatch as pmb

UNITS, PROJECTIONS, CLASSES = 30, 20, 10
QUIET = {"progressbar": False, "compute_convergence_checks": False, "chains": 1, "cores": 1}


@dataclass(frozen=True)
class Descent(pmb.Polynomial):
    """A schedule whose steps add no noise."""

    def of_draw(self, draw: int, steps_per_draw: int) -> tuple[np.ndarray, np.ndarray]:
        sizes, noisy = super().of_draw(draw, steps_per_draw)
        return sizes, np.zeros_like(noisy)


class Watched(pmb.RunningMean):
    """A mean of predictions that notes the time and its own error, and stops the chain."""

    def __init__(self, f: Any, X: np.ndarray, error: Callable[..., float], seconds: float) -> None:
        super().__init__(f, data={"X": X})
        self.error, self.seconds = error, seconds
        self.seen: list[tuple[float, float]] = []
        self.started = time.perf_counter()

    def __call__(self, trace: Any, draw: Any) -> None:
        super().__call__(trace, draw)
        if self.n_draws:
            spent = time.perf_counter() - self.started
            self.seen.append((spent, self.error(self.mean)))
            if spent > self.seconds:
                raise KeyboardInterrupt  # by which pm.sample ends early


def health(X: np.ndarray, y: np.ndarray) -> tuple[pm.Model, Any]:
    """Return a network with one output, and that output."""
    with pm.Model() as model:
        data = pm.Data("X", X)
        A, a = pm.Normal("A", shape=(X.shape[1], UNITS)), pm.Normal("a", shape=UNITS)
        v, c = pm.Normal("v", shape=UNITS), pm.Normal("c")
        mu = pm.math.sigmoid(data @ A + a) @ v + c
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y)
    return model, mu


def digits(X: np.ndarray, y: np.ndarray) -> tuple[pm.Model, Any]:
    """Return a network with an output for each class, and their probabilities."""
    with pm.Model() as model:
        data = pm.Data("X", X)
        A, a = pm.Normal("A", shape=(X.shape[1], UNITS)), pm.Normal("a", shape=UNITS)
        B, b = pm.Normal("B", shape=(UNITS, CLASSES)), pm.Normal("b", shape=CLASSES)
        scores = pm.math.sigmoid(data @ A + a) @ B + b
        pm.Categorical("y", logit_p=scores, observed=y)
    return model, pm.math.softmax(scores, axis=-1)


def rbm(X: np.ndarray, y: np.ndarray) -> tuple[pm.Model, Any]:
    """Return a discriminative restricted Boltzmann machine, and the probabilities of classes."""
    with pm.Model() as model:
        data = pm.Data("X", X)
        W, b = pm.Normal("W", shape=(X.shape[1], UNITS)), pm.Normal("b", shape=UNITS)
        U, d = pm.Normal("U", shape=(CLASSES, UNITS)), pm.Normal("d", shape=CLASSES)
        inputs = (data @ W + b)[:, None, :] + U[None, :, :]
        scores = d + pm.math.log1pexp(inputs).sum(axis=-1)
        pm.Categorical("y", logit_p=scores, observed=y)
    return model, pm.math.softmax(scores, axis=-1)


def simulated(n_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return features and an outcome that a network with noise has made of them."""
    X = rng.normal(size=(n_rows, 139))
    hidden = np.tanh(X @ rng.normal(size=(139, 10)) / 12)
    return X, hidden @ rng.normal(size=10) + rng.normal(size=n_rows)


def projected(path: Path | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return random projections of digits, of standard deviation 1, and their labels."""
    if path is None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    else:
        with np.load(path) as stored:
            images, labels = stored["images"].astype(float), stored["labels"].astype(int)
    images = images.reshape(len(images), -1)
    X = images @ rng.normal(size=(images.shape[1], PROJECTIONS))
    order = rng.permutation(len(X))
    return ((X - X.mean(axis=0)) / X.std(axis=0))[order], labels[order]


def steps_of(model: pm.Model, part: str, batch_size: int) -> dict[str, Any]:
    """Return the samplers."""
    common = {"model": model, "batch_size": batch_size, "steps_per_draw": 10}
    variant, alpha = ("diagonal", 6.0) if part == "health" else ("full", 2.0)
    langevin = {"step_size": 1e-4, "preconditioner": "identity", **common}
    return {
        f"SGFS-{variant[0]}": pmb.SGFS(variant=variant, alpha=alpha, **common),
        "SGD": pmb.SGLD(schedule=Descent(b=1000.0, gamma=1.0), **langevin),
        "SGLD": pmb.SGLD(schedule=pmb.Polynomial(b=1000.0, gamma=1.0), **langevin),
        "SGHMC": pmb.SGHMC(**common),
    }


def main() -> None:
    """Sample each network by each step, and print errors at three times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--digits", type=Path)
    arguments = parser.parse_args()
    quick = arguments.quick
    seconds = arguments.seconds or (2.0 if quick else 60.0)
    seeds = arguments.seeds or (1 if quick else 5)
    for part, make in (("health", health), ("digits", digits), ("rbm", rbm)):
        rng = np.random.default_rng(2012)
        if part == "health":
            X, y = simulated(2000 if quick else 147_473, rng)
        else:
            X, y = projected(arguments.digits, rng)
        n_train = int(0.7 * len(X))
        held_out = y[n_train:]

        def error(mean: np.ndarray, part: str = part, held_out: np.ndarray = held_out) -> float:
            if part == "health":
                return float(np.sqrt(np.mean((mean - held_out) ** 2)))
            return float(np.mean(mean.argmax(axis=1) != held_out))

        model, output = make(X[:n_train], y[:n_train])
        batch = 2000 if part == "digits" and not quick else 300
        for name, step in steps_of(model, part, min(batch, n_train)).items():
            ends = []
            for seed in range(seeds):
                with model:
                    watched = Watched(output, X[n_train:], error, seconds)
                    pm.sample(
                        100_000,
                        tune=20,
                        step=step,
                        callback=watched,
                        var_names=[],
                        random_seed=seed,
                        **QUIET,
                    )
                times, errors = np.array(watched.seen).T
                ends.append([errors[times <= max(s, times[0])][-1] for s in marks(seconds)])
            spread = np.std(ends, axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else [np.nan] * 3
            found = zip(marks(seconds), np.mean(ends, axis=0), spread, strict=True)
            shown = ", ".join(f"{s:.1f} s: {e:.4f} ± {se:.4f}" for s, e, se in found)
            print(f"{part}, {name}: {shown}", flush=True)


def marks(seconds: float) -> list[float]:
    """Return the times at which errors are printed."""
    return [seconds / 10, seconds / 3, seconds]


if __name__ == "__main__":
    main()
