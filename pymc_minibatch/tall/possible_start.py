"""A start at which rows and prior are possible, near that of the model."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pymc_minibatch.jit.compiled import compile_python
from pymc_minibatch.tall.check import EvaluatedPoint, SplitCheck

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["possible_start"]

MOST_STARTS = 10
"""Points at which a start is looked for, as many as NUTS tries."""


def possible_start(
    tall: "TallModel", check: SplitCheck, points: Sequence[EvaluatedPoint]
) -> np.ndarray:
    """Return the start, or if some rows are impossible there, a point at which all are possible.

    It is the start as well if no such point is found nearby.

    Parameters
    ----------
    tall
        The model.
    check
        By which all rows are evaluated.
    points
        Points at which they were evaluated before.
    """
    known = [rows for point, rows in points if np.array_equal(point, tall.start)]
    at_start = known[0] if known else check.full.where_possible(tall.start, check.arrays)
    if at_start is None or np.isfinite(at_start).all():
        return tall.start
    prior = compile_python([tall.flat], [tall.prior_graph])
    for point in chain((point for point, _ in points), _jittered(tall)):
        rows = check.full.where_possible(point, check.arrays)
        if rows is not None and np.isfinite(rows).all() and np.isfinite(prior(point)).all():
            return point
    return tall.start


def _jittered(tall: "TallModel") -> Iterator[np.ndarray]:
    """Give points about the start, as NUTS takes them."""
    for _ in range(MOST_STARTS):
        jitter = tall.rng.uniform(-1.0, 1.0, tall.start.size)
        yield tall.start + jitter * tall.layout.is_continuous
