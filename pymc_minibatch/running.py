"""Means over draws of functions of the parameters, without keeping the draws."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.pytensorf import inputvars
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor import as_tensor_variable
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.arguments import checked_count, checked_model
from pymc_minibatch.warn import warn

__all__ = ["RunningMean"]


class RunningMean:
    """The mean over draws of a function of the parameters, as a callback of ``pm.sample``.

    What a network predicts for given rows is the mean of its outputs over the draws. This keeps
    that mean alone, and not the draws or the outputs for each of them: pass ``pm.sample`` the
    `var_names` of a few small variables as well.

    Parameters
    ----------
    f : TensorVariable or str
        What is averaged: a variable of the model, its name, or an expression of some.
    data : mapping of str to array, optional
        For each name of a ``pm.Data`` that f reads, the rows for which f is wanted; those of the
        model if not given.
    every : int, default 1
        Of each chain every so many draws after tuning count.
    model : pymc.Model, optional
        The model; taken from the context if not given.

    Attributes
    ----------
    mean : ndarray
        The mean so far, over the draws of all chains; of the shape of f.
    n_draws : int
        Draws in it.
    n_left_out : int
        Draws at which f was not finite. The first is told in a warning.

    Raises
    ------
    ValueError
        If f or a name in `data` is not of the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=1000)
    >>> with pm.Model():
    ...     slope, data = pm.Normal("slope"), pm.Data("x", x)
    ...     mu = pm.Deterministic("mu", slope * data)
    ...     y = pm.Normal("y", mu, 1.0, observed=2 * x + rng.normal(size=1000))
    ...     predicted = pmb.RunningMean(mu, data={"x": np.array([0.0, 1.0])})
    >>> predicted.n_draws
    0
    >>> # then: pm.sample(step=pmb.SGHMC(), var_names=["slope"], callback=predicted)
    """

    def __init__(
        self,
        f: TensorVariable | str,
        *,
        data: Mapping[str, Any] | None = None,
        every: int = 1,
        model: Model | None = None,
    ) -> None:
        model = checked_model(model)
        self._every = checked_count("every", every, 1)
        self._evaluate = _compiled(model, f, data or {})
        self.mean: np.ndarray = np.zeros(())
        self.n_draws = 0
        self.n_left_out = 0
        self._names = [get_var_name(value) for value in model.value_vars]

    def __call__(self, trace: Any, draw: Any) -> None:
        """Take a draw in; ``pm.sample`` calls this."""
        if draw.tuning or draw.draw_idx % self._every:
            return
        if missing := [name for name in self._names if name not in draw.point]:
            raise ValueError(
                f"The draws lack {missing}, which the model of this mean has. Make it with the "
                "model that is sampled."
            )
        point = {name: draw.point[name] for name in self._names}
        value = np.asarray(self._evaluate(point), dtype=np.float64)
        if not np.isfinite(value).all():
            if not self.n_left_out:
                warn(
                    "PMB205",
                    f"The function is not finite at draw {draw.draw_idx} of chain {draw.chain}. "
                    "Draws at which it is not are left out of the mean, and counted in n_left_out.",
                )
            self.n_left_out += 1
            return
        self.n_draws += 1
        self.mean = self.mean + (value - self.mean) / self.n_draws


def _compiled(model: Model, f: Any, data: Mapping[str, Any]) -> Any:
    """Compile f for other data, as a function of a point."""
    if isinstance(f, str):
        if f not in model.named_vars:
            raise ValueError(f"{f} is not a variable of the model: {sorted(model.named_vars)}.")
        f = model[f]
    known = {variable.name: variable for variable in model.data_vars}
    if unknown := [name for name in data if name not in known]:
        raise ValueError(
            f"The model has no pm.Data named {unknown}; it has {sorted(known)}. Make what f reads "
            "pm.Data."
        )
    graph: Any
    [graph] = model.replace_rvs_by_values([as_tensor_variable(f)])
    replaced: dict[Variable, Variable] = {
        known[name]: as_tensor_variable(np.asarray(values, dtype=known[name].dtype))
        for name, values in data.items()
    }
    [graph] = graph_replace([graph], replaced, strict=False)
    if foreign := [str(v) for v in inputvars([graph]) if v not in model.value_vars]:
        raise ValueError(f"f depends on {foreign}, which the model does not sample.")
    return model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")
