r"""What bounds on remainders rest on, looked at in every row.

A few rows tell to which family they belong, and that their predictor is affine. A
category of twenty rows among a million, censored, of another instrument or with a coefficient of
its own, is not among those. So both are looked at in each row, in the pass that bounds all of them:

- *affine*: η at points where each parameter is six posterior standard deviations from the mode, in
  one sense or the other, is what the Jacobian says;
- *the family*: f(η̂ + t) − f − f't − f''t²/2 is what it is in the family, for t at several posterior
  standard deviations of η to both sides, up to the end of the ball within which bounds hold. If the
  user brought a bound K, it is at most K \|t\|³/6 there, and between two of these points no more
  than K allows.

Errors are relative to what the row itself does there, apart from rounding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.bounds.families.family import Third
from pymc_minibatch.jit.interpreted import Evaluator

__all__ = ["RowClaims", "far_points"]

FAR = 6.0
"""Standard deviations from the mode, along each parameter, of points where η is looked at."""

SHARES = (0.3, 1.0)
"""How far t goes, as shares of the radius of the ball: 2 and 7 sds for one parameter."""

RTOL = 1e-6
"""Relative error of what a family has beyond second order, as that of a claim on few rows."""

AFFINE = 1e-9
"""Error of η relative to the sum of the absolute changes that it adds up."""

OPERATIONS = 64
"""Units of rounding that are allowed for."""

NEARBY = 1e-7
"""Shares of a standard deviation at which nothing but rounding changes a row."""

AROUND, SAFE = 7, 8
"""Number of points at such distances, and by how much more rounding may change a row."""


class RowClaims(NamedTuple):
    """What has to hold for each row.

    Attributes
    ----------
    eta_of
        ``(point, *batch) -> η``.
    values, taylor
        ``(η, *batch)`` gives f, and f, f' and f''.
    unit
        Relative rounding error of η.
    family
        What rows were found to be; None if the user brought a bound.
    far : ndarray, shape (n, D)
        Steps from the reference to the points where η is looked at.
    radius : float
        Standard deviations up to which bounds hold.
    """

    eta_of: Evaluator
    values: Evaluator
    taylor: Evaluator
    unit: float
    family: Third | None
    far: np.ndarray
    radius: float

    def curved_row(
        self,
        reference: np.ndarray,
        eta: np.ndarray,
        jacobian: np.ndarray,
        batch: Sequence[np.ndarray],
    ) -> int | None:
        """Return a row whose predictor is not affine."""
        sds, absolute = np.abs(self.far[0]), np.abs(jacobian)
        moves, size = absolute @ sds, np.abs(eta) + absolute @ np.abs(reference)
        allowed = AFFINE * moves + OPERATIONS * self.unit * sds.size * (size + moves) + TINY
        steps = jacobian @ self.far.T
        worst = np.zeros(eta.size)
        for step, said in zip(self.far, steps.T, strict=True):
            error = np.abs(self.eta_of(reference + step, *batch) - eta - said) / allowed
            worst = np.maximum(worst, np.where(np.isfinite(error), error, np.inf))
        return _first_above(worst)

    def strange_row(
        self,
        eta: np.ndarray,
        lengths: np.ndarray,
        batch: Sequence[np.ndarray],
        bounds: np.ndarray | None = None,
    ) -> int | None:
        """Return a row that is not of the family, or beyond its bound K where `bounds` are given.

        `lengths` are the posterior standard deviations of η.
        """
        excess = self._excess(eta, lengths, batch, bounds, np.zeros(eta.size))
        rows = np.flatnonzero(~(excess <= 1.0))
        if not rows.size:
            return None
        some = [np.ascontiguousarray(values[rows]) for values in batch]
        own = None if bounds is None else bounds[rows]
        noise = self._noise(eta[rows], lengths[rows], some)
        first = _first_above(self._excess(eta[rows], lengths[rows], some, own, noise))
        return None if first is None else int(rows[first])

    def _excess(
        self,
        eta: np.ndarray,
        lengths: np.ndarray,
        batch: Sequence[np.ndarray],
        bounds: np.ndarray | None,
        noise: np.ndarray,
    ) -> np.ndarray:
        """Return errors relative to what is allowed; above 1 a row is strange."""
        value, slope, second = taylor = self.taylor.outputs(eta, *batch)
        beyond = None if self.family is None else self.family.remainder(eta, taylor, batch)
        reach = self.radius * lengths
        rise = np.abs(slope) * reach + np.abs(second) * reach**2
        inputs = self.unit * (np.abs(eta) + reach) * (np.abs(slope) + np.abs(second) * reach)
        rounded = OPERATIONS * (EPS * (np.abs(value) + rise) + inputs) + noise + TINY
        worst = np.zeros(eta.size)
        for sign in (1.0, -1.0):
            last, before = 0.0, np.zeros(eta.size)
            for share in SHARES:
                t = sign * share * reach
                found = self.values(eta + t, *batch) - value - t * (slope + second * t / 2)
                if beyond is not None:
                    expected = beyond(t)
                    error = np.abs(found - expected) / (RTOL * np.abs(expected) + rounded)
                else:
                    assert bounds is not None
                    most = bounds * reach**3 * (share**3 - last**3) / 6
                    error = np.abs(found - before) / (most * (1 + RTOL) + 2 * rounded)
                    last, before = share, found
                worst = np.maximum(worst, error)
        return np.nan_to_num(worst, nan=np.inf)

    def _noise(
        self, eta: np.ndarray, lengths: np.ndarray, batch: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return how much rounding within f changes it, which is more than its size may tell.

        It is what is left of third differences over steps on which f is a line.
        """
        found = np.zeros(eta.size)
        for share in (0.0, *SHARES, *(-share for share in SHARES)):
            at = eta + share * self.radius * lengths
            near = [self.values(at + k * NEARBY * lengths, *batch) for k in range(AROUND)]
            with np.errstate(invalid="ignore"):
                found = np.maximum(found, np.abs(np.diff(near, n=3, axis=0)).max(axis=0))
        return np.nan_to_num(SAFE * found, posinf=0.0)


EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)


def _first_above(excess: np.ndarray) -> int | None:
    return int(np.argmax(excess)) if excess.size and not excess.max() <= 1.0 else None


def far_points(sds: np.ndarray) -> np.ndarray:
    """Return steps from the mode with every parameter far out, in one sense or the other."""
    rng = np.random.default_rng(20240719)
    step = FAR * rng.choice([-1.0, 1.0], sds.size) * sds
    return np.array([step, -step])
