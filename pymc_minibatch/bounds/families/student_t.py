r"""Rows with Student's t distribution: f = −(ν+1)/2 log(1 + v²), v = (y − η)/(σ√ν).

\|f'''\| = (ν+1)/2 \|g\| / (σ√ν)³ with g = 4 v (v² − 3)/(1 + v²)³. dg/dv is proportional to
v⁴ − 6 v² + 1, which vanishes at v = ±√2 ± 1. So the largest \|g\| on an interval is that at an end
or at one of these within.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import StudentTRV

from pymc_minibatch.bounds.families.family import Family, OfSteps, Taylor, Third, Trial
from pymc_minibatch.bounds.likelihood import Likelihood, NoBoundError, Reader
from pymc_minibatch.bounds.student_t import StudentT
from pymc_minibatch.jit.interpreted import evaluator

__all__ = ["STUDENT_T", "largest"]

PEAKS = (np.sqrt(2) - 1, np.sqrt(2) + 1, 1 - np.sqrt(2), -1 - np.sqrt(2))
"""Points at which g has its extremes."""


def third(trial: Trial) -> tuple[Third, np.ndarray] | None:
    """Take y, ν and σ from the graph of the model."""
    try:
        likelihood = trial.likelihood()
    except NoBoundError:
        return None
    if likelihood.family != "student_t":
        return None
    assert likelihood.scale is not None
    known: list[Any] = [likelihood.observed, likelihood.parameters["nu"], likelihood.scale]
    parameters = evaluator(likelihood.inputs, [pt.cast(graph, "float64") for graph in known])
    point = trial.start

    def parts(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, nu, sigma = parameters.outputs(point, *batch)
        return y, nu, sigma * np.sqrt(nu)

    y, nu, width = parts(trial.batch)

    def third_derivative(eta: np.ndarray) -> np.ndarray:
        v = (y - eta) / width
        derivative: np.ndarray = (nu + 1) / 2 * 4 * v * (v**2 - 3) / (1 + v**2) ** 3 / width**3
        return derivative

    def bound(lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
        y, nu, width = parts(batch)
        return (nu + 1) / 2 * largest((y - highest) / width, (y - lowest) / width) / width**3

    def remainder(eta: np.ndarray, taylor: Taylor, batch: Sequence[np.ndarray]) -> OfSteps:
        y, nu, width = parts(batch)
        _, slope, second = taylor

        def of_steps(t: np.ndarray) -> np.ndarray:
            before, after = ((y - x) / width for x in (eta, eta + t))
            rise = -(nu + 1) / 2 * (np.log1p(after**2) - np.log1p(before**2))
            return np.asarray(rise - slope * t - second * t**2 / 2)

        return of_steps

    return Third(bound, remainder), trial.fits(3, third_derivative)


def largest(lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of 4 v (v² − 3)/(1 + v²)³ on intervals."""

    def size(v: Any) -> Any:
        return np.abs(4 * v * (v**2 - 3)) / (1 + v**2) ** 3

    found = np.maximum(size(lowest), size(highest))
    for peak in PEAKS:
        within = (lowest <= peak) & (peak <= highest)
        found = np.where(within, np.maximum(found, size(peak)), found)
    return found


def student_t(reader: Reader, nu: Variable, mu: Variable, sigma: Variable) -> Likelihood:
    """Read degrees of freedom, location and scale."""
    parameters = {"nu": reader.rows("nu", nu)}
    scale = reader.rows("scale", sigma)
    return reader.likelihood("student_t", reader.rows("predictor", mu), parameters, scale)


STUDENT_T = Family(
    name="student_t",
    rows=("StudentT of known scale",),
    third=third,
    likelihoods={StudentTRV: student_t},
    bound=StudentT(),
)
