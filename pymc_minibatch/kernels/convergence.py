"""R-hat and effective sample sizes, in machine code.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), An improved R-hat,
in the details that ArviZ has. ArviZ transforms whole chains by FFT; here autocovariances are summed
lag by lag up to the one at which Geyer's sequence ends, which is early unless a chain mixes slowly.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from pymc_minibatch.jit.compiled import jit_kept

__all__ = ["CUT", "diagnostics"]

CUT = -1.0
"""In place of an effective sample size that needs more lags than were allowed."""


@njit
def ranked(split: np.ndarray, order: np.ndarray, scores: np.ndarray, z: np.ndarray) -> None:
    """Write the normal scores of the ranks, ties by their mean, given what sorts the values."""
    n = order.size
    first = 0
    while first < n:
        last = first
        while last + 1 < n and split[order[last + 1]] == split[order[first]]:
            last += 1
        for k in range(first, last + 1):
            z[order[k]] = scores[first + last + 2]
        first = last + 1


@njit
def folded(split: np.ndarray, order: np.ndarray, outwards: np.ndarray, away: np.ndarray) -> None:
    """Write distances from the median, and what sorts them: from the middle outwards."""
    n = order.size
    median = (split[order[n // 2 - 1]] + split[order[n // 2]]) / 2
    for i in range(n):
        away[i] = abs(split[i] - median)
    left, right = n // 2 - 1, n // 2
    for k in range(n):
        if right == n or (left >= 0 and away[order[left]] <= away[order[right]]):
            outwards[k], left = order[left], left - 1
        else:
            outwards[k], right = order[right], right + 1


@njit
def r_hat_of(z: np.ndarray) -> float:
    """Return R-hat of chains, shape (chains, draws)."""
    n_chains, n = z.shape
    means = np.empty(n_chains)
    within = 0.0
    for c in range(n_chains):
        means[c] = z[c].mean()
        total = 0.0
        for i in range(n):
            total += (z[c, i] - means[c]) ** 2
        within += total / (n - 1)
    within /= n_chains
    middle = means.mean()
    between = n * ((means - middle) ** 2).sum() / (n_chains - 1)
    if within == 0.0:
        return np.inf if between > 0.0 else np.nan
    return float(np.sqrt((between / within + n - 1) / n))


@njit
def at_lag(z: np.ndarray, lag: int) -> float:
    """Return the mean over chains of the autocovariance of centred draws."""
    n_chains, n = z.shape
    total = 0.0
    for c in range(n_chains):
        a, b, e, f = 0.0, 0.0, 0.0, 0.0
        m = n - lag
        i = 0
        while i + 3 < m:
            a += z[c, i] * z[c, i + lag]
            b += z[c, i + 1] * z[c, i + 1 + lag]
            e += z[c, i + 2] * z[c, i + 2 + lag]
            f += z[c, i + 3] * z[c, i + 3 + lag]
            i += 4
        while i < m:
            a += z[c, i] * z[c, i + lag]
            i += 1
        total += ((a + b) + (e + f)) / n
    return total / n_chains


@njit
def effective(z: np.ndarray, rho: np.ndarray, most_lags: int) -> float:
    """Return the effective sample size of chains, shape (chains, draws), which are centred."""
    n_chains, n = z.shape
    if z.max() - z.min() < 1e-15:
        return float(z.size)
    means = np.empty(n_chains)
    for c in range(n_chains):
        means[c] = z[c].mean()
        for i in range(n):
            z[c, i] -= means[c]
    variance = at_lag(z, 0) * n / (n - 1.0)
    var_plus = variance * (n - 1.0) / n
    if n_chains > 1:
        var_plus += ((means - means.mean()) ** 2).sum() / (n_chains - 1)
    rho[:] = 0.0
    even, odd = 1.0, 1.0 - (variance - at_lag(z, 1)) / var_plus
    rho[0], rho[1] = even, odd
    t = 1
    while t < n - 3 and even + odd > 0.0:
        if t > most_lags:
            return CUT
        even = 1.0 - (variance - at_lag(z, t + 1)) / var_plus
        odd = 1.0 - (variance - at_lag(z, t + 2)) / var_plus
        if even + odd >= 0:
            rho[t + 1], rho[t + 2] = even, odd
        t += 2
    last = t - 2
    if even > 0:
        rho[last + 1] = even
    t = 1
    while t <= last - 2:
        if rho[t + 1] + rho[t + 2] > rho[t - 1] + rho[t]:
            rho[t + 1] = (rho[t - 1] + rho[t]) / 2.0
            rho[t + 2] = rho[t + 1]
        t += 2
    total = float(n_chains * n)
    tau = -1.0 + 2.0 * rho[: last + 1].sum() + rho[last + 1 : last + 2].sum()
    return total / max(tau, 1 / np.log10(total))


def of_parameters(
    splits: np.ndarray,
    orders: np.ndarray,
    limits: np.ndarray,
    scores: np.ndarray,
    most_lags: int,
    n_chains: int,
    found: np.ndarray,
) -> None:
    """Write R-hat, bulk and tail effective sample sizes of parameters.

    Parameters
    ----------
    splits : ndarray, shape (K, M)
        Draws of the halves of all chains, one half after the other.
    orders : ndarray of int64, shape (K, M)
        What sorts them.
    limits : ndarray, shape (K, 2)
        Quantiles of all draws whose tails are looked at.
    scores : ndarray, shape (2 M + 1,)
        Normal scores of ranks, which are multiples of a half.
    most_lags
        Lags after which an effective sample size is left out.
    n_chains
        Halves.
    found : ndarray, shape (K, 3)
        Where the results go.
    """
    size = splits.shape[1]
    z, away = np.empty(size), np.empty(size)
    outwards = np.empty(size, dtype=np.int64)
    rho = np.empty(size // n_chains)
    chains = z.reshape(n_chains, size // n_chains)
    for k in range(splits.shape[0]):
        split, order = splits[k], orders[k]
        folded(split, order, outwards, away)
        ranked(away, outwards, scores, z)
        r_hat = r_hat_of(chains)
        ranked(split, order, scores, z)
        found[k, 0] = max(r_hat, r_hat_of(chains))
        found[k, 1] = effective(chains, rho, most_lags)
        smallest = np.inf
        for tail in range(2):
            for i in range(size):
                z[i] = 1.0 if split[i] <= limits[k, tail] else 0.0
            smallest = min(smallest, effective(chains, rho, most_lags))
        found[k, 2] = smallest


@cache
def diagnostics() -> Callable[..., None]:
    """Compile :func:`of_parameters`."""
    return jit_kept(of_parameters, nogil=True)
