"""Whether levels have mass far from where they were found.

Near by it is looked for along the axes of a level whose rows vary. Farther away, up to where other
levels are and on the other side of the prior's mean, modes are climbed to by a few rows of each
level; those that are as high as the center are climbed once more by all rows, or as many as there
is time for. So is the place to which few rows of a large level lead from its center, which they
cannot tell from it.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import product

import numpy as np

from pymc_minibatch.latent.batched import multiply_transposed, solve_blocks_transposed
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.level_steps import LevelSteps, directions, some_axes
from pymc_minibatch.latent.own_rows import Elsewhere, LevelRows, OwnRows

__all__ = ["ELSEWHERE", "look_elsewhere"]

NEAREST = 3.5
"""Standard deviations between two modes, at least."""

DISTANCES = 3.5, 4.5, 5.5, 6.5, 8.0, 10.0, 12.5, 16.0, 20.0
"""Standard deviations from the center of a level at which another mode is looked for near by."""

VARIES = 0.5
"""Nats by which the remainder of a row varies over the posterior of a level that may have mass
near by."""

ELSEWHERE = -5.0
"""Log-density far out, less that at the center, above which a level has mass there: a Gaussian has
−6 at its nearest look."""

FEW_ROWS, SOME_ROWS, SOME_LEVELS = 5, 100, 200
"""Rows of a level by which modes are looked for at first, at least and at most; and levels of which
this is done, unless another mode was found for one of them."""

MOST_LEVELS = 10_000
"""That are looked at together, for the sake of memory."""

MOST_EVALUATIONS, MOST_AGAIN = 4e6, 1.6e7
"""Of rows, in a look by few of each level, and in one by more: a fraction of a second, and one."""

FEW_OF_MANY = 3.0
"""Standard deviations by few rows, relative to those by all, from which on another mode may be
hidden among these: a climb by few rows says where else it may be."""

TO_OTHERS, STARTS, CLIMBS, MOST_MODES = 4, 12, 50, 3
"""Climbs that begin where other levels are, those that do elsewhere, steps of each, and modes that
are kept of a level beside its center's."""

LONGER, SHORTER = 2.0, 2.0**-0.25
"""By what the next step is longer after one that leads up, and shorter after another: the rule of
one fifth of evolution strategies (Rechenberg 1973). The first is one standard deviation long, too
short to leave a mode for one that is apart."""

MOST_STARTS = 2
"""From which a level climbs again, by more rows."""

NEARLY = -10.0
"""Log-density of a mode, less that of the center's, above which it is one; by a few rows, above
which all are asked."""


def look_elsewhere(
    rows: LevelRows, hyper: np.ndarray, ranges: Sequence[np.ndarray]
) -> list[Elsewhere]:
    """Look at the levels of each factor far from their centers.

    Parameters
    ----------
    rows
        Of all levels.
    hyper
        The hyperparameters.
    ranges : sequence of ndarray, shape (N,)
        By how many nats the remainder of each row varies, for each factor.
    """
    surrogate = rows.surrogate
    if not ranges:
        return []
    given = surrogate.conditional(hyper)
    found, before = list[Elsewhere](), surrogate.read(given.frame.origin)
    for factor, of_rows in enumerate(ranges):
        levels = surrogate.field.levels[factor]
        jumps = np.zeros((MOST_MODES, *levels.latent.shape))
        found.append(Elsewhere(np.full(len(levels.latent), -math.inf), jumps))
        point = given.frame.origin.copy()
        with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):  # not positive definite
            point[levels.latent], _ = surrogate.given_others(given, point, before, levels)
            _look_near(rows, factor, (point, given), found[-1], of_rows)
            _look_far(rows, factor, point, given, found[-1])
    return found


def _look_near(
    rows: LevelRows,
    factor: int,
    about: tuple[np.ndarray, Conditional],
    found: Elsewhere,
    ranges: np.ndarray,
) -> None:
    """Look along the axes of the levels of which a row varies."""
    numbers, starts = rows.tables[factor]
    varying = np.concatenate([[0], np.cumsum(ranges[numbers] > VARIES)])[starts]
    chosen = np.flatnonzero(np.diff(varying))
    if chosen.size:
        own = rows.of_chosen(factor, chosen)
        found.highest[chosen], found.jumps[0, chosen] = _highest(own, *about)


