"""The likelihood of a model and the predictor it depends on.

A row of a generalised linear model depends on the parameters through a predictor ηₙ(θ), which the
graph of the model hides behind a link: ``Bernoulli(p=sigmoid(X @ beta))``. Here the link is taken
off again. Nothing is assumed of the predictor: that it is affine in θ, and that the likelihood is
the one recognised, is verified where a bound is put below it
(:mod:`pymc_minibatch.bounds.collapse`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Identity
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.slicing import data_leaves, leaf_value, slice_rows

__all__ = ["ADVICE", "Likelihood", "NoBoundError", "Reader"]


class NoBoundError(IdentifiedError, ValueError):
    """The likelihood has no known lower bound; the message says why, and what to use instead.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Gumbel("y", mu, 1.0, observed=np.linspace(-2, 3, 100))
    ...     try:
    ...         step = pmb.FlyMC()
    ...     except pmb.NoBoundError as error:
    ...         print(error)
    y is Gumbel, which has no quadratic lower bound in its predictor: none is known for it. Use
    MinibatchMH, or bring a lower bound with pmb.Bound.
    """

    id = "PMB603"


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a batch of rows, as graphs of a flat point and row data.

    Attributes
    ----------
    family : str
        The name of its :class:`.Family`.
    inputs : list of Variable
        The flat point, then one input for each array of row data.
    observed : Variable, shape (b,)
        The data y.
    predictor : Variable, shape (b,) or (b, K)
        η, one number for each row, or one for each row and class.
    parameters : dict of str to Variable
        What else the likelihood has: number of trials, degrees of freedom.
    scale : Variable or None
        The standard deviation or scale σ, shape (b,).
    depends : dict of str to set of str
        For the predictor, the scale and each parameter: the value variables in its graph.
    """

    family: str
    inputs: list[Variable]
    observed: TensorVariable
    predictor: TensorVariable
    parameters: Mapping[str, TensorVariable]
    scale: TensorVariable | None
    depends: Mapping[str, set[str]]

    def at(self, point: Variable) -> "Likelihood":
        """Return the same likelihood at another point."""
        names = [*self.parameters]
        graphs: list[Any] = [self.observed, self.predictor, *self.parameters.values()]
        graphs += [] if self.scale is None else [self.scale]
        moved: list[Any] = graph_replace(graphs, {self.inputs[0]: point}, strict=False)
        observed, predictor, *rest = moved
        return Likelihood(
            self.family,
            [point, *self.inputs[1:]],
            observed,
            predictor,
            dict(zip(names, rest[: len(names)], strict=True)),
            None if self.scale is None else rest[-1],
            self.depends,
        )


ADVICE = "Use MinibatchMH, or bring a lower bound with pmb.Bound."


class Reader:
    """Slices parameters of the observed variable to a batch of rows."""

    def __init__(self, tall: TallModel, name: str, value: Variable) -> None:
        self.tall, self.name = tall, name
        self.inputs = list(tall.batch_graph[0])
        self.observed = self.slice(value)
        self.depends: dict[str, set[str]] = {}

    def slice(self, graph: Any) -> TensorVariable:
        """Rebuild a graph over all rows on a batch of rows."""
        tall = self.tall
        axes, dtypes, n_rows = tall.row_axes
        twins = {leaf: _twin(leaf, axes) for leaf in data_leaves([graph])}
        [graph] = graph_replace([graph], twins, strict=False)
        batch, sliced = slice_rows(graph, n_rows, axes, dtypes)
        sliced = tall.bind(sliced, {})
        own: dict[Variable, Variable] = dict(zip(batch, self.inputs[1:], strict=True))
        result: Any = graph_replace([sliced], own, strict=False)[0]
        return result

    def read(self, what: str, parameter: Variable) -> TensorVariable:
        """Slice a parameter of the distribution; note what it depends on."""
        [graph] = self.tall.model.replace_rvs_by_values([parameter])
        values = {get_var_name(value) for value in self.tall.model.value_vars}
        self.depends[what] = {str(v.name) for v in ancestors([graph]) if v.name in values}
        return self.slice(graph)

    def rows(self, what: str, parameter: Variable) -> TensorVariable:
        """Read a parameter that is one number for each row."""
        return self.per_row(self.read(what, parameter))

    def per_row(self, graph: TensorVariable) -> TensorVariable:
        """Give a graph of shape (b,), (1,) or () the shape (b,)."""
        return pt.cast(graph, "float64") + pt.zeros((self.observed.shape[0],), dtype="float64")

    def unlinked(self, parameter: Variable, link: type, says: str) -> TensorVariable:
        """Read a parameter and take the link function off it."""
        graph = self.read("predictor", parameter)
        found = _inside(graph, link)
        if found is None:  # written out by hand, perhaps
            rewritten: Any = rewrite_graph(
                graph, include=("canonicalize", "stabilize", "specialize")
            )
            found = _inside(rewritten, link)
        if found is None:
            raise NoBoundError(
                f"The probabilities of {self.name} are not {says} of a predictor; for other links "
                f"(probit, complementary log-log, ordered) no bound is built in. {ADVICE}"
            )
        return found

    def likelihood(
        self,
        family: str,
        predictor: TensorVariable,
        parameters: Mapping[str, TensorVariable] | None = None,
        scale: TensorVariable | None = None,
    ) -> Likelihood:
        """Put what was read together."""
        observed = pt.cast(self.observed, "float64")
        return Likelihood(
            family, self.inputs, observed, predictor, parameters or {}, scale, self.depends
        )


def _twin(leaf: Variable, known: Collection[Variable]) -> Variable:
    """Find the row data that a leaf is a copy of: PyMC merges constants that are the same."""
    if leaf not in known:
        for other in known:
            if leaf.type == other.type and np.array_equal(leaf_value(leaf), leaf_value(other)):
                return other
    return leaf


SHAPING = (DimShuffle, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor)


def _inside(graph: Variable, link: type) -> TensorVariable | None:
    """Return what the link is applied to, with the indexing and shaping that follow it."""
    if graph.owner is None:
        return None
    op, inputs = graph.owner.op, graph.owner.inputs
    if _is_elemwise(op, link) or (isinstance(op, link) and _along_last_axis(op, inputs)):
        return inputs[0]
    if isinstance(op, SHAPING) and _keeps_classes(op, link, inputs):
        inner = _inside(inputs[0], link)
        return None if inner is None else op.make_node(inner, *inputs[1:]).outputs[0]
    if type(op).__name__ == "ViewOp" or _is_elemwise(op, Identity):
        return _inside(inputs[0], link)
    return None


def _is_elemwise(op: object, kind: type) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, kind)


def _along_last_axis(op: object, inputs: Sequence[Variable]) -> bool:
    axis = getattr(op, "axis", None)
    last = inputs[0].type.ndim - 1
    return axis in ((last,), last, (-1,), -1) or (axis is None and last == 0)


def _keeps_classes(op: object, link: type, inputs: Sequence[Variable]) -> bool:
    """Whether shaping leaves the axis alone along which a softmax adds up."""
    if link is not Softmax:
        return True
    if isinstance(op, SpecifyShape):
        return True
    if isinstance(op, DimShuffle):  # new axes in front
        kept = [axis for axis in op.new_order if axis != "x"]
        return kept == sorted(kept) and op.new_order[-1] == inputs[0].type.ndim - 1
    index = getattr(op, "idx_list", ())
    return isinstance(op, AdvancedSubtensor) and (inputs[0].type.ndim == 2 and len(index) <= 1)
