"""Find the mode of the hyperparameters with the latent field integrated out.

A joint mode of effects and the logs of their scales is far from the bulk of the posterior or does
not exist. So the hyperparameters are found by their own density, the Laplace approximation of the
marginal, in turns: a pass over the rows expands the log-likelihood about the present φ̂; under
this expansion, which reads no row, the marginal of h is climbed, and the field moves to its mode
given h. Groups with few rows that say little, such as two yeses or noes, are not Gaussian at their
mode, and where they are many the error of Laplace's approximation adds up to many standard
deviations of h. So more turns follow with slope and curvature of the rows averaged over the field
given h, which lead to the mode of a lower bound of the marginal.

References
----------
Tierney and Kadane (1986), Accurate approximations for posterior moments and marginal densities.
Breslow and Clayton (1993), Approximate inference in generalized linear mixed models.
Ormerod and Wand (2012), Gaussian variational approximate inference for generalized linear mixed
models, for the averages.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from pymc_minibatch.latent.climb import Climb
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.expansion import Expansion, expand, semidefinite
from pymc_minibatch.latent.expectation import by_expectation
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.kinks import find_kinks
from pymc_minibatch.latent.marginal_curvature import covariance_cholesky, widths_of_marginal
from pymc_minibatch.latent.mean_correction import MeanCorrection
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.smoothing import find_smoothing
from pymc_minibatch.latent.sums import ParabolicRows, agree_with_rows, expand_exactly
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

__all__ = ["FewRows", "KnownModeError", "LatentReference", "RowBudget", "search"]

SUBSAMPLE = 20_000
TURNS = 25
CLOSE = 0.05
"""Turns end when the field moves by fewer standard deviations per variable than this, and h too."""

DENSE_SHARE = 0.25
"""What the farthest variable of the dense part counts for in that."""

LONGEST = 1.0
"""How far a hyperparameter moves in one turn, on its unconstrained scale."""

LONGEST_EXACTLY = 4.0
"""The same where an expansion is right everywhere."""

HALVINGS = 12
WRONG, WRONG_BY_SIZE = 30.0, 0.5
"""The surrogate after a turn, and for each variable, in nats; beyond, turns are shorter."""

AVERAGED_TURNS, CONCAVE_TURNS, STILL = 25, 60, 0.25
"""Turns with averages of rows as they are, and of rows made concave, which are steeper, so that
turns are shorter. They end when h and the dense part move by fewer standard deviations."""

EACH, MOST_LEFT = 3, 0.9
"""After so many turns, all that are to come are foretold; each leaves at most this of a step."""

FAR, TOO_FAR = 1.0, 10.0
"""From how many standard deviations on the mean of the field is not taken for its mode, and from
how many it is not believed in the end."""

LEVELS_TURNS = 3
"""How often h is climbed, and the field given it, where levels are averaged over."""

RAISED = (2.0, 8.0, 64.0)
"""By what groups that bend upwards are raised more than to where they bend no way."""

DAMPING = (0.0, 0.1, 1.0, 10.0, 100.0)

FEW_TURNS, MOST_PASSES = 8, 60
"""Turns of a search on few rows, and how often it may read them: 15 to 30 passes are usual."""

NONE_LEFT_OUT = np.empty(0, dtype=np.int64)


class KnownModeError(Exception):
    """A search has come to a mode that is known already."""


@dataclass
class RowBudget:
    """Rows that searches may yet read.

    Attributes
    ----------
    left : float
        How many.
    """

    left: float

    def spend(self, n_rows: int) -> None:
        """Take rows out of it.

        Raises
        ------
        NoFieldError
            If it is empty.
        """
        if self.left < 0.0:
            raise NoFieldError("The search has read as many rows as it may.")
        self.left -= n_rows


@dataclass(frozen=True)
class LatentReference:
    """Where the log-likelihood is expanded, and the marginal of the hyperparameters there.

    Attributes
    ----------
    surrogate : Surrogate
        Prior and second-order likelihood about the mode.
    hyper : ndarray, shape (H,)
        The mode of the hyperparameters.
    hyper_cholesky : ndarray, shape (H, H)
        Lower factor of their covariance there.
    passes : float
        How often all rows were read.
    seconds : float
        Time that was spent.
    temperature : float
        Of the posterior.
    """

    surrogate: Surrogate
    hyper: np.ndarray
    hyper_cholesky: np.ndarray
    passes: float
    seconds: float
    temperature: float

    @property
    def is_exact(self) -> bool:
        """Whether the surrogate is the posterior itself."""
        return self.surrogate.expansion.is_exact


class _Search:
    def __init__(
        self,
        tall: TallModel,
        field: LatentField,
        rows: RowFunctions,
        factors: Sequence[Factor],
        temperature: float,
        left_out: np.ndarray,
    ) -> None:
        self.tall, self.field, self.rows, self.temperature = tall, field, rows, temperature
        self.data = tall.data
        if left_out.size:
            self.data = tuple(np.delete(values, left_out, axis=0) for values in tall.data)
        self.rows_read = 0
        self.mean = MeanCorrection(
            rows, self.data, temperature, lambda point: self.expand(point, self.data)
        )
        self.first = tall.start
        self.exact: Expansion | None = None
        self.budget = RowBudget(math.inf)
        self.is_known: Callable[[np.ndarray], bool] | None = None
        self.climb = Climb()
        n_phi = field.rows.dense.size + field.rows.groups.size + field.scalars.size
        self.counts = np.zeros(n_phi)
        for factor in factors:
            own = np.bincount(factor.row_levels, minlength=factor.n_levels)
            self.counts[factor.entries] = own[:, None]

    def widen(self, point: np.ndarray, data: tuple[np.ndarray, ...]) -> None:
        """Fit the intervals over which rows with kinks are averaged to a point."""
        if self.rows.kinked:
            phi = self.field.derivatives.phi(point)
            self.rows.smoothing = find_smoothing(self.rows, phi, data, self.counts)

    def sum_exactly(self, point: np.ndarray, parabolic: ParabolicRows) -> Surrogate:
        """Sum all rows about a point, once and for all."""
        phi = self.field.derivatives.phi(point)
        data, layout = self.data, self.field.rows
        self.exact = expand_exactly(self.rows, parabolic, data, phi, layout, self.temperature)
        self.rows_read += 2 * len(data[0])
        return self.expand(point, data)

    def agrees(self, surrogate: Surrogate, cholesky: np.ndarray) -> bool:
        """Whether sums say what all rows say."""
        hypers = surrogate.center[self.field.hyper], cholesky
        self.rows_read += len(self.data[0])
        return agree_with_rows(self.rows, self.data, surrogate, hypers, self.temperature)

    def expand(
        self, point: np.ndarray, data: tuple[np.ndarray, ...], concave: bool = False
    ) -> Surrogate:
        """Expand the rows, or some of them, about a point.

        Some do not count for more than they are: repeated, the few rows that a group has among them
        would say that groups differ as much as single rows do.
        """
        if self.exact is not None:
            surrogate = Surrogate(self.tall, self.field, self.exact, point)
            value = surrogate.log_likelihood(surrogate.read(point))
            surrogate.expansion = replace(self.exact, value=value)
            return surrogate
        self.budget.spend(len(data[0]))
        phi = self.field.derivatives.phi(point)
        expansion = expand(self.rows, data, phi, self.field.rows, self.temperature, concave=concave)
        self.rows_read += len(data[0])
        if not (np.isfinite(expansion.value) and np.isfinite(expansion.slope).all()):
            expansion = replace(expansion, value=-np.inf)
        return Surrogate(self.tall, self.field, expansion, point)

    def climb_field(self, surrogate: Surrogate, data: tuple[np.ndarray, ...]) -> Surrogate:
        """Newton's method for the field given h, with steps halved until the density rises."""
        for _ in range(TURNS):
            self.refuse_known(surrogate, data)
            target, concave = self._target(surrogate, data)
            length = self._length(surrogate, target)
            if length < CLOSE and concave:
                return surrogate
            step = target.point - surrogate.center
            surrogate = self._backtracked(surrogate, step, data, lengthens=not concave)
        return surrogate

    def refuse_known(self, surrogate: Surrogate, data: tuple[np.ndarray, ...]) -> None:
        """End the search if it is about a mode of all rows that is known.

        Raises
        ------
        KnownModeError
            If it is.
        """
        if self.is_known is not None and data is self.data and self.is_known(surrogate.center):
            raise KnownModeError

    def climb_over_kinks(self, surrogate: Surrogate, data: tuple[np.ndarray, ...]) -> Surrogate:
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
                if self._length(surrogate, target) < CLOSE:
                    return surrogate
                surrogate = self.expand(target.point, data)
        raise NoFieldError("The log-density does not rise towards the mode of the effects.")

    def _target(
        self, surrogate: Surrogate, data: tuple[np.ndarray, ...]
    ) -> tuple[Conditional, bool]:
        """Return the Gaussian of the field given h, and whether the density is concave.

        If it is not, that of rows which are made so.
        """
        hyper = surrogate.center[self.field.hyper]
        try:
            return surrogate.conditional(hyper), True
        except np.linalg.LinAlgError:
            surrogate = self.expand(surrogate.center, data, concave=True)
        for damping in DAMPING:
            try:
                return surrogate.conditional(hyper, damping), False
            except np.linalg.LinAlgError:
                continue
        raise NoFieldError("The log-density of the effects is not concave.")

    def _length(self, surrogate: Surrogate, target: Conditional) -> float:
        """Return how far the field is from its mode, in standard deviations per variable.

        Few dense variables are not to be lost among many levels.
        """
        moved = self.field.latent.split(target.point - surrogate.center)
        dense, groups = target.factor.whiten(*moved)
        squares = float(np.sum(dense**2) + np.sum(groups**2))
        n_latent = max(dense.size + groups.size, 1)
        return max(math.sqrt(squares / n_latent), DENSE_SHARE * np.abs(dense).max(initial=0.0))

    def _backtracked(
        self,
        surrogate: Surrogate,
        step: np.ndarray,
        data: tuple[np.ndarray, ...],
        lengthens: bool,
    ) -> Surrogate:
        """Halve a step until the density rises, or double it as long as it does.

        Steps where the density is not concave may be far too short.
        """
        here = self._density(surrogate)
        for halving in range(HALVINGS):
            moved = self.expand(surrogate.center + step * 0.5**halving, data)
            if self._density(moved) > here - 1e-6 * abs(here):
                break
        else:
            raise NoFieldError("The log-density does not rise towards the mode of the effects.")
        for doubling in range(1, HALVINGS if lengthens and halving == 0 else 1):
            farther = self.expand(surrogate.center + step * 2.0**doubling, data)
            if not self._density(farther) > self._density(moved):
                break
            moved = farther
        return moved

    def _density(self, surrogate: Surrogate) -> float:
        return self.field.derivatives.prior(surrogate.center) + surrogate.expansion.value

    def climb_hyper(self, surrogate: Surrogate, is_last: bool = False) -> np.ndarray:
        """Return the hyperparameters that are most probable under an expansion, not too far.

        If it is not the last one, it need not be climbed to the top.
        """
        start = surrogate.center[self.field.hyper]
        if not start.size:
            return start
        longest = LONGEST if self.exact is None else LONGEST_EXACTLY
        is_last = is_last or self.exact is not None
        return self.climb(surrogate.log_marginal, start, longest, is_last=is_last)

    def covariance_cholesky(self, surrogate: Surrogate) -> np.ndarray:
        """Return the lower factor of the covariance of h where a surrogate is centered."""
        return covariance_cholesky(surrogate, surrogate.center[self.field.hyper], self.climb.widths)

    def turn(
        self, surrogate: Surrogate, data: tuple[np.ndarray, ...]
    ) -> tuple[Surrogate, float, float]:
        """Climb h, move the field to its mode there and expand anew; say how far both moved."""
        if not self._target(surrogate, data)[1]:
            surrogate = self.climb_field(surrogate, data)
        surrogate = self.proper(surrogate)
        hyper = self.climb_hyper(surrogate)
        conditional = surrogate.conditional(hyper)
        shift = np.abs(hyper - surrogate.center[self.field.hyper]).max(initial=0.0)
        expanded = self._trusted(surrogate, conditional.point - surrogate.center, data)
        if not np.isfinite(self._density(expanded)):
            start = surrogate.center.copy()
            start[self.field.hyper] = hyper
            expanded = self.climb_field(self.expand(start, data), data)
        return expanded, self._length(surrogate, conditional), float(shift)

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
            other = Surrogate(self.tall, self.field, shifted, surrogate.center, surrogate.cubics)
            if other.factored_later(hyper).is_proper:
                return other
        raise np.linalg.LinAlgError("The dense part is not positive definite.")

    def _trusted(
        self, surrogate: Surrogate, step: np.ndarray, data: tuple[np.ndarray, ...]
    ) -> Surrogate:
        """Expand after a step, halved while the density falls and the surrogate was wrong by much.

        It may fall: a mode of the hyperparameters is not one of the joint density.
        """
        if self.exact is not None:
            return self.expand(surrogate.center + step, data)
        here = self._density(surrogate)
        for halving in range(HALVINGS):
            point = surrogate.center + step * 0.5**halving
            self.widen(point, data)
            expanded = self.expand(point, data)
            there = self._density(expanded)
            expected = surrogate.log_density(point, surrogate.read(point))
            wrong = surrogate.expansion.value + expected - there
            if there > here or wrong < max(WRONG, WRONG_BY_SIZE * step.size) or self.rows.kinked:
                break
        return expanded

    def averaged(self, surrogate: Surrogate) -> tuple[Surrogate, np.ndarray]:
        """Climb h with averages of the rows; expand about the mean of the field given it.

        If there are none, return the same surrogate.

        Returns
        -------
        surrogate : Surrogate
            At the mode of h, with what averages add to the slope as its tilt.
        hyper_cholesky : ndarray, shape (H, H)
            Lower factor of the covariance of h.
        """
        with suppress(np.linalg.LinAlgError):  # no density there
            return self._about_averages(surrogate)
        with suppress(np.linalg.LinAlgError):
            return self._from_concave_rows(surrogate.center)
        return surrogate, self.covariance_cholesky(surrogate)

    def averaged_from_afar(self) -> tuple[Surrogate, np.ndarray]:
        """Do the same from the start, where there is no mode to begin at.

        Levels with a scale of their own fit few rows too well at their joint mode, and all levels
        together bend the log-likelihood upwards there. On average over the field they do not, and
        with rows that are made concave each turn has a Gaussian to average over.

        Raises
        ------
        LinAlgError
            If the rows have no second-order likelihood where that ends.
        """
        return self._from_concave_rows(self.first)

    def _from_concave_rows(self, point: np.ndarray) -> tuple[Surrogate, np.ndarray]:
        return self._about_averages(self.expand(point, self.data, concave=True), concave=True)

    def _about_averages(
        self, surrogate: Surrogate, concave: bool = False
    ) -> tuple[Surrogate, np.ndarray]:
        hyper = surrogate.center[self.field.hyper]
        sd = widths_of_marginal(surrogate, hyper, self.climb.widths)
        self.climb.correct(sd)
        present = self._averaged_turns(surrogate, sd, concave)
        return self._at_averages(present), self.covariance_cholesky(present)

    def _at_averages(self, present: Surrogate) -> Surrogate:
        """Expand where averages have their mode, with what they add to the slope as its tilt."""
        there = self.proper(self.expand(present.center, self.data))
        mean_correction = present.expansion.slope - there.expansion.slope
        return self.mean.with_mean_correction(
            there, mean_correction, np.zeros(mean_correction.size)
        )

    def again(
        self, near: LatentReference, factors: Sequence[Factor]
    ) -> tuple[Surrogate, np.ndarray]:
        """Find h by averages from where nearly the same rows have it, as :meth:`centered` does.

        The covariance of h is theirs unless it has moved.

        Raises
        ------
        LinAlgError
            If averages lead nowhere from there.
        """
        covariance = near.hyper_cholesky @ near.hyper_cholesky.T
        self.climb.curvature = np.linalg.inv(covariance)
        sd = np.sqrt(np.diagonal(covariance))
        correction = near.surrogate.expansion.mean_correction
        surrogate = self.expand(near.surrogate.center, self.data)
        start = self.mean.with_mean_correction(surrogate, correction, np.zeros(correction.size))
        present = self._averaged_turns(self.proper(start), sd, concave=False)
        moved = np.abs(present.center[self.field.hyper] - near.hyper)
        cholesky = near.hyper_cholesky
        if np.any(moved > STILL * sd):
            cholesky = self.covariance_cholesky(present)
        found = self._at_averages(present)
        corrected, away = self._tilted_with_higher_orders(found, factors)
        if not away < TOO_FAR:
            raise np.linalg.LinAlgError("The mean of the effects is far off.")
        return corrected, cholesky

    def _averaged_turns(self, surrogate: Surrogate, sd: np.ndarray, concave: bool) -> Surrogate:
        """Average rows and climb in turns, until h, of known standard deviations, is still."""
        present, passed = surrogate, [surrogate.center[self.field.hyper]]
        last, bound = surrogate, -np.inf
        for turn in range(1, (CONCAVE_TURNS if concave else AVERAGED_TURNS) + 1):
            start, (present, reached) = present, self._average(present, concave)
            if reached < bound - max(WRONG, WRONG_BY_SIZE * present.center.size):
                return self._turned_back(last, start.center, bound, concave)
            last, bound = present, max(bound, reached)
            hyper = self.climb_hyper(present, is_last=True)
            given = present.conditional(hyper)
            moved = self._farthest(present, given)
            present = _moved(present, given.point)
            passed.append(hyper)
            if moved < STILL and np.all(np.abs(passed[-1] - passed[-2]) < STILL * sd):
                break
            if turn % EACH == 0 and hyper.size:
                passed.append(_limit(*passed[-3:]))
                present = _moved(present, present.conditional(passed[-1]).point)
        return present

    def _turned_back(
        self, last: Surrogate, point: np.ndarray, bound: float, concave: bool
    ) -> Surrogate:
        """Go a shorter way from where averages were good to a point at which they are not."""
        for halving in range(1, HALVINGS):
            share = 0.5**halving
            nearer = _moved(last, (1.0 - share) * last.center + share * point)
            averaged, reached = self._average(nearer, concave)
            if reached > bound:
                return averaged
        return last

    def _farthest(self, surrogate: Surrogate, given: Conditional) -> float:
        """Return how far the dense part is from its mean, in standard deviations of a variable."""
        moved = self.field.latent.split(given.point - surrogate.center)
        return float(np.abs(given.factor.whiten(*moved)[0]).max(initial=0.0))

    def _average(self, surrogate: Surrogate, concave: bool) -> tuple[Surrogate, float]:
        """Return the surrogate whose slope and curvature of rows are averages over the field.

        Two opposite points suffice: what a group's own average lacks has either sign. They also
        give the lower bound of the log marginal that averages climb, up to a constant.
        """
        points = list(self.mean.points(surrogate, 1))
        one, other = (self.expand(point, self.data, concave).expansion for point in points)
        if not np.isfinite(one.value + other.value):
            raise np.linalg.LinAlgError("The log-likelihood is not finite all over the field.")
        curvature = (one.curvature + other.curvature).scaled(0.5)
        averaged = replace(
            one,
            at=(one.at + other.at) / 2,
            slope=(one.slope + other.slope) / 2,
            curvature=curvature,
            psd_shift=semidefinite(curvature.blocks) - curvature.blocks,
        )
        about = Surrogate(self.tall, self.field, averaged, surrogate.center)
        prior, given = (
            self.field.derivatives.prior,
            surrogate.conditional(surrogate.center[self.field.hyper]),
        )
        bound = (one.value + other.value + sum(map(prior, points))) / 2 - given.log_determinant
        return _moved(about, surrogate.center), float(bound)

    def centered(
        self, surrogate: Surrogate, factors: Sequence[Factor]
    ) -> tuple[Surrogate, np.ndarray]:
        """Find h by averages; expand about the mean of the field, with higher orders.

        Without h, the mode of the field is taken for its mean unless that is far. For what
        multiplies many effects it is, and for the scale of the rows: at the mode, effects are far
        too small, or fit the rows too well.
        """
        hyper, cholesky = surrogate.center[self.field.hyper], np.empty((0, 0))
        if self.exact is not None or self.rows.kinked:
            return surrogate, self.covariance_cholesky(surrogate)
        mode = surrogate
        if hyper.size:
            surrogate, cholesky = self.averaged(surrogate)
        corrected, away = self._tilted_with_higher_orders(surrogate, factors)
        if away > FAR and not hyper.size:
            with suppress(np.linalg.LinAlgError):
                found, of_hyper = self.with_levels_averaged(surrogate)
                return self.mean.with_higher_orders(found, factors), of_hyper
        if away > FAR and not hyper.size:
            surrogate, cholesky = self.averaged(surrogate)
            corrected, away = self._tilted_with_higher_orders(surrogate, factors)
        if self._is_worse(surrogate, mode):
            surrogate, cholesky, away = mode, self.covariance_cholesky(mode), math.inf
        return (
            corrected if away < TOO_FAR else self.mean.with_higher_orders(surrogate, factors)
        ), cholesky

    def corrected_if_near(self, surrogate: Surrogate, factors: Sequence[Factor]) -> Surrogate:
        """Add higher orders, and what they make of the mean of the field unless that is far off."""
        corrected, away = self._tilted_with_higher_orders(surrogate, factors)
        return corrected if away < TOO_FAR else self.mean.with_higher_orders(surrogate, factors)

    def with_levels_averaged(self, surrogate: Surrogate) -> tuple[Surrogate, np.ndarray]:
        """Expand about where the dense part is most probable, the levels averaged over, and h.

        Also return the lower factor of the covariance of h.

        Raises
        ------
        LinAlgError
            If that is not found, or there are no levels.
        """
        if not self.field.latent.groups.size:
            raise np.linalg.LinAlgError("No levels are averaged over.")
        point, hyper = self.first.copy(), surrogate.center[self.field.hyper]
        for _ in range(LEVELS_TURNS):
            point[self.field.hyper] = hyper
            averaged = by_expectation(self.field, lambda p: self.expand(p, self.data), point)
            point = averaged.center.copy()
            there = self.expand(point, self.data)
            correction = averaged.expansion.slope - there.expansion.slope
            about = self.mean.with_mean_correction(there, correction, np.zeros(correction.size))
            about = self.proper(about)
            hyper = self.climb_hyper(about, is_last=True)
            if np.abs(hyper - point[self.field.hyper]).max(initial=0.0) < CLOSE:
                break
        return about, covariance_cholesky(about, point[self.field.hyper])

    def _is_worse(self, surrogate: Surrogate, mode: Surrogate) -> bool:
        """Whether averages have led to where the Laplace marginal says nobody is."""

        def marginal(about: Surrogate) -> float:
            given = about.conditional(about.center[self.field.hyper])
            return self._density(about) - given.log_determinant

        wrong = max(WRONG, WRONG_BY_SIZE * mode.center.size)
        return surrogate is not mode and not marginal(surrogate) > marginal(mode) - wrong

    def _tilted_with_higher_orders(
        self, surrogate: Surrogate, factors: Sequence[Factor]
    ) -> tuple[Surrogate, float]:
        """Also return how far the mean of the dense part is from where rows are expanded."""
        corrected = self.mean.corrected(self.mean.with_higher_orders(surrogate, factors))
        if not corrected.expansion.mean_correction.any():  # not finite all over the field
            return corrected, math.inf
        mean = corrected.conditional(corrected.center[self.field.hyper])
        return corrected, self._farthest(corrected, mean)