def _highest(own: OwnRows, point: np.ndarray, given: Conditional) -> tuple[np.ndarray, np.ndarray]:
    """Return the highest log-density of each level near a point, less that there, and the step."""
    here, cholesky = own.about(point), own.factor(given)
    highest, best = np.full(own.chosen.size, -math.inf), np.zeros(own.latent.shape)
    for slot, distance, sign in product(range(own.latent.shape[1]), DISTANCES, (-1.0, 1.0)):
        whitened = np.zeros(own.latent.shape)
        whitened[:, slot] = sign * distance
        steps = solve_blocks_transposed(cholesky, whitened)
        change = here.change(steps)
        is_higher = change > highest
        highest[is_higher], best[is_higher] = change[is_higher], steps[is_higher]
    return highest, best


def _look_far(
    rows: LevelRows, factor: int, point: np.ndarray, given: Conditional, found: Elsewhere
) -> None:
    """Find other modes of each level: of some levels first, and of all if one has another."""
    rng, counted = np.random.default_rng(0), rows.counted(factor)
    latent = rows.surrogate.field.levels[factor].latent
    centers, is_angle = point[latent], rows.surrogate.tall.is_angle[latent]
    if len(centers) < 2:
        return
    n_starts = 1 + TO_OTHERS + STARTS + 1 + centers.shape[1]  # the first from the center
    near = np.where((found.highest > ELSEWHERE)[:, None], found.jumps[0], 0.0)
    found.jumps[0] = 0.0
    order = rng.permutation(len(near))
    first, others = order[:SOME_LEVELS], order[SOME_LEVELS:]
    for some in (first, *np.array_split(others, math.ceil(others.size / MOST_LEVELS) or 1)):
        chosen = np.sort(some)
        most = MOST_EVALUATIONS / (n_starts * CLIMBS * max(1, chosen.size))
        few = int(np.clip(most, FEW_ROWS, SOME_ROWS))
        wider = np.sqrt(counted[chosen] / few).clip(1.0)[:, None]
        by_few = _Climbs(rows.of_chosen(factor, chosen, few), point, given, wider)
        starts = np.concatenate(
            [_from_others(rng, centers, is_angle, chosen), _mirrored(by_few.own, point)]
        )
        _, far, mode = by_few.other_modes(rng, starts)
        by_few_only = np.where(wider > FEW_OF_MANY, mode - centers[chosen], 0.0)
        starts = _first_starts(np.concatenate([by_few_only[None], near[None, chosen], far]))
        has_start = starts.any(axis=(0, 2))
        if some is first and not has_start.any():
            return
        n_climbs = (1 + len(starts)) * CLIMBS
        most = max(SOME_ROWS, int(MOST_AGAIN / n_climbs / has_start.sum().clip(1)))
        n_rows = np.minimum(counted[chosen], most)
        has_start &= np.cumsum(np.where(has_start, n_rows, 0)) * n_climbs <= MOST_AGAIN
        chosen, starts = chosen[has_start], starts[:, has_start]
        wider = np.sqrt(counted[chosen] / most).clip(1.0)[:, None]
        by_more = _Climbs(rows.of_chosen(factor, chosen, most), point, given, wider)
        highest, jumps, _ = by_more.other_modes(rng, starts)
        found.jumps[:, chosen] = jumps
        found.highest[chosen] = np.fmax(found.highest[chosen], highest)
        if some is first and not found.jumps.any():
            return


def _first_starts(starts: np.ndarray) -> np.ndarray:
    """Return the first steps of each level that lead anywhere, shape (M, S, q)."""
    order = np.argsort(~starts.any(axis=2), axis=0, kind="stable")[:MOST_STARTS]
    return np.take_along_axis(starts, order[:, :, None], axis=0)


