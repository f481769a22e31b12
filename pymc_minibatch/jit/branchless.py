"""Functions of entries of arrays that take no branches and call nothing, in graphs.

PyTensor's functions are replaced by those of :mod:`.functions` when a graph is compiled here, if
they are taken of arrays of doubles, or of whole numbers that become doubles. Matrices are gone
through entry by entry: several at once need a loop that is longer than the few columns that they
often have.
"""

from functools import partial
from typing import Any

import numpy as np
import pytensor.scalar
from numba import njit
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.graph.utils import MethodNotDefined
from pytensor.link.numba.dispatch.basic import (
    register_funcify_and_cache_key,
    register_funcify_default_op_cache_key,
)
from pytensor.link.numba.dispatch.scalar import numba_funcify_Composite, scalar_op_cache_key
from pytensor.scalar.basic import (
    Composite,
    Exp,
    Expm1,
    Log,
    Log1p,
    Pow,
    Switch,
    UnaryScalarOp,
    upgrade_to_float,
)
from pytensor.scalar.math import Erf, Erfc, Erfcx, GammaLn, Log1mexp, Psi, Sigmoid, Softplus
from pytensor.tensor.basic import cast, switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import log
from scipy import special

from pymc_minibatch.jit import functions
from pymc_minibatch.jit.reached import reached_number

__all__ = [
    "FUNCTIONS",
    "LOG_ERFC",
    "DifferentiableLog1mexp",
    "Entrywise",
    "InverseErfcx",
    "LogErfc",
    "local_branchless",
    "local_inlined",
    "local_one_logarithm",
]

ps: Any = pytensor.scalar


class BranchlessExp(Exp):
    """e^x of doubles."""


class BranchlessExpm1(Expm1):
    """e^x − 1 of doubles."""


class BranchlessSigmoid(Sigmoid):
    """1 / (1 + e^(−x)) of doubles."""


class BranchlessSoftplus(Softplus):
    """log(1 + e^x) of doubles."""


class BranchlessLog(Log):
    """Log x of doubles."""


class BranchlessLog1p(Log1p):
    """log(1 + x) of doubles."""


class BranchlessGammaLn(GammaLn):
    """log |Γ(x)| of doubles."""


class BranchlessPsi(Psi):
    """The derivative of log |Γ(x)| of doubles."""


class BranchlessErf(Erf):
    """The error function of doubles."""


class BranchlessErfc(Erfc):
    """One less the error function, of doubles."""


class BranchlessErfcx(Erfcx):
    """e^x² times the same."""


