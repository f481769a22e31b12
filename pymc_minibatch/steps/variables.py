"""Which variables a step moves, and where they are in a flat point."""

from collections.abc import Sequence

import numpy as np
from pymc.model import Model
from pymc.util import get_var_name
from pymc.vartypes import continuous_types
from pytensor.graph.basic import Variable

from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.missing_responses import missing_responses

__all__ = ["continuous_value_vars", "positions"]


def continuous_value_vars(
    vars: Variable | str | Sequence[Variable | str] | None, model: Model, step: str
) -> list[Variable]:
    """Resolve what the user named to continuous value variables of the model.

    Missing values of responses are left out: each step draws them given all else.
    """
    drawn = {model.rvs_to_values[rv] for rv in missing_responses(model)}
    if vars is None:
        chosen = list(model.value_vars)
    else:
        known = {rv.name: model.rvs_to_values[rv] for rv in model.free_RVs}
        known |= {value.name: value for value in model.value_vars}
        listed = [vars] if isinstance(vars, Variable | str) else list(vars)
        names = [var if isinstance(var, str) else get_var_name(var) for var in listed]
        for name in names:
            if name not in known:
                raise ValueError(
                    f"{name} is not a free variable of the model, whose free variables are "
                    f"{[rv.name for rv in model.free_RVs]}. Name some of these in vars."
                )
        chosen = [known[name] for name in names]
        if twice := [var.name for i, var in enumerate(chosen) if var in chosen[:i]]:
            raise ValueError(f"vars names {twice[0]} twice. Name each variable once.")
    if chosen and drawn.issuperset(chosen):
        raise ValueError(
            f"{chosen[0].name} stands for missing values of a response, which each step draws "
            f"beside other variables, and {step} would have no others to move. Name some in vars."
        )
    chosen = [var for var in chosen if var not in drawn]
    for var in chosen:
        if var.dtype not in continuous_types:
            raise ValueError(
                f"{var.name} is discrete, and {step} moves continuous variables only. Name "
                "those in vars, and let another step, such as pm.Metropolis, sample the rest."
            )
    return chosen


def positions(tall: TallModel, names: Sequence[str]) -> np.ndarray:
    """Find the sampled variables in the flat point."""
    slices = tall.layout.slices
    found = [np.arange(slices[name].start, slices[name].stop) for name in names]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
