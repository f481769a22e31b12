"""Predictions of a model that Bambi has built, for chunks of its data frame or of a new one.

Bambi itself predicts: it knows how columns become design matrices, and where predictors were
centred. It holds one number for each row and draw, so it is given few rows at a time.

Formulas may compute from whole columns, such as ``x - np.mean(x)``, which few rows do not tell. For
the rows of the fit Bambi is therefore given rows of its own design matrices. New rows have none:
there, formulas are refused by which a row depends on the others.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pytensor.configdefaults import config
from scipy.sparse import issparse

from pymc_minibatch.bambi_effects import EffectsOfFewGroups, NewLevelsError
from pymc_minibatch.jit.compiled import IN_PYTHON
from pymc_minibatch.tall.check import FAILURES

__all__ = ["ROW_DIM", "BambiPredictions"]

ROW_DIM = "__obs__"
"""What Bambi calls the dimension of the rows."""

CHECKED_ROWS = 200
"""Rows, at equal distances, at which formulas are computed in parts and as a whole."""

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
    new_groups
        Whether effects of levels that were not in the data are drawn from their prior.

    Attributes
    ----------
    name
        Name of what is observed.
    frame
        The rows.
    observed
        What was observed in them; None if that is not known, or not one number for each row.

    Raises
    ------
    TypeError
        If `new_rows` is no data frame.
    ValueError
        If draws and model do not belong together, or the rows do not fit the model.
    """

    def __init__(
        self,
        model: Any,
        posterior: xr.Dataset,
        new_rows: Any,
        kind: str,
        random_seed: int,
        new_groups: bool = False,
    ) -> None:
        _check_fits(model, posterior)
        self._model, self._posterior, self._seed = model, _in_order(model, posterior), random_seed
        self._kind = "response" if kind == "response" else "response_params"
        term = model.response_term
        self.name = str(getattr(term, "alias", None) or term.name)
        self.frame, self.observed = _rows(model, new_rows)
        self.effects = [
            EffectsOfFewGroups(component, _some(model.data), random_seed if new_groups else None)
            for component in _components(model)
            if component.design.group is not None
        ]
        self._own_designs: list[tuple[Any, Any]] = []
        if new_rows is None or new_rows is model.data:
            self._own_designs = [
                (design, _by_rows(design.design_matrix)) for _, design in _designs(model)
            ]
        else:
            _check_row_by_row(model, self.frame)

    @contextmanager
    def _quickly(self) -> Iterator[None]:
        """Let Bambi do for few rows what few rows need, and compile nothing for each chunk."""
        with ExitStack() as stack:
            for effects in self.effects:
                stack.enter_context(effects.in_use())
            stack.enter_context(config.change_flags(mode=IN_PYTHON))
            yield

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
            with self._quickly(), _rows_of_fit(self._own_designs, slice(first, first + len(rows))):
                self._model.predict(found, self._kind, data=rows, random_seed=seed)
        except NewLevelsError:
            raise
        except (*FAILURES, KeyError, TypeError, NotImplementedError) as error:
            self._check_known(found, first)  # a parameter that is nan may be refused as such
            raise ValueError(
                f"Bambi cannot predict rows {first} to {first + len(rows) - 1} ({error}). Look for "
                "columns that are missing or of another type, and for levels of a group that the "
                "model has not seen."
            ) from error
        parameter = self._check_known(found, first)
        if self._kind == "response_params":
            assert parameter is not None
            return parameter
        return _values(found["posterior_predictive"].to_dataset()[self.name])

    def _check_known(self, found: xr.DataTree, first: int) -> np.ndarray | None:
        """Refuse rows whose parameter is nan; of what is drawn it need not show."""
        drawn = found["posterior"].to_dataset().get(_parent(self._model))
        if drawn is None:
            return None
        parameter = _values(drawn)
        missing = np.isnan(parameter).any(axis=tuple(k for k in range(parameter.ndim) if k != 2))
        if missing.any():
            raise ValueError(
                f"Row {first + int(missing.argmax())} is predicted as nan. Look for missing values "
                "in its columns."
            )
        return parameter


def _components(model: Any) -> Iterable[Any]:
    """Give the parts of a model that have a formula, by the name that the version of Bambi has."""
    found = getattr(model, "conditional_parameters", None)
    return (model.distributional_components if found is None else found).values()


def _designs(model: Any) -> Iterator[tuple[str, Any]]:
    """Give the design matrices of all formulas, of common and of group-specific effects."""
    for component in _components(model):
        for kind in ("common", "group"):
            design = getattr(component.design, kind)
            if design is not None:
                yield kind, design


