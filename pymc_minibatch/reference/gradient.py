"""The gradient of the density, as ``base(θ) + Σₙ row(θ, n)``.

Without a control variate the base is the gradient of the prior part. With one of order 2 it is that
plus G + Hδ, and the gradient of a row is less its share gₙ + Hₙδ (notation of :mod:`.taylor`); the
sum is the same, but near the reference the rows vary less.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.gradient import grad

from pymc_minibatch.jit.compiled import compile_numba, jit_cached
from pymc_minibatch.reference.find import Reference
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import compile_row_gradients

__all__ = ["GradientTarget", "make_gradient_target"]


class GradientTarget(NamedTuple):
    """The parts of the gradient.

    Attributes
    ----------
    base
        ``(point, constants) -> array (D,)``, which reads no data.
    row
        ``(point, constants, batch) -> array (n, D)``, one gradient for each row of the batch.
    constants
        What both read besides: reference point, G and H.
    """

    base: Callable[..., np.ndarray]
    row: Callable[..., np.ndarray]
    constants: tuple[np.ndarray, np.ndarray, np.ndarray]


def make_gradient_target(
    tall: TallModel, reference: Reference | None, order: int
) -> GradientTarget:
    """Split the gradient with a control variate of order 0 (none), 1 or 2."""
    dim = tall.layout.size
    constants = np.zeros(dim), np.zeros(dim), np.zeros((dim, dim))
    if order and reference is not None:
        hessian = reference.hessian if order == 2 else constants[2]
        constants = reference.flat, reference.gradient, hessian
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    prior, rows = compile_numba([tall.flat], [gradient]), compile_row_gradients(tall, order)
    base = jit_cached(BASE, "base", {"prior_gradient": prior.jitted}, [prior.cache_key])
    environment = {"np": np, "row_gradients": rows.jitted}
    row = jit_cached(ROW, "row", environment, [rows.cache_key])
    return GradientTarget(base, row, constants)


BASE = """
def base(point, constants):
    reference, gradient, hessian = constants
    total = prior_gradient(point)[0] + gradient
    for j in range(point.size):
        delta = point[j] - reference[j]
        for i in range(point.size):
            total[i] += hessian[j, i] * delta
    return total
"""

ROW = """
def row(point, constants, batch):
    return np.ascontiguousarray(row_gradients(point, constants[0], *batch)[0])
"""
