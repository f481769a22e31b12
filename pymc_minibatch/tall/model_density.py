"""The model's own log-density of all rows, of which nothing else in the package is presumed.

It is ``model.logp()``, with all priors, Jacobians, potentials and rows, made stable by PyTensor's
own rewrites and evaluated operation by operation on tiles of rows (:mod:`.tiled`). No rule by which
rows are split, structured, summed or expanded takes part in it, so that it can bear witness to all
of them. Only if other data are bound to the model, whose graph holds a stand-in for them, is it
prior and rows of the split; that was compared with the model's own on the stand-in.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Variable

from pymc_minibatch.jit.interpreted import shaken_outputs, stable_outputs
from pymc_minibatch.tall.check import only_axis
from pymc_minibatch.tall.gathered import readable
from pymc_minibatch.tall.model import TallModel
from pymc_minibatch.tall.passes import sum_over_chunks
from pymc_minibatch.tall.slicing import data_leaves, leaf_value
from pymc_minibatch.tall.tiled import TiledGraph
from pymc_minibatch.tall.verify import rounding

__all__ = ["ModelDensity"]

KNOWN_POINTS = 2
"""Points whose log-density is kept: moves that are compared often begin at the same one."""


LARGER = 4.0
"""How many times what one way of rounding differs by is taken for what others may differ by."""


class ModelDensity:
    """The log-density of a model at flat points.

    Parameters
    ----------
    tall
        The model, and the data if others are bound to it.
    temperature : float, default 1.0
        T: likelihoods count 1/T times.
    """

    def __init__(self, tall: TallModel, temperature: float = 1.0) -> None:
        self.tall, self.temperature = tall, temperature
        self._known: dict[bytes, float] = {}

    def __call__(self, point: np.ndarray) -> float:
        """Return the log-density at a flat point; −∞ if it is not a number, or +∞.

        Parameters
        ----------
        point : ndarray, shape (D,)
            Unconstrained values, as :class:`.layout.PointLayout` orders them.
        """
        key = point.tobytes()
        if key not in self._known:
            value = self._evaluate(point)
            self._known = dict([*self._known.items()][1 - KNOWN_POINTS :])
            self._known[key] = value if value < np.inf else -np.inf
        return self._known[key]

    def noise(self) -> float:
        """Return how far rounding may put off the difference of the last two points evaluated.

        Rows log Γ(y + α) − log Γ(α) with α = 10¹⁰ have lost eleven digits, which the size of their
        sum does not tell: the points are rounded otherwise (:func:`.verify.rounding`), and each
        operation is.
        """
        points = [np.frombuffer(key) for key in self._known]
        return float(sum(rounding(self._evaluate, point) + self._shaken(point) for point in points))

    def _shaken(self, point: np.ndarray) -> float:
        """Return by how much the value differs if each operation is rounded otherwise."""
        if self.tall.is_bound:
            return 0.0
        evaluate, arrays = self._shaken_graph
        with np.errstate(all="ignore"):
            moved = LARGER * abs(
                float(np.sum(evaluate(point, arrays))) - self._known[point.tobytes()]
            )
        return moved if np.isfinite(moved) else 0.0

    def _evaluate(self, point: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return self._of_split(point) if self.tall.is_bound else self._of_graph(point)

    def _of_graph(self, point: np.ndarray) -> float:
        evaluate, arrays = self._graph
        return float(np.sum(evaluate(point, arrays)))

    def _of_split(self, point: np.ndarray) -> float:
        look = _Total(self.tall.vector_row_logp, point)
        [rows] = sum_over_chunks(look, self.tall.data)
        return float(self.tall.compiled_prior_logp(point)) + float(rows) / self.temperature

    def gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient of the log-density at a flat point, shape (D,).

        Raises
        ------
        ValueError
            If other data are bound to the model.
        """
        if self.tall.is_bound:
            raise ValueError("The model's graph holds a stand-in for its data.")
        evaluate, arrays = self._gradient
        with np.errstate(all="ignore"):
            return evaluate(point, arrays)

    @cached_property
    def _graph(self) -> tuple[TiledGraph, list[np.ndarray]]:
        """The whole graph as a function of the point and of what holds rows, and the latter."""
        return self._tiled(self._inputs[0])

    @cached_property
    def _shaken_graph(self) -> tuple[TiledGraph, list[np.ndarray]]:
        """The same, rounded otherwise."""
        return self._tiled(self._inputs[0], shaken_outputs)

    @cached_property
    def _gradient(self) -> tuple[TiledGraph, list[np.ndarray]]:
        """The same for the gradient."""
        return self._tiled(grad(self._inputs[0], self.tall.flat, disconnected_inputs="ignore"))

    def _tiled(
        self, output: Any, build: Callable[..., Any] = stable_outputs
    ) -> tuple[TiledGraph, list[np.ndarray]]:
        _, inputs, arrays = self._inputs
        axes = [only_axis(values.shape, self.tall.n_rows) for values in arrays]
        graph = TiledGraph([self.tall.flat, *inputs], output, axes, build, in_threads=True)
        return graph, arrays

    @cached_property
    def _inputs(self) -> tuple[Any, list[Variable], list[np.ndarray]]:
        """The log-density as a graph, its inputs that hold rows, and what these hold."""
        tall = self.tall
        leaves = [x for x in data_leaves([self._total]) if tall.n_rows in leaf_value(x).shape]
        inputs: dict[Variable, Any] = {leaf: leaf.type(name=leaf.name) for leaf in leaves}
        arrays = [np.asarray(leaf_value(leaf)) for leaf in leaves]
        return tall.bind(self._total, inputs), list(inputs.values()), arrays

    @cached_property
    def _total(self) -> Variable:
        model, tall = self.tall.model, self.tall
        if self.temperature == 1.0:
            return pt.cast(readable([model.logp()], model)[0], "float64")
        prior = [rv for rv in model.basic_RVs if rv.name not in tall.row_names]
        prior += [each for each in model.potentials if each.name not in tall.row_potentials]
        rows = [rv for rv in model.basic_RVs if rv.name in tall.row_names]
        rows += [each for each in model.potentials if each.name in tall.row_potentials]
        of_prior = [pt.sum(term) for term in model.logp(vars=prior, sum=False)] if prior else []
        of_rows = [pt.sum(term) for term in model.logp(vars=rows, sum=False)]
        total = pt.add(pt.constant(0.0), *of_prior) + pt.add(*of_rows, 0.0) / self.temperature
        return pt.cast(readable([total], model)[0], "float64")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made anew where it is needed."""
        return {"tall": self.tall, "temperature": self.temperature, "_known": {}}


class _Total:
    """The sum of the log-likelihoods of a chunk; it can be sent to workers."""

    def __init__(self, row_logp: Any, point: np.ndarray) -> None:
        self.row_logp, self.point = row_logp, point

    def __call__(self, *batch: np.ndarray) -> Sequence[Any]:
        return [np.sum(self.row_logp(self.point, *batch))]
