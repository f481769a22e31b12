"""Intervals over which rows with kinks are averaged.

The sum of many rows with kinks is nearly quadratic at the scale of the posterior, where some rows
go over their kinks, and at no other. So a row is averaged over some standard deviations of what it
reads. If that is not known yet, or the search is still far off, an interval is so wide that
enough rows have a kink in theirs.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.reference.remainders import SmoothingWidths
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["find_smoothing", "rows_have_kinks"]

WITH_KINKS = ps.Abs, ps.Sign, ps.Switch, ps.ScalarMaximum, ps.ScalarMinimum, ps.Clip

LOOKED_AT = 4096
"""Rows."""

NEARBY, INTERVALS, HALVINGS = 0.2, 8, 12
"""Where kinks are looked for, in units of the scale on which a row tells a predictor, and how."""

OF_KINKS = 0.3
"""Rows have kinks if more of the change of their slopes is that of jumps."""

JUMP = 0.1
"""What is left of a change is a jump if it is a larger share of it."""

SDS = 2.0
"""Half-width, in standard deviations of what a row reads."""

LEAST_INSIDE = 10
"""Rows for each entry of φ that have a kink in their interval at least, on average."""

DOUBLINGS = 40


def rows_have_kinks(structure: RowStructure, phi: np.ndarray, data: Sequence[np.ndarray]) -> bool:
    """Look for jumps of the slopes of some rows nearby."""
    nodes = [v.owner for v in ancestors([structure.row]) if v.owner is not None]
    scalar_ops = [node.op.scalar_op for node in nodes if isinstance(node.op, Elemwise)]
    if not any(isinstance(op, WITH_KINKS) for op in scalar_ops):
        return False
    rows, batch = RowFunctions(structure, evaluator), _some(data)
    v = rows.predictors_at(phi, *batch)

    def slope(i: int, away: np.ndarray | float) -> np.ndarray:
        """Return the slope of each row by a predictor, some way off along it."""
        moved = v.copy()
        moved[i] += away
        found: np.ndarray = rows.first(moved, *batch)[1 + i]
        return found

    with np.errstate(all="ignore"):
        widths = NEARBY * _scale(rows, v, batch)
        # What all rows share may be a scale or a probability, which does not change its sign.
        shared = (np.ptp(v, axis=1) == 0) & (v[:, 0] != 0)
        widths[shared] = np.minimum(widths, np.abs(v[:, 0]) / 2)[shared]
        shares = (_share_of_jumps(partial(slope, i), width) for i, width in enumerate(widths))
        return any(share > OF_KINKS for share in shares)


def _share_of_jumps(slope: Callable[[np.ndarray | float], np.ndarray], width: float) -> float:
    """Return how much of the change of slopes from end to end is that of their largest jumps.

    For each row the interval of the largest change is halved again and again: of a change that is
    smooth nothing is left. Rows whose slope is not finite everywhere do not count.
    """
    edges = np.linspace(-width, width, INTERVALS + 1)
    values = np.array([slope(edge) for edge in edges])
    changes = np.abs(np.diff(values, axis=0))
    first, each = np.argmax(changes, axis=0), np.arange(values.shape[1])
    low, high = edges[first], edges[first + 1]
    at_low, at_high = values[first, each], values[first + 1, each]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        between = slope(middle)
        left = np.abs(between - at_low) > np.abs(at_high - between)
        low, high = np.where(left, low, middle), np.where(left, middle, high)
        at_low, at_high = np.where(left, at_low, between), np.where(left, between, at_high)
    jumps = np.abs(at_high - at_low)
    largest = changes.max(axis=0)
    jumps[(jumps < JUMP * largest) | (jumps > 2 * largest)] = 0.0  # smooth, or a pole
    finite = np.isfinite(values).all(axis=0) & np.isfinite(jumps)
    return float(jumps[finite].sum() / max(changes[:, finite].sum(), np.finfo(float).tiny))


def find_smoothing(
    rows: RowFunctions, phi: np.ndarray, data: Sequence[np.ndarray], counts: np.ndarray
) -> SmoothingWidths:
    """Return the intervals of rows at φ.

    Parameters
    ----------
    counts : ndarray, shape (P,)
        By how many rows each gathered entry of φ is read; 0 if it is not gathered.
    """
    batch, n_rows = _some(data), len(data[0])
    n_dense = np.count_nonzero(counts == 0)
    least = math.sqrt(min(1.0, max(int(n_dense), 1) / n_rows))
    entries = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    v = rows.predictors_at(phi, *batch)
    rows.smoothing = SmoothingWidths(np.ones(rows.n_predictors), entries, least)
    unit, share = rows.half_widths(*batch), phi.size / n_rows
    with np.errstate(all="ignore"):
        scale = SDS * _scale(rows, v, batch)
        for i in range(rows.n_predictors):
            for _ in range(DOUBLINGS):
                step = np.zeros_like(v)
                step[i] = scale[i] * unit[i]
                ends = [rows.first(v + sign * step, *batch)[1 + i] for sign in (1, -1)]
                if np.mean(ends[0] != ends[1]) > min(LEAST_INSIDE * share, 0.5):
                    break
                scale[i] *= 2
    return SmoothingWidths(scale, entries, least)


def _some(data: Sequence[np.ndarray]) -> list[np.ndarray]:
    n_rows = len(data[0])
    chosen = np.random.default_rng(0).choice(n_rows, min(n_rows, LOOKED_AT), replace=False)
    return [np.ascontiguousarray(values[np.sort(chosen)]) for values in data]


def _scale(rows: RowFunctions, v: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
    """Return how far off a predictor a typical row notices."""
    slopes = rows.first(v, *batch)[1:]
    squares = np.where(np.isfinite(slopes), slopes, 0.0) ** 2
    return np.asarray(1 / np.sqrt(np.maximum(squares.mean(axis=1), 1e-300)))
