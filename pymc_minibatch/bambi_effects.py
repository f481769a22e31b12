"""Sums of a formula's group-specific effects, for few rows and all draws.

For each call Bambi copies the effects of all groups, and multiplies them with a sparse matrix of a
package that compares all pairs. Few rows need the effects of few groups.

Effects of levels that were not in the data are drawn from their prior, given its parameters in each
draw. Each new level has a stream of random numbers of its own, so its effects are the same in all
chunks of rows, and do not depend on what other rows are predicted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from pytensor.tensor.random.op import RandomVariable
from scipy.sparse import csr_matrix

from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.tall.check import FAILURES

__all__ = ["EffectsOfFewGroups", "NewLevelsError"]

ROUNDING = 1e-9
"""Relative error that sums in another order may have."""


class EffectsOfFewGroups:
    """Stands for Bambi's ``predict_group_specific`` of a formula, as far as the two agree.

    Parameters
    ----------
    component
        Bambi's component: a parameter with a formula.
    known
        Rows of the fit, at which the two are compared.
    seed
        Of the effects of new levels; None if these are refused.

    Attributes
    ----------
    agrees
        Whether they agree, in one draw of the rows of the first call, or of `known` if those have
        new levels; None before it.
    """

    def __init__(self, component: Any, known: pd.DataFrame, seed: int | None) -> None:
        self._component, self._of_bambi = component, component.predict_group_specific
        self._known, self._seed = known, seed
        self._priors: dict[tuple[str, int], _Prior] = {}
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
        if given["in_sample"]:
            return self._of_bambi(**given)
        design = self._design(given["data"])
        new = design.factors_with_new_levels
        if new and self._seed is None:
            raise NewLevelsError(
                f"Some rows have levels of the group {', '.join(new)} that the model has not seen. "
                "Pass sample_new_groups=True to draw their effects from the prior, or leave out "
                "those rows."
            )
        if self.agrees is None:
            self.agrees = self._agrees(given | {"data": self._known} if new else given)
        if self.agrees:
            return self._sums(given, design)
        if new:
            raise NewLevelsError(
                f"The effects of new levels of {', '.join(new)} cannot be drawn: this is possible "
                "only with one response per row. Leave out the rows with new levels."
            )
        return self._of_bambi(**given)

    def _design(self, data: pd.DataFrame) -> Any:
        """Let formulae make the design matrix, with a column for all new levels of a factor."""
        from formulae import config

        allowed = config["EVAL_UNSEEN_CATEGORIES"]
        config["EVAL_UNSEEN_CATEGORIES"] = "silent"
        try:
            return self._component.design.group.evaluate_new_data(data)
        finally:
            config["EVAL_UNSEEN_CATEGORIES"] = allowed

    def _agrees(self, given: dict[str, Any]) -> bool:
        """Compare one draw."""
        if len(given["to_stack_dims"]) != 2:
            return False
        one = given | {"posterior": given["posterior"].isel(chain=[0], draw=[0])}
        try:
            found = self._sums(one, self._design(one["data"]))
        except (*FAILURES, KeyError, AttributeError):  # of another version of Bambi
            return False
        expected = self._of_bambi(**one)
        same = set(found.dims) == set(expected.dims)
        return same and np.allclose(
            found.transpose(*expected.dims), expected, rtol=ROUNDING, atol=0.0, equal_nan=True
        )

    def _sums(self, given: dict[str, Any], design: Any) -> xr.DataArray:
        """Compute them, if there is one number for each row."""
        posterior = given["posterior"]
        shape = posterior.sizes["chain"], posterior.sizes["draw"]
        matrix = design.design_matrix.tocsr()
        sums = np.zeros((matrix.shape[0], shape[0] * shape[1]))
        for term in self._component.group_specific_terms.values():
            effects = _effects(posterior[getattr(term, "alias", None) or term.name])
            columns = matrix[:, design.slices[term.term.name]]
            n_known = effects.shape[1]
            sums += _times(columns[:, :n_known], effects)
            if columns.shape[1] > n_known:
                self._add_new(sums, term, columns[:, n_known:].tocsr(), given)
        return xr.DataArray(
            sums.reshape(-1, *shape), dims=(given["design_matrix_dims"][0], "chain", "draw")
        )

    def _add_new(
        self, sums: np.ndarray, term: Any, columns: csr_matrix, given: dict[str, Any]
    ) -> None:
        """Add the effects of a term's new levels, whose rows alone have entries in `columns`."""
        name = getattr(term, "alias", None) or term.name
        key = name, sums.shape[1]  # one draw is asked for first, for the shape of a prediction
        if key not in self._priors:
            self._priors[key] = _Prior(term, name, given["posterior"], columns.shape[1])
        rows = np.flatnonzero(np.diff(columns.indptr))
        labels = _labels(given["data"].iloc[rows], sorted(term.term.factor.var_names))
        codes, levels = pd.factorize(labels)
        for k, level in enumerate(levels):
            own = rows[codes == k]
            seed = (self._seed or 0, crc32(f"{name} {level}".encode()))
            sums[own] += columns[own] @ self._priors[key].drawn(seed).T


class NewLevelsError(IdentifiedError, ValueError):
    """Rows have levels of a group that the model has not seen."""

    id = "PMB609"


def _labels(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return the level of each row as text: what its columns hold."""
    parts = [rows[column].astype(str).to_numpy(dtype=object) for column in columns]
    return np.array([":".join(values) for values in zip(*parts, strict=True)], dtype=object)


class _Prior:
    """The prior of a term's effects, with its parameters in each draw.

    Parameters
    ----------
    term
        Bambi's term.
    name
        Its name in the posterior.
    posterior
        The draws.
    n_columns
        Effects of one level.
    """

    def __init__(self, term: Any, name: str, posterior: xr.Dataset, n_columns: int) -> None:
        n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
        self._size = n_draws, n_columns
        given = {}
        for key, value in term.prior.args.items():
            label = f"{name}_{term.hyperprior_alias.get(key, key)}"
            if hasattr(value, "args"):  # a prior of its own, of which there are draws
                drawn = posterior[label].transpose("chain", "draw", ...).to_numpy()
                given[key] = drawn.reshape(n_draws, -1)
            else:
                given[key] = np.broadcast_to(np.asarray(value, dtype=float), self._size)
        made = (term.prior.dist or getattr(pm, term.prior.name)).dist(**given)
        if made.owner is None or not isinstance(made.owner.op, RandomVariable):
            raise NewLevelsError(
                f"The effects of new levels cannot be drawn from the prior {term.prior.name} of "
                f"{name}. Leave out the rows with new levels."
            )
        self._op = made.owner.op
        self._parameters = [p.eval() for p in self._op.dist_params(made.owner)]

    def drawn(self, seed: tuple[int, int]) -> np.ndarray:
        """Draw the effects of one level; shape (draws, columns)."""
        rng = np.random.default_rng(seed)
        return np.asarray(self._op.rng_fn(rng, *self._parameters, self._size))


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
