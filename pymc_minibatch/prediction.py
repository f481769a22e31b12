"""Predictions for rows, chunk by chunk: summaries, or draws that go straight to a store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from pymc_minibatch.arguments import checked_choice
from pymc_minibatch.bambi_rows import ROW_DIM, BambiPredictions
from pymc_minibatch.draws import built_by_bambi, draws_of, draws_of_bambi
from pymc_minibatch.renamed import renamed
from pymc_minibatch.row_labels import other_axes, row_axis
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.predictive import NoPredictionError, Predictive

__all__ = ["NoPredictionError", "predict"]

CHUNK_BYTES = 2**24
"""Draws of a chunk of rows."""

LARGEST_BYTES = 2**30
"""More draws must go to a store."""

MISSING = "missing"
"""The group of rows whose label is None."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@renamed(tall="data")
def predict(
    idata: xr.DataTree,
    new_rows: Any = None,
    *,
    model: Any = None,
    data: Any = None,
    var_name: str | None = None,
    kind: Literal["response", "mean"] = "response",
    output: Literal["summary", "draws"] = "summary",
    quantiles: Sequence[float] = QUANTILES,
    by: Any = None,
    store: str | Path | None = None,
    max_draws: int = 1000,
    random_seed: int = 0,
    sample_new_groups: bool = False,
) -> xr.Dataset:
    """Predict the observed variable, for old or new rows, without holding all draws.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample`` or of Bambi's ``fit``; its posterior must hold the variables on
        which the rows depend.
    new_rows : mapping of str to array, or DataFrame, optional
        Predictors of new rows; the rows of the model if not given. For each variable with rows that
        is read (pm.Data, by name), an array, path or store, as for ``data`` of :class:`TallModel`.
        For a Bambi model, a data frame with the columns of its formula. Observed values may be
        given, too, for the coverage.
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given. For a result of Bambi pass its model, which
        then predicts, a few rows at a time.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, or the model already split, such as ``step.tall``; see
        :class:`TallModel`.
    var_name : str, optional
        The observed variable, if there are several.
    kind : {"response", "mean"}, default "response"
        Predict the observed variable, or its expectation given the parameters. For a Bambi model,
        "mean" is the parameter that the main formula models, such as ``p`` or ``mu``.
    output : {"summary", "draws"}, default "summary"
        Return summaries of the predictions, or all draws of them.
    quantiles : sequence of float, default (0.05, 0.25, 0.5, 0.75, 0.95)
        Quantiles of the summary. Those that lie symmetrically make the intervals of the coverage.
    by : array_like or str, optional
        Groups of rows for the coverage: a label for each row, or the name of row data or of a
        column that hold it. Rows whose label is missing are a group, too.
    store : path, optional
        Folder of a new zarr store for the draws; needed for more than 1 GiB of them.
    max_draws : int, default 1000
        Posterior draws that are used, at equal distances; one prediction is made for each.
    random_seed : int, default 0
        Seed of the predictions, which do not depend on the number of cores.
    sample_new_groups : bool, default False
        Whether new rows of a Bambi model may have group levels that were not in the data. Their
        effects are drawn from the prior, given its parameters in each draw; a level has the same
        effects in all its rows.

    Returns
    -------
    xarray.Dataset
        A summary has ``mean``, ``sd`` and ``quantile`` for each row. If responses are predicted
        and were observed it also has ``coverage``, for each group the share of rows whose
        observation lies in the central interval, and ``rows``, their number. Draws are one variable
        named as the observed variable, with dimensions chain, draw and that of the rows; those in a
        store are read when they are needed.

    Raises
    ------
    NoPredictionError
        If PyMC cannot draw the variable row by row, or does not know its mean.
    ValueError
        If variables are missing from the posterior, new rows do not fit the model or have levels of
        a group that the model has not seen, there are too many draws for memory, or the rows of the
        model stay in partitions.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, xarray as xr
    >>> mu = xr.DataArray(np.zeros((2, 500)), dims=("chain", "draw"))
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": mu})})
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     x = pm.Data("x", np.arange(100.0))
    ...     y = pm.Normal("y", mu + x, 1.0, observed=np.arange(100.0))
    ...     found = pmb.predict(idata, {"x": np.array([10.0, 20.0])})
    >>> found["mean"].values.round()
    array([10., 20.])
    """
    checked_choice("kind", kind, ("response", "mean"))
    checked_choice("output", output, ("summary", "draws"))
    _check_store(store, output)
    drawing: _Predictions
    if built_by_bambi(model):
        if data is not None:
            raise ValueError(
                "A Bambi model predicts by itself: leave out data, and pass the data "
                "frame to predict as new_rows."
            )
        posterior = draws_of_bambi(idata, model, max_draws)
        drawing = BambiPredictions(model, posterior, new_rows, kind, random_seed, sample_new_groups)
        axes = range(1, len(drawing.own_shape) + 1)
        labels = _Labels(
            ROW_DIM, None, posterior, dict.fromkeys(f"{drawing.name}_dim_{i}" for i in axes)
        )
    else:
        if sample_new_groups:
            raise ValueError(
                "sample_new_groups is for Bambi models. With a model of PyMC, give the effects an "
                "element for each new group before sampling: it is drawn from its prior."
            )
        own_rows = new_rows is None
        tall, draws = draws_of(idata, model, data, needs_rows=own_rows)
        if own_rows and tall.partitions is not None:
            raise ValueError(
                "The rows stay in partitions, and predictions are made on this machine. Pass those "
                "to predict as new_rows, or data=tall.copied() if all rows may be copied to it."
            )
        draws = draws.thinned(max_draws)
        name = _variable(tall, var_name)
        predictive = Predictive(tall, name, kind, new_rows)
        drawing = _ModelPredictions(predictive, draws.points(tall), random_seed)
        dim, row_labels = row_axis(tall, name)
        rest = other_axes(tall, name)
        labels = _Labels(dim, row_labels if own_rows else None, draws.posterior, rest)
    if output == "summary":
        if labels.posterior.sizes["chain"] * labels.posterior.sizes["draw"] < 2:
            raise ValueError("A summary needs two draws at least. Set output='draws' for one.")
        return _summary(drawing, labels, _checked_quantiles(quantiles), by, kind)
    return _draws(drawing, labels, store)


