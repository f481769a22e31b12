"""Control variates: the Taylor remainder of the rows about a reference point.

With δ = θ − θ̂, gₙ and Hₙ the gradient and Hessian of row n at θ̂, and G, H their sums,

    Σ ℓₙ(θ) = [Gᵀδ + ½ δᵀHδ] + Σ [ℓₙ(θ) − gₙᵀδ − ½ δᵀHₙδ] + constant.

The first bracket costs no data, and only the sum of the remainders is estimated from a batch. At
the scale of the posterior a remainder is of third order, so that a batch of constant size does for
any number of rows. The estimate is unbiased for any θ̂.

The directional derivatives gₙᵀδ and δᵀHₙδ come from the graph of the rows by two forward-mode
derivatives along θ̂ + εδ; nothing of size N × D is ever made. If a row reads few numbers v that
are affine in φ(θ), they are derivatives by these.

If a few rows are read at every decision (:mod:`.pinned`), they are part of the base with their
log-likelihood, and what batches and sums find for them is 0.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad, pushforward
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.jit.interpreted import Evaluator, for_few_rows
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.derivatives import row_derivatives
from pymc_minibatch.reference.reference import Reference
from pymc_minibatch.reference.rows import simplified
from pymc_minibatch.tall import TallModel

__all__ = [
    "Target",
    "compile_prior_gradient",
    "compile_remainder",
    "make_base_with_rows",
    "make_target",
    "row_term",
    "term_of_batches",
]


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
    columns
        Arrays with rows along the first axis that `row` reads after those of the model.
    """

    base: Callable[..., float]
    row: Callable[..., np.ndarray]
    constants: tuple[Any, ...]
    columns: tuple[np.ndarray, ...] = ()


def make_target(tall: TallModel, control: ControlVariate | None) -> Target:
    """Split the density with a control variate, or without."""
    prior = tall.compiled_prior_logp
    make_base: Callable[..., Callable[..., float]] = plain_base
    make_row: Callable[..., Callable[..., np.ndarray]] = plain_row
    if control is None or control.order == 0:
        rows = tall.compiled_row_logp
        constants: tuple[np.ndarray, ...] = ()
    elif control.pinned is not None:
        return _target_with_rows(tall, control)
    else:
        rows = compile_remainder(tall, control.order)
        make_base, make_row = surrogate_base, remainder_row
        constants = control.constants
    base = jit_kept(make_base(prior.jitted), [prior.cache_key])
    return Target(base, jit_kept(make_row(rows.jitted), [rows.cache_key]), constants)


def _target_with_rows(tall: TallModel, control: ControlVariate) -> Target:
    """Split the density if some rows are read at every decision."""
    remainder = compile_remainder(tall, control.order)
    base, constants = make_base_with_rows(tall, control)
    return Target(
        base,
        jit_kept(row_of_batches(remainder.jitted), [remainder.cache_key]),
        constants,
        control.columns(),
    )


def make_base_with_rows(
    tall: TallModel, control: ControlVariate
) -> tuple[Callable[..., float], tuple[Any, ...]]:
    """Build the prior part with the rows that are always read, and its constants.

    Remainders of other rows are not compiled for it.
    """
    prior, rows = tall.compiled_prior_logp, tall.compiled_row_logp
    surrogate = jit_kept(surrogate_base(prior.jitted), [prior.cache_key])
    base = base_with_rows(surrogate, rows.jitted)
    batch = tuple(tall.batch(control.always_read))
    constants = (*control.constants, np.array([1 / control.temperature]), batch)
    return jit_kept(base, [prior.cache_key, rows.cache_key]), constants


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


@jit_part
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


