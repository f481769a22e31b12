"""Angles, which PyMC samples on a line: a weight that makes their density proper, and copies.

PyMC takes any number v for the angle arctan2(sin v, cos v), so that the density of v is periodic,
and no probability density. Expansions and independence proposals know one copy of each mode; a
chain that leaves it finds none of the others. So the density is multiplied by a weight

    w(u) = S((π + u) / s) S((π − u) / s),  S(x) = 1 / (1 + e⁻ˣ),

of the distance u = v − c of each angle from where set-up found it. S(x) S(y) is proportional to
S(x) − S(−y) where x + y is constant, so that the sum of w(u + 2πk) over all whole k telescopes, and
is the same for all u. The angle therefore has the law that it had. Given the angle, copy k of it
has a probability proportional to w(u + 2πk), and a draw begins with such a copy (a Gibbs update).
Without it an angle with mass half a turn from c would be cut in two there, and nothing would move
from one part to the other.

As c is where the mode is, the cut is opposite to it: a well-identified angle has no mass there, and
near the mode the weight is 1 to all digits.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_minibatch.tall import TallModel

__all__ = ["Angles"]

TURN = 2.0 * math.pi

WIDTH = math.pi / 40.0
"""s: about 1/80 of a turn. The other copies of an angle at c have a weight of e⁻⁴⁰, which is below
the precision of double numbers, and the weight of an angle is above 0.95 up to 13 degrees from the
cut."""

COPIES = np.array([-1.0, 0.0, 1.0])
"""Turns between the copies that are looked at and the nearest one; farther ones have a weight below
e⁻⁸⁰."""


@dataclass(frozen=True)
class Angles:
    """Which entries of a flat point are angles, and where the weight of each has its center.

    Attributes
    ----------
    positions : ndarray of int64, shape (A,)
        Positions in the flat point of the model, in increasing order.
    centers : ndarray, shape (A,)
        c.
    """

    positions: np.ndarray
    centers: np.ndarray

    @classmethod
    def none(cls) -> "Angles":
        """Return that there are none, or that none has a weight."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0))

    @classmethod
    def about(cls, tall: TallModel, point: np.ndarray) -> "Angles":
        """Return the angles of a model, with weights about a flat point."""
        positions = np.flatnonzero(tall.is_angle)
        return cls(positions, point[positions])

    def log_weight(self, point: np.ndarray) -> float:
        """Return the sum of log w over all angles of a flat point."""
        return float(_log_weight(point[self.positions] - self.centers).sum())

    def log_weight_graph(self, flat: Any, where: np.ndarray) -> Any:
        """Return log w of some entries of a flat point as a graph.

        Parameters
        ----------
        flat
            The flat point.
        where : ndarray of int64
            Positions of angles in it.

        Returns
        -------
        variable with the shape of `where`
        """
        centers = self.centers[np.searchsorted(self.positions, where.ravel())]
        away = flat[where.ravel()] - centers
        log_weight = -pt.softplus(-(math.pi + away) / WIDTH) - pt.softplus(
            -(math.pi - away) / WIDTH
        )
        return log_weight.reshape(where.shape)

    def weighted(self, prior: Variable, flat: Any) -> Variable:
        """Return the graph of a log prior with the weights of all angles; the same without any."""
        if not self.positions.size:
            return prior
        return prior + self.log_weight_graph(flat, self.positions).sum()

    def redraw_copies(self, rng: np.random.Generator, point: np.ndarray) -> None:
        """Draw anew which copy of each angle a flat point has, in place.

        Where the copy stays, all digits of the point do.
        """
        if not self.positions.size:
            return
        away = point[self.positions] - self.centers
        turns = COPIES[:, None] - np.rint(away / TURN)
        weights = np.exp(_log_weight(away + TURN * turns))
        shares = np.cumsum(weights, axis=0)
        chosen = (rng.random(away.size) * shares[-1] > shares).sum(axis=0)
        point[self.positions] += TURN * turns[chosen, np.arange(away.size)]


def _log_weight(away: np.ndarray) -> np.ndarray:
    """Return log w of distances from the center."""
    return -np.logaddexp(0.0, (away - math.pi) / WIDTH) - np.logaddexp(
        0.0, -(away + math.pi) / WIDTH
    )
