"""Missing values of a response: they say nothing of the parameters, and are drawn given these.

PyMC makes a free variable of the missing values of an observed one. If nothing else reads it, its
density given all others integrates to one. So the posterior of the others is that of the model
without it, and a draw of it given the others completes a draw of all.

References
----------
Rubin (1976), Inference and missing data. Little and Rubin (2019), Statistical Analysis with Missing
Data, section 6.2.
"""

import math
from collections.abc import Mapping
from types import MethodType
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.exceptions import SamplingError
from pymc.model import Model
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import random_generator_type

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.tall.probes import IMPROPER
from pymc_minibatch.tall.some_rows import taken_first

__all__ = [
    "SUFFIX",
    "MissingResponses",
    "completed_sizes",
    "is_of_pymc",
    "missing_responses",
    "without_missing_responses",
]

SUFFIX = "_unobserved"
"""What PyMC appends to the name of a variable for its missing values."""


def missing_responses(model: Model) -> list[Any]:
    """List the variables of missing values that no other variable and no potential reads."""
    observed = {str(var.name) for var in model.observed_RVs}
    imputed = [rv for rv in model.free_RVs if _is_imputed(rv, observed)]
    if not imputed:
        return []
    inputs = [each for rv in model.basic_RVs for each in rv.owner.inputs]
    read = set(ancestors([*inputs, *model.potentials]))
    return [rv for rv in imputed if rv not in read]


def without_missing_responses(model: Model) -> Model:
    """Return a model without missing values of responses, of the same variables otherwise.

    Deterministics that read them are left out, too.
    """
    left = set(missing_responses(model))
    if not left:
        return model
    left.update(var for var in model.deterministics if left & set(ancestors([var])))
    left.update([model.rvs_to_values[rv] for rv in model.free_RVs if rv in left])
    names = {var.name for var in left}
    reduced = object.__new__(type(model))
    for name, value in model.__dict__.items():
        is_bound = getattr(value, "__self__", None) is model
        reduced.__dict__[name] = MethodType(value.__func__, reduced) if is_bound else value
    for name in ("free_RVs", "deterministics"):
        of_all = getattr(model, name)
        setattr(reduced, name, type(of_all)([var for var in of_all if var not in left]))
    for name in (
        "rvs_to_values",
        "rvs_to_transforms",
        "rvs_to_initial_values",
        "values_to_rvs",
        "named_vars",
        "named_vars_to_dims",
    ):
        of_all = getattr(model, name)
        kept = {key: each for key, each in of_all.items() if key not in left and key not in names}
        setattr(reduced, name, type(of_all)(kept))
    return reduced


def completed_sizes(model: Model) -> dict[str, int]:
    """Count the values of Deterministics that read missing responses, as a whole response does."""
    left = set(missing_responses(model))
    computed = [var for var in model.deterministics if left and left & set(ancestors([var]))]
    known = [var for var in computed if None not in var.type.shape]
    return {str(var.name): math.prod(var.type.shape) for var in known}


class MissingResponses:
    """Draws missing values of responses given all other variables.

    Parameters
    ----------
    model
        The model with them.

    Attributes
    ----------
    names
        Their names in a point.
    """

    def __init__(self, model: Model) -> None:
        responses = missing_responses(model)
        others = [rv for rv in model.free_RVs if rv not in responses]
        values: list[Any] = [model.rvs_to_values[rv] for rv in others]
        self.names = [str(model.rvs_to_values[rv].name) for rv in responses]
        self._read = [str(value.name) for value in values]
        first = rng = random_generator_type("rng")
        drawn = []
        for rv in responses:
            rng, value = _drawn(rv, model, rng)
            drawn.append(value)
        self._draw = compile_all([first, *values], [rng, *drawn])

    def __call__(
        self, rng: np.random.Generator, point: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Draw them at a point; the generator moves on.

        Raises
        ------
        SamplingError
            If parameters of a row are out of range there.
        """
        try:
            found: list[Any] = self._draw(rng, *(point[name] for name in self._read))
        except ValueError as error:
            raise SamplingError(
                f"{' and '.join(self.names)} cannot be drawn, because a row without a response has "
                f"parameters that its distribution does not allow ({error}), although the other "
                "rows do. Remove the rows without a response before you build the model, or "
                "restrict the parameters."
            ) from error
        rng.bit_generator.state = found[0].bit_generator.state
        return dict(zip(self.names, found[1:], strict=True))


def _drawn(rv: Any, model: Model, rng: Any) -> tuple[Any, Any]:
    """Return a generator after a draw, and the draw, as a point has it."""
    size, *parameters = rv.owner.inputs[1:]
    parameters = taken_first(model.replace_rvs_by_values(parameters))
    if None not in rv.type.shape:
        size = pt.as_tensor(np.array(rv.type.shape, dtype=np.int64))
    inputs = rng, size, *parameters
    after, value = rv.owner.op.make_node(*inputs).outputs
    transform = model.rvs_to_transforms[rv]
    return after, value if transform is None else transform.forward(value, *inputs)


def _is_imputed(rv: Any, observed: set[str]) -> bool:
    """Whether it stands for missing values, drawn one by one."""
    name = str(rv.name)
    is_missing = name.endswith(SUFFIX) and f"{name.removesuffix(SUFFIX)}_observed" in observed
    op = rv.owner.op
    is_one_by_one = isinstance(op, RandomVariable) and op.ndim_supp == 0
    is_normalized = is_of_pymc(op) and type(op).__name__ not in IMPROPER
    return is_missing and is_one_by_one and is_normalized


def is_of_pymc(op: Any) -> bool:
    """Whether an operation is PyMC's or PyTensor's own, with a density that lacks no constant."""
    is_own = type(op).__module__.split(".")[0] in ("pymc", "pytensor")
    return is_own and not isinstance(op, CustomDistRV | CustomSymbolicDistRV)
