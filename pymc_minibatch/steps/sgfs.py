"""The PyMC step for stochastic gradient Fisher scoring."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.arguments import checked_choice, checked_count, checked_covariance
from pymc_minibatch.kernels.sgfs import (
    Scoring,
    ScoringState,
    least_known,
    least_ratio,
    make_scoring,
    mean_step,
    refactored,
    scoring_state,
)
from pymc_minibatch.kernels.sgfs_low_rank import (
    LowRank,
    LowRankState,
    learn,
    low_rank_state,
    make_low_rank_scoring,
)
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.find import discrete_in_rows
from pymc_minibatch.reference.gradient import GradientTarget, make_gradient_sum
from pymc_minibatch.reference.wall import NEAR_WALL, refuse_near_wall
from pymc_minibatch.steps.gradient_step import GradientStep
from pymc_minibatch.steps.stats import dtypes_shapes

__all__ = ["SGFS"]

ROWS_PER_PARAMETER = 10
"""The first estimate of the information rests on at least so many rows per parameter."""

MOST_STOPPED, LEAST_STOPPED = 1e-3, 20
"""Share of the steps that may end at a hard constraint, and how many at least."""

LEAST_ALPHA = 0.5
"""With a control variate a step is about 2/(1 + α²) of the way to the mode."""


class SGFS(GradientStep):
    """Stochastic gradient Fisher scoring: steps along the gradient of a few rows, without a test.

    Each step moves by the gradient of a batch, preconditioned so that the noise of the batch and
    the noise that is added make up the covariance of the posterior. That holds for a posterior that
    is nearly Gaussian. The draws are approximate; no test corrects them.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`.
    variant : {"full", "diagonal", "low rank"}, default "full"
        Whether the Fisher information is a matrix (SGFS-f), at a cost of D² per row while
        tuning and of D² per step, or its diagonal alone (SGFS-d), which leaves the noise of
        the batch unmatched if parameters are correlated; or a diagonal and `rank` directions in
        which it is largest, for thousands of parameters: no array has D² entries.
    rank : int, default 20
        Directions of the variant "low rank".
    alpha : float, optional
        α ≥ 0, the weight of the added noise: α² is its variance relative to what the step accounts
        for in the batch. Steps shorten by 1/(1 + α²). At 0 nothing is added, mixing is fastest, and
        the draws are those of the normal approximation; with a large α they come from the
        posterior, slowly. With a control variate at least 0.5. The default is 1 without a control
        variate, or with `noise_covariance`. With one it is such that no step overshoots at 16
        points about the mode: 1 for a normal posterior, more if the density is more curved than
        at the mode.
    noise_covariance : array_like of shape (D, D), optional
        Covariance of the added noise before the factor α², in the units of the gradient (B in the
        paper); γN times the estimated Fisher information if not given. With a control variate α²
        times it must be at least a quarter of the posterior's precision in every direction.
    reference : Reference, optional
        Point about which the log-likelihood is expanded; found during set-up if needed.
    control_variate : {"auto", 0, 1, 2}, default "auto"
        Order of the Taylor expansion about the reference whose gradient is subtracted from the
        rows; see :class:`MinibatchMH`. With it the curvature of the density is that at the
        reference, not estimated, and the chain forgets its past in a few steps. Without (0, as in
        the paper) that takes (1 + α²) N/2n steps, about a pass over the data.
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
    ValueError
        If an argument is out of range, a variable is unknown or discrete, the reference does not
        fit the model, the rows do not inform a variable and there is no control variate, or
        alpha and noise_covariance add too little noise for one; if the density is zero on a part
        of the Gaussian approximation, beyond a hard constraint or the end of a prior; or if
        another step moves a discrete variable that the rows read.
    SamplingError
        While sampling, if the steps diverge, often lead to where the density is zero, or the Fisher
        information is still singular after tuning.

    Warns
    -----
    MinibatchWarning
        If a Deterministic has one value per row, which makes every draw cost N; or if the
        default alpha makes steps more than 50 times shorter than for a normal posterior.

    See Also
    --------
    SGLD : Langevin steps.
    SGHMC : Steps with momentum, for networks.
    ksd : The error of the draws, estimated.

    Notes
    -----
    The Fisher information is a running average while the chain tunes and is frozen afterwards.
    Until it rests on 10 rows per parameter and has full rank, the chain stays where it is.
    Batch t of this average has weight t², not 1 as in the paper, so that a distant start is
    forgotten.

    The formulas assume that the prior is weak compared with the rows. Without a control variate,
    the diagonal of the prior's curvature is added to γN times the information. So directions that
    the rows do not inform, such as a constant added to all scores of a softmax, follow their prior.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    References
    ----------
    Ahn, Korattikara and Welling (2012), Bayesian Posterior Sampling via Stochastic Gradient
    Fisher Scoring, algorithm 1. The control variate and its curvature are not in the paper.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=10_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    ...     step = pmb.SGFS(alpha=2)
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> mu = idata.posterior["mu"]
    >>> float(mu.mean().round(1)), float(mu.std().round(2))
    (3.0, 0.01)
    """

    name = "sgfs"
    renamed = {"B": "noise_covariance"}  # noqa: RUF012 - of the class, never changed
    stats_dtypes_shapes = dtypes_shapes("SGFS")
    learns = ("tuned",)
    tuned: ScoringState | LowRankState

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        variant: Literal["full", "diagonal", "low rank"] = "full",
        rank: int = 20,
        alpha: float | None = None,
        noise_covariance: Any = None,
        reference: Reference | None = None,
        control_variate: Literal["auto", 0, 1, 2] = "auto",
        batch_size: int | None = None,
        steps_per_draw: int | Literal["auto"] = "auto",
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        checked_choice("variant", variant, ("full", "diagonal", "low rank"))
        self._rank = checked_count("rank", rank, 1)
        if variant == "low rank" and control_variate not in ("auto", 0):
            raise ValueError(
                "variant='low rank' keeps no Hessian for a control variate. Set control_variate=0, "
                "or use another variant."
            )
        if variant == "low rank" and noise_covariance is not None:
            raise ValueError("noise_covariance is for variant='full' or 'diagonal'; leave it out.")
        if alpha is not None and not (np.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"alpha must be at least 0 and finite; got {alpha}.")
        self.variant, self._alpha, self._B = variant, alpha, noise_covariance
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

    def _decide_control(
        self, reference: Reference | None, control_variate: Literal["auto", 0, 1, 2]
    ) -> ControlVariate | None:
        """Search for no mode whose Hessian would be large."""
        if self.variant == "low rank":
            self.climbs, control_variate = reference is None, 0
        return super()._decide_control(reference, control_variate)

    def _prepare(self) -> None:
        self.alpha = self._default_alpha() if self._alpha is None else float(self._alpha)
        if self.control_variate and self._B is None and self.alpha < LEAST_ALPHA:
            raise ValueError(
                f"alpha must be at least {LEAST_ALPHA} with a control variate; got {self.alpha}. "
                "The batch has hardly any noise then, and a step would lead to the other side of "
                "the mode and the next one back. Set control_variate=0, or leave alpha out."
            )
        if self._B is not None:
            self._B = checked_covariance("noise_covariance", self._B, self._active.size)
            if self.variant == "diagonal" and np.count_nonzero(self._B) > len(self._B):
                raise ValueError("noise_covariance must be diagonal if variant='diagonal'.")
            if self.control is not None and self.control.order:
                self._check_noise(self.control)
        self.options = (self.variant, self._rank, self.alpha, self._B)
        self._refuse_company()
        self._check_information()
        if self._bounded and self.control is not None:
            refuse_near_wall(self.tall, self.control.gaussian, self._active, "SGFS")

    def _check_noise(self, control: ControlVariate) -> None:
        """Refuse a covariance that adds less noise than the least alpha does."""
        least = least_ratio(self.alpha**2 * self._B, control.precision(self._active))
        if least < LEAST_ALPHA**2:
            raise ValueError(
                "With a control variate alpha² times noise_covariance must be at least "
                f"{LEAST_ALPHA**2} times the precision of the posterior in every direction, and is "
                f"{least:.3g} times in one. The batch has hardly any noise then, and a step would "
                "lead to the other side of the mode and the next one back. Raise alpha or "
                "noise_covariance, or set control_variate=0."
            )

    def _default_alpha(self) -> float:
        """Return the α at which 2/(1 + α²) times the largest curvature is 1."""
        if self.control is None or not self.control.order or self._B is not None:
            return 1.0
        precision = self.control.precision(self._active)
        if self.variant == "diagonal":
            precision = np.diag(np.diag(precision))
        largest = max(1.0, self.trial.largest_curvature(self.control, precision))
        alpha = math.sqrt(2 * largest - 1)
        self._warn_of_short_steps(f"alpha of {alpha:.3g}", largest)
        return alpha

    def _check_information(self) -> None:
        """Refuse parameters on which no row depends: their Fisher information is zero.

        At the initial point itself it can be zero for others: that of a scale whose offsets are 0.
        """
        if self.control_variate or self.climbs or self.variant == "low rank":
            return  # the prior's curvature is in K
        flat = self.tall.start.copy()
        flat = flat + 0.1 * np.random.default_rng(0).standard_normal(flat.size)
        without = ~self.trial.gradients(flat).any(axis=0)
        if without.any():
            names = {self.tall.layout.name_of(int(i)) for i in self._active[without]}
            raise ValueError(
                f"The rows do not inform {sorted(names)}: their gradients are zero, so that "
                "there is no Fisher information to scale a step by. Use control_variate=2 if the "
                "posterior has a mode, or name the other variables in vars and let another step, "
                "such as MinibatchMH, sample these."
            )

    @property
    def _make_kernel(self) -> Callable[..., Callable[..., tuple[bool, float]]]:
        return make_low_rank_scoring if self.variant == "low rank" else make_scoring

    def _reset_tuning(self) -> None:
        if self.variant == "low rank":
            self.tuned = low_rank_state(self._active.size, self._rank, self.steps_per_draw)
            return
        self.tuned = scoring_state(self._active.size, self._columns)
        if self._B is not None:
            self.tuned.noise[:] = self._stored(self.alpha * np.linalg.cholesky(self._B))

    @property
    def _columns(self) -> int:
        """Of a matrix as the kernel stores it."""
        return self._active.size if self.variant == "full" else 1

    @cached_property
    def target(self) -> GradientTarget:
        """The density that kernels sample, as functions of a point and a batch."""
        return self._sums if self.variant == "low rank" else super().target

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        stats = super()._draw(flat)
        if not self.tune:
            self._check_stopped()
        if self.tune and isinstance(self.tuned, LowRankState):
            learn(self.tuned, 1 + self.batch_size / self.n_rows, self._prior)
        return stats

    def _check_stopped(self) -> None:
        """Refuse to go on where a hard constraint is in the way of more than a few moves."""
        stopped, most = self.tuned.stopped[0], MOST_STOPPED * self.n_draws * self.steps_per_draw
        if stopped > LEAST_STOPPED + most:
            raise SamplingError(
                with_id(
                    "PMB307",
                    f"SGFS: {stopped:.0f} steps would have led to points of zero density, "
                    f"beyond a hard constraint or the end of a prior. {NEAR_WALL}",
                )
            )

    @cached_property
    def _prior(self) -> np.ndarray:
        """Diagonal of the prior's curvature at the initial point."""
        return self.prior.curvature(self.tall.start)

    def _fit_to_others(self, flat: np.ndarray) -> None:
        """Take the curvature of the prior as it is now into K."""
        if not isinstance(self.tuned, ScoringState):
            return
        if self.control is not None and self.control.order:
            curvature = self._stored(self.prior.precision_given_others(flat, self.control))
        else:
            prior = self.prior.curvature_given_others(flat)
            curvature = np.diag(prior) if self.variant == "full" else prior[:, None]
        self._scoring = self._scoring._replace(curvature=curvature)
        refactored(self._scoring, self.tuned)

    def _refuse_company(self) -> None:
        """Refuse other steps that change what was learned once and cannot be learned anew."""
        others = [name for name in self.tall.layout.names if name not in self.var_names]
        if self.variant == "low rank" and self.prior.others.size:
            raise ValueError(
                f"The prior of {self.var_names} depends on other variables, of {others}, which "
                "other steps update, and variant='low rank' learns its curvature only once. Use "
                "variant='full' or 'diagonal', or MinibatchMH, which evaluates the density itself."
            )
        if discrete := [name for name in discrete_in_rows(self.tall) if name in others]:
            raise ValueError(
                f"The rows depend on the discrete variables {discrete}, which another step "
                "updates. The Fisher information depends on their values, but SGFS learns it once. "
                "Use MinibatchMH, or marginalize the discrete variables."
            )

    def _stored(self, matrix: np.ndarray) -> np.ndarray:
        """Return a matrix as the kernel stores it."""
        return np.ascontiguousarray(matrix if self.variant == "full" else np.diag(matrix)[:, None])

    @cached_property
    def _scoring(self) -> Scoring:
        n, n_rows, dim = self.batch_size, self.n_rows, self._active.size
        curvature = injected = np.zeros((dim, self._columns))
        if not self.control_variate:
            curvature = np.diag(self._prior) if self.variant == "full" else self._prior[:, None]
        weight = (n + n_rows) / n * n_rows
        least_rows = ROWS_PER_PARAMETER * (dim if self.variant == "full" else 1)
        if self.control is not None and self.control.order:
            curvature = self._stored(self.control.precision(self._active))
            weight, least_rows = n_rows**2 / n, 0
        if self._B is not None:
            injected = self._stored(self.alpha**2 * self._B)
        return Scoring(
            curvature=curvature,
            weight=float(weight),
            alpha=self.alpha,
            injected=injected,
            is_users=self._B is not None,
            batch_size=n,
            least_rows=least_rows,
            sums=self._summed,
        )

    @cached_property
    def _summed(self) -> Density:
        """Where gradients of a batch are summed; with the control variate if there is one."""
        if not self.control_variate:
            return self._sum_density
        return self._inside(self._control_sums)

    @cached_property
    def _control_sums(self) -> GradientTarget:
        return make_gradient_sum(self.tall, self.control)

    def _settings(self) -> Scoring | LowRank:
        if self.variant == "low rank":
            return LowRank(self.alpha, self.batch_size)
        return self._scoring

    def _check_ready(self) -> None:
        if self.tuned.counts[1]:
            return
        if isinstance(self.tuned, LowRankState) or not self.tuned.counts[0]:
            raise SamplingError(
                with_id(
                    "PMB308",
                    "SGFS learns the Fisher information while it tunes: pass tune= to pm.sample, "
                    "or a larger one.",
                )
            )
        worst = least_known(self.tuned)
        raise SamplingError(
            with_id(
                "PMB308",
                "The Fisher information is singular after "
                f"{int(self.tuned.counts[0]) * self.batch_size} rows, mostly in "
                f"{self.tall.layout.name_of(int(self._active[worst]))}: the rows do not "
                "identify its parameters. Tune for longer, use control_variate=2, or sample it by "
                "another step.",
            )
        )

    def _step_size(self) -> float:
        """Return the mean eigenvalue of C times the curvature."""
        if not self.tuned.counts[1]:
            return 0.0
        if not isinstance(self.tuned, ScoringState) or not (
            self.control_variate or self._B is not None
        ):  # then K is γ times the curvature
            gamma = (self.batch_size + self.n_rows) / self.batch_size
            return 2 / ((1 + self.alpha**2) * gamma)
        estimated = self.n_rows * self.tuned.fisher
        curvature = self._scoring.curvature if self.control_variate else estimated
        return mean_step(curvature, self.tuned)

    @property
    def _advice(self) -> str:
        return (
            "The density is more curved than the Fisher information says. Raise alpha (steps "
            "shorten by 1/(1 + alpha²)) or batch_size, or start nearer to the mode: pass "
            "initvals to pm.sample."
        )
