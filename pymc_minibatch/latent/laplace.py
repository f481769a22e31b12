"""The mode of Laplace's approximation to the marginal of the hyperparameters.

A pass over the rows expands the log-likelihood about the present φ̂; under this expansion, which
reads no row, the marginal of h is climbed, and the field moves to its mode given h; and so on, in
turns. Steps of the field alone, given h, are Newton's.

References
----------
Tierney and Kadane (1986), Accurate approximations for posterior moments and marginal densities.
Breslow and Clayton (1993), Approximate inference in generalized linear mixed models.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from pymc_minibatch.latent.climb import Climb
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.expander import RowExpander
from pymc_minibatch.latent.kinks import find_kinks
from pymc_minibatch.latent.marginal_curvature import covariance_cholesky
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["CLOSE", "LONGEST", "KnownModeError", "LaplaceSearch", "log_density", "tolerated_error"]

TURNS = 25
CLOSE = 0.05
"""Turns end when the field moves by fewer standard deviations per variable than this, and h too."""

DENSE_SHARE = 0.25
"""What the farthest variable of the dense part counts for in that."""

LONGEST = 1.0
"""How far a hyperparameter moves in one turn, on its unconstrained scale."""

RUN = 4.0
"""After so many of the longest moves of h turns are looked at again."""

LONGEST_EXACTLY = 4.0
"""The same where an expansion is right everywhere."""

HALVINGS = 12
WRONG, WRONG_BY_SIZE = 30.0, 0.5
"""The surrogate after a turn, and for each variable, in nats; beyond, turns are shorter."""

RAISED = (2.0, 8.0, 64.0)
"""By what groups that bend upwards are raised more than to where they bend no way."""

DAMPING = (0.0, 0.1, 1.0, 10.0, 100.0)

NO_RISE = "The log-density does not rise towards the mode of the effects."


class KnownModeError(Exception):
    """A search has come to a mode that is known already."""


class LaplaceSearch:
    """Climbs the Laplace marginal of h and the field given it, in turns.

    Parameters
    ----------
    rows
        The rows.
    is_known
        Whether a point is about a mode that is known, at which the search ends.
    """

    def __init__(
        self, rows: RowExpander, is_known: Callable[[np.ndarray], bool] | None = None
    ) -> None:
        self.rows, self.field, self.is_known = rows, rows.field, is_known
        self.climb = Climb()

    def from_point(self, point: np.ndarray) -> Surrogate:
        """Take turns from a point until neither h nor the field moves.

        Raises
        ------
        NoFieldError, LinAlgError
            If there is no mode.
        KnownModeError
            If it is known.
        """
        self.rows.widen(point)
        self.climb = Climb()
        try:
            surrogate = first = self.climb_field(self.rows.expand(point))
            for number in range(TURNS):
                surrogate, length, shift = self.turn(surrogate)
                first = surrogate if number == 0 else first
                self.refuse_known(surrogate)
                if length < CLOSE and shift < CLOSE:
                    break
            if self._overshot(first, surrogate):
                surrogate = self._climbed_surely(first)
        except NoFieldError:
            surrogate = self.climb_over_kinks(self.rows.expand(point))
        return surrogate

    def _overshot(self, first: Surrogate, last: Surrogate) -> bool:
        """Whether turns have led to where the marginal is lower than after the first of them.

        Expansions about a field that lags behind h may lead on and on: where traits of a person are
        taken for one, say, or a scale for zero.
        """
        hyper = self.field.hyper
        distance = self.field.hyper_coordinates.distance
        if distance(last.center[hyper], first.center[hyper]) < RUN * LONGEST:
            return False
        values, is_known, self.is_known = [], self.is_known, None
        try:
            for surrogate in (first, last):
                climbed = self.proper(self.climb_field(surrogate))
                values.append(climbed.log_marginal_of_center())
        except (NoFieldError, np.linalg.LinAlgError):
            return False
        finally:
            self.is_known = is_known
        return math.isfinite(values[1]) and values[0] > values[1] + 1.0

    def _climbed_surely(self, surrogate: Surrogate) -> Surrogate:
        """Climb h by steps after which the marginal, with the field at its mode, is higher."""
        self.climb, hyper = Climb(), self.field.hyper
        self.rows.widen(surrogate.center)
        surrogate = self.proper(self.climb_field(self.rows.expand(surrogate.center)))
        value, longest = surrogate.log_marginal_of_center(), LONGEST
        for _ in range(TURNS):
            here = surrogate.center[hyper]
            there = self._climbed(surrogate, longest)
            shift, moved = self.field.hyper_coordinates.distance(there, here), -math.inf
            with suppress(NoFieldError, np.linalg.LinAlgError):
                climbed = self.rows.expand(surrogate.conditional(there).point)
                climbed = self.proper(self.climb_field(climbed))
                moved = climbed.log_marginal_of_center()
            if self.rows.budget.left < 0.0:
                raise NoFieldError("The search has read as many rows as it may.")
            if moved > value:
                surrogate, value, longest = climbed, moved, min(LONGEST, 2.0 * longest)
            else:
                longest = 0.25 * min(longest, shift)
            if shift < CLOSE:
                break
        return surrogate

    def turn(self, surrogate: Surrogate) -> tuple[Surrogate, float, float]:
        """Climb h, move the field to its mode there and expand anew; say how far both moved."""
        if not self._target(surrogate)[1]:
            surrogate = self.climb_field(surrogate)
        surrogate = self.proper(surrogate)
        hyper = self.climb_hyper(surrogate)
        conditional = surrogate.conditional(hyper)
        here = surrogate.center[self.field.hyper]
        shift = self.field.hyper_coordinates.distance(hyper, here)
        expanded = self._trusted(surrogate, conditional.point - surrogate.center)
        if not np.isfinite(log_density(expanded)):
            start = surrogate.center.copy()
            start[self.field.hyper] = hyper
            expanded = self.climb_field(self.rows.expand(start))
        return expanded, _length(surrogate, conditional), shift

    def climb_field(self, surrogate: Surrogate) -> Surrogate:
        """Newton's method for the field given h, with steps halved until the density rises."""
        for _ in range(TURNS):
            self.refuse_known(surrogate)
            target, concave = self._target(surrogate)
            if concave and _length(surrogate, target) < CLOSE:
                return surrogate
            step = target.point - surrogate.center
            surrogate = self._backtracked(surrogate, step, lengthens=not concave)
        return surrogate

    def climb_over_kinks(self, surrogate: Surrogate) -> Surrogate:
        """Find where the field is by what the prior's kinks are on average: the mode is on some.

        Raises
        ------
        NoFieldError
            If there are none, or there are hyperparameters or groups beside.
        """
        if not self.field.hyper.size:
            for _ in range(TURNS):
                surrogate.kinks = find_kinks(surrogate)
                if surrogate.kinks is None:
                    break
                target = surrogate.conditional(surrogate.center[self.field.hyper])
                if _length(surrogate, target) < CLOSE:
                    return surrogate
                surrogate = self.rows.expand(target.point)
        raise NoFieldError(NO_RISE)

    def climb_hyper(self, surrogate: Surrogate, is_last: bool = False) -> np.ndarray:
        """Return the hyperparameters that are most probable under an expansion, not too far.

        If it is not the last one, it need not be climbed to the top.
        """
        is_exact = self.rows.exact is not None
        if not self.field.hyper.size:
            return surrogate.center[self.field.hyper]
        longest = LONGEST_EXACTLY if is_exact else LONGEST
        return self._climbed(surrogate, longest, is_last=is_last or is_exact)

    def _climbed(self, surrogate: Surrogate, longest: float, is_last: bool = False) -> np.ndarray:
        coordinates = self.field.hyper_coordinates
        start = coordinates.from_hyper(surrogate.center[self.field.hyper])
        v = self.climb(surrogate.log_marginal_in, start, longest, is_last=is_last)
        return coordinates.to_hyper(v)

    def covariance_cholesky(self, surrogate: Surrogate) -> np.ndarray:
        """Return the lower factor of the covariance of h where a surrogate is centered."""
        return covariance_cholesky(surrogate, surrogate.center[self.field.hyper], self.climb.widths)

    def refuse_known(self, surrogate: Surrogate) -> None:
        """End the search if it is about a mode that is known.

        Raises
        ------
        KnownModeError
            If it is.
        """
        if self.is_known is not None and self.is_known(surrogate.center):
            raise KnownModeError

    def proper(self, surrogate: Surrogate) -> Surrogate:
        """Return a surrogate that is Gaussian given its h, what is no part of it raised if need be.

        Groups of few rows that bend upwards, as levels of location and scale do, are made to bend
        no way. What all of them leave for the dense part may bend upwards then, where their priors
        are wide, and does not if they bend downwards instead.

        Raises
        ------
        LinAlgError
            If none is.
        """
        hyper, expansion = surrogate.center[self.field.hyper], surrogate.expansion
        if surrogate.factored_later(hyper).is_proper or not expansion.psd_shift.any():
            return surrogate
        for by in RAISED:
            shifted = replace(expansion, psd_shift=by * expansion.psd_shift)
            other = Surrogate(
                surrogate.tall, self.field, shifted, surrogate.center, surrogate.cubics
            )
            if other.factored_later(hyper).is_proper:
                return other
        raise np.linalg.LinAlgError("The dense part is not positive definite.")

    def _target(self, surrogate: Surrogate) -> tuple[Conditional, bool]:
        """Return the Gaussian of the field given h, and whether the density is concave.

        If it is not, that of rows which are made so.
        """
        hyper = surrogate.center[self.field.hyper]
        try:
            return surrogate.conditional(hyper), True
        except np.linalg.LinAlgError:
            surrogate = self.rows.expand(surrogate.center, concave=True)
        for damping in DAMPING:
            try:
                return surrogate.conditional(hyper, damping), False
            except np.linalg.LinAlgError:
                continue
        raise NoFieldError("The log-density of the effects is not concave.")

    def _backtracked(self, surrogate: Surrogate, step: np.ndarray, lengthens: bool) -> Surrogate:
        """Halve a step until the density rises, or double it as long as it does.

        Steps where the density is not concave may be far too short.
        """
        here = log_density(surrogate)
        for halving in range(HALVINGS):
            moved = self.rows.expand(surrogate.center + step * 0.5**halving)
            if log_density(moved) > here - 1e-6 * abs(here):
                break
        else:
            raise NoFieldError(NO_RISE)
        for doubling in range(1, HALVINGS if lengthens and halving == 0 else 1):
            farther = self.rows.expand(surrogate.center + step * 2.0**doubling)
            if not log_density(farther) > log_density(moved):
                break
            moved = farther
        return moved

    def _trusted(self, surrogate: Surrogate, step: np.ndarray) -> Surrogate:
        """Expand after a step, halved while the density falls and the surrogate was wrong by much.

        It may fall: a mode of the hyperparameters is not one of the joint density.
        """
        if self.rows.exact is not None:
            return self.rows.expand(surrogate.center + step)
        here = log_density(surrogate)
        for halving in range(HALVINGS):
            point = surrogate.center + step * 0.5**halving
            self.rows.widen(point)
            expanded = self.rows.expand(point)
            there = log_density(expanded)
            expected = surrogate.smooth_log_density(point)
            wrong = surrogate.expansion.value + expected - there
            if there > here or wrong < tolerated_error(surrogate) or self.rows.functions.kinked:
                break
        return expanded


def log_density(surrogate: Surrogate) -> float:
    """Return the log of the joint density where a surrogate is centered, without kinks."""
    return surrogate.field.derivatives.smooth_prior(surrogate.center) + surrogate.expansion.value


def tolerated_error(surrogate: Surrogate) -> float:
    """Return by how many nats a surrogate may be wrong before a step counts as too long."""
    return max(WRONG, WRONG_BY_SIZE * surrogate.center.size)


def _length(surrogate: Surrogate, target: Conditional) -> float:
    """Return how far the field is from its mode, in standard deviations per variable.

    Few dense variables are not to be lost among many levels.
    """
    dense, groups = target.frame.whiten(surrogate.center)
    squares = float(np.sum(dense**2) + np.sum(groups**2))
    n_latent = max(dense.size + groups.size, 1)
    return max(math.sqrt(squares / n_latent), DENSE_SHARE * np.abs(dense).max(initial=0.0))
