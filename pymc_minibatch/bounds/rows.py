"""Rows about a point, bounded: the functions of rows with the curvature of their bounds.

A bound that touches at v̂ has the value and the slope of its row there, and is more curved. So with
its curvature in place of the row's own, sums of second order over the rows are those of the log
bounds, exactly; and what is left of a row beyond second order is its gap,

    log Lₙ − log Bₙ = f(vₙ) − f(v̂ₙ) − f'Δv − ½ f''_B Δv² ≥ 0,   Δv = vₙ − v̂ₙ.

Rows have to read one number, the predictor of their likelihood.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_minibatch.bounds.likelihood import Likelihood, NoBoundError
from pymc_minibatch.bounds.quadratic import QuadraticBound
from pymc_minibatch.bounds.target import TOLERANCE, BoundError, trial_rows, violation
from pymc_minibatch.jit.compiled import CompiledFunction
from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.probes import prior_points
from pymc_minibatch.tall.structure import RowStructure
from pymc_minibatch.tall.verify import agree

__all__ = ["BoundedRows"]

N_POINTS = 3


class BoundedRows(RowFunctions):
    """Functions of a batch of rows about the point where their bounds touch.

    Parameters
    ----------
    tall
        The model.
    structure
        What its rows read.
    likelihood
        Its likelihood.
    bound
        What is below it.

    Raises
    ------
    NoBoundError
        If rows read more than the predictor, or something else than it.
    """

    def __init__(
        self,
        tall: TallModel,
        structure: RowStructure,
        likelihood: Likelihood,
        bound: QuadraticBound,
    ) -> None:
        super().__init__(structure)
        self.likelihood, self.bound = likelihood, bound
        if self.n_predictors > 1:
            raise NoBoundError(
                f"Rows of {tall.row_names[0]} depend on {self.n_predictors} linear predictors. "
                "Bounds for models with effects need rows that depend on one: no unknown scale, "
                "no classes."
            )
        self._check_predictor(tall)

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled functions out."""
        return super().__getstate__() | {"likelihood": self.likelihood, "bound": self.bound}

    @made_once
    def triples(self) -> list[tuple[int, int, int]]:
        """No derivatives beyond the second belong to bounds."""
        return []

    @made_once
    def quads(self) -> list[tuple[int, int, int]]:
        """No derivatives beyond the second belong to bounds."""
        return []

    @made_once
    def derivatives(self) -> CompiledFunction:
        """``(v, *batch)`` gives f, f' and the second derivative of log B, shape (3, b)."""
        quadratic = self.bound.quadratic(self._rows, True)
        graphs = self._of_inputs([self._f, *self._slopes, quadratic.curvature])
        return self.build([self._v, *self.structure.batch], [self._stacked(graphs)])

    @made_once
    def gaps_by_formula(self) -> Evaluator:
        """``(v, v̂, *batch) -> log L − log B``, as the bound has it."""
        touches: Any = pt.dvector("touches")
        tangent = replace(self._rows, predictor=touches)
        gap = self.bound.gap(self._rows, tangent, True)
        return evaluator([self._predictor, touches, *self.structure.batch], [gap])

    @property
    def _predictor(self) -> Any:
        return self.structure.predictors[0]

    @property
    def _rows(self) -> Likelihood:
        """The likelihood with what rows read for its predictor."""
        own = self.likelihood
        stand_in: dict[Variable, Variable] = {own.predictor: self._predictor}
        values: list[Any] = graph_replace([*own.parameters.values()], stand_in, strict=False)
        parameters = dict(zip(own.parameters, values, strict=True))
        return replace(own, predictor=self._predictor, parameters=parameters)

    def _check_predictor(self, tall: TallModel) -> None:
        """Verify on random rows, near the start and at draws of the prior, that rows read it."""
        rng, numbers = np.random.default_rng(20140406), trial_rows(tall.n_rows)
        batch = [np.ascontiguousarray(values[numbers]) for values in tall.data]
        predictor = evaluator(self.likelihood.inputs, [self.likelihood.predictor])
        read = evaluator(
            [self.structure.flat, *self.structure.batch],
            self.structure.predictor_graphs(self.structure.phi),
        )
        points = [*(tall.start + rng.standard_normal((N_POINTS, tall.layout.size)))]
        with suppress(NotImplementedError, ValueError):  # priors that cannot be drawn from
            points += [*prior_points(tall.model, tall.layout, N_POINTS)]
        differs = agree(
            lambda point: predictor(point, *batch),
            lambda point: read(point, *batch),
            points,
            rows=numbers,
        )
        if differs is not None:
            raise NoBoundError(
                f"Rows of {tall.row_names[0]} do not depend on the predictor of their "
                f"{self.likelihood.family} likelihood: row {differs.entry} depends on "
                f"{differs.expected:.6g}, but the predictor is {differs.found:.6g}."
            )

    # --- Verification -------------------------------------------------------------------------

    def tolerance(self, at: np.ndarray, tall: TallModel) -> float:
        """Negative gaps up to this size are rounding errors."""
        batch = tall.batch(trial_rows(tall.n_rows))
        largest = np.abs(self.row(self.predictors_at(at, *batch), *batch)).max()
        return TOLERANCE * max(1.0, float(largest))

    def check(self, tall: TallModel, at: np.ndarray, readings: list[np.ndarray]) -> None:
        """Verify on random rows that bounds touch at φ̂ and are below rows at other φ.

        Raises
        ------
        BoundError
            Naming a row whose bound is not.
        NoBoundError
            If gaps are not those of the bound: the likelihood was not recognised rightly.
        """
        numbers, tolerance = trial_rows(tall.n_rows), self.tolerance(at, tall)
        batch = tall.batch(numbers)
        [touches] = self.predictors_at(at, *batch)
        for phi in readings:
            gaps = self.remainders(phi, phi, at, batch)[0]
            if not gaps.min() >= -tolerance:
                worst = int(np.argmin(np.nan_to_num(gaps, nan=-np.inf)))
                raise BoundError(violation(tall, int(numbers[worst]), float(gaps[worst])))
            [v] = self.predictors_at(phi, *batch)
            error = np.abs(gaps - self.gaps_by_formula(v, touches, *batch)).max()
            if not error <= 1e3 * tolerance:
                raise NoBoundError(
                    f"The log-likelihood of {tall.row_names[0]} is not that of "
                    f"{self.likelihood.family} rows with the predictor that was found in its graph "
                    f"(it differs by {error:.2g})."
                )
