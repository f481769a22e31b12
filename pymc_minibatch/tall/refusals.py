"""Why a model is refused, and what to do instead."""

from collections.abc import Iterator, Sequence

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import All, Any, Dot
from pytensor.tensor.shape import shape
from pytensor.tensor.signal.conv import Convolve1d
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.type import TensorType

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.tall.slicing import data_leaves, leaf_value

__all__ = [
    "NotTallError",
    "dependent_rows",
    "impossible_start",
    "in_single_precision",
    "leaf_name",
    "shared_across_rows",
    "too_many_layouts",
    "unfit_data",
    "whole_term",
]

CUMULATED, LOOPED, CONVOLVED = (
    "is cumulated over the rows",
    "is computed one row after another (scan)",
    "is convolved over the rows",
)
IN_TURN = CUMULATED, LOOPED, CONVOLVED
"""What takes rows together one after another."""

TIME_SERIES = ("AR", "GARCH11", "EulerMaruyama", "RandomWalk", "GaussianRandomWalk")


class NotTallError(IdentifiedError, ValueError):
    """The model is not a prior part plus independent rows; the message says why.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.MvNormal("y", mu * np.ones(3), np.eye(3), observed=np.zeros(3))
    ...     try:
    ...         tall = pmb.TallModel()
    ...     except pmb.NotTallError as error:
    ...         print(error)
    The log-density of y (MultivariateNormal) is one number for all its rows, which depend on one
    another. Approximate a Gaussian process by a basis (pm.gp.HSGP), give independent vectors one
    row each, shape (N, K), or sample this model with NUTS.
    """

    id = "PMB601"


def whole_term(name: str, distribution: str) -> str:
    """Say that a variable has one log-density for all its rows."""
    if "RandomWalk" in distribution or distribution in TIME_SERIES:
        advice = (
            "Given their past, the rows of an autoregression or a random walk are independent: "
            "pass the past values as data of their own. Sample other time series with NUTS."
        )
    elif distribution.startswith("Mv") or "Normal" in distribution:
        advice = (
            "Approximate a Gaussian process by a basis (pm.gp.HSGP), give independent vectors one "
            "row each, shape (N, K), or sample this model with NUTS."
        )
    else:
        advice = (
            "If its rows are independent, declare them along an axis of their own (a CustomDist: "
            "ndim_supp=0 or a signature, and a logp that returns one value per row); otherwise "
            "sample this model with NUTS."
        )
    return (
        f"The log-density of {name} ({distribution}) is one number for all its rows, which depend "
        f"on one another. {advice}"
    )


def dependent_rows(
    names: Sequence[str], n_rows: int, reason: str, latent: Sequence[str], culprit: str | None
) -> str:
    """Say that a log-density is not a sum over rows."""
    if latent:
        has = "has" if len(latent) == 1 else "have"
        cause = f"{', '.join(latent)} {has} one value per row"
        advice = (
            "Approximate a Gaussian process by a basis (pm.gp.HSGP), marginalize other variables, "
            "or sample this model with NUTS"
        )
    elif culprit and any(how in culprit for how in IN_TURN):
        cause = f"{culprit}, so that each row depends on the data of others"
        advice = (
            "If a row depends on the data of some rows before it, as by adstock over dates, write "
            "that as a sum over lags, weight[k] * pt.concatenate([pt.zeros(k), x[:-k]]): shifted "
            "data are data of the row itself. If it does not end after some lags, sample this "
            "model with NUTS"
        )
    else:
        cause = f"{reason} ({culprit})" if culprit else reason
        advice = (
            "Compute what depends on several rows before building the model and pass it as data; "
            "if it depends on parameters, sample this model with NUTS"
        )
    return (
        f"The log-density of {' + '.join(names)} is not a sum over {n_rows} independent rows: "
        f"{cause}. {advice}."
    )


