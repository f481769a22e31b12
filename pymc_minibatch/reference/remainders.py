"""What the surrogate does not say of a row, computed from the functions of a model by address.

The remainder of a row is

    rₙ(φ) = f(vₙ) − f(v̂ₙ) − f'Δv − ½ Δvᵀ f'' Δv − cₙ(u),   Δv = vₙ − v̂ₙ,

with cₙ its share in the third and fourth order C of the surrogate
(:mod:`pymc_minibatch.latent.cubic`). These are differences of second derivatives,

    f‴ᵢⱼₗ ≈ (f″ᵢⱼ(v + hₗ) − f″ᵢⱼ(v − hₗ)) / 2h,
    f⁗ᵢⱼₗₗ ≈ (f″ᵢⱼ(v + hₗ) − 2 f″ᵢⱼ(v) + f″ᵢⱼ(v − hₗ)) / h²,

which are all but those by four different predictors. An error in them costs nothing but a little
efficiency: C and the shares that rows subtract from it are made of the same numbers.

Nothing here knows a model: it is compiled once for all whose data have the same types.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import call_graph

__all__ = [
    "RowConstants",
    "SmoothingWidths",
    "expansions",
    "higher_orders",
    "remainders",
    "remainders_by_factors",
    "remainders_from_expansions",
    "remainders_of_one",
    "second_order",
]

DIFFERENCE, LEAST_INPUT = 1e-3, 0.01
"""Step of differences, relative to a predictor, which counts as this large at least."""


class SmoothingWidths(NamedTuple):
    """Half-widths of intervals, ``scale * (least + |J entries|)`` for each predictor.

    Attributes
    ----------
    scale : ndarray, shape (k,)
        Empty if rows have no kinks.
    entries : ndarray, shape (P,)
        What a row reads of these, as it reads φ, makes its interval wider.
    least : float
        The interval of a row that reads nothing of them.
    """

    scale: np.ndarray
    entries: np.ndarray
    least: float

    @classmethod
    def none(cls) -> "SmoothingWidths":
        """Leave rows as they are."""
        return cls(np.empty(0), np.empty(0), 0.0)


class RowConstants(NamedTuple):
    """What is the same for all rows.

    Attributes
    ----------
    at : ndarray, shape (P,)
        φ̂.
    addresses : ndarray of int64, shape (3,)
        Of the compiled functions that give predictors, f, and f with its derivatives.
    triples : ndarray of int64, shape (t, 3)
        Predictors by which third derivatives are taken, in increasing order.
    orderings : ndarray, shape (t,)
        A sixth of the number of ways to order each triple.
    quads : ndarray of int64, shape (s, 3)
        Predictors i ≥ j and l by which fourth derivatives are taken, by the last one twice.
    arrangements : ndarray, shape (s,)
        A 24th of the number of ways to order each.
    smoothing : SmoothingWidths
        The intervals over which rows with kinks are averaged.
    n_predictors : int
        Numbers that a row reads, k.
    """

    at: np.ndarray
    addresses: np.ndarray
    triples: np.ndarray
    orderings: np.ndarray
    quads: np.ndarray
    arrangements: np.ndarray
    smoothing: SmoothingWidths
    n_predictors: int


@register_jitable(inline="always")
def second_order(i: int, j: int) -> int:
    """Return where the second derivative by predictors i ≥ j lies among all."""
    return i * (i + 1) // 2 + j


@register_jitable
def differences(
    v: np.ndarray, taylor: np.ndarray, constants: RowConstants, batch: Any
) -> np.ndarray:
    """Return third derivatives by the triples, then fourth ones by the quads, shape (t + s, b).

    Those that are not finite are zero.
    """
    k, triples, quads = v.shape[0], constants.triples, constants.quads
    n_triples = triples.shape[0]
    found = np.zeros((n_triples + quads.shape[0], v.shape[1]))
    step, moved = np.empty(v.shape[1]), v.copy()
    for last in range(k):
        if not np.any(triples[:, 2] == last):
            continue
        for b in range(step.size):
            step[b] = DIFFERENCE * max(abs(v[last, b]), LEAST_INPUT)
            moved[last, b] = v[last, b] + step[b]
        above = call_graph(constants.addresses[2], (moved, *batch))[0]
        for b in range(step.size):
            moved[last, b] = v[last, b] - step[b]
        below = call_graph(constants.addresses[2], (moved, *batch))[0]
        for b in range(step.size):
            moved[last, b] = v[last, b]
        for t in range(n_triples):
            if triples[t, 2] == last:
                at = 1 + k + second_order(triples[t, 1], triples[t, 0])
                for b in range(step.size):
                    found[t, b] = (above[at, b] - below[at, b]) / (2.0 * step[b])
        for s in range(quads.shape[0]):
            if quads[s, 2] == last:
                at = 1 + k + second_order(quads[s, 0], quads[s, 1])
                for b in range(step.size):
                    second = above[at, b] - 2.0 * taylor[at, b] + below[at, b]
                    found[n_triples + s, b] = second / step[b] ** 2
    clear_not_finite(found)
    return found


@register_jitable
def clear_not_finite(numbers: np.ndarray) -> None:
    """Set numbers of a matrix that are not finite to 0."""
    for t in range(numbers.shape[0]):
        for b in range(numbers.shape[1]):
            if not np.isfinite(numbers[t, b]):
                numbers[t, b] = 0.0


@partial(jit_kept, nogil=True)
def higher_orders(
    v: np.ndarray, taylor: np.ndarray, constants: RowConstants, batch: Any
) -> np.ndarray:
    """Return what :func:`differences` does, to Python."""
    return differences(v, taylor, constants, batch)


@partial(jit_kept, nogil=True)
def remainders(
    first: np.ndarray, second: np.ndarray, constants: RowConstants, batch: Any
) -> np.ndarray:
    """Return the remainders about φ̂ at two readings, shape (2, b).

    A reading is φ, shape (P,), or φ followed by u in the positions of its entries, shape (2P,);
    then the higher orders are subtracted. What belongs to φ̂ is computed once for both.
    """
    there, taylor = expanded(constants, batch)
    offsets = beyond = np.empty((0, there.shape[1]))
    if first.size > constants.at.size:
        offsets, beyond = of_higher_orders(there, taylor, constants, batch)
    return _remainders_of_two(first, second, (there, taylor, offsets, beyond), constants, batch)


@partial(jit_kept, nogil=True)
def expansions(higher: bool, constants: RowConstants, batch: Any) -> np.ndarray:
    """Return what :func:`remainders` computes at φ̂, in a row for each row, shape (b, m).

    That is v̂, f with its derivatives and, if asked for, offsets and derivatives beyond the second.
    """
    there, taylor = expanded(constants, batch)
    offsets = beyond = np.empty((0, there.shape[1]))
    if higher:
        offsets, beyond = of_higher_orders(there, taylor, constants, batch)
    return np.ascontiguousarray(np.concatenate((there, taylor, offsets, beyond)).T)


@partial(jit_kept, nogil=True)
def remainders_from_expansions(
    first: np.ndarray, second: np.ndarray, constants: RowConstants, batch: Any
) -> np.ndarray:
    """Return what :func:`remainders` does; the last array of the batch holds the expansions."""
    columns, k = np.ascontiguousarray(batch[-1].T), constants.n_predictors
    n_taylor = 1 + k + second_order(k, 0)
    there, taylor, rest = columns[:k], columns[k : k + n_taylor], columns[k + n_taylor :]
    return _remainders_of_two(
        first, second, (there, taylor, rest[:k], rest[k:]), constants, batch[:-1]
    )


@register_jitable
def _remainders_of_two(
    first: np.ndarray,
    second: np.ndarray,
    expansion: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    constants: RowConstants,
    batch: Any,
) -> np.ndarray:
    there, taylor, offsets, beyond = expansion
    size = constants.at.size
    rest = np.empty((2, there.shape[1]))
    for n, reading in enumerate((first, second)):
        write_remainders(reading[:size], there, taylor, constants, batch, rest[n])
        if first.size > size:
            subtract_shares(reading[size:], offsets, beyond, constants, batch, rest[n])
    return rest


@partial(jit_kept, nogil=True)
def remainders_by_factors(
    phis: np.ndarray, coordinates: np.ndarray, constants: RowConstants, batch: Any
) -> np.ndarray:
    """Return the remainders about φ̂ at many φ, shape (f, m, b), less the higher orders of factors.

    What belongs to φ̂ or to φ is computed once.

    Parameters
    ----------
    phis : ndarray, shape (m, P)
        φ.
    coordinates : ndarray, shape (f, m, P)
        u of each factor in the positions of its entries; zeros for no higher orders.
    constants, batch
        As :func:`remainders` takes them.
    """
    there, taylor = expanded(constants, batch)
    n_factors, n_phis, _ = coordinates.shape
    rest = np.empty((n_factors, n_phis, there.shape[1]))
    for n in range(n_phis if n_factors else 0):
        write_remainders(phis[n], there, taylor, constants, batch, rest[0, n])
        for f in range(1, n_factors):
            rest[f, n] = rest[0, n]
    if np.any(coordinates):
        offsets, beyond = of_higher_orders(there, taylor, constants, batch)
        for f in range(n_factors):
            for n in range(n_phis):
                subtract_shares(coordinates[f, n], offsets, beyond, constants, batch, rest[f, n])
    return rest


@partial(jit_kept, nogil=True)
def remainders_of_one(phi: np.ndarray, constants: RowConstants, batch: Any) -> np.ndarray:
    """Return the remainders of second order about φ̂ at one φ, shape (b,)."""
    there, taylor = expanded(constants, batch)
    rest = np.empty(there.shape[1])
    write_remainders(phi, there, taylor, constants, batch, rest)
    return rest


@register_jitable
def expanded(constants: RowConstants, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictors at φ̂, and f with its derivatives there."""
    there = call_graph(constants.addresses[0], (constants.at, *batch))[0]
    widened = with_widths(there, constants, batch)
    return there, call_graph(constants.addresses[2], (widened, *batch))[0]


