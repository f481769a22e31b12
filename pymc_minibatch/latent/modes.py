"""Several modes of models with effects: searched, sampled in turn, and jumped between.

θ² has a mode on each side of zero, an amplitude changes its sign with the phase, and a prior may be
a mixture. If the log-density bends upwards at draws of the prior, or a hyperparameter may be of
either sign, the marginal mode is searched again on few rows: from the mode with the sign of single
variables changed, and from draws of the prior. What these find is then found on all rows.

Each mode k has an expansion, and with it moves of its own. A chain is at a point and has a label k,
which says whose moves it makes: all of them leave the posterior as it is, whatever the point. In
the coordinates (z, η) of an expansion a point is standard normal about its mode, and a jump takes
these from one expansion to another,

    (h, η) → (h_k' + L_k' L_k⁻¹ (h − h_k), η),

and the label with them. All rows decide on it. The coordinates stay, so that a limit on how far
from a mode a jump starts holds for the way back as well.

Moves may carry a chain to another mode than that of its label: all labels are equally probable,
whatever the point. From there it would not jump, being far from its own mode. So a chain that is
far from the mode j of its label tries a jump from another mode, to that of its label, and takes the
label of the mode that it leaves. It is far from that one afterwards, and the way back is the same.

References
----------
Tjelmeland and Hegstad (2001), Mode jumping proposals in MCMC. Pompe, Holmes and Łatuszyński (2020),
A framework for adaptive MCMC targeting multimodal distributions, for labels.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pymc as pm

from pymc_minibatch.latent.expander import RowBudget
from pymc_minibatch.latent.laplace import KnownModeError
from pymc_minibatch.latent.locate import LatentModel
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sampler import LatentSampler, LatentState
from pymc_minibatch.latent.search import FewRows, LatentReference, search
from pymc_minibatch.latent.weight_check import Contradiction
from pymc_minibatch.tall import TallModel

__all__ = ["ModeSampler", "find_modes"]

PRIOR_STARTS, MOST_FLIPS = 8, 12
"""Searches from draws of the prior, and from the mode with one variable's sign changed."""

FEW_ROWS = 2000
"""Rows on which other modes are searched."""

MOST_MODES = 6

SMALL = 8
"""Variables with more elements are taken for effects, which follow the others."""

APART = 3.0
"""Two modes differ by so many standard deviations of one of them at least."""

LEAST_DENSITY = 8.0
"""A mode whose share is smaller than that of the largest by so many nats is left out."""

NEAR = 10.0
"""A jump starts where the squared distance from a mode is usual, or so many of its sds more."""

PASSES_IN_VAIN, SEARCHES_IN_VAIN = 20.0, 0.25
"""Searches for other modes that find none read all rows so often at most, or a share of what the
first search read if that is more, but no more than this. Where the log-density is not concave they
can climb for long: with 1,167 parameters and 372,864 rows, five times as long as all else of set-up
took."""

JUMP_ROWS = 100_000
"""With so many rows half of the draws try a jump, which reads all of them; with more, fewer."""


def find_modes(tall: TallModel, latent_model: LatentModel) -> list[LatentReference]:
    """Return the modes of a model with effects, the one that is known first.

    Parameters
    ----------
    tall
        The model.
    latent_model
        What is known of it.
    """
    rows, factors, known, parabolic = latent_model
    field = known.surrogate.field
    if rows.kinked:
        return [known]
    exact = known.surrogate.expansion if known.is_exact else None
    few = FewRows(tall, field, rows, factors, known.temperature, FEW_ROWS, exact)
    starts = _starts(tall, known)
    if not _may_have_several(tall, known, few, starts):
        return [known]
    found, to_model = [known], field.derivatives.coordinates.to_model

    def is_known(point: np.ndarray) -> bool:
        return any(_is_same(mode, point) for mode in found)

    of_first = min(known.passes, max(PASSES_IN_VAIN, known.passes * SEARCHES_IN_VAIN)) * tall.n_rows
    budget = RowBudget(of_first)
    for near in _candidates(known, few, starts):
        if len(found) == MOST_MODES:
            break
        with suppress(NoFieldError, KnownModeError, np.linalg.LinAlgError, FloatingPointError):
            if is_known(near):
                continue
            other = search(
                tall,
                field,
                rows,
                factors,
                known.temperature,
                start=to_model(near),
                parabolic=parabolic,
                is_known=is_known,
                budget=budget,
            )
            if not is_known(other.surrogate.center):
                found.append(other)
                budget.left = of_first
    if len(found) == 1:
        return found
    shares = np.array([_log_share(mode) for mode in found])
    largest = shares[np.isfinite(shares)].max(initial=-np.inf)
    if not math.isfinite(largest):
        return [known]
    return [m for m, share in zip(found, shares, strict=True) if share > largest - LEAST_DENSITY]


