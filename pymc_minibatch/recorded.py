"""What becomes of draws: values of the model's variables, and what ``pm.sample`` returns.

The variables are worked out from many draws at a time.
"""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.exceptions import SamplingError
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.messages import with_id
from pymc_minibatch.steps.common import Block
from pymc_minibatch.tall.layout import PointLayout

__all__ = ["Values", "recorded"]

_log = logging.getLogger("pymc_minibatch")

MOST_NUMBERS = 2**21
"""Numbers, of all variables together, that are worked out at once."""


class Values:
    """What computes variables of a model from flat points.

    Parameters
    ----------
    model
        The model.
    layout
        Positions of its value variables in a flat point.
    var_names
        The variables; all that are not observed if None.

    Raises
    ------
    ValueError
        If a name is not that of such a variable.
    """

    def __init__(
        self, model: Model, layout: PointLayout, var_names: Sequence[str] | None = None
    ) -> None:
        known = {variable.name: variable for variable in model.unobserved_RVs}
        if var_names is None:  # the order of pm.sample
            known = {v.name: known[v.name] for v in model.unobserved_value_vars if v.name in known}
        names = list(known) if var_names is None else list(var_names)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{unknown[0]} is no variable of the model, which has {list(known)}.")
        self.model, self.layout = model, layout
        self.variables = [variable for name, variable in known.items() if name in names]
        self.names = [variable.name for variable in self.variables]
        self._graphs = list(model.replace_rvs_by_values(self.variables))
        self._graphs = _with_constants(self._graphs)
        values = {value.name: value for value in model.value_vars}
        self._inputs = [values[name] for name in layout.names]
        self._copied = {
            name: graph.name
            for name, graph in zip(self.names, self._graphs, strict=True)
            if graph in self._inputs
        }
        self._computed = [name for name in self.names if name not in self._copied]
        self._evaluate = self._evaluator()

    def __call__(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values of all variables at points, shape (draws, size)."""
        one = self._evaluate(points[:1])
        per_draw = sum(value.size for value in one.values()) + self.layout.size
        n = max(1, MOST_NUMBERS // max(1, per_draw))
        found: dict[str, list[np.ndarray]] = {name: [] for name in self._computed}
        for i in range(0, len(points), n):
            for name, values in self._evaluate(points[i : i + n]).items():
                found[name].append(values)
        computed = {name: np.concatenate(parts) for name, parts in found.items()}
        given = self._by_name(points, set(self._copied.values()))
        return {
            name: given[self._copied[name]] if name in self._copied else computed[name]
            for name in self.names
        }

    def _by_name(
        self, points: np.ndarray, wanted: Container[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Copy value variables, all or some, out of points."""
        layout = self.layout
        return {
            name: points[:, where].reshape(len(points), *shape).astype(dtype)
            for (name, where), shape, dtype in zip(
                layout.slices.items(), layout.shapes, layout.dtypes, strict=True
            )
            if wanted is None or name in wanted
        }

    def _evaluator(self) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        """Build what computes many draws at once; one after the other if that cannot be done."""
        graphs = [
            graph
            for name, graph in zip(self.names, self._graphs, strict=True)
            if name not in self._copied
        ]
        if not graphs:
            return lambda points: {}
        try:
            return self._of_many(graphs)
        except Exception as reason:
            _log.info(f"Variables are computed draw by draw: {reason}")
        function = self.model.compile_fn(
            graphs, inputs=self._inputs, point_fn=False, on_unused_input="ignore"
        )

        def one_by_one(points: np.ndarray) -> dict[str, np.ndarray]:
            given = self._by_name(points)
            drawn = [function(*each) for each in zip(*given.values(), strict=True)]
            return {
                name: np.stack([each[i] for each in drawn]) for i, name in enumerate(self._computed)
            }

        return one_by_one

    def _of_many(self, graphs: Sequence[Any]) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        batched = {
            # `pt.tensor` takes a name with commas for a list of types.
            value: pt.TensorType(value.dtype, (None, *value.type.shape))(f"{value.name}_batch")
            for value in self._inputs
        }
        many: Any = vectorize_graph(list(graphs), batched)
        evaluate = evaluator(list(batched.values()), many)
        grown = [new.ndim > old.ndim for new, old in zip(many, graphs, strict=True)]

        def together(points: np.ndarray) -> dict[str, np.ndarray]:
            found = evaluate.outputs(*self._by_name(points).values())
            return {
                name: np.asarray(values)
                if is_grown
                else np.broadcast_to(values, (len(points), *np.shape(values)))
                for name, values, is_grown in zip(self._computed, found, grown, strict=True)
            }

        together(self.layout.flatten(self.model.initial_point())[None])
        return together


def _with_constants(graphs: list[Any]) -> list[Any]:
    """Put the data of the model in place of the variables that hold them."""
    shared = [each for each in ancestors(graphs) if isinstance(each, SharedVariable)]
    constants: dict[Any, Any] = {
        each: pt.constant(each.get_value(borrow=True))
        for each in shared
        if isinstance(each.type, pt.TensorType)
    }
    return list(graph_replace(graphs, constants, strict=False)) if constants else graphs


def recorded(
    values: Values,
    blocks: Sequence[Sequence[Block]],
    tune: int,
    *,
    seconds: float,
    discard_tuned_samples: bool = True,
    idata_kwargs: Mapping[str, Any] | None = None,
) -> xr.DataTree:
    """Make the result of chains: what ``pm.sample`` returns.

    Raises
    ------
    SamplingError
        If no chain has made a draw after tuning.
    """
    lengths = [sum(len(block.points) for block in chain) for chain in blocks]
    least = tune if discard_tuned_samples else 0
    length = _best_length([n - least for n in lengths]) + least
    kept = [chain for chain, n in zip(blocks, lengths, strict=True) if n >= length > least]
    if not kept:
        raise SamplingError(
            with_id(
                "PMB310", "The run was interrupted before a chain had made a draw after tuning."
            )
        )
    traces = [_trace(values, chain, length, k) for k, chain in enumerate(kept)]
    whole = MultiTrace(traces)
    n_tune = min(tune, length)
    part = whole[n_tune:] if discard_tuned_samples else whole
    part.report._n_tune, part.report._n_draws = n_tune, length - n_tune
    part.report._t_sampling = seconds
    options = {"save_warmup": not discard_tuned_samples} | dict(idata_kwargs or {})
    return pm.to_inference_data(part, model=values.model, **options)


def _best_length(lengths: Sequence[int]) -> int:
    """Return the length at which chains that are as long have most draws together."""
    return max(lengths, key=lambda n: n * sum(other >= n for other in lengths), default=0)


def _trace(values: Values, blocks: Sequence[Block], length: int, number: int) -> NDArray:
    """Fill a trace of PyMC."""
    points = np.concatenate([block.points for block in blocks])[:length]
    stats = {
        name: np.concatenate([block.stats[name] for block in blocks])[:length]
        for name in blocks[0].stats
    }
    drawn = values(points)
    trace = NDArray(
        model=values.model,
        vars=values.variables,
        fn=lambda *_: (),
        var_shapes={name: array.shape[1:] for name, array in drawn.items()},
        var_dtypes={name: array.dtype for name, array in drawn.items()},
    )
    trace.setup(length, number, [{name: array.dtype.type for name, array in stats.items()}])
    trace.samples, trace._stats, trace.draw_idx = drawn, [stats], length
    return trace
