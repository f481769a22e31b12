"""When a sequential t-test stops, and how often it errs: the design of the austere test.

With v = n / (N - n) after n of N rows and z the t statistic, X = z √v is a Brownian motion in time
v, with drift::

    mu_std = (mean - mu0) √(N-1) / sd

and the test stops at the first look with |z| > G. At zero drift, the worst case, z has correlation
exp(-dτ / 2) between looks dτ apart in τ = log v, so the law of the look at which it stops follows
from one-dimensional integrals. The laws for any other drift need no more: the density of a path
that stops at time v and place x is that at zero drift times exp(mu_std x - mu_std² v / 2).

Late looks lie ever closer in τ. Most of them are left out here, and the boundary is lowered by what
fewer looks miss on average, 0.583 standard deviations of a step.

References
----------
Korattikara, Chen and Welling (2014), Austerity in MCMC Land, section 5 and supplement. Siegmund
(1985), Sequential Analysis, chapter 10, for the shift of the boundary.
"""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from scipy.special import ndtr, ndtri

__all__ = ["Designs", "designs", "error_and_rows"]

SIEGMUND = 0.5826
"""Mean excess of a random walk over a boundary, in standard deviations of its steps."""

FINEST_STEP = 0.02
"""Looks are left out until they lie this far apart in τ."""

NODES = 40
"""Quadrature nodes from z = 0 to the boundary."""

BINS = 48
"""Looks are lumped into so many, evenly in the logarithm of their rows."""


class Designs(NamedTuple):
    """Pairs of a batch size and a boundary, and when they stop at zero drift.

    Attributes
    ----------
    batch_size : ndarray of int64, shape (K,)
        Rows that are added between looks.
    boundary : ndarray, shape (K,)
        G, the normal quantile that belongs to the threshold on the tail probability.
    stop_rows, stop_time, stop_place, probability : ndarray, shape (K, BINS + NODES)
        Rows n, time v, place x on the upper side, and probability of stopping there on either side.
        The last `NODES` are the paths that never stop, for which all N rows are read.
    """

    batch_size: np.ndarray
    boundary: np.ndarray
    stop_rows: np.ndarray
    stop_time: np.ndarray
    stop_place: np.ndarray
    probability: np.ndarray


@cache
def designs(n_rows: int, batch_sizes: tuple[int, ...], thresholds: tuple[float, ...]) -> Designs:
    """Work out all pairs of a batch size and a threshold for `n_rows` rows."""
    boundary = -ndtri(np.array(thresholds))
    laws = [stop_law(n_rows, size, boundary) for size in batch_sizes]
    return Designs(
        np.repeat(np.array(batch_sizes, dtype=np.int64), boundary.size),
        np.tile(boundary, len(batch_sizes)),
        *(np.concatenate(parts) for parts in zip(*laws, strict=True)),
    )


def stop_law(n_rows: int, batch_size: int, boundary: np.ndarray) -> tuple[np.ndarray, ...]:
    """Find when tests with these boundaries stop at zero drift.

    Parameters
    ----------
    n_rows, batch_size : int
        All rows, and those added between looks, which end when half of the rows are seen.
    boundary : ndarray, shape (K,)

    Returns
    -------
    stop_rows, stop_time, stop_place, probability : ndarray, shape (K, BINS + NODES)
    """
    rows = batch_size * np.arange(1.0, n_rows // (2 * batch_size) + 1)
    law = np.zeros((4, boundary.size, BINS + NODES))
    law[0, :, BINS:] = n_rows
    if not rows.size:
        law[3, :, BINS] = 1.0
        return tuple(law)
    time = rows / (n_rows - rows)
    kept = spread_out(np.log(time))
    stopped, lowered, z, surviving = stopping(np.log(time), kept, boundary)
    # A path that stops has gone past the boundary by the mean excess of a step.
    step = np.sqrt(np.diff(time[kept], prepend=0.0))
    place = np.sqrt(time[kept]) * lowered + SIEGMUND * step
    bins = np.minimum((np.log(rows[kept] / rows[0]) * BINS / np.log(n_rows)).astype(int), BINS - 1)
    for k in range(boundary.size):
        mass = np.bincount(bins, stopped[k], BINS)
        parts = np.stack([rows[kept], time[kept], place[k]])
        sums = np.stack([np.bincount(bins, stopped[k] * part, BINS) for part in parts])
        law[:3, k, :BINS] = np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0)
        law[3, k, :BINS] = mass
    law[1, :, BINS:] = time[-1]
    law[2, :, BINS:] = np.sqrt(time[-1]) * z
    law[3, :, BINS:] = 2 * surviving
    return tuple(law)


