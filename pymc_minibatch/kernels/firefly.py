"""Firefly Monte Carlo: which rows are bright, and the loop of its iterations.

Given θ, row n is bright with odds L̃ₙ = Lₙ(θ)/Bₙ(θ) − 1, independently of the others. An iteration
updates some of these choices, then θ given the bright rows, which are the only ones it reads.

Implicit updates propose to turn every bright row dark, accepted with probability min(1, q/L̃ₙ), and
every dark row bright with probability q, accepted with probability min(1, L̃ₙ/q). The dark rows that
get a proposal are found by jumps of geometric length, so that the rest cost nothing. Explicit
updates pick rows at random and draw their choice anew.

References
----------
Maclaurin and Adams (2014), Firefly Monte Carlo: exact MCMC with subsets of data, algorithms 1
and 2.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from pymc_minibatch.jit.entry import answer_signals
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.jit.pointers import call_array, call_scalar
from pymc_minibatch.kernels.rows import CHUNK_ROWS, make_take
from pymc_minibatch.reference.density import Density
from pymc_minibatch.updates.update import (
    PINNED,
    BrightnessState,
    Context,
    State,
    Whitening,
    log_odds,
)

__all__ = [
    "ALL",
    "EXPLICIT",
    "IMPLICIT",
    "Tuning",
    "Work",
    "first_q",
    "make_iterations",
    "make_look",
    "make_z_update",
    "restore",
    "tune_q",
]

DARK, BRIGHT, LEAVING = 0, 1, 2
"""States of a row; one that is leaving is dark, and still in the list of bright rows."""

IMPLICIT, EXPLICIT, ALL = 0, 1, 2
"""Updates of z; the last draws all of it anew, which starts a chain."""

GAIN_EXPONENT = 0.6

LOG_SHORTEST = np.log(1e-6)
"""Of a move of θ, in standard deviations of the approximation: tuning does not go below."""

FORGET = 0.05
"""Weight of the latest iteration in the running costs on which q is tuned."""


class Tuning(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    log_step : ndarray, shape (1,)
        Log of the length of the moves of θ.
    n_corrections : ndarray, shape (1,)
        How often it was corrected.
    q : ndarray, shape (1,)
        The probability of a proposal to turn a dark row bright.
    cost : ndarray, shape (1,)
        Running mean of the rows that the updates of θ evaluate in an iteration.
    """

    log_step: np.ndarray
    n_corrections: np.ndarray
    q: np.ndarray
    cost: np.ndarray


class Work(NamedTuple):
    """How the iterations run.

    Attributes
    ----------
    n_iterations : int
        Iterations to make.
    n_updates : int
        Updates of θ in each.
    z_update : int
        0 implicit, 1 explicit.
    n_explicit : int
        Rows picked by an explicit update.
    z_cost : float
        Rows that an implicit update evaluates for each one that the updates of θ evaluate, towards
        which q is tuned; 0 where q is fixed.
    redraw_z : bool
        Whether to draw all of z first, in a pass over all rows.
    tuning : bool
        Whether to tune.
    """

    n_iterations: int
    n_updates: int
    z_update: int
    n_explicit: int
    z_cost: float
    redraw_z: bool
    tuning: bool


