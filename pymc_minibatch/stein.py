"""The kernel Stein discrepancy of draws, from gradients of batches.

With s(θ) the gradient of the log-density and k a kernel, the mean over pairs of independent draws
of

    u(θ, θ') = s(θ)ᵀs(θ') k + s(θ)ᵀ∇'k + s(θ')ᵀ∇k + tr ∇∇'k

is the squared discrepancy: zero for draws from the posterior, positive for others. The terms are
linear in each gradient, so that gradients of batches will do if every draw has a batch of its own.

References
----------
Liu, Lee and Jordan (2016), A kernelized Stein discrepancy for goodness-of-fit tests. Gorham and
Mackey (2017), Measuring sample quality with kernels, for the inverse multiquadric kernel.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pymc.model import Model, modelcontext
from pymc.pytensorf import compile as pymc_compile
from pymc.util import get_var_name
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from scipy.linalg import solve_triangular

from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import decide_control_variate
from pymc_minibatch.reference.gradient import make_gradient_target
from pymc_minibatch.tall import TallModel

__all__ = ["SteinDiscrepancy", "ksd"]

DEFAULT_BATCH = 1000


@dataclass(frozen=True)
class SteinDiscrepancy:
    """A kernel Stein discrepancy.

    Attributes
    ----------
    value : float
        The discrepancy; 0 where the estimate of its square is negative.
    squared : float
        Unbiased estimate of its square, which may be negative.
    standard_error : float
        Of `squared`, the noise of the batches included; autocorrelation of the draws is not.
    n_draws : int
        Draws it rests on.
    n_gradient : int
        Gradients of rows evaluated.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.SteinDiscrepancy(0.3, 0.09, 0.01, 1000, 1_000_000).value
    0.3
    """

    value: float
    squared: float
    standard_error: float
    n_draws: int
    n_gradient: int


def ksd(
    idata: Any,
    model: Model | None = None,
    *,
    data: Any = None,
    reference: Reference | None = None,
    control_variate: Literal["auto", 0, 1, 2] = "auto",
    batch_size: int | None = None,
    max_draws: int = 2000,
    random_seed: int = 0,
) -> SteinDiscrepancy:
    """Estimate how far draws are from the posterior, by a kernel Stein discrepancy.

    It compares draws of one model, say between step sizes: the smaller is the nearer. Its unit has
    no meaning by itself. It does not notice a mode that no draw has found.

    Parameters
    ----------
    idata : DataTree
        What ``pm.sample`` returned; its posterior must hold all free variables of the model.
    model : pymc.Model, optional
        The model; taken from the context if not given.
    data : mapping of str to array, optional
        Data in place of the model's own; see :class:`TallModel`.
    reference : Reference, optional
        Its covariance is the unit of length, and the control variate is about it; found here if not
        given. Hand over the same one for draws that are to be compared.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Taken off the gradients of the rows. Without one the noise of the batches drowns all but
        large discrepancies. Where there is no reference the covariance of the draws is the unit.
    batch_size : int, optional
        Rows of the batch of each draw; 1000, or N if that is less.
    max_draws : int, default 2000
        Draws that are used, taken at equal distances from all chains; the work grows with their
        square.
    random_seed : int, default 0
        Chooses the rows.

    Returns
    -------
    SteinDiscrepancy

    Raises
    ------
    ValueError
        If variables are missing from the posterior or discrete, or an argument is out of range.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> y = rng.normal(size=10_000)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1.0, observed=y)
    >>> def draws(sd):
    ...     mu = xr.DataArray(rng.normal(y.mean(), sd, (2, 500)), dims=("chain", "draw"))
    ...     return xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": mu})})
    >>> good, bad = (pmb.ksd(draws(sd), model) for sd in (0.01, 0.02))
    >>> abs(good.squared) < 0.02 < bad.squared
    True
    """
    model = modelcontext(model)
    if model.discrete_value_vars:
        names = [get_var_name(value) for value in model.discrete_value_vars]
        raise ValueError(f"A Stein discrepancy needs gradients, and {names} are discrete.")
    if max_draws < 2:
        raise ValueError(f"max_draws must be at least 2; got {max_draws}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    tall = TallModel(model, data=data)
    points = _unconstrained(idata, model, tall, max_draws)
    reference, order = decide_control_variate(tall, reference, control_variate, 1.0)
    n = min(DEFAULT_BATCH, tall.n_rows) if batch_size is None else int(batch_size)
    base, row, constants = make_gradient_target(tall, reference, order)
    rng = np.random.default_rng(random_seed)
    scores = np.empty_like(points)
    for point, score in zip(points, scores, strict=True):
        rows = rng.integers(0, tall.n_rows, n)
        batch = tuple(np.ascontiguousarray(values[rows]) for values in tall.data)
        gradients = row(point, constants, batch)
        score[:] = base(point, constants) + tall.n_rows * gradients.mean(axis=0)
    covariance = np.cov(points.T).reshape(2 * points.shape[1:])
    lower = np.linalg.cholesky(covariance if reference is None else reference.covariance)
    z = solve_triangular(lower, (points - points.mean(axis=0)).T, lower=True).T
    squared, standard_error = discrepancy(z, scores @ lower)
    return SteinDiscrepancy(
        value=math.sqrt(max(0.0, squared)),
        squared=squared,
        standard_error=standard_error,
        n_draws=len(points),
        n_gradient=len(points) * n * (1 + order),
    )


def discrepancy(z: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Average u over the pairs of different points, with the kernel (1 + |z − z'|²/d)^(−1/2).

    Parameters
    ----------
    z, scores : ndarray, shape (n, d)
        Points, and the gradients of the log-density there.

    Returns
    -------
    tuple of float
        The U-statistic and its standard error, the degenerate part included.
    """
    n, d = z.shape
    norms = (z**2).sum(axis=1)
    squares = np.maximum(0.0, norms[:, None] + norms - 2 * z @ z.T)
    k = (1 + squares / d) ** -0.5
    along = scores @ z.T  # s(z_i)ᵀ z_j
    own = np.diag(along)
    slope = -(own[:, None] - along) - (own[None, :] - along.T)  # −sᵀr + s'ᵀr, r = z − z'
    u = scores @ scores.T * k - slope * k**3 / d + k**3 - 3 * squares * k**5 / d**2
    np.fill_diagonal(u, 0.0)
    means = u.sum(axis=1) / (n - 1)
    squared = float(means.mean())
    degenerate = (u**2).sum() / (n * (n - 1)) * 2 / n**2
    return squared, math.sqrt(4 * means.var() / n + degenerate)


def _unconstrained(idata: Any, model: Model, tall: TallModel, max_draws: int) -> np.ndarray:
    """Return draws as flat points, shape (n, D)."""
    posterior = idata.posterior
    names = [rv.name for rv in model.free_RVs]
    if missing := [name for name in names if name not in posterior]:
        raise ValueError(f"The posterior lacks {missing}, which are free variables of the model.")
    stacked = [posterior[name].values for name in names]
    draws = [values.reshape(-1, *values.shape[2:]) for values in stacked]
    chosen = np.linspace(0, len(draws[0]) - 1, min(max_draws, len(draws[0]))).astype(int)
    inputs: dict[Variable, Variable] = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    values: dict[str, Variable] = {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        value = inputs[rv]
        values[model.rvs_to_values[rv].name] = (
            value if transform is None else transform.forward(value, *rv.owner.inputs)
        )
    ordered = graph_replace([values[name] for name in tall.layout.names], inputs, strict=False)
    forward = pymc_compile(
        list(inputs.values()), ordered, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    points = [forward(*(values[i] for values in draws)) for i in chosen]
    return np.array([np.concatenate([np.ravel(value) for value in point]) for point in points])
