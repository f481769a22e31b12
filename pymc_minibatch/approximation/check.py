"""The check of an approximation: exact transitions from its own draws.

Transitions that leave the posterior as it is leave the approximation as it is, if that is right. So
let x₀ be a draw from the approximation q and x̄ the mean of the points that the next few scans
visit. In posterior standard deviations, with b the regression of x̄ on x₀,

    error = (E x̄ − E_q x) / (1 − b)

is how far the mean of q is off, to first order: scans that move little (b near 1) reveal little of
it at once. E_q x is known nearly without Monte Carlo error, since draws have matched moments. The
variance of what scans reach says how far standard deviations are off. Likewise, with b the
regression of the squared deviation at the end on that at the start,

    relative error of the variance = (E x² / E_q x² − 1) / (1 − b).

Whether tails of q are too light is seen from the ratios π/q at draws of the hyperparameters and the
border, by Pareto's k̂.

References
----------
Gelman and Rubin (1992) and Talts et al. (2018) for the idea that a sampler must leave its target as
it is. Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import t as student_t

__all__ = ["GOOD_K", "Check", "Scanned", "Shift", "Verdict", "check_of"]

Verdict = Literal["use", "check", "do not use"]

TOLERATED, WRONG = 0.05, 0.3
"""Errors of a mean, in posterior sds, up to which an approximation is as good as a thousand draws,
and from which it is not to be used."""

TOLERATED_SCALE, WRONG_SCALE = 0.05, 0.3
"""The same for relative errors of standard deviations."""

MOST_NOISE = 0.1
"""An error that no standard error smaller than this has looked for may be there."""

LIKELY, LIKELY_SCALE = 0.14, 0.17
"""An error of a mean, or of a scale, may matter if it and its standard error exceed this together.

A mean that is right exceeds it with a standard error of 0.035, that of 750 starts, once in 400
times. Standard errors of scales with long tails are twice that.
"""

GOOD_K, BAD_K = 0.7, 1.0
"""Pareto's k̂ up to which importance weights are useful, and from which they have no mean."""

SLOW, STUCK = 0.8, 0.97
"""Regressions on the start from which scans say little, or nothing."""

ALPHA = 0.005
"""Share of right approximations in which some error seems to be there."""

LEAST_VARIANCE = 0.05
"""The smallest variance, relative to that of the approximation, that is told from 0."""

FEW = 8
"""Variables with more elements are judged by what their elements have in common as well."""


class Scanned(NamedTuple):
    """Draws, and what scans from them have visited.

    Attributes
    ----------
    start, mean, end : ndarray, shape (S, D)
        Where scans started, the mean of where each led, and where the last one did.
    moments : (ndarray, ndarray), shape (D,)
        Mean and standard deviation of all points that scans have led to.
    """

    start: np.ndarray
    mean: np.ndarray
    end: np.ndarray
    moments: tuple[np.ndarray, np.ndarray] | None = None


class Shift(NamedTuple):
    """How far off the approximation is for a variable, in posterior standard deviations.

    Attributes
    ----------
    name : str
        The variable.
    size, error : float
        The largest error of a mean among its elements, as far as it is no noise, and its standard
        error.
    surely : float
        What it is at least, however many elements were looked at.
    scale, scale_error : float
        Relative error of its standard deviations, and its standard error.
    slowness : float
        b.
    surely_scale : float
        What the standard deviation of some element is off at least, however many were looked at.
    """

    name: str
    size: float
    error: float
    surely: float
    scale: float
    scale_error: float
    slowness: float
    surely_scale: float = 0.0