class DifferentiableLog1mexp(Log1mexp):
    """log(1 − e^x), of which the second derivative is finite for x below −700, too."""

    def pullback(self, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivative, e^x / (e^x − 1), times `grads`."""
        [x] = inputs
        slope = ps.true_div(ps.exp(x), ps.expm1(x))
        return [grads[0] * ps.switch(ps.isinf(slope), -np.inf, slope)]


class OfThisPackage(UnaryScalarOp):
    """A function that PyTensor does not have."""

    def impl(self, x: Any) -> Any:
        """Return it for a number."""
        return FUNCTIONS[type(self)][1](x)

    def c_code(self, *args: Any, **kwargs: Any) -> str:
        """Have PyTensor call `impl` if it compiles C."""
        raise MethodNotDefined


class LogErfc(OfThisPackage):
    """log(1 − erf x), with derivatives that keep their digits where erf x is nearly 1."""

    def pullback(self, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivative times `grads`."""
        return [-TWO_BY_ROOT_PI * INVERSE_ERFCX(inputs[0]) * grads[0]]


class InverseErfcx(OfThisPackage):
    """1 / (e^x² (1 − erf x)), to which the slope of its logarithm is proportional."""

    def pullback(self, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """Return the derivative times `grads`."""
        [x] = inputs
        own = self(x)
        slope_of_log = ps.switch(ps.gt(x, LARGE), 1.0 / x, TWO_BY_ROOT_PI * own - 2.0 * x)
        return [own * slope_of_log * grads[0]]


class BranchlessLog1mexp(DifferentiableLog1mexp):
    """log(1 − e^x) of doubles."""


class BranchlessPow(Pow):
    """x^y of doubles."""


POWER = BranchlessPow(upgrade_to_float)
LOG_ERFC = LogErfc(upgrade_to_float, name="log_erfc")
INVERSE_ERFCX: Any = InverseErfcx(upgrade_to_float, name="inverse_erfcx")
LARGE = 1e4
"""Arguments from which on the slope of log 1 / (e^x² (1 − erf x)) is 1 / x, to 1e-8 relative."""

TWO_BY_ROOT_PI = 2.0 / np.sqrt(np.pi)


def _log1mexp(x: np.ndarray) -> np.ndarray:
    """Return log(1 − e^x) in NumPy."""
    return np.where(x > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def _log_erfc(x: np.ndarray) -> np.ndarray:
    """Return log(1 − erf x) in NumPy."""
    return np.asarray(np.log(2.0) + special.log_ndtr(-np.sqrt(2.0) * x))


def _inverse_erfcx(x: np.ndarray) -> np.ndarray:
    """Return 1 / (e^x² (1 − erf x)) in NumPy."""
    return np.asarray(1.0 / special.erfcx(x))


BRANCHLESS: dict[type, UnaryScalarOp] = {
    Exp: BranchlessExp(upgrade_to_float),
    Expm1: BranchlessExpm1(upgrade_to_float),
    Sigmoid: BranchlessSigmoid(upgrade_to_float),
    Softplus: BranchlessSoftplus(upgrade_to_float),
    Log: BranchlessLog(upgrade_to_float),
    Log1p: BranchlessLog1p(upgrade_to_float),
    Log1mexp: BranchlessLog1mexp(upgrade_to_float),
    DifferentiableLog1mexp: BranchlessLog1mexp(upgrade_to_float),
    GammaLn: BranchlessGammaLn(upgrade_to_float),
    Psi: BranchlessPsi(upgrade_to_float),
    Erf: BranchlessErf(upgrade_to_float),
    Erfc: BranchlessErfc(upgrade_to_float),
    Erfcx: BranchlessErfcx(upgrade_to_float),
}
FUNCTIONS: dict[type, tuple[Any, Any]] = {
    BranchlessExp: (functions.exponential, np.exp),
    BranchlessExpm1: (functions.exponential_less_one, np.expm1),
    BranchlessSigmoid: (functions.sigmoid, special.expit),
    BranchlessSoftplus: (functions.softplus, partial(np.logaddexp, 0.0)),
    BranchlessLog: (functions.logarithm, np.log),
    BranchlessLog1p: (functions.logarithm_of_next, np.log1p),
    BranchlessLog1mexp: (functions.logarithm_of_one_less_exponential, _log1mexp),
    BranchlessPow: (functions.power, np.power),
    BranchlessGammaLn: (functions.log_gamma, special.gammaln),
    BranchlessPsi: (functions.digamma, special.psi),
    BranchlessErf: (functions.erf, special.erf),
    BranchlessErfc: (functions.erfc, special.erfc),
    BranchlessErfcx: (functions.scaled_erfc, special.erfcx),
    LogErfc: (functions.logarithm_of_erfc, _log_erfc),
    InverseErfcx: (functions.inverse_scaled_erfc, _inverse_erfcx),
}
"""In Numba and in NumPy."""


class Entrywise(Op):
    """One of these functions of each entry of an array."""

    __props__ = ("scalar_op",)

    def __init__(self, scalar_op: UnaryScalarOp) -> None:
        self.scalar_op = scalar_op

    def make_node(self, *inputs: Variable) -> Apply:
        """Take an array of doubles, give one of the same shape."""
        values: Any = inputs[0]
        return Apply(self, [values], [values.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute in NumPy."""
        outputs[0][0] = FUNCTIONS[type(self.scalar_op)][1](inputs[0])


@node_rewriter([Elemwise])
def local_branchless(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace functions of arrays whose results are doubles."""
    op: Any = node.op
    found: Any = node.outputs[0]
    if found.type.dtype != "float64" or found.type.ndim == 0:
        return None
    is_one_loop = all(found.type.broadcastable[:-1])
    if type(op.scalar_op) is Pow and is_one_loop:
        power: Any = Elemwise(POWER)
        return [power(*(cast(part, "float64") for part in node.inputs))]
    scalar_op = BRANCHLESS.get(type(op.scalar_op))
    if scalar_op is None:
        return None
    values: Any = cast(node.inputs[0], "float64")
    replacement: Any = Elemwise(scalar_op) if is_one_loop else Entrywise(scalar_op)
    return [replacement(values)]


@node_rewriter([Elemwise])
def local_one_logarithm(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Take the logarithm of what is chosen, if one of two is: both cost more than anything else.

    What log(1 + x) has to say of an x below 1e-16 is lost, which is nothing in a sum of rows.
    """
    op: Any = node.op
    if not isinstance(op.scalar_op, Switch):
        return None
    condition, *logarithms = node.inputs
    arguments = [_argument(values) for values in logarithms]
    if None in arguments:
        return None
    return [log(switch(condition, *arguments))]


def _argument(logarithm: Variable) -> Variable | None:
    """Return that of which it is the logarithm, if it is one of doubles."""
    node: Any = logarithm.owner
    scalar_op = getattr(node and node.op, "scalar_op", None)
    if not isinstance(scalar_op, Log | Log1p) or node.inputs[0].type.dtype != "float64":
        return None
    argument: Any = node.inputs[0]
    found: Variable = argument if isinstance(scalar_op, Log) else 1.0 + argument
    return found


def _funcify(op: UnaryScalarOp, node: Any, **kwargs: Any) -> tuple[Any, str]:
    function = FUNCTIONS[type(op)][0]
    return function, scalar_op_cache_key(op, source=reached_number(function))


for _op in FUNCTIONS:
    register_funcify_and_cache_key(_op)(_funcify)


@register_funcify_default_op_cache_key(Entrywise)
def _funcify_entrywise(op: Entrywise, node: Apply, **kwargs: Any) -> tuple[Any, int]:
    function = FUNCTIONS[type(op.scalar_op)][0]

    @njit(error_model="numpy")
    def entrywise(values: Any) -> Any:
        flat = np.ascontiguousarray(values).reshape(-1)
        out = np.empty(flat.size)
        for i in range(flat.size):
            out[i] = function(flat[i])
        return out.reshape(values.shape)

    return entrywise, reached_number(entrywise)


class InlinedComposite(Composite):
    """Several operations on numbers, all in the loop over the entries of an array.

    A call there would keep the processor from computing several entries at once.
    """


@node_rewriter([Elemwise])
def local_inlined(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Have operations that were fused written into the loop."""
    op: Any = node.op
    inner = op.scalar_op
    if type(inner) is not Composite or node.outputs[0].type.ndim == 0:
        return None
    inlined: Any = Elemwise(InlinedComposite(inner.inputs, inner.outputs))
    found: list[Variable] = inlined.make_node(*node.inputs).outputs
    return found


@register_funcify_and_cache_key(InlinedComposite)
def _funcify_inlined(op: InlinedComposite, node: Any, **kwargs: Any) -> tuple[Any, str | None]:
    function, key = numba_funcify_Composite(op, node=node, **kwargs)
    function.targetoptions["forceinline"] = True
    return function, key and f"{key}-inlined"
