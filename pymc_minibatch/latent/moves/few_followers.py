"""A few effects follow a hyperparameter, by the surrogate alone: many steps in one kernel.

A coefficient with a scale of its own keeps its place in the Gaussian that all else leaves it. The
surrogate is taken to second order here: what is known of higher orders is left to the decision that
follows. A step changes what rows read in some entries of φ only, so that its density costs the
prior and a few products; the graphs of the prior and of φ are called by their addresses.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from scipy import sparse

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import call_graph_for_number, call_graph_for_vector
from pymc_minibatch.latent.batched import factor_blocks, solve_blocks, solve_blocks_transposed
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["MOST_FOLLOWERS", "FewFollowers", "Followed", "FollowerSteps", "follow_steps"]

MOST_FOLLOWERS = 8
"""Effects that are a few: those of one coefficient, or of one level."""

MOST_NUMBERS = 4_000_000
"""Numbers that are kept of the curvature between entries of φ that followers change (60 MB)."""

POINTS, RADIUS = 2, 0.5
"""Points about the center at which it is looked which entries those are, and how far away."""


class Followers(NamedTuple):
    """Who follows each hyperparameter, and what the surrogate says of them.

    Attributes
    ----------
    hyper : ndarray of int64, shape (H,)
        Positions of the hyperparameters.
    effects, effect_starts : ndarray of int64
        Positions of the effects that follow each, one hyperparameter after another.
    entries, entry_starts : ndarray of int64
        The entries of φ that they change.
    row : ndarray of int64, shape (P,)
        The row of an entry in K between these entries; −1 if nobody follows there.
    row_starts, neighbours, curvature : ndarray
        K between them: where each row starts, the entries of φ in it, and its numbers.
    slope, slope_of_mean : ndarray, shape (P,)
        Of the log-likelihood at φ̂, for its value and for the mean of effects.
    addresses : ndarray of int64, shape (5,)
        Of φ, its derivative along a vector, the prior, its gradient, and its Hessian times a
        vector.
    """

    hyper: np.ndarray
    effects: np.ndarray
    effect_starts: np.ndarray
    entries: np.ndarray
    entry_starts: np.ndarray
    row: np.ndarray
    row_starts: np.ndarray
    neighbours: np.ndarray
    curvature: np.ndarray
    slope: np.ndarray
    slope_of_mean: np.ndarray
    addresses: np.ndarray


class FollowerSteps(NamedTuple):
    """Steps along hyperparameters, one after another.

    Attributes
    ----------
    axes : ndarray of int64, shape (T,)
        Along which.
    lengths : ndarray, shape (T,)
        By how much.
    bars : ndarray, shape (T,)
        A step is made if its log ratio is above.
    watched : int
        The step of which the points before and after are kept.
    """

    axes: np.ndarray
    lengths: np.ndarray
    bars: np.ndarray
    watched: int = 0


class Followed(NamedTuple):
    """What became of steps.

    Attributes
    ----------
    state : ChainState
        After all of them.
    log_ratios, log_jacobians : ndarray, shape (T,)
        Of each; the former may also be not a number, where a step is impossible.
    watched : ndarray, shape (2, D)
        The points before the watched step, and where it leads; not a number if nowhere.
    """

    state: ChainState
    log_ratios: np.ndarray
    log_jacobians: np.ndarray
    watched: np.ndarray


class FewFollowers:
    """How a few effects follow a hyperparameter under the surrogate.

    Parameters
    ----------
    surrogate
        The density.
    followers : sequence of ndarray of int64
        Positions of the effects that follow each hyperparameter.

    Attributes
    ----------
    are_few : ndarray of bool, shape (H,)
        The hyperparameters that these steps can move: few effects follow them, they and these are
        themselves coordinates of the field, and they do not change a scalar of all rows whose
        effect is no expansion.
    """

    def __init__(self, surrogate: Surrogate, followers: Sequence[np.ndarray]) -> None:
        self.surrogate, self.followers = surrogate, followers
        self._is_replaced = np.zeros(surrogate.center.size, dtype=np.bool_)
        self._is_replaced[surrogate.field.derivatives.coordinates.positions] = True
        entries = [self._entries(k) for k in range(len(followers))]
        every = np.unique(_joined([own for own in entries if own is not None])[0])
        curvature = self._curvature_among(every)
        if curvature is None:
            entries = [None for _ in entries]
        self.are_few = np.array([own is not None for own in entries], dtype=np.bool_)
        if curvature is not None and self.are_few.any():
            self._tables, self._kept_alive = self._made_tables(entries, every, curvature)

    def __reduce__(self) -> Any:
        """Make addresses anew in another process."""
        return FewFollowers, (self.surrogate, self.followers)

    def steps(self, state: ChainState, steps: FollowerSteps) -> Followed:
        """Make steps from a state."""
        surrogate, start = self.surrogate, state.predictors
        to_model = surrogate.field.derivatives.coordinates.to_model
        of_scalars = surrogate.expansion.shared(start.phi)[1]
        point, phi, curved = to_model(state.point).copy(), start.phi.copy(), start.curved.copy()
        log_ratios, log_jacobians = np.full((2, steps.axes.size), -np.inf)
        watched = np.full((2, point.size), np.nan)
        follow_steps(
            steps,
            self._tables,
            (point, phi, curved),
            (state.log_prior, of_scalars),
            (log_ratios, log_jacobians, watched),
        )
        after, *seen = (
            np.where(self._is_replaced, state.point, each) for each in (point, *watched)
        )
        return Followed(ChainState(surrogate, after), log_ratios, log_jacobians, np.array(seen))

    def moved(self, state: ChainState, axis: int, length: float) -> np.ndarray | None:
        """Return where one step leads; None if nowhere."""
        one = FollowerSteps(np.array([axis]), np.array([length]), np.array([np.inf]))
        point = self.steps(state, one).watched[1]
        return None if np.isnan(point).any() else point

    def _entries(self, axis: int) -> np.ndarray | None:
        """Return the entries of φ that a step may change; None if it is not one of these."""
        field, effects = self.surrogate.field, self.followers[axis]
        own = np.append(effects, field.hyper[axis])
        if effects.size > MOST_FOLLOWERS or self._is_replaced[own].any():
            return None
        rng, reads = np.random.default_rng(axis), np.zeros(self.surrogate.expansion.at.size)
        for _ in range(POINTS):
            point = self.surrogate.center + RADIUS * rng.standard_normal(self._is_replaced.size)
            for position in own:
                seed = np.zeros(point.size)
                seed[position] = 1.0
                reads += np.abs(field.derivatives.push(point, seed))
        found = np.flatnonzero(reads)
        is_common = self.surrogate.expansion.common is not None
        return None if is_common and np.isin(found, field.scalars).any() else found

    def _curvature_among(self, every: np.ndarray) -> sparse.csr_array | None:
        """Return K between entries of φ; None if it has too many numbers."""
        rows, curvature = self.surrogate.field.rows, self.surrogate.expansion.curvature
        is_one = np.zeros(self.surrogate.expansion.at.size, dtype=np.bool_)
        is_one[every] = True
        dense, groups = (np.flatnonzero(is_one[part]) for part in (rows.dense, rows.groups.ravel()))
        if dense.size * every.size > MOST_NUMBERS:
            return None
        n_groups, width, _ = curvature.blocks.shape
        blocks = sparse.bsr_array(
            (curvature.blocks, np.arange(n_groups), np.arange(n_groups + 1)),
            shape=(n_groups * width, n_groups * width),
        )
        cross = sparse.csr_array(curvature.cross[groups][:, dense])
        parts = [
            [sparse.csr_array(curvature.dense[dense][:, dense]), cross.T],
            [cross, blocks.tocsr()[groups][:, groups]],
        ]
        order = np.argsort(np.concatenate([rows.dense[dense], rows.groups.ravel()[groups]]))
        return sparse.csr_array(sparse.block_array(parts).tocsr()[order][:, order])

    def _made_tables(
        self, entries: Sequence[np.ndarray | None], every: np.ndarray, curvature: sparse.csr_array
    ) -> tuple[Followers, Any]:
        """Return what the kernel reads, and what has to stay alive meanwhile."""
        surrogate, expansion, none = self.surrogate, self.surrogate.expansion, np.empty(0, np.int64)
        followers = zip(self.followers, self.are_few, strict=True)
        effects, starts = _joined([own if few else none for own, few in followers])
        read, read_starts = _joined([none if own is None else own for own in entries])
        row = np.full(expansion.at.size, -1)
        row[every] = np.arange(every.size)
        addresses, kept_alive = surrogate.field.derivatives.addresses()
        return Followers(
            hyper=surrogate.field.hyper,
            effects=effects,
            effect_starts=starts,
            entries=read,
            entry_starts=read_starts,
            row=row,
            row_starts=curvature.indptr.astype(np.int64),
            neighbours=every[curvature.indices],
            curvature=curvature.data,
            slope=expansion.slope + expansion.smoothing_correction,
            slope_of_mean=expansion.slope + expansion.mean_correction,
            addresses=addresses,
        ), kept_alive


def _joined(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays one after another, and where each starts."""
    starts = np.cumsum([0, *map(len, parts)])
    return np.concatenate([np.empty(0, np.int64), *parts]), starts


