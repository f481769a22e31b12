"""A prior without kinks: Laplace priors as normal ones.

Levels whose rows say less than their prior lie at the peak of a Laplace prior. Newton's method
jumps from side to side of it, and the prior bends nowhere else, so that no mode of the scale is
found. In place of |x| / b here is x² / 4b², that of a normal prior with the same variance 2b². The
density, beside it, keeps its constant, so that both are largest for about the same b. Moves are
proposed by slope and curvature of that, and decided by the prior as it is.

References
----------
Park and Casella (2008), The Bayesian lasso, for Laplace priors as mixtures of normal ones.
"""

from typing import Any

from pymc.logprob.utils import CheckParameterValue
from pytensor import scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum

__all__ = ["without_kinks"]

LINEAR = ps.Add | ps.Sub | ps.Neg | ps.Identity

type Clients = dict[Variable, list[Any]]
"""The operations that read a variable."""


def without_kinks(prior: Variable, flat: Variable) -> Variable:
    """Return a log prior with |x| / b replaced by x² / 4b²; the same one if there is none.

    Parameters
    ----------
    prior
        The log prior, a function of `flat`.
    flat
        The unconstrained variables.
    """
    nodes = io_toposort([], [prior])
    clients: Clients = {}
    for node in nodes:
        for each in node.inputs:
            clients.setdefault(each, []).append(node)
    smooth: dict[Variable, Variable] = {}
    for node in nodes:
        if _is_elementwise(node, ps.Abs) and flat in ancestors(node.inputs):
            found = _smooth(node, prior, clients)
            if found is not None:
                smooth[node.outputs[0]] = found
    if not smooth:
        return prior
    [replaced] = graph_replace([prior], smooth, strict=False)
    return replaced


def _smooth(node: Any, prior: Variable, clients: Clients) -> Variable | None:
    """Return b x² / 4b² in place of |x|; None unless |x| / b is a term of the log prior."""
    [x], [size] = node.inputs, node.outputs
    rate: Any = 1.0
    term = size
    while term is not prior:
        readers = clients.get(term, [])
        if len(readers) != 1:
            return None
        [reader] = readers
        if _is_elementwise(reader, ps.TrueDiv) and reader.inputs[0] is term:
            rate = rate / reader.inputs[1]
            others = reader.inputs[1:]
        elif _is_elementwise(reader, ps.Mul):
            others = [each for each in reader.inputs if each is not term]
            for each in others:
                rate = rate * each
        elif _keeps(reader, term):
            others = []
        else:
            return None
        if any(_has_size(each) or not _fits(each, term) for each in others):
            return None
        term = reader.outputs[0]
    replacement: Any = x**2 * abs(rate) / 4.0
    fits = size.type.ndim == replacement.type.ndim and size.type.is_super(replacement.type)
    return replacement if fits else None


def _keeps(node: Any, term: Variable) -> bool:
    """Whether an operation passes terms on, alone or with others, or adds them up."""
    if isinstance(node.op, Alloc | CheckParameterValue):
        return node.inputs[0] is term
    return isinstance(node.op, DimShuffle | Sum) or _is_elementwise(node, LINEAR)


def _fits(factor: Any, term: Any) -> bool:
    """Whether a factor is a number, or has one for each entry."""
    return all(factor.type.broadcastable) or factor.type.shape == term.type.shape


def _has_size(factor: Variable) -> bool:
    """Whether an absolute value is in a factor, which makes it no scale."""
    return any(
        each.owner is not None and _is_elementwise(each.owner, ps.Abs)
        for each in ancestors([factor])
    )


def _is_elementwise(node: Any, kind: Any) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, kind)
