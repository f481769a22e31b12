"""The same model in other units: what a run makes of it may not depend on them.

Every variable with a prior of location and scale is declared in a unit of its own, θ = c θ', with
c a power of two, so that nothing is rounded. As a program it compares models of the gallery and the
zoo with themselves::

    python -m tests.units --exponent -9 --seconds 600
"""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm

import pymc_minibatch as pmb

TUNE, DRAWS = 15, 15
"""Draws that are compared. Longer chains part by rounding."""

MOST_DIFFERENT = 0.2
"""Share of the draws that may differ: whether rounding allows a move that holds what rows read is
seen anew for each, and chains that part in one meet again."""

LOCATED = {"Normal": 0.0, "Laplace": 0.0, "Cauchy": None, "StudentT": 0.0}
POSITIVE = ("HalfNormal", "HalfCauchy")
SCALES = {"Laplace": "b", "Cauchy": "beta", "HalfCauchy": "beta"}
LOCATIONS = {"Cauchy": "alpha"}
ORDERS = {
    "Normal": ("mu", "sigma"),
    "Laplace": ("mu", "b"),
    "Cauchy": ("alpha", "beta"),
    "StudentT": ("nu",),
    "HalfNormal": ("sigma",),
    "HalfCauchy": ("beta",),
}


type Draws = dict[str, np.ndarray]
"""Of each variable, on its unconstrained scale."""


def power_of_two(exponent: int) -> float:
    """Return the power of two next to 10 to the power of an exponent."""
    return float(2.0 ** round(exponent * np.log2(10.0)))


@contextmanager
def in_units(unit: float, units: dict[str, float]) -> Iterator[None]:
    """Declare variables in another unit, while in context, and note which."""
    originals = {name: getattr(pm, name) for name in ORDERS}

    def declared(kind: str) -> Any:
        original = originals[kind]

        class Scaled:
            """Declares variables."""

            dist = staticmethod(original.dist)
            rv_op, rv_type = original.rv_op, getattr(original, "rv_type", None)

            def __new__(cls, name: str, *args: Any, **kwargs: Any) -> Any:
                fixed = {"observed", "transform", "default_transform", "initval", "total_size"}
                if fixed & set(kwargs):
                    return original(name, *args, **kwargs)
                kwargs |= dict(zip(ORDERS[kind], args, strict=False))
                if len(args) > len(ORDERS[kind]):
                    return original(name, *args, **kwargs)
                scale = SCALES.get(kind, "sigma")
                if "tau" in kwargs or "lam" in kwargs:
                    return original(name, **kwargs)
                kwargs[scale] = kwargs.get(scale, 1.0) / unit
                if kind in LOCATED:
                    location = LOCATIONS.get(kind, "mu")
                    kwargs[location] = kwargs.get(location, 0.0) / unit
                units[name] = unit
                return unit * original(name, **kwargs)

        return Scaled

    with mock.patch.multiple(pm, **{kind: declared(kind) for kind in ORDERS}):
        yield


def run(build: Callable[[], pm.Model], unit: float = 1.0) -> tuple[str, Draws]:
    """Return how a model is sampled, or why it is not, and some draws, in the units it is in."""
    units: dict[str, float] = {}
    with in_units(unit, units):
        model = build()
    try:
        step = pmb.MinibatchMH(model=model, rng=1)
    except (pmb.NotTallError, ValueError) as refusal:
        return f"{type(refusal).__name__}: {refusal}", {}
    point, draws = model.initial_point(), []
    for i in range(TUNE + DRAWS):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        draws.append(point)
    values = {}
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv].name
        chain = np.array([draw[value] for draw in draws])
        if value != rv.name and rv.name in units:  # its logarithm
            chain = chain + np.log(units[rv.name])
        elif rv.name in units:
            chain = chain * units[rv.name]
        values[rv.name] = chain
    return step.choice, values


def difference(build: Callable[[], pm.Model], unit: float) -> str:
    """Say how a run in another unit differs; nothing if it does not."""
    return differ(run(build), run(build, unit))


def differ(first: tuple[str, Draws], second: tuple[str, Draws]) -> str:
    """Say how two runs differ; nothing if they do not."""
    (choice, draws), (other, others) = first, second
    if choice != other:
        return f"{choice!r} becomes {other!r}"
    for name, chain in draws.items():
        away = np.abs(chain - others[name])
        size = np.abs(chain).max(initial=1e-12)
        differs = np.any(~(away <= 1e-5 * size).reshape(len(away), -1), axis=1)
        if differs.mean() > MOST_DIFFERENT:
            return f"{differs.sum()} of {differs.size} draws of {name} differ"
    return ""


def main() -> None:
    """Compare models with themselves in other units."""
    sys.path.insert(0, str(Path(__file__).parent))
    from gallery import GALLERY
    from zoo import ZOO

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--exponent", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so many")
    parser.add_argument("--models", nargs="*", help="names; all if not given")
    options = parser.parse_args()
    for name in ("pymc", "pymc_minibatch", "pymc.minibatch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    builds = {f"zoo {name}": case.build for name, case in ZOO.items()}
    builds |= {f"gallery {name}": build for name, build in GALLERY.items()}
    started, counts = time.perf_counter(), Counter[str]()
    for name, build in builds.items():
        if time.perf_counter() - started > options.seconds:
            break
        if options.models and not any(part in name for part in options.models):
            continue
        try:
            found = difference(build, power_of_two(options.exponent))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        counts["differs" if found else "same"] += 1
        print(f"{name}: {found[:400] or 'the same'}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
