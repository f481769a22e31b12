"""Draws as a result of ``pm.sample``."""

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

from pymc_minibatch.tall import TallModel

__all__ = ["tree_of", "variables"]


def variables(model: Model, tall: TallModel, var_names: Sequence[str] | None) -> list[str]:
    """Name the variables of a result: all but transformed ones and those with a value per row."""
    if var_names is not None:
        return list(var_names)
    known = [var.name for var in (*model.free_RVs, *model.deterministics)]
    of_rows = tall.deterministics_of_rows()
    return [name for name in known if name not in of_rows]


def tree_of(
    values: Mapping[str, np.ndarray],
    model: Model,
    stats: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
) -> xr.DataTree:
    """Return draws as ``pm.sample`` does, in one chain.

    Parameters
    ----------
    values
        Of each variable; arrays of shape (S, ...).
    model
        The model.
    stats
        For each draw; arrays of shape (S,).
    attrs
        Attributes of the tree and its posterior.
    """
    coords, dims = coords_and_dims_for_inferencedata(model)
    options: dict[str, Any] = {"inference_library": pm, "coords": coords, "dims": dims}
    draws = {name: drawn[None] for name, drawn in values.items()}
    groups = {
        "posterior": dict_to_dataset(draws, attrs=dict(attrs), **options),
        "sample_stats": dict_to_dataset(
            {name: each[None] for name, each in stats.items()}, inference_library=pm
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
