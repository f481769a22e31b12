"""Rows of which sums say everything, so that no move has to read one.

Let the log-likelihood of a row be quadratic in one local input v, and let the scalars s that all
rows share change its curvature by the same factor κ for each,

    f(vₙ, s) = fₙ* + α(s) + ½ κ(s) f''ₙ (vₙ − vₙ*)²,   α(ŝ) = 0,   κ(ŝ) = 1.

Normal rows are like this, with whatever known weights and an unknown standard deviation s. Then the
log-likelihood of all rows is, but for a constant,

    N α(s) + (κ(s) − 1) C + κ(s) (Gᵀδ − ½ δᵀKδ),   C = Σ ½ (f'ₙ)² / f''ₙ,

with G and K summed once, at φ̂: the surrogate is the posterior itself. α and κ are read from one
row. That rows are like this is seen from the values of all of them, nearby and far out.

Reference
---------
Bates, Mächler, Bolker and Walker (2015), Fitting linear mixed-effects models using lme4, section 3:
what linear models with effects take from their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.latent.expansion import Expansion, expand
from pymc_minibatch.latent.layout import ArrowLayout
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["CommonFactor", "ParabolicRows", "expand_exactly", "find_parabolic_rows"]

FIRST_ROWS = 256
"""Rows that are looked at before all others."""

DISTANCES = 0.7, -3.0, 40.0, -1000.0
"""Where rows are looked at, in units of the width 1/√−f'' of each."""

SPREAD = 1.0
"""How far from the start the scalars are looked at, on the unconstrained scale."""

TOLERANCE = 1e-9
"""Relative error of the value of a row."""


class ParabolicRows(NamedTuple):
    """In what rows are quadratic.

    Attributes
    ----------
    local : int
        The local input v.
    scalars : ndarray of int64
        Positions in φ of s.
    """

    local: int
    scalars: np.ndarray


@dataclass(frozen=True)
class CommonFactor:
    """α(s) and κ(s), as one row has them.

    Attributes
    ----------
    rows : RowFunctions
        What the rows read.
    row : tuple of ndarray
        The data of that row.
    local : int
        The local input v.
    v : float
        What the row reads at φ̂.
    n_rows : float
        N, divided by T.
    squares : float
        C.
    top, bend : float
        f* and f'' of the row at ŝ.
    """

    rows: RowFunctions
    row: tuple[np.ndarray, ...]
    local: int
    v: float
    n_rows: float
    squares: float
    top: float
    bend: float

    def __call__(self, phi: np.ndarray) -> tuple[float, float]:
        """Return ``N α + (κ − 1) C`` and κ."""
        v = self.rows.local_inputs(phi, *self.row)
        v[self.local] = self.v
        tops, _, bends = _parabolas(self.rows, self.local, v, self.row)
        factor, alpha = float(bends[0]) / self.bend, float(tops[0]) - self.top
        return self.n_rows * alpha + (factor - 1.0) * self.squares, factor


def find_parabolic_rows(tall: TallModel, structure: RowStructure) -> ParabolicRows | None:
    """Say in what rows are quadratic, from the values of all of them; None if they are not."""
    rows = RowFunctions(structure, evaluator)
    others = np.setdiff1d(np.arange(rows.n_locals), rows.reads.scalar_local)
    if others.size != 1:
        return None
    found = ParabolicRows(int(others[0]), rows.reads.scalars)
    phi = evaluator([structure.flat], [structure.phi])
    rng, start = np.random.default_rng(12), tall.start
    away = SPREAD * rng.standard_normal((len(DISTANCES), start.size))
    points = [phi(point) for point in (start, *(start + away))]
    with np.errstate(all="ignore"):
        first = [np.array(values[:FIRST_ROWS]) for values in tall.data]
        if not _curved_alike(rows, found, points[0], first):
            return None
        parts = over_chunks(
            lambda *batch: _are_parabolas(rows, found, points, batch), tall.data, "Looking at rows"
        )
        return found if all(passed for _, passed in parts) else None


def expand_exactly(
    rows: RowFunctions,
    parabolic: ParabolicRows,
    data: tuple[np.ndarray, ...],
    phi: np.ndarray,
    layout: ArrowLayout,
    temperature: float,
) -> Expansion:
    """Sum all rows at φ; the expansion holds everywhere, up to a constant."""
    local, scalars = parabolic

    def squares_of(*batch: np.ndarray) -> float:
        v = rows.local_inputs(phi, *batch)
        _, tips, bends = _parabolas(rows, local, v, batch)
        return float(np.sum(0.5 * bends * (v[local] - tips) ** 2))

    squares = sum(part for _, part in over_chunks(squares_of, data))
    row = tuple(np.array(values[:1]) for values in data)
    v = rows.local_inputs(phi, *row)
    [top], _, [bend] = _parabolas(rows, local, v, row)
    common = CommonFactor(
        rows,
        row,
        local,
        v=float(v[local, 0]),
        n_rows=len(data[0]) / temperature,
        squares=squares / temperature,
        top=float(top),
        bend=float(bend),
    )
    whole = ArrowLayout(np.union1d(layout.dense, scalars), layout.groups)
    expansion = expand(rows, data, phi, whole, temperature)
    slope = expansion.slope.copy()
    slope[scalars] = 0.0
    curvature = expansion.curvature.without(np.searchsorted(whole.dense, scalars))
    return replace(expansion, value=0.0, slope=slope, curvature=curvature, common=common)


def _parabolas(
    rows: RowFunctions, local: int, v: np.ndarray, batch: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return f*, v* and f'' of rows as their value and two derivatives at v have them."""
    taylor = rows.derivatives(v, *batch)
    slope, bend = taylor[1 + local], taylor[1 + rows.n_locals + second_order(local, local)]
    return taylor[0] - 0.5 * slope**2 / bend, v[local] - slope / bend, bend


