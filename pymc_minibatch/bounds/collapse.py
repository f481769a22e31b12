"""Quadratic bounds of a recognised likelihood, whose sum over the rows collapses.

The log bounds are quadratic in a predictor that is affine in θ, so that their sum over all rows
is a number, a vector and a matrix, made once in one pass.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_minibatch.bounds.likelihood import ADVICE, Likelihood, NoBoundError
from pymc_minibatch.bounds.quadratic import Quadratic, QuadraticBound
from pymc_minibatch.bounds.target import TOLERANCE, FireflyTarget, trial_rows
from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["CollapsedTarget"]

CHUNK_NUMBERS = 2**17
"""Numbers of the Jacobian of the predictor made at once in a pass, so that they stay in cache."""


class CollapsedTarget(FireflyTarget):
    """Quadratic bounds of a recognised likelihood.

    Parameters
    ----------
    tall
        The model.
    likelihood
        Its likelihood.
    bound
        What to put below it.
    active
        Positions of the variables to sample.
    tuned
        Whether the bounds touch at the reference point.
    uses_gradient
        Whether to compile the gaps with their gradient.

    Raises
    ------
    NoBoundError
        If the predictor is not affine in the sampled variables, or the scale or another parameter
        does not collapse.
    """

    def __init__(
        self,
        tall: TallModel,
        likelihood: Likelihood,
        bound: QuadraticBound,
        active: np.ndarray,
        tuned: bool,
        uses_gradient: bool = True,
    ) -> None:
        self.tall, self.likelihood, self.bound = tall, likelihood, bound
        self.active, self.tuned, self.uses_gradient = active, tuned, uses_gradient
        self.entering = self._positions(set().union(*likelihood.depends.values()))
        self.moving = np.intersect1d(self._positions(likelihood.depends["predictor"]), active)
        self._check_parameters()
        self._check_affine()
        self._check_scale()

    # --- Graphs -------------------------------------------------------------------------------

    def base_graph(self) -> tuple[list[Variable], list[Any]]:
        """Build the prior and, with a scale, log κ = 2 log(σ at the reference point / σ)."""
        point, reference = self.likelihood.inputs[0], pt.dvector("reference")
        prior = self.prior_at(point)
        scale = self._scale_of_row_0()
        if scale is None:
            return [point, reference], [prior]
        at_reference: Any = graph_replace([scale], {point: reference}, strict=False)[0]
        return [point, reference], [prior, 2 * pt.log(at_reference / scale)]

    @property
    def assemble(self) -> Callable[..., tuple[float, np.ndarray]]:
        """How the parts of the base and the collapsed bounds are put together."""
        return without_scale if self.likelihood.scale is None else with_scale

    def gap_graph(self) -> tuple[list[Variable], Any]:
        """Build the gaps of the bound."""
        reference = pt.dvector("reference")
        point, *batch = self.likelihood.inputs
        tangent = self.likelihood.at(reference)
        return [point, reference, *batch], self.bound.gap(self.likelihood, tangent, self.tuned)

    def _scale_of_row_0(self) -> Any:
        if self.likelihood.scale is None:
            return None
        _, *batch = self.likelihood.inputs
        first: dict[Variable, Variable] = {
            variable: pt.constant(values[:1])
            for variable, values in zip(batch, self.data, strict=True)
        }
        scale: Any = graph_replace([self.likelihood.scale], first, strict=False)[0]
        return scale[0]

    @cached_property
    def _n_classes(self) -> int:
        start = self.tall.start
        eta = self.vector_predictor(start, *self.batch(np.arange(1)))
        return eta.shape[1] if eta.ndim == 2 else 1

    @cached_property
    def metric(self) -> np.ndarray:
        """The matrix A of the bounds' parabolas."""
        return self.bound.metric(self._n_classes)

    @made_once
    def vector_predictor(self) -> Evaluator:
        """``(point, *batch) -> (predictor, scale)``."""
        rows = self.likelihood
        scale = [] if rows.scale is None else [rows.scale]
        return evaluator(rows.inputs, [rows.predictor, *scale])

    @made_once
    def vector_quadratic(self) -> Evaluator:
        """``(reference, *batch) -> coefficients``."""
        rows = self.likelihood
        quadratic: Quadratic = self.bound.quadratic(rows, self.tuned)
        return evaluator(rows.inputs, list(quadratic))

    # --- Sufficient statistics ----------------------------------------------------------------

    def collapsed(
        self, reference: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Collapse the bounds in one pass, or estimate their sums from some rows.

        Returns
        -------
        reference : ndarray, shape (D,)
        numbers : ndarray, shape (2,)
            The sum of the constants, and the number of rows.
        linear : ndarray, shape (D,)
        quadratic : ndarray, shape (D, D)
        """
        size, moving = self.tall.layout.size, self.moving
        data = self.data if rows is None else self.batch(rows)
        chunks = over_chunks(
            lambda *batch: self._sums(reference, batch), data, "Collapsing the bounds"
        )
        sums = [np.zeros(()), np.zeros(moving.size), np.zeros((moving.size, moving.size))]
        for _, parts in chunks:
            for total, part in zip(sums, parts, strict=True):
                total += part
        constant, linear, quadratic = (self.tall.n_rows / len(data[0]) * total for total in sums)
        whole_linear, whole_quadratic = np.zeros(size), np.zeros((size, size))
        whole_linear[moving] = linear
        whole_quadratic[np.ix_(moving, moving)] = (quadratic + quadratic.T) / 2
        numbers = np.array([float(constant), float(self.tall.n_rows)])
        return reference.copy(), numbers, whole_linear, whole_quadratic

    def _sums(self, reference: np.ndarray, data: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sum what the bounds of some rows collapse into, little enough at a time for the cache."""
        moving = self.moving.size
        sums = [np.zeros(()), np.zeros(moving), np.zeros((moving, moving))]
        for batch in self.parts_for_cache(data):
            _, constants, slopes, curvature = self.vector_quadratic.outputs(reference, *batch)
            jacobian = self.jacobian(reference, batch)
            sums[0] += constants.sum()
            sums[1] += jacobian.reshape(moving, slopes.size) @ slopes.ravel()
            sums[2] += self.weighted_square(jacobian, curvature)
        return sums

    def parts_for_cache(self, data: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Cut rows into batches whose Jacobian fits in cache."""
        step = max(64, CHUNK_NUMBERS // max(1, self.moving.size * self._n_classes))
        for first in range(0, len(data[0]), step):
            yield [values[first : first + step] for values in data]

    def weighted_square(self, jacobian: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Sum wₙ JₙᵀAJₙ over rows."""
        mixed = (jacobian @ self.metric) * weights[:, None]
        flat = (len(jacobian), math.prod(jacobian.shape[1:]))
        return mixed.reshape(flat) @ jacobian.reshape(flat).T

    def jacobian(self, point: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Jacobian of an affine predictor by finite differences, which are exact.

        Returns
        -------
        ndarray, shape (moving variables, b, K)
        """
        start = self.vector_predictor(point, *batch)
        jacobian = np.empty((self.moving.size, start.shape[0], self._n_classes))
        for i, position in enumerate(self.moving):
            moved = point.copy()
            moved[position] += 1.0
            step = moved[position] - point[position]
            change = (self.vector_predictor(moved, *batch) - start) / step
            jacobian[i] = change.reshape(jacobian.shape[1:])
        return jacobian

    # --- Verification -------------------------------------------------------------------------

    def _positions(self, names: set[str]) -> np.ndarray:
        slices = self.tall.layout.slices
        found = [np.arange(s.start, s.stop) for name, s in slices.items() if name in names]
        return np.concatenate(found) if found else np.empty(0, dtype=int)

    def _check_parameters(self) -> None:
        for what in self.likelihood.parameters:
            names = self.likelihood.depends.get(what, set())
            sampled = np.intersect1d(self._positions(names), self.active)
            if sampled.size:
                name = self.tall.layout.name_of(int(sampled[0]))
                raise NoBoundError(
                    f"FlyMC cannot update {name}, the {what} of {self.tall.row_names[0]}. Fix it, "
                    "sample it with another step (FlyMC(vars=[...]) names the others), or use "
                    "MinibatchMH."
                )

    def _check_affine(self) -> None:
        """Verify that the predictor is affine in the sampled variables, wherever others are."""
        rng = np.random.default_rng(20140406)
        batch = self.batch(trial_rows(self.tall.n_rows, 64))
        for spread in (0.1, 1.0, 10.0):
            base = self.tall.start + spread * rng.standard_normal(self.tall.layout.size)
            names = sorted({self.tall.layout.name_of(int(i)) for i in self.moving})
            nonquadratic = [
                n for n in names if self._is_nonquadratic(base, batch, spread, rng, {n})
            ]
            if not nonquadratic and self._is_nonquadratic(base, batch, spread, rng, set(names)):
                nonquadratic = names
            if nonquadratic:
                raise NoBoundError(
                    f"The predictor of {self.tall.row_names[0]} is not affine in "
                    f"{', '.join(nonquadratic)}, so that quadratic bounds do not collapse. Use "
                    "MinibatchMH, which samples the model as it is, or leave such variables to "
                    "another step by naming the others in FlyMC(vars=[...])."
                )

    def _is_nonquadratic(
        self,
        base: np.ndarray,
        batch: Sequence[np.ndarray],
        spread: float,
        rng: np.random.Generator,
        names: set[str],
    ) -> bool:
        varied = np.intersect1d(self._positions(names), self.moving)
        change = np.zeros(base.size)
        change[varied] = spread * rng.standard_normal(varied.size)
        start = self.vector_predictor(base, *batch)
        expected = np.tensordot(change[self.moving], self.jacobian(base, batch), axes=1)
        actual = self.vector_predictor(base + change, *batch) - start
        scale = np.abs(start).max() + np.abs(expected).max() + 1.0
        with np.errstate(invalid="ignore"):
            error = np.abs(actual - expected.reshape(actual.shape)).max()
        return not error <= TOLERANCE * scale

    def _check_scale(self) -> None:
        """Verify that the scale is one number times what does not depend on the parameters."""
        names = self.likelihood.depends.get("scale", set())
        if not np.intersect1d(self._positions(names), self.active).size:
            return
        rng = np.random.default_rng(20140406)
        batch = self.batch(trial_rows(self.tall.n_rows, 64))
        ratios = []
        for _ in range(3):
            point = self.tall.start + rng.standard_normal(self.tall.layout.size)
            scale = self.vector_predictor.outputs(point, *batch)[1]
            ratios.append(scale / scale[0])
        if not np.allclose(ratios, ratios[0], rtol=1e-9):
            raise NoBoundError(
                f"The scale of {self.tall.row_names[0]} differs between rows in a way that depends "
                f"on {', '.join(sorted(names))}, so that the bounds do not collapse. {ADVICE}"
            )

    def check_likelihood(self, reference: np.ndarray, points: Sequence[np.ndarray]) -> None:
        """Verify that bound and gap add up to the log-likelihood of the model.

        Raises
        ------
        NoBoundError
            If they do not: the likelihood was not recognised rightly.
        """
        rows = trial_rows(self.tall.n_rows)
        batch = self.batch(rows)
        level, constant, linear, curvature = self.vector_quadratic.outputs(reference, *batch)
        eta_0, *scale_0 = self.vector_predictor.outputs(reference, *batch)
        offsets = []
        for point in [reference, *points]:
            eta, *scale = self.vector_predictor.outputs(point, *batch)
            epsilon, slope = ((eta - eta_0).T.reshape(-1, rows.size), linear.T)
            slope = slope.reshape(-1, rows.size)
            parabola = (slope * epsilon).sum(0) + 0.5 * curvature * (
                epsilon * (self.metric @ epsilon)
            ).sum(0)
            kappa = (scale_0[0] / scale[0]) ** 2 if scale else np.ones(rows.size)
            bound = level + kappa * (constant + parabola) + 0.5 * np.log(kappa)
            gaps = self.gaps(point, reference, rows)
            offsets.append(self.row_logp(point, rows) - bound - gaps)
        worst = np.abs(np.array(offsets) - offsets[0]).max()
        if not worst <= 1e3 * self.tolerance(reference):
            raise NoBoundError(
                f"The log-likelihood of {self.tall.row_names[0]} is not that of "
                f"{self.likelihood.family} rows with the predictor that was found in its graph "
                f"(it differs by {worst:.2g}). {ADVICE}"
            )


def brought(point: np.ndarray, parts: Any, constants: Any) -> tuple[float, np.ndarray]:
    """Value and gradient of a base that needs no sums."""
    return parts[0].item(), parts[1]


def without_scale(point: np.ndarray, parts: Any, constants: Any) -> tuple[float, np.ndarray]:
    """Add the collapsed bounds to the prior and its gradient."""
    value, slope = parabola(point, *constants)
    return parts[0].item() + value, parts[1] + slope


def with_scale(point: np.ndarray, parts: Any, constants: Any) -> tuple[float, np.ndarray]:
    """Add the collapsed bounds to the prior; log κ and its gradient are parts, too."""
    value, slope = parabola(point, *constants)
    log_kappa, n_rows = parts[2].item(), constants[1][1]
    kappa = np.exp(log_kappa)
    by_log_kappa = kappa * value + 0.5 * n_rows
    total = parts[0].item() + kappa * value + 0.5 * n_rows * log_kappa
    return total, parts[1] + kappa * slope + by_log_kappa * parts[3]


@njit(fastmath={"reassoc"})
def parabola(
    point: np.ndarray,
    reference: np.ndarray,
    numbers: np.ndarray,
    linear: np.ndarray,
    quadratic: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Value and gradient of c + hᵀδ + ½ δᵀQδ, where δ is the way from the reference point."""
    delta = point - reference
    slope = linear.copy()
    for i in range(delta.size):
        for j in range(delta.size):
            slope[i] += quadratic[i, j] * delta[j]
    return numbers[0] + 0.5 * ((linear + slope) * delta).sum(), slope