def too_many_layouts(names: Sequence[str], n_rows: int, arrays: Sequence[str], n_tried: int) -> str:
    """Say that it was not found out which arrays hold rows."""
    return (
        f"Several arrays behind {' + '.join(names)} have an axis of length {n_rows}, and it is "
        f"unclear which of these index rows: {', '.join(arrays)} ({n_tried} ways were tried). "
        "Leave out one row of the data, so that the number of rows is unique."
    )


def unfit_data(names: Sequence[str], leaves: Sequence[Variable], error: Exception) -> NotTallError:
    """Say which data a log-density reads, since it cannot be evaluated."""
    arrays = [leaf for leaf in leaves if leaf_value(leaf).size > 1]
    shapes = ", ".join(f"{leaf_name(leaf)} {leaf_value(leaf).shape}" for leaf in arrays)
    return NotTallError(
        f"The log-density of {' + '.join(names)} cannot be evaluated: {error} Its data have shapes "
        f"{shapes}; all arrays of rows must have the same number of rows."
    )


def impossible_start(names: Sequence[str], error: Exception) -> NotTallError:
    """Say that parameters are out of range where the model starts, and beside that."""
    return NotTallError(
        f"The log-density of {' + '.join(names)} cannot be evaluated at model.initial_point(), nor "
        f"at points that differ from it in one variable: {str(error).strip()}. Give a variable an "
        "initval at which all rows are possible."
    )


def in_single_precision(names: Sequence[str]) -> NotTallError:
    """Say that variables have too few digits for sums over many rows."""
    return NotTallError(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} of type float32, whose seven "
        "digits are too few for sums over rows. Build the model with pytensor.config.floatX = "
        "'float64'; data may stay float32."
    )


def leaf_name(leaf: Variable) -> str:
    """Name an array of the graph."""
    return leaf.name or "constant"


def shared_across_rows(
    term: Variable, flat: Variable, start: np.ndarray, n_rows: int
) -> str | None:
    """Name the first operation that takes rows together, and the data that it reads."""
    for node in io_toposort([flat], [term]):
        for axis, what in _taken_together(node):
            shapes = [shape(i) for i in _reads(node)]
            lengths = np.concatenate([np.empty(0), *_evaluated(shapes, flat, start)])
            if n_rows in (lengths if axis is None else lengths[list(axis)]):
                names = [leaf.name for leaf in data_leaves([node.outputs[0]]) if leaf.name]
                return f"{' + '.join(dict.fromkeys(names)) or 'An array'} {what}"
    return None


def _reads(node: Apply) -> list[Variable]:
    """List what an operation takes together: its first input, or all arrays of some."""
    if isinstance(_core(node), Scan | Convolve1d):
        return [i for i in node.inputs if isinstance(i.type, TensorType)]
    return node.inputs[:1]


def _evaluated(shapes: Sequence[Variable], flat: Variable, start: np.ndarray) -> list[np.ndarray]:
    return [np.atleast_1d(compile_python([flat], [each])(start)) for each in shapes]


def _core(node: Apply) -> Op:
    op = node.op
    return op.core_op if isinstance(op, Blockwise) else op


def _taken_together(node: Apply) -> Iterator[tuple[Sequence[int] | None, str]]:
    """Yield along which axes of its first input an operation joins entries, and how.

    None stands for all axes.
    """
    core = _core(node)
    if isinstance(core, CumOp):
        yield core.axis if core.axis is None else (core.axis,), CUMULATED
    elif isinstance(core, Softmax | LogSoftmax):
        axes = core.axis if core.axis is None else (core.axis,)
        yield axes, "is normalised over all rows (softmax)"
    elif isinstance(core, Scan):
        yield None, LOOPED
    elif isinstance(core, Convolve1d):
        yield None, CONVOLVED
    elif isinstance(core, CAReduce) and not isinstance(core, All | Any):
        yield core.axis, "is reduced over all rows (a total, a mean, an extreme value)"
    elif isinstance(core, Dot):
        yield (-1,), "is multiplied over all rows (a matrix product)"
    elif isinstance(core, Subtensor | IncSubtensor) and core.idx_list[:1] != (slice(None),):
        yield (0,), "is read or written at fixed positions of the rows (such as x[1:])"