def _curved_alike(
    rows: RowFunctions, found: ParabolicRows, phi: np.ndarray, batch: Sequence[np.ndarray]
) -> bool:
    """Whether second differences of rows are the same all along v, which takes no derivative."""
    v, values = rows.local_inputs(phi, *batch), []
    for step in range(-2, 3):
        moved = v.copy()
        moved[found.local] += step
        values.append(rows.row(moved, *batch)[0])
    second = np.diff(values, 2, axis=0)
    close = 1e-6 * (np.abs(second).max(axis=0) + TOLERANCE * np.abs(values).max(axis=0))
    return bool(np.all(np.ptp(second, axis=0) <= close))


def _are_parabolas(
    rows: RowFunctions,
    found: ParabolicRows,
    points: Sequence[np.ndarray],
    batch: Sequence[np.ndarray],
) -> bool:
    """Whether rows are parabolas whose height and width scalars change alike."""
    local = found.local
    tops, tips, bends = _parabolas(rows, local, rows.local_inputs(points[0], *batch), batch)
    if not np.all(bends < 0.0):
        return False
    for distance, phi in zip(DISTANCES, points[1:], strict=True):
        v = rows.local_inputs(phi, *batch)
        v[local] = tips
        higher, tips_then, bends_then = _parabolas(rows, local, v, batch)
        alpha, factor = higher - tops, bends_then / bends
        v[local] = tips + distance / np.sqrt(-bends)
        values, square = rows.row(v, *batch)[0], -0.5 * distance**2
        wrong = (
            np.abs(alpha - alpha[0])
            + np.abs(square * (factor - factor[0]))
            + np.abs(values - tops - alpha - square * factor)
            + np.abs((tips_then - tips) * np.sqrt(-bends))
        )
        if not np.all(wrong <= TOLERANCE * (1.0 + np.abs(tops) + np.abs(values))):
            return False
    return True
