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

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_cached
from pymc_minibatch.reference.find import Reference
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
        What both read besides.
    """

    base: Callable[..., float]
    row: Callable[..., np.ndarray]
    constants: tuple[np.ndarray, ...]


def make_target(
    tall: TallModel, reference: Reference | None, order: int, temperature: float
) -> Target:
    """Split the density with a control variate of order 0 (none), 1 or 2."""
    prior = tall.compiled_prior_logp
    if order == 0 or reference is None:
        rows = tall.compiled_row_logp
        sources = PLAIN_BASE, PLAIN_ROW
    else:
        rows = compile_remainder(tall, order)
        sources = SURROGATE_BASE, REMAINDER_ROW
    constants = target_constants(reference, order, temperature)
    base = jit_cached(sources[0], "base", {"prior_logp": prior.jitted}, [prior.cache_key])
    row = jit_cached(sources[1], "row", {"row_logp": rows.jitted}, [rows.cache_key])
    return Target(base, row, constants)


def target_constants(
    reference: Reference | None, order: int, temperature: float
) -> tuple[np.ndarray, ...]:
    """Return what a target reads besides the data; empty without control variate."""
    if order == 0 or reference is None:
        return ()
    hessian = reference.hessian if order == 2 else np.zeros_like(reference.hessian)
    return reference.flat, reference.gradient / temperature, hessian / temperature


PLAIN_BASE = """
def base(point, constants):
    return prior_logp(point)[0].item()
"""

PLAIN_ROW = """
def row(point, constants, batch):
    return row_logp(point, *batch)[0]
"""

SURROGATE_BASE = """
def base(point, constants):
    reference, gradient, hessian = constants
    surrogate = 0.0
    for i in range(point.size):
        slope = gradient[i]
        for j in range(point.size):
            slope += 0.5 * hessian[i, j] * (point[j] - reference[j])
        surrogate += slope * (point[i] - reference[i])
    return prior_logp(point)[0].item() + surrogate
"""

REMAINDER_ROW = """
def row(point, constants, batch):
    return row_logp(point, constants[0], *batch)[0]
"""


def compile_prior_gradient(tall: TallModel) -> Callable[..., np.ndarray]:
    """Compile the gradient of the prior part, ``(flat point,) -> array``."""
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    compiled = compile_numba([tall.flat], [gradient])
    source = "def prior_gradient(point): return compiled(point)[0]"
    environment = {"compiled": compiled.jitted}
    return jit_cached(source, "prior_gradient", environment, [compiled.cache_key])


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
