"""Intervals over which rows with kinks are averaged.

The sum of many rows with kinks is nearly quadratic at the scale of the posterior, where some rows
go over their kinks, and at no other. So a row is averaged over some standard deviations of what it
reads. Where that is not known yet, or the search is still far off, an interval is so wide that
enough rows have a kink in theirs.
"""

import math
from collections.abc import Sequence

import numpy as np
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.reference.remainders import Averages
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["find_averages", "rows_have_kinks"]

WITH_KINKS = ps.Abs, ps.Sign, ps.Switch, ps.ScalarMaximum, ps.ScalarMinimum, ps.Clip

LOOKED_AT = 4096
"""Rows."""

NEARBY = 0.2
"""Of the scale on which a row tells a local input, for a look at its kinks."""

DIFFERENT = 0.3
"""Curvatures that differ by a larger share are those of kinks."""

STRAIGHT = 0.9
"""Rows without any curvature, if so many are, are lines between kinks."""

SDS = 2.0
"""Half-width, in standard deviations of what a row reads."""

LEAST_INSIDE = 10
"""Rows for each entry of φ that have a kink in their interval at least, on average."""

DOUBLINGS = 40


def rows_have_kinks(structure: RowStructure, phi: np.ndarray, data: Sequence[np.ndarray]) -> bool:
    """Compare second derivatives of rows with differences of their slopes nearby."""
    nodes = [v.owner for v in ancestors([structure.row]) if v.owner is not None]
    scalar_ops = [node.op.scalar_op for node in nodes if isinstance(node.op, Elemwise)]
    if not any(isinstance(op, WITH_KINKS) for op in scalar_ops):
        return False
    rows, batch = RowFunctions(structure, evaluator), _some(data)
    v, k = rows.local_inputs(phi, *batch), rows.n_locals
    with np.errstate(all="ignore"):
        scale = _scale(rows, v, batch)
        for i in range(k):
            step = np.zeros((k, 1))
            step[i] = NEARBY * scale[i]
            ends = [rows.first(v + sign * step, *batch)[1 + i] for sign in (1, -1)]
            apart = (ends[0] - ends[1]) / (2 * step[i])
            inside = [
                rows.derivatives(v + share * step, *batch)[1 + k + i * (i + 1) // 2 + i]
                for share in (-0.7, 0.0, 0.7)
            ]
            if i in rows.reads.local and np.mean(inside[1] == 0.0) > STRAIGHT:
                return True
            found, here = np.nanmean(apart), np.nanmean(inside)
            if abs(found - here) > DIFFERENT * max(abs(found), abs(here)):
                return True
    return False


def find_averages(
    rows: RowFunctions, phi: np.ndarray, data: Sequence[np.ndarray], counts: np.ndarray
) -> Averages:
    """Return the intervals of rows at φ.

    Parameters
    ----------
    counts : ndarray, shape (P,)
        By how many rows each gathered entry of φ is read; 0 where it is not gathered.
    """
    batch, n_rows = _some(data), len(data[0])
    n_dense = np.count_nonzero(counts == 0)
    least = math.sqrt(min(1.0, max(int(n_dense), 1) / n_rows))
    entries = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    v = rows.local_inputs(phi, *batch)
    rows.averages = Averages(np.ones(rows.n_locals), entries, least)
    unit, share = rows.half_widths(*batch), phi.size / n_rows
    with np.errstate(all="ignore"):
        scale = SDS * _scale(rows, v, batch)
        for i in range(rows.n_locals):
            for _ in range(DOUBLINGS):
                step = np.zeros_like(v)
                step[i] = scale[i] * unit[i]
                ends = [rows.first(v + sign * step, *batch)[1 + i] for sign in (1, -1)]
                if np.mean(ends[0] != ends[1]) > min(LEAST_INSIDE * share, 0.5):
                    break
                scale[i] *= 2
    return Averages(scale, entries, least)


def _some(data: Sequence[np.ndarray]) -> list[np.ndarray]:
    n_rows = len(data[0])
    chosen = np.random.default_rng(0).choice(n_rows, min(n_rows, LOOKED_AT), replace=False)
    return [np.ascontiguousarray(values[np.sort(chosen)]) for values in data]


def _scale(rows: RowFunctions, v: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
    """Return how far off a local input a typical row notices."""
    slopes = rows.first(v, *batch)[1:]
    squares = np.where(np.isfinite(slopes), slopes, 0.0) ** 2
    return np.asarray(1 / np.sqrt(np.maximum(squares.mean(axis=1), 1e-300)))
