"""The PyMC step for stochastic gradient Langevin dynamics."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pymc.model import Model
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.arguments import checked_covariance, checked_type
from pymc_minibatch.kernels.sgld import (
    Langevin,
    LangevinState,
    largest_bias,
    largest_ratio,
    make_langevin,
    stability,
)
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference import NoReferenceError, Reference, find_reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.gradient import (
    GradientTarget,
    make_gradient_sum,
    make_gradient_target,
)
from pymc_minibatch.reference.trial import Trial
from pymc_minibatch.steps.gradient_step import BATCHES, GradientStep, largest_variance, scaled
from pymc_minibatch.steps.schedule import Constant, Polynomial, Schedule
from pymc_minibatch.steps.stats import dtypes_shapes
from pymc_minibatch.warn import warn

__all__ = ["SGLD"]

DEFAULT_BIAS = 0.1
"""The default step makes variances too large by about this share, in the worst direction."""

LARGE_BIAS = 0.5
"""Warn of a step that makes variances too large by more than this share."""

PRECONDITIONERS = ("reference", "fisher", "diagonal", "identity", "rmsprop")


class SGLD(GradientStep):
    """Stochastic gradient Langevin dynamics: noisy gradient steps without a test.

    The draws are approximate: at a constant step size they are spread too widely, by a factor that
    depends on the step size and not on the number of draws.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`.
    step_size : float or tuple (a, b, gamma), optional
        ε, a positive number; or one that falls with the number t of steps so far (those of tuning
        included) as a (b + t)^(−gamma), which is ``a * b ** -gamma`` with the schedule
        ``Polynomial(b, gamma)``. The default is the constant that makes variances too large by
        about 10 %, if the posterior is nearly Gaussian.
    schedule : Polynomial or Cyclical, optional
        How ε changes from step to step; constant if not given.
    preconditioner : {"auto", "reference", "fisher", "diagonal", "identity", "rmsprop"}
        or array_like. M, which is fixed: the covariance at the reference ("auto"), the inverse of
        the empirical Fisher information at the reference and the prior's curvature, the inverse of
        its diagonal, the identity, or a matrix of shape (D, D). With "rmsprop" it is diagonal, and
        learned while the chain tunes from the squares of gradients (pSGLD): it needs no reference,
        but a step_size.
    reference : Reference, optional
        Point about which the log-likelihood is expanded; found during set-up if needed.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference whose gradient is subtracted from the rows
        (SGLD-CV); see :class:`MinibatchMH`. With it the default step takes about 10 steps for an
        independent draw, without it 10 N/n.
    batch_size : int, optional
        Rows n of each step, drawn with replacement; 300, or N if that is less.
    steps_per_draw : int or "auto", default "auto"
        Steps per draw that is kept; one with "auto". Many cost little more than one, since
        they run in one compiled call.
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
        If there is no reference point, and the step size or the preconditioner needs one.
    ValueError
        If an argument is out of range, a variable is unknown or discrete, or the reference does not
        fit the model.
    SamplingError
        While sampling, if the steps diverge.

    Warns
    -----
    MinibatchWarning
        If a Deterministic has one value per row, which makes every draw cost N; if the default
        step size is more than 50 times smaller than for a normal posterior; or if the one that is
        given is unstable or makes variances too large by more than 50 %, by linear theory. Without
        a reference the last is logged at the end of tuning.

    See Also
    --------
    SGFS : Preconditions by the Fisher information.
    SGHMC : Steps with momentum, for networks.
    ksd : The error of the draws, estimated.

    Notes
    -----
    A step that is too long need not diverge: if the gradient of a row is bounded, as in logistic
    regression, the chain stays finite and its draws are far too wide.

    A chain never enters a region of zero density, beyond a hard constraint (``pm.Potential`` of a
    switch to −inf) or the end of a prior without a transform: a step that leads there is not made.
    Draws near such a wall are as approximate as elsewhere; for MinibatchMH and FlyMC a wall changes
    nothing.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    References
    ----------
    Welling and Teh (2011), Bayesian Learning via Stochastic Gradient Langevin Dynamics;
    with a control variate Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic
    gradient MCMC. The default step size is not in the papers.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=10_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    ...     step = pmb.SGLD(steps_per_draw=10)
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> mu = idata.posterior["mu"]
    >>> float(mu.mean().round(1)), float(mu.std().round(2))
    (3.0, 0.01)
    """

    stats_dtypes_shapes = dtypes_shapes("SGLD")
    name = "sgld"
    learns = ("tuned",)
    tuned: LangevinState

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        step_size: float | tuple[float, float, float] | None = None,
        schedule: Schedule | None = None,
        preconditioner: Any = "auto",
        reference: Reference | None = None,
        control_variate: Literal["auto", 0, 1, 2] = "auto",
        batch_size: int | None = None,
        steps_per_draw: int | Literal["auto"] = "auto",
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        size, self.schedule = _checked_schedule(step_size, schedule)
        if isinstance(preconditioner, str) and preconditioner == "auto":
            preconditioner = "reference"
        if isinstance(preconditioner, str) and preconditioner not in PRECONDITIONERS:
            raise ValueError(
                f"preconditioner must be one of {PRECONDITIONERS} or a matrix; got "
                f"{preconditioner!r}."
            )
        self._given = size, preconditioner
        self._is_checked = False
        super().__init__(
            vars=vars,
            data=data,
            reference=reference,
            control_variate=control_variate,
            batch_size=batch_size,
            steps_per_draw=steps_per_draw,
            model=model,
            rng=rng,
        )

    def _prepare(self) -> None:
        size, preconditioner = self._given
        named = isinstance(preconditioner, str)
        if size is None or (named and preconditioner not in ("identity", "rmsprop")):
            self.control = self._needed_control()
        self._learns = named and preconditioner == "rmsprop"
        self._factor = self._preconditioner(preconditioner)
        self.step_size = size or self._default_step(self._needed_control())
        if size is not None and self.control is not None and not self._learns:
            precision = self.control.precision(self._active)
            noise = self.trial.noise(self.control, self.batch_size)
            limit, bias = stability(self._factor, precision, noise, self.step_size)
            if complaint := self._complaint(self.step_size, limit, bias):
                warn("PMB112", complaint)
        given = preconditioner if named else self._factor
        self.options = (self.step_size, self.schedule, given)

    @cached_property
    def target(self) -> GradientTarget:
        """The density that kernels sample, as functions of a point and a batch."""
        return make_gradient_sum(self.tall, self.control)

    @cached_property
    def _sums(self) -> GradientTarget:
        return make_gradient_sum(self.tall, None) if self.control_variate else self.target

    @cached_property
    def trial(self) -> Trial:
        """Rows and points by which gradients are judged."""
        return Trial(self.tall, make_gradient_target(self.tall, self.control), self._active)

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        stats = super()._draw(flat)
        stats["warning"] = None
        if self.reference is None and not self.tune and not self._is_checked:
            stats["warning"] = self._late_complaint(flat)
            self._is_checked = True
        return stats

    def _late_complaint(self, flat: np.ndarray) -> str | None:
        """Judge the step without a reference, by the Fisher information where the chain is."""
        noises = self.ascent.climb(np.random.default_rng(0), flat, 0, BATCHES)
        noise, step = largest_variance(scaled(noises, self.tuned.factor)), self._step_size()
        limit, bias = largest_bias(self.batch_size / self.n_rows * noise, noise, step)
        complaint = self._complaint(step, limit, bias)
        return complaint and with_id(
            "PMB112", f"{complaint} If the chain is still far from the mode, tune for longer."
        )

    def _needed_control(self) -> ControlVariate:
        """Find a reference point, if none is known, for what cannot do without."""
        if self.control is not None:
            return self.control
        try:
            if self.climbs:
                raise NoReferenceError(self._why_no_mode())
            return ControlVariate(find_reference(data=self.tall), 0, 1.0)
        except NoReferenceError as error:
            raise NoReferenceError(
                f"{error}. Without a reference point, give SGLD a step_size and "
                "preconditioner='rmsprop', 'identity' or a matrix."
            ) from error

    def _preconditioner(self, preconditioner: Any) -> np.ndarray:
        """Return the Cholesky factor of M; one column if it is diagonal."""
        dim = self._active.size
        if not isinstance(preconditioner, str):
            return np.linalg.cholesky(checked_covariance("preconditioner", preconditioner, dim))
        if preconditioner in ("identity", "rmsprop"):
            return np.ones((dim, 1))
        control = self._needed_control()
        if preconditioner == "reference":
            return np.linalg.cholesky(np.linalg.inv(control.precision(self._active)))
        information = self._information(control.reference)
        if preconditioner == "diagonal" and (np.diag(information) > 0).all():
            return np.diag(information)[:, None] ** -0.5
        if np.linalg.eigvalsh(information).min() <= 0:
            raise ValueError(
                "The Fisher information of the rows and the prior's curvature are not positive "
                "definite; use preconditioner='reference'."
            )
        return np.linalg.cholesky(np.linalg.inv(information))

    def _information(self, reference: Reference) -> np.ndarray:
        """Empirical Fisher information of the rows, and the prior's curvature, at the reference."""
        plain = Trial(self.tall, make_gradient_target(self.tall, None), self._active)
        prior = reference.prior_hessian[np.ix_(self._active, self._active)]
        return self.n_rows * plain.covariance(reference.flat) - prior

    def _default_step(self, control: ControlVariate) -> float:
        """Return the step at which the variance is too large by the default bias."""
        precision = control.precision(self._active)
        noise = self.trial.noise(control, self.batch_size)
        largest = largest_ratio(precision + noise, self._factor)
        normal = largest_ratio(precision, self._factor)
        if not control.order:
            normal *= 1 + self.n_rows / self.batch_size
        step = 4 * DEFAULT_BIAS / largest
        self._warn_of_short_steps(f"step_size of {step:.3g}", largest / normal)
        return step

    def _complaint(self, step: float, limit: float, bias: float) -> str | None:
        """Say how far from the posterior a step draws, if that is too far."""
        if step >= limit:
            return (
                f"A step_size of {step:.3g} is unstable: from {limit:.3g} on, draws from a normal "
                "posterior spread without bound. For other posteriors they may stay finite, but "
                "far too wide. Make it much smaller, or leave it out for the default."
            )
        if bias > LARGE_BIAS and isinstance(self.schedule, Constant):
            return (
                f"With a step_size of {step:.3g} the variances of the draws are too large by about "
                f"{bias:.0%} in the worst direction. Make it smaller, or leave it out for the "
                f"default, which aims at {DEFAULT_BIAS:.0%}."
            )
        return None

    @property
    def _make_kernel(self) -> Callable[..., Callable[..., tuple[bool, float]]]:
        return make_langevin

    def _fit_to_others(self, flat: np.ndarray) -> None:
        """Take the preconditioner and the step of the posterior with the prior as it is now."""
        if self.control is None or self._learns:
            return
        precision = self.prior.precision_given_others(flat, self.control)
        if isinstance(self._given[1], str) and self._given[1] == "reference":
            self.tuned.factor[:] = np.linalg.cholesky(np.linalg.inv(precision))
        largest = largest_ratio(precision + self._noise, self.tuned.factor)
        wanted = 4 * DEFAULT_BIAS / largest
        self._size_now = wanted if self._given[0] is None else min(self.step_size, wanted)

    @cached_property
    def _noise(self) -> np.ndarray:
        """Covariance of the gradient from a batch."""
        return self.trial.noise(self._needed_control(), self.batch_size)

    _size_now: float | None = None
    """Size of a step, where other steps move what the prior depends on."""

    def _reset_tuning(self) -> None:
        dim = self._active.size
        self.tuned = LangevinState(self._factor.copy(), np.zeros(dim), np.zeros(1), np.zeros(1))

    def _settings(self) -> Langevin:
        sizes, noisy = self.schedule.of_draw(self.n_draws, self.steps_per_draw)
        size = self.step_size if self._size_now is None else self._size_now
        return Langevin(size * sizes, noisy, self.batch_size, self._learns)

    def _step_size(self) -> float:
        return float(self._settings().sizes[-1])

    @property
    def _advice(self) -> str:
        return (
            f"Its step_size of {self._step_size():.3g} is too long for the preconditioner: halve "
            "it until it does not, or leave it out for the default; or start nearer to the mode: "
            "pass initvals to pm.sample."
        )


def _checked_schedule(step_size: Any, schedule: Any) -> tuple[float | None, Schedule]:
    """Return the size of the first step, and how sizes change."""
    checked_type("schedule", schedule, Schedule, "Use pmb.Polynomial() or pmb.Cyclical().")
    if step_size is None:
        return None, schedule or Constant()
    values = np.atleast_1d(np.asarray(step_size, dtype=np.float64))
    if values.shape not in ((1,), (3,)):
        raise ValueError(f"step_size must be a number or (a, b, gamma); got {step_size!r}.")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"step_size must be positive and finite; got {step_size!r}.")
    if values.size == 1:
        return float(values[0]), schedule or Constant()
    if schedule is not None:
        raise ValueError("step_size=(a, b, gamma) is a schedule already: give schedule or this.")
    a, b, gamma = values.tolist()
    if gamma > 1:
        raise ValueError(f"gamma of step_size=(a, b, gamma) must lie in (0, 1]; got {gamma}.")
    return a * b**-gamma, Polynomial(b, gamma)
