"""Gradient steps per second of SGLD, SGHMC and SGNHT, beside those of blackjax.

Two models, the same data, batch and precision for both packages: a logistic regression with 20
coefficients and 100,000 rows, batches of 300; and a network from 20 inputs by 30 hidden units to 10
classes, 940 parameters, 10,000 rows, batches of 300. Both run one chain, blackjax in one compiled
loop, where XLA may use all cores. Each is compiled first, and of 15 runs the fastest counts.

Run ``python benchmarks/gradient_steps.py --blackjax PYTHON``, with an interpreter that has jax and
blackjax; it may be another one than that which has PyMC. With ``--large`` instead, a network with
10,000 parameters is sampled by this package alone, each step in a process of its own, whose memory
is measured too: what its largest resident set exceeds that before the step was made by.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

BATCH = 300
MODELS = {"logistic, D = 20": 5000, "network, D = 940": 1000}
"""Steps of a run."""

METHODS = ("SGLD", "SGHMC", "SGNHT")

INPUTS, UNITS, N_LARGE = 110, 82, 100_000
"""The large network has 110 · 82 + 82 + 82 · 10 + 10 = 9,932 parameters."""

LARGE = {
    "SGLD": {"step_size": 1e-7, "preconditioner": "rmsprop"},
    "SGHMC": {},
    "SGNHT": {},
    'SGFS, "diagonal"': {"variant": "diagonal"},
    'SGFS, "low rank"': {"variant": "low rank"},
}
DRAWS, STEPS_PER_DRAW = 10, 50

TOGETHER = {"SGHMC": 2, "SGHMC, ten with one batch": 11}
"""Updates of a call of blackjax's SGHMC, all with one batch. Its gradients are one fewer: only the
position is returned, which the last kick does not move, so that XLA drops its gradient."""


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, and classes as whole numbers."""
    rng = np.random.default_rng(1)
    n, classes = (100_000, 2) if name.startswith("logistic") else (10_000, 10)
    X = rng.normal(size=(n, 20))
    scores = X @ rng.normal(size=(20, classes))
    return X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def fastest(run: Callable[[], object], n_steps: int) -> float:
    """Return steps per second of the fastest of 15 runs, after one to compile."""
    run()
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return n_steps / min(seconds)


def ours() -> dict[str, float]:
    """Measure this package."""
    import pymc as pm

    import pymc_minibatch as pmb

    found = {}
    for name, n_steps in MODELS.items():
        X, y = data_of(name)
        with pm.Model() as model:
            if name.startswith("logistic"):
                pm.Bernoulli("y", logit_p=X @ pm.Normal("beta", shape=20), observed=y)
            else:
                hidden = pm.Normal("A", shape=(20, 30)), pm.Normal("a", shape=30)
                out = pm.Normal("B", shape=(30, 10)), pm.Normal("b", shape=10)
                units = pm.math.sigmoid(X @ hidden[0] + hidden[1])
                pm.Categorical("y", logit_p=units @ out[0] + out[1], observed=y)
        for method in METHODS:
            options = {"batch_size": BATCH, "steps_per_draw": n_steps, "control_variate": 0}
            options |= {"step_size": 1e-5, "preconditioner": "identity"}
            step = getattr(pmb, method)(model=model, rng=1, **options)
            point, _ = step.step(model.initial_point())
            step.stop_tuning()
            point, _ = step.step(point)
            found[f"{name}, {method}"] = fastest(lambda s=step, p=point: s.step(p), n_steps)
    return found


