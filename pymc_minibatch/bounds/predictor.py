"""The one number through which a row depends on the parameters.

In a generalised linear model row n reads the parameters through a predictor η_n(θ), affine in θ,
and is a function f_n(η_n) of it. Here η is found as a node of the graph of the rows: one that all
paths from the parameters to the log-likelihood lead through, with one number for each row, or with
one for all of them, such as an intercept alone. A few rows tell whether it may be affine;
:mod:`.row_claims` looks at all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.gradient import DisconnectedInputError, grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Add, Sub
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import shape as shape_of

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.reference.rows import simplified
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import NO_DERIVATIVE

__all__ = [
    "NoPredictorError",
    "Predictor",
    "find_predictor",
    "linearised",
    "predictors_of_all_rows",
]

TRIAL_ROWS = 64
TOLERANCE = 1e-8


class NoPredictorError(IdentifiedError, ValueError):
    """Rows do not depend on the parameters through one affine predictor; the message says how.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     a, b = pm.Normal("a"), pm.Normal("b")
    ...     y = pm.Normal("y", a * b, 1.0, observed=np.linspace(-2, 3, 100))
    ...     try:
    ...         step = pmb.MinibatchMH(acceptance=pmb.Exact())
    ...     except pmb.NoPredictorError as error:
    ...         print(error)
    Exact cannot be used: the predictor of y is not affine in the parameters. Use
    CorrectedBarker() or leave acceptance out.
    """

    id = "PMB605"


@dataclass(frozen=True)
class Predictor:
    """η of a batch of rows, and the log-likelihood as a function of it.

    Attributes
    ----------
    inputs : list of Variable
        The flat point, then one input for each array of row data.
    eta : Variable, shape (b,)
        η, a graph of these.
    term : Variable, shape (b,)
        The log-likelihood of each row, a graph of `free` and the row data.
    free : Variable, shape (b,)
        What stands for η there.
    unit : float
        Relative rounding error of η as the model computes it.
    """

    inputs: list[Variable]
    eta: Variable
    term: Variable
    free: Variable
    unit: float = float(np.finfo(float).eps)

    @made_once
    def vector_eta(self) -> Evaluator:
        """``(point, *batch) -> η``."""
        return evaluator(self.inputs, [self.eta])

    @made_once
    def vector_values(self) -> Evaluator:
        """``(η, *batch) -> f``."""
        return evaluator([self.free, *self.inputs[1:]], [self.term])

    @made_once
    def vector_taylor(self) -> Evaluator:
        """``(η, *batch) -> (f, f', f'')``."""
        return evaluator(
            [self.free, *self.inputs[1:]], [pt.cast(self.term, "float64"), *self._derivatives(2)]
        )

    @made_once
    def vector_derivatives(self) -> Evaluator:
        """``(η, *batch) -> (f'', f''')``."""
        return evaluator([self.free, *self.inputs[1:]], self._derivatives(3)[1:])

    def _derivatives(self, order: int) -> list[Any]:
        derivative: Any = self.term
        found = []
        try:
            for _ in range(order):
                slope = grad(pt.sum(derivative), self.free, disconnected_inputs="ignore")
                [derivative] = simplified([slope])
                found.append(derivative)
        except (*NO_DERIVATIVE, DisconnectedInputError) as error:
            raise NoPredictorError(
                f"the log-likelihood has no third derivative by its predictor ({error})"
            ) from error
        return found

    def linearised(
        self, point: np.ndarray, batch: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return η at a point and its Jacobian; see :func:`linearised`."""
        return linearised(self.vector_eta, point, np.ones_like(point), batch)


def linearised(
    eta_of: Evaluator, point: np.ndarray, steps: np.ndarray, batch: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return η at a point and its Jacobian (b × D), by differences, exact where η is affine."""
    eta = eta_of(point, *batch)
    jacobian = np.empty((eta.size, point.size))
    for i in range(point.size):
        moved = point.copy()
        moved[i] += steps[i]
        jacobian[:, i] = (eta_of(moved, *batch) - eta) / (moved[i] - point[i])
    return eta, jacobian


def find_predictor(tall: TallModel) -> Predictor:
    """Find the predictor of the rows of a model.

    Raises
    ------
    NoPredictorError
        If there is none that is affine in the parameters.
    """
    inputs, [term] = tall.batch_graph
    candidates = _per_row(tall, _dominators(inputs[0], term))
    if not candidates:
        names = sorted({str(v.name) for v in tall.model.value_vars} & _entering(tall))
        raise NoPredictorError(
            f"the rows of {' + '.join(tall.row_names)} depend on {', '.join(names)} in more than "
            "one place, and not through one predictor alone (an unknown scale or dispersion, say)"
        )
    affine: list[Variable] = []
    for eta in candidates:
        if affine and not _is_offset(eta, affine[-1]):
            continue
        if _is_affine(tall, _predictor(inputs, term, eta)):
            affine.append(eta)
    if not affine:
        raise NoPredictorError(
            f"the predictor of {' + '.join(tall.row_names)} is not affine in the parameters"
        )
    return _predictor(inputs, term, affine[-1])


def predictors_of_all_rows(tall: TallModel) -> Iterator[Predictor]:
    """Find numbers, affine in the parameters, through which all rows depend on them."""
    inputs, [term] = tall.batch_graph
    for eta in _dominators(inputs[0], term):
        if eta.type.shape in ((), (1,)) and str(eta.type.dtype).startswith("float"):
            found = _predictor_of_all(inputs, term, eta)
            if found is not None and _is_affine(tall, found):
                yield found


def _predictor(inputs: Sequence[Variable], term: Variable, eta: Variable) -> Predictor:
    """Put a number for each row in place of a node of the graph."""
    free = pt.dvector("eta")
    stand_in: dict[Variable, Variable] = {eta: pt.cast(free, eta.type.dtype)}
    of_eta: Any = graph_replace([term], stand_in, strict=False)[0]
    unit = float(np.finfo(str(eta.type.dtype)).eps)
    return Predictor(list(inputs), pt.cast(eta, "float64"), of_eta, free, unit)


def _predictor_of_all(
    inputs: Sequence[Variable], term: Variable, eta: Variable
) -> Predictor | None:
    """Let each row have a number of its own where all read one; None if that takes a loop."""
    if term.owner and isinstance(term.owner.op, Alloc) and term.owner.inputs[0].type.ndim == 1:
        term = term.owner.inputs[0]  # has as many rows by itself once each reads its own number
    free = pt.dvector("eta")
    stand_in: dict[Any, Any] = {data: pt.expand_dims(data, 1) for data in inputs[1:]}
    number: Any = pt.cast(free, eta.type.dtype)
    stand_in[eta] = pt.expand_dims(number, 1) if eta.type.ndim else number
    try:
        of_eta: Any = vectorize_graph(term, stand_in)
    except NotImplementedError:
        return None
    if any(isinstance(node.op, Blockwise) for node in io_toposort([free], [of_eta])):
        return None
    of_rows = pt.broadcast_to(pt.cast(eta, "float64"), (shape_of(inputs[1])[0],))
    unit = float(np.finfo(str(eta.type.dtype)).eps)
    return Predictor(list(inputs), of_rows, of_eta[:, 0], free, unit)


def _is_offset(eta: Variable, before: Variable) -> bool:
    """Whether a node adds something to another one, such as offsets that come with the rows.

    They belong to the predictor: rows are of one family with them, and each has a function of its
    own without.
    """
    op = eta.owner.op if eta.owner else None
    if not isinstance(op, Elemwise) or not isinstance(op.scalar_op, Add | Sub):
        return False
    return before in (eta.owner.inputs if isinstance(op.scalar_op, Add) else eta.owner.inputs[:1])


def _entering(tall: TallModel) -> set[str]:
    """Names of the value variables that the rows read."""
    read = set(ancestors([tall.full_term]))
    return {str(value.name) for value in tall.model.value_vars if value in read}


def _dominators(point: Variable, term: Variable) -> list[Variable]:
    """List the variables that every path from the point to the term leads through, from below.

    The output of a check of parameters is the log-likelihood itself, which all paths lead through.
    """
    found = []
    for node in io_toposort([point], [term]):
        if isinstance(node.op, CheckParameterValue):
            continue
        for variable in node.outputs:
            others = set(ancestors([term], blockers=[variable]))
            if variable is not term and variable in others and point not in others:
                found.append(variable)
    return found


def _per_row(tall: TallModel, variables: Sequence[Variable]) -> list[Variable]:
    """Keep those that have one number for each row of a batch."""
    kept = [v for v in variables if v.type.ndim == 1 and str(v.type.dtype).startswith("float")]
    if not kept or tall.n_rows < 3:
        return []
    lengths = compile_python(tall.batch_graph[0], [pt.stack([shape_of(v)[0] for v in kept])])
    start = tall.start.copy()
    grows = np.ones(len(kept), bool)
    first = tall.batch(np.arange(3))
    for n in (2, 3):
        grows &= lengths(start, *[values[:n] for values in first]) == n
    return [v for v, wanted in zip(kept, grows, strict=True) if wanted]


def _is_affine(tall: TallModel, predictor: Predictor) -> bool:
    rng = np.random.default_rng(20240719)
    rows = np.sort(tall.random_rows(rng, min(TRIAL_ROWS, tall.n_rows)))
    batch = tall.batch(rows)
    start = tall.start.copy()
    with np.errstate(all="ignore"):
        for spread in (0.1, 1.0, 10.0):
            point, change = start + spread * rng.standard_normal((2, start.size))
            eta, jacobian = predictor.linearised(point, batch)
            expected = eta + jacobian @ (change - point)
            error = np.abs(predictor.vector_eta(change, *batch) - expected).max()
            scale = 1 + np.abs(eta).max() + (np.abs(jacobian) @ np.abs(change - point)).max()
            if not error <= TOLERANCE * scale:
                return False
    return True
