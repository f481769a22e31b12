"""Control variates: the Taylor remainder of the rows about a reference point.

With δ = θ − θ̂, gₙ and Hₙ the gradient and Hessian of row n at θ̂, and G, H their sums,

    Σ ℓₙ(θ) = [Gᵀδ + ½ δᵀHδ] + Σ [ℓₙ(θ) − gₙᵀδ − ½ δᵀHₙδ] + constant.

The first bracket costs no data, and only the sum of the remainders is estimated from a batch. At
the scale of the posterior a remainder is of third order, so that a batch of constant size does for
any number of rows. The estimate is unbiased for any θ̂.

The directional derivatives gₙᵀδ and δᵀHₙδ come from the graph of the rows by two forward-mode
derivatives along θ̂ + εδ; nothing of size N × D is ever made. Where a row reads few numbers v that
are affine in φ(θ), they are derivatives by these.

Decisions are about log ratios, so rows are evaluated at two points at a time: what belongs to θ̂ is
computed once for both.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.gradient import grad, pushforward
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.find import Reference
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["Target", "compile_prior_gradient", "compile_remainders", "make_target", "row_terms"]


class Target(NamedTuple):
    """The density to sample, as ``base(θ) + (1/T) Σₙ row(θ, n)``.

    Attributes
    ----------
    base
        ``(point, constants) -> float``, which reads no data.
    row
        ``(here, there, constants, batch) -> array``, one number at each of two points for each row
        of the batch b, shape (2, b).
    constants
        What else both read.
    """

    base: Callable[..., float]
    row: Callable[..., np.ndarray]
    constants: tuple[np.ndarray, ...]


def make_target(tall: TallModel, control: ControlVariate | None) -> Target:
    """Split the density with a control variate, or without."""
    prior = tall.compiled_prior_logp
    make_base: Callable[..., Callable[..., float]] = plain_base
    make_row: Callable[..., Callable[..., np.ndarray]] = plain_row
    if control is None or control.order == 0:
        rows = tall.compiled_row_logp
        constants: tuple[np.ndarray, ...] = ()
    else:
        rows = compile_remainders(tall, control.order)
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

    def row(here: np.ndarray, there: np.ndarray, constants: tuple[()], batch: Any) -> np.ndarray:
        return beside(row_logp(here, *batch)[0], row_logp(there, *batch)[0])

    return row


@njit
def beside(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Put two vectors into the rows of a matrix."""
    matrix = np.empty((2, first.size))
    for i in range(first.size):
        matrix[0, i], matrix[1, i] = first[i], second[i]
    return matrix


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