def large(name: str) -> dict[str, float]:
    """Measure seconds of a step and megabytes of one method, at 10,000 parameters."""
    import pymc as pm

    import pymc_minibatch as pmb
    from pymc_minibatch.steps import ascent

    ascent.CLIMB = 10  # of Adam; chains need not start at a mode here
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_LARGE, INPUTS))
    y = (X @ rng.normal(size=(INPUTS, 10)) + rng.gumbel(size=(N_LARGE, 10))).argmax(axis=1)
    with pm.Model() as model:
        hidden = pm.Normal("A", 0, 0.1, shape=(INPUTS, UNITS)), pm.Normal("a", shape=UNITS)
        out = pm.Normal("B", shape=(UNITS, 10)), pm.Normal("b", shape=10)
        units = pm.math.sigmoid(X @ hidden[0] + hidden[1])
        pm.Categorical("y", logit_p=units @ out[0] + out[1], observed=y)
    point = model.initial_point()
    model.compile_logp()(point)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = {"batch_size": BATCH, "steps_per_draw": STEPS_PER_DRAW} | LARGE[name]
    step = getattr(pmb, name.split(",")[0])(model=model, rng=1, **options)
    for _ in range(DRAWS):
        point, _ = step.step(point)
    step.stop_tuning()
    point, _ = step.step(point)
    speed = fastest(lambda: step.step(point), STEPS_PER_DRAW)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": 1 / speed, "megabytes": (after - before) / 1024}


def show_large() -> None:
    """Measure each method in a process of its own, and print a table."""
    print("method | ms per step | MB")
    for name in LARGE:
        command = [sys.executable, __file__, "--one", name]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(finished.stdout)
        print(f"{name} | {1e3 * found['seconds']:.2f} | {found['megabytes']:.0f}", flush=True)


def theirs() -> dict[str, float]:
    """Measure blackjax."""
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def log_prior(theta):
        return sum(-0.5 * jnp.sum(v**2) for v in theta.values())

    def logistic(theta, row):
        eta = row[0] @ theta["beta"]
        return row[1] * eta - jnp.logaddexp(0.0, eta)

    def network(theta, row):
        units = jax.nn.sigmoid(row[0] @ theta["A"] + theta["a"])
        return jax.nn.log_softmax(units @ theta["B"] + theta["b"])[row[1]]

    found = {}
    for name, n_steps in MODELS.items():
        X, y = (jnp.asarray(values) for values in data_of(name))
        is_logistic = name.startswith("logistic")
        shapes = {"A": (20, 30), "a": (30,), "B": (30, 10), "b": (10,)}
        theta = {k: jnp.zeros(s) for k, s in ({"beta": (20,)} if is_logistic else shapes).items()}
        row = logistic if is_logistic else network
        gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, row, len(X))
        for method in (*METHODS, *list(TOGETHER)[1:]):
            together = TOGETHER.get(method)
            make = getattr(blackjax, method.split(",")[0].lower())
            sampler = make(gradient, together) if together else make(gradient)
            n_calls = n_steps // (together - 1) if together else n_steps

            def loop(key, state, sampler=sampler, X=X, y=y, n_calls=n_calls):
                def one(state, key):
                    drawn, moved = jax.random.split(key)
                    rows = jax.random.randint(drawn, (BATCH,), 0, len(X))
                    return sampler.step(moved, state, (X[rows], y[rows]), 1e-5), None

                return jax.lax.scan(one, state, jax.random.split(key, n_calls))[0]

            key = jax.random.key(1)
            state = sampler.init(theta, key) if method == "SGNHT" else sampler.init(theta)
            compiled = jax.jit(loop)
            found[f"{name}, {method}"] = fastest(
                lambda f=compiled, s=state, k=key: jax.block_until_ready(f(k, s)), n_steps
            )
    return found


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blackjax", metavar="PYTHON", help="interpreter that has blackjax")
    parser.add_argument("--large", action="store_true", help="10,000 parameters, and memory")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=LARGE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.large:
        show_large()
        return
    if arguments.one:
        print(json.dumps(large(arguments.one)))
        return
    if arguments.theirs:
        print(json.dumps(theirs()))
        return
    found, other = ours(), {}
    if arguments.blackjax:
        command = [arguments.blackjax, __file__, "--theirs"]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        other = json.loads(finished.stdout)
    print("model, method | steps/s | blackjax | ratio", file=sys.stdout)
    if not other:
        other = dict.fromkeys(found, np.nan)
    for name, speed in other.items():
        own = next(found[n] for n in found if name.startswith(n))
        print(f"{name} | {own:,.0f} | {speed:,.0f} | {own / speed:.2f}")


if __name__ == "__main__":
    main()
