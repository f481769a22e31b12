"""The kernel Stein discrepancy of draws, from gradients of batches.

With s(θ) the gradient of the log-density and k a kernel, the mean over pairs of independent draws
of

    u(θ, θ') = s(θ)ᵀs(θ') k + s(θ)ᵀ∇'k + s(θ')ᵀ∇k + tr ∇∇'k

is the squared discrepancy: zero for draws from the posterior, positive for others. The terms are
linear in each gradient, so that gradients of batches suffice if every draw has its own batch.

Draws of a chain are not independent, and pairs of draws that depend on each other look like a
discrepancy. Chains are therefore cut into blocks, and pairs taken from blocks that do not touch.

References
----------
Liu, Lee and Jordan (2016), A kernelized Stein discrepancy for goodness-of-fit tests. Gorham and
Mackey (2017), Measuring sample quality with kernels, for the inverse multiquadric kernel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pymc.util import get_var_name
from scipy.linalg import solve_triangular

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.draws import draws_of
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import check_control_variate, decide_control_variate
from pymc_minibatch.reference.find import fitting
from pymc_minibatch.reference.gradient import make_gradient_target
from pymc_minibatch.renamed import renamed
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = ["SteinDiscrepancy", "ksd"]

DEFAULT_BATCH = 1000

BLOCKS = 40
"""Draws are cut into about so many blocks, which all chains share."""

LEAST_SPREAD = 1e-7
"""Share of a parameter's standard deviation that others leave; less is rounding."""


@dataclass(frozen=True)
class SteinDiscrepancy:
    """A kernel Stein discrepancy.

    Attributes
    ----------
    value : float
        The discrepancy; 0 if the estimate of its square is negative.
    squared : float
        Unbiased estimate of its square, which may be negative.
    standard_error : float
        Of `squared`, including the noise of the batches, and the autocorrelation of the draws as
        far as it is shorter than a fortieth of them.
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


@renamed(tall="data")
def ksd(
    idata: Any,
    model: Any = None,
    *,
    data: Any = None,
    reference: Reference | None = None,
    control_variate: Literal["auto", 0, 1, 2] = "auto",
    batch_size: int | None = None,
    max_draws: int = 2000,
    random_seed: int = 0,
) -> SteinDiscrepancy:
    """Estimate how far draws are from the posterior, by a kernel Stein discrepancy.

    Use it to compare draws of one model, for example between step sizes: smaller is better. Its
    unit has no meaning of its own. It cannot detect a mode that no draw has found.

    Pairs of draws that are near each other in a chain are left out. So the expected square is zero
    for draws from the posterior however slowly they mix, if there are at least a hundred
    autocorrelation times of them; look at R-hat and the effective sample size first.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample``; its posterior must hold all free variables of the model.
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given. For a result of Bambi pass its model.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, or the model already split, such as ``step.tall``; see
        :class:`TallModel`.
    reference : Reference, optional
        Its covariance is the unit of length, and the control variate is about it; found here if not
        given. Pass the same reference for all draws that you compare.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the expansion whose gradient is subtracted from that of each row. Without it, the
        noise of the batches hides all but large discrepancies. If there is no reference, the
        covariance of the draws is the unit.
    batch_size : int, optional
        Rows of the batch of each draw; 1000, or N if that is less.
    max_draws : int, default 2000
        Draws that are used, at least 40, taken at equal distances from all chains; the work grows
        with their square.
    random_seed : int, default 0
        Chooses the rows.

    Returns
    -------
    SteinDiscrepancy

    Raises
    ------
    ValueError
        If variables are missing from the posterior or discrete, or have values that are not finite,
        if there are fewer than 40 draws, or if an argument is out of range; without a reference
        also if there are no more draws than parameters, or a parameter never moves.

    Warns
    -----
    MinibatchWarning
        If a parameter never moves, and `reference` gives the unit.

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
    check_control_variate(reference, control_variate)
    max_draws = checked_count("max_draws", max_draws, BLOCKS)
    if batch_size is not None:
        batch_size = checked_count("batch_size", batch_size, 1)
    tall, draws = draws_of(idata, model, data, all_rows=True)
    if discrete := [get_var_name(value) for value in tall.model.discrete_value_vars]:
        raise ValueError(f"A Stein discrepancy needs gradients, and {discrete} are discrete.")
    points = draws.all_points(tall, max_draws, least=BLOCKS)
    stuck = _stuck(points, tall)
    reference = None if reference is None else fitting(tall, reference)
    if reference is None:
        lower = _unit(points, stuck)
    else:
        lower = np.linalg.cholesky(reference.covariance)
        if stuck:
            warn("PMB406", f"{stuck}, so the standard error is meaningless.")
    control = decide_control_variate(tall, reference, control_variate, 1.0)
    n = min(DEFAULT_BATCH, tall.n_rows) if batch_size is None else batch_size
    base, row, constants = make_gradient_target(tall, control)
    rng = np.random.default_rng(random_seed)
    scores = np.empty_like(points)
    batches = _batches(tall, rng, len(points), n)
    for point, score, batch in zip(points, scores, batches, strict=True):
        gradients = row(point, constants, batch)
        score[:] = base(point, constants) + tall.n_rows * gradients.mean(axis=0)
    z = solve_triangular(lower, (points - points.mean(axis=0)).T, lower=True).T
    squared, standard_error = discrepancy(z, scores @ lower, draws.n_chains)
    return SteinDiscrepancy(
        value=math.sqrt(max(0.0, squared)),
        squared=squared,
        standard_error=standard_error,
        n_draws=len(points),
        n_gradient=len(points) * n * (1 + (0 if control is None else control.order)),
    )


