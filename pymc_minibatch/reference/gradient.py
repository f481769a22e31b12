"""The gradient of the density, as ``base(θ) + Σₙ row(θ, n)``.

Without a control variate the base is the gradient of the prior part. With one of order 2 it is that
plus G + Hδ, and the gradient of a row is less its share gₙ + Hₙδ (notation of :mod:`.taylor`); the
sum is the same, but near the reference the rows vary less.

A gradient tells nothing of a hard constraint. If the prior part may have one
(:mod:`pymc_minibatch.tall.support`), kernels take a base that is NaN wherever the log-density of
the prior part is not finite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.gradient import grad

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import (
    NO_DERIVATIVE,
    compile_gradient_sum,
    compile_row_gradients,
)

__all__ = ["GradientTarget", "bounded_base", "make_gradient_sum", "make_gradient_target"]


class GradientTarget(NamedTuple):
    """The parts of the gradient.

    Attributes
    ----------
    base
        ``(point, constants) -> array (D,)``, which reads no data.
    row
        ``(point, constants, batch) -> array (n, D)``, one gradient for each row of the batch; or
        their sum, an array (D,).
    constants
        What else both read: reference point, G and H.
    """

    base: Callable[..., np.ndarray]
    row: Callable[..., np.ndarray]
    constants: tuple[np.ndarray, np.ndarray, np.ndarray]


def make_gradient_target(tall: TallModel, control: ControlVariate | None) -> GradientTarget:
    """Split the gradient with a control variate, or without."""
    return _target(tall, control, compile_row_gradients)


def make_gradient_sum(tall: TallModel, control: ControlVariate | None) -> GradientTarget:
    """Split the gradient, where of a batch the sum is enough: an array (n, D) is not made."""
    return _target(tall, control, compile_gradient_sum)


def bounded_base(tall: TallModel) -> Callable[..., np.ndarray]:
    """Compile the base that is NaN if the log-density of the prior part is not finite."""
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    prior = compile_numba([tall.flat], [gradient, tall.prior_graph])
    return jit_kept(make_bounded_base(prior.jitted), [prior.cache_key])


def _target(
    tall: TallModel,
    control: ControlVariate | None,
    compile_rows: Callable[[TallModel, int], CompiledFunction],
) -> GradientTarget:
    dim, order = tall.layout.size, 0 if control is None else control.order
    constants = np.zeros(dim), np.zeros(dim), np.zeros((0, 0))
    if control is not None and order:
        constants = control.constants
    try:
        gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
        prior, rows = compile_numba([tall.flat], [gradient]), compile_rows(tall, order)
    except NO_DERIVATIVE as error:
        raise ValueError(
            f"The model has no gradient in PyTensor: {error} Use MinibatchMH, which needs none."
        ) from error
    base = jit_kept(make_base(prior.jitted), [prior.cache_key])
    return GradientTarget(base, jit_kept(make_row(rows.jitted), [rows.cache_key]), constants)


def make_base(prior_gradient: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the gradient of the prior part and the Taylor terms of all rows."""

    def base(point: np.ndarray, constants: Any) -> np.ndarray:
        reference, gradient, hessian = constants
        total = prior_gradient(point)[0] + gradient
        for j in range(hessian.shape[0]):  # none without a control variate
            delta = point[j] - reference[j]
            for i in range(point.size):
                total[i] += hessian[j, i] * delta
        return total

    return base


def make_bounded_base(prior: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the same, NaN if the log-density of the prior part is not finite."""

    def base(point: np.ndarray, constants: Any) -> np.ndarray:
        reference, gradient, hessian = constants
        slope, value = prior(point)
        if not np.isfinite(value.item()):
            return np.full(point.size, np.nan)
        total = slope + gradient
        for j in range(hessian.shape[0]):
            delta = point[j] - reference[j]
            for i in range(point.size):
                total[i] += hessian[j, i] * delta
        return total

    return base


def make_row(row_gradients: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the gradients of the rows, less those of their Taylor terms."""

    def row(point: np.ndarray, constants: Any, batch: Any) -> np.ndarray:
        return np.ascontiguousarray(row_gradients(point, constants[0], *batch)[0])

    return row