def search(
    tall: TallModel,
    field: LatentField,
    rows: RowFunctions,
    factors: Sequence[Factor],
    temperature: float = 1.0,
    start: np.ndarray | None = None,
    parabolic: ParabolicRows | None = None,
    left_out: np.ndarray = NONE_LEFT_OUT,
    is_known: Callable[[np.ndarray], bool] | None = None,
    budget: RowBudget | None = None,
    near: LatentReference | None = None,
) -> LatentReference:
    """Find the mode, first on some rows, then on all; add higher orders by grouping factors.

    If rows are parabolas, sums say everything of them, and take the place of all this. Rows that
    are left out, by their numbers, have no share in the expansion. The search ends as soon as it is
    about a mode that `is_known`, or has read the rows of a `budget` before it is about any. It goes
    on from what was found `near`, given nearly the same rows.

    Raises
    ------
    NoFieldError
        If there is no such mode.
    KnownModeError
        If it is known.
    """
    started = time.perf_counter()
    if near is not None:
        start = field.derivatives.coordinates.to_model(near.surrogate.center)
    run = _Search(tall, field, rows, factors, temperature, left_out)
    run.is_known, run.budget = is_known, budget or run.budget
    point = tall.start.copy() if start is None else start
    run.first = point = field.derivatives.coordinates.from_model(point)
    stages = [run.data]
    if parabolic is not None:
        run.sum_exactly(point, parabolic)
    elif tall.n_rows > 2 * SUBSAMPLE and near is None:
        n_rows = len(run.data[0])
        some = np.sort(np.random.default_rng(0).choice(n_rows, SUBSAMPLE, replace=False))
        stages.insert(0, tuple(values[some] for values in run.data))
    try:
        try:
            again = _again_if_possible(run, near, factors)
            surrogate, cholesky = again or _from_mode(run, stages, point, parabolic, factors)
        except (NoFieldError, np.linalg.LinAlgError):
            if parabolic is not None or not field.latent.groups.size:
                raise
            try:
                found, cholesky = run.averaged_from_afar()
                surrogate = run.corrected_if_near(found, factors)
            except np.linalg.LinAlgError:
                found, cholesky = run.with_levels_averaged(run.expand(run.first, run.data))
                surrogate = run.mean.with_higher_orders(found, factors)
        hyper = surrogate.center[field.hyper]
        if parabolic is not None and not run.agrees(surrogate, cholesky):
            raise NoFieldError("Sums do not say what the rows say, far out in the posterior.")
    except np.linalg.LinAlgError as error:
        raise NoFieldError(f"The mode of the effects was not found: {error}.") from error
    if surrogate.kinks is None:
        surrogate.kinks = find_kinks(surrogate)
    return LatentReference(
        surrogate,
        hyper,
        cholesky,
        run.rows_read / tall.n_rows,
        time.perf_counter() - started,
        temperature,
    )