@dataclass(frozen=True)
class Check:
    """What the check has found.

    Attributes
    ----------
    shifts : list of Shift
        One for each variable.
    pareto_k : float
        k̂; NaN if it was not looked at.
    n_modes : int
        How many modes were found.
    good_k : float
        k̂ up to which draws may be used.
    n_starts : int, optional
        From how many draws scans were made; many if not given.
    """

    shifts: list[Shift]
    pareto_k: float
    n_modes: int = 1
    good_k: float = GOOD_K
    n_starts: float = math.inf

    @property
    def largest(self) -> Shift:
        """The variable that is farthest off."""
        return max(self.shifts, key=lambda shift: shift.size)

    @property
    def widest(self) -> Shift:
        """The variable whose standard deviations are."""
        return max(self.shifts, key=lambda shift: abs(shift.scale) - 2 * shift.scale_error)

    @property
    def slowness(self) -> float:
        """The largest b."""
        return max(shift.slowness for shift in self.shifts)

    @property
    def is_settled(self) -> bool:
        """Whether no error is seen that is larger than Monte Carlo errors of a thousand draws."""
        return self._worst <= 1.0

    @property
    def _worst(self) -> float:
        """The largest error that is surely there, relative to what is tolerated."""
        means = max(shift.surely for shift in self.shifts) / TOLERATED
        return max(means, self._scale / TOLERATED_SCALE)

    @property
    def _scale(self) -> float:
        z = float(student_t.isf(ALPHA / len(self.shifts) / 2, self.n_starts - 1))
        return max(max(abs(s.scale) - z * s.scale_error, s.surely_scale) for s in self.shifts)

    @property
    def verdict(self) -> Verdict:
        """Whether the draws can be used."""
        surely = max(shift.surely for shift in self.shifts)
        slow = self.slowness
        noise = max(max(shift.error, shift.scale_error) for shift in self.shifts)
        if surely > WRONG or self._scale > WRONG_SCALE or slow > STUCK or self.pareto_k > BAD_K:
            return "do not use"
        unsure = (
            slow > SLOW or noise > MOST_NOISE or self.pareto_k > self.good_k or self.n_modes > 1
        )
        return "check" if unsure or self._may_be_wrong or not self.is_settled else "use"

    @property
    def is_noisy(self) -> bool:
        """Whether scans from more draws may lead to a better verdict."""
        known = self.pareto_k > self.good_k or self.n_modes > 1 or self.slowness > SLOW
        return self.verdict == "check" and self.is_settled and not known

    @property
    def _may_be_wrong(self) -> bool:
        """Whether an error that matters is near what was seen."""
        return any(
            s.size + s.error > LIKELY or abs(s.scale) + s.scale_error > LIKELY_SCALE
            for s in self.shifts
        )

    @property
    def reason(self) -> str:
        """The verdict in words."""
        far, wide = self.largest, self.widest
        parts = [f"largest shift {far.size:.2f} ± {far.error:.2f} SD ({far.name})"]
        parts.append(f"SDs off by {wide.scale:+.0%} ± {wide.scale_error:.0%} ({wide.name})")
        if math.isfinite(self.pareto_k):
            parts.append(f"k̂ {self.pareto_k:.1f}")
        slow = max(self.shifts, key=lambda shift: shift.slowness)
        if slow.slowness > SLOW:
            parts.append(f"scans hardly move {slow.name}, so its errors cannot be seen")
        if self.n_modes > 1:
            parts.append(f"{self.n_modes} modes, whose shares no scan has confirmed")
        return "; ".join(parts)


def check_of(
    scanned: Scanned,
    moments: tuple[np.ndarray, np.ndarray],
    slices: Mapping[str, slice],
    pareto_k: float,
    n_modes: int = 1,
    good_k: float = GOOD_K,
) -> Check:
    """Compare where scans have led with the moments of the draws that they started from.

    Parameters
    ----------
    scanned
        Starts and what scans made of them.
    moments : (ndarray, ndarray), shape (D,)
        Means and standard deviations of the approximation.
    slices
        Positions of variables in a point.
    pareto_k, n_modes, good_k
        What else is known.
    """
    mean, sd = moments
    start, middle, end = ((points - mean) / sd for points in scanned[:3])
    filled = {name: where for name, where in slices.items() if where.stop > where.start}
    shifts = []
    for name, where in filled.items():  # a scale is not lost among thousands of effects
        share = ALPHA / 2 / len(filled) / (where.stop - where.start)
        z = float(student_t.isf(share, len(start) - 1))
        shifts.append(_shift(name, start[:, where], middle[:, where], end[:, where], z))
    return Check(shifts, pareto_k, n_modes, good_k, len(start))


