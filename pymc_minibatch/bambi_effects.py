"""Sums of a formula's group-specific effects, for few rows and all draws.

For each call Bambi copies the effects of all groups, and multiplies them with a sparse matrix of a
package that compares all pairs. Few rows need the effects of few groups.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
import xarray as xr
from scipy.sparse import csr_matrix

from pymc_minibatch.tall.check import FAILURES

__all__ = ["EffectsOfFewGroups"]

ROUNDING = 1e-9
"""Relative error that sums in another order may have."""


class EffectsOfFewGroups:
    """Stands for Bambi's ``predict_group_specific`` of a formula, as far as the two agree.

    Parameters
    ----------
    component
        Bambi's component: a parameter with a formula.

    Attributes
    ----------
    agrees
        Whether they agree, in one draw of the rows of the first call; None before it.
    """

    def __init__(self, component: Any) -> None:
        self._component, self._of_bambi = component, component.predict_group_specific
        self.agrees: bool | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let Bambi's component use it."""
        self._component.predict_group_specific = self
        try:
            yield
        finally:
            del self._component.predict_group_specific

    def __call__(self, *args: Any, **kwargs: Any) -> xr.DataArray:
        """Return the sums, with dimensions of rows, chains and draws."""
        given = signature(self._of_bambi).bind(*args, **kwargs).arguments
        if self.agrees is None:
            self.agrees = self._agrees(given)
        found = self._sums(given) if self.agrees else None
        return self._of_bambi(*args, **kwargs) if found is None else found

    def _agrees(self, given: dict[str, Any]) -> bool:
        """Compare one draw."""
        one = given | {"posterior": given["posterior"].isel(chain=[0], draw=[0])}
        try:
            found = self._sums(one)
        except (*FAILURES, KeyError, AttributeError):  # of another version of Bambi
            return False
        if found is None:
            return False
        expected = self._of_bambi(**one)
        same = set(found.dims) == set(expected.dims)
        return same and np.allclose(
            found.transpose(*expected.dims), expected, rtol=ROUNDING, atol=0.0, equal_nan=True
        )

    def _sums(self, given: dict[str, Any]) -> xr.DataArray | None:
        """Compute them; None if there are new groups, or several numbers for each row."""
        from formulae import config

        if given["in_sample"] or len(given["to_stack_dims"]) != 2:
            return None
        design, allowed = self._component.design.group, config["EVAL_UNSEEN_CATEGORIES"]
        config["EVAL_UNSEEN_CATEGORIES"] = "silent"
        try:
            design = design.evaluate_new_data(given["data"])
        finally:
            config["EVAL_UNSEEN_CATEGORIES"] = allowed
        if design.factors_with_new_levels:
            return None
        posterior = given["posterior"]
        shape = posterior.sizes["chain"], posterior.sizes["draw"]
        matrix = design.design_matrix.tocsr()
        sums = np.zeros((matrix.shape[0], shape[0] * shape[1]))
        for term in self._component.group_specific_terms.values():
            values = posterior[getattr(term, "alias", None) or term.name]
            sums += _times(matrix[:, design.slices[term.term.name]], _effects(values))
        return xr.DataArray(
            sums.reshape(-1, *shape), dims=(given["design_matrix_dims"][0], "chain", "draw")
        )


def _effects(values: xr.DataArray) -> np.ndarray:
    """Return draws of a term, shape (draws, columns of its design matrix)."""
    factor = [dim for dim in values.dims if str(dim).endswith("__factor_dim")]
    ordered = values.transpose("chain", "draw", *factor, ...).to_numpy()
    return ordered.reshape(ordered.shape[0] * ordered.shape[1], -1)


def _times(rows: csr_matrix, effects: np.ndarray) -> np.ndarray:
    """Multiply rows of a design matrix with draws of effects; shape (rows, draws)."""
    columns, place = np.unique(rows.indices, return_inverse=True)
    few = csr_matrix((rows.data, place, rows.indptr), shape=(rows.shape[0], columns.size))
    return few @ np.ascontiguousarray(effects[:, columns].T)