def _again_if_possible(
    run: _Search, near: LatentReference | None, factors: Sequence[Factor]
) -> tuple[Surrogate, np.ndarray] | None:
    if near is None or not near.hyper.size or run.rows.kinked:
        return None
    with suppress(NoFieldError, np.linalg.LinAlgError):
        return run.again(near, factors)
    return None


def _from_mode(
    run: _Search,
    stages: Sequence[tuple[np.ndarray, ...]],
    point: np.ndarray,
    parabolic: ParabolicRows | None,
    factors: Sequence[Factor],
) -> tuple[Surrogate, np.ndarray]:
    surrogate = _at_mode(run, stages, point)
    run.budget = RowBudget(math.inf)  # it is about another mode
    if parabolic is not None:  # sums about a point that is far off lose digits
        exact = run.sum_exactly(surrogate.center, parabolic)
        surrogate, _, _ = run.turn(exact, run.data)
    if surrogate.kinks is None:
        return run.centered(surrogate, factors)
    return surrogate, np.empty((0, 0))


def _at_mode(
    run: _Search,
    stages: Sequence[tuple[np.ndarray, ...]],
    point: np.ndarray,
) -> Surrogate:
    """Climb the marginal of h in turns, on some rows and then on all.

    Of some rows there may be no mode, where levels that have their own scale keep one row or two.
    """
    for data in stages[:-1]:
        with suppress(NoFieldError, np.linalg.LinAlgError):
            point = _climbed(run, data, point).center
    return _climbed(run, stages[-1], point)


