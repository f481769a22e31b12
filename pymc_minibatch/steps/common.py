"""What steps share: checked arguments, and how they are pickled and shown."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pymc.model import Model
from pymc.step_methods.compound import BlockedStep
from pymc.util import get_var_name
from pymc.vartypes import continuous_types
from pytensor.graph.basic import Variable
from rich.progress import ProgressColumn, TextColumn
from rich.table import Column

from pymc_minibatch.tall import TallModel

__all__ = [
    "TallStep",
    "checked_count",
    "continuous_value_vars",
    "positions",
    "row_deterministics_warning",
]


class TallStep(BlockedStep):
    """A step on the rows of a model.

    Attributes
    ----------
    shown
        The stats in the progress bar: for each the header of its column and its format.
    """

    shown: ClassVar[dict[str, tuple[str, str]]]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is rebuilt in the process of a chain: the cached properties."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name != "_BlockedStep__newargs"
            and not isinstance(getattr(type(self), name, None), cached_property)
        }

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leave out what was passed as `data`, which is pickled by reference, within `tall`."""
        args, kwargs = super().__getnewargs_ex__()
        return args, {"model": kwargs["model"], "blocked": kwargs["blocked"]}

    @classmethod
    def _progressbar_config(
        cls, n_chains: int = 1
    ) -> tuple[list[ProgressColumn], dict[str, list[Any]]]:
        columns: list[ProgressColumn] = [
            TextColumn(f"{{task.fields[{stat}]:{spec}}}", table_column=Column(header, ratio=1))
            for stat, (header, spec) in cls.shown.items()
        ]
        return columns, {stat: [0.0] * n_chains for stat in cls.shown}

    @classmethod
    def _make_progressbar_update_functions(cls) -> Any:
        def update_stats(step_stats: dict[str, Any]) -> dict[str, Any]:
            return {stat: step_stats[stat] for stat in cls.shown}

        return (update_stats,)


def continuous_value_vars(
    vars: Variable | str | Sequence[Variable | str] | None, model: Model, step: str
) -> list[Variable]:
    """Resolve what the user named to continuous value variables of the model."""
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


def checked_count(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return a whole number in a range; `most` is the number of rows."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and least <= value and (most is None or value <= most):
        return int(value)
    upper = "" if most is None else f" and at most {most}, the number of rows"
    raise ValueError(f"{name} must be a whole number, at least {least}{upper}; got {value!r}.")


def row_deterministics_warning(tall: TallModel) -> str | None:
    """Warn of Deterministics that make every draw cost N."""
    if slow := tall.deterministics_of_rows():
        return (
            f"Deterministics {slow} have one value for each of the {tall.n_rows} rows, and "
            "pm.sample evaluates them at every draw. Leave them out: pass pm.sample the "
            "var_names to keep, and use pm.compute_deterministics afterwards."
        )
    return None