def remainder_row(remainders: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build what the Taylor terms leave of the log-likelihoods."""

    def row(here: np.ndarray, there: np.ndarray, constants: Any, batch: Any) -> np.ndarray:
        first, second = remainders(here, there, constants[0], *batch)
        return beside(first, second)

    return row


def compile_prior_gradient(tall: TallModel) -> Callable[..., np.ndarray]:
    """Compile the gradient of the prior part, ``(flat point,) -> array``."""
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    compiled = compile_numba([tall.flat], [gradient])
    prior_gradient = compiled.jitted
    return jit_kept(lambda point: prior_gradient(point)[0], [compiled.cache_key])


def row_terms(
    tall: TallModel, reference: Reference, order: int
) -> Callable[..., tuple[np.ndarray, ...]]:
    """Return ``(here, there, batch)``, what is estimated from rows at two points.

    These are remainders, or without a control variate log-likelihoods. The function can be pickled.
    """
    if order == 0:
        return partial(_plain, tall.compiled_row_logp)
    return partial(_less_taylor, compile_remainders(tall, order), reference.flat)


type _Batch = Sequence[np.ndarray]


def _plain(
    row_logp: CompiledFunction, here: np.ndarray, there: np.ndarray, batch: _Batch
) -> tuple[np.ndarray, ...]:
    return row_logp(here, *batch), row_logp(there, *batch)


def _less_taylor(
    remainders: CompiledFunction,
    reference: np.ndarray,
    here: np.ndarray,
    there: np.ndarray,
    batch: _Batch,
) -> tuple[np.ndarray, ...]:
    return remainders.outputs(here, there, reference, *batch)


def compile_remainders(tall: TallModel, order: int) -> CompiledFunction:
    """Compile the row log-likelihoods less their Taylor terms, at two points.

    Returns
    -------
    remainders
        ``(here, there, reference, *batch)`` gives those at both points, shape (b,) each.
    """
    known = _REMAINDERS.setdefault(tall, {})
    if order not in known:
        known[order] = _compile_remainders(tall, order)
    return known[order]


_REMAINDERS: WeakKeyDictionary[TallModel, dict[int, CompiledFunction]] = WeakKeyDictionary()


def _compile_remainders(tall: TallModel, order: int) -> CompiledFunction:
    here, there, reference = map(pt.dvector, ("here", "there", "reference"))
    points = [here, there]
    along = _along_blocks if _reads_by_structure(tall) else _along_parameters
    batch, at_points, ways, epsilon = along(tall, points, reference)
    remainders = [
        term - _taylor(way, epsilon, order) for term, way in zip(at_points, ways, strict=True)
    ]
    return compile_numba([*points, reference, *batch], remainders)


def _reads_by_structure(tall: TallModel) -> bool:
    """Whether rows are evaluated by what they read.

    Where they are in partitions, what indices read was looked at in a sample only.
    """
    structure = tall.structure
    if structure is None:
        return False
    return tall.partitions is None or all(term.index is None for term in structure.terms)


def _taylor(way: Any, epsilon: Variable, order: int) -> Any:
    """Build the Taylor terms at ε = 1, but the first, of rows along a way from ε = 0."""
    total, factorial = pt.zeros_like(way), 1.0
    for power in range(1, order + 1):
        way = pushforward(way, epsilon, pt.ones_like(epsilon))
        factorial *= power
        total = total + way / factorial
    at_start: dict[Variable, Variable] = {epsilon: pt.constant(0.0, dtype="float64")}
    [total] = graph_replace([total], at_start, strict=False)
    return total


type _Along = tuple[list[Variable], list[Any], list[Any], Variable]
"""Batch, rows at the points, rows on the ways there from the reference, and ε."""


def _along_parameters(tall: TallModel, points: Sequence[Any], reference: Any) -> _Along:
    """Evaluate the graph of the model."""
    [flat, *batch], [term] = tall.batch_graph
    epsilon: Any = pt.dscalar("epsilon")

    def at(point: Any) -> Any:
        return graph_replace([term], {flat: point}, strict=False)[0]

    ways = [at(reference + epsilon * (point - reference)) for point in points]
    return batch, [at(point) for point in points], ways, epsilon


def _along_blocks(tall: TallModel, points: Sequence[Any], reference: Any) -> _Along:
    """Evaluate rows as functions of what they read.

    Blocks of φ that are affine in θ need no derivative: what they add to v changes along the way
    in proportion to ε.
    """
    structure = tall.structure
    assert structure is not None
    epsilon: Any = pt.dscalar("epsilon")

    def blocks(point: Any) -> list[Any]:
        found: list[Any] = graph_replace(structure.parts, {structure.flat: point}, strict=False)
        return found

    def rows(inputs: Sequence[Any]) -> Any:
        replaced = dict(zip(structure.locals, inputs, strict=True))
        return graph_replace([structure.row], replaced, strict=False)[0]

    straight = _straight(structure, blocks(reference + epsilon * (points[0] - reference)), epsilon)
    start: list[Any] = structure.local_graphs_of(blocks(reference))
    at_points, ways = [], []
    for point in points:
        inputs: list[Any] = structure.local_graphs_of(blocks(point))
        curved = structure.local_graphs_of(blocks(reference + epsilon * (point - reference)))
        way = [
            first + epsilon * (last - first) if local in straight else bent
            for local, (first, last, bent) in enumerate(zip(start, inputs, curved, strict=True))
        ]
        at_points.append(rows(inputs))
        ways.append(rows(way))
    return structure.batch, at_points, ways, epsilon


def _straight(structure: RowStructure, ways: Sequence[Any], epsilon: Any) -> set[int]:
    """List the local inputs all blocks of which change in proportion to ε.

    These are the blocks whose derivatives by ε do not read it.
    """

    def bends(way: Any) -> bool:
        if epsilon not in ancestors([way]):
            return False
        derivative: Any = pushforward(way, epsilon, pt.ones_like(epsilon))
        slope: Any = rewrite_graph(derivative)
        return epsilon in ancestors([slope])

    bent = [bends(way) for way in ways]
    read_bent = {term.local for term in structure.terms if bent[structure.part_of(term)]}
    return set(range(len(structure.locals))) - read_bent
