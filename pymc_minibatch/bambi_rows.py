"""Predictions of a model that Bambi has built, for chunks of its data frame or of a new one.

Bambi itself predicts: it knows how columns become design matrices, and where predictors were
centred. It holds one number for each row and draw, so it is given few rows at a time.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_minibatch.tall.check import FAILURES

__all__ = ["ROW_DIM", "BambiPredictions"]

ROW_DIM = "__obs__"
"""What Bambi calls the dimension of the rows."""

CHUNK_BYTES = 2**24
"""Draws of a chunk of rows: so many that what Bambi compiles for each chunk matters little."""


class BambiPredictions:
    """Predictions for chunks of rows.

    Parameters
    ----------
    model
        The Bambi model that was fitted.
    posterior
        Draws of its fit.
    new_rows
        A data frame of new rows; that of the model if None.
    kind
        "response" for draws of what is observed, "mean" for the parameter that the formula models.
    random_seed
        Of the predictions.

    Attributes
    ----------
    name
        Name of what is observed.
    frame
        The rows.
    observed
        What was observed in them; None where that is not known, or not one number for each row.

    Raises
    ------
    TypeError
        If `new_rows` is no data frame.
    ValueError
        If draws and model do not belong together, or the rows do not fit the model.
    """

    def __init__(
        self, model: Any, posterior: xr.Dataset, new_rows: Any, kind: str, random_seed: int
    ) -> None:
        _check_fits(model, posterior)
        self._model, self._posterior, self._seed = model, posterior, random_seed
        self._kind = "response" if kind == "response" else "response_params"
        term = model.response_term
        self.name = str(getattr(term, "alias", None) or term.name)
        self.frame, self.observed = _rows(model, new_rows)

    @property
    def n_rows(self) -> int:
        """Rows that are predicted."""
        return len(self.frame)

    @cached_property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of what is predicted for a row."""
        one = self._posterior.isel(chain=[0], draw=[0])
        return self._predicted(one, 0, min(2, self.n_rows)).shape[3:]

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """The columns of the rows, by name."""
        return {str(name): self.frame[name].to_numpy() for name in self.frame}

    @property
    def row_bytes(self) -> int:
        """Bytes of the draws of a row."""
        sizes = self._posterior.sizes
        return 8 * sizes["chain"] * sizes["draw"] * int(np.prod(self.own_shape, initial=1))

    def chunks(self, function: Any, observed: np.ndarray | None) -> Iterator[tuple[int, Any]]:
        """Apply a function to the predictions of each chunk, and what was observed there."""
        step = max(1, CHUNK_BYTES // self.row_bytes)
        for first in range(0, self.n_rows, step):
            rows = slice(first, first + step)
            drawn = self._predicted(self._posterior, first, step)
            drawn = drawn.reshape(-1, *drawn.shape[2:])
            yield first, function(drawn, None if observed is None else observed[rows])

    def _predicted(self, posterior: xr.Dataset, first: int, n_rows: int) -> np.ndarray:
        """Predict some rows; shape (chain, draw, rows, ...)."""
        rows = self.frame.iloc[first : first + n_rows]
        found = xr.DataTree.from_dict({"posterior": posterior})
        seed = int(np.random.SeedSequence((self._seed, first)).generate_state(1)[0])
        try:
            self._model.predict(found, self._kind, data=rows, random_seed=seed)
        except (*FAILURES, KeyError, NotImplementedError) as error:
            raise ValueError(
                f"Bambi cannot predict rows {first} to {first + len(rows) - 1} ({error}). Look for "
                "columns that are missing and for levels of a group that the model has not seen."
            ) from error
        # Of what is drawn it need not show: whole numbers have no nan.
        parameter = _values(found["posterior"].to_dataset()[_parent(self._model)])
        missing = np.isnan(parameter).any(axis=tuple(k for k in range(parameter.ndim) if k != 2))
        if missing.any():
            raise ValueError(
                f"Row {first + int(missing.argmax())} is predicted as nan. Look for missing values "
                "in its columns."
            )
        if self._kind == "response_params":
            return parameter
        return _values(found["posterior_predictive"].to_dataset()[self.name])


def _check_fits(model: Any, posterior: xr.Dataset) -> None:
    """Refuse draws of another model, or that Bambi has not looked after."""
    if posterior.attrs.get("modeling_interface") != "bambi":
        raise ValueError(
            "idata is no result of Bambi's fit, which moves the intercept after sampling: Bambi "
            "would predict wrongly from it. Sample with fit(step=...) of the Bambi model, or pass "
            "model=bambi_model.backend.model."
        )
    drawn = {rv.name for rv in model.backend.model.free_RVs}
    drawn = {name for name in drawn if not name.endswith("_offset")}
    if missing := sorted(drawn - set(posterior.data_vars)):
        raise ValueError(f"The posterior lacks {missing}. Pass the Bambi model that was fitted.")


def _rows(model: Any, new_rows: Any) -> tuple[pd.DataFrame, np.ndarray | None]:
    """Return the rows to predict, and what was observed in them."""
    if new_rows is None:
        observed = np.asarray(model.response_term.data)
        if len(observed) != len(model.data):
            raise ValueError(
                f"Bambi left {len(model.data) - len(observed)} rows with missing values out. Pass "
                "the data frame without them as new_rows."
            )
        return model.data, observed if observed.ndim == 1 else None
    if not isinstance(new_rows, pd.DataFrame):
        raise TypeError(
            f"new_rows must be a pandas DataFrame for a Bambi model; got "
            f"{type(new_rows).__name__}. Give it the columns of the formula."
        )
    if not len(new_rows):
        raise ValueError("new_rows has no rows. Pass at least one.")
    return new_rows, _observed_again(model, new_rows)


def _observed_again(model: Any, new_rows: pd.DataFrame) -> np.ndarray | None:
    """Return what new rows say of the response, if a column holds it as the model reads it."""
    name = model.response_term.name
    if name not in new_rows or name not in model.data:
        return None
    if not np.array_equal(model.data[name].to_numpy(), np.asarray(model.response_term.data)):
        return None
    return new_rows[name].to_numpy()


def _values(drawn: xr.DataArray) -> np.ndarray:
    """Return what was drawn, shape (chain, draw, rows, ...)."""
    return np.asarray(drawn.transpose("chain", "draw", ROW_DIM, ...))


def _parent(model: Any) -> str:
    """Name the parameter that the main formula models, such as p or mu."""
    name = model.family.likelihood.parent
    return str(model.parameters[name].alias or name)