def spread_out(tau: np.ndarray) -> np.ndarray:
    """Choose looks that are `FINEST_STEP` apart, or next to each other."""
    kept = [0]
    while kept[-1] < tau.size - 1:
        next_look = int(np.searchsorted(tau, tau[kept[-1]] + FINEST_STEP))
        kept.append(min(max(next_look, kept[-1] + 1), tau.size - 1))
    return np.array(kept)


def stopping(
    tau: np.ndarray, kept: np.ndarray, boundary: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Integrate the density of z over the paths that have not stopped.

    Returns
    -------
    stopped, lowered : ndarray, shape (K, kept.size)
        Probability of stopping at each look, and the boundary there.
    z, mass : ndarray, shape (K, NODES)
        Where the upper half of the paths is that has not stopped at the last look.
    """
    unit, weight = np.polynomial.legendre.leggauss(NODES)
    unit, weight = (unit + 1) / 2, weight / 2
    z = boundary[:, None] * unit
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    mass = density * weight * boundary[:, None]
    surviving = [2 * ndtr(boundary) - 1]
    lowered = [boundary]
    for before, look in pairwise(kept):
        correlation = np.exp((tau[before] - tau[look]) / 2)
        sd = np.sqrt(1 - correlation**2)
        true_sd = np.sqrt(1 - np.exp(tau[look - 1] - tau[look]))
        limit = boundary - SIEGMUND * (sd - true_sd)
        to = (limit[:, None] * unit)[:, :, None]
        mean = correlation * z[:, None, :]
        kernel = np.exp(-0.5 * ((to - mean) / sd) ** 2) + np.exp(-0.5 * ((to + mean) / sd) ** 2)
        density = (kernel @ mass[:, :, None])[:, :, 0] / (sd * np.sqrt(2 * np.pi))
        z, mass = to[:, :, 0], density * weight * limit[:, None]
        surviving.append(2 * mass.sum(axis=1))
        lowered.append(limit)
    stopped = -np.diff(surviving, axis=0, prepend=1.0)
    return np.maximum(stopped, 0.0).T, np.array(lowered).T, z, mass


@register_jitable
def error_and_rows(designs: Designs, k: int, mu_std: float, n_rows: int) -> tuple[float, float]:
    """Return the probability that design k decides wrongly, and its expected number of rows.

    If the drift is strong, paths jump far beyond the boundary at the first look. These are what
    the tilted probabilities leave out.
    """
    error = rows = total = 0.0
    for i in range(designs.probability.shape[1]):
        half = designs.probability[k, i] / 2
        if half > 0:
            x, v, n = designs.stop_place[k, i], designs.stop_time[k, i], designs.stop_rows[k, i]
            wrong = half * np.exp(-abs(mu_std) * x - mu_std**2 * v / 2)
            right = half * np.exp(abs(mu_std) * x - mu_std**2 * v / 2)
            total += wrong + right
            rows += n * (wrong + right)
            if n < n_rows:
                error += wrong
    left_out = max(0.0, 1 - total)
    return error, (rows + left_out * designs.batch_size[k]) / (total + left_out)
