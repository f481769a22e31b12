"""A bound that the user brings."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_minibatch.bounds.collapse import BoundError, FireflyTarget, brought, trial_rows
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.compiled import compile_numba
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows

__all__ = ["Bound", "BroughtTarget"]


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound of any likelihood, written in the model's variables.

    Parameters
    ----------
    rows : tensor of shape (N,)
        log Bₙ, for each row a lower bound of its log-likelihood as PyMC has it, with all of its
        constants. Arrays with N entries along their first axis are taken for row data.
    total : scalar tensor
        Σ log Bₙ in a form that does not read the rows: what collapses into sums made beforehand.

    Notes
    -----
    ``FlyMC`` verifies on random rows, at random points, that the bounds lie below the likelihood,
    and that they add up to `total`, and a chain that finds a row where they do not stops.

    Source: Maclaurin and Adams (2014), section 2.

    Examples
    --------
    Laplace errors with scale 1: −|r| ≥ −(r²/ξ + ξ)/2 for any ξ > 0.

    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> y, xi = np.linspace(-2, 3, 100), 1.5
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     pm.Laplace("y", mu, 1.0, observed=y)
    ...     rows = -np.log(2) - ((y - mu) ** 2 / xi + xi) / 2
    ...     squares = (y**2).sum() - 2 * mu * y.sum() + y.size * mu**2
    ...     total = y.size * (-np.log(2) - xi / 2) - squares / (2 * xi)
    ...     step = pmb.FlyMC(bound=pmb.Bound(rows, total))
    y
    """

    rows: Variable
    total: Variable

    def __repr__(self) -> str:
        return "Bound(...)"


class BroughtTarget(FireflyTarget):
    """The target with a bound that the user brings.

    Parameters
    ----------
    tall
        The model.
    bound
        The bound.
    active
        Positions of the variables to sample.
    uses_gradient
        Whether to compile the gaps with their gradient.

    Raises
    ------
    BoundError
        If the bound has not one entry for each row, depends on rows other than its own, or does not
        add up to its total.
    """

    def __init__(
        self, tall: TallModel, bound: Bound, active: np.ndarray, uses_gradient: bool = True
    ) -> None:
        self.tall, self.active, self.uses_gradient = tall, active, uses_gradient
        self.entering = np.arange(tall.layout.size)
        self.point, *self.batch_inputs = tall.batch_graph[0]
        rows, total = tall.model.replace_rvs_by_values([bound.rows, bound.total])
        if rows.ndim != 1 or total.ndim != 0:
            raise BoundError(
                f"Bound needs rows of shape (N,) and a total that is a scalar; they have {rows.ndim} "
                f"and {total.ndim} dimensions."
            )
        self._total = tall._bind(pt.cast(total, "float64"), {})
        self._slice(rows)
        self._check_sum(rows)

    def _slice(self, rows: Variable) -> None:
        n_rows = self.tall.n_rows
        own = {row_input.leaf: row_input.axis for row_input in self.tall.row_inputs.values()}
        extra = {
            leaf: 0
            for leaf in data_leaves([rows])
            if leaf not in own and leaf_value(leaf).shape[:1] == (n_rows,)
        }
        batch, term = slice_rows(rows, n_rows, own | extra)
        shared = dict(zip(batch, self.batch_inputs, strict=False))
        [term] = graph_replace([self.tall._bind(term, {})], shared, strict=False)
        self._rows = pt.cast(term, "float64")
        self.batch_inputs = [*self.batch_inputs, *batch[len(own) :]]
        self.data = (*self.tall.data, *(np.ascontiguousarray(leaf_value(leaf)) for leaf in extra))

    def _check_sum(self, rows: Variable) -> None:
        rng = np.random.default_rng(20140406)
        start = self.tall.layout.flatten(self.tall.model.initial_point())
        inputs = [self.point, *self.batch_inputs]
        row_bounds = compile_numba(inputs, [self._rows])
        total = compile_numba([self.point], [self._total])
        for spread in (0.0, 0.3, 0.3):
            point = start + spread * rng.standard_normal(start.size)
            terms = row_bounds(point, *self.data)
            if terms.shape != (self.tall.n_rows,):
                raise BoundError(
                    f"Bound needs one number for each of {self.tall.n_rows} rows; rows has shape "
                    f"{terms.shape}."
                )
            some = trial_rows(self.tall.n_rows, 64)[::-1]
            alone = row_bounds(point, *self.batch(some))
            if not np.allclose(alone, terms[some], rtol=1e-9, atol=1e-9):
                raise BoundError("The rows of the bound depend on rows other than their own.")
            expected, given = float(terms.sum()), float(total(point))
            if not abs(expected - given) <= 1e-9 * np.abs(terms).sum():
                raise BoundError(
                    f"The rows of the bound add up to {expected:.10g}, and its total is "
                    f"{given:.10g}, at a point near the start. Sampling needs them to agree."
                )

    def base_graph(self) -> tuple[list[Variable], list[Variable]]:
        """Prior and total."""
        [prior] = graph_replace([self.tall.prior_graph], {self.tall.flat: self.point}, strict=False)
        return [self.point, pt.dvector("reference")], [prior + self._total]

    @property
    def assemble(self) -> Callable[..., tuple[float, np.ndarray]]:
        """Nothing is left to add."""
        return brought

    def gap_graph(self) -> tuple[list[Variable], Variable]:
        """Log-likelihood less bound."""
        inputs = [self.point, pt.dvector("reference"), *self.batch_inputs]
        return inputs, self.tall.batch_graph[1][0] - self._rows

    def constants(
        self, reference: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Nothing is left to collapse."""
        return (reference.copy(),)
