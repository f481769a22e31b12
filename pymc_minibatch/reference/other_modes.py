"""Whether searches from elsewhere, on few rows, find another mode."""

from collections.abc import Iterator
from copy import copy

import numpy as np
from scipy.linalg import cho_solve

from pymc_minibatch.reference.mode_search import FAR, maximise, sample_rows
from pymc_minibatch.reference.reference import KINKED_LENGTH, TOLERANCE, NoReferenceError
from pymc_minibatch.reference.search_density import TRIAL_ROWS, SearchDensity
from pymc_minibatch.tall import TallModel

__all__ = ["has_other_mode"]

TRIAL_STARTS, TRIAL_JITTER = 4, 2.0
"""Searches from elsewhere, and how far from the first start theirs are, in units of the
coordinates."""

MOST_MIRRORED = 4
"""So many more from the mode with the sign of a single number changed."""

LEAST_DENSITY = 10.0
"""A mode whose log-density, on those rows, is lower by more does not count."""


def has_other_mode(
    density: SearchDensity, theta: np.ndarray, initial: np.ndarray, rng: np.random.Generator
) -> bool:
    """Whether searches from elsewhere, on few rows, end in another mode than the one that is known.

    The log-density is that of these rows alone, so that a mode does not count as improbable because
    of how these rows happen to fall.
    """
    rows = sample_rows(density.tall, TRIAL_ROWS, rng)
    rows = density.tall.data if rows is None else rows
    alone = copy(density)
    alone.temperature *= density.tall.n_rows / len(rows[0])

    def climb(start: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
        """Return a mode, its log-density and its precision; None if the search ends in none."""
        try:
            point = maximise(alone, start, rows)
            precision = alone.precision(point, rows)
            factor = alone.factor(point, precision)
        except NoReferenceError:
            return None
        value, gradient = alone.value_gradient(point, rows)
        if not np.isfinite(gradient).all():
            return None
        tolerance = KINKED_LENGTH if alone.kinked else TOLERANCE
        arrived = gradient @ cho_solve(factor, gradient) < tolerance
        return (point, value, precision) if arrived else None

    known = climb(theta)
    jitter = rng.uniform(-TRIAL_JITTER, TRIAL_JITTER, (TRIAL_STARTS // 2, initial.size))
    jitter *= density.units
    starts = [initial + shift for shift in (*jitter, *-jitter)]  # pairs find permuted modes sooner
    for start in (*starts, *_mirrored(density.tall, theta)):
        other = climb(start)
        if known is None or other is None:
            continue
        delta = other[0] - known[0]
        as_probable = known[1] - other[1] < LEAST_DENSITY
        if as_probable and delta @ known[2] @ delta > FAR**2:
            return True
    return False


def _mirrored(tall: TallModel, theta: np.ndarray) -> Iterator[np.ndarray]:
    """Change the sign of a variable at a mode, of some that may have either sign."""
    own = {rv.name for rv in tall.model.free_RVs}
    small = [
        where
        for name, where in tall.layout.slices.items()
        if name in own and where.stop - where.start == 1
    ]
    for where in small[:MOST_MIRRORED]:
        flipped = theta.copy()
        flipped[where] *= -1.0
        yield flipped
