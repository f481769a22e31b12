"""Means over draws of functions of the parameters, without keeping what they are for each draw."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import inputvars
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor_variable
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.arguments import checked_count, checked_model
from pymc_minibatch.draws import Draws
from pymc_minibatch.results import Result
from pymc_minibatch.warn import warn

__all__ = ["RunningMean"]


class RunningMean:
    """The mean over draws of a function of the parameters, as a callback of ``pm.sample``.

    The prediction of a network for given rows is the mean of its outputs over the draws. Only this
    mean is kept, not the draws or the outputs of each draw. So also pass ``pm.sample`` the
    `var_names` of a few small variables. If you have a result already, use :meth:`add`.

    Parameters
    ----------
    f : TensorVariable or str
        The quantity to average: a variable of the model, its name, or an expression of some.
    data : dict of str to ndarray, optional
        The rows for which f is computed, for each ``pm.Data`` that f reads, by name; those of the
        model if not given.
    every : int, default 1
        Use every n-th draw of each chain after tuning.
    model : pymc.Model, optional
        The model; taken from the context if not given.

    Attributes
    ----------
    mean : ndarray
        The mean so far, over the draws of all chains; of the shape of f.
    n_draws : int
        The number of draws in the mean.
    n_left_out : int
        The number of draws at which f was not finite. A warning names the first.

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
    ...     slope = pm.Normal("slope")
    ...     mu = slope * pm.Data("x", x)
    ...     y = pm.Normal("y", mu, 1.0, observed=2 * x + rng.normal(size=1000))
    ...     predicted = pmb.RunningMean(mu, data={"x": np.array([0.0, 1.0])})
    ...     idata = pm.sample(
    ...         step=pmb.SGHMC(), draws=200, tune=200, chains=1, callback=predicted,
    ...         random_seed=1, progressbar=False,
    ...     )
    >>> predicted.n_draws, predicted.mean.round(1)
    (200, array([0., 2.]))
    """

    def __init__(
        self,
        f: TensorVariable | str,
        *,
        data: Mapping[str, Any] | None = None,
        every: int = 1,
        model: Model | None = None,
    ) -> None:
        self._model = checked_model(model)
        self._every = checked_count("every", every, 1)
        self._graph = _of_model(self._model, f), _constants(self._model, data or {})
        self._evaluate = _of_values(self._model, *self._graph)
        self.mean: np.ndarray = np.zeros(())
        self.n_draws = 0
        self.n_left_out = 0
        self._names = [get_var_name(value) for value in self._model.value_vars]

    def __call__(self, trace: Any, draw: Any) -> None:
        """Take a draw in; ``pm.sample`` calls this."""
        if draw.tuning or draw.draw_idx % self._every:
            return
        if missing := [name for name in self._names if name not in draw.point]:
            raise ValueError(
                f"The draws lack {missing}, which the model of this RunningMean has. Make it with "
                "the model that is sampled."
            )
        point = {name: draw.point[name] for name in self._names}
        self._take(self._evaluate(point), draw.chain, draw.draw_idx)

    def add(self, idata: Any) -> None:
        """Add the draws of a result, by the names and labels of the model's variables.

        Parameters
        ----------
        idata
            Result of ``pm.sample``, or one of the same form, with all variables that the
            function depends on.

        Raises
        ------
        TypeError
            If it is no result.
        ValueError
            If variables are missing, are of other shapes or labels than in the model, or have draws
            that are not finite.
        """
        draws = Draws(Result(idata), self._model)
        names, evaluate = _of_variables(self._model, *self._graph)
        if missing := [name for name in names if name not in draws.posterior]:
            raise ValueError(
                f"The posterior lacks {missing}, on which the function depends. Pass a result of "
                "this model; if it is one, name the variables in var_names of pm.sample."
            )
        values, n_draws = [draws.values(name) for name in names], draws.posterior.sizes["draw"]
        for k in range(draws.n_chosen):
            chain, draw = divmod(k, n_draws)
            if draw % self._every == 0:
                self._take(evaluate(*[each[k] for each in values]), chain, draw)

    def _take(self, value: Any, chain: int, draw: int) -> None:
        value = np.asarray(value, dtype=np.float64)
        if not np.isfinite(value).all():
            if not self.n_left_out:
                warn(
                    "PMB205",
                    f"The function is not finite at draw {draw} of chain {chain}. "
                    "Draws at which it is not are left out of the mean, and counted in n_left_out.",
                )
            self.n_left_out += 1
            return
        self.n_draws += 1
        self.mean = self.mean + (value - self.mean) / self.n_draws


def _of_model(model: Model, f: Any) -> Variable:
    """Return a variable by its name."""
    if isinstance(f, str):
        if f not in model.named_vars:
            raise ValueError(f"{f} is not a variable of the model: {sorted(model.named_vars)}.")
        f = model[f]
    return as_tensor_variable(f)


def _constants(model: Model, data: Mapping[str, Any]) -> dict[Variable, Variable]:
    """Return what takes the place of data with a name."""
    known = {variable.name: variable for variable in model.data_vars}
    if unknown := [name for name in data if name not in known]:
        raise ValueError(
            f"The model has no pm.Data named {unknown}; it has {sorted(known)}. Put the data "
            "that f reads into pm.Data."
        )
    return {
        known[name]: as_tensor_variable(np.asarray(values, dtype=known[name].dtype))
        for name, values in data.items()
    }


def _of_values(model: Model, f: Variable, constants: dict[Variable, Variable]) -> Any:
    """Compile f as a function of a point of unconstrained values."""
    graph: Any
    [graph] = graph_replace(model.replace_rvs_by_values([f]), constants, strict=False)
    if foreign := [str(v) for v in inputvars([graph]) if v not in model.value_vars]:
        raise ValueError(f"f depends on {foreign}, which the model does not sample.")
    return model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")


def _of_variables(
    model: Model, f: Variable, constants: dict[Variable, Variable]
) -> tuple[list[str], Any]:
    """Compile f as a function of free variables, and return their names."""
    inputs: dict[Variable, Variable] = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    [graph] = graph_replace([f], inputs, strict=False)
    [graph] = graph_replace([graph], constants, strict=False)
    read = set(ancestors([graph]))
    needed = [rv for rv in model.free_RVs if inputs[rv] in read]
    function = pymc_compile([inputs[rv] for rv in needed], graph)
    return [str(rv.name) for rv in needed], function
