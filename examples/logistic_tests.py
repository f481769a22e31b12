"""Logistic regression of Seita et al. (2017), section 6.2: tables 2 and 3, figures 3 to 6.

An Efficient Minibatch Acceptance Test for Metropolis-Hastings. Ones against sevens from 784 pixels,
with a flat prior, sampled by random walks with every acceptance test at the settings of table 3:

- ``13k``: 13,000 digits at temperature 100, steps of standard deviation 0.05 (table 2, the first
  panel of figure 3, figure 5);
- ``100k``: 100,000 digits at temperature 100, steps of 0.01 (table 2, the second panel of figure 3,
  figure 4);
- ``steps``: three step sizes on the 100,000 digits (figure 6);
- ``schedule``: temperature 100, then 1 after 400 draws, on the 13,000 digits (the third panel of
  figure 3).

A quarter of the digits is held out; accuracy is theirs, with the mean of the draws so far as
coefficients. The others are rows as they are, and as many more are made of them by small random
shifts, rotations and deformations as are wanted. Chains start at 0, or where ``--warm`` draws of
MinibatchMH have brought them.

Run ``python examples/logistic_tests.py [--quick] [--only NAME ...] [--tests NAME ...] [--trials N]
[--draws N] [--warm N] [--digits FILE] [--strength X] [--figures FOLDER]``. FILE is an ``.npz`` with
`images` of shape (n, 784) and `labels`; without, scikit-learn downloads MNIST. ``--quick`` takes
the first experiment with 4,000 rows at a temperature that leaves the posterior as wide, and 200
draws with two of the tests.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from digits import deformed_rows, load_digits
from matplotlib import pyplot as plt

import pymc_minibatch as pmb

SEED = 2017
ONE, SEVEN = 1, 7
FIXED_BATCHES = ("Barker, uncorrected", "naive")
STEP_SIZES = (0.005, 0.01, 0.05)
HOT_DRAWS = 400


@dataclass(frozen=True)
class Experiment:
    """Settings of table 3, and the mean rows for a decision that the paper reports."""

    n_rows: int
    temperature: float
    step_sd: float
    draws: int
    trials: int
    error_bound_c: float
    error_bound_nc: float
    paper: float


EXPERIMENTS = {
    "13k": Experiment(13_000, 100.0, 0.05, 5000, 10, 0.1, 0.05, 125.4),
    "100k": Experiment(100_000, 100.0, 0.01, 3000, 5, 0.2, 0.1, 216.5),
}


@dataclass
class Trials:
    """Chains with one acceptance test: sample stats, and accuracy after each draw."""

    stats: xr.DataTree
    accuracy: np.ndarray
    last: np.ndarray


def tests(experiment: Experiment) -> dict[str, tuple]:
    """Each acceptance test, and the rows of its first batch."""
    return {
        "MinibatchMH": (pmb.CorrectedBarker(test_error=None), 100),
        "AustereMH(nc)": (pmb.Austere(experiment.error_bound_nc, variant="nc"), None),
        "AustereMH(c)": (pmb.Austere(experiment.error_bound_c), None),
        "MHSubLhd": (pmb.SubLhd(p=2.0, gamma=2.0, delta=0.01), 100),
        "Barker, uncorrected": (pmb.Barker(), 100),
        "naive": (pmb.Naive(), 100),
    }


# --- Data and model ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where digits come from, and how strongly they are deformed to make more."""

    path: str | None
    strength: float


