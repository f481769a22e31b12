"""Draws of a result as the model sees them: which model they are of, and unconstrained points."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from pymc.model import Model
from pymc.pytensorf import compile as pymc_compile
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_minibatch.arguments import checked_count, checked_type
from pymc_minibatch.compare import posterior_of, stat_of
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.predictive import observed_input

__all__ = [
    "built_by_bambi",
    "checked_draws",
    "model_and_posterior",
    "points_of",
    "row_axis",
    "row_coords",
    "thinned",
    "unconstrained",
]


def model_and_posterior(
    idata: Any, model: Any, data: Any, tall: TallModel | None, needs_rows: bool = True
) -> tuple[TallModel, xr.Dataset]:
    """Return the split model that draws are of, and the draws of its variables.

    With `needs_rows` the rows of the model must be those of the run.

    Raises
    ------
    TypeError
        If `idata` is no result, or `tall` no split model.
    ValueError
        If both `tall` and a model or data are given, a result of Bambi comes without its model, or
        rows were bound by data and none are given.
    """
    posterior = posterior_of(idata, "idata").to_dataset()
    checked_type("tall", tall, TallModel, "Pass pmb.TallModel(model), or the tall of a step.")
    if tall is not None and (model is not None or data is not None):
        raise ValueError("tall holds a model and its data: leave out model and data, or tall.")
    if built_by_bambi(model):
        posterior = model._re_center_intercept(idata)["posterior"]
        posterior = posterior if isinstance(posterior, xr.Dataset) else posterior.to_dataset()
        model = model.backend.model
    elif posterior.attrs.get("modeling_interface") == "bambi":
        raise ValueError(
            "idata is a result of Bambi, which moves the intercept after sampling. Pass the Bambi "
            "model itself: model=the object that was fitted."
        )
    tall = TallModel(model, data=data) if tall is None else tall
    is_stand_in = stat_of(idata, "stand_in")
    if needs_rows and is_stand_in is not None and is_stand_in.any() and not tall.is_bound:
        raise ValueError(
            "The run read rows that were bound with data=, and the model holds only a stand-in for "
            "them. Pass the same data=, or tall=step.tall."
        )
    return tall, posterior


def built_by_bambi(model: Any) -> bool:
    """Whether a model is one of Bambi, which is built here if it was not yet."""
    if not hasattr(model, "_re_center_intercept"):
        return False
    if not model.built:
        model.build()
    return True


def thinned(posterior: xr.Dataset, max_draws: int | None) -> xr.Dataset:
    """Take draws at equal distances, as many from each chain, at most `max_draws` in all."""
    if max_draws is None:
        return posterior
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    kept = min(max(1, checked_count("max_draws", max_draws, 1) // chains), draws)
    return posterior.isel(draw=np.arange(kept) * draws // kept)


def points_of(posterior: xr.Dataset, tall: TallModel) -> np.ndarray:
    """Return draws as flat points, shape (chains × draws, D), chain after chain.

    Variables on which no row depends need not be in the posterior.

    Raises
    ------
    ValueError
        If variables are missing, have other shapes, or have draws that are not finite.
    """
    evaluated = tall.model.eval_rv_shapes()
    shapes = {name: tuple(map(int, shape)) for name, shape in evaluated.items()}
    draws = {}
    for name in {rv.name for rv in tall.model.free_RVs} & set(posterior.data_vars):
        values = posterior[name].transpose("chain", "draw", ...).values
        draws[name] = checked_draws(name, values.reshape(-1, *values.shape[2:]))
        if values.shape[2:] != shapes[name]:
            raise ValueError(
                f"{name} has shape {values.shape[2:]} in the posterior and {shapes[name]} in the "
                "model. Pass the model that the draws are of."
            )
    return unconstrained(draws, tall.model, tall, tall.row_parameters)


def checked_draws(name: str, values: np.ndarray) -> np.ndarray:
    """Refuse draws that are not finite.

    Raises
    ------
    ValueError
    """
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} has draws that are not finite; those of a run that was interrupted are "
            "nan: leave them out, with idata.isel(draw=slice(...))."
        )
    return values


def unconstrained(
    draws: Mapping[str, np.ndarray],
    model: Model,
    tall: TallModel,
    wanted: list[str] | None = None,
) -> np.ndarray:
    """Return draws as flat points, shape (n, D).

    Parameters
    ----------
    draws
        For each free variable an array with draws along the first axis.
    model, tall
        The model and its split.
    wanted
        The value variables that are needed; others stay where they are at the start. All if None.

    Raises
    ------
    ValueError
        If variables are missing that are needed.
    """
    wanted = list(tall.layout.names) if wanted is None else wanted
    inputs: dict[Variable, Variable] = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    values: list[Variable] = []
    names: list[str] = []
    for rv in model.free_RVs:
        name, transform = get_var_name(model.rvs_to_values[rv]), model.rvs_to_transforms[rv]
        if name in wanted:
            forward = (
                inputs[rv] if transform is None else transform.forward(inputs[rv], *rv.owner.inputs)
            )
            names.append(name)
            values.append(forward)
    values = graph_replace(values, inputs, strict=False)
    read = set(ancestors(values))
    needed = [get_var_name(rv) for rv, value in inputs.items() if value in read]
    if missing := [name for name in needed if name not in draws]:
        raise ValueError(
            f"The posterior lacks {missing}, on which the rows depend. Pass the model that the "
            "draws are of; if it is that, name the variables in var_names of pm.sample."
        )
    function = pymc_compile(
        [inputs[rv] for rv in model.free_RVs if get_var_name(rv) in needed],
        values,
        mode="FAST_COMPILE",
    )
    points = np.tile(tall.start, (len(draws[needed[0]]), 1))
    for point, drawn in zip(
        points, zip(*[draws[name] for name in needed], strict=True), strict=True
    ):
        for name, value in zip(names, function(*drawn), strict=True):
            point[tall.layout.slices[name]] = np.ravel(value)
    return points


def row_axis(tall: TallModel) -> tuple[str, np.ndarray | None]:
    """Return name and labels of the axis of rows, as the result of `pm.sample` has them.

    Rows of other data than the model's own have no labels.
    """
    model, name = tall.model, tall.row_names[0]
    axis = 0 if name in tall.row_potentials else observed_input(tall, name).axis
    dims = model.named_vars_to_dims.get(name)
    dim = f"{name}_dim_{axis}" if dims is None else str(dims[axis])
    labels = None if tall.is_bound else model.coords.get(dim)
    return dim, None if labels is None else np.asarray(labels)


def row_coords(tall: TallModel, rows: np.ndarray) -> tuple[str, np.ndarray]:
    """Return name of the axis of rows, and labels of some rows; their numbers if there are none."""
    dim, labels = row_axis(tall)
    return dim, rows if labels is None else labels[rows]
