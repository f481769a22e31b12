"""The PyMC step for stochastic gradient Hamiltonian Monte Carlo."""

from pymc_minibatch.kernels.sghmc import bath
from pymc_minibatch.steps.momentum_step import MomentumStep
from pymc_minibatch.steps.stats import dtypes_shapes

__all__ = ["SGHMC"]


class SGHMC(MomentumStep):
    """Stochastic gradient Hamiltonian Monte Carlo: noisy gradient steps with momentum and friction.

    Use it for neural networks and other models with many modes. It needs no mode, finds its start,
    scale and step size automatically, and costs one gradient of a batch per step. The draws are
    approximate; no test corrects them.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`.
    step_size : float, optional
        ε, the square of the time that a step takes; for a friction of 1 that of :class:`SGLD`. By
        default, the batch makes up one fifth of the noise in its noisiest direction, which is then
        not added.
    friction : float, default 0.1
        a, the share of the momentum that a step takes away; over 0, at most 1.
    schedule : Polynomial or Cyclical, optional
        How ε changes from step to step; constant if not given.
    preconditioner : {"auto", "fisher", "diagonal", "identity"}, default "auto"
        M, found where the chain is while it tunes: the inverse of the empirical Fisher information
        and the prior's curvature; the inverse of its diagonal, which takes D numbers instead of
        D²; or the identity. With a reference, its precision takes the place of the information.
        "auto" is "fisher" for up to 100 parameters, else "diagonal".
    reference : Reference, optional
        The point about which the log-likelihood is expanded. It is not searched for, since the
        models that this step is meant for, such as neural networks, have many modes.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference whose gradient is subtracted from the
        rows; see :class:`MinibatchMH`. None without a reference, unless you ask for it.
    batch_size : int, optional
        Rows n of each step, drawn with replacement; 300, or N if that is less.
    steps_per_draw : int or "auto", default "auto"
        Steps per draw that is kept; 20 with "auto".
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read here, and again by
        ``pm.sample`` if ``pm.set_data`` has set others since.
    rng : seed or numpy.random.Generator, optional
        Used if the step is run by hand; ``pm.sample`` gives each chain its own.

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows.
    NoReferenceError
        If you request a control variate and there is no reference point.
    ValueError
        If an argument is out of range, a variable is unknown or discrete, or the reference does not
        fit the model.
    SamplingError
        While sampling, if the steps diverge, or the chain has not tuned.

    Warns
    -----
    MinibatchWarning
        If a Deterministic has one value per row, which makes every draw cost N.

    See Also
    --------
    SGNHT : Its friction adapts to the noise.
    RunningMean : Predictions of a network without stored draws.
    ksd : The error of the draws, estimated.

    Notes
    -----
    The optimizer Adam finds the start of a chain. It climbs from four points for 3,000 steps each.
    These points are the initial one plus normal noise with a standard deviation of 0.1, in units of
    how far a parameter must move to matter to its prior or to a row. The best continues for 3,000
    steps at a time, up to 30,000, until they gain less than D in log-density. With a reference it
    starts near it instead. The preconditioner and the step size are set there, and again after 25,
    50, 100 and so on draws of tuning. A chain that diverges while it tunes climbs from its last
    draw and continues with steps of 0.3 times the default size, up to 8 times. The noise of the
    batch is averaged while the chain tunes, and frozen afterwards.

    The bias comes from noise that is not compensated: noise that varies along the chain and, if M
    is diagonal, noise that is correlated between parameters. For a Gaussian posterior and a
    gradient whose noise is known, the variances of the draws are correct to order ε.

    A chain never enters a region of zero density, beyond a hard constraint (``pm.Potential`` of a
    switch to −inf) or the end of a prior without a transform: it reverses its momentum. Draws near
    such a wall are as approximate as elsewhere; for MinibatchMH and FlyMC a wall changes nothing.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    References
    ----------
    Chen, Fox and Guestrin (2014), Stochastic Gradient Hamiltonian Monte Carlo. The order of
    the updates is that of BAOAB, Leimkuhler and Matthews (2013); the start, the scale and the
    default step size are not in the papers.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=10_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    ...     step = pmb.SGHMC()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> mu = idata.posterior["mu"]
    >>> float(mu.mean().round(1)), float(mu.std().round(2))
    (3.0, 0.01)
    """

    name = "sghmc"
    bath = staticmethod(bath)
    stats_dtypes_shapes = dtypes_shapes("SGHMC")
