"""The rows of a model, expanded about one point after another, and how many that has read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_minibatch.latent.expansion import Expansion, expand
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.smoothing import find_smoothing
from pymc_minibatch.latent.sums import ParabolicRows, agree_with_rows, expand_exactly
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

__all__ = ["RowBudget", "RowExpander"]


@dataclass
class RowBudget:
    """Rows that searches may yet read.

    Attributes
    ----------
    left : float
        How many.
    """

    left: float = np.inf

    def spend(self, n_rows: int) -> None:
        """Take rows out of it.

        Raises
        ------
        NoFieldError
            If it is empty.
        """
        if self.left < 0.0:
            raise NoFieldError("The search has read as many rows as it may.")
        self.left -= n_rows


@dataclass
class RowExpander:
    """Rows, and what it takes to expand their log-likelihood about a point.

    Attributes
    ----------
    tall, field, functions, temperature
        The model, its field, functions of its rows, and the temperature of the posterior.
    data : tuple of ndarray
        The rows: all of them, or some.
    counts : ndarray, shape (P,)
        How many rows each entry of φ has.
    budget : RowBudget
        Rows that may yet be read.
    exact : Expansion or None
        The expansion of all rows, if it holds everywhere; then no row is read.
    rows_read : int
        How many rows were read.
    """

    tall: TallModel
    field: LatentField
    functions: RowFunctions
    temperature: float
    data: tuple[np.ndarray, ...]
    counts: np.ndarray
    budget: RowBudget
    exact: Expansion | None = None
    rows_read: int = 0

    @classmethod
    def of(
        cls,
        tall: TallModel,
        field: LatentField,
        rows: RowFunctions,
        factors: Sequence[Factor],
        temperature: float,
    ) -> "RowExpander":
        """Take all rows of a model."""
        counts = np.zeros(field.derivatives.phi(tall.start).size)
        for factor in factors:
            of_levels = np.bincount(factor.row_levels, minlength=factor.n_levels)
            counts[factor.entries] = factor.share * of_levels[:, None]
        return cls(tall, field, rows, temperature, tall.data, counts, RowBudget())

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return len(self.data[0])

    def some(self, n_rows: int) -> "RowExpander":
        """Return some of the rows, drawn at random, within the same budget."""
        chosen = np.sort(np.random.default_rng(0).choice(self.n_rows, n_rows, replace=False))
        return replace(self, data=tuple(values[chosen] for values in self.data), rows_read=0)

    def without(self, left_out: np.ndarray) -> "RowExpander":
        """Return all rows but those with these numbers."""
        if not left_out.size:
            return self
        return replace(
            self, data=tuple(np.delete(values, left_out, axis=0) for values in self.data)
        )

    def expand(self, point: np.ndarray, *, concave: bool = False) -> Surrogate:
        """Expand the rows about a point, or rows that are made concave.

        Some rows do not count for more than they are: repeated, the few rows that a group has among
        them would say that groups differ as much as single rows do.
        """
        if self.exact is not None:
            surrogate = Surrogate(self.tall, self.field, self.exact, point)
            value = surrogate.log_likelihood(surrogate.read(point))
            surrogate.expansion = replace(self.exact, value=value)
            return surrogate
        self.budget.spend(self.n_rows)
        phi, layout = self.field.derivatives.phi(point), self.field.rows
        expansion = expand(
            self.functions, self.data, phi, layout, self.temperature, concave=concave
        )
        self.rows_read += self.n_rows
        if not (np.isfinite(expansion.value) and np.isfinite(expansion.slope).all()):
            expansion = replace(expansion, value=-np.inf)
        return Surrogate(self.tall, self.field, expansion, point)

    def widen(self, point: np.ndarray) -> None:
        """Fit the intervals over which rows with kinks are averaged to a point."""
        if self.functions.kinked:
            phi = self.field.derivatives.phi(point)
            self.functions.smoothing = find_smoothing(self.functions, phi, self.data, self.counts)

    def sum_exactly(self, point: np.ndarray, parabolic: ParabolicRows) -> None:
        """Sum all rows about a point, once and for all."""
        phi, layout = self.field.derivatives.phi(point), self.field.rows
        self.exact = expand_exactly(
            self.functions, parabolic, self.data, phi, layout, self.temperature
        )
        self.rows_read += 2 * self.n_rows

    def agrees(self, surrogate: Surrogate, cholesky: np.ndarray) -> bool:
        """Whether sums say what all rows say."""
        hypers = surrogate.center[self.field.hyper], cholesky
        self.rows_read += self.n_rows
        return agree_with_rows(self.functions, self.data, surrogate, hypers, self.temperature)