def remainder_row(remainder: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build what the Taylor terms leave of the log-likelihoods."""

    def row(here: np.ndarray, there: np.ndarray, constants: Any, batch: Any) -> np.ndarray:
        reference = constants[0]
        return beside(remainder(here, reference, *batch)[0], remainder(there, reference, *batch)[0])

    return row


def base_with_rows(
    surrogate: Callable[..., float], row_logp: Callable[..., Any]
) -> Callable[..., float]:
    """Build the prior part, the Taylor terms of most rows and the log-likelihood of the others."""

    def base(point: np.ndarray, constants: Any) -> float:
        reference, gradient, hessian, weight, batch = constants
        value = surrogate(point, (reference, gradient, hessian))
        if not np.isfinite(value):
            return value
        terms = row_logp(point, *batch)[0]
        total = 0.0
        for i in range(terms.size):
            total += terms[i]
        return value + weight[0] * total

    return base


def row_of_batches(remainder: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build what the Taylor terms leave of the log-likelihoods, 0 for rows that the base has."""

    def row(here: np.ndarray, there: np.ndarray, constants: Any, batch: Any) -> np.ndarray:
        reference, left = constants[0], batch[-1]
        terms = beside(
            remainder(here, reference, *batch[:-1])[0], remainder(there, reference, *batch[:-1])[0]
        )
        for i in range(left.size):
            if not left[i]:
                terms[0, i] = terms[1, i] = 0.0
        return terms

    return row


def compile_prior_gradient(tall: TallModel) -> Callable[..., np.ndarray]:
    """Compile the gradient of the prior part, ``(flat point,) -> array``."""
    gradient: Any = grad(tall.prior_graph, tall.flat, disconnected_inputs="ignore")
    compiled = compile_numba([tall.flat], [gradient])
    prior_gradient = compiled.jitted
    return jit_kept(lambda point: prior_gradient(point)[0], [compiled.cache_key])


def row_term(tall: TallModel, reference: Reference, order: int) -> Callable[..., np.ndarray]:
    """Return ``(point, batch)``, what is estimated from rows, which can be pickled.

    These are remainders, or without a control variate log-likelihoods.
    """
    if order == 0:
        return partial(_plain, tall.vector_row_logp)
    return partial(_less_taylor, compile_remainder(tall, order), reference.flat)


def term_of_batches(tall: TallModel, control: ControlVariate) -> Callable[..., np.ndarray]:
    """Return the same for a control variate; the batch ends with the columns that it adds."""
    term = row_term(tall, control.reference, control.order)
    return term if control.pinned is None else partial(_if_left, term)


def _if_left(
    term: Callable[..., np.ndarray], point: np.ndarray, batch: Sequence[np.ndarray]
) -> np.ndarray:
    return np.where(batch[-1], term(point, batch[:-1]), 0.0)


type _Batch = Sequence[np.ndarray]


def _plain(row_logp: Evaluator, point: np.ndarray, batch: _Batch) -> np.ndarray:
    return row_logp(point, *batch)


def _less_taylor(
    remainder: CompiledFunction, reference: np.ndarray, point: np.ndarray, batch: _Batch
) -> np.ndarray:
    # Of another layout it would be compiled again.
    return remainder(np.ascontiguousarray(point), reference, *batch)


def compile_remainder(tall: TallModel, order: int) -> CompiledFunction:
    """Compile the row log-likelihoods less their Taylor terms, ``(point, reference, *batch)``."""
    known = _REMAINDERS.setdefault(tall, {})
    if order not in known:
        known[order] = compiled_remainder(tall, order)
        _verify(tall, known[order], order)
    return known[order]


_REMAINDERS: WeakKeyDictionary[TallModel, dict[int, CompiledFunction]] = WeakKeyDictionary()


def compiled_remainder(tall: TallModel, order: int) -> CompiledFunction:
    """Compile what :func:`compile_remainder` returns, without a look at what is known."""
    point, reference = pt.dvector("point"), pt.dvector("reference")
    epsilon: Any = pt.dscalar("epsilon")
    along = _along_blocks if _reads_by_structure(tall) else _along_parameters
    batch, term, way = along(tall, point, reference, epsilon)
    derivative: Any = way
    taylor: Any = pt.zeros_like(term)
    factorial = 1.0
    for power in range(1, order + 1):
        [derivative] = simplified(
            [pushforward(derivative, epsilon, pt.ones_like(epsilon), disconnected_outputs="ignore")]
        )
        factorial *= power
        taylor = taylor + derivative / factorial
    at_reference: dict[Variable, Variable] = {epsilon: pt.constant(0.0, dtype="float64")}
    [taylor] = graph_replace([taylor], at_reference, strict=False)
    return for_few_rows([point, reference, *batch], [term - taylor])


def _verify(tall: TallModel, remainder: CompiledFunction, order: int) -> None:
    """Compare machine code on small batches with what other functions give for the terms.

    Raises
    ------
    NotTallError
        If it gives something else.
    """
    derivatives = row_derivatives(tall)
    for batch, (reference, *points) in tall.trials():
        gradient, hessian = derivatives.gradient_hessian(reference, batch)
        for point in points:
            delta = point - reference
            terms = [
                derivatives.value_gradient(point, batch)[0],
                -gradient @ delta,
                -0.5 * delta @ hessian @ delta if order == 2 else 0.0,
            ]
            if np.isfinite(terms).all():
                found = remainder(point, reference, *batch).sum()
                scale = 1.0 + np.abs(terms).sum()
                tall.refuse_wrong_code(np.array([found / scale]), np.array([sum(terms) / scale]))


def _reads_by_structure(tall: TallModel) -> bool:
    """Whether rows are evaluated by what they read.

    If they are in partitions, what indices read was looked at in a sample only.
    """
    structure = tall.structure
    if structure is None:
        return False
    return tall.partitions is None or all(term.index is None for term in structure.terms)


type _Along = tuple[list[Variable], Any, Any]
"""Batch, rows at a point, and rows on the way there from the reference, where ε is 0, to 1."""


def _along_parameters(tall: TallModel, point: Any, reference: Any, epsilon: Any) -> _Along:
    """Evaluate the graph of the model."""
    [flat, *batch], [term] = tall.batch_graph
    ways = point, reference + epsilon * (point - reference)
    at_point, along = (graph_replace([term], {flat: way}, strict=False)[0] for way in ways)
    return batch, at_point, along


def _along_blocks(tall: TallModel, point: Any, reference: Any, epsilon: Any) -> _Along:
    """Evaluate rows as functions of what they read.

    Blocks of φ that are affine in θ need no derivative: what they add to v changes along the way
    in proportion to ε.
    """
    structure = tall.structure
    assert structure is not None

    def inputs(way: Any) -> list[Any]:
        parts = graph_replace(structure.parts, {structure.flat: way}, strict=False)
        return structure.predictor_graphs_of(parts)

    [row] = simplified([structure.row])

    def rows(inputs: Sequence[Any]) -> Any:
        replaced = dict(zip(structure.predictors, inputs, strict=True))
        return graph_replace([row], replaced, strict=False)[0]

    nonlinear = {
        term.predictor for term in structure.terms if structure.nonlinear[structure.part_of(term)]
    }
    first, last = inputs(reference), inputs(point)
    way = [
        there if predictor in nonlinear else start + epsilon * (end - start)
        for predictor, (start, end, there) in enumerate(
            zip(first, last, inputs(reference + epsilon * (point - reference)), strict=True)
        )
    ]
    return structure.batch, rows(last), rows(way)
