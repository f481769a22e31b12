"""The table of Maclaurin and Adams (2014): regular, untuned and MAP-tuned Firefly Monte Carlo.

Three regressions, as in section 4 of the paper, each sampled by its update of θ: random-walk
Metropolis, Langevin and slice sampling. A last line of each is the default update of ``FlyMC``.

- logistic: 7 against 9, 12,214 images of digits, 50 principal components and an intercept;
- softmax: 3, 5 and 8, 18,000 images, 50 principal components and an intercept. (The paper has
  three classes of CIFAR-10.)
- robust: Student's t with ν = 4, 1.8 million rows, 57 features. (The paper's molecules are not
  public; these rows are synthetic, with heavy tails.)

The rows are made of fewer digits by small random shifts, rotations and deformations.

Run it with ``python examples/firefly_table.py [--quick] [--only NAME] [--digits FILE]``. FILE is an
``.npz`` with `images` of shape (n, 784) and `labels`; without, scikit-learn downloads MNIST. The
quick run takes 2,000 images of the first regression; the third needs a few GB of memory.
"""

import argparse
from dataclasses import dataclass

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from digits import deformed_rows, load_digits

import pymc_minibatch as pmb


@dataclass
class Experiment:
    """A model and how it is sampled.

    Where the model has too many rows for the algorithms that read a share of them, these sample a
    `thin` one, with each `every`-th row, and what they read counts that many times.
    """

    name: str
    model: pm.Model
    update: str
    draws: int
    thin: pm.Model | None = None
    every: int = 1


# --- Data -------------------------------------------------------------------------------------


