"""Rows of which sums say everything, so that no move has to read one.

Let the log-likelihood of a row be quadratic in one predictor v, and let the scalars s that all
rows share change its curvature by the same factor κ for each,

    f(vₙ, s) = fₙ* + α(s) + ½ κ(s) f''ₙ (vₙ − vₙ*)²,   α(ŝ) = 0,   κ(ŝ) = 1.

Normal rows are like this, with whatever known weights and an unknown standard deviation s. Then the
log-likelihood of all rows is, but for a constant,

    N α(s) + (κ(s) − 1) C + κ(s) (Gᵀδ − ½ δᵀKδ),   C = Σ ½ (f'ₙ)² / f''ₙ,

with G and K summed once, at φ̂: the surrogate is the posterior itself. α and κ are read from one
row. That rows are like this is seen from the values of all of them, about the start and, once sums
have found the posterior, all over it.

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
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.reference.remainders import second_order
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.structure import RowStructure

__all__ = [
    "CommonFactor",
    "ParabolicRows",
    "agree_with_rows",
    "expand_exactly",
    "find_parabolic_rows",
]

FIRST_ROWS = 256
"""Rows that are looked at before all others."""

DISTANCES = 0.7, -3.0, 40.0, -1000.0
"""Where rows are looked at, in units of the width 1/√−f'' of each."""

STEP_SDS = 0.01
"""Of differences by a scalar, in standard deviations that the rows give it: their relative error is
10⁻⁴ of third derivatives, and that of rounding less."""

SPREAD = 1.0
"""How far from the start the scalars are looked at, on the unconstrained scale."""

TOLERANCE, ROUNDING = 1e-9, 1e-13
"""Relative errors of the value of a row, and of those from which differences are taken."""

CHECKED, CHECKED_WIDTH, CLOSE = 4, 4.0, 1e-3
"""Points at which sums are compared with rows, how many standard deviations they are off, and by
how much the log-likelihoods may differ."""


class ParabolicRows(NamedTuple):
    """In what rows are quadratic.

    Attributes
    ----------
    predictor : int
        The predictor v.
    scalars : ndarray of int64
        Positions in φ of s.
    """

    predictor: int
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
    predictor : int
        The predictor v.
    v : float
        What the row reads at φ̂.
    n_rows : float
        N, divided by T.
    squares : float
        C.
    top, curvature : float
        f* and f'' of the row at ŝ.
    scalars : ndarray of int64
        Positions of s in φ.
    steps : ndarray
        Of differences by each of them: a small share of how uncertain the rows leave it.
    """

    rows: RowFunctions
    row: tuple[np.ndarray, ...]
    predictor: int
    v: float
    n_rows: float
    squares: float
    top: float
    curvature: float
    scalars: np.ndarray
    steps: np.ndarray

    def __call__(self, phi: np.ndarray) -> tuple[float, float]:
        """Return ``N α + (κ − 1) C`` and κ."""
        v = self.rows.predictors_at(phi, *self.row)
        v[self.predictor] = self.v
        tops, _, curvatures = _parabolas(self.rows, self.predictor, v, self.row)
        factor, alpha = float(curvatures[0]) / self.curvature, float(tops[0]) - self.top
        return self.n_rows * alpha + (factor - 1.0) * self.squares, factor

    def slope(self, phi: np.ndarray, second_order: float) -> np.ndarray:
        """Return the slope of the log-likelihood by s, given what κ multiplies; by differences.

        Trajectories need it to a few digits, and always the same.
        """
        slopes = np.empty(self.scalars.size)
        for i, (scalar, step) in enumerate(zip(self.scalars, self.steps, strict=True)):
            ends = []
            for sign in (1.0, -1.0):
                moved = phi.copy()
                moved[scalar] += sign * step
                added, factor = self(moved)
                ends.append(added + factor * second_order)
            slopes[i] = (ends[0] - ends[1]) / (2.0 * step)
        return slopes


def find_parabolic_rows(tall: TallModel, structure: RowStructure) -> ParabolicRows | None:
    """Say in what rows are quadratic, from the values of all of them; None if they are not."""
    rows = RowFunctions(structure, evaluator)
    others = np.setdiff1d(np.arange(rows.n_predictors), rows.reads.scalar_predictor)
    if others.size != 1 or _read_twice(structure, rows.reads.scalars):
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
        first_row = _Seen.of(rows, found, points, [values[:1] for values in first])
        parts = over_chunks(
            lambda *batch: _Seen.of(rows, found, points, batch).is_like(first_row),
            tall.data,
            "Looking at rows",
        )
        return found if all(passed for _, passed in parts) else None


def expand_exactly(
    rows: RowFunctions,
    parabolic: ParabolicRows,
    data: tuple[np.ndarray, ...],
    phi: np.ndarray,
    layout: ArrowheadLayout,
    temperature: float,
) -> Expansion:
    """Sum all rows at φ; the expansion holds everywhere, up to a constant."""
    predictor, scalars = parabolic

    def squares_of(*batch: np.ndarray) -> float:
        v = rows.predictors_at(phi, *batch)
        _, tips, curvatures = _parabolas(rows, predictor, v, batch)
        return float(np.sum(0.5 * curvatures * (v[predictor] - tips) ** 2))

    squares = sum(part for _, part in over_chunks(squares_of, data))
    row = tuple(np.array(values[:1]) for values in data)
    v = rows.predictors_at(phi, *row)
    [top], _, [curvature] = _parabolas(rows, predictor, v, row)
    whole = ArrowheadLayout(np.union1d(layout.dense, scalars), layout.groups)
    expansion = expand(rows, data, phi, whole, temperature)
    places, common = np.searchsorted(whole.dense, scalars), None
    if scalars.size:
        precision = np.abs(expansion.curvature.dense.diagonal()[places])
        common = CommonFactor(
            rows,
            row,
            predictor,
            v=float(v[predictor, 0]),
            n_rows=len(data[0]) / temperature,
            squares=squares / temperature,
            top=float(top),
            curvature=float(curvature),
            scalars=scalars,
            steps=STEP_SDS / np.sqrt(precision),
        )
    slope = expansion.slope.copy()
    slope[scalars] = 0.0
    curvature = expansion.curvature.without(places)
    return replace(
        expansion, value=0.0, slope=slope, curvature=curvature, common=common, is_exact=True
    )