def digits(source: Source, n_rows: int) -> tuple[np.ndarray, ...]:
    """Return pixels and labels (is it a seven?) to learn from, and those held out."""
    rng = np.random.default_rng(SEED)
    images, labels = load_digits(source.path)
    chosen = rng.permutation(np.flatnonzero(np.isin(labels, [ONE, SEVEN])))
    held_out, kept = np.split(chosen, [chosen.size // 4])
    rows = kept[np.arange(n_rows) % kept.size]
    as_they_are, more = np.split(rows, [kept.size])
    made = deformed_rows(images[more], rng, source.strength)
    pixels = np.concatenate([images[as_they_are] / 255, made]) if more.size else images[rows] / 255
    return pixels, labels[rows] == SEVEN, images[held_out] / 255, labels[held_out] == SEVEN


def build_model(pixels: np.ndarray, is_seven: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=pixels.shape[1])
        pm.Bernoulli("y", logit_p=pm.Data("X", pixels) @ beta, observed=is_seven.astype(int))
    return model


# --- Sampling ---------------------------------------------------------------------------------


def run(
    model: pm.Model, experiment: Experiment, test: tuple, starts: np.ndarray | None = None
) -> xr.DataTree:
    """Sample with one acceptance test; a trial is a chain."""
    acceptance, batch_size = test
    if starts is None:
        starts = np.zeros((experiment.trials, model.initial_point()["beta"].size))
    with model:
        step = pmb.MinibatchMH(
            acceptance=acceptance,
            proposal=pmb.RandomWalk(cov=experiment.step_sd**2, adapt=False),
            batch_size=batch_size,
            temperature=experiment.temperature,
            control_variate=0,
        )
        return pm.sample(
            draws=experiment.draws,
            tune=0,
            chains=experiment.trials,
            cores=min(experiment.trials, 2),
            step=step,
            random_seed=SEED,
            initvals=[{"beta": start} for start in starts],
            progressbar=False,
            compute_convergence_checks=False,
        )


def warm_up(model: pm.Model, experiment: Experiment, draws: int) -> np.ndarray | None:
    """Return where MinibatchMH is after so many draws of each trial."""
    if not draws:
        return None
    test = tests(experiment)["MinibatchMH"]
    return run(model, replace(experiment, draws=draws), test).posterior["beta"].values[:, -1]


def accuracy(beta: np.ndarray, pixels: np.ndarray, is_seven: np.ndarray) -> np.ndarray:
    """Return the share of right predictions by the mean of the draws so far, (chains, draws)."""
    counts = np.arange(1, beta.shape[1] + 1)[:, None]
    means = [np.cumsum(chain, axis=0) / counts for chain in beta]
    return np.array([((mean @ pixels.T > 0) == is_seven).mean(axis=1) for mean in means])


def summarised(result: xr.DataTree, held_out: tuple[np.ndarray, ...]) -> Trials:
    """Keep what the figures need, and not every draw of 784 coefficients."""
    beta = result.posterior["beta"].values
    first = result.posterior["beta"][..., :1].to_dataset(name="beta")
    kept = {"posterior": first, "sample_stats": result.sample_stats.to_dataset()}
    stats = xr.DataTree.from_dict(kept)
    return Trials(stats, accuracy(beta, *held_out), beta[:, -1].copy())


# --- Tables and figures -----------------------------------------------------------------------


def compare_tests(
    name: str,
    experiment: Experiment,
    source: Source,
    chosen: Iterable[str],
    folder: Path,
    warm: int = 0,
) -> None:
    """Print table 2 and draw figures 3 and 4 (or 5)."""
    pixels, is_seven, *held_out = digits(source, experiment.n_rows)
    model = build_model(pixels, is_seven)
    print(
        f"\n{name}: {experiment.n_rows:,} rows, temperature {experiment.temperature:g}, "
        f"{experiment.trials} trials of {experiment.draws:,} draws; {len(held_out[1])} held out; "
        f"the paper's MinibatchMH: {experiment.paper}"
    )
    print("| test | rows for a decision | × MinibatchMH | scanned besides | accepted | accuracy |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    trials: dict[str, Trials] = {}
    starts = warm_up(model, experiment, warm)
    for test, settings in tests(experiment).items():
        if test in chosen:
            trials[test] = summarised(run(model, experiment, settings, starts), held_out)
            print(table_line(test, trials[test], trials["MinibatchMH"]), flush=True)
    growing = [test for test in trials if test not in FIXED_BATCHES]
    first = {test: trials[test].stats.isel(chain=[0]) for test in growing}
    save(pmb.plots.batch_sizes(first), folder / f"logistic_{name}_rows.png")
    runs = {test: done.stats for test, done in trials.items()}
    curves = {test: 100 * done.accuracy for test, done in trials.items()}
    figure = pmb.plots.accuracy_by_rows(runs, curves, label="accuracy on digits held out (%)")
    save(figure, folder / f"logistic_{name}_accuracy.png")


def table_line(test: str, trials: Trials, first: Trials) -> str:
    stats = trials.stats.sample_stats
    rows = stats.batch_size.mean("draw").values
    spread = f" ± {rows.std(ddof=1):,.1f}" if rows.size > 1 else ""
    factor = rows.mean() / first.stats.sample_stats.batch_size.mean().item()
    return (
        f"| {test} | {rows.mean():,.1f}{spread} | {factor:.1f} "
        f"| {stats.n_scanned.mean().item() / 2:,.0f} | {stats.acceptance_rate.mean().item():.2f} "
        f"| {100 * trials.accuracy[:, -1].mean():.1f} % |"
    )


def compare_step_sizes(experiment: Experiment, source: Source, folder: Path) -> None:
    """Draw figure 6."""
    pixels, is_seven, *held_out = digits(source, experiment.n_rows)
    model = build_model(pixels, is_seven)
    print(f"\nsteps: {experiment.n_rows:,} rows, one trial of {experiment.draws:,} draws")
    print("| step size | rows for a decision | accepted | accuracy |")
    print("| ---: | ---: | ---: | ---: |")
    runs = {}
    for step_sd in STEP_SIZES:
        settings = replace(experiment, step_sd=step_sd, trials=1)
        trial = summarised(run(model, settings, tests(settings)["MinibatchMH"]), held_out)
        stats = trial.stats.sample_stats
        print(
            f"| {step_sd:g} | {stats.batch_size.mean().item():,.1f} "
            f"| {stats.acceptance_rate.mean().item():.2f} | {100 * trial.accuracy[0, -1]:.1f} % |",
            flush=True,
        )
        runs[f"steps of {step_sd:g}"] = trial.stats
    save(pmb.plots.batch_sizes(runs), folder / "logistic_steps.png")


def compare_schedules(experiment: Experiment, source: Source, folder: Path) -> None:
    """Draw the third panel of figure 3: mean and standard deviation over trials.

    Steps are as much shorter as the temperature is lower, so that batches need not be larger.
    """
    pixels, is_seven, *held_out = digits(source, experiment.n_rows)
    model = build_model(pixels, is_seven)
    test = tests(experiment)["MinibatchMH"]
    n_draws = experiment.draws
    cold = replace(experiment, temperature=1.0, step_sd=experiment.step_sd / experiment.temperature)
    print(f"\nschedule: {experiment.n_rows:,} rows, {experiment.trials} trials of {n_draws} draws")

    first = run(model, replace(experiment, draws=HOT_DRAWS), test)
    hot = first.posterior["beta"].values
    then = run(model, replace(cold, draws=n_draws - HOT_DRAWS), test, starts=hot[:, -1])
    switched = np.concatenate([hot, then.posterior["beta"].values], axis=1)
    only_cold = run(model, cold, test).posterior["beta"].values

    names = {
        f"temperature {experiment.temperature:g}, then 1": accuracy(switched, *held_out),
        "temperature 1": accuracy(only_cold, *held_out),
    }
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for color, (name, values) in zip(pmb.plots.COLORS, names.items(), strict=False):
        mean, sd = 100 * values.mean(axis=0), 100 * values.std(axis=0)
        draw = np.arange(1, mean.size + 1)
        axes.plot(draw, mean, color=color, label=name)
        axes.fill_between(draw, mean - sd, mean + sd, color=color, alpha=0.25, linewidth=0)
        at = [HOT_DRAWS - 1, -1]
        print(
            f"{name}: {mean[at[0]]:.1f} ± {sd[at[0]]:.1f} % after {HOT_DRAWS} draws, "
            f"{mean[-1]:.1f} ± {sd[-1]:.1f} % at the end"
        )
    axes.axvline(HOT_DRAWS, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("draw")
    axes.set_ylabel("accuracy on digits held out (%)")
    axes.legend()
    save(figure, folder / "logistic_schedule.png")
    rows = then.sample_stats.batch_size.mean().item()
    print(
        f"rows for a decision: {first.sample_stats.batch_size.mean().item():,.1f} hot, "
        f"{rows:,.1f} cold"
    )


def save(figure, path: Path) -> None:
    figure.savefig(path)
    plt.close("all")
    print(f"figure: {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version of the first")
    parser.add_argument("--only", choices=[*EXPERIMENTS, "steps", "schedule"], nargs="+")
    names = list(tests(EXPERIMENTS["13k"]))
    parser.add_argument("--tests", choices=names, nargs="+", default=names)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--warm", type=int, default=0, help="draws of MinibatchMH that come first")
    parser.add_argument("--digits", metavar="FILE", help="images and labels in an .npz file")
    parser.add_argument("--strength", type=float, default=0.33, help="of the deformations")
    parser.add_argument("--figures", metavar="FOLDER", type=Path, default=Path())
    options = parser.parse_args(arguments)
    given = {key: getattr(options, key) for key in ("draws", "trials") if getattr(options, key)}
    settings = {name: replace(each, **given) for name, each in EXPERIMENTS.items()}
    chosen = {"MinibatchMH", *options.tests}  # the others are relative to it
    source = Source(options.digits, options.strength)
    if options.quick:
        small = replace(EXPERIMENTS["13k"], n_rows=4000, temperature=31.0, draws=200, trials=1)
        few = ("MinibatchMH", "AustereMH(nc)")
        compare_tests("quick", small, source, few, options.figures)
        return
    for name in options.only or [*EXPERIMENTS, "steps", "schedule"]:
        if name == "steps":
            compare_step_sizes(settings["100k"], source, options.figures)
        elif name == "schedule":
            compare_schedules(
                replace(settings["13k"], draws=options.draws or 1000), source, options.figures
            )
        else:
            compare_tests(name, settings[name], source, chosen, options.figures, options.warm)


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