def make_iterations(
    ndims: Sequence[int],
    build_update: Callable[..., Callable[..., tuple[bool, float]]],
    uses_gradient: bool,
    target_signal: float,
    longest_step: float,
) -> Callable[..., tuple[float, int]]:
    """Assemble the loop from jitted parts.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    build_update
        Takes the function that evaluates the density, returns the update of θ.
    uses_gradient, target_signal, longest_step
        See :class:`pymc_minibatch.updates.update.Update`.

    Returns
    -------
    iterations
        ``(rng, point, density, flies, whitening, tuning, work, tolerance, counts) -> (accept,
        n_bright)`` moves ``point[whitening.active]`` in place; sums of acceptance and bright rows.
        `counts` gathers the likelihoods and gradients evaluated, and a row whose bound is above its
        likelihood, or -1, with its gap, and how often the base was evaluated.
    """
    take, read_bright = make_take(ndims), make_bright_reader(ndims)

    @jit_part
    def evaluate(at: State, context: Context) -> float:
        """Fill in log-density given z and gradient; the bright rows' log odds are the proposed."""
        density, brightness, counts = context.density, context.brightness, context.counts
        at.log_density[0] = -np.inf
        total = call_scalar(density.base, (at.point, density.constants, at.gradient))
        counts[4] += 1
        if not np.isfinite(total):
            return -np.inf
        first_batch, tolerance = context.batch, context.tolerance
        total += read_bright(
            at.point, at.gradient, density, brightness, first_batch, tolerance, counts
        )
        if uses_gradient:
            counts[1] += brightness.n_bright[0]
        if np.isfinite(total):
            at.log_density[0] = total
        return at.log_density[0]

    update_z = make_z_update(ndims)
    update = build_update(evaluate)

    @njit
    def iterations(
        rng: np.random.Generator,
        point: np.ndarray,
        density: Density,
        brightness: BrightnessState,
        whitening: Whitening,
        tuning: Tuning,
        work: Work,
        tolerance: float,
        counts: np.ndarray,
    ) -> tuple[float, int]:
        current = State(point, np.empty(point.size), np.empty(1))
        proposed = State(np.empty(point.size), np.empty(point.size), np.empty(1))
        accept = 0.0
        n_bright: Any = np.int64(0)
        for i in range(work.n_iterations + 1):
            # The first round, before the iterations, is for those rows that have no state yet.
            if i == 0 and not work.redraw_z:
                continue
            how = work.z_update if i > 0 else ALL
            q = tuning.q[0]
            update_z(rng, point, density, brightness, how, work.n_explicit, q, tolerance, counts)
            if i == 0:
                if q < 0.0:
                    tuning.q[0] = first_q(brightness.n_bright[0], brightness.state.size)
                continue
            before_updates = counts[0]
            batch = take(density.data, brightness.bright[: min(CHUNK_ROWS, brightness.n_bright[0])])
            context = Context(density, brightness, batch, tolerance, counts)
            if uses_gradient:
                evaluate(current, context)
            else:
                log_density = call_scalar(
                    density.base, (point, density.constants, current.gradient)
                )
                counts[4] += 1
                current.log_density[0] = (
                    log_density + brightness.log_odds[: brightness.n_bright[0]].sum()
                )
            for _ in range(work.n_updates):
                answer_signals()
                step = np.exp(tuning.log_step[0])
                accepted, signal = update(rng, current, proposed, context, whitening, step)
                accept += accepted
                if work.tuning:
                    tuning.n_corrections[0] += 1
                    gain = tuning.n_corrections[0] ** -GAIN_EXPONENT
                    log_step = tuning.log_step[0] + gain * (signal - target_signal)
                    log_step = max(log_step, LOG_SHORTEST)
                    tuning.log_step[0] = min(log_step, np.log(longest_step))
            n_bright += brightness.n_bright[0]
            if work.tuning:
                tune_q(tuning, counts[0] - before_updates, work.z_cost, brightness.state.size)
            if counts[2] >= 0:
                break
        return accept, n_bright

    return iterations


def make_bright_reader(ndims: Sequence[int]) -> Callable[..., float]:
    """Make what looks at the bright rows at a point.

    Returns
    -------
    read_bright
        ``(point, gradient, density, flies, batch, tolerance, counts) -> float`` writes log L̃ of
        them as proposed, adds their gradient, and returns their sum; `batch` has the first chunk.
    """
    take = make_take(ndims)

    @jit_part
    def read_bright(
        point: np.ndarray,
        gradient: np.ndarray,
        density: Density,
        brightness: BrightnessState,
        batch: Any,
        tolerance: float,
        counts: np.ndarray,
    ) -> float:
        n_bright, total = brightness.n_bright[0], 0.0
        for first in range(0, n_bright, CHUNK_ROWS):
            answer_signals()
            last = min(first + CHUNK_ROWS, n_bright)
            rows, out = brightness.bright[first:last], brightness.proposed[first:last]
            chunk = batch if first == 0 else take(density.data, rows)
            gaps = call_array(density.row, (point, density.constants, chunk, gradient))
            to_log_odds(gaps, rows, tolerance, counts, out)
            total += out.sum()
        return total

    return read_bright


