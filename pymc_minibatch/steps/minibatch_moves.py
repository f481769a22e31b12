"""Moves on which batches decide: of effects where a model has some, else of all variables at once.

It is settled here which of them a model gets, and what set-up may presume of it. What the witness
finds not to hold is presumed no more, and the model is set up again in a more general way.
"""

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_minibatch.acceptance import CorrectedBarker
from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.acceptance.growing import LEAST_BATCH, UNKNOWN_KURTOSIS, new_first_batch
from pymc_minibatch.jit.memory import NotEnoughMemoryError, in_words
from pymc_minibatch.kernels.by_size import RowSizes
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.latent.exact import ExactSampler
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.weight_check import LOOK_EVERY
from pymc_minibatch.messages import with_id
from pymc_minibatch.reference.decide import drawn_about_mode
from pymc_minibatch.reference.reference import SeveralModesError
from pymc_minibatch.steps.asked import Asked
from pymc_minibatch.steps.deciding import steps_of_draw
from pymc_minibatch.steps.display import expansion
from pymc_minibatch.steps.memory import bytes_of_step
from pymc_minibatch.steps.sweeps import (
    complaint_of_level,
    copied_for_effects,
    plan_effects,
    scans_of_draw,
    stats_of_sampler,
)
from pymc_minibatch.steps.witnessed_batches import WitnessedBatches
from pymc_minibatch.tall.refusals import NotTallError
from pymc_minibatch.tall.weighted import SizedRows
from pymc_minibatch.warn import warn
from pymc_minibatch.witness import SurpriseError

__all__ = ["MinibatchMoves"]

_log = logging.getLogger("pymc_minibatch")

STILL = 50
"""Draws without a move after which a chain is said to stand still. Of 100 transitions that accept
one in ten, none does in one of 10⁵ chains."""