def _climbed(run: _Search, data: tuple[np.ndarray, ...], point: np.ndarray) -> Surrogate:
    run.widen(point, data)
    run.climb = Climb()
    try:
        surrogate = run.climb_field(run.expand(point, data), data)
        for _ in range(TURNS):
            surrogate, length, shift = run.turn(surrogate, data)
            run.refuse_known(surrogate, data)
            if length < CLOSE and shift < CLOSE:
                break
    except NoFieldError:
        surrogate = run.climb_over_kinks(run.expand(point, data), data)
    return surrogate


class FewRows:
    """The posterior given few of the rows, on which other modes are searched.

    Parameters
    ----------
    tall, field, rows, factors, temperature
        As :func:`search` takes them.
    n_rows
        How many.
    exact
        The expansion of all rows, if it holds everywhere; then no row is needed.
    """

    def __init__(
        self,
        tall: TallModel,
        field: LatentField,
        rows: RowFunctions,
        factors: Sequence[Factor],
        temperature: float,
        n_rows: int,
        exact: Expansion | None = None,
    ) -> None:
        self._run = _Search(tall, field, rows, factors, temperature, NONE_LEFT_OUT)
        self._run.exact = exact
        every, few = tall.n_rows, min(n_rows, tall.n_rows)
        chosen = np.sort(np.random.default_rng(0).choice(every, few, replace=False))
        self._data = tuple(values[chosen] for values in tall.data)

    def bends_down(self, point: np.ndarray) -> bool:
        """Whether the field is concave at a point."""
        surrogate = self._run.expand(point, self._data)
        curvature = surrogate.expansion.curvature
        psd_shift = surrogate.expansion.psd_shift.any() or not np.isfinite(curvature.blocks).all()
        given = surrogate.factored_later(point[self._run.field.hyper])
        return not psd_shift and given.is_proper

    def mode(self, start: np.ndarray) -> LatentReference:
        """Return the mode that a search from a point ends in; correlations of h are left out.

        Raises
        ------
        NoFieldError, LinAlgError
            If there is none, or it is not found soon.
        """
        run, few = self._run, self._data
        run.climb, run.budget = Climb(), RowBudget(MOST_PASSES * len(few[0]))
        surrogate = run.climb_field(run.expand(start, few), few)
        for _ in range(FEW_TURNS):
            surrogate, length, shift = run.turn(surrogate, few)
            if length < STILL and shift < STILL:
                break
        hyper = surrogate.center[run.field.hyper]
        widths = np.empty(0) if run.climb.widths is None else run.climb.widths
        return LatentReference(surrogate, hyper, np.diag(widths), 0.0, 0.0, run.temperature)


def _moved(surrogate: Surrogate, point: np.ndarray) -> Surrogate:
    """Return the same expansion about another point."""
    expansion = surrogate.expansion
    phi = surrogate.phi(point)
    slope = expansion.slope - surrogate.curvature_product(phi - expansion.at)
    moved = replace(expansion, at=phi, slope=slope)
    return Surrogate(surrogate.tall, surrogate.field, moved, point)


def _limit(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """Return where turns go of which each moves by a fixed share of the one before it (Aitken).

    Steps that were cut to the longest say nothing of that share.
    """
    before, after = second - first, third - second
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(np.nan_to_num(after / before), 0.0, MOST_LEFT)
    share[np.abs(after) >= LONGEST] = 0.0
    return np.asarray(third + after * share / (1.0 - share))