def make_z_update(ndims: Sequence[int]) -> Callable[..., None]:
    """Make the updates of z.

    Returns
    -------
    update_z
        ``(rng, point, density, flies, how, n_picked, q, tolerance, counts)`` updates which rows are
        bright, of which the log odds at the point are known.
    """
    take = make_take(ndims)

    @jit_part
    def update_z(
        rng: np.random.Generator,
        point: np.ndarray,
        density: Density,
        brightness: BrightnessState,
        how: int,
        n_picked: int,
        q: float,
        tolerance: float,
        counts: np.ndarray,
    ) -> None:
        """Update which rows are bright, a chunk of the rows concerned at a time."""
        if how == ALL:  # the log odds of bright rows are those of another point
            darken_all(brightness)
        n_before, log_q = brightness.n_bright[0], np.log(q)
        out, rows = np.empty(CHUNK_ROWS), np.empty(CHUNK_ROWS, np.int64)
        unused = np.empty(point.size)
        n_done: Any = np.int64(0)
        last: Any = np.int64(-1)
        while True:
            answer_signals()
            if how == IMPLICIT:
                n, last = jump_through_dark_rows(rng, q, last, brightness.state, rows)
            else:
                n = pick_rows(rng, how, n_done, n_picked, brightness.state.size, rows)
            if n == 0:
                break
            n_done += n
            batch = take(density.data, rows[:n])
            gaps = call_array(density.row, (point, density.constants, batch, unused))
            to_log_odds(gaps, rows[:n], tolerance, counts, out)
            if how == IMPLICIT:
                accept_brightening(rng, log_q, rows[:n], out, brightness)
            else:
                draw_anew(rng, rows[:n], out, brightness)
        if how == IMPLICIT:
            propose_darkening(rng, log_q, n_before, brightness)
        forget_leaving(brightness)

    return update_z


def make_look(ndims: Sequence[int]) -> Callable[..., None]:
    """Make what looks at bright rows, and at those that are always read, for moves made elsewhere.

    Returns
    -------
    look
        ``(point, density, flies, always, gaps, tolerance, counts)`` writes log L̃ of the bright rows
        as proposed, and the gaps of the others.
    """
    take, read_bright = make_take(ndims), make_bright_reader(ndims)

    @njit
    def look(
        point: np.ndarray,
        density: Density,
        brightness: BrightnessState,
        pinned: np.ndarray,
        gaps: np.ndarray,
        tolerance: float,
        counts: np.ndarray,
    ) -> None:
        unused = np.empty(0)
        batch = take(density.data, brightness.bright[: min(CHUNK_ROWS, brightness.n_bright[0])])
        read_bright(point, unused, density, brightness, batch, tolerance, counts)
        for first in range(0, pinned.size, CHUNK_ROWS):
            rows = pinned[first : first + CHUNK_ROWS]
            chunk = take(density.data, rows)
            gaps[first : first + rows.size] = call_array(
                density.row, (point, density.constants, chunk, unused)
            )
        counts[0] += pinned.size

    return look


@register_jitable
def first_q(n_bright: int, n_rows: int) -> float:
    """Return q before tuning: about as many proposals as there are bright rows."""
    return min(0.5, (1.0 + n_bright) / (1.0 + n_rows))


@register_jitable
def tune_q(tuning: Tuning, cost: float, z_cost: float, n_rows: int) -> None:
    """Learn what the updates of θ of an iteration cost, and fit q to it unless `z_cost` is 0."""
    tuning.cost[0] += max(FORGET, 1 / tuning.n_corrections[0]) * (cost - tuning.cost[0])
    if z_cost > 0.0:
        tuning.q[0] = min(0.5, (1.0 + z_cost * tuning.cost[0]) / (1.0 + n_rows))