def _candidates(
    known: LatentReference, few: FewRows, starts: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield points that other modes may be about.

    These are starts that all rows find nearly as probable as the mode, such as its mirror image,
    and of the other starts the modes of few rows that they lead to. From the known mode, few rows
    lead to one of theirs as well; what leads there too is no other.
    """
    center = known.surrogate.center
    least = known.log_density(center) - LEAST_DENSITY
    of_few: list[LatentReference] = []
    for start in (center, *starts):
        with suppress(NoFieldError, np.linalg.LinAlgError, FloatingPointError):
            if start is not center and known.log_density(start) > least:
                yield start
                continue
            mode = few.mode(start)
            point = mode.surrogate.center
            if any(_is_same(other, point) for other in of_few):
                continue
            of_few.append(mode)
            if start is not center:
                yield point


def _log_share(mode: LatentReference) -> float:
    """Return the log of a mode's share of the posterior, to second order, up to a constant."""
    given = mode.surrogate.factored_later(mode.hyper)
    if not given.is_proper:
        return -math.inf
    value = mode.log_density(mode.surrogate.center)
    return value - given.log_determinant + mode.log_volume


def _may_have_several(
    tall: TallModel, known: LatentReference, few: FewRows, starts: Sequence[np.ndarray]
) -> bool:
    """Whether the log-density may rise to other modes.

    Given h the field has one mode where it is concave everywhere. Logs of scales and the like have
    one as a rule; of a hyperparameter on the whole line nothing is known.
    """
    field, names = known.surrogate.field, tall.layout.slices
    for name in _untransformed(tall):
        if np.isin(field.hyper, np.arange(names[name].start, names[name].stop)).any():
            return True
    points = [start.copy() for start in starts]
    for point in points:
        point[field.hyper] = known.hyper
    return not all(few.bends_down(point) for point in points)


def _untransformed(tall: TallModel) -> list[str]:
    """Name the value variables that are variables of the model as they are."""
    own = {rv.name for rv in tall.model.free_RVs}
    return [name for name in tall.layout.names if name in own]


def _starts(tall: TallModel, known: LatentReference) -> list[np.ndarray]:
    """List points at which searches for other modes start, in the coordinates of the field.

    Levels and scales are those of the mode, since searches find these by themselves.
    """
    coordinates = known.surrogate.field.derivatives.coordinates
    mode, slices = coordinates.to_model(known.surrogate.center), tall.layout.slices
    plain = [name for name in _untransformed(tall) if slices[name].stop - slices[name].start > 0]
    small = [name for name in plain if slices[name].stop - slices[name].start <= SMALL]
    starts = []
    for name in plain[:MOST_FLIPS]:
        flipped = mode.copy()
        flipped[slices[name]] *= -1.0
        starts.append(flipped)
    for draw in _prior_draws(tall, small):
        start = mode.copy()
        for name in small:
            start[slices[name]] = draw[slices[name]]
        if np.isfinite(start).all():
            starts.append(start)
    return [coordinates.from_model(start) for start in starts]


def _prior_draws(tall: TallModel, names: Sequence[str]) -> np.ndarray:
    """Draw some variables of flat points from the prior; of one without draws, about the start."""
    variables = [rv for rv in tall.model.free_RVs if rv.name in names]
    if not variables:
        return np.empty((0, tall.start.size))
    points = np.tile(tall.start, (PRIOR_STARTS, 1))
    try:
        draws = pm.draw(variables, PRIOR_STARTS, random_seed=9, mode="FAST_COMPILE")
    except (ValueError, TypeError, NotImplementedError):
        noise = np.random.default_rng(9).standard_normal(points.shape)
        return np.asarray(points + 2.0 * noise)
    for rv, values in zip(variables, draws, strict=True):
        points[:, tall.layout.slices[rv.name]] = np.reshape(values, (PRIOR_STARTS, -1))
    return points


def _is_same(mode: LatentReference, point: np.ndarray) -> bool:
    """Whether a point is about a mode: by h and the part of the field that many rows share.

    Means may be some standard deviations from where rows are expanded; so either is near.
    """
    surrogate, field = mode.surrogate, mode.surrogate.field
    away = np.linalg.solve(mode.hyper_cholesky, point[field.hyper] - mode.hyper)
    if np.abs(away).max(initial=0.0) > APART:
        return False
    centered = point.copy()
    centered[field.hyper] = mode.hyper
    given = surrogate.factored_later(mode.hyper)
    if not given.is_proper:
        return False
    from_mean = given.frame.whiten(centered)
    from_center = given.factor.whiten(*field.latent.split(centered - surrogate.center))
    return any(_is_near(*away) for away in (from_center, from_mean))


def _is_near(dense: np.ndarray, groups: np.ndarray) -> bool:
    """Whether coordinates of the field are those of the same mode."""
    if np.abs(dense).max(initial=0.0) > APART:
        return False
    return not groups.size or float(np.mean(groups**2)) < APART**2


class ModeSampler(LatentSampler):
    """A sampler about each mode, and jumps between them.

    Parameters
    ----------
    samplers
        One for each mode, of one class.
    """

    def __init__(self, samplers: Sequence[LatentSampler]) -> None:
        self.samplers = list(samplers)
        first = self.samplers[0]
        self.tall, self.reference, self.tails = first.tall, first.reference, first.tails
        self.work, self.collapsed = first.work, first.collapsed
        self.has_determinant = first.has_determinant
        self.evaluations, self.by_batches = first.evaluations, first.by_batches
        self.share = 0.5 * min(1.0, JUMP_ROWS / self.tall.n_rows)

    @property
    def decisions(self) -> Any:
        """What decides on moves."""
        return self.samplers[0].decisions

    def initial_state(self) -> Any:
        """Return the state before tuning: a label, and that about each mode."""
        states = [sampler.initial_state() for sampler in self.samplers]
        return (np.full(1, -1, dtype=np.int64), *states)

    def forget(self) -> None:
        """Forget what moves about all modes keep in memory."""
        for sampler in self.samplers:
            sampler.forget()

    def state_of(self, state: Any, k: int) -> LatentState:
        """Return the state of the moves about one mode."""
        about: LatentState = state[1 + k]
        return about

    def draw(
        self, rng: np.random.Generator, point: np.ndarray, n_scans: int, tuning: bool, state: Any
    ) -> MoveCounts:
        """Move a point by rounds about the mode of its label; now and then try a jump."""
        label = state[0]
        if label[0] < 0:
            label[0] = self._nearest(point)
        k = int(label[0])
        counts = self.samplers[k].draw(rng, point, n_scans, tuning, self.state_of(state, k))
        if counts.impossible_row < 0 and rng.random() < self.share:
            other = int(rng.integers(len(self.samplers) - 1))
            other += other >= k
            if self._jumped(rng, point, k, other, counts):
                label[0] = other
        return counts

    def _jumped(
        self, rng: np.random.Generator, point: np.ndarray, k: int, other: int, counts: MoveCounts
    ) -> bool:
        """Try to take a point from the mode of its label k to another one.

        A point that is far from the mode of its label, and about the other one, is taken to the
        mode of its label.
        """
        here = self.coordinates.from_model(point)
        own, away = (self.samplers[i].reference for i in (k, other))
        is_about_own = _is_about(own, here)
        leaves, enters = (own, away) if is_about_own else (away, own)
        parts = leaves.whiten(here)
        if parts is None or not _is_usual(parts):
            return False
        there, then = enters.color(parts)
        if there is None:
            return False
        if not is_about_own and _is_about(away, there):  # from where it would jump another way
            return False
        given = leaves.surrogate.factored_later(here[self.field.hyper])
        log_ratio = given.log_determinant - then + enters.log_volume - leaves.log_volume
        log_ratio += self._log_density(there) - self._log_density(here)
        counts.n_evaluated += 2 * self.tall.n_rows // max(self.evaluations[0], 1)
        if not -rng.standard_exponential() < log_ratio:
            return False
        point[:] = self.coordinates.to_model(there)
        return True

    def _nearest(self, point: np.ndarray) -> int:
        """Return the mode that a point is nearest to."""
        inside = self.coordinates.from_model(point)
        distances = []
        for sampler in self.samplers:
            parts = sampler.reference.whiten(inside)
            far = parts is None or not np.isfinite(_squares(parts))
            distances.append(math.inf if far else _squares(parts or ()))
        return int(np.argmin(distances))

    def near_mode(self, rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
        """Return a random point about one of the modes, wider than the posterior.

        A start that somebody asked for is kept where it is about one of them.
        """
        if not np.array_equal(point, self.tall.start):
            inside = self.coordinates.from_model(point)
            if any(sampler._is_near(inside) for sampler in self.samplers):
                return point
        chosen = self.samplers[int(rng.integers(len(self.samplers)))]
        mode = chosen.reference.surrogate.center
        start = chosen._start_about(rng, -math.inf)
        return self.coordinates.to_model(mode if start is None else start)

    def compile(self) -> None:
        """Compile all moves."""
        for sampler in self.samplers:
            sampler.compile()

    def contradicted(self, point: np.ndarray) -> Contradiction | None:
        """Return a level that is where its own rows object, which only batches can overlook."""
        return self.samplers[self._nearest(point)].contradicted(point)

    def scale(self, state: Any) -> float:
        """Return the sine of the angle of the moves of the dense part, for the sample stats."""
        k = max(int(state[0][0]), 0)
        return self.samplers[k].scale(self.state_of(state, k))

    def end_tuning(self, state: Any) -> None:
        """Take the settings that did best."""
        for k, sampler in enumerate(self.samplers):
            sampler.end_tuning(self.state_of(state, k))

    def describe(self) -> str:
        """Say in words what moves how."""
        return f"{len(self.samplers)} modes, with jumps between them; {self.samplers[0].describe()}"

    def differing(self) -> list[str]:
        """Name the variables in which the modes differ."""
        to_model, names = self.coordinates.to_model, self.tall.layout.slices
        points = np.array([to_model(s.reference.surrogate.center) for s in self.samplers])
        spread = np.ptp(points, axis=0)
        scale = np.maximum(np.abs(points).max(axis=0), np.finfo(float).tiny)
        return [n for n, where in names.items() if (spread[where] > 0.5 * scale[where]).any()]


def _squares(parts: tuple[np.ndarray, ...]) -> float:
    return sum(float(np.sum(part**2)) for part in parts)


def _is_about(mode: LatentReference, point: np.ndarray) -> bool:
    """Whether a point is as far from a mode as points about it are."""
    parts = mode.whiten(point)
    return parts is not None and _is_usual(parts)


def _is_usual(parts: tuple[np.ndarray, ...]) -> bool:
    """Whether coordinates are as far from zero as those of points about a mode are."""
    size = sum(part.size for part in parts)
    return _squares(parts) < size + NEAR * math.sqrt(2.0 * size)