def _check_store(store: str | Path | None, output: str) -> None:
    if store is not None and output != "draws":
        raise ValueError("store is for draws: set output='draws', or leave store out.")
    if store is not None and Path(store).exists():
        raise ValueError(f"{store} exists. Remove it, or name a new folder.")


class _Labels(NamedTuple):
    """How a result is labelled."""

    dim: str
    rows: np.ndarray | None
    posterior: xr.Dataset
    rest: Mapping[str, np.ndarray | None]
    """Axes of what is predicted for a row."""

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of the axes of a row, as far as they are known."""
        return {dim: values for dim, values in self.rest.items() if values is not None}


class _Predictions(Protocol):
    """Predictions for chunks of rows: of a model's own graph, or made by Bambi."""

    @property
    def name(self) -> str:
        """Name of what is predicted."""

    @property
    def n_rows(self) -> int:
        """Rows that are predicted."""

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of what is predicted for a row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of the draws of a row."""

    @property
    def observed(self) -> np.ndarray | None:
        """What was observed in the rows, if that is known."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """What the rows are predicted from, by name."""

    def chunks(
        self, function: Callable[..., Any], observed: np.ndarray | None
    ) -> Iterator[tuple[int, Any]]:
        """Apply a function to the predictions of each chunk, and what was observed there."""


class _ModelPredictions:
    """Predictions by the model's own graph, on all cores."""

    def __init__(self, predictive: Predictive, points: np.ndarray, random_seed: int) -> None:
        self.predictive, self.points, self._seed = predictive, points, random_seed
        self.name, self.n_rows = predictive.name, predictive.n_rows
        self.own_shape, self.observed = predictive.own_shape, predictive.observed
        self.row_bytes = 8 * len(points) * int(np.prod(self.own_shape, initial=1))
        self.step = max(1, CHUNK_BYTES // self.row_bytes)
        self.columns = {given.name: given.values for given in predictive.inputs}
        self.arrays = list(self.columns.values())
        self._compiled = predictive.compiled

    def draw(self, first: int, n_rows: int, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Predict a chunk at each point; shape (points, rows, ...)."""
        seeds = np.random.SeedSequence((self._seed, first)).spawn(self.predictive.n_generators)
        streams = [np.random.PCG64(seed) for seed in seeds]
        drawn = []
        for point in self.points:
            generators = [np.random.Generator(stream) for stream in streams]
            drawn.append(self._compiled.jitted(point, np.array(n_rows), *generators, *batch)[0])
            streams = [stream.jumped() for stream in streams]
        return np.array(drawn)

    def chunks(
        self, function: Callable[..., Any], observed: np.ndarray | None
    ) -> Iterator[tuple[int, Any]]:
        """Apply a function to the predictions of each chunk, and what was observed there."""
        has_observed = observed is not None
        arrays = [*self.arrays, *([] if observed is None else [observed])]
        # If nothing is read, something must tell the chunks apart.
        arrays = arrays or [np.broadcast_to(np.int8(0), (self.n_rows,))]

        def apply(first: int, *batch: np.ndarray) -> Any:
            drawn = self.draw(first, len(batch[0]), batch[: len(self.arrays)])
            return function(drawn, batch[-1] if has_observed else None)

        return over_chunks(apply, arrays, "Predicting", self.step, numbered=True)


def _variable(tall: TallModel, var_name: str | None) -> str:
    observed = [name for name in tall.row_names if name not in tall.row_potentials]
    if var_name is None and len(observed) == 1:
        return observed[0]
    if var_name not in observed:
        raise ValueError(
            f"var_name must be one of the observed variables with rows, {observed}; got "
            f"{var_name!r}."
        )
    return str(var_name)


def _checked_quantiles(quantiles: Sequence[float]) -> np.ndarray:
    found = np.atleast_1d(np.asarray(quantiles))
    if found.ndim != 1 or found.dtype.kind != "f" or not ((found > 0) & (found < 1)).all():
        raise ValueError(f"quantiles must lie between 0 and 1; got {quantiles!r}.")
    return np.sort(found.astype(np.float64))


def _intervals(quantiles: np.ndarray) -> list[tuple[int, int]]:
    """Find the pairs of quantiles that lie symmetrically about one half."""
    pairs = zip(range(quantiles.size), reversed(range(quantiles.size)), strict=True)
    return [(i, j) for i, j in pairs if i < j and np.isclose(quantiles[i], 1 - quantiles[j])]


def _summary(
    drawing: _Predictions, labels: _Labels, quantiles: np.ndarray, by: Any, kind: str
) -> xr.Dataset:
    pairs = _intervals(quantiles)
    n, rest = drawing.n_rows, drawing.own_shape
    observed = drawing.observed if kind == "response" else None
    groups, codes = _groups(by, drawing)
    means, sds = np.empty((n, *rest)), np.empty((n, *rest))
    found = np.empty((quantiles.size, n, *rest))
    inside = np.zeros((groups.size, len(pairs)))

    def summarise(drawn: np.ndarray, seen: np.ndarray | None) -> tuple[np.ndarray, ...]:
        q = np.quantile(drawn, quantiles, axis=0)
        within = [] if seen is None else [(q[i] <= seen) & (seen <= q[j]) for i, j in pairs]
        shares = [part.reshape(len(part), -1).mean(axis=1) for part in within]
        return drawn.mean(axis=0), drawn.std(axis=0, ddof=1), q, np.array(shares)

    for first, (mean, sd, q, shares) in drawing.chunks(summarise, observed):
        chunk = slice(first, first + len(mean))
        means[chunk], sds[chunk], found[:, chunk] = mean, sd, q
        for k, share in enumerate(shares):
            inside[:, k] += np.bincount(codes[chunk], share, groups.size)
    dims = (labels.dim, *labels.rest)
    result = xr.Dataset(
        {"mean": (dims, means), "sd": (dims, sds), "quantile": (("prob", *dims), found)},
        coords={"prob": quantiles}
        | labels.coords
        | ({} if labels.rows is None else {labels.dim: labels.rows}),
        attrs={"var_name": drawing.name, "kind": kind},
    )
    if observed is None:
        return result
    counts = np.bincount(codes, minlength=groups.size)
    widths = [round(float(quantiles[j] - quantiles[i]), 12) for i, j in pairs]
    return result.assign_coords(group=groups, interval=widths).assign(
        coverage=(("group", "interval"), inside / counts[:, None]), rows=("group", counts)
    )


def _groups(by: Any, drawing: _Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the groups, and for each row the number of its own."""
    if by is None:
        return np.array(["all"]), np.broadcast_to(np.int8(0), (drawing.n_rows,))
    if isinstance(by, str):
        named = drawing.columns
        if by not in named:
            raise ValueError(
                f"by names {by!r}; the row data that are read are {list(named)}. Name one of "
                "these, or pass a label for each row."
            )
        by = named[by]
    values = np.asarray(by)
    if values.shape != (drawing.n_rows,):
        raise ValueError(
            f"by must have one label for each of the {drawing.n_rows:,} rows; it has shape "
            f"{values.shape}."
        )
    codes, groups = pd.factorize(values, use_na_sentinel=False)
    try:
        order = np.asarray(pd.Index(groups).argsort())
    except TypeError:  # labels that have no order
        order = np.arange(len(groups))
    return _labels_of_groups(np.asarray(groups)[order]), np.argsort(order)[codes]


def _labels_of_groups(groups: np.ndarray) -> np.ndarray:
    """Name the group of the rows whose label is missing."""
    missing = pd.isna(groups)
    if groups.dtype.kind in "fM" or not missing.any():
        return groups
    return np.array([MISSING if gone else str(g) for g, gone in zip(groups, missing, strict=True)])


def _draws(drawing: _Predictions, labels: _Labels, store: str | Path | None) -> xr.Dataset:
    total = drawing.row_bytes * drawing.n_rows
    if store is None and total > LARGEST_BYTES:
        raise ValueError(
            f"The draws take {total / 1e9:,.1f} GB. Set store to the path of a zarr store, or "
            "output='summary', or fewer max_draws."
        )
    parts = (
        _labelled(drawn, first, drawing.name, labels)
        for first, drawn in drawing.chunks(lambda drawn, _: drawn, None)
    )
    if store is None:
        return xr.concat(list(parts), labels.dim)
    for i, part in enumerate(parts):
        if i == 0:
            sizes = tuple(part.sizes[dim] for dim in part[drawing.name].dims)
            chunks = {drawing.name: {"chunks": sizes}}
            part.to_zarr(store, mode="w", encoding=chunks, consolidated=False)
        else:
            part.to_zarr(store, append_dim=labels.dim, consolidated=False)
    return xr.open_zarr(store, chunks=None, consolidated=False)


def _labelled(drawn: np.ndarray, first: int, name: str, labels: _Labels) -> xr.Dataset:
    posterior = labels.posterior
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    rows = np.arange(first, first + drawn.shape[1])
    coords = {dim: posterior[dim].values for dim in ("chain", "draw") if dim in posterior.coords}
    coords[labels.dim] = rows if labels.rows is None else labels.rows[rows]
    coords |= labels.coords
    dims = ("chain", "draw", labels.dim, *labels.rest)
    return xr.Dataset({name: (dims, drawn.reshape(*shape, *drawn.shape[1:]))}, coords=coords)
