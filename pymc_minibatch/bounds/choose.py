"""Choose the bound of a model and where it touches, collapse it, and verify it."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pymc_minibatch.bounds.bound import Bound, BroughtTarget
from pymc_minibatch.bounds.collapse import CollapsedTarget
from pymc_minibatch.bounds.families import FAMILIES
from pymc_minibatch.bounds.laplace import approximate, climb
from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.pinned import (
    curvature_of_posterior,
    posterior_root,
    rows_to_pin,
    warn_of_narrow_bounds,
)
from pymc_minibatch.bounds.quadratic import QuadraticBound
from pymc_minibatch.bounds.recognise import recognise
from pymc_minibatch.bounds.target import FireflyTarget
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.find import fitting
from pymc_minibatch.tall import TallModel

__all__ = ["ChosenBound", "recognised", "settle"]

BOUNDS: dict[str, QuadraticBound] = {
    family.name: family.bound for family in FAMILIES if family.bound is not None
}


NEWTON_STEPS = 10
NEAR = 0.5
"""Posterior standard deviations; bounds that touch so near to the mode are as good as at it."""


@dataclass(frozen=True)
class ChosenBound:
    """Numbers that a chain samples with.

    Attributes
    ----------
    constants : tuple of ndarray
        The collapsed bounds; they begin with the reference point, where tuned bounds touch.
    approximation : tuple of ndarray
        Mode of prior and bounds, a root of the covariance there, and its inverse.
    tolerance : float
        Negative gaps up to this size are rounding errors.
    """

    constants: tuple[np.ndarray, ...]
    approximation: tuple[np.ndarray, np.ndarray, np.ndarray]
    tolerance: float

    def moved(
        self, target: FireflyTarget, flat: np.ndarray, elsewhere: np.ndarray
    ) -> "ChosenBound":
        """Collapse the bounds anew where other steps have moved what they depend on."""
        reference = self.constants[0].copy()
        if np.array_equal(reference[elsewhere], flat[elsewhere]):
            return self
        reference[elsewhere] = flat[elsewhere]
        return replace(self, constants=target.constants(reference))


def settle(
    tall: TallModel,
    active: np.ndarray,
    bound: Literal["auto"] | QuadraticBound | Bound,
    tuned: bool,
    reference: Reference | None,
    uses_gradient: bool = True,
) -> tuple[FireflyTarget, QuadraticBound | Bound, ChosenBound]:
    """Put bounds below the likelihood, collapse them and verify what can be.

    Raises
    ------
    NoBoundError, BoundError
        As :class:`pymc_minibatch.FlyMC` says.
    ValueError
        If the bound is for another likelihood, or the reference for another model.
    """
    if reference is not None:
        reference = fitting(tall, reference)
    start = tall.start.copy()
    target: FireflyTarget
    if isinstance(bound, Bound):
        chosen: QuadraticBound | Bound = bound
        target = BroughtTarget(tall, bound, active, uses_gradient)
        touches = start if reference is None else reference.center
    else:
        likelihood, chosen = recognised(tall, bound)
        target = CollapsedTarget(tall, likelihood, chosen, active, tuned, uses_gradient)
        touches = start
        if tuned:
            touches = climb(target, start) if reference is None else reference.center
    constants = target.constants(touches)
    approximation = approximate(target, constants)
    if isinstance(target, CollapsedTarget) and tuned:
        if reference is None:
            touches = _at_mode(target, touches)
            constants = target.constants(touches)
            approximation = approximate(target, constants)
        curvature = curvature_of_posterior(target, constants, approximation)
        target.pinned = rows_to_pin(target, constants, approximation, curvature)
        if target.pinned.size:
            constants = target.constants(touches)
            approximation = approximate(target, constants)
        warn_of_narrow_bounds(target, approximation[1], curvature)
    chosen_bound = ChosenBound(constants, approximation, target.tolerance(touches))
    points = _trial_points(chosen_bound, active, start)
    target.check_bound(touches, points)
    if isinstance(target, CollapsedTarget):
        target.check_likelihood(touches, points)
    return target, chosen, chosen_bound


def recognised(
    tall: TallModel, bound: Literal["auto"] | QuadraticBound
) -> tuple[Likelihood, QuadraticBound]:
    """Recognise the likelihood, and take the bound that is wanted or known for it.

    Raises
    ------
    NoBoundError
        If none is known.
    ValueError
        If the bound is for another likelihood.
    """
    likelihood = recognise(tall)
    chosen = BOUNDS[likelihood.family] if bound == "auto" else bound
    if getattr(chosen, "family", None) != likelihood.family:
        raise ValueError(
            f"{chosen!r} is no bound for the likelihood of {tall.row_names[0]}, which is "
            f"{likelihood.family}; bound='auto' takes {BOUNDS[likelihood.family]!r}."
        )
    return likelihood, chosen


def _at_mode(target: CollapsedTarget, point: np.ndarray) -> np.ndarray:
    """Go on to the mode by Newton steps, where climbing from bound to bound has become slow.

    The nearer the bounds are to the likelihood in curvature, the longer are the steps of the climb;
    where they are far more curved it ends far from the mode.
    """
    point = point.copy()
    for _ in range(NEWTON_STEPS):
        constants = target.constants(point)
        approximation = approximate(target, constants)
        wide = posterior_root(
            approximation[1], curvature_of_posterior(target, constants, approximation)
        )
        # Bounds that touch have the slope of the likelihood.
        whitened = wide.T @ target.base(point, constants)[1][target.active]
        if not whitened @ whitened > NEAR**2:
            break
        moved = point.copy()
        moved[target.active] += wide @ whitened
        here, there = (target.tall.logp(target.tall.layout.unflatten(p)) for p in (point, moved))
        if not there > here:
            break
        point = moved
    return point


def _trial_points(
    chosen_bound: ChosenBound, active: np.ndarray, start: np.ndarray
) -> list[np.ndarray]:
    """Return points about the mode, near and far, and the start."""
    rng = np.random.default_rng(20140406)
    center, root, _ = chosen_bound.approximation
    points = [start]
    for spread in (0.3, 1.0, 3.0, 10.0):
        point = chosen_bound.constants[0].copy()
        point[active] = center + spread * root @ rng.standard_normal(center.size)
        points.append(point)
    return points
