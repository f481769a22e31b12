"""What is estimated: expectations of a function, or means and variances of variables.

Both are functions of the expectation of a vector of values, which paths evaluate: the values of f;
or, for each element x of the variables, x − c and (x − c)² with c its value at the mode.
"""

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.variable import RandomGeneratorSharedVariable

from pymc_minibatch.jit.compiled import compile_numba, compile_python, jit_kept
from pymc_minibatch.tall import TallModel

__all__ = ["Estimand", "make_estimand"]


class Estimand(ABC):
    """What is estimated.

    Attributes
    ----------
    function
        Numba function ``flat point -> values``, a vector of length k.
    n_values
        k.
    labels
        A name for each of the m estimates.
    relative
        Whether errors relate to the estimates themselves.
    """

    function: Callable[[np.ndarray], np.ndarray]
    n_values: int
    labels: list[str]
    relative: bool

    @abstractmethod
    def estimates(self, expectation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return m estimates given k expectations, their Jacobian, and what errors relate to."""

    @abstractmethod
    def shaped(self, flat: np.ndarray) -> Any:
        """Return m numbers as the user is to see them."""

    def _compile(self, tall: TallModel, graph: Any, mode: np.ndarray) -> np.ndarray:
        """Compile the values; return them at the mode."""
        graph = pt.cast(graph, "float64").ravel()
        values = compile_numba([tall.flat], [graph])
        evaluate = values.jitted
        self.function = jit_kept(
            lambda point: np.ascontiguousarray(evaluate(point)[0]), [values.cache_key]
        )
        at_mode = self.function(mode)
        self.n_values = at_mode.size
        return at_mode


class Function(Estimand):
    """Expectations of f, whose errors relate to their absolute values."""

    relative = True

    def __init__(self, f: Callable[..., Any], tall: TallModel, mode: np.ndarray) -> None:
        graph = _value_graph(tall, _apply(f, _variables(tall)), "f")
        at_mode = _at(tall, graph, mode)
        if not at_mode.size:
            raise ValueError("f has no values: it returns an empty array.")
        self.shape = at_mode.shape
        self.labels = _labels("f", self.shape)
        _check_finite(at_mode, self.labels)
        self._compile(tall, graph, mode)

    def estimates(self, expectation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return expectation, np.eye(self.n_values), np.abs(expectation)

    def shaped(self, flat: np.ndarray) -> Any:
        return flat.reshape(self.shape) if self.shape else float(flat[0])


class Moments(Estimand):
    """Means and variances, whose errors relate to standard deviations and to variances."""

    relative = False

    def __init__(self, names: Sequence[str], tall: TallModel, mode: np.ndarray) -> None:
        variables = _variables(tall)
        _check_known(names, variables, "f must be a function or name variables of the model")
        graphs = {name: _value_graph(tall, variables[name], name) for name in names}
        at_mode = {name: _at(tall, graph, mode) for name, graph in graphs.items()}
        self.shapes = {name: values.shape for name, values in at_mode.items()}
        elements = [label for name, shape in self.shapes.items() for label in _labels(name, shape)]
        self.center = np.concatenate([values.ravel() for values in at_mode.values()]).astype(float)
        _check_finite(self.center, elements)
        flat: Any = pt.concatenate([pt.cast(graph, "float64").ravel() for graph in graphs.values()])
        delta = flat - pt.constant(self.center)
        self._compile(tall, pt.concatenate([delta, delta**2]), mode)
        self.labels = [f"{kind} of {e}" for kind in ("mean", "variance") for e in elements]

    def estimates(self, expectation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        delta, square = np.split(expectation, 2)
        variance = np.maximum(square - delta**2, 0.0)
        jacobian = np.eye(expectation.size)
        jacobian[delta.size :, : delta.size] = np.diag(-2 * delta)
        scale = np.concatenate([np.sqrt(variance), variance])
        return np.concatenate([self.center + delta, variance]), jacobian, scale

    def shaped(self, flat: np.ndarray) -> xr.Dataset:
        moments, dataset, first = flat.reshape(2, -1), {}, 0
        for name, shape in self.shapes.items():
            last = first + int(np.prod(shape))
            dims = ["moment", *(f"{name}_dim_{i}" for i in range(len(shape)))]
            dataset[name] = (dims, moments[:, first:last].reshape(2, *shape))
            first = last
        return xr.Dataset(dataset, coords={"moment": ["mean", "variance"]})


def make_estimand(
    f: Callable[..., Any] | Variable | str | Sequence[Variable | str],
    tall: TallModel,
    mode: np.ndarray,
) -> Estimand:
    """Make sense of what the user asks for."""
    if isinstance(f, (str, Variable)):
        f = [f]
    if callable(f):
        return Function(f, tall, mode)
    if not isinstance(f, Iterable):
        raise ValueError(f"f must be a function, or names of variables of the model; got {f!r}.")
    names = [str(getattr(name, "name", name)) for name in f]
    if not names:
        raise ValueError("f names no variables.")
    return Moments(names, tall, mode)


def _variables(tall: TallModel) -> dict[str, Variable]:
    """Variables of the model that have a value at each point."""
    model = tall.model
    return {variable.name: variable for variable in [*model.free_RVs, *model.deterministics]}


def _apply(f: Callable[..., Any], variables: dict[str, Variable]) -> Any:
    """Call f with the variables that its arguments name; others may have defaults."""
    signature = inspect.signature(f)
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and (name in variables or parameter.default is parameter.empty)
    ]
    _check_known(names, variables, "The arguments of f must be variables of the model")
    call = inspect.BoundArguments(signature, OrderedDict((n, variables[n]) for n in names))
    returned = f(*call.args, **call.kwargs)
    try:
        value = pt.as_tensor_variable(returned)
        return pt.cast(value, "float64")
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            "f must return a PyTensor expression with real values, or a list "
            f"of expressions of the same shape; got {returned!r}."
        ) from error


def _check_finite(at_mode: np.ndarray, labels: Sequence[str]) -> None:
    for value, label in zip(at_mode.ravel(), labels, strict=True):
        if not np.isfinite(value):
            raise ValueError(
                f"{label} is {value} at the posterior mode: the function must be finite everywhere "
                "in the posterior."
            )


def _check_known(names: Sequence[str], variables: dict[str, Variable], what: str) -> None:
    if not names:
        raise ValueError(f"{what}, and f has none; they are {list(variables)}.")
    if unknown := [name for name in names if name not in variables]:
        raise ValueError(f"{what}, which are {list(variables)}; got {unknown}.")


def _value_graph(tall: TallModel, variable: Variable, name: str) -> Any:
    """Make a graph of the flat point, which must not read the rows."""
    rows = {row_input.leaf for row_input in tall.row_inputs.values()}
    if rows.intersection(ancestors([variable])):
        raise ValueError(
            f"{name} reads the rows of the data, all of them at every evaluation: estimate "
            "functions of the parameters alone."
        )
    graph = tall.value_graph(variable)
    if any(isinstance(parent, RandomGeneratorSharedVariable) for parent in ancestors([graph])):
        raise ValueError(
            f"{name} draws random numbers: estimate functions of the parameters alone, such as "
            "the expectation of what is drawn."
        )
    return graph


def _at(tall: TallModel, graph: Variable, point: np.ndarray) -> np.ndarray:
    """Evaluate a graph once, without compiling it."""
    return np.asarray(compile_python([tall.flat], [graph])(point))


def _labels(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    return [f"{name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]
