"""A bound that the user brings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_minibatch.bounds.collapse import brought
from pymc_minibatch.bounds.target import BoundError, FireflyTarget, trial_rows
from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.row_input import RowInput
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows

__all__ = ["Bound", "BroughtTarget"]


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound of any likelihood, written in the model's variables.

    Parameters
    ----------
    rows : tensor of shape (N,)
        log Bₙ, for each row a lower bound of its log-likelihood as PyMC has it, with all of its
        constants. Arrays with N entries along their first axis are treated as row data.
    total : scalar tensor
        Σ log Bₙ in a form that does not read the rows, but only sums that are computed beforehand.

    Notes
    -----
    ``FlyMC`` verifies on random rows, at random points, that the bounds lie below the likelihood,
    and that they add up to `total`, and a chain that finds a row for which they do not stops.

    References
    ----------
    Maclaurin and Adams (2014), section 2.

    Examples
    --------
    Laplace errors with scale 1: −|r| ≥ −(r²/ξ + ξ)/2 for any ξ > 0.

    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data, xi = np.linspace(-2, 3, 5_000), 1.5
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Laplace("y", mu, 1.0, observed=data)
    ...     rows = -np.log(2) - ((data - mu) ** 2 / xi + xi) / 2
    ...     squares = (data**2).sum() - 2 * mu * data.sum() + data.size * mu**2
    ...     total = data.size * (-np.log(2) - xi / 2) - squares / (2 * xi)
    ...     step = pmb.FlyMC(bound=pmb.Bound(rows, total))
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> float(idata.posterior["mu"].mean().round(1))
    0.5
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
                "Bound needs rows of shape (N,) and a total that is a scalar; they have "
                f"{rows.ndim} and {total.ndim} dimensions."
            )
        self._total = tall.bind(pt.cast(total, "float64"), {})
        self._slice(rows)
        self._check_sum()

    def _slice(self, rows: Any) -> None:
        """Rebuild the bound on a batch of rows."""
        row_inputs = self.tall.row_inputs.values()
        axes, dtypes, n_rows = self.tall.row_axes
        extra = [
            leaf
            for leaf in data_leaves([rows])
            if leaf not in axes and leaf_value(leaf).shape[:1] == (n_rows,)
        ]
        if extra and n_rows != self.tall.n_rows:
            raise BoundError(
                "The rows of the bound read arrays that are not among the row data of the model, "
                "and data= has nothing for them. Write the bound in the model's own pm.Data."
            )
        batch, term = slice_rows(rows, n_rows, axes | dict.fromkeys(extra, 0), dtypes)
        shared: dict[Variable, Variable] = dict(zip(batch, self.batch_inputs, strict=False))
        [term] = graph_replace([self.tall.bind(term, {})], shared, strict=False)
        self._rows = pt.cast(term, "float64")
        self.batch_inputs = [*self.batch_inputs, *batch[len(row_inputs) :]]
        self.extra = tuple(
            RowInput(leaf.name or "constant", leaf, 0, leaf_value(leaf)) for leaf in extra
        )

    def _check_sum(self) -> None:
        """Verify at some points that the rows are independent and add up to the total."""
        rng = np.random.default_rng(20140406)
        start = self.tall.start.copy()
        row_bounds = compile_numba([self.point, *self.batch_inputs], [self._rows])
        total = compile_numba([self.point], [self._total])
        for spread in (0.0, 0.3, 0.3):
            point = start + spread * rng.standard_normal(start.size)
            terms = self._evaluate(row_bounds, point)
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

    def _evaluate(self, row_bounds: CompiledFunction, point: np.ndarray) -> np.ndarray:
        chunks = over_chunks(lambda *batch: row_bounds(point, *batch), self.data)
        terms = np.concatenate([part for _, part in chunks])
        if terms.shape != (self.tall.n_rows,):
            raise BoundError(
                f"Bound needs one number for each of {self.tall.n_rows} rows; rows has shape "
                f"{terms.shape}."
            )
        return terms

    def base_graph(self) -> tuple[list[Variable], list[Any]]:
        """Add the total to the prior."""
        return [self.point, pt.dvector("reference")], [self.prior_at(self.point) + self._total]

    @property
    def assemble(self) -> Callable[..., tuple[float, np.ndarray]]:
        """Add nothing: there are no sums."""
        return brought

    def gap_graph(self) -> tuple[list[Variable], Any]:
        """Subtract the bound from the log-likelihood."""
        inputs = [self.point, pt.dvector("reference"), *self.batch_inputs]
        term: Any = self.tall.batch_graph[1][0]
        return inputs, term - self._rows

    def collapsed(
        self, reference: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Return the reference point alone: there is nothing to collapse."""
        return (reference.copy(),)
