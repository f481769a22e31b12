"""Draws of a result as the model sees them: which model they are of, and unconstrained points."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pymc.model import Model
from pymc.pytensorf import compile as pymc_compile
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.elements import Layout, matched
from pymc_minibatch.results import Result
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.model import split
from pymc_minibatch.tall.slicing import leaf_value
from pymc_minibatch.warn import warn

__all__ = [
    "Draws",
    "aligned",
    "built_by_bambi",
    "draws_of",
    "draws_of_bambi",
    "draws_of_step",
    "unconstrained",
]

ROW_DIM = "__obs__"
"""What Bambi calls the dimension of the rows."""

OTHER_MODEL = "Pass the model that the draws are of."

FOR_OTHER_ROWS = "for other rows use pmb.log_likelihood"


class Draws:
    """Draws of the variables of a model.

    Parameters
    ----------
    result
        The result.
    model
        The model that it is of.
    bambi
        Bambi's model, if that made the result.

    Attributes
    ----------
    posterior
        All variables of the result; those of the model with its dimensions, in the order of its
        labels. Arrays that were opened lazily stay on disk.

    Raises
    ------
    ValueError
        If shapes or labels are not those of the model, or Bambi has moved an intercept and its
        model is not given.
    """

    def __init__(self, result: Result, model: Model, bambi: Any = None) -> None:
        self.result, self.model = result, model
        if bambi is None:
            _refuse_moved_intercepts(result)
        self.posterior = aligned(result.posterior, model, bambi is not None)
        if bambi is not None:
            whole = xr.DataTree.from_dict({"posterior": self.posterior})
            moved = bambi._re_center_intercept(whole)["posterior"]
            moved = moved if isinstance(moved, xr.Dataset) else moved.to_dataset()
            self.posterior = aligned(moved, model, True)

    @property
    def n_chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    def thinned(self, max_draws: int | None) -> "Draws":
        """Take draws at equal distances, as many from each chain, at most `max_draws` in all."""
        if max_draws is None:
            return self
        n = self.posterior.sizes["draw"]
        kept = min(max(1, checked_count("max_draws", max_draws, 1) // self.n_chains), n)
        return self._of(self.posterior.isel(draw=np.arange(kept) * n // kept))

    def _of(self, posterior: xr.Dataset) -> "Draws":
        part = object.__new__(Draws)
        part.result, part.model, part.posterior = self.result, self.model, posterior
        return part

    @cached_property
    def free(self) -> list[str]:
        """Free variables of which there are draws."""
        return [rv.name for rv in self.model.free_RVs if rv.name in self.posterior]

    def values(self, name: str) -> np.ndarray:
        """Read draws of a variable, chain after chain.

        Raises
        ------
        ValueError
            If they are not finite.
        """
        drawn = self.posterior[name].transpose("chain", "draw", ...).compute()
        self.result.check_finite(name, drawn)
        values = drawn.values.reshape(-1, *drawn.shape[2:])
        return values.astype(np.float64) if values.dtype.kind == "f" else values

    def points(self, tall: TallModel) -> np.ndarray:
        """Return draws as flat points, shape (chains × draws, D), chain after chain.

        Variables on which no row depends need not be in the posterior.

        Raises
        ------
        ValueError
            If variables are missing or have draws that are not finite.
        """
        drawn = {name: self.values(name) for name in self.free}
        return unconstrained(drawn, self.model, tall, self.n_chosen, tall.row_parameters)

    @property
    def n_chosen(self) -> int:
        """Number of draws of all chains."""
        return self.n_chains * int(self.posterior.sizes["draw"])

    def all_points(self, tall: TallModel, max_draws: int, least: int) -> np.ndarray:
        """Return flat points with all free variables, of draws at equal distances of all chains.

        Raises
        ------
        ValueError
            If variables are missing or have draws that are not finite, or there are too few draws.
        """
        names = [rv.name for rv in self.model.free_RVs]
        if missing := [name for name in names if name not in self.posterior]:
            raise ValueError(
                f"The posterior lacks {missing}, which are free variables of the model. Pass the "
                "model that the draws are of; if it is that, name the variables in var_names of "
                "pm.sample."
            )
        total = self.n_chosen
        if total < max(least, self.n_chains):
            raise ValueError(
                f"{total} draws are too few: {least} are needed, many more are better."
            )
        n_chosen = min(max(max_draws, self.n_chains), total)
        chosen = np.arange(n_chosen) * total // n_chosen
        drawn = {name: self.values(name)[chosen] for name in names}
        return unconstrained(drawn, self.model, tall, n_chosen)


def draws_of(
    idata: Any,
    model: Any,
    data: Any,
    needs_rows: bool = True,
    all_rows: bool = False,
    same_prior: bool = True,
) -> tuple[TallModel, Draws]:
    """Return the split model that draws are of, and the draws of its variables.

    With `needs_rows` the rows of the model must not be a stand-in for those of the run; with
    `all_rows` they must be the same, and so must the likelihood and with `same_prior` the prior.
    Otherwise a warning says what differs.

    Raises
    ------
    TypeError
        If `idata` is no result.
    ValueError
        If `data` is a split model and another model is given, a result of Bambi comes without its
        model, the draws are not of the model, or rows were bound by data and none are given.
    """
    result = Result(idata)
    bambi = model if built_by_bambi(model) else None
    tall = split(model if bambi is None else bambi.backend.model, data)
    draws = Draws(result, tall.model, bambi)
    if needs_rows and result.is_stand_in and not tall.is_bound:
        raise ValueError(
            "The run read rows that were bound with data=, and the model holds only a stand-in for "
            "them. Pass the same data=, or data=step.tall."
        )
    if all_rows:
        refuse_other_rows(result, tall)
        refuse_other_model(result, tall, same_prior)
    else:
        warn_of_other_model(result, tall)
    return tall, draws


def draws_of_step(idata: Any, tall: TallModel, bambi: Any = None) -> Draws:
    """Return the draws of a run whose step is at hand, and Bambi's model if that made it.

    Raises
    ------
    TypeError
        If `idata` is no result.
    ValueError
        If it is a result of Bambi without its model, or of other rows or another model.
    """
    result = Result(idata)
    if result.is_of_bambi and bambi is None:
        raise ValueError(
            "idata is a result of Bambi, which moves the intercept after sampling, so its draws "
            "are not those of the step. Pass the Bambi model itself: model=the object that was "
            "fitted."
        )
    of_model = getattr(getattr(bambi, "backend", None), "model", bambi)
    if bambi is not None and not result.is_of_bambi and of_model is not tall.given_model:
        raise ValueError("model is not the model of the step: leave it out.")
    if not result.is_of_bambi:
        return draws_of(idata, None, tall, all_rows=True)[1]
    if not built_by_bambi(bambi) or bambi.backend.model is not tall.given_model:
        raise ValueError(
            "model must be the Bambi model that was fitted with this step. Pass it as it was when "
            "the step was made; a model that is built again is another one."
        )
    refuse_other_rows(result, tall)
    refuse_other_model(result, tall)
    return Draws(result, tall.model, bambi)


def refuse_other_rows(result: Result, tall: TallModel) -> None:
    """Refuse a result of other rows than those of the model.

    Rows that stay in partitions are read for it once, if the run has recorded what they were. Those
    that are worked out anew may differ by rounding, so there it is a warning.

    Raises
    ------
    ValueError
        Saying what differs.
    """
    if result.n_rows is not None and result.n_rows != tall.n_rows:
        raise ValueError(
            f"The run read {result.n_rows:,} rows and the model has {tall.n_rows:,}. Pass the "
            f"model and the data that were sampled; {FOR_OTHER_ROWS}."
        )
    known = result.rows_checksum
    if known is None or known >> 32 != tall.cut or known % 2**32 == tall.checksum:
        return
    sources = "" if result.made_of is None else result.made_of.other_sources(tall)
    which = f" ({sources})" if sources else ""
    if tall.partitions is not None:
        warn(
            "PMB401",
            f"The partitions do not have the values{which} that the run read, by their checksums. "
            "Unless they differ by rounding only, pass the partitions that were sampled.",
        )
        return
    raise ValueError(
        f"The run read other rows{which}: those of the model have other values or another "
        f"order. Pass the model and the data that were sampled; {FOR_OTHER_ROWS}."
    )


def refuse_other_model(result: Result, tall: TallModel, refuse_prior: bool = True) -> None:
    """Refuse a result of another likelihood or prior; of another prior it may be a warning.

    Raises
    ------
    ValueError
        Saying what differs.
    """
    changes = result.changes(tall)
    if changes.likelihood or (changes.prior and refuse_prior):
        raise ValueError(
            f"{result.what} is of another model: {changes} since the run. Pass the model that was "
            "sampled, or sample this one."
        )
    warn_of_other_model(result, tall)


def warn_of_other_model(result: Result, tall: TallModel) -> None:
    """Warn of a result of another likelihood or prior."""
    changes = result.changes(tall)
    if changes.likelihood or changes.prior:
        warn(
            "PMB402",
            f"{changes} since the run: the draws of {result.what} are of the earlier model, and "
            "everything else is taken from the present one.",
        )


def draws_of_bambi(idata: Any, bambi: Any, max_draws: int | None) -> xr.Dataset:
    """Return draws as Bambi predicts from them: its intercepts as they are, all of them finite.

    Raises
    ------
    TypeError
        If `idata` is no result.
    ValueError
        If shapes or labels are not those of the model, or draws are not finite.
    """
    result = Result(idata)
    _warn_of_other_outcomes(result, bambi.backend.model)
    draws = Draws.__new__(Draws)
    draws.result, draws.model = result, bambi.backend.model
    draws.posterior = aligned(result.posterior, draws.model, with_effects=True)
    posterior: xr.Dataset = draws.thinned(max_draws).posterior.compute()
    for name, values in posterior.items():
        result.check_finite(str(name), values)
    return posterior


def _warn_of_other_outcomes(result: Result, model: Model) -> None:
    """Warn if a result of Bambi was observed on other outcomes than those of the model.

    Bambi takes from its own rows what a formula computes of a whole column.
    """
    own = {str(rv.name): leaf_value(model.rvs_to_values[rv]) for rv in model.observed_RVs}
    for values in result.observed():
        name = str(values.name)
        if name in own and not _are_equal(own[name], values.values):
            warn(
                "PMB407",
                f"{result.what} was observed on other values of {name} than those of the Bambi "
                "model. If the formula has functions of a whole column, such as scale(x), it "
                "predicts with the means, knots and levels of its own rows. Pass the model that "
                "was fitted.",
            )


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether values are the same, but for the rounding of a store."""
    if np.shape(one) != np.shape(other) or {one.dtype.kind, other.dtype.kind} - set("biuf"):
        return np.array_equal(one, other)
    return bool(np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True))


