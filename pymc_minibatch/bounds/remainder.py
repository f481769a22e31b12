"""Bounds on the Taylor remainder of each row: what the exact test draws rows by.

See :mod:`pymc_minibatch.acceptance.exact` for the inequality.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from pymc_minibatch.bounds.families.family import Third
from pymc_minibatch.bounds.predictor import (
    NoPredictorError,
    Predictor,
    find_predictor,
    linearised,
    predictors_of_all_rows,
)
from pymc_minibatch.bounds.row_claims import RowClaims, far_points
from pymc_minibatch.bounds.third import find_third
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.taylor import row_term
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.tall.verify import rounding_of_rows
from pymc_minibatch.tall.weighted import SizedRows, size_rows

__all__ = ["RemainderBounds", "bound_remainders", "predictor_and_third"]

BEYOND = 6.0
"""Bounds hold up to |z| = √D + 6: a Gaussian chain leaves that ball with probability exp(−18)."""

FAR_BEYOND = 12.0
"""The same if rows are in partitions, beyond which no chain comes (probability exp(−72)): there
all of them would have to be read. With so many rows it makes bounds hardly larger."""

PAIRS = 2000
"""Pairs of Gaussian points over which the expected number of rows is averaged."""

TRIAL_ROWS = 500
ROUNDING = 1e-9

NOISE = 16.0
"""Remainders may differ by so many times what one way of rounding does to a row: those of large
counts are small differences of large terms."""

NONE = np.empty(0, dtype=np.int64)

SOME_ROWS = 2000
TOO_MANY = 2.0
"""With so many times the rows that are wanted, some rows tell that bounding all is in vain."""


@dataclass(frozen=True)
class RemainderBounds:
    """Bounds c_n M on how far the remainder of row n differs between two points.

    Attributes
    ----------
    sizes : ndarray of float32, shape (N,), or SizedRows
        c_n, rounded up; if rows are in partitions, how they are computed and their sums.
    whiten : ndarray, shape (D, D)
        Lᵀ, with LLᵀ the precision of the Gaussian approximation.
    radius : float
        How far from the reference they hold, in the coordinates z = Lᵀ(θ − θ̂).
    expected_rows : float
        Rows of a decision on independent draws from the Gaussian approximation, on average.
    """

    sizes: np.ndarray | SizedRows
    whiten: np.ndarray
    radius: float
    expected_rows: float


def bound_remainders(
    tall: TallModel, control: ControlVariate, third: Any = None, most_rows: float = np.inf
) -> RemainderBounds:
    """Bound the remainders of all rows in one pass, and verify the bounds on some.

    `third` is a bound on the third derivative that the user brings. The pass takes D² products for
    each row; where decisions clearly take more than `most_rows` it is not begun.

    Raises
    ------
    NoPredictorError
        If rows have no affine predictor, or no bound is known, or decisions take too many rows.
    ValueError
        If the user's bound is none.
    """
    reference, temperature = control.reference, control.temperature
    lower = np.linalg.cholesky(control.gaussian.precision_at(temperature))
    beyond = BEYOND if tall.partitions is None else FAR_BEYOND
    radius = float(np.sqrt(reference.flat.size) + beyond)
    brought = None if third is None else _brought(third, tall.n_rows)
    if tall.partitions is not None and np.ndim(third):
        raise ValueError(
            "Exact(third=...) takes one number if rows are in partitions, not one for each row."
        )
    known: Third | None = None
    if brought is None:
        predictor, known = predictor_and_third(tall, reference.flat)
    else:
        predictor = find_predictor(tall)
    names = " + ".join(tall.row_names)
    look = make_look(predictor, known, reference.flat, lower, radius, brought, names)
    per_size = _mean_factor(reference.flat.size) / temperature
    if known is not None and np.isfinite(most_rows):
        rows = control.left_to_batches(tall.random_rows(np.random.default_rng(0), SOME_ROWS))
        some_lengths, some_bounds = look(*tall.batch(np.sort(rows)))
        expected = tall.n_rows * float(np.mean(some_bounds * some_lengths**3)) * per_size
        if expected > TOO_MANY * most_rows:
            raise NoPredictorError(f"Exact would take about {expected:,.3g} rows per decision")
    sizes: np.ndarray | SizedRows
    if tall.partitions is not None:
        sizes = _sized(tall, partial(_row_sizes, look))
        total = sizes.total
    else:
        verify = partial(look.verified, control.always_read)
        chunks = over_chunks(verify, tall.data, "Bounding the remainders", numbered=True)
        lengths, bounds = map(np.concatenate, zip(*(part for _, part in chunks), strict=True))
        exact = bounds * lengths**3
        exact[control.always_read] = 0.0  # of these nothing is left to batches
        if not np.isfinite(exact).all():
            row = int(np.argmin(np.isfinite(exact)))
            raise NoPredictorError(
                f"the third derivative of row {row} of {' + '.join(tall.row_names)} is not finite "
                "within the posterior"
            )
        sizes, total = _rounded_up(exact), float(exact.sum())
    found = RemainderBounds(
        sizes,
        np.ascontiguousarray(lower.T),
        radius if brought is None else np.inf,
        total * per_size,
    )
    _verify(tall, control, found, brought is not None)
    return found


def predictor_and_third(tall: TallModel, at: np.ndarray) -> tuple[Predictor, Third]:
    """Return what rows read the parameters through, and a bound that is known by it.

    Raises
    ------
    NoPredictorError
        If there is none for the predictor of each row; that one of all rows has none says less.
    """
    try:
        predictor = find_predictor(tall)
        return predictor, find_third(tall, predictor, at)
    except NoPredictorError as error:
        refused = error
    for predictor in predictors_of_all_rows(tall):
        with suppress(NoPredictorError):
            return predictor, find_third(tall, predictor, at)
    raise refused


def _rounded_up(sizes: np.ndarray) -> np.ndarray:
    return np.nextafter(sizes.astype(np.float32), np.float32(np.inf)) * (sizes > 0)


def _row_sizes(look: "_Look", *batch: np.ndarray) -> np.ndarray:
    """Return c_n of the rows of a batch."""
    lengths, bounds = look.verified(NONE, 0, *batch)
    return _rounded_up(bounds * lengths**3)


def _sized(tall: TallModel, sizer: Callable[..., np.ndarray]) -> SizedRows:
    """Sum sizes in the partitions."""
    assert tall.partitions is not None
    found = size_rows(tall.partitions, sizer, title="Bounding the remainders")
    if not np.isfinite(found.totals).all():
        raise NoPredictorError(
            f"the third derivative of a row of {' + '.join(tall.row_names)} is not finite within "
            "the posterior"
        )
    return found


def _brought(third: Any, n_rows: int) -> np.ndarray:
    values = np.asarray(third, dtype=float)
    if values.shape not in ((), (n_rows,)) or not (np.isfinite(values).all() and values.min() >= 0):
        raise ValueError(
            f"Exact(third=...) takes a number, or one for each of {n_rows} rows, at least 0 and "
            f"finite; got shape {values.shape}."
        )
    return np.broadcast_to(values, (n_rows,))


def make_look(
    predictor: Predictor,
    family: Third | None,
    reference: np.ndarray,
    lower: np.ndarray,
    radius: float,
    brought: np.ndarray | None = None,
    names: str = "the model",
) -> "_Look":
    """Make what looks at rows, before threads ask for its functions."""
    sds = np.linalg.norm(solve_triangular(lower, np.eye(lower.shape[0]), lower=True), axis=0)
    claims = RowClaims(
        predictor.vector_eta,
        predictor.vector_values,
        predictor.vector_taylor,
        predictor.unit,
        family,
        far_points(sds),
        radius,
    )
    return _Look(claims, reference, lower, sds, brought, names)


@dataclass(frozen=True)
class _Look:
    """Posterior sds of the predictors of rows, and bounds on their third derivatives."""

    claims: RowClaims
    reference: np.ndarray
    lower: np.ndarray
    steps: np.ndarray
    brought: np.ndarray | None
    names: str

    def __call__(self, *batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look at some rows."""
        return self._of(batch, 0)[2:]

    def verified(
        self, left_out: np.ndarray, first: int, *batch: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Verify also that each is of the family; `first` is the number of the first row.

        Raises
        ------
        NoPredictorError, ValueError
            If a row is not, or the user's bound does not hold for it.
        """
        eta, jacobian, lengths, bounds = self._of(batch, first)
        some = np.setdiff1d(np.arange(eta.size), left_out - first)
        if some.size < eta.size:
            batch = tuple(np.ascontiguousarray(values[some]) for values in batch)
            eta, jacobian = eta[some], jacobian[some]
        row = self.claims.curved_row(self.reference, eta, jacobian, batch)
        if row is not None:
            raise NoPredictorError(
                f"the predictor of row {first + some[row]} of {self.names} is not affine in the "
                "parameters"
            )
        given = None if self.brought is None else bounds[some]
        with np.errstate(all="ignore"):
            row = self.claims.strange_row(eta, lengths[some], batch, given)
        if row is not None and given is not None:
            raise ValueError(no_bound(int(first + some[row]), self.names))
        if row is not None:
            raise NoPredictorError(
                f"row {first + some[row]} of {self.names} is not of the family of others (it may "
                "be censored, of another kind or have a kink)"
            )
        return lengths, bounds

    def _of(
        self, batch: Sequence[np.ndarray], first: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        eta, jacobian = linearised(self.claims.eta_of, self.reference, self.steps, batch)
        scaled = solve_triangular(self.lower, jacobian.T, lower=True)
        lengths = np.linalg.norm(scaled, axis=0)
        if self.brought is not None:
            return eta, jacobian, lengths, self.brought[first : first + eta.size]
        assert self.claims.family is not None
        reach = self.claims.radius * lengths
        with np.errstate(over="ignore"):
            return eta, jacobian, lengths, self.claims.family(eta - reach, eta + reach, batch)


def _mean_factor(dim: int) -> float:
    """Mean of M over pairs of independent standard normal points."""
    here, there = np.random.default_rng(0).standard_normal((2, PAIRS, dim))
    squares = (here**2).sum(1) + (here * there).sum(1) + (there**2).sum(1)
    return float(np.mean(np.linalg.norm(there - here, axis=1) * squares) / 6)


def _verify(
    tall: TallModel, control: ControlVariate, bounds: RemainderBounds, brought: bool
) -> None:
    """Compare bounds with remainders of random rows, near the reference and far from it."""
    rng = np.random.default_rng(20240719)
    rows = np.sort(control.left_to_batches(tall.random_rows(rng, min(TRIAL_ROWS, tall.n_rows))))
    reference = control.reference
    batch = tall.batch(rows)
    of_all = bounds.sizes
    sizes = of_all.sizer(*batch) if isinstance(of_all, SizedRows) else of_all[rows]
    remainder = row_term(tall, reference, 2)
    dim = reference.flat.size
    for spread in (0.3, 1.0, 3.0, 10.0) if brought else (0.3, 1.0):
        z = spread * rng.standard_normal((2, dim))
        z *= np.minimum(1, bounds.radius / np.linalg.norm(z, axis=1))[:, None]
        here, there = reference.flat + np.linalg.solve(bounds.whiten, z.T).T
        terms = [remainder(point, batch) for point in (here, there)]
        factor = np.linalg.norm(z[1] - z[0]) * ((z**2).sum() + z[0] @ z[1]) / 6
        allowed = sizes * factor + ROUNDING * (1 + np.abs(terms[0]))
        excess = np.abs(terms[1] - terms[0]) - allowed
        if not excess.max() <= 0:
            points = (here, there, reference.flat)
            excess -= NOISE * rounding_of_rows(tall.batch_graph, points, batch)
        if not excess.max() <= 0:
            row = int(rows[np.argmax(np.nan_to_num(excess, nan=np.inf))])
            raise ValueError(no_bound(row, " + ".join(tall.row_names)))


def no_bound(row: int, names: str) -> str:
    """Say that a bound is none."""
    return (
        f"The bound on the third derivative does not hold for row {row} of {names}. It must hold "
        "at every value of the predictor; look at Exact(third=...), or use CorrectedBarker()."
    )
