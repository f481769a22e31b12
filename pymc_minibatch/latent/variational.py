"""The mode of a variational lower bound of the marginal of the hyperparameters.

Groups with few rows that say little, such as two yeses or noes, are not Gaussian at their mode, and
where they are many the error of Laplace's approximation adds up to many standard deviations of h.
So more turns follow with slope and curvature of the rows averaged over the field given h: a
Gaussian variational approximation.

References
----------
Ormerod and Wand (2012), Gaussian variational approximate inference for generalized linear mixed
models.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.arrowhead import Matrix
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.expectation import average, by_expectation
from pymc_minibatch.latent.laplace import (
    CLOSE,
    LONGEST,
    LaplaceSearch,
    log_density,
    tolerated_error,
)
from pymc_minibatch.latent.marginal_curvature import covariance_cholesky, widths_of_marginal
from pymc_minibatch.latent.mean_correction import (
    TOO_FAR,
    MeanCorrection,
    distance_of_dense,
    opposite_points,
    with_mean_correction,
)
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["STILL", "VariationalSearch"]

AVERAGED_TURNS, CONCAVE_TURNS, STILL = 25, 60, 0.25
"""Turns with averages of rows as they are, and of rows made concave, which are steeper, so that
turns are shorter. They end when h and the dense part move by fewer standard deviations."""

EACH, MOST_LEFT = 3, 0.9
"""Extrapolate (Aitken) after this many turns; each leaves at most this of a step."""

HALVINGS = 11

FALL = 1.0
"""Nats below its highest value at which the bound counts as falling."""

NARROW = 1.0
"""Nats for each dimension by which the log-density falls more about a mode that tells nothing."""

FAR = 1.0
"""From how many standard deviations on the mean of the field is not taken for its mode."""

LEVELS_TURNS = 3
"""How often h is climbed, and the field given it, where levels are averaged over."""

type Found = tuple[Surrogate, np.ndarray]
"""Where rows are expanded, and the lower factor of the covariance of h there."""


class VariationalSearch:
    """Climbs with averages of the rows over the field.

    Parameters
    ----------
    laplace
        Climbs of the Laplace marginal, under one average or another.
    mean
        Finds the mean of the field.
    first
        Where to begin if there is no mode.
    """

    def __init__(self, laplace: LaplaceSearch, mean: MeanCorrection, first: np.ndarray) -> None:
        self.laplace, self.mean, self.first = laplace, mean, first
        self.rows, self.field = laplace.rows, laplace.field
        self._left: Surrogate | None = None  # a mode whose density says nothing of its surroundings
        self._known: tuple[Surrogate, bool, tuple[Surrogate, float]] | None = None

    def from_mode(self, mode: Surrogate) -> Found:
        """Find h by averages; expand about the mean of the field, with higher orders.

        Without h, the mode of the field is taken for its mean unless that is far. For what
        multiplies many effects it is, and for the scale of the rows: at the mode, effects are far
        too small, or fit the rows too well.
        """
        if self.rows.exact is not None or self.rows.functions.kinked:
            return mode, self.laplace.covariance_cholesky(mode)
        has_hyper = self.field.hyper.size > 0
        surrogate, cholesky = self._averaged(mode) if has_hyper else (mode, np.empty((0, 0)))
        corrected, away = self.mean.with_higher_orders(surrogate)
        if away > FAR and not has_hyper:
            with suppress(np.linalg.LinAlgError):
                averaged, cholesky = self.with_levels_averaged(mode)
                _ = averaged.conditional(averaged.center[self.field.hyper]).factor  # or raises
                return self.mean.higher_orders(averaged), cholesky
            surrogate, cholesky = self._averaged(mode)
            corrected, away = self.mean.with_higher_orders(surrogate)
        if surrogate is not mode and mode is not self._left and _is_worse(surrogate, mode):
            return self.mean.higher_orders(mode), self.laplace.covariance_cholesky(mode)
        return corrected if away < TOO_FAR else self.mean.higher_orders(surrogate), cholesky

    def from_afar(self) -> Found:
        """Do the same from the start, where there is no mode to begin at.

        Levels with a scale of their own fit few rows too well at their joint mode, and all levels
        together bend the log-likelihood upwards there. On average over the field they do not, and
        with rows that are made concave each turn has a Gaussian to average over.

        Raises
        ------
        LinAlgError
            If the rows have no second-order likelihood where that ends.
        """
        try:
            averaged, cholesky = self._about_concave_rows(self.first)
            return self.mean.with_higher_orders_if_near(averaged), cholesky
        except np.linalg.LinAlgError:
            averaged, cholesky = self.with_levels_averaged(self.rows.expand(self.first))
            return self.mean.higher_orders(averaged), cholesky

    def from_near(self, near: Surrogate, cholesky: np.ndarray) -> Found:
        """Do the same from where nearly the same rows have their mean.

        The covariance of h is theirs unless it has moved.

        Parameters
        ----------
        near
            The expansion of those.
        cholesky
            The lower factor of the covariance of h.

        Raises
        ------
        LinAlgError
            If averages lead nowhere from there.
        """
        coordinates, hyper = self.field.hyper_coordinates, near.center[self.field.hyper]
        own = coordinates.cholesky_from_hyper(coordinates.from_hyper(hyper), cholesky)
        covariance = own @ own.T
        self.laplace.climb.curvature = np.linalg.inv(covariance)
        sd = np.sqrt(np.diagonal(covariance))
        known, there = near.expansion, self.rows.expand(near.center)
        start = with_mean_correction(there, known.mean_correction)
        if known.dense_shift is not None:
            start = _with_dense_shift(start, known.dense_shift)
        present = self._turns(self.laplace.proper(start), sd, concave=False)
        v = [coordinates.from_hyper(p.center[self.field.hyper]) for p in (present, near)]
        moved = np.abs(v[0] - v[1])
        if np.any(moved > STILL * sd):
            cholesky = self.laplace.covariance_cholesky(present)
        corrected, away = self.mean.with_higher_orders(self._at_averages(present))
        if not away < TOO_FAR:
            raise np.linalg.LinAlgError("The mean of the effects is far off.")
        return corrected, cholesky

    def with_levels_averaged(self, surrogate: Surrogate) -> Found:
        """Expand about where the dense part is most probable, the levels averaged over, and h.

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
            about = self._at_averages(by_expectation(self.field, self.rows.expand, point))
            point = about.center.copy()
            hyper = self.laplace.climb_hyper(about, is_last=True)
            here = point[self.field.hyper]
            if self.field.hyper_coordinates.distance(hyper, here) < CLOSE:
                break
        return about, covariance_cholesky(about, point[self.field.hyper])

    def _averaged(self, mode: Surrogate) -> Found:
        """Climb h with averages of the rows; expand about the mean of the field given it.

        If there are none, return the mode.
        """
        with suppress(np.linalg.LinAlgError):  # no density there
            if self._is_narrow(mode):
                self._left = mode
                return self._away_from(mode)
            return self._about_averages(mode, concave=False)
        with suppress(np.linalg.LinAlgError):
            return self._about_concave_rows(mode.center)
        return mode, self.laplace.covariance_cholesky(mode)

    def _is_narrow(self, mode: Surrogate) -> bool:
        """Whether the log-density falls about a mode far more than its curvature there says.

        In a Gaussian field it falls by half a nat for each dimension on average. Skew rows, whose
        skewness grows without end as effects fit them, have modes about which it falls by tens.
        """
        given = mode.conditional(mode.center[self.field.hyper])
        highest = log_density(mode) - given.log_determinant + log_slope(mode)
        size = self.field.latent.dense.size + self.field.latent.groups.size
        return self._bound(mode) < highest - (0.5 + NARROW) * size

    def _away_from(self, mode: Surrogate) -> Found:
        """Return what is best on average of a narrow mode and of what concave rows lead to.

        These begin at the start of the search, and at the mode.
        """
        best, highest = (mode, self.laplace.covariance_cholesky(mode)), self._bound(mode)
        for start in (self.first, mode.center):
            with suppress(np.linalg.LinAlgError):
                found = self._about_concave_rows(start)
                if (bound := self._bound(found[0])) > highest:
                    best, highest = found, bound
        return best

    def _bound(self, surrogate: Surrogate) -> float:
        """Return the lower bound of the log marginal that averages climb, up to a constant."""
        return self._average(surrogate, concave=False)[1]

    def _about_concave_rows(self, point: np.ndarray) -> Found:
        """Average over concave rows, and once they lead nowhere, over the rows as they are.

        Rows that are too steep leave too little of the field: scales of rows fit them too well.
        """
        start = self.rows.expand(point, concave=True)
        with suppress(np.linalg.LinAlgError):
            start = self._turns(start, self._widths(start), concave=True, while_rising=True)
            return self._about_averages(start, concave=False)
        return self._about_averages(start, concave=True)

    def _about_averages(self, surrogate: Surrogate, concave: bool) -> Found:
        present = self._turns(surrogate, self._widths(surrogate), concave)
        return self._at_averages(present), self.laplace.covariance_cholesky(present)

    def _widths(self, surrogate: Surrogate) -> np.ndarray:
        """Return those of the coordinates of h, by which these are climbed from now on."""
        climb = self.laplace.climb
        sd = widths_of_marginal(surrogate, surrogate.center[self.field.hyper], climb.widths)
        climb.correct(sd)
        return sd

    def _at_averages(self, present: Surrogate) -> Surrogate:
        """Expand where averages have their mode, with what they add to the slope.

        Raises
        ------
        LinAlgError
            If the field is not Gaussian there, though with the average curvature.
        """
        there = self.rows.expand(present.center)
        correction = present.expansion.slope - there.expansion.slope
        about = with_mean_correction(there, correction)
        with suppress(np.linalg.LinAlgError):
            about = self.laplace.proper(about)
            if about.factored_later(about.center[self.field.hyper]).is_proper:
                return about
        shift = present.expansion.curvature.dense - there.expansion.curvature.dense
        about = self.laplace.proper(_with_dense_shift(about, shift))
        about.conditional(about.center[self.field.hyper])  # or raises
        return about

    def _turns(
        self, surrogate: Surrogate, sd: np.ndarray, concave: bool, while_rising: bool = False
    ) -> Surrogate:
        """Average rows and climb in turns, until h, of known standard deviations, is still.

        Where the field is not Gaussian by averages of the rows as they are, a turn makes them
        concave; where averages fall, it is made shorter.
        If only while the bound is rising, it ends as soon as that falls by more than chance.

        Raises
        ------
        LinAlgError
            If the field is not Gaussian.
        """
        coordinates = self.field.hyper_coordinates
        present = surrogate
        passed = [coordinates.from_hyper(surrogate.center[self.field.hyper])]
        last, bound = surrogate, -np.inf
        for turn in range(1, (CONCAVE_TURNS if concave else AVERAGED_TURNS) + 1):
            start, (present, reached) = present, self._average(present, concave)
            if while_rising and reached < bound - FALL:
                return last
            if reached < bound - tolerated_error(present):
                present, reached = self._turned_back(last, start.center, bound, concave)
                if present is last:
                    return last
                start = last
            last, bound = present, max(bound, reached)
            try:
                hyper, given = self._climbed(present)
            except np.linalg.LinAlgError:
                if concave:
                    raise
                present, _ = self._average(start, concave=True)
                hyper, given = self._climbed(present)
            moved = distance_of_dense(given, present.center)
            present = _recentered(present, given.point)
            passed.append(coordinates.from_hyper(hyper))
            if moved < STILL and np.all(np.abs(passed[-1] - passed[-2]) < STILL * sd):
                break
            if turn % EACH == 0 and hyper.size:
                passed.append(_limit(*passed[-3:]))
                hyper = coordinates.to_hyper(passed[-1])
                present = _recentered(present, present.conditional(hyper).point)
        return present

    def _climbed(self, present: Surrogate) -> tuple[np.ndarray, Conditional]:
        """Climb h, and return it and the field given it.

        Raises
        ------
        LinAlgError
            If the field is not Gaussian.
        """
        hyper = self.laplace.climb_hyper(present, is_last=True)
        given = present.conditional(hyper)
        _ = given.factor  # or raises
        return hyper, given

    def _turned_back(
        self, last: Surrogate, point: np.ndarray, bound: float, concave: bool
    ) -> tuple[Surrogate, float]:
        """Go a shorter way from where averages were good to a point at which they are not.

        Also return the bound there; if no way is short enough, nothing changes.
        """
        for halving in range(1, HALVINGS + 1):
            share = 0.5**halving
            nearer = _recentered(last, (1.0 - share) * last.center + share * point)
            averaged, reached = self._average(nearer, concave)
            if reached > bound:
                return averaged, reached
        return last, bound

    def _average(self, surrogate: Surrogate, concave: bool) -> tuple[Surrogate, float]:
        """Return the surrogate whose slope and curvature of rows are averages over the field.

        Two opposite points suffice: what a group's own average lacks has either sign. They also
        give the lower bound of the log marginal that averages climb, up to a constant.
        """
        if self._known is not None and self._known[0] is surrogate and self._known[1] == concave:
            return self._known[2]
        both = [self.rows.expand(at, concave=concave) for at in opposite_points(surrogate, 1)]
        one, other = (each.expansion for each in both)
        if not np.isfinite(one.value + other.value):
            raise np.linalg.LinAlgError("The log-likelihood is not finite all over the field.")
        about = Surrogate(surrogate.tall, self.field, average(one, other), surrogate.center)
        given = surrogate.conditional(surrogate.center[self.field.hyper])
        prior = sum(self.field.derivatives.smooth_prior(each.center) for each in both)
        bound = (one.value + other.value + prior) / 2 - given.log_determinant
        bound += log_slope(surrogate)
        found = _recentered(about, surrogate.center), float(bound)
        self._known = surrogate, concave, found
        return found