def _stuck(points: np.ndarray, tall: TallModel) -> str:
    """Say which parameters have the same value in all draws; empty if none has."""
    constant = np.flatnonzero(np.ptp(points, axis=0) == 0)
    if not constant.size:
        return ""
    others = f", and so have {constant.size - 1} others" if constant.size > 1 else ""
    name = tall.layout.name_of(int(constant[0]))
    return f"{name} has the same value in all draws{others}: the chains never moved there"


def _unit(points: np.ndarray, stuck: str) -> np.ndarray:
    """Take the covariance of the draws for the unit of length; return its Cholesky factor.

    Raises
    ------
    ValueError
        If they do not span the parameters.
    """
    n, dim = points.shape
    remedy = "Pass reference=pmb.find_reference(model), whose covariance is the unit then."
    if stuck:
        raise ValueError(f"{stuck}. {remedy}")
    if n <= dim:
        raise ValueError(f"{n} draws do not span {dim} parameters: take more. {remedy}")
    scale = points.std(axis=0, ddof=1)
    try:
        lower = np.linalg.cholesky(np.corrcoef(points.T).reshape(dim, dim))
    except np.linalg.LinAlgError:
        lower = np.zeros((dim, dim))
    if np.diag(lower).min() < LEAST_SPREAD:
        raise ValueError(
            "The draws lie in fewer dimensions than the model has parameters: some parameters "
            f"always move together. {remedy}"
        )
    return scale[:, None] * lower


def _batches(
    tall: TallModel, rng: np.random.Generator, n_batches: int, n: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Draw batches one after the other; rows in partitions are gathered in one job."""
    if tall.partitions is None:
        for _ in range(n_batches):
            yield tall.batch(rng.integers(0, tall.n_rows, n))
        return
    gathered = tall.batch(rng.integers(0, tall.n_rows, n_batches * n))
    for first in range(0, n_batches * n, n):
        yield tuple(values[first : first + n] for values in gathered)


def discrepancy(z: np.ndarray, scores: np.ndarray, chains: int) -> tuple[float, float]:
    """Average u over pairs of draws, with the kernel (1 + |z − z'|²/d)^(−1/2).

    Parameters
    ----------
    z, scores : ndarray, shape (n, d)
        Points, and the gradients of the log-density there; chain after chain.
    chains
        Number of chains, of equal lengths.

    Returns
    -------
    tuple of float
        The mean over the pairs from blocks that do not touch, and its standard error.
    """
    u = pairs(z, scores)
    size = max(1, BLOCKS // chains)
    n_blocks = size * chains
    first = -(-np.arange(n_blocks) * len(z) // n_blocks)
    counts = np.diff(first, append=len(z))
    u = np.add.reduceat(np.add.reduceat(u, first, axis=0), first, axis=1)
    u /= np.outer(counts, counts)
    block = np.arange(n_blocks)
    apart = abs(block[:, None] - block) > 1
    apart |= block[:, None] // size != block // size
    squared = u[apart].mean()
    means = (u * apart).sum(axis=1) / apart.sum(axis=1)
    # Hoeffding's decomposition: the part of a pair that its two blocks do not explain.
    rest = (u - means[:, None] - means + squared)[apart]
    degenerate = (rest**2).mean() / apart.sum()
    projection = 4 * means.var(ddof=1) / n_blocks - 4 * degenerate
    return float(squared), math.sqrt(max(0.0, projection) + 2 * degenerate)


def pairs(z: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return u of each pair, shape (n, n)."""
    d = z.shape[1]
    norms = (z**2).sum(axis=1)
    squares = np.maximum(0.0, norms[:, None] + norms - 2 * z @ z.T)
    k = (1 + squares / d) ** -0.5
    along = scores @ z.T  # s(z_i)ᵀ z_j
    own = np.diag(along)
    slope = -(own[:, None] - along) - (own[None, :] - along.T)  # −sᵀr + s'ᵀr, r = z − z'
    return scores @ scores.T * k - slope * k**3 / d + k**3 - 3 * squares * k**5 / d**2
