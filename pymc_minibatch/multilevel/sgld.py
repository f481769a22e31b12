"""Multilevel stochastic gradient Langevin dynamics: an estimator without draws.

    E f(θ_L) = E f(θ_0) + Σ_ℓ E[f(θ_ℓ) − f(θ_{ℓ−1})]

where θ_ℓ is the end of a path with steps h₀ 2^(−ℓ). Paths of adjacent levels are coupled
(:mod:`pymc_minibatch.kernels.multilevel`), so that most samples are needed on the lowest level,
where they are cheap. Levels are added until what is left of the bias is within half of the squared
error that is asked for; samples are allocated such that they contribute the rest.

References
----------
Giles, Nagapetyan, Szpruch, Vollmer and Zygalakis (2016), Multilevel Monte Carlo for scalable
Bayesian computations. Giles (2015), Multilevel Monte Carlo methods, for the allocation.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext
from pymc.util import RandomGenerator, get_random_generator
from pytensor.graph.basic import Variable
from scipy.linalg import solve_triangular

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.kernels.multilevel import Coupling
from pymc_minibatch.multilevel.estimand import Estimand, make_estimand
from pymc_minibatch.multilevel.level import Schedule
from pymc_minibatch.multilevel.paths import DivergedError, Paths, identity
from pymc_minibatch.multilevel.result import MultilevelResult
from pymc_minibatch.multilevel.run import Accuracy, Run
from pymc_minibatch.multilevel.tails import refuse_heavy_tails
from pymc_minibatch.reference import Reference, find_reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.decide import decide_control_variate
from pymc_minibatch.reference.find import fitting
from pymc_minibatch.reference.gradient import GradientTarget, make_gradient_target
from pymc_minibatch.reference.wall import refuse_near_wall
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.model import split
from pymc_minibatch.tall.support import may_be_impossible

__all__ = ["multilevel_sgld"]

BATCH, TAYLOR_BATCH = 300, 32

LARGEST_STEP = 0.5
"""The bias of the lowest level is then about an eighth. Twice as much costs more where the target
is small, and half of it where it is large."""

STIFFNESS = 2.0
"""h₀ times the largest curvature, noise of the batch included, of the whitened log-density: the
variance on the lowest level is then too large by a half or so, where the posterior is Gaussian."""

TRIAL_ROWS, TRIAL_POINTS = 500, 8

TRIAL_PATHS = 16
TRIAL_STEP = 0.25
TRIAL_TIME = 4.5
"""Just above the τ of a Gaussian posterior."""
CONTRACTED = math.exp(-4)
"""After the time τ the squared distance of paths with the same noise has fallen to this share."""

LONGEST = 256.0
"""τ is sought up to this time."""

HALVINGS = 8
"""How often h₀ is halved where paths diverge."""


def multilevel_sgld(
    f: Callable[..., Any] | Variable | str | Sequence[Variable | str],
    *,
    model: Model | None = None,
    data: Any = None,
    reference: Reference | None = None,
    rtol: float = 0.05,
    antithetic: bool = True,
    taylor: bool = True,
    average: int | None = None,
    batch_size: int | None = None,
    max_evaluations: float = 1e10,
    random_seed: RandomGenerator = None,
    cores: int | None = None,
) -> MultilevelResult:
    """Estimate posterior expectations by multilevel stochastic gradient Langevin dynamics.

    It is an estimator, not a sampler: it returns no draws, but numbers with a standard error and an
    estimate of the remaining bias. Do not use it for posteriors with several modes, because all
    paths start about one, or for probabilities of rare events, whose errors it underestimates.

    Parameters
    ----------
    f : callable, str or list of str
        A function of variables of the model, free ones or Deterministics, which are passed by the
        names of its arguments as PyTensor variables, on their own scale; it returns a PyTensor
        expression, of any shape. Arguments that name no variable must have defaults. Or names of
        variables, or these themselves, whose means and variances are estimated.
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read once, here.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own; see :class:`TallModel`.
    reference : Reference, optional
        The mode; paths start from the Gaussian approximation about it, whose covariance is the
        preconditioner. Found here if not given.
    rtol : float, default 0.05
        The target for the root mean square error. For a function it is relative to the absolute
        value of each expectation, for means of variables to their standard deviations, and for
        variances to the variances.
    antithetic : bool, default True
        Whether to couple each path with two coarse ones, which makes the variance of the
        differences fall like h² instead of h.
    taylor : bool, default True
        Whether to subtract the gradient of the Taylor expansion about the mode from the rows. Then
        the noise of the batches is small, and the cost hardly depends on the number of rows.
    average : int, optional
        Values of f whose mean a path returns, a time h₀ apart; 1 for the end point. The default is
        half of the steps of the lowest level. Paths are made long enough for it.
    batch_size : int, optional
        Rows of each gradient, drawn with replacement; 32, or 300 without `taylor`, or N if less.
    max_evaluations : float, default 1e10
        Row evaluations to spend at most.
    random_seed : seed or numpy.random.Generator, optional
        Results do not depend on the number of cores.
    cores : int, optional
        Threads; as many as there are cores.

    Returns
    -------
    MultilevelResult

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows.
    NoReferenceError
        If the posterior has no proper mode.
    ValueError
        If an argument is out of range; if f is not finite, reads the rows of the data, draws random
        numbers or names variables that the model does not have; if paths from different starts do
        not converge, or diverge at any step; if the density is zero on a part of the Gaussian
        approximation, beyond a hard constraint or the end of a prior, or far larger than that 4
        standard deviations from the mode; if pilot runs show that `rtol` cannot be met within
        `max_evaluations`.

    Warns
    -----
    MinibatchWarning
        If it has to stop before the target is met; the result says why. If a function is zero on
        all paths: an event may be too rare to be seen.

    Notes
    -----
    Step sizes are in units of time in which the Gaussian approximation of the posterior relaxes
    as e^(−t/2). h₀ is 1/2, or less if the noise of the batches is large. Paths grow from level to
    level by the time τ that paths with the same noise take to converge.

    References
    ----------
    Giles, Nagapetyan, Szpruch, Vollmer and Zygalakis (2016), Multilevel Monte Carlo for
    Scalable Bayesian Computations. The preconditioner, the start from the Gaussian approximation,
    the choice of h₀ and τ, and values of f at the same times on all levels are not in the paper.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(1000.0) / 1000)
    ...     result = pmb.multilevel_sgld(lambda mu: (mu - 0.5) ** 2, rtol=0.2, random_seed=1)
    >>> abs(result.estimate - 0.001) < 5 * 0.2 * 0.001
    True
    """
    if not 0 < rtol < math.inf:
        raise ValueError(f"rtol must be positive and finite; got {rtol!r}.")
    if not max_evaluations > 0:
        raise ValueError(f"max_evaluations must be positive; got {max_evaluations!r}.")
    counts = {"average": average, "batch_size": batch_size, "cores": cores}
    for name, value in counts.items():
        if value is not None:
            checked_count(name, value, 1)
    model = modelcontext(model)
    if discrete := [variable.name for variable in model.discrete_value_vars]:
        raise ValueError(f"Langevin dynamics needs gradients, and {discrete} are discrete.")
    tall = split(model, data, rows_in_memory=math.inf)
    reference = find_reference(data=tall) if reference is None else fitting(tall, reference)
    decide_control_variate(tall, reference, 2, 1.0)  # refuses one that does not fit
    if may_be_impossible(tall.prior_graph):
        everything = np.arange(tall.layout.size)
        refuse_near_wall(tall, reference, everything, "multilevel_sgld")
    refuse_heavy_tails(tall, reference)
    estimand = make_estimand(f, tall, reference.flat)
    target = make_gradient_target(tall, ControlVariate(reference, 2 if taylor else 0, 1.0))
    default = min(TAYLOR_BATCH if taylor else BATCH, tall.n_rows)
    batch_size = default if batch_size is None else batch_size
    rng = get_random_generator(random_seed)
    paths = Paths(tall, reference, target, rng, n_cores() if cores is None else cores)
    accuracy = Accuracy(rtol, max_evaluations)
    run = estimate(tall, target, paths, estimand, accuracy, antithetic, taylor, average, batch_size)
    return run.result(tall.n_rows, reference.passes)


def estimate(
    tall: TallModel,
    target: GradientTarget,
    paths: Paths,
    estimand: Estimand,
    accuracy: Accuracy,
    antithetic: bool,
    taylor: bool,
    average: int | None,
    batch_size: int,
) -> Run:
    """Find h₀ and τ and sample levels; where a path diverges, anew with half of h₀."""
    step_size = first_step(tall, paths, target, batch_size)
    row_cost = 3 if taylor else 1
    spent = row_cost * TRIAL_ROWS * TRIAL_POINTS
    for _ in range(HALVINGS):
        run = None
        try:
            n_contraction, n_read = contraction(paths, step_size, batch_size)
            spent += row_cost * n_read
            n_average = max(1, n_contraction // 2) if average is None else average
            n_steps = max(n_contraction, n_average)
            schedule = Schedule(step_size, n_steps, n_average, antithetic, batch_size, row_cost)
            run = Run(paths, estimand, schedule, accuracy, spent)
            run.until_met()
            return run
        except DivergedError:
            spent = spent if run is None else run.spent
            step_size /= 2
    raise ValueError(
        f"Paths diverge even at steps of {2 * step_size:.2g}: the log-density falls off too "
        "steeply, or its gradient is not finite. Use MinibatchMH, or a parametrisation in which "
        "the posterior is nearer to a Gaussian."
    )


def first_step(tall: TallModel, paths: Paths, target: GradientTarget, batch_size: int) -> float:
    """Return h₀: a power of 2 at which neither curvature nor the noise of the batches is too much.

    Along a whitened direction in which a batch's gradient has variance q, the lowest level draws
    (1 + hq/4) / (1 − h/4) times the posterior's variance.
    """
    rng, n_rows, dim = np.random.default_rng(0), tall.n_rows, paths.mode.size
    noise = np.zeros((dim, dim))
    for _ in range(TRIAL_POINTS):
        point = paths.mode + paths.factor @ rng.standard_normal(dim)
        rows = rng.integers(0, n_rows, TRIAL_ROWS)
        batch = tall.batch(rows)
        gradients = target.row(point, target.constants, batch) @ paths.factor
        noise += np.cov(gradients, rowvar=False).reshape(dim, dim) / TRIAL_POINTS
    stiffness = 1 + n_rows**2 / batch_size * np.linalg.eigvalsh(noise)[-1]
    return float(2.0 ** math.floor(math.log2(min(LARGEST_STEP, STIFFNESS / stiffness))))


def contraction(paths: Paths, step_size: float, batch_size: int) -> tuple[int, int]:
    """Return τ/h₀, and how many rows were read to find it.

    Paths with the same noise and batches start apart, and τ is when their squared distance has
    fallen far enough.
    """
    point = identity()
    address, dim, n_read = paths.address(point), paths.mode.size, 0
    substeps = math.ceil(step_size / TRIAL_STEP)
    time = TRIAL_TIME
    while time <= LONGEST:
        n_steps = math.ceil(time / step_size)
        n_moves = n_steps * substeps
        coupling = Coupling(step_size / substeps, 0, n_moves, 1, 1, 1, 1, batch_size)
        ends = paths.run(coupling, TRIAL_PATHS, address, dim, apart=True)
        n_read += 2 * TRIAL_PATHS * n_moves * batch_size
        apart = solve_triangular(paths.factor, (ends[0] - ends[1]).T, lower=True)
        if (apart**2).mean() < 2 * CONTRACTED:
            return n_steps, n_read
        time *= 1.4
    raise ValueError(
        f"Paths from different starts have not converged after {LONGEST:g} relaxation times of the "
        "Gaussian approximation: the posterior is far from Gaussian, or has several modes. Use "
        "MinibatchMH."
    )
