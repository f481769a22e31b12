"""The PyMC step for the stochastic gradient Nosé-Hoover thermostat."""

from collections.abc import Sequence
from typing import Any, Literal

from pymc.model import Model
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.kernels.sgnht import bath
from pymc_minibatch.reference import Reference
from pymc_minibatch.steps.momentum_step import MomentumStep
from pymc_minibatch.steps.stats import dtypes_shapes

__all__ = ["SGNHT"]


class SGNHT(MomentumStep):
    """Stochastic gradient Nosé-Hoover thermostat: momentum with a friction that finds the noise.

    Like :class:`SGHMC`, but the noise of the batch need not be known: the friction rises until the
    momentum has the right temperature. The draws are approximate; no test corrects them.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`.
    step_size : float, optional
        ε, the square of the time that a step takes. By default, the batch makes up one fifth of
        the noise in its noisiest direction.
    friction : float, default 0.1
        a, from which the friction starts, and which sets the noise that is added: 2a per step.
        Over 0, at most 1.
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
    SGHMC : Subtracts the noise of the batch, estimated while tuning.
    ksd : The error of the draws, estimated.

    Notes
    -----
    The start, the preconditioner and the step size are found as for :class:`SGHMC`. A chain that
    diverges while it tunes continues with shorter steps. The thermostat adapts during the whole
    chain.

    One thermostat holds the mean temperature over all directions. If the batch is noisier in some
    directions, the draws spread too widely in these and too narrowly in the others; "fisher" makes
    the noise nearly equal in all directions.

    A chain never enters a region of zero density, beyond a hard constraint (``pm.Potential`` of a
    switch to −inf) or the end of a prior without a transform: it reverses its momentum. Draws near
    such a wall are as approximate as elsewhere; for MinibatchMH and FlyMC a wall changes nothing.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    References
    ----------
    Ding, Fang, Babbush, Chen, Skeel and Neven (2014), Bayesian Sampling Using Stochastic
    Gradient Thermostats; the order of the updates is that of Leimkuhler and Shang (2016).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=10_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    ...     step = pmb.SGNHT()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> mu = idata.posterior["mu"]
    >>> float(mu.mean().round(1)), float(mu.std().round(2))
    (3.0, 0.01)
    """

    name = "sgnht"
    bath = staticmethod(bath)
    stats_dtypes_shapes = dtypes_shapes("SGNHT")

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        step_size: float | None = None,
        friction: float = 0.1,
        preconditioner: Literal["auto", "fisher", "diagonal", "identity"] = "auto",
        reference: Reference | None = None,
        control_variate: Literal["auto", 0, 1, 2] = "auto",
        batch_size: int | None = None,
        steps_per_draw: int | Literal["auto"] = "auto",
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        super().__init__(
            vars,
            data=data,
            step_size=step_size,
            friction=friction,
            preconditioner=preconditioner,
            reference=reference,
            control_variate=control_variate,
            batch_size=batch_size,
            steps_per_draw=steps_per_draw,
            model=model,
            rng=rng,
        )