def aligned(posterior: xr.Dataset, model: Model, with_effects: bool = False) -> xr.Dataset:
    """Bring variables of a model to its dimensions, and their elements to the order of its labels.

    These are the free variables; `with_effects` those as well that Bambi computes of them.

    Raises
    ------
    ValueError
        If shapes or labels do not match.
    """
    layouts = {
        name: _layout(model, name, tuple(map(int, shape)))
        for name, shape in model.eval_rv_shapes().items()
        if name in posterior
    }
    if with_effects:
        for variable in model.deterministics:
            dims = model.named_vars_to_dims.get(variable.name, ())
            if variable.name in posterior and dims and ROW_DIM not in dims:
                shape = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
                layouts[variable.name] = _layout(model, variable.name, shape)
    found = {
        name: matched(name, posterior[name], layout, OTHER_MODEL)
        for name, layout in layouts.items()
    }
    labels = {dim: posterior[dim] for dim in ("chain", "draw") if dim in posterior.coords}
    return xr.Dataset(found, labels, attrs=posterior.attrs)


def _layout(model: Model, name: str, shape: tuple[int, ...]) -> Layout:
    """Return dimensions and labels of a variable of the model, named as results name them."""
    named = model.named_vars_to_dims.get(name) or [None] * len(shape)
    dims = tuple(f"{name}_dim_{k}" if dim is None else str(dim) for k, dim in enumerate(named))
    known = {dim: model.coords.get(dim) for dim in dims}
    labels = {
        dim: None if values is None else pd.Index(list(values), tupleize_cols=False)
        for dim, values in known.items()
    }
    return Layout(dims, shape, labels, "the model")