@register_jitable
def to_log_odds(
    gaps: np.ndarray, rows: np.ndarray, tolerance: float, counts: np.ndarray, out: np.ndarray
) -> None:
    """Write log L̃ of some rows, count them, and note one whose bound is above its likelihood."""
    counts[0] += rows.size
    for i in range(rows.size):
        if gaps[i] < -tolerance:
            counts[2], counts[3] = rows[i], gaps[i]
        out[i] = log_odds(gaps[i])


@register_jitable
def jump_through_dark_rows(
    rng: np.random.Generator, q: float, last: int, state: np.ndarray, rows: np.ndarray
) -> tuple[int, int]:
    """Choose dark rows beyond `last`, each with probability q; return how many, and how far."""
    n: Any = np.int64(0)
    row = last
    while n < rows.size and row < state.size:
        jump = np.floor(np.log(1.0 - rng.random()) / np.log1p(-q))
        row += 1 + int(min(jump, state.size))
        if row >= state.size:
            break
        if state[row] == DARK:
            rows[n] = row
            n += 1
    return n, row


@register_jitable
def pick_rows(
    rng: np.random.Generator, how: int, n_done: int, n_picked: int, n_rows: int, rows: np.ndarray
) -> int:
    """Pick rows at random, or all of them in turn; return how many are written."""
    n = min(rows.size, (n_rows if how == ALL else n_picked) - n_done)
    for i in range(n):
        rows[i] = n_done + i if how == ALL else int(rng.random() * n_rows)
    return n


@register_jitable
def accept_brightening(
    rng: np.random.Generator,
    log_q: float,
    rows: np.ndarray,
    odds: np.ndarray,
    brightness: BrightnessState,
) -> None:
    """Turn proposed rows bright with probability min(1, L̃/q)."""
    for i in range(rows.size):
        if np.log(rng.random()) < odds[i] - log_q:
            brighten(brightness, rows[i], odds[i])


@register_jitable
def propose_darkening(
    rng: np.random.Generator, log_q: float, n: int, brightness: BrightnessState
) -> None:
    """Turn the first bright rows dark with probability min(1, q/L̃)."""
    for i in range(n):
        if np.log(rng.random()) < log_q - brightness.log_odds[i]:
            brightness.state[brightness.bright[i]] = LEAVING


@register_jitable
def draw_anew(
    rng: np.random.Generator, rows: np.ndarray, odds: np.ndarray, brightness: BrightnessState
) -> None:
    """Draw rows bright with odds L̃."""
    for i in range(rows.size):
        row = rows[i]
        if brightness.state[row] == PINNED:
            continue
        if rng.random() * (1.0 + np.exp(-odds[i])) < 1.0:
            if brightness.state[row] == DARK:
                brighten(brightness, row, odds[i])
            else:
                brightness.state[row] = BRIGHT
        elif brightness.state[row] == BRIGHT:
            brightness.state[row] = LEAVING


@register_jitable
def brighten(brightness: BrightnessState, row: int, log_odds: float) -> None:
    """Put a dark row on the list."""
    i = brightness.n_bright[0]
    brightness.state[row] = BRIGHT
    brightness.bright[i] = row
    brightness.log_odds[i] = log_odds
    brightness.n_bright[0] = i + 1


@register_jitable
def forget_leaving(brightness: BrightnessState) -> None:
    """Take the rows that have turned dark off the list."""
    kept = np.int64(0)
    for i in range(brightness.n_bright[0]):
        row = brightness.bright[i]
        if brightness.state[row] == LEAVING:
            brightness.state[row] = DARK
        else:
            brightness.bright[kept] = row
            brightness.log_odds[kept] = brightness.log_odds[i]
            kept += 1
    brightness.n_bright[0] = kept


@register_jitable
def darken_all(brightness: BrightnessState) -> None:
    """Empty the list."""
    for i in range(brightness.n_bright[0]):
        brightness.state[brightness.bright[i]] = DARK
    brightness.n_bright[0] = 0


def restore(brightness: BrightnessState, bright: np.ndarray, log_odds: np.ndarray) -> None:
    """Make these rows the bright ones."""
    darken_all(brightness)
    brightness.state[bright] = BRIGHT
    brightness.bright[: bright.size] = bright
    brightness.log_odds[: bright.size] = log_odds
    brightness.n_bright[0] = bright.size