class MinibatchMoves(WitnessedBatches):
    """A step that moves effects group by group if there are any, and else all variables at once.

    Attributes
    ----------
    latent : LatentSampler or None
        The moves of effects and their scales; None if all variables are moved at once.
    starts : ndarray or None
        Points from which chains start, if they were handed over.
    """

    latent: LatentSampler | None
    starts: np.ndarray | None = None
    steps_are_free: bool
    _level_is_found: bool

    # --- Set-up -------------------------------------------------------------------------------

    def _set_up(self, asked: Asked) -> None:
        """Settle how the model is sampled."""
        for cls in type(self).__mro__:  # what was made for a claim that does not hold
            for name, value in vars(cls).items():
                if isinstance(value, cached_property):
                    self.__dict__.pop(name, None)
        self.acceptance: Acceptance = asked.acceptance or CorrectedBarker()
        self.proposal_options = ()
        self._moved_alike = ""
        self.rows: str = "uniform"
        self.row_sizes: RowSizes | None = None
        self.sized: SizedRows | None = None
        self.residents: Residents | None = None
        self.prepared: Any = None
        self.control = None
        self.least_batch, self.kurtosis = LEAST_BATCH, UNKNOWN_KURTOSIS
        is_free = asked.may_move_effects and self.claims.effects
        self.latent = self._latent_sampler(asked) if is_free else None
        rows_read = 0.0
        if self.latent is None:
            try:
                rows_read = self._set_up_plainly(asked, one_mode=not is_free)
            except NotEnoughMemoryError as error:
                raise NotEnoughMemoryError(f"{error} {self._moved_alike}".strip()) from error
            except SeveralModesError:
                self.latent = self._latent_sampler(asked, effects=False)
                if not isinstance(self.latent, ModeSampler):
                    self.latent = None
                    rows_read = self._set_up_plainly(asked, one_mode=True)
        if self.latent is None:
            if self.steps_are_free:
                self.steps_per_draw = steps_of_draw(
                    self.acceptance, self.proposal, self._active.size, rows_read
                )
        elif self.steps_are_free and not self.latent.costly:
            self.steps_per_draw = scans_of_draw(self.tall)
        _log.info(self.choice)
        self._warn_of_other_temperatures()

    def _claim_less(self, asked: Asked, surprise: SurpriseError) -> None:
        """Leave out the claim that a look has found not to hold; refuse the model if none is left.

        Raises
        ------
        NotTallError
            If the rows, as they were split, are not the model's.
        """
        claims = self.claims
        if isinstance(self.latent, ExactSampler) and asked.is_open:
            self.claims = claims._replace(sums=False)
        elif self.latent is not None:
            self.claims = claims._replace(effects=False)
        elif asked.is_open and self.prepared is not None:
            self.claims = claims._replace(bounds=False)
        elif asked.leaves_expansion_open and self.control_variate:
            self.claims = claims._replace(expansion=False)
        elif asked.reference is not None:
            raise NotTallError(
                f"{surprise}. The reference may be of other data: leave it out, or find it again."
            )
        else:
            raise NotTallError(f"{surprise}. Please report this model.")
        _log.info(f"Set up in a more general way: {surprise}.")

    def _latent_sampler(self, asked: Asked, *, effects: bool = True) -> LatentSampler | None:
        """Set up the moves of effects and their scales; None if the model has none.

        Or, without `effects`, those about several modes.
        """
        test = asked.acceptance
        has_all = self._active.size == self.tall.layout.size
        if not has_all or not (test is None or test.decides_levels):
            return None
        if test is None or not test.is_exact:
            self.tall = copied_for_effects(self.tall)
        if self.tall.partitions is not None:
            return None
        try:
            plan = plan_effects(
                self.tall,
                test,
                asked.rows,
                self.temperature,
                batch_size=self.batch_size,
                effects=effects,
                may_sum=self.claims.sums,
            )
        except (NoFieldError, np.linalg.LinAlgError) as reason:
            _log.info(
                "The updates for multilevel models cannot be used, so all variables are updated "
                f"jointly: {reason}"
            )
            self._moved_alike = f"Effects are not updated by group: {reason}"
            return None
        sampler, self.acceptance, self.rows, self.choice = plan
        return sampler

    def _warn_of_other_temperatures(self) -> None:
        others = [var.name for var in self.tall.model.value_vars if var not in self.vars]
        if others and self.temperature != 1.0:
            warn(
                "PMB108",
                f"MinibatchMH samples at temperature {self.temperature}; the steps of {others} "
                "must use the same temperature, or the chain has no well-defined target.",
            )

    def _facts(self) -> dict[str, str]:
        facts = {"decides by": self.choice.removesuffix(".")}
        if self.latent is None or self.latent.by_batches:
            size = "tuned" if self.batch_size is None else f"from {self.batch_size:,} rows"
            facts["batches"] = f"{self.rows}, {size}"
        if self.latent is None:
            facts["moves"] = repr(self.proposal)
            facts["expansion"] = expansion(self.control)
        if self.temperature != 1.0:
            facts["temperature"] = f"{self.temperature:g}"
        facts["memory"] = f"about {in_words(bytes_of_step(self.tall, self.latent is not None))}"
        return facts | {"draw": f"{self.steps_per_draw} transitions"}

    # --- Draws --------------------------------------------------------------------------------

    def _reset_tuning(self) -> None:
        self.batch_state = new_first_batch(self._initial_batch)
        self._level_is_found = self._is_beyond = False
        self._n_still = 0
        self._count_anew()
        if self.latent is not None:
            self.proposal_state = self.latent.initial_state()
        else:
            super()._reset_tuning()

    def near_mode(self, point: PointType) -> Mapping[str, np.ndarray]:
        """Return a point near the mode if one is known, else the point."""
        if self.starts is not None:
            chosen = self.starts[int(self.rng.integers(len(self.starts)))]
            return self.tall.layout.unflatten(chosen)
        if self.latent is not None:
            flat = self.tall.layout.flatten(point)
            return self.tall.layout.unflatten(self.latent.near_mode(self.rng, flat))
        return super().near_mode(point)

    def _compile(self) -> None:
        if self.latent is not None:
            self.latent.compile()
        else:
            super()._compile()

    def _forget_work(self) -> None:
        if self.latent is not None:
            self.latent.forget()
        else:
            super()._forget_work()

    def _draw(self, flat: np.ndarray) -> dict[str, Any]:
        return super()._draw(flat) if self.latent is None else self._draw_latent(flat)

    def _draw_latent(self, flat: np.ndarray) -> dict[str, Any]:
        assert self.latent is not None
        counts = self.latent.draw(
            self.rng, flat, self.n_transitions, self.tune, self.proposal_state
        )
        self.refuse_impossible(counts.impossible_row, flat)
        warning = None if self.tune else self.warning_of_a_level(flat)
        scale = self.latent.scale(self.proposal_state)
        return {**stats_of_sampler(self.latent, counts), "scale": scale, "warning": warning}

    def warning_of_a_level(self, flat: np.ndarray) -> str | None:
        """Warn once where batches have let a level go where its own rows object."""
        assert self.latent is not None
        if self._level_is_found or self.n_draws % LOOK_EVERY:
            return None
        contradicted = self.latent.contradicted(flat)
        if contradicted is None:
            return None
        self._level_is_found = True
        return complaint_of_level(self.tall, contradicted)

    def warning_of_no_move(self, stats: dict[str, Any]) -> str | None:
        """Warn once if a chain stands still, which R-hat does not see if others do as well."""
        self._n_still = self._n_still + 1 if stats["acceptance_rate"] == 0.0 else 0
        if self._n_still != STILL:
            return None
        return with_id(
            "PMB203",
            f"No proposal was accepted in {STILL} draws: proposals do not fit the posterior here, "
            "for example near a hard constraint, or if kinks of the prior couple many parameters. "
            "Do not use these draws. Raise tune: with at least 150 tuning draws left, the chain "
            "continues with NUTS on all rows (fallback='nuts'). If kinks are the cause, a smooth "
            "prior helps.",
        )

    def _point_of_look(self) -> np.ndarray:
        if self.latent is None and self.control is not None and self.control.order:
            start = self.tall.layout.flatten(self.tall.model.initial_point())
            point = drawn_about_mode(self.control, self._active, start, self.rng)
            if np.isfinite(self.model_density(point)):
                return point
        return super()._point_of_look()
