"""Value, gradient and Hessian of the log-likelihood of some rows, or all.

If rows read mostly dense columns, or few numbers beside the parameters, by what they read
(:mod:`.curvature`); otherwise by a Hessian-vector product for each parameter.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_minibatch.jit.interpreted import Evaluator, evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.reference.curvature import Curvature, is_cheaper
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import sum_over_chunks

__all__ = ["Derivatives", "RowDerivatives", "row_derivatives"]

type _Rows = Sequence[np.ndarray]


def row_derivatives(tall: TallModel) -> "RowDerivatives":
    """Return the derivatives of the rows of a model, made once."""
    if tall not in _MADE:
        _MADE[tall] = RowDerivatives(tall)
    return _MADE[tall]


class RowDerivatives:
    """Sums over rows of the derivatives of their log-likelihood.

    Methods take a flat point, arrays of row data, and the title of a progress bar, if any.

    Parameters
    ----------
    tall
        The model.

    Raises
    ------
    NotImplementedError, NullTypeGradError, MethodNotDefined
        If an operation has no derivative.
    """

    def __init__(self, tall: TallModel) -> None:
        [flat, *batch], [term] = tall.batch_graph
        self.dim = tall.layout.size
        self.by_reading: Curvature | None = None
        structure = None if tall.layout.discrete else tall.structure
        if structure is not None and is_cheaper(structure, self.dim):
            self.by_reading = Curvature(structure)
        else:
            self._all = Derivatives(pt.sum(term), flat, batch)

    def value_gradient(
        self, theta: np.ndarray, rows: _Rows, title: str | None = None
    ) -> tuple[float, np.ndarray]:
        """Sum values and gradients."""
        if self.by_reading is None:
            value, gradient = sum_over_chunks(self._all.slope_at(theta), rows, title)
            return float(value), gradient
        value, slope = sum_over_chunks(self.by_reading.slope_at(theta), rows, title)
        return float(value), self.by_reading.slope_by_parameters(theta, slope)

    def values(self, thetas: np.ndarray, rows: _Rows) -> np.ndarray:
        """Sum values at many points, shape (number of points,)."""
        if self.by_reading is None:
            return np.array([self.value_gradient(theta, rows)[0] for theta in thetas])
        [values] = sum_over_chunks(self.by_reading.values_at(thetas), rows)
        return np.asarray(values)

    def gradient_hessian(
        self, theta: np.ndarray, rows: _Rows, title: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sum gradients and Hessians."""
        if self.by_reading is None:
            look = self._all.products_at(theta, np.eye(self.dim))
            gradient, hessian = sum_over_chunks(look, rows, title)
        else:
            sums = sum_over_chunks(self.by_reading.sums_at(theta), rows, title)
            gradient, hessian = self.by_reading.by_parameters(theta, *sums)
        return gradient, (hessian + hessian.T) / 2

    def product(self, theta: np.ndarray, vector: np.ndarray, rows: _Rows) -> np.ndarray:
        """Sum products of Hessians with a vector."""
        if self.by_reading is not None:
            return np.asarray(self.gradient_hessian(theta, rows)[1] @ vector)
        _, [product] = sum_over_chunks(self._all.products_at(theta, vector[None]), rows)
        return np.asarray(product)


_MADE: WeakKeyDictionary[TallModel, RowDerivatives] = WeakKeyDictionary()


class Derivatives:
    """Value, gradient and Hessian of a scalar graph of a flat point and a batch.

    What it returns for a point takes a batch, and can be pickled.

    Raises
    ------
    NotImplementedError, NullTypeGradError, MethodNotDefined
        If an operation has no derivative.
    """

    def __init__(self, graph: Variable, flat: Variable, batch: Sequence[Variable] = ()) -> None:
        self._flat, self._batch, self._graph = flat, list(batch), graph
        # Not every operation has derivatives; without them this raises, before work starts.
        self._gradient: Any = grad(graph, flat, disconnected_inputs="ignore")
        self._vector: Any = pt.dvector("vector")
        slope = pt.sum(self._gradient * self._vector)
        self._along: Any = grad(slope, flat, disconnected_inputs="ignore")

    @made_once
    def _slope(self) -> Evaluator:
        return evaluator([self._flat, *self._batch], [self._graph, self._gradient])

    @made_once
    def _product(self) -> Evaluator:
        inputs = [self._flat, self._vector, *self._batch]
        return evaluator(inputs, [self._gradient, self._along])

    @made_once
    def _products(self) -> Evaluator:
        """Of all vectors at once, which suits few numbers and not many rows."""
        vectors = pt.dmatrix("vectors")
        products = vectorize_graph([self._along], {self._vector: vectors})
        return evaluator([self._flat, vectors], products)

    def slope_at(self, theta: np.ndarray) -> Callable[..., Sequence[Any]]:
        """Return ``(*batch) -> (value, gradient)``."""
        return partial(self._slope.outputs, theta)

    def products_at(self, theta: np.ndarray, vectors: np.ndarray) -> Callable[..., Sequence[Any]]:
        """Return ``(*batch) -> (gradient, Hessian times each vector)``."""
        return partial(_products, self._product, theta, vectors)

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """Evaluate the Hessian of a graph that reads no rows."""
        # If the gradient is constant, PyTensor gives one product for all vectors.
        shape = (theta.size, theta.size)
        hessian = np.broadcast_to(self._products(theta, np.eye(theta.size)), shape)
        return (hessian + hessian.T) / 2


def _products(
    product: Evaluator, theta: np.ndarray, vectors: np.ndarray, *batch: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    parts = [product.outputs(theta, vector, *batch) for vector in vectors]
    return parts[0][0], np.array([each for _, each in parts])