def agree_with_rows(
    rows: RowFunctions,
    data: tuple[np.ndarray, ...],
    surrogate: Surrogate,
    hypers: tuple[np.ndarray, np.ndarray],
    temperature: float,
) -> bool:
    """Whether sums and all rows say the same, far out in the posterior.

    Given are the mode of the hyperparameters and a factor of their covariance.
    """
    rng, mode = np.random.default_rng(13), surrogate.center
    points, (hyper, cholesky) = [mode], hypers
    for _ in range(CHECKED):
        away = CHECKED_WIDTH * np.clip(rng.standard_normal(hyper.size), -1.0, 1.0)
        frame = surrogate.conditional(hyper + cholesky @ away).frame
        dense, groups = frame.layout.noise(rng)
        points.append(frame.color((CHECKED_WIDTH * dense, CHECKED_WIDTH * groups)))
    predictors = [surrogate.read(point) for point in points]

    def values(*batch: np.ndarray) -> np.ndarray:
        return np.array(
            [rows.row(rows.predictors_at(each.phi, *batch), *batch).sum() for each in predictors]
        )

    by_rows = sum(part for _, part in over_chunks(values, data)) / temperature
    by_sums = np.array([surrogate.log_likelihood(each) for each in predictors])
    return bool(np.ptp(by_rows - by_sums) <= CLOSE)


def _parabolas(
    rows: RowFunctions, predictor: int, v: np.ndarray, batch: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return f*, v* and f'' of rows as their value and two derivatives at v have them."""
    taylor = rows.derivatives(v, *batch)
    slope, curvature = (
        taylor[1 + predictor],
        taylor[1 + rows.n_predictors + second_order(predictor, predictor)],
    )
    return taylor[0] - 0.5 * slope**2 / curvature, v[predictor] - slope / curvature, curvature


def _read_twice(structure: RowStructure, entries: np.ndarray) -> bool:
    """Whether rows read entries of φ in more than one place."""
    blocks = [term.block for term in structure.terms]
    return any(sum(block.start <= entry < block.stop for block in blocks) != 1 for entry in entries)


def _curved_alike(
    rows: RowFunctions, found: ParabolicRows, phi: np.ndarray, batch: Sequence[np.ndarray]
) -> bool:
    """Whether second differences of rows are the same all along v, which takes no derivative."""
    v, values = rows.predictors_at(phi, *batch), []
    for step in range(-2, 3):
        moved = v.copy()
        moved[found.predictor] += step
        values.append(rows.row(moved, *batch)[0])
    second = np.diff(values, 2, axis=0)
    close = 1e-6 * np.abs(second).max(axis=0) + ROUNDING * np.abs(values).max(axis=0)
    return bool(np.all(np.ptp(second, axis=0) <= close))


class _Seen(NamedTuple):
    """What some rows do at a few points.

    Attributes
    ----------
    alphas, factors : ndarray, shape (points, b)
        By how much each row is higher than at the first point, and how much more curved.
    wrong : ndarray, shape (points, b)
        How far it is from a parabola.
    scale : ndarray, shape (points, b)
        The size of its values.
    """

    alphas: np.ndarray
    factors: np.ndarray
    wrong: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(
        cls,
        rows: RowFunctions,
        found: ParabolicRows,
        points: Sequence[np.ndarray],
        batch: Sequence[np.ndarray],
    ) -> "_Seen":
        """Look at rows about their tips, where no digits are lost."""
        predictor, v = found.predictor, rows.predictors_at(points[0], *batch)
        _, v[predictor], _ = _parabolas(rows, predictor, v, batch)
        tops, tips, curvatures = _parabolas(rows, predictor, v, batch)
        seen = []
        for distance, phi in zip(DISTANCES, points[1:], strict=True):
            v = rows.predictors_at(phi, *batch)
            v[predictor] = tips
            higher, tips_then, curvatures_then = _parabolas(rows, predictor, v, batch)
            alpha, factor, square = higher - tops, curvatures_then / curvatures, -0.5 * distance**2
            v[predictor] = tips + distance / np.sqrt(
                -curvatures
            )  # not a number where it bends upwards
            values = rows.row(v, *batch)[0]
            wrong = np.abs(values - higher - square * factor)
            wrong += np.abs((tips_then - tips) * np.sqrt(-curvatures))
            seen.append((alpha, square * factor, wrong, np.abs(tops) + np.abs(values)))
        return cls(*np.array(seen).transpose(1, 0, 2))

    def is_like(self, first_row: "_Seen") -> bool:
        """Whether these rows are parabolas whose height and width change as those of the first."""
        wrong = self.wrong + np.abs(self.alphas - first_row.alphas)
        wrong += np.abs(self.factors - first_row.factors)
        return bool(np.all(wrong <= TOLERANCE * (1.0 + self.scale)))
