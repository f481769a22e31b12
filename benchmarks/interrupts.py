"""Interrupt each step at random moments: no process may die, and the step stays usable.

    python -m benchmarks.interrupts [--number 1000] [--only FlyMC] [--phase tuning]

For each step and phase a child process is interrupted so many times. What is printed is how many
interrupts were raised, how long the longest of them took to be answered, and how the child ended.

setup
    The step is made; an alarm is raised at a random moment of the time that this takes.
tuning, sampling
    Draws one after the other; an alarm is raised after some µs or ms, uniformly in the logarithm.
    At the end the step starts again, and must draw what a step draws that was never interrupted.
cores 1, cores 2
    ``pm.sample`` in this process or two others; Ctrl-C is sent to all of them after up to a second.
    It must return draws, or end with KeyboardInterrupt if there are none yet.
"""

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

import pymc_minibatch as pmb

PHASES = ("setup", "tuning", "sampling", "cores 1", "cores 2")
N_ROWS = 20_000
EARLIEST, LATEST = 2e-5, 2e-2
"""Seconds until an alarm, while draws are made one after the other."""
TUNE, COMPARED = 60, 30
"""Draws of the runs that are compared at the end."""
LONGEST = 540
"""Seconds after which a child ends, however few its interrupts were."""


def plain() -> pm.Model:
    """Build a logistic regression."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 3))
    y = rng.binomial(1, 1 / (1 + np.exp(-X @ [0.5, -1.0, 0.3])))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    return model


def grouped() -> pm.Model:
    """Build one with an effect for each of 50 groups."""
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, 50, N_ROWS), rng.normal(size=N_ROWS)
    y = rng.binomial(1, 1 / (1 + np.exp(-(x + rng.normal(0, 0.7, 50)[group]))))
    with pm.Model() as model:
        sd, b = pm.HalfNormal("sd"), pm.Normal("b")
        a = pm.Normal("a", 0, sd, shape=50)
        pm.Bernoulli("y", logit_p=a[group] + b * x, observed=y)
    return model


STEPS: dict[str, tuple[Callable[[], pm.Model], Callable[..., Any]]] = {
    "MinibatchMH": (plain, pmb.MinibatchMH),
    "MinibatchMH, long draws": (
        plain,
        partial(pmb.MinibatchMH, control_variate=0, batch_size=N_ROWS // 2, steps_per_draw=2000),
    ),
    "MinibatchMH, effects": (grouped, pmb.MinibatchMH),
    "FlyMC": (plain, pmb.FlyMC),
    "FlyMC, effects": (grouped, pmb.FlyMC),
    "SGFS": (plain, pmb.SGFS),
    "SGLD": (plain, pmb.SGLD),
    "SGHMC": (plain, pmb.SGHMC),
    "SGNHT": (plain, pmb.SGNHT),
}


class Interrupts:
    """Raises KeyboardInterrupt in the main thread after a given time, and counts."""

    def __init__(self) -> None:
        self.raised, self.slowest, self.due = 0, 0.0, 0.0
        signal.signal(signal.SIGALRM, self._handler)

    def _handler(self, number: int, frame: Any) -> None:
        self.raised += 1
        self.slowest = max(self.slowest, time.perf_counter() - self.due)
        raise KeyboardInterrupt

    def after(self, seconds: float) -> None:
        """Set the alarm."""
        self.due = time.perf_counter() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)


def interrupt_setup(
    model: pm.Model, make: Callable[..., Any], number: int, end: float
) -> Interrupts:
    """Interrupt making a step."""
    make(model=model)
    started = time.perf_counter()
    make(model=model)
    takes, interrupts = time.perf_counter() - started, Interrupts()
    when = np.random.default_rng(3)
    while interrupts.raised < number and time.perf_counter() < end:
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.after(when.uniform(0.01, 1) * takes)
            make(model=model)
            signal.setitimer(signal.ITIMER_REAL, 0)
    compare(make(model=model), make(model=model), model)
    return interrupts


def interrupt_draws(
    model: pm.Model, make: Callable[..., Any], number: int, end: float, tune: int
) -> Interrupts:
    """Interrupt draws, which go on from the last one that was made."""
    step, interrupts = make(model=model), Interrupts()
    start, when = model.initial_point(), np.random.default_rng(4)
    step.setup_chain(np.random.default_rng(5), TUNE, 1000)
    point = start
    for _ in range(TUNE):
        point, _ = step.step(point)
    if not tune:
        step.stop_tuning()
    while interrupts.raised < number and time.perf_counter() < end:
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.after(float(np.exp(when.uniform(np.log(EARLIEST), np.log(LATEST)))))
            while True:
                point, _ = step.step(point)
    compare(step, make(model=model), model)
    return interrupts


def compare(used: Any, fresh: Any, model: pm.Model) -> None:
    """Let both draw from the same start with the same random numbers."""
    assert all(
        np.array_equal(a, b) for a, b in zip(*(draws(s, model) for s in (used, fresh)), strict=True)
    ), "DIFFERENT DRAWS"


def draws(step: Any, model: pm.Model) -> list[np.ndarray]:
    """Tune and draw."""
    step.setup_chain(np.random.default_rng(6), TUNE, COMPARED)
    point, found = model.initial_point(), []
    for i in range(TUNE + COMPARED):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        found.append(step.tall.layout.flatten(point))
    return found


def interrupt_sample(
    model: pm.Model, make: Callable[..., Any], number: int, end: float, cores: int
) -> tuple[int, float, Counter[str]]:
    """Send Ctrl-C to all processes of a group while ``pm.sample`` runs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step, when, ends, slowest = make(model=model), np.random.default_rng(7), Counter[str](), 0.0
    sent = [0.0]

    def send() -> None:
        sent[0] = time.perf_counter()
        os.killpg(0, signal.SIGINT)

    while ends.total() < number and time.perf_counter() < end:
        timer = threading.Timer(when.uniform(0.05, 1 if cores == 1 else 2), send)
        timer.start()
        try:
            idata = pm.sample(
                1_000_000 if cores == 1 else 100_000,
                tune=50,
                step=step,
                chains=cores,
                cores=cores,
                model=model,
                progressbar=False,
                compute_convergence_checks=False,
                random_seed=ends.total(),
            )
            ends["draws" if idata.posterior.sizes["draw"] else "EMPTY"] += 1
        except KeyboardInterrupt:
            ends["no draws yet"] += 1
        except Exception as error:
            ends[repr(error)] += 1
        slowest = max(slowest, time.perf_counter() - sent[0])
        timer.join()
    return ends.total(), slowest, ends


