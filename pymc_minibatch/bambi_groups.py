"""Grouping factors of Bambi's formulas as column numbers, rather than as dense 0/1 matrices.

For each grouping factor formulae makes a matrix of rows by groups, and first the identity matrix of
which its rows are taken. All that it and Bambi use of these is in which column each row has its 1.
Here they are kept as this number, and Bambi builds the model that it would build anyway.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from formulae import config, design_matrices
from formulae.categorical import Treatment
from formulae.terms.terms import GroupSpecificTerm, Term
from formulae.utils import get_interaction_matrix, row_khatri_rao_sparse

__all__ = ["Indicators", "by_code", "is_right"]


class Indicators:
    """A matrix with one 1 in each row, or none: the number of its column, or -1.

    It has what formulae and Bambi ask of such a matrix.

    Parameters
    ----------
    codes
        For each row the column of its 1, or -1.
    n_columns
        How many columns there are.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_minibatch.bambi_groups import Indicators
    >>> np.asarray(Indicators(np.array([2, -1, 0]), 3))
    array([[0, 0, 1],
           [0, 0, 0],
           [1, 0, 0]])
    """

    ndim = 2
    dtype = np.dtype(int)

    def __init__(self, codes: np.ndarray, n_columns: int) -> None:
        self.codes, self.n_columns = codes, n_columns

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.codes), self.n_columns

    def __len__(self) -> int:
        return len(self.codes)

    def argmax(self, axis: int = 1) -> np.ndarray:
        """Return for each row the column of its largest value, as NumPy finds it."""
        return np.maximum(self.codes, 0)

    def any(self, axis: int = 1) -> np.ndarray:
        """Whether a row has a 1."""
        return self.codes >= 0

    def __getitem__(self, rows: Any) -> "Indicators":
        return Indicators(self.codes[rows], self.n_columns)

    def __setitem__(self, rows: np.ndarray, value: int) -> None:
        """Set rows to zero, which is all that formulae does."""
        assert value == 0
        self.codes = np.where(rows, -1, self.codes)

    def times(self, other: "Indicators") -> "Indicators":
        """Multiply each column by each one of another matrix, whose columns run faster."""
        codes = self.codes * other.n_columns + other.codes
        both = self.any() & other.any()
        return Indicators(np.where(both, codes, -1), self.n_columns * other.n_columns)

    def with_unseen(self) -> "Indicators":
        """Return the matrix with a column more for rows without a 1, if there are such rows."""
        if self.any().all():
            return self
        codes = np.where(self.any(), self.codes, self.n_columns)
        return Indicators(codes, self.n_columns + 1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = np.zeros(self.shape, dtype or self.dtype)
        rows = np.flatnonzero(self.any())
        found[rows, self.codes[rows]] = 1
        return found


class Identity:
    """The contrasts of a factor with a column for each level.

    Parameters
    ----------
    labels
        Names of the levels.
    """

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels

    @property
    def matrix(self) -> "Identity":
        """The identity matrix, of which rows are taken."""
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.labels), len(self.labels)

    def __getitem__(self, levels: np.ndarray) -> Indicators:
        n_levels = len(self.labels)
        return Indicators(np.arange(n_levels)[levels], n_levels)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.eye(len(self.labels), dtype=dtype or int)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.labels == other.labels

    def __hash__(self) -> int:
        return hash(tuple(self.labels))


class Factor(Term):
    """A grouping factor, or an interaction of several, by code."""

    def set_data(self, spans_intercept: bool) -> None:
        """Find the codes of the rows of the fit."""
        with _contrasts_by_code():
            for component in self.components:
                component.set_data(spans_intercept)
        self.data = _interaction([component.value for component in self.components])

    def eval_new_data(self, data: pd.DataFrame) -> Any:
        """Find the codes of new rows."""
        return _interaction([component.eval_new_data(data) for component in self.components])


class GroupTerm(GroupSpecificTerm):
    """Effects of the levels of a grouping factor."""

    def eval_new_data(self, data: pd.DataFrame) -> Any:
        """Make the sparse design matrix of new rows; levels not seen before share a new column."""
        predictor, groups = self.expr.eval_new_data(data), self.factor.eval_new_data(data)
        if not isinstance(groups, Indicators):
            return super().eval_new_data(data)
        groups = groups.with_unseen()
        columns = predictor[:, None] if predictor.ndim == 1 else predictor
        return row_khatri_rao_sparse(columns, groups.argmax(), k=groups.n_columns)


def _interaction(parts: list[Any]) -> Any:
    """Multiply the indicators of several factors; dense ones if their contrasts are not 0 and 1."""
    if all(isinstance(part, Indicators) for part in parts):
        return reduce(Indicators.times, parts)
    return reduce(get_interaction_matrix, [np.asarray(part) for part in parts])


@contextmanager
def _replaced(owner: type, name: str, function: Any) -> Iterator[None]:
    """Replace a method for a while."""
    before = vars(owner)[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _contrasts_by_code() -> Iterator[None]:
    """Let factors that have a column for each level be coded without the identity matrix."""

    def code(_: Treatment, levels: list[Any]) -> Identity:
        return Identity([str(level) for level in levels])

    with _replaced(Treatment, "code_with_intercept", code):
        yield


@contextmanager
def by_code() -> Iterator[None]:
    """Let formulae keep grouping factors by code while formulas are read."""
    dense = GroupSpecificTerm.set_data

    def set_data(term: GroupSpecificTerm, spans_intercept: bool) -> None:
        term.__class__, term.factor.__class__ = GroupTerm, Factor
        dense(term, spans_intercept)

    with _replaced(GroupSpecificTerm, "set_data", set_data):
        yield


SMALL_FORMULA = "0 + x + (1 + x | a) + (0 + x + b | a:b) + (b | C(c)) + (1 | a/b)"
"""Intercepts, slopes of numbers and categories, crossed and nested factors."""


def is_right() -> bool:
    """Whether design matrices by code are those of formulae, of a small frame and of new levels."""
    n_rows = 24
    frame = pd.DataFrame(
        {
            "x": np.linspace(-1.0, 2.0, n_rows),
            "a": np.resize(["u", "w", "v", "w", "t"], n_rows),
            "b": np.resize(["q", "p", "p"], n_rows),
            "c": np.resize([3, 1, 7, 7], n_rows),
        }
    )
    new = frame.iloc[::5].assign(a=["v", "new", "t", "u", "w"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas will not do for formulae in its next version
        expected = _small_design(frame, new)
        with by_code():
            found = _small_design(frame, new)
    return len(found) == len(expected) and all(
        np.array_equal(a, b) for a, b in zip(found, expected, strict=True)
    )


def _small_design(frame: pd.DataFrame, new: pd.DataFrame) -> list[Any]:
    """All that a design of groups tells: matrices, columns, names, groups and labels."""
    group = design_matrices(SMALL_FORMULA, frame).group
    told: list[Any] = [group.design_matrix.toarray()]
    for name, term in group.terms.items():
        told += [name, term.kind, term.groups, term.labels, group.slices[name]]
        told += [np.asarray(term.factor.data), term.factor.data.argmax(1), term.data.toarray()]
    with _unseen_are_allowed():
        again = group.evaluate_new_data(new)
    return [*told, again.design_matrix.toarray(), again.factors_with_new_levels, *again.slices]


@contextmanager
def _unseen_are_allowed() -> Iterator[None]:
    """Let formulae read levels that it has not seen."""
    before = config["EVAL_UNSEEN_CATEGORIES"]
    config["EVAL_UNSEEN_CATEGORIES"] = "silent"
    try:
        yield
    finally:
        config["EVAL_UNSEEN_CATEGORIES"] = before
