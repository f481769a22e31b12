"""Unconstrained points as a result of ``pm.sample``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import dict_to_dataset
from pymc.backends.arviz import (
    coords_and_dims_for_inferencedata,
    find_constants,
    find_observations,
)
from pymc.model import Model
from pymc.pytensorf import compile as pymc_compile

from pymc_minibatch.tall import TallModel

__all__ = ["tree_of", "variables"]


def variables(model: Model, tall: TallModel, var_names: Sequence[str] | None) -> list[str]:
    """Name the variables of a result: all but transformed ones and those with a value per row.

    Raises
    ------
    ValueError
        If a name is not one of the model.
    """
    known = [var.name for var in (*model.free_RVs, *model.deterministics)]
    if var_names is None:
        of_rows = tall.deterministics_of_rows()
        return [name for name in known if name not in of_rows]
    for name in var_names:
        if name not in known:
            raise ValueError(f"{name} is no variable of the model, which has {known}.")
    return list(var_names)


def tree_of(
    points: np.ndarray,
    tall: TallModel,
    names: Sequence[str],
    stats: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
) -> xr.DataTree:
    """Return draws as ``pm.sample`` does, in one chain.

    Parameters
    ----------
    points : ndarray, shape (S, D)
        Unconstrained points.
    tall
        The model.
    names
        The variables to keep.
    stats
        For each draw; arrays of shape (S,).
    attrs
        Attributes of the tree and its posterior.
    """
    model = tall.model
    coords, dims = coords_and_dims_for_inferencedata(model)
    options: dict[str, Any] = {"inference_library": pm, "coords": coords, "dims": dims}
    draws = {name: values[None] for name, values in _values(points, tall, names).items()}
    groups = {
        "posterior": dict_to_dataset(draws, attrs=dict(attrs), **options),
        "sample_stats": dict_to_dataset(
            {name: values[None] for name, values in stats.items()}, inference_library=pm
        ),
    }
    for group, data in (
        ("observed_data", find_observations(model)),
        ("constant_data", find_constants(model)),
    ):
        if data:
            groups[group] = dict_to_dataset(data, sample_dims=[], **options)
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(attrs)
    return tree


def _values(points: np.ndarray, tall: TallModel, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the values of variables of the model at points, each of shape (S, ...)."""
    model, layout = tall.model, tall.layout
    found: dict[str, Any] = dict.fromkeys(names)
    for rv in model.free_RVs:  # no copy of many effects
        value = model.rvs_to_values[rv]
        if rv.name in names and value.name == rv.name:
            shape = layout.shapes[layout.names.index(rv.name)]
            found[rv.name] = points[:, layout.slices[rv.name]].reshape(len(points), *shape)
    others = [name for name in names if found[name] is None]
    graphs = model.replace_rvs_by_values([model[name] for name in others])
    function = pymc_compile(model.value_vars, graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    order = [value.name for value in model.value_vars]
    for s, point in enumerate(points if others else ()):
        named = layout.unflatten(point)
        for name, value in zip(others, function(*(named[v] for v in order)), strict=True):
            if found[name] is None:
                found[name] = np.empty((len(points), *value.shape), dtype=value.dtype)
            found[name][s] = value
    return found