@partial(jit_kept, nogil=True)
def follow_steps(
    steps: FollowerSteps,
    tables: Followers,
    place: tuple[np.ndarray, np.ndarray, np.ndarray],
    known: tuple[float, float],
    found: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Make steps one after another.

    Parameters
    ----------
    steps, tables
        Which steps, and who follows.
    place : (ndarray, ndarray, ndarray), shapes (D,), (P,) and (P,)
        The point in the coordinates of the model, φ and K (φ − φ̂), which is kept up where somebody
        follows; changed in place.
    known : (float, float)
        The log prior there, and by what scalars multiply the second order.
    found : (ndarray, ndarray, ndarray), shapes (T,), (T,) and (2, D)
        Written to: log ratios, log |∂z'/∂z|, and the points of the watched step.
    """
    (point, phi, curved), (log_prior, of_scalars) = place, known
    log_ratios, log_jacobians, watched = found
    (base, proposed), here = np.empty((2, point.size)), (phi, curved, np.zeros(phi.size))
    is_read, delta = np.zeros(phi.size, np.bool_), np.zeros(phi.size)
    for t in range(steps.axes.size):
        axis, length = steps.axes[t], steps.lengths[t]
        own = tables.effects[tables.effect_starts[axis] : tables.effect_starts[axis + 1]]
        read = tables.entries[tables.entry_starts[axis] : tables.entry_starts[axis + 1]]
        position = tables.hyper[axis]
        z = point[own]
        base[:] = point
        base[own] = 0.0
        mean, cholesky, is_proper = given_others(base, own, read, tables, here, of_scalars)
        base[position] += length
        mean_then, cholesky_then, is_proper_then = given_others(
            base, own, read, tables, here, of_scalars
        )
        if not (is_proper and is_proper_then):
            continue
        away, log_jacobian = effects_that_follow(z, mean, cholesky, cholesky_then)
        proposed[:] = base
        proposed[own] = mean_then + away
        phi_then = call_graph_for_vector(tables.addresses[0], (proposed,))[0]
        prior_then = call_graph_for_number(tables.addresses[2], (proposed,))[0][()]
        is_read[read] = True
        is_elsewhere = False
        for p in range(phi.size):
            is_elsewhere |= phi_then[p] != phi[p] and not is_read[p]
        is_read[read] = False
        for k in read:
            delta[k] = phi_then[k] - phi[k]
        change = 0.0
        for k in read:
            product = times_curvature(tables, k, delta)
            change += delta[k] * (tables.slope[k] - curved[k] - 0.5 * product)
        log_jacobians[t] = log_jacobian
        if not is_elsewhere:
            log_ratios[t] = prior_then - log_prior + of_scalars * change + log_jacobian
        if t == steps.watched:
            watched[0], watched[1] = point, proposed
        if steps.bars[t] < log_ratios[t]:
            for k in read:
                phi[k] = phi_then[k]
                row = tables.row[k]
                for n in range(tables.row_starts[row], tables.row_starts[row + 1]):
                    curved[tables.neighbours[n]] += delta[k] * tables.curvature[n]
            point[position] = proposed[position]
            point[own] = proposed[own]
            log_prior = prior_then
        delta[read] = 0.0


@register_jitable
def effects_that_follow(
    z: np.ndarray, mean: np.ndarray, cholesky: np.ndarray, cholesky_then: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return where effects are, from their mean, once another Gaussian has the same whitened ones.

    Parameters
    ----------
    z : ndarray, shape (q,)
        The effects.
    mean, cholesky : ndarray, shapes (q,) and (q, q)
        Of their Gaussian, the Cholesky factor that of the precision.
    cholesky_then : ndarray, shape (q, q)
        That of the other Gaussian.

    Returns
    -------
    (ndarray, float)
        Where they are, shape (q,), and log |∂z'/∂z|.
    """
    eta, log_jacobian = np.zeros(z.size), 0.0
    for i in range(z.size):
        for j in range(i, z.size):
            eta[i] += cholesky[j, i] * (z[j] - mean[j])
        log_jacobian += math.log(cholesky[i, i]) - math.log(cholesky_then[i, i])
    for i in range(z.size - 1, -1, -1):
        for j in range(i + 1, z.size):
            eta[i] -= cholesky_then[j, i] * eta[j]
        eta[i] /= cholesky_then[i, i]
    return eta, log_jacobian


@register_jitable
def times_curvature(tables: Followers, k: int, vector: np.ndarray) -> float:
    """Return one entry of K times a vector that is zero where nobody follows."""
    total, row = 0.0, tables.row[k]
    for n in range(tables.row_starts[row], tables.row_starts[row + 1]):
        total += tables.curvature[n] * vector[tables.neighbours[n]]
    return total


@register_jitable
def given_others(
    base: np.ndarray,
    own: np.ndarray,
    read: np.ndarray,
    tables: Followers,
    here: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_scalars: float,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return mean (q,) and Cholesky factor (q, q) of a few effects given all else.

    The prior is taken to second order about where they are zero, and so the Gaussian does not
    depend on where they are. The last result is whether it is one.

    Parameters
    ----------
    base
        A point with some h, and no such effects.
    own
        Their positions.
    read
        The entries of φ that they change.
    tables
        What the surrogate says.
    here : (ndarray, ndarray, ndarray), shapes (P,)
        φ and K (φ − φ̂) of a point with the same other effects, and zeros to calculate with.
    of_scalars
        By what scalars multiply the second order.
    """
    phi, curved, zeros = here
    width, seed = own.size, np.zeros(base.size)
    precision, pull = np.empty((1, width, width)), np.empty((1, width, 1))
    reads, slope = np.empty((width, read.size)), np.empty(read.size)
    at_base = call_graph_for_vector(tables.addresses[0], (base,))[0]
    for k in read:
        zeros[k] = at_base[k] - phi[k]
    for r in range(read.size):
        k = read[r]
        slope[r] = tables.slope_of_mean[k] - curved[k] - times_curvature(tables, k, zeros)
    gradient = call_graph_for_vector(tables.addresses[3], (base,))[0]
    for i in range(width):
        seed[own[i]] = 1.0
        reads[i] = call_graph_for_vector(tables.addresses[1], (base, seed))[0][read]
        of_prior = call_graph_for_vector(tables.addresses[4], (base, seed))[0]
        seed[own[i]] = 0.0
        precision[0, i] = -of_prior[own]
        pull[0, i, 0] = gradient[own[i]]
    for i in range(width):
        zeros[read] = reads[i]
        for r in range(read.size):
            product = times_curvature(tables, read[r], zeros)
            pull[0, i, 0] += of_scalars * reads[i, r] * slope[r]
            for j in range(width):
                precision[0, i, j] += of_scalars * product * reads[j, r]
    zeros[read] = 0.0
    cholesky = np.empty_like(precision)
    if not factor_blocks(precision, cholesky):
        return pull[0, :, 0], precision[0], False
    halfway = solve_blocks(cholesky, pull)[:, :, 0]
    return solve_blocks_transposed(cholesky, halfway)[0], cholesky[0], True
