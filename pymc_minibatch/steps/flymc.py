"""The PyMC step for Firefly Monte Carlo."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator
from pytensor.graph.basic import Variable

from pymc_minibatch.arguments import checked_choice, checked_count, checked_share
from pymc_minibatch.bounds import Bohning, Bound, JaakkolaJordan, StudentT
from pymc_minibatch.bounds.likelihood import NoBoundError
from pymc_minibatch.bounds.quadratic import QuadraticBound
from pymc_minibatch.bounds.target import violation
from pymc_minibatch.kernels.firefly import (
    Tuning,
)
from pymc_minibatch.latent.firefly import FireflySampler, make_firefly_sampler
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import check_reference
from pymc_minibatch.steps.common import TallStepState
from pymc_minibatch.steps.firefly_moves import FireflyMoves
from pymc_minibatch.steps.stats import dtypes_shapes
from pymc_minibatch.steps.sweeps import scans_of_draw, stats_of_effects
from pymc_minibatch.tall.refusals import NotTallError
from pymc_minibatch.updates import UPDATES
from pymc_minibatch.witness.choose import moves_of
from pymc_minibatch.witness.witness import Look

__all__ = ["FlyMC", "FlyMCState"]

_log = logging.getLogger("pymc_minibatch")

FASTEST = "hamiltonian"


@dataclass_state
class FlyMCState(TallStepState):
    """What is needed to continue a chain."""

    tuning: Tuning
    moves: tuple[np.ndarray, ...]
    fireflies: tuple[np.ndarray, ...]
    bound_options: str = field(metadata={"frozen": True})
    tune_bounds: bool = field(metadata={"frozen": True})
    kernel: str = field(metadata={"frozen": True})
    z_update: str = field(metadata={"frozen": True})
    fraction: float = field(metadata={"frozen": True})
    fixed_q: float | None = field(metadata={"frozen": True})
    theta_updates: int = field(metadata={"frozen": True})


class FlyMC(FireflyMoves):
    """Firefly Monte Carlo: exact sampling that reads a few bright rows.

    The likelihood Lₙ of each row has a lower bound Bₙ. Row n is bright with probability 1 − Bₙ/Lₙ
    given θ, and only bright rows are read when θ moves. Most rows are dark: only their bounds
    count, whose product is computed from sufficient statistics. The draws of θ have the posterior
    distribution, without approximation.

    Parameters
    ----------
    vars : TensorVariable, str, or sequence of these, optional
        Continuous free variables to sample; all if not given. Others are left to other steps. If
        the likelihood depends on one of these, each draw at which it has changed costs a pass over
        all rows.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, from wherever they live; see :class:`TallModel`.
    reference : Reference, optional
        Point at which tuned bounds touch; found during set-up if not given. Find it once with
        :func:`find_reference` to share it between steps.
    bound : "auto", JaakkolaJordan, Bohning, StudentT or Bound, default "auto"
        The lower bound. "auto" recognises the likelihood: Bernoulli and Binomial by log-odds,
        Categorical by softmax, StudentT, and Normal, which is its own bound.
    tune_bounds : bool, default True
        Whether bounds touch each row at the posterior mode. Untuned bounds leave most rows bright.
    proposal : {"auto", "hamiltonian", "langevin", "metropolis", "slice"}, default "auto"
        How θ moves given the bright rows. "auto" updates effects group by group if the model has
        any and each row depends on one predictor. Otherwise it takes "hamiltonian", the fastest
        measured. All variables also move jointly if you pass a `reference`, a bound of your own,
        ``tune_bounds=False``, ``z_update="explicit"`` or `theta_updates`. ``choice`` gives the
        reason.
    z_update : {"implicit", "explicit"}, default "implicit"
        How rows turn bright and dark: by Metropolis proposals at a few rows, or by drawing the
        state of a random `fraction` of the rows anew.
    fraction : float, default 0.1
        The share of rows picked by an explicit update, over 0 and at most 1.
    dark_to_bright_probability : float, optional
        The probability that an implicit update proposes to turn a dark row bright, over 0 and below
        1; if not given it is tuned so that updates of z cost about as much as those of θ.
    theta_updates : int, optional
        Updates of θ per update of z; 1 if not given, the best measured except for Langevin
        updates, which gain from 4.
    steps_per_draw : int or "auto", default "auto"
        Iterations (an update of z, then those of θ) per draw that is kept. "auto" takes one. In a
        model with effects, one iteration updates all of them. Then "auto" takes one while tuning
        and two afterwards, or four if PyMC evaluates 200,000 rows or more at each draw for a
        Deterministic.
    witness : bool, default True
        Whether bounds, gaps and moves are compared with the model's own log-density, when set-up is
        done and while chains run, at about 3 % of the time of a run.
    model : pymc.Model, optional
        The model; taken from the context if not given. Its data are read here, and again by
        ``pm.sample`` if ``pm.set_data`` has set others since.
    rng : seed or numpy.random.Generator, optional
        Used if the step is run by hand; ``pm.sample`` gives each chain its own.

    Attributes
    ----------
    choice : str
        How variables are updated, and the reason if effects are not updated by group.
    steps_per_draw : int
        Iterations per draw.
    setup_seconds : float
        Time spent on the search for the mode, the sums and compilation, including the time for a
        `reference` that was passed.

    Raises
    ------
    NotTallError
        If the model does not split into a prior part and independent rows.
    NoBoundError
        If the likelihood has no known bound, or its predictor is not affine in the variables.
    BoundError
        If a bound lies above its likelihood or does not add up.
    ValueError
        If an argument is out of range, a variable is unknown or discrete, the data are empty or not
        finite, the bound is for another likelihood, or the reference does not fit the model.
    SamplingError
        While sampling, if a chain finds a row whose bound lies above its likelihood.

    Warns
    -----
    MinibatchWarning
        If a Deterministic has one value per row, which makes every draw cost N; if the
        likelihood depends on variables that other steps move; and if bounds are so much narrower
        than the posterior that chains mix slowly.

    See Also
    --------
    MinibatchMH : Exact for many generalized linear models, approximate for others.
    Bound : A lower bound of your own.

    Notes
    -----
    A chain that tunes and starts far from the posterior mode of its variables, given the others, is
    first moved to a random point near it.

    Hard constraints (``pm.Potential`` of a switch to −inf) and priors that end without a transform
    are part of the density, so draws stay exact.

    Sample stats of each draw:

    - Listed in :data:`.steps.stats.STATS`.

    Bounds are loose for some rows, such as those of a category in which all outcomes are equal. If
    these are at most a tenth of the rows, they are read at every evaluation and have no brightness
    variable: otherwise the chain would have to turn them bright and dark again before it could
    move.

    A chain keeps one byte per row, and 24 bytes for each of the largest number of bright rows so
    far.

    References
    ----------
    Maclaurin and Adams (2014), Firefly Monte Carlo: exact MCMC with subsets of data.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(10_000, 3))
    >>> bought = rng.binomial(1, 1 / (1 + np.exp(-X @ [0.5, -1.0, 0.3])))
    >>> with pm.Model():
    ...     beta = pm.Normal("beta", shape=3)
    ...     y = pm.Bernoulli("y", logit_p=X @ beta, observed=bought)
    ...     idata = pm.sample(
    ...         step=pmb.FlyMC(), draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> idata.posterior["beta"].mean(("chain", "draw")).values.round(1)
    array([ 0.5, -1. ,  0.3])
    >>> bool(idata.sample_stats["n_bright"].mean() < 100)
    True
    """

    name = "flymc"
    renamed = {  # noqa: RUF012 - of the class, never changed
        "kernel": "proposal",
        "q": "dark_to_bright_probability",
    }
    stats_dtypes_shapes = dtypes_shapes("FlyMC")
    shown: ClassVar[dict[str, tuple[str, str]]] = {
        "scale": ("Scale", "0.2f"),
        "acceptance_rate": ("Accept", "0.2f"),
        "n_bright": ("Bright", ",.0f"),
    }
    learns = ("tuning", "moves")
    _state_class = FlyMCState
    choice = "All variables are updated jointly."

    def __init__(
        self,
        vars: Variable | str | Sequence[Variable | str] | None = None,
        *,
        data: Any = None,
        reference: Reference | None = None,
        bound: Literal["auto"] | JaakkolaJordan | Bohning | StudentT | Bound = "auto",
        tune_bounds: bool = True,
        proposal: Literal["auto", "hamiltonian", "langevin", "metropolis", "slice"] = "auto",
        z_update: Literal["implicit", "explicit"] = "implicit",
        fraction: float = 0.1,
        dark_to_bright_probability: float | None = None,
        theta_updates: int | None = None,
        steps_per_draw: int | Literal["auto"] = "auto",
        witness: bool = True,
        model: Model | None = None,
        rng: RandomGenerator = None,
    ) -> None:
        started = time.perf_counter()
        check_reference(reference)
        is_free = reference is None and proposal == "auto" and theta_updates is None
        self.kernel = (
            FASTEST if proposal == "auto" else checked_choice("proposal", proposal, UPDATES)
        )
        self.z_update = checked_choice("z_update", z_update, ("implicit", "explicit"))
        self.fraction = checked_share("fraction", fraction, 1.0)
        share = dark_to_bright_probability
        self.fixed_q = (
            None if share is None else checked_share("dark_to_bright_probability", share, 1 - 1e-9)
        )
        self.theta_updates = checked_count(
            "theta_updates", 1 if theta_updates is None else theta_updates, 1
        )
        self.moves: Any = ()
        self.steps_are_free = steps_per_draw == "auto"
        super().__init__(
            vars,
            data,
            1 if steps_per_draw == "auto" else steps_per_draw,
            model,
            rng,
            witness=witness,
        )
        self.tune_bounds = bool(tune_bounds)
        is_free &= self.tune_bounds and self.z_update == "implicit"
        self._set_up(bound, reference, is_free)
        self._get_ready(started, reference)
        surprise = self._look_at_set_up()
        if surprise is not None and self.latent is not None:
            self.choice = f"All variables are updated jointly: {surprise}"
            self._set_up(bound, reference, False)
            self._get_ready(started, reference)
            surprise = self._look_at_set_up()
        if surprise is not None:
            raise NotTallError(f"{surprise}. Please report this model.")

    def _set_up(
        self,
        bound: Literal["auto"] | QuadraticBound | Bound,
        reference: Reference | None,
        may_sweep: bool,
    ) -> None:
        """Settle how the model is sampled."""
        self._z_drawn_at = None
        self.latent = self._latent_sampler(bound) if may_sweep else None
        if self.latent is None:
            self._set_up_plainly(bound, reference)
        elif self.steps_are_free and not self.latent.costly:
            self.steps_per_draw = scans_of_draw(self.tall)
        self.bound_options = repr(self.bound)
        _log.info(self.choice)

    def _latent_sampler(
        self, bound: Literal["auto"] | QuadraticBound | Bound
    ) -> FireflySampler | None:
        """Set up the moves of effects and their scales; None if the model has none."""
        whole = self._active.size == self.tall.layout.size
        if isinstance(bound, Bound) or not whole:
            return None
        try:
            sampler = make_firefly_sampler(self.tall, bound, self.fixed_q)
        except (NoFieldError, NoBoundError, np.linalg.LinAlgError) as reason:
            self.choice = f"All variables are updated jointly: {reason}"
            return None
        self.bound, self.kernel = sampler.rows.bound, "sweeps"
        self.choice = f"Bright rows decide: {sampler.describe()}."
        return sampler

    # --- What is rebuilt in the process of a chain --------------------------------------------

    def _reset_tuning(self) -> None:
        if self.latent is not None:
            self.tuning, self.moves = self.latent.new_z_tuning(), self.latent.initial_state()
            return
        super()._reset_tuning()

    def _compile(self) -> None:
        if self.latent is not None:
            self.latent.compile()
            return
        super()._compile()

    def __getstate__(self) -> dict[str, Any]:
        """Keep which rows are bright, and leave out the work space."""
        return super().__getstate__() | {"_stored": self.fireflies}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = state.pop("_stored")
        self.__dict__.update(state)
        self.fireflies = stored

    def _facts(self) -> dict[str, str]:
        return {
            "bound": repr(self.bound),
            "always read": f"{self._pinned.size:,} rows with loose bounds",
            "updates of θ": self._moved(),
            "updates of z": self.z_update,
            "draw": f"{self.steps_per_draw} iterations",
        }

    def _moved(self) -> str:
        if self.latent is not None:
            return self.latent.describe()
        return f"{self.kernel}, {self.theta_updates} per update of z"

    @property
    def _pinned(self) -> np.ndarray:
        """Rows that are read always."""
        return self.target.pinned if self.latent is None else self.latent.pinned

    # --- Sampling -----------------------------------------------------------------------------

    @property
    def fireflies(self) -> tuple[np.ndarray, ...]:
        """The bright rows, their log odds, and where they were drawn; empty before the start."""
        return self._bright_rows() if self.latent is None else self.latent.fireflies

    @fireflies.setter
    def fireflies(self, stored: tuple[np.ndarray, ...]) -> None:
        if self.latent is None:
            self._restore_bright_rows(stored)
        else:
            self.latent.fireflies = stored

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Prepare for a chain, which draws anew which rows are bright."""
        super().setup_chain(rng, tune, draws)
        self.fireflies = ()

    def stop_tuning(self) -> None:
        """Fix the results of tuning."""
        super().stop_tuning()
        if self.latent is not None:
            self.latent.end_tuning(self.moves)

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        if self.latent is None:
            return super().near_mode(point)
        flat = self.tall.layout.flatten(point)
        return self.tall.layout.unflatten(self.latent.near_mode(self.rng, flat))

    def _forget_work(self) -> None:
        if self.latent is not None:
            self.latent.forget()

    def _changing(self) -> dict[str, Any]:
        return super()._changing() | {"fireflies": self.fireflies}

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        if self.latent is None:
            return super()._draw(flat)
        return self._draw_by_sweeps(self.latent, flat)

    def _draw_by_sweeps(self, latent: FireflySampler, flat: np.ndarray) -> dict[str, Any]:
        latent.z_tuning = self.tuning
        n_scans = 1 if self.tune and self.steps_are_free else self.steps_per_draw
        counts = latent.draw(self.rng, flat, n_scans, self.tune, self.moves)
        if latent.violation[0] >= 0:
            raise SamplingError(violation(self.tall, *latent.violation))
        return {
            "n_likelihood": counts.n_evaluated,
            "n_gradient": 0,
            "n_bright": counts.n_bright / n_scans + latent.pinned.size,
            "q": float(self.tuning.q[0]),
            "scale": latent.scale(self.moves),
            **stats_of_effects(counts),
        }

    def look(self) -> Look | None:
        """Return what compares moves with the model's own density."""
        if self.latent is not None:
            return moves_of(self.model_density, self.latent, self.moves)
        return super().look()
