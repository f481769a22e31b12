"""Log-likelihoods of single rows at posterior draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_minibatch.draws import draws_of
from pymc_minibatch.renamed import renamed
from pymc_minibatch.row_labels import row_coords
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.arguments import checked_rows
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["as_draws", "log_likelihood", "pointwise"]

LARGEST_BYTES = 2**31
"""More numbers are refused, since they are hardly ever meant."""


@renamed(tall="data")
def log_likelihood(
    idata: xr.DataTree,
    rows: Sequence[int] | np.ndarray | None = None,
    *,
    model: Any = None,
    data: Any = None,
    max_draws: int | None = None,
) -> xr.Dataset:
    """Evaluate the log-likelihood of some rows at posterior draws.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample`` or of Bambi's ``fit``; its posterior must hold the variables on
        which the rows depend.
    rows : sequence of int, optional
        Row numbers, from 0 to N − 1; all rows if not given.
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given. For a result of Bambi pass its model.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, or the model already split, such as ``step.tall``; see
        :class:`TallModel`.
    max_draws : int, optional
        Draws that are used, at equal distances; all if not given.

    Returns
    -------
    xarray.Dataset
        One variable, with dimensions chain, draw and that of the rows, and the name of the observed
        variable. If several observed variables share the rows, it is their sum.

    Raises
    ------
    ValueError
        If variables are missing from the posterior or not finite, row numbers are out of range, the
        result would take more than 2 GiB, or `data` is needed and not given.

    See Also
    --------
    loo : Model comparison without the log-likelihoods of all rows.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, xarray as xr
    >>> mu = xr.DataArray(np.zeros((2, 100)), dims=("chain", "draw"))
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": mu})})
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(100.0))
    ...     found = pmb.log_likelihood(idata, rows=[0, 2])
    >>> found.y.mean(("chain", "draw")).values.round(3)
    array([-0.919, -2.919])
    """
    tall, draws = draws_of(idata, model, data)
    draws = draws.thinned(max_draws)
    posterior = draws.posterior
    n_draws = draws.n_chosen
    numbers = np.arange(tall.n_rows) if rows is None else checked_rows(rows, tall.n_rows, 1)
    if 8 * n_draws * numbers.size > LARGEST_BYTES:
        raise ValueError(
            f"The log-likelihoods of {numbers.size:,} rows at {n_draws:,} draws take "
            f"{8e-9 * n_draws * numbers.size:,.1f} GB. Name some rows, set max_draws, or compare "
            "models with pmb.loo, which needs few rows."
        )
    values = pointwise(tall, draws.points(tall), None if rows is None else numbers)
    return xr.Dataset({" + ".join(tall.row_names): as_draws(values, posterior, tall, numbers)})


def pointwise(tall: TallModel, points: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Evaluate rows, all if None, at flat points; shape (points, rows)."""
    tall.check_sources()
    data = tall.data if rows is None else tall.batch(rows)
    row_logp = tall.compiled_row_logp
    found = np.empty((len(points), len(data[0])))

    def evaluate(*batch: np.ndarray) -> np.ndarray:
        return np.array([row_logp(point, *batch) for point in points])

    for first, values in over_chunks(evaluate, data, "Evaluating rows"):
        found[:, first : first + values.shape[1]] = values
    return found


def as_draws(
    values: np.ndarray, posterior: xr.Dataset, tall: TallModel, rows: np.ndarray
) -> xr.DataArray:
    """Label what was computed for each draw and row."""
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    dim, labels = row_coords(tall, rows)
    coords = {name: posterior[name] for name in ("chain", "draw") if name in posterior.coords}
    return xr.DataArray(
        values.reshape(*shape, -1), dims=("chain", "draw", dim), coords={**coords, dim: labels}
    )