def _refuse_moved_intercepts(result: Result) -> None:
    """Refuse draws of Bambi without its model."""
    if result.is_of_bambi:
        raise ValueError(
            "idata is a result of Bambi, which moves the intercept after sampling. Pass the Bambi "
            "model itself: model=the object that was fitted."
        )


def built_by_bambi(model: Any) -> bool:
    """Whether a model is one of Bambi, which is built here if it was not yet."""
    if not hasattr(model, "_re_center_intercept"):
        return False
    if not model.built:
        model.build()
    return True


def unconstrained(
    draws: Mapping[str, np.ndarray],
    model: Model,
    tall: TallModel,
    n_draws: int,
    wanted: list[str] | None = None,
) -> np.ndarray:
    """Return draws as flat points, shape (n, D).

    Parameters
    ----------
    draws
        For each free variable an array with draws along the first axis.
    model, tall
        The model and its split.
    n_draws
        How many there are.
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
    points = np.tile(tall.start, (n_draws, 1))
    if not needed:
        return points
    for point, drawn in zip(
        points, zip(*[draws[name] for name in needed], strict=True), strict=True
    ):
        for name, value in zip(names, function(*drawn), strict=True):
            point[tall.layout.slices[name]] = np.ravel(value)
    _check_inside(points, names, tall)
    return points


def _check_inside(points: np.ndarray, names: list[str], tall: TallModel) -> None:
    """Refuse draws at or beyond an end of what a variable can be."""
    for name in names:
        bad = ~np.isfinite(points[:, tall.layout.slices[name]]).all(axis=1)
        if bad.any():
            raise ValueError(
                f"{int(bad.sum())} draws lie at or beyond the bounds of {name}: they are of "
                "another model, or were rounded to single precision. Pass the model that was "
                "sampled, and draws in double precision."
            )
