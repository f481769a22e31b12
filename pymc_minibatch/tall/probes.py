"""Points at which claims about a model are decided: draws from its own prior.

A prior knows the scale of each variable; points N(0, 1) in the units of a variable do not.
"""

from typing import Any

import numpy as np
from pymc.model import Model
from pymc.pytensorf import compile as pymc_compile
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_minibatch.jit.compiled import IN_PYTHON
from pymc_minibatch.tall.layout import PointLayout

__all__ = ["prior_points"]

IMPROPER = ("FlatRV", "HalfFlatRV")
"""Priors without a scale; a value of either has an absolute value of any of these powers of ten."""

POWERS = -2.0, 2.0


def prior_points(model: Model, layout: PointLayout, n: int, seed: int = 0) -> np.ndarray:
    """Draw flat points of value variables from the prior of a model; potentials do not count.

    Returns
    -------
    ndarray, shape (n, D)
        In the order of the layout.

    Raises
    ------
    NotImplementedError
        If a prior cannot be drawn from, such as a ``CustomDist`` without ``random``.
    """
    rng = np.random.default_rng(seed)
    values = {model.rvs_to_values[rv].name: _transformed(model, rv) for rv in model.free_RVs}
    if not values:
        return np.empty((n, 0))
    improper = [rv for rv in model.free_RVs if type(rv.owner.op).__name__ in IMPROPER]
    inputs = {rv: rv.type() for rv in improper}
    stand_in: dict[Variable, Variable] = dict(inputs)
    graphs: Any = [values[name] for name in layout.names]
    graphs = graph_replace(graphs, stand_in, strict=False) if stand_in else graphs
    draw = pymc_compile(
        list(inputs.values()),
        graphs,
        mode=IN_PYTHON,
        on_unused_input="ignore",
        random_seed=seed,
    )
    sizes = [_shape_of(model, rv) for rv in improper]
    points = []
    for _ in range(n):
        given = [_any_scale(rng, rv, shape) for rv, shape in zip(improper, sizes, strict=True)]
        points.append(layout.flatten(dict(zip(layout.names, draw(*given), strict=True))))
    return np.array(points)


def _transformed(model: Model, rv: Any) -> Any:
    """Return the value variable of a draw: its transform, if it has one."""
    transform = model.rvs_to_transforms.get(rv)
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)


def _shape_of(model: Model, rv: Any) -> tuple[int, ...]:
    """Shape of a variable with a prior that cannot be drawn; no transform of these changes it."""
    name = model.rvs_to_values[rv].name
    return np.shape(model.initial_point()[name])


def _any_scale(rng: np.random.Generator, rv: Any, shape: tuple[int, ...]) -> np.ndarray:
    size = 10.0 ** rng.uniform(*POWERS, shape)
    if type(rv.owner.op).__name__ == "FlatRV":
        size = size * rng.choice([-1.0, 1.0], shape)
    return np.asarray(size, dtype=rv.type.dtype)