def child(name: str, phase: str, number: int) -> None:
    """Be interrupted, and say how it went."""
    logging.disable(logging.CRITICAL)
    build, make = STEPS[name]
    model, end = build(), time.perf_counter() + LONGEST
    if phase.startswith("cores"):
        n, slowest, ends = interrupt_sample(model, make, number, end, int(phase[-1]))
        print(f"{n}|{slowest:.2f}|{', '.join(f'{k}: {v}' for k, v in ends.items())}")
        return
    if phase == "setup":
        done = interrupt_setup(model, make, number, end)
    else:
        done = interrupt_draws(model, make, number, end, phase == "tuning")
    print(f"{done.raised}|{done.slowest:.2f}|same draws afterwards")


def main() -> None:
    """Print a line for each step and phase."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--only", choices=list(STEPS))
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args.only, args.phase, args.number)
        return
    print(
        "| step | phase | interrupts | slowest answer, s | end |\n| --- | --- | --- | --- | --- |"
    )
    for name in [args.only] if args.only else STEPS:
        for phase in [args.phase] if args.phase else PHASES:
            command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", __spec__.name]
            command += ["--child", "--only", name, "--phase", phase, "--number", str(args.number)]
            ran = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
            said = ran.stdout.strip().splitlines()[-1:] if ran.returncode == 0 else []
            n, slowest, end = said[0].split("|") if said else ("?", "?", died(ran))
            print(f"| {name} | {phase} | {n} | {slowest} | {end} |", flush=True)


def died(ran: "subprocess.CompletedProcess[str]") -> str:
    """Say how a process has ended."""
    last = (ran.stderr.strip().splitlines() or [""])[-1]
    return f"DIED with {ran.returncode}: {last[:100]}"


if __name__ == "__main__":
    main()