def _is_worse(surrogate: Surrogate, mode: Surrogate) -> bool:
    """Whether averages have led to where the Laplace marginal says nobody is."""

    def marginal(about: Surrogate) -> float:
        given = about.conditional(about.center[about.field.hyper])
        return log_density(about) - given.log_determinant + log_slope(about)

    return not marginal(surrogate) > marginal(mode) - tolerated_error(mode)


def log_slope(surrogate: Surrogate) -> float:
    """Return that of the coordinates of h where a surrogate is centered."""
    coordinates = surrogate.field.hyper_coordinates
    return coordinates.log_slope(coordinates.from_hyper(surrogate.center[surrogate.field.hyper]))


def _recentered(surrogate: Surrogate, point: np.ndarray) -> Surrogate:
    """Return the same expansion about another point."""
    expansion = surrogate.expansion
    phi = surrogate.phi(point)
    slope = expansion.slope - surrogate.curvature_product(phi - expansion.at)
    moved = replace(expansion, at=phi, slope=slope)
    return Surrogate(surrogate.tall, surrogate.field, moved, point)


def _with_dense_shift(surrogate: Surrogate, shift: Matrix) -> Surrogate:
    """Return a surrogate whose proposals bend by the dense part by so much more.

    Where the field has its mean, scales of rows and what multiplies many effects may bend the
    log-likelihood upwards. On average over the field they do not.
    """
    if sparse.issparse(shift):
        return surrogate
    shifted = replace(surrogate.expansion, dense_shift=shift)
    return Surrogate(surrogate.tall, surrogate.field, shifted, surrogate.center, surrogate.cubics)


def _limit(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """Return where turns go of which each moves by a fixed share of the one before it (Aitken).

    Steps that were cut to the longest say nothing of that share.
    """
    before, after = second - first, third - second
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(np.nan_to_num(after / before), 0.0, MOST_LEFT)
    share[np.abs(after) >= LONGEST] = 0.0
    return np.asarray(third + after * share / (1.0 - share))