@contextmanager
def _rows_of_fit(designs: list[tuple[Any, Any]], rows: slice) -> Iterator[None]:
    """Let Bambi find rows of the fit in its design matrices, which are given with their values."""
    try:
        for design, values in designs:
            part = copy.copy(design)
            part.design_matrix, part.factors_with_new_levels = values[rows], ()
            design.evaluate_new_data = lambda _, part=part: part
        yield
    finally:
        for design, _ in designs:
            vars(design).pop("evaluate_new_data", None)


def _by_rows(matrix: Any) -> Any:
    """Return a matrix, sparse or not, of which rows can be taken."""
    return matrix.tocsr() if issparse(matrix) else np.asarray(matrix)


def _some(frame: pd.DataFrame) -> pd.DataFrame:
    """Take some rows, at equal distances."""
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, CHECKED_ROWS).astype(int))]


def _check_row_by_row(model: Any, new_rows: pd.DataFrame) -> None:
    """Refuse formulas by which a row of a design matrix depends on what other rows there are.

    Raises
    ------
    ValueError
    """
    for frame in (model.data, new_rows):
        some = _some(frame)
        for kind, design in _designs(model):
            for term in design.terms.values():
                _check_term(term, kind, some)


def _check_term(term: Any, kind: str, some: pd.DataFrame) -> None:
    """Compute a term from some rows, and from every second of them."""
    name = getattr(term, "name", str(term))
    try:
        whole = _by_rows(term.eval_new_data(some))
        parts = [_by_rows(term.eval_new_data(some.iloc[k::2])) for k in range(min(2, len(some)))]
    except Exception:  # of formulas or columns that do not fit, which Bambi tells of itself
        return
    for k, part in enumerate(parts):
        rows = whole[k::2]
        if part.shape[1:] != rows.shape[1:]:  # columns for the levels that these rows have
            continue
        if not _same(part, rows):
            raise ValueError(
                f"The {kind} term {name} of the formula is computed from whole columns, so the "
                "prediction of a new row would depend on the rows beside it. Compute the column "
                "from the rows of the fit before you build the model, or write center(x) or "
                "scale(x), which remember these rows."
            )


def _same(found: Any, expected: Any) -> bool:
    """Whether matrices are equal up to rounding, sparse or not; nan equals nan."""
    if issparse(expected):
        found, expected = (matrix.tocoo() for matrix in (found, expected))
        if not all(
            np.array_equal(a, b) for a, b in zip(found.coords, expected.coords, strict=True)
        ):
            return False
        found, expected = found.data, expected.data
    return np.allclose(found, expected, rtol=1e-9, atol=0.0, equal_nan=True)


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


def _in_order(model: Any, posterior: xr.Dataset) -> xr.Dataset:
    """Return draws with their dimensions as Bambi orders them: those of groups are the last."""
    dims = [dim for dim in model.backend.model.coords if dim in posterior.dims]
    dims.sort(key=lambda dim: str(dim).endswith("__factor_dim"))
    return posterior.transpose("chain", "draw", *dims, ...)


def _rows(model: Any, new_rows: Any) -> tuple[pd.DataFrame, np.ndarray | None]:
    """Return the rows to predict, and what was observed in them."""
    if new_rows is None:
        observed = np.asarray(model.response_term.data)
        if len(observed) != len(model.data):
            raise ValueError(
                f"Bambi left out {len(model.data) - len(observed)} rows with missing values. Pass "
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
    _check_slopes(model, new_rows)
    return new_rows, _observed_again(model, new_rows)


def _check_slopes(model: Any, new_rows: pd.DataFrame) -> None:
    """Refuse levels of a slope's factor that were not in the data: formulae gives them no effect.

    Raises
    ------
    ValueError
        Naming the column, the level and the row.
    """
    for kind, design in _designs(model):
        for term in design.terms.values() if kind == "group" else ():
            for part in getattr(term.expr, "components", ()):
                name = getattr(part, "name", None)
                if part.kind != "categoric" or name not in new_rows:
                    continue
                new = np.flatnonzero(~new_rows[name].isin(list(part.levels)).to_numpy())
                if new.size:
                    raise ValueError(
                        f"Row {new[0]} of new_rows has {new_rows[name].iloc[new[0]]!r} in column "
                        f"{name}, which the model has not seen and whose effects in {term.name} "
                        f"are unknown. Leave out such rows ({new.size} in all)."
                    )


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
