"""Sampling weights of rows: how far their remainders vary over posterior points.

Rows are drawn with a probability proportional to size. A row that is flat at these points, with a
wall behind, gets a size that has it drawn about ten times in each batch.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.cubic import Cubic
from pymc_minibatch.latent.search import LatentReference
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["Sizes", "sizes_of_rows"]

SIZING_PAIRS = 16
"""Opposite posterior points at which each row is looked at."""

SIZING_WIDTH, KINKED_WIDTH = 1.5, 1.7
"""How far apart they are: rows that do more farther out would be read too seldom."""

READ_PAIRS = 12
"""Of these so many tell the scale of what each row reads."""

WALLS_FROM, WALLS_TO = 4.0, 7.0
"""Standard deviations of what a row reads at which walls are looked for; these are estimates."""

WALL = 4.0
"""Nats that a row leaves of its expansion there, to be drawn about ten times in each batch."""


class Sizes(NamedTuple):
    """How far remainders vary over posterior points.

    Attributes
    ----------
    rows : ndarray, shape (N,)
        By which each row is drawn.
    ranges : ndarray, shape (N,)
        How far its remainder varies at these points, without walls behind them; infinite if it is
        impossible at one.
    farthest : ndarray, shape (G,)
        How far out the levels of a factor were at these points, if it has higher orders.
    """

    rows: np.ndarray
    ranges: np.ndarray
    farthest: np.ndarray


def sizes_of_rows(
    reference: LatentReference,
    rows: RowFunctions,
    cubics: Sequence[Cubic | None],
) -> list[Sizes]:
    """Look at all rows in one pass, beside the higher orders of each of some factors or none."""
    if not cubics:
        return []
    if len(cubics) > 1 and not any(cubics):  # all are the same
        return sizes_of_rows(reference, rows, [None]) * len(cubics)
    surrogate = reference.surrogate
    width = KINKED_WIDTH if rows.kinked else SIZING_WIDTH
    predictors = [surrogate.read(point) for point in _points(reference, width)]
    phis = np.array([predictor.phi for predictor in predictors])
    of_cubics = [[surrogate.coordinates(c, p) for p in predictors] if c else [] for c in cubics]
    coordinates = np.zeros((len(cubics), *phis.shape))
    for cubic, own, put in zip(cubics, of_cubics, coordinates, strict=True):
        for u, place in zip(own, put, strict=False):
            assert cubic is not None
            cubic.put(place, u)
    _ = rows.row, rows.derivatives, rows.predictors_at  # before threads ask for them
    at = surrogate.expansion.at

    def spread(*batch: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values = rows.remainders_by_factors(phis, coordinates, at, batch)
        possible = np.isfinite(values).all(axis=1)
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        wall = _walls(rows, at, list(phis[: 2 * READ_PAIRS]), width, batch)
        return (
            np.maximum(values.max(axis=1), 0.0) - np.minimum(values.min(axis=1), 0.0),
            possible,
            wall,
        )

    parts = [part for _, part in over_chunks(spread, surrogate.tall.data, "Sizing the rows")]
    walls = np.concatenate([wall for *_, wall in parts])
    found = []
    for k, (cubic, own) in enumerate(zip(cubics, of_cubics, strict=True)):
        ranges = np.concatenate([part[k] for part, *_ in parts])
        possible = np.concatenate([each[k] for _, each, _ in parts])
        distances = [np.empty(0)] if cubic is None else [cubic.distances(u) for u in own]
        # Remainders can be small at a few points by chance: half of the draws are uniform.
        sizes = ranges + max(float(ranges.mean()), np.finfo(float).tiny)
        ranges = np.where(possible, ranges, np.inf)
        found.append(Sizes(np.maximum(sizes, walls), ranges, np.max(distances, axis=0)))
    return found


def _points(reference: LatentReference, width: float) -> Iterator[np.ndarray]:
    """Draw opposite posterior points, wider than the posterior.

    If the field has no Gaussian at an h, they are drawn from that at the mode.
    """
    surrogate, rng = reference.surrogate, np.random.default_rng(4)
    given = None
    for _ in range(SIZING_PAIRS):
        away = reference.hyper_cholesky @ rng.standard_normal(reference.hyper.size)
        dense, groups = surrogate.field.latent.noise(rng)
        for sign in (1.0, -1.0):
            if given is None or reference.hyper.size:
                hyper = reference.hyper + sign * np.clip(away, -1.0, 1.0)
                given = surrogate.factored_later(hyper)
                if not given.is_proper:
                    given = surrogate.conditional(reference.hyper)
            yield given.frame.color((sign * width * dense, sign * width * groups))


def _walls(
    rows: RowFunctions,
    at: np.ndarray,
    near: Sequence[np.ndarray],
    width: float,
    batch: Sequence[np.ndarray],
) -> np.ndarray:
    """Return the sizes of rows that are flat at first and have a wall behind; 0 for others.

    Each is looked at at its own scale: along axes of the covariance of what it reads, which some
    posterior points tell, far beyond these points.
    """
    there = rows.predictors_at(at, *batch)
    taylor = rows.taylor(there, *batch)
    away = np.array([rows.predictors_at(phi, *batch) - there for phi in near]) / width
    k, steepest = there.shape[0], np.zeros(there.shape[1])
    with np.errstate(all="ignore"):
        for i in range(k):
            sd = np.sqrt((away[:, i] ** 2).mean(axis=0))
            axis = np.nan_to_num((away * away[:, i, None]).mean(axis=0) / sd)
            for s in (-WALLS_TO, -WALLS_FROM, WALLS_FROM, WALLS_TO):
                delta = s * axis
                rest = rows.row(there + delta, *batch)[0] - taylor[0]
                for j in range(k):
                    rest -= taylor[1 + j] * delta[j]
                    for m in range(j + 1):
                        share = 0.5 if j == m else 1.0
                        rest -= share * taylor[1 + k + second_order(j, m)] * delta[j] * delta[m]
                np.maximum(steepest, np.nan_to_num(np.abs(rest)), out=steepest)
    return np.where(steepest > WALL, WALL, 0.0)
