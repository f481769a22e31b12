"""Find the mode of the hyperparameters with the latent field integrated out.

A joint mode of effects and the logs of their scales is far from the bulk of the posterior or does
not exist. So the hyperparameters are found by their own density: first by the Laplace approximation
of the marginal (:mod:`.laplace`), then by averages of the rows over the field, which lead to the
mode of a lower bound of it (:mod:`.variational`).
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from pymc_minibatch.latent.expander import RowBudget, RowExpander
from pymc_minibatch.latent.expansion import Expansion
from pymc_minibatch.latent.factors import Factor
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.kinks import find_kinks
from pymc_minibatch.latent.laplace import LaplaceSearch
from pymc_minibatch.latent.mean_correction import MeanCorrection
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sums import ParabolicRows
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.latent.variational import STILL, VariationalSearch
from pymc_minibatch.reference.decide import log_density
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

__all__ = ["FewRows", "LatentReference", "search"]

SUBSAMPLE = 20_000

WITH_KINKS = 50
"""Rows with kinks for each entry of φ in a subsample, at least: intervals over which they are
averaged have the kinks of a fifth of them then. Averages over much wider ones are not the slopes of
skew rows, such as asymmetric Laplace ones, and the field runs away."""

FEW_TURNS, MOST_PASSES = 8, 60
"""Turns of a search on few rows, and how often it may read them: 15 to 30 passes are usual."""

NONE_LEFT_OUT = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class LatentReference:
    """Where the log-likelihood is expanded, and the marginal of the hyperparameters there.

    Attributes
    ----------
    surrogate : Surrogate
        Prior and second-order likelihood about the mode.
    hyper : ndarray, shape (H,)
        The mode of the hyperparameters.
    hyper_cholesky : ndarray, shape (H, H)
        Lower factor of their covariance there.
    passes : float
        How often all rows were read.
    seconds : float
        Time that was spent.
    temperature : float
        Of the posterior.
    """

    surrogate: Surrogate
    hyper: np.ndarray
    hyper_cholesky: np.ndarray
    passes: float
    seconds: float
    temperature: float

    @property
    def is_exact(self) -> bool:
        """Whether the surrogate is the posterior itself."""
        return self.surrogate.expansion.is_exact

    @property
    def log_volume(self) -> float:
        """The log-determinant of the factor of the covariance of h."""
        return float(np.log(np.diagonal(self.hyper_cholesky)).sum())

    def log_density(self, point: np.ndarray) -> float:
        """Return that of the posterior, from all rows; −∞ if it is not a number."""
        tall, derivatives = self.surrogate.tall, self.surrogate.field.derivatives
        flat = derivatives.coordinates.to_model(point)
        of_model = log_density(tall, self.temperature, tall.layout.unflatten(flat))
        return of_model + derivatives.angles.log_weight(flat)

    def whiten(self, point: np.ndarray) -> tuple[np.ndarray, ...] | None:
        """Return coordinates of h, border and groups, standard normal to second order.

        None where the field given h is not Gaussian.
        """
        hyper = point[self.surrogate.field.hyper]
        given = self.surrogate.factored_later(hyper)
        if not given.is_proper:
            return None
        z = np.linalg.solve(self.hyper_cholesky, hyper - self.hyper)
        return z, *given.frame.whiten(point)

    def color(self, coordinates: tuple[np.ndarray, ...]) -> tuple[np.ndarray | None, float]:
        """Return the point with these coordinates, if there is one, and log |L| of the field."""
        z, *eta = coordinates
        given = self.surrogate.factored_later(self.hyper + self.hyper_cholesky @ z)
        if not given.is_proper:
            return None, math.nan
        return given.frame.color((eta[0], eta[1])), given.log_determinant


def search(
    tall: TallModel,
    field: LatentField,
    rows: RowFunctions,
    factors: Sequence[Factor],
    temperature: float = 1.0,
    start: np.ndarray | None = None,
    parabolic: ParabolicRows | None = None,
    left_out: np.ndarray = NONE_LEFT_OUT,
    is_known: Callable[[np.ndarray], bool] | None = None,
    budget: RowBudget | None = None,
    near: LatentReference | None = None,
) -> LatentReference:
    """Find the mode, first on some rows, then on all; add higher orders by grouping factors.

    If rows are parabolas, sums say everything of them, and take the place of all this. Rows that
    are left out, by their numbers, have no share in the expansion. The search ends as soon as it is
    about a mode that `is_known`, or has read the rows of a `budget` before it is about any. It goes
    on from what was found `near`, given nearly the same rows.

    Raises
    ------
    NoFieldError
        If there is no such mode.
    KnownModeError
        If it is known.
    """
    started = time.perf_counter()
    coordinates = field.derivatives.coordinates
    if near is not None:
        start = coordinates.to_model(near.surrogate.center)
    first = coordinates.from_model(tall.start.copy() if start is None else start)
    expander = RowExpander.of(tall, field, rows, factors, temperature).without(left_out)
    expander.budget = budget or expander.budget
    some = None
    if parabolic is not None:
        expander.sum_exactly(first, parabolic)
    elif tall.n_rows > 2 * SUBSAMPLE and near is None and _may_be_few(rows):
        some = expander.some(SUBSAMPLE)
    laplace = LaplaceSearch(expander, is_known)
    variational = VariationalSearch(laplace, MeanCorrection(expander, factors), first)
    try:
        try:
            again = None if near is None else _again_if_possible(variational, near)
            surrogate, cholesky = again or _from_mode(variational, some, parabolic)
        except (NoFieldError, np.linalg.LinAlgError):
            if parabolic is not None or not field.latent.groups.size:
                raise
            surrogate, cholesky = variational.from_afar()
        if parabolic is not None and not expander.agrees(surrogate, cholesky):
            raise NoFieldError("sums over the rows miss their log-likelihood far from the mode.")
    except np.linalg.LinAlgError as error:
        raise NoFieldError(f"The mode of the effects was not found: {error}.") from error
    if surrogate.kinks is None:
        surrogate.kinks = find_kinks(surrogate)
    return LatentReference(
        surrogate,
        surrogate.center[field.hyper],
        cholesky,
        (expander.rows_read + (0 if some is None else some.rows_read)) / tall.n_rows,
        time.perf_counter() - started,
        temperature,
    )


def _may_be_few(rows: RowFunctions) -> bool:
    """Whether the mode of some rows is near that of all, or else not dear to find."""
    return not rows.kinked or rows.structure.n_read * WITH_KINKS <= SUBSAMPLE


def _again_if_possible(
    variational: VariationalSearch, near: LatentReference
) -> tuple[Surrogate, np.ndarray] | None:
    if not near.hyper.size or variational.rows.functions.kinked:
        return None
    with suppress(NoFieldError, np.linalg.LinAlgError):
        return variational.from_near(near.surrogate, near.hyper_cholesky)
    return None


def _from_mode(
    variational: VariationalSearch, some: RowExpander | None, parabolic: ParabolicRows | None
) -> tuple[Surrogate, np.ndarray]:
    laplace, rows, start = variational.laplace, variational.rows, variational.first
    mode = laplace.from_point(start if some is None else _mode_of_some(some, start))
    rows.budget = RowBudget()  # it is about another mode
    if parabolic is not None:  # sums about a point that is far off lose digits
        rows.sum_exactly(mode.center, parabolic)
        mode, _, _ = laplace.turn(rows.expand(mode.center))
    return variational.from_mode(mode) if mode.kinks is None else (mode, np.empty((0, 0)))


def _mode_of_some(some: RowExpander, point: np.ndarray) -> np.ndarray:
    """Return the mode of some rows; where they have none, the point.

    There may be none where levels that have their own scale keep one row or two.
    """
    with suppress(NoFieldError, np.linalg.LinAlgError):
        return LaplaceSearch(some).from_point(point).center
    return point


class FewRows:
    """The posterior given few of the rows, on which other modes are searched.

    Parameters
    ----------
    tall, field, rows, factors, temperature
        As :func:`search` takes them.
    n_rows
        How many.
    exact
        The expansion of all rows, if it holds everywhere; then no row is needed.
    """

    def __init__(
        self,
        tall: TallModel,
        field: LatentField,
        rows: RowFunctions,
        factors: Sequence[Factor],
        temperature: float,
        n_rows: int,
        exact: Expansion | None = None,
    ) -> None:
        expander = RowExpander.of(tall, field, rows, factors, temperature)
        expander.exact = exact
        self._rows = expander.some(min(n_rows, tall.n_rows))

    def bends_down(self, point: np.ndarray) -> bool:
        """Whether the field is concave at a point."""
        surrogate = self._rows.expand(point)
        curvature = surrogate.expansion.curvature
        if surrogate.expansion.psd_shift.any() or not np.isfinite(curvature.blocks).all():
            return False
        return surrogate.factored_later(point[self._rows.field.hyper]).is_proper

    def mode(self, start: np.ndarray) -> LatentReference:
        """Return the mode that a search from a point ends in; correlations of h are left out.

        Raises
        ------
        NoFieldError, LinAlgError
            If there is none, or it is not found soon.
        """
        few = replace(self._rows, budget=RowBudget(MOST_PASSES * self._rows.n_rows))
        laplace = LaplaceSearch(few)
        surrogate = laplace.climb_field(few.expand(start))
        for _ in range(FEW_TURNS):
            surrogate, length, shift = laplace.turn(surrogate)
            if length < STILL and shift < STILL:
                break
        hyper, widths = surrogate.center[few.field.hyper], laplace.climb.widths
        if widths is None and hyper.size:
            raise NoFieldError("The hyperparameters have no density there.")
        coordinates = few.field.hyper_coordinates
        own = np.diag(np.empty(0) if widths is None else widths)
        cholesky = coordinates.cholesky_of_hyper(coordinates.from_hyper(hyper), own)
        return LatentReference(surrogate, hyper, cholesky, 0.0, 0.0, few.temperature)