def _from_others(
    rng: np.random.Generator, centers: np.ndarray, is_angle: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Return steps to other levels' centers, differences of two of them, and longer ones.

    Some are along one axis. An angle can be anywhere, and of all its copies the nearest counts:
    within half a turn.
    """
    shape, differences = (chosen.size, centers.shape[1]), []
    for _ in range(TO_OTHERS):
        differences.append(centers[rng.integers(len(centers), size=chosen.size)] - centers[chosen])
    for k in range(STARTS):
        one, other = rng.integers(len(centers), size=(2, chosen.size))
        axis = rng.integers(shape[1], size=(chosen.size, 1))
        is_along = (np.arange(shape[1]) == axis) | (k % 2 == 0)
        difference = 2.0 ** (k // 2 % 3) * (centers[one] - centers[other])
        if is_angle.any():
            turned = rng.uniform(-math.pi, math.pi, shape)
            difference = np.where(is_angle[chosen], turned, difference)
        differences.append(is_along * difference)
    return np.array(differences)


def _mirrored(own: OwnRows, point: np.ndarray) -> np.ndarray:
    """Return steps to the other side of the mean of a Gaussian prior, shape (K, S, q).

    The prior is as high there. The first step is along all axes, each of the others along one. Of
    other priors there are none.
    """
    if own.prior is not None:
        return np.zeros((0, *own.latent.shape))
    here = own.about(point)
    inverse = np.linalg.pinv(here.maps.curvature, hermitian=True)
    step = -2.0 * np.einsum("sij,sj->si", inverse, here.state.slope)
    width = step.shape[1]
    return np.array([step, *(np.eye(width)[:, None] * step if width > 1 else ())])


class _Climbs:
    """Levels take the steps that lead up.

    Parameters
    ----------
    own
        Their densities.
    point, given
        Where they begin, and the curvature there.
    unit : ndarray, shape (S, 1), or float
        A standard deviation by the rows that are read, in one by all rows.
    """

    def __init__(
        self, own: OwnRows, point: np.ndarray, given: Conditional, unit: np.ndarray | float = 1.0
    ) -> None:
        self.own, self.point, self.unit = own, point, unit
        self.cholesky = own.factor(given)

    def other_modes(
        self, rng: np.random.Generator, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Climb from each start; return the highest places apart from the center's mode.

        Parameters
        ----------
        rng
            Random numbers.
        starts : ndarray, shape (K, S, q)
            Steps from the center.

        Returns
        -------
        highest : ndarray, shape (S,)
            The log-density there, less that of the center's mode; −∞ if there is no such place.
        jumps : ndarray, shape (M, S, q)
            From this mode to there; zero if there are fewer.
        mode : ndarray, shape (S, q)
            The center's mode.
        """
        mode, at_mode = self._climb(rng, np.zeros(self.own.latent.shape))
        climbed = [self._climb(rng, start) for start in starts]
        ends = np.array([end - mode for end, _ in climbed])
        values = np.array([value - at_mode for _, value in climbed])
        jumps, every = np.zeros((MOST_MODES, *mode.shape)), np.arange(len(mode))
        is_open = (values > NEARLY) & self._are_apart(ends)
        highest = np.max(values, axis=0, where=is_open, initial=-math.inf)
        for jump in jumps:
            best = np.argmax(np.where(is_open, values, -math.inf), axis=0)
            is_mode = is_open[best, every]
            jump[is_mode] = ends[best, every][is_mode]
            is_open &= self._are_apart(ends - jump)
        return highest, jumps, mode

    def _are_apart(self, steps: np.ndarray) -> np.ndarray:
        """Say which steps lead away from a mode, shape (K, S)."""
        whitened = [multiply_transposed(self.cholesky, step) / self.unit for step in steps]
        return np.linalg.norm(whitened, axis=2) > NEAREST

    def _climb(self, rng: np.random.Generator, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Climb from a step; return where levels are then, and the change of the log-density."""
        own, here = self.own, self.own.about(self.point)
        [first] = here.step(LevelSteps.symmetric(start[None]), np.full((1, len(start)), -np.inf))
        gained = np.where(np.isfinite(first), first, 0.0)
        lengths: np.ndarray = np.ones((len(start), 1)) * self.unit
        for _ in range(CLIMBS):
            along = some_axes(rng, (1, *start.shape))
            step = LevelSteps.symmetric(lengths * directions(rng, along, self.cholesky))
            [change] = here.step(step, np.zeros((1, len(start))))
            leads_up = change > 0.0
            gained[leads_up] += change[leads_up]
            lengths *= np.where(leads_up, LONGER, SHORTER)[:, None]
        return here.point[own.latent], gained