@register_jitable
def of_higher_orders(
    there: np.ndarray, taylor: np.ndarray, constants: RowConstants, batch: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return what rows read of nothing, and f's derivatives beyond the second."""
    offsets = call_graph(constants.addresses[0], (np.zeros(constants.at.size), *batch))[0]
    return offsets, differences(there, taylor, constants, batch)


@register_jitable
def write_remainders(
    phi: np.ndarray,
    there: np.ndarray,
    taylor: np.ndarray,
    constants: RowConstants,
    batch: Any,
    rest: np.ndarray,
) -> None:
    """Write what f is at φ less its expansion to second order."""
    here = call_graph(constants.addresses[0], (phi, *batch))[0]
    value = call_graph(constants.addresses[1], (here, *batch))[0]
    k, n_rows = there.shape
    for b in range(n_rows):
        rest[b] = value[0, b] - taylor[0, b]
    for i in range(k):
        for b in range(n_rows):
            here[i, b] -= there[i, b]
            rest[b] -= taylor[1 + i, b] * here[i, b]
        for j in range(i + 1):
            share, at = 0.5 if i == j else 1.0, 1 + k + second_order(i, j)
            for b in range(n_rows):
                rest[b] -= share * taylor[at, b] * here[i, b] * here[j, b]


@register_jitable
def with_widths(v: np.ndarray, constants: RowConstants, batch: Any) -> np.ndarray:
    """Put half-widths below v, if there are any."""
    k, smoothing = v.shape[0], constants.smoothing
    if smoothing.scale.size == 0:
        return v
    of_inputs = constants.addresses[0]
    read = call_graph(of_inputs, (smoothing.entries, *batch))[0]
    offset = call_graph(of_inputs, (np.zeros(smoothing.entries.size), *batch))[0]
    both = np.empty((2 * k, v.shape[1]))
    both[:k] = v
    for i in range(k):
        for b in range(v.shape[1]):
            away = abs(read[i, b] - offset[i, b])
            both[k + i, b] = smoothing.scale[i] * (smoothing.least + away)
    return both


@register_jitable
def subtract_shares(
    coordinates: np.ndarray,
    offsets: np.ndarray,
    beyond: np.ndarray,
    constants: RowConstants,
    batch: Any,
    rest: np.ndarray,
) -> None:
    """Subtract cₙ(u), given what rows read of nothing and their derivatives beyond the second."""
    triples, quads = constants.triples, constants.quads
    u = call_graph(constants.addresses[0], (coordinates, *batch))[0]
    for i in range(u.shape[0]):
        for b in range(u.shape[1]):
            u[i, b] -= offsets[i, b]
    for t in range(triples.shape[0]):
        i, j, m = triples[t]
        for b in range(u.shape[1]):
            cube = u[i, b] * u[j, b] * u[m, b]
            rest[b] -= constants.orderings[t] * beyond[t, b] * cube
    for s in range(quads.shape[0]):
        i, j, m = quads[s]
        for b in range(u.shape[1]):
            fourth = u[i, b] * u[j, b] * u[m, b] ** 2
            rest[b] -= constants.arrangements[s] * beyond[triples.shape[0] + s, b] * fourth
