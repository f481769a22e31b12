"""Control variates: the Taylor remainder of the rows about a reference point.

With δ = θ − θ̂, gₙ and Hₙ the gradient and Hessian of row n at θ̂, and G, H their sums,

    Σ ℓₙ(θ) = [Gᵀδ + ½ δᵀHδ] + Σ [ℓₙ(θ) − gₙᵀδ − ½ δᵀHₙδ] + constant.

The first bracket costs no data, and only the sum of the remainders is estimated from a batch. At
the scale of the posterior a remainder is of third order, so that a batch of constant size does for
any number of rows. The estimate is unbiased for any θ̂.

The directional derivatives gₙᵀδ and δᵀHₙδ come from the graph of the rows by two forward-mode
derivatives along θ̂ + εδ; nothing of size N × D is ever made.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad, pushforward
from pytensor.graph.replace import graph_replace

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.tall import TallModel

__all__ = ["Target", "compile_prior_gradient", "compile_remainder", "make_target"]


class Target(NamedTuple):
    """The density to sample, as ``base(θ) + (1/T) Σₙ row(θ, n)``.

    Attributes
    ----------
    base
        ``(point, constants) -> float``, which reads no data.
    row
        ``(point, constants, batch) -> array``, one number for each row of the batch.
    constants
        What else both read.
    """

    base: Callable[..., float]
    row: Callable[..., np.ndarray]
    constants: tuple[np.ndarray, ...]


def make_target(tall: TallModel, control: ControlVariate | None) -> Target:
    """Split the density with a control variate, or without."""
    prior = tall.compiled_prior_logp
    if control is None or control.order == 0:
        rows = tall.compiled_row_logp
        make_base, make_row = plain_base, plain_row
        constants: tuple[np.ndarray, ...] = ()
    else:
        rows = compile_remainder(tall, control.order)
        make_base, make_row = surrogate_base, remainder_row
        constants = control.constants
    base = jit_kept(make_base(prior.jitted), [prior.cache_key])
    return Target(base, jit_kept(make_row(rows.jitted), [rows.cache_key]), constants)


def plain_base(prior_logp: Callable[..., Any]) -> Callable[..., float]:
    """Build the prior part."""

    def base(point: np.ndarray, constants: tuple[()]) -> float:
        return prior_logp(point)[0].item()

    return base


def plain_row(row_logp: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the log-likelihoods."""

    def row(point: np.ndarray, constants: tuple[()], batch: Any) -> np.ndarray:
        return row_logp(point, *batch)[0]

    return row


def surrogate_base(prior_logp: Callable[..., Any]) -> Callable[..., float]:
    """Build the prior part and the Taylor terms of all rows."""

    def base(point: np.ndarray, constants: Any) -> float:
        reference, gradient, hessian = constants
        surrogate = 0.0
        for i in range(point.size):
            slope = gradient[i]
            for j in range(point.size):
                slope += 0.5 * hessian[i, j] * (point[j] - reference[j])
            surrogate += slope * (point[i] - reference[i])
        return prior_logp(point)[0].item() + surrogate

    return base


def remainder_row(row_logp: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build what the Taylor terms leave of the log-likelihoods."""

    def row(point: np.ndarray, constants: Any, batch: Any) -> np.ndarray:
        return row_logp(point, constants[0], *batch)[0]

    return row


def compile_prior_gradient(tall: TallModel) -> Callable[..., np.ndarray]:
    """Compile the gradient of the prior part, ``(flat point,) -> array``."""
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    compiled = compile_numba([tall.flat], [gradient])
    prior_gradient = compiled.jitted
    return jit_kept(lambda point: prior_gradient(point)[0], [compiled.cache_key])


def compile_remainder(tall: TallModel, order: int) -> CompiledFunction:
    """Compile the row log-likelihoods less their Taylor terms, ``(point, reference, *batch)``."""
    known = _REMAINDERS.setdefault(tall, {})
    if order not in known:
        known[order] = _compile_remainder(tall, order)
    return known[order]


_REMAINDERS: WeakKeyDictionary[TallModel, dict[int, CompiledFunction]] = WeakKeyDictionary()


def _compile_remainder(tall: TallModel, order: int) -> CompiledFunction:
    [flat, *batch], [term] = tall.batch_graph
    reference, epsilon = pt.dvector("reference"), pt.dscalar("epsilon")
    along = {flat: reference + epsilon * (flat - reference)}
    derivative: Any = graph_replace([term], along, strict=False)[0]
    taylor: Any = pt.zeros_like(term)
    factorial = 1.0
    for power in range(1, order + 1):
        derivative = pushforward(derivative, epsilon, pt.ones_like(epsilon))
        factorial *= power
        taylor = taylor + derivative / factorial
    [taylor] = graph_replace([taylor], {epsilon: pt.constant(0.0, dtype="float64")}, strict=False)
    return compile_numba([flat, reference, *batch], [term - taylor])
