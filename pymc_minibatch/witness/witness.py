"""A witness to a run: moves of every kind are compared with the model's own density as it goes.

It looks when set-up is done, when tuning is, and from then on as often as a share of the run's time
allows: from where the chain is, and from the farthest places where it has been in each variable. It
has random numbers of its own and changes nothing, so that draws are those of a run without it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from typing import Any, Protocol

import numpy as np

from pymc_minibatch.kernels.farthest import farthest
from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.comparison import Comparison, SurpriseError

__all__ = ["FarthestPoints", "Look", "Witness"]

SHARE = 0.03
"""Of the work of draws that looks may take beyond the first one, which is always made."""

LOOK, LOOK_DRAWS, DRAW_ROWS = 8.0, 4.0, 5000.0
"""A look takes about as long as so many passes over all rows, or as so many draws if these are more
work, as those of models with effects may be: there looks took two to four draws. PyMC takes some
0.1 ms for a draw, in which so many rows could be read. Work is reckoned in rows, without a clock,
so that runs can be repeated."""

SETTLED = 20
"""Draws after which deviations are measured: before, standard deviations are not known."""


class Look(Protocol):
    """What compares moves from a point."""

    density: ModelDensity

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Yield comparisons, one for each kind of moves."""

    def look_at_batches(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Yield comparisons of batches, as decisions on moves from a point draw them, if any do."""
        return iter(())


class FarthestPoints:
    """For each variable the draw at which one of its elements was farthest out.

    Parameters
    ----------
    layout
        Positions of the variables in a flat point.
    """

    def __init__(self, layout: PointLayout) -> None:
        self.layout, self.n = layout, 0
        self.mean, self.squares = np.zeros(layout.size), np.zeros(layout.size)
        self.distance = dict.fromkeys(layout.names, 0.0)
        self.points: dict[str, np.ndarray] = {}

    def add(self, points: np.ndarray) -> None:
        """Take note of draws, shape (draws, size), one after the other."""
        names = self.layout.names
        distances = np.array([self.distance[name] for name in names])
        at = np.full(len(names), -1)
        ends = np.cumsum(self.layout.sizes)
        farthest()(points, self.n, self.mean, self.squares, ends, SETTLED, distances, at)
        self.n += len(points)
        for name, distance, draw in zip(names, distances.tolist(), at.tolist(), strict=True):
            if draw >= 0:
                self.distance[name], self.points[name] = distance, points[draw]

    def take(self) -> np.ndarray | None:
        """Return the farthest point that was not taken yet."""
        if not self.points:
            return None
        name = max(self.points, key=lambda each: self.distance[each])
        return self.points.pop(name)


class Witness:
    """What was compared, and when to look again.

    Parameters
    ----------
    layout
        Positions of the variables in a flat point.
    n_rows : int
        N.

    Attributes
    ----------
    n_moves : int
        Moves that were compared.
    kinds : set of str
        Their kinds.
    error : float
        The largest |R̂ − R| / (1 + |R|) beyond rounding.
    seconds : float
        What it took.
    """

    def __init__(self, layout: PointLayout, n_rows: int) -> None:
        self.layout, self.n_rows, self.seconds = layout, n_rows, 0.0
        self.start_chain()

    def start_chain(self) -> None:
        """Begin with another chain, which is looked at when it has tuned."""
        self.n_moves, self.error = 0, 0.0
        self.kinds: set[str] = set()
        self.farthest = FarthestPoints(self.layout)
        self._work, self._own_work = 0.0, 0.0

    @property
    def counts(self) -> dict[str, Any]:
        """What it needs to go on with a chain, in numbers and arrays."""
        far = self.farthest
        return {
            "n_moves": self.n_moves,
            "error": self.error,
            "work": self._work,
            "own_work": self._own_work,
            "n": far.n,
            "mean": far.mean.copy(),
            "squares": far.squares.copy(),
            "distance": dict(far.distance),
            "points": dict(far.points),
        }

    @counts.setter
    def counts(self, counts: Mapping[str, Any]) -> None:
        self.n_moves, self.error = counts["n_moves"], counts["error"]
        self._work, self._own_work = counts["work"], counts["own_work"]
        far = self.farthest = FarthestPoints(self.layout)
        far.n, far.mean, far.squares = counts["n"], counts["mean"], counts["squares"]
        far.distance, far.points = dict(counts["distance"]), dict(counts["points"])

    def after_draws(
        self, make_look: Callable[[], Look | None], points: np.ndarray, read: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look from each draw, or from the farthest one before, if it is time to.

        Given are what makes what compares, None if nothing can be, and how many rows each draw has
        read. Returned are, after each, how many moves were compared, and the largest error.

        Raises
        ------
        SurpriseError
            If a move is not what the model's density makes it.
        """
        n, start, can_look = len(points), 0, True
        n_moves, errors = np.zeros(n, dtype=np.int64), np.zeros(n)
        work = np.cumsum(np.concatenate([[self._work], DRAW_ROWS + read]))[1:]
        of_draws = work / (self.farthest.n + np.arange(1, n + 1))
        of_look = np.maximum(LOOK * self.n_rows, LOOK_DRAWS * of_draws)
        while start < n:
            due = self._next_due(work, of_look, start) if can_look else n
            n_moves[start:due], errors[start:due] = self.n_moves, self.error
            stop = min(due + 1, n)
            self.farthest.add(points[start:stop])
            self._work = float(work[stop - 1])
            if due < n:
                can_look = self._look_if_possible(make_look(), points[due], of_look[due])
                n_moves[due], errors[due] = self.n_moves, self.error
            start = stop
        return n_moves, errors

    def _next_due(self, work: np.ndarray, of_look: np.ndarray, start: int) -> int:
        """Return the draw after which to look next; their number if none is.

        Given are the work up to each draw, and that of a look then.
        """
        if not self.n_moves:
            return start
        is_due = self._own_work + of_look[start:] <= SHARE * work[start:]
        return start + int(np.argmax(is_due)) if is_due.any() else len(work)

    def _look_if_possible(self, look: Look | None, point: np.ndarray, work: float) -> bool:
        if look is None:
            return False
        far = None
        if self.n_moves:
            self._own_work += float(work)
            far = self.farthest.take()
        self.look(look, point if far is None else far)
        return True

    def look(self, look: Look, point: np.ndarray) -> None:
        """Compare moves from a point, and batches the first time.

        Raises
        ------
        SurpriseError
            If one of them is not what the model's density makes it.
        """
        started = time.perf_counter()
        digest = sha256(np.ascontiguousarray(point).tobytes()).digest()
        rng, is_first = np.random.default_rng(int.from_bytes(digest[:16])), not self.n_moves
        batches = look.look_at_batches(rng, point) if is_first else ()
        try:
            for comparison in chain(look.look(rng, point), batches):
                self.n_moves += 1
                self.kinds.add(comparison.move)
                if not comparison.agrees and not comparison.says:
                    allowed = comparison.rounding + look.density.noise()
                    comparison = comparison._replace(rounding=allowed)
                self.error = max(self.error, comparison.error)
                if not comparison.agrees:
                    raise SurpriseError(comparison)
        finally:
            self.seconds += time.perf_counter() - started
