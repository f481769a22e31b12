"""When a chain gives up batches, and how it goes on along trajectories with all rows."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.steps.mixing import Mixing
from pymc_minibatch.steps.trajectories import AFFORDABLE, SETTLED, Trajectories
from pymc_minibatch.tall.model import TallModel

__all__ = ["Continuation", "Fallback"]

_log = logging.getLogger("pymc_minibatch")

LEAST_TUNING = 150
"""Draws of tuning that are left, without which trajectories are not begun: windows of PyMC's
variances are 101 draws long, after 50 that are left out."""


NOTHING_ELSE = 1e11
"""Rows that trajectories of a chain may read, if all were of the longest, where nothing is known of
its variables: a quarter of an hour if they are as long as usual, which is a tenth of that."""

LEAST_UNKNOWN = 5
"""Variables that random walks do not move in reasonable time, without a covariance."""


class Fallback(NamedTuple):
    """When a chain gives up batches for trajectories.

    Attributes
    ----------
    is_allowed : bool
        Whether it may.
    n_rows : int
        N.
    passes : float
        Over all rows, that a trajectory takes.
    n_unknown : int
        Variables of which nothing is known, since there is no expansion about a mode.
    """

    is_allowed: bool
    n_rows: int
    passes: float
    n_unknown: int = 0

    def may_begin(self, made: int, left: int) -> bool:
        """Whether draws of tuning say enough of those to come, and enough of tuning is left."""
        return made >= SETTLED and self.has_tuning(left)

    def has_tuning(self, left: int) -> bool:
        """Whether it may at all, and enough of tuning is left."""
        return self.is_allowed and left >= LEAST_TUNING

    def is_affordable(self, n_draws: int) -> bool:
        """Whether trajectories take no longer than users wait."""
        limit = NOTHING_ELSE if self._is_all_there_is else AFFORDABLE
        return n_draws * self.n_rows * self.passes <= limit

    @property
    def _is_all_there_is(self) -> bool:
        return self.n_unknown >= LEAST_UNKNOWN

    def begins_at_once(self, n_draws: int, left: int) -> bool:
        """Whether nothing else moves the chain, and trajectories can."""
        return self._is_all_there_is and self.has_tuning(left) and self.is_affordable(n_draws)

    def goes_nowhere(self, mixing: Mixing, made: int) -> bool:
        """Whether draws, of so many transitions, stay correlated for all their work."""
        return mixing.goes_nowhere(made, self.n_rows, self.passes)

    def is_hopeless(self, mixing: Mixing, made: int, n_draws: int, left: int) -> bool:
        """Whether draws stay correlated for longer than any transitions that are affordable.

        It is asked at the last draw of tuning at which trajectories may begin.
        """
        if left != LEAST_TUNING or not self.is_affordable(n_draws):
            return False
        return mixing.is_hopeless(made, n_draws)


class Continuation:
    """The trajectories along which a chain goes on once it has given up batches.

    Parameters
    ----------
    tall, names, active
        As :class:`.Trajectories` takes them.
    control : ControlVariate or None
        What is known of the posterior about its mode.

    Attributes
    ----------
    has_begun : bool
        Whether trajectories move the chain.
    has_shape : bool
        Whether the posterior is like the parabola about its mode.
    """

    def __init__(
        self,
        tall: TallModel,
        names: Sequence[str],
        active: np.ndarray,
        control: ControlVariate | None,
    ) -> None:
        self.tall, self.names, self.active, self.control = tall, names, active, control
        self.has_begun, self.has_shape = False, True
        self._made: Trajectories | None = None

    def begin(self, flat: np.ndarray, reason: str) -> None:
        """Go on from a point for a reason."""
        _log.info(
            f"MinibatchMH: {reason}; the chain continues with NUTS on all rows (fallback='nuts')"
        )
        self._made, self.has_begun = self._from(flat), True

    def begin_without_shape(self, flat: np.ndarray) -> None:
        """Go on from a point where the density has an end, like which no parabola is."""
        self.has_shape = False
        self.begin(flat, "the support of rows depends on the parameters")

    @property
    def trajectories(self) -> Trajectories:
        """The trajectories; in another process they are made anew."""
        if self._made is None:
            self._made = self._from(self.tall.start)
        return self._made

    @property
    def state(self) -> dict[str, Any] | None:
        """What trajectories have learnt; None if they have not begun."""
        if not self.has_begun:
            return None
        return {"has_shape": self.has_shape, "nuts": self.trajectories.state}

    @state.setter
    def state(self, stored: Mapping[str, Any] | None) -> None:
        self.has_begun = stored is not None
        if stored is not None:
            if stored["has_shape"] != self.has_shape:
                self._made = None
            self.has_shape = stored["has_shape"]
            self.trajectories.state = stored["nuts"]

    def _from(self, flat: np.ndarray) -> Trajectories:
        covariance = np.ones(self.active.size)
        if self.control is not None and self.has_shape:
            covariance = np.linalg.inv(self.control.precision(self.active))
        return Trajectories(
            self.tall, self.names, active=self.active, start=flat, covariance=covariance
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made anew where it is needed."""
        return self.__dict__ | {"_made": None}