def _shift(name: str, start: np.ndarray, middle: np.ndarray, end: np.ndarray, z: float) -> Shift:
    n = len(start)
    slope = np.clip(_regression(start, middle), 0.0, None)
    left = np.maximum(1.0 - slope, 1.0 - STUCK)
    rest = middle - slope * start
    errors, noise = rest.mean(axis=0) / left, rest.std(axis=0, ddof=1) / math.sqrt(n) / left
    scale, scale_noise, least_scale = _scale_error(start, end, z)
    surely = np.abs(errors) - z * noise
    worst = int(np.argmax(np.abs(errors) if errors.size <= FEW else surely))
    size, error = float(abs(errors[worst])), float(noise[worst])
    least = float(surely.max())
    if errors.size > FEW:
        common, common_error = _in_common(errors, noise)
        size, error = max((max(least, 0.0), error), (common, common_error))
        least = max(least, common - z * common_error)
    slowness = float(slope.max())
    return Shift(name, size, error, least, scale, scale_noise, slowness, least_scale)


def _regression(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return b of each element; of many elements drawn towards one that all share.

    By as much as their differences are noise, so that an element that hardly moves is not lost.
    """
    centred = start - start.mean(axis=0)
    products, squares = (centred * end).sum(axis=0), (centred**2).sum(axis=0)
    slopes = np.asarray(products / squares)
    if slopes.size <= FEW:
        return slopes
    common = products.sum() / squares.sum()
    rest = end - end.mean(axis=0) - common * centred
    noise = ((centred * rest) ** 2).sum(axis=0) / squares**2
    excess = (slopes - common) ** 2 - noise
    share = np.clip(excess.sum() / np.maximum(np.sum((slopes - common) ** 2), 1e-300), 0.0, 1.0)
    return np.asarray(common + share * (slopes - common))


def _scale_error(start: np.ndarray, end: np.ndarray, z: float) -> tuple[float, float, float]:
    """Return how far standard deviations are off on average, the standard error, and the least.

    The last is what the worst element is off at least, however many were looked at.
    """
    n = len(start)
    before = (start - start.mean(axis=0)) ** 2
    after = (end - end.mean(axis=0)) ** 2 * n / (n - 1)
    slope = np.clip(_regression(before, after), 0.0, None)
    left = np.maximum(1.0 - slope, 1.0 - STUCK)
    # The draws have unit variances, beside noise of those from which scans start.
    rest = (after - 1.0 - slope * (before - 1.0)) / left
    of_all = rest.mean(axis=1)
    mean, noise = float(of_all.mean()), float(_relative_noise(of_all))
    each, noises = rest.mean(axis=0), _relative_noise(rest)
    least = float((np.abs(_as_scale(each)) - z * noises / 2).max())
    return float(_as_scale(mean)), noise / 2, least


def _relative_noise(errors: np.ndarray) -> np.ndarray:
    """Return standard errors of variances, from their relative errors at each start, shape (S, …).

    Squares that are small by chance vary little by the same chance: a variance that seems too small
    is as uncertain as its own size says, relative to that.
    """
    noise = errors.std(axis=0, ddof=1) / math.sqrt(len(errors))
    return np.asarray(noise / np.clip(1.0 + errors.mean(axis=0), LEAST_VARIANCE, 1.0))


def _as_scale(variance: float | np.ndarray) -> np.ndarray:
    """Return the relative error of a standard deviation from that of the variance."""
    return np.asarray(np.sqrt(np.maximum(1.0 + variance, 0.0)) - 1.0)


def _in_common(errors: np.ndarray, noise: np.ndarray) -> tuple[float, float]:
    """Return the root mean square error of many elements beyond noise, and its standard error."""
    excess = errors**2 - noise**2
    mean = float(excess.mean())
    spread = float(excess.std(ddof=1)) / math.sqrt(errors.size)
    size = math.sqrt(max(mean, 0.0))
    return size, spread / (2 * max(size, math.sqrt(spread), 1e-9))