def principal_components(
    path: str | None, classes: list[int], n_rows: int, n_components: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Intercept and principal components of deformed digits, and the number of their class."""
    rng = np.random.default_rng(1)
    images, labels = load_digits(path)
    chosen = np.flatnonzero(np.isin(labels, classes))
    rows = rng.permutation(chosen)[np.arange(n_rows) % chosen.size]
    pixels = deformed_rows(images[rows], rng)
    pixels -= pixels.mean(axis=0)
    _, vectors = np.linalg.eigh(pixels.T @ pixels)
    scores = pixels @ vectors[:, ::-1][:, :n_components]
    return np.column_stack([np.ones(n_rows), scores]), np.searchsorted(classes, labels[rows])


# --- Experiments ------------------------------------------------------------------------------


def logistic(path: str | None, quick: bool) -> Experiment:
    X, y = principal_components(path, [7, 9], 2_000 if quick else 12_214)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    draws = 5_000 if quick else 20_000
    return Experiment("logistic", model, "metropolis", draws)


def softmax(path: str | None, quick: bool) -> Experiment:
    X, y = principal_components(path, [3, 5, 8], 2_000 if quick else 18_000)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=(X.shape[1], 3))
        pm.Categorical("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    draws = 2_000 if quick else 5_000
    return Experiment("softmax", model, "langevin", draws)


def robust(path: str | None, quick: bool) -> Experiment:
    rng = np.random.default_rng(2)
    n_rows, n_features = (20_000 if quick else 1_800_000), 57
    X = rng.normal(size=(n_rows, n_features))
    y = X @ rng.normal(0, 0.3, n_features) + rng.standard_t(4, n_rows)
    if quick:
        return Experiment("robust", robust_model(X, y), "slice", 1_000)
    thin = robust_model(X[::100], y[::100])
    return Experiment("robust", robust_model(X, y), "slice", 5_000, thin, every=100)


def robust_model(X: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.StudentT("y", nu=4, mu=pm.Data("X", X) @ beta, sigma=1.0, observed=y)
    return model


EXPERIMENTS = {"logistic": logistic, "softmax": softmax, "robust": robust}


# --- Sampling ---------------------------------------------------------------------------------


def steps(experiment: Experiment) -> dict[str, pmb.FlyMC]:
    """One step for each line of the table."""
    model, update = experiment.model, experiment.update
    thin = experiment.thin or model
    tuned = pmb.FlyMC(model=model, proposal=update, rng=1)
    regular = pmb.FlyMC(model=thin, proposal=update, bound=none_dark(thin), rng=1)
    untuned = pmb.FlyMC(model=thin, proposal=update, tune_bounds=False, rng=1)
    shape = tuned if thin is model else pmb.FlyMC(model=thin, proposal=update, rng=1)
    for step in (regular, untuned):  # all move alike, as if they knew the posterior's shape
        step._whitening = shape._whitening
    return {
        f"regular, {update}": regular,
        f"untuned FlyMC, {update}": untuned,
        f"MAP-tuned FlyMC, {update}": tuned,
        "MAP-tuned FlyMC, default": pmb.FlyMC(model=model, rng=1),
    }


def none_dark(model: pm.Model) -> pmb.Bound:
    """So low a bound that all rows stay bright, which makes the sampler regular."""
    n_rows = len(model.rvs_to_values[model.observed_RVs[0]].data)
    return pmb.Bound(-1e4 + pt.zeros(n_rows), pt.constant(-1e4 * n_rows))


def run(step: pmb.FlyMC, n_draws: int) -> tuple[float, float, float]:
    """Return likelihoods and bright rows per iteration, and effective samples per 1000 of them."""
    point, draws, n_likelihood, n_bright = start(step), [], 0, 0.0
    tune = n_draws // 5
    for i in range(tune + n_draws):
        if i == tune:
            step.stop_tuning()
        point, [stats] = step.step(point)
        if i >= tune:
            draws.append(np.ravel(point["beta"]))
            n_likelihood += stats["n_likelihood"]
            n_bright += stats["n_bright"]
            if step.bound_options == "Bound(...)" and stats["n_gradient"]:
                # A regular sampler knows the gradient where it is; FlyMC reads it again, because
                # other rows are bright.
                n_likelihood -= step.n_rows
    ess = np.mean([float(az.ess(chain[None])) for chain in np.transpose(draws)])
    return n_likelihood / n_draws, n_bright / n_draws, 1000 * ess / n_draws


def start(step: pmb.FlyMC) -> dict[str, np.ndarray]:
    """Draw a point from the Gaussian approximation of the posterior."""
    flat, whitening = step.tall.layout.empty(), step._whitening
    noise = np.random.default_rng(3).normal(size=whitening.center.size)
    flat[whitening.active] = whitening.center + whitening.root @ noise
    return step.tall.layout.unflatten(flat)


COLUMNS = (
    "algorithm",
    "likelihoods / iteration",
    "bright rows",
    "ESS / 1000",
    "speed-up",
)


def print_table(experiment: Experiment) -> None:
    """Print lines of a table in Markdown."""
    print(f"\n{experiment.name}, {experiment.draws:,} iterations")
    if experiment.thin:
        print(f"the first two on every {experiment.every}th row, which counts {experiment.every}")
    print(f"\n| {' | '.join(COLUMNS)} |")
    print("| --- |" + " ---: |" * (len(COLUMNS) - 1))
    first = None
    for name, step in steps(experiment).items():
        each = 1 if name.startswith("MAP-tuned") else experiment.every
        n_likelihood, n_bright, ess = run(step, experiment.draws)
        per_likelihood = ess / (each * n_likelihood)
        first = first or per_likelihood
        print(
            f"| {name} | {each * n_likelihood:,.0f} | {each * n_bright:,.0f} | {ess:.1f} "
            f"| {per_likelihood / first:,.1f} |",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version of the first")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one regression")
    parser.add_argument("--digits", metavar="FILE", help="images and labels in an .npz file")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else list(EXPERIMENTS)
    for name in names[:1] if options.quick else names:
        print_table(EXPERIMENTS[name](options.digits, options.quick))


if __name__ == "__main__":
    main()
