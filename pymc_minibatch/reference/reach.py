"""How far the term of a row goes, out to six standard deviations of what the row reads.

What row n can do is a function of the few numbers vₙ that it reads. Under the Gaussian
approximation of the posterior, with covariance C, these are Gaussian with covariance
Vₙ = Jₙ C Jₙᵀ. So each row is looked at at its own scale, whatever the number of parameters: along
an axis for each of its numbers, vᵢ at s standard deviations and the others where they are then on
average, Δv = s Vₙ eᵢ / √(Vₙ)ᵢᵢ, for s = ±1, ±2, ±4 and ±6. From these

- the mean square over the posterior, with the probabilities of a normal variable to be nearest to
  each s, by which rows are drawn; and
- the largest change, by which a row is told that is flat where the chain mostly is, and has a wall
  behind.

The term is the log-likelihood of the row less what its expansion takes off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.derivatives import row_derivatives
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import DesignTerms, RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import NO_DERIVATIVE

__all__ = ["LENGTHS", "PROBABILITIES", "RowReach", "row_reach"]

LENGTHS = (1.0, 2.0, 4.0, 6.0)
"""Standard deviations at which rows are looked at, both ways."""

_ENDS = norm.cdf([0.5, 1.5, 3.0, 5.0, np.inf])
PROBABILITIES = tuple(np.diff(_ENDS))
"""Probability of a normal variable to be nearest to each of these, by the sense of s."""

MOST_NUMBERS = 8
"""Rows that read more are looked at at points that all rows share."""

MOST_DIRECTIONS = 64
"""With more parameters the variances of what rows read are estimated from so many directions."""


@dataclass(frozen=True)
class RowReach:
    """What looks at a batch of rows; it can be pickled.

    Attributes
    ----------
    predictors_at, arrays, derivatives, row
        As in :class:`.RowFunctions`.
    reads
        Which entries of φ rows read.
    at, center : ndarray, shape (P,)
        φ at the point of the expansion, and at the mean of the Gaussian approximation.
    root : ndarray, shape (P, m)
        A root of the covariance of φ.
    order : int
        Of the terms that are taken off.
    n_arrays : int
        Arrays of a batch.
    """

    predictors_at: Evaluator
    arrays: Evaluator
    derivatives: Evaluator
    row: Evaluator
    reads: DesignTerms
    at: np.ndarray
    center: np.ndarray
    root: np.ndarray
    order: int
    n_arrays: int

    def __call__(self, batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean square of what a row adds, its largest up to 4 sds, and at 6.

        What is not a number does not count; an impossible row counts as infinite.
        """
        there = self.predictors_at(self.at, *batch)
        taylor = self.derivatives(there, *batch)
        middle = self.predictors_at(self.center, *batch)
        first = self._term(middle, middle - there, taylor, batch)
        square, inner, outer = np.zeros((3, first.size))
        for axis in self.axes_at(batch):
            own = np.zeros(first.size)
            for s, probability in zip(LENGTHS, PROBABILITIES, strict=True):
                for way in (s * axis, -s * axis):
                    v = middle + way
                    change = np.abs(self._term(v, v - there, taylor, batch) - first)
                    change = np.where(np.isnan(change), 0.0, change)
                    own += probability * np.where(np.isinf(change), 0.0, change) ** 2
                    kept = outer if s == LENGTHS[-1] else inner
                    np.maximum(kept, change, out=kept)
            square += own
        return square, inner, outer

    def _term(
        self, v: np.ndarray, delta: np.ndarray, taylor: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        value = self.row(v, *batch)[0] - taylor[0]
        if self.order == 0:
            return value
        k = delta.shape[0]
        for i in range(k):
            value = value - taylor[1 + i] * delta[i]
            for j in range(i + 1 if self.order == 2 else 0):
                share = 0.5 if i == j else 1.0
                value = value - share * taylor[1 + k + second_order(i, j)] * delta[i] * delta[j]
        return value

    def axes_at(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return for each predictor how all of them move with it at one sd, shape (k, b)."""
        columns, entries, weights = self.arrays.outputs(*batch)
        reads, roots = self.reads, []
        for predictor in range(reads.n_predictors):
            dense = np.flatnonzero(reads.dense_predictor == predictor)
            own = columns[:, dense] @ self.root[reads.dense[dense]]
            for slot in np.flatnonzero(reads.predictor == predictor):
                own += weights[:, slot, None] * self.root[entries[:, slot]]
            roots.append(own)
        axes = []
        for own in roots:
            sd = np.sqrt(np.einsum("bm,bm->b", own, own))
            inverse = np.divide(1.0, sd, where=sd > 0, out=np.zeros_like(sd))
            axes.append(np.array([np.einsum("bm,bm->b", each, own) * inverse for each in roots]))
        return axes


def row_reach(tall: TallModel, control: ControlVariate) -> RowReach | None:
    """Return what looks at rows by what they read; None if they read too much, or not linearly."""
    structure = None if tall.layout.discrete else tall.structure
    if structure is None or any(structure.nonlinear) or len(structure.predictors) > MOST_NUMBERS:
        return None
    if tall.partitions is not None and any(term.index is not None for term in structure.terms):
        return None  # what indices read was looked at in a sample only
    gaussian, phi = control.gaussian, evaluator([structure.flat], [structure.phi])
    lower = np.linalg.cholesky(gaussian.precision_at(control.temperature))
    directions = np.linalg.inv(lower)  # rows, of which the sum of squares is the covariance
    if len(directions) > MOST_DIRECTIONS:
        signs = np.random.default_rng(3).choice([-1.0, 1.0], (MOST_DIRECTIONS, len(directions)))
        directions = signs @ directions / np.sqrt(MOST_DIRECTIONS)
    center = gaussian.center
    middle = phi(center)
    root = np.array([phi(center + step) - middle for step in directions]).T
    by_reading = row_derivatives(tall).by_reading
    rows: Any = RowFunctions(structure, evaluator) if by_reading is None else by_reading.rows
    try:
        _ = rows.derivatives
    except NO_DERIVATIVE:
        return None
    return RowReach(
        predictors_at=rows.predictors_at,
        arrays=rows.arrays,
        derivatives=rows.derivatives,
        row=rows.row,
        reads=rows.reads,
        at=phi(control.reference.flat),
        center=middle,
        root=root,
        order=control.order,
        n_arrays=len(structure.batch),
    )
