"""A prior without kinks: Laplace priors as normal ones of the same variance.

Levels whose rows say less than their prior lie at the peak of a Laplace prior. Newton's method
jumps from side to side of it, and the prior bends nowhere else, so that no mode of the scale is
found. What |x| / b gives on average over effects is about what x² / 4b² gives: the log-density of a
normal prior with the variance 2b². Moves are proposed by slope and curvature of that, and decided
by the prior as it is.

References
----------
Park and Casella (2008), The Bayesian lasso, for Laplace priors as mixtures of normal ones.
"""

from typing import Any

import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum

__all__ = ["without_kinks"]

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
            x: Any = node.inputs[0]
            scale = _scale(node.outputs[0], clients)
            if scale is not None:
                smooth[node.outputs[0]] = x**2 / (4.0 * scale)
    if not smooth:
        return prior
    [found] = graph_replace([prior], smooth, strict=False)
    return found


def _scale(size: Any, clients: Clients) -> Any:
    """Return b where |x| is divided by it, or multiplied by 1 / b; None if it is something else."""
    readers = clients.get(size, [])
    if len(readers) != 1:
        return None
    [node] = readers
    if _is_elementwise(node, ps.Neg) or isinstance(node.op, DimShuffle):
        return _scale(node.outputs[0], clients)
    if isinstance(node.op, Sum) and node.outputs[0].type.ndim == 0:
        return _scale(node.outputs[0], clients)
    if _is_elementwise(node, ps.TrueDiv) and node.inputs[0] is size:
        return node.inputs[1]
    if _is_elementwise(node, ps.Mul):
        rate: Any = 1.0
        for each in node.inputs:
            rate = rate if each is size else rate * each
        return 1.0 / abs(rate)
    if _is_elementwise(node, ps.Add | ps.Sub):
        return pt.constant(1.0)
    return None


def _is_elementwise(node: Any, kind: Any) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, kind)
