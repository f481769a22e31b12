"""What an update of θ given the bright rows is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.reference.density import Density

__all__ = [
    "PINNED",
    "BrightnessState",
    "Context",
    "State",
    "Update",
    "Whitening",
    "accept",
    "decide",
    "log_odds",
    "new_brightness",
]

PINNED = 3
"""The state of a row that is read with the base, and neither bright nor dark."""


class BrightnessState(NamedTuple):
    """Which rows are bright.

    The arrays of length N other than `state` are written only as far as there are bright rows;
    the operating system gives memory to pages that are written, so the rest costs none.

    Attributes
    ----------
    state : ndarray of uint8, shape (N,)
        Whether a row is dark, bright, or always read.
    bright : ndarray of int64, shape (N,)
        The bright rows come first.
    log_odds : ndarray, shape (N,)
        log L̃ of the bright rows at the current point.
    proposed : ndarray, shape (N,)
        The same at the point evaluated last.
    n_bright : ndarray of int64, shape (1,)
        The number of bright rows.
    """

    state: np.ndarray
    bright: np.ndarray
    log_odds: np.ndarray
    proposed: np.ndarray
    n_bright: np.ndarray


class Whitening(NamedTuple):
    """A Gaussian approximation of prior and bounds, θ = center + root y with y standard normal.

    Attributes
    ----------
    active : ndarray of int64, shape (A,)
        The positions of θ in the flat point.
    center : ndarray, shape (A,)
        Its mode.
    root, inverse : ndarray, shape (A, A)
        A root of its covariance, and the inverse of that.
    """

    active: np.ndarray
    center: np.ndarray
    root: np.ndarray
    inverse: np.ndarray


class State(NamedTuple):
    """A point and what is known there; :func:`accept` changes all of it at once.

    Attributes
    ----------
    point, gradient : ndarray, shape (D,)
        The flat point, and the gradient of the log-density given z.
    log_density : ndarray, shape (1,)
        Its value.
    """

    point: np.ndarray
    gradient: np.ndarray
    log_density: np.ndarray


class Context(NamedTuple):
    """What the density given z is evaluated on; updates pass it on."""

    density: Density
    brightness: BrightnessState
    batch: Any
    tolerance: float
    counts: np.ndarray


@dataclass(frozen=True)
class Update:
    """A way to move θ given z, which leaves its distribution invariant.

    Attributes
    ----------
    build
        Takes ``evaluate(proposed, context) -> log density``, which fills in what is known at the
        proposed point, and returns the jitted ``update(rng, current, proposed, context, whitening,
        step) -> (accepted, signal)``, which moves by ``accept(current, proposed, flies)`` alone.
    uses_gradient
        Whether the gradient at the current point is read.
    target_signal
        Tuning makes the step longer while the signal is above this.
    first_step, longest_step
        Limits of the step, in standard deviations of the approximation.
    z_cost
        Rows evaluated by an implicit update of z for each one that the updates of θ evaluate.
    """

    build: Callable[..., Callable[..., tuple[bool, float]]]
    uses_gradient: bool
    target_signal: float
    first_step: Callable[[int], float]
    longest_step: float
    z_cost: float


def new_brightness(n_rows: int, pinned: np.ndarray) -> BrightnessState:
    """All rows dark, but those that are always read."""
    state = np.zeros(n_rows, np.uint8)
    state[pinned] = PINNED
    return BrightnessState(
        state,
        np.empty(n_rows, np.int64),
        np.empty(n_rows),
        np.empty(n_rows),
        np.zeros(1, np.int64),
    )


@register_jitable
def log_odds(gap: float) -> float:
    """Return log L̃ = log(exp(gap) − 1); -inf where bound and likelihood touch."""
    if gap > 0.0:
        return gap + np.log(-np.expm1(-gap))
    return -np.inf


@register_jitable
def accept(current: State, proposed: State, brightness: BrightnessState) -> None:
    """Move to the point evaluated last, with its gradient, log-density and log odds."""
    current.point[:], current.gradient[:] = proposed.point, proposed.gradient
    current.log_density[0] = proposed.log_density[0]
    for i in range(brightness.n_bright[0]):
        brightness.log_odds[i] = brightness.proposed[i]


@register_jitable
def decide(
    rng: np.random.Generator,
    log_ratio: float,
    current: State,
    proposed: State,
    brightness: BrightnessState,
) -> tuple[bool, float]:
    """Accept the point evaluated last with Metropolis's probability, which is returned too."""
    probability = np.exp(min(0.0, log_ratio)) if np.isfinite(log_ratio) else 0.0
    accepted = rng.random() < probability
    if accepted:
        accept(current, proposed, brightness)
    return accepted, probability


@register_jitable
def put_whitened(y: np.ndarray, whitening: Whitening, point: np.ndarray) -> None:
    """Write θ = center + root y into the point."""
    theta = times(whitening.root, y)
    for i in range(theta.size):
        point[whitening.active[i]] = whitening.center[i] + theta[i]


@register_jitable
def whitened(point: np.ndarray, whitening: Whitening) -> np.ndarray:
    """Return y at a point."""
    delta = np.empty(whitening.active.size)
    for i in range(delta.size):
        delta[i] = point[whitening.active[i]] - whitening.center[i]
    return times(whitening.inverse, delta)


@register_jitable
def whitened_gradient(gradient: np.ndarray, whitening: Whitening) -> np.ndarray:
    """Return the gradient by y."""
    total = np.zeros(whitening.active.size)
    for i in range(total.size):
        slope = gradient[whitening.active[i]]
        for j in range(total.size):
            total[j] += whitening.root[i, j] * slope
    return total


@register_jitable(fastmath={"reassoc"})
def times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Multiply a matrix and a vector; reassociation lets the sums run in SIMD."""
    product = np.empty(matrix.shape[0])
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        product[i] = total
    return product


@register_jitable
def standard_normal(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a standard normal vector."""
    draw = np.empty(size)
    for i in range(size):
        draw[i] = rng.standard_normal()
    return draw
