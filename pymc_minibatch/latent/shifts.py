"""Shifts that rows do not see: a coefficient moves, and the levels of a factor move back.

The intercept and all levels of a factor, a coefficient of a property of each level, or the levels
of a factor and those nested in them can be shifted against each other without any row reading
something else. Which can is decided by the values that all rows read: each row that reads the
coefficient has to read a level of the factor too, by a weight that is the same multiple of the
coefficient's own in all rows of the level.

Reference
---------
Liu and Sabatti (2000), Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.batched import solve_square
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.reference.rows import DesignTerms, RowFunctions

__all__ = ["Shift", "find_shifts"]

CHUNK_ROWS = 2**14

RTOL = 1e-12
"""Relative differences of the multiples among the rows of a level that are rounding."""

HELD = 1e-9
"""Change of what rows read, relative to what the coefficient alone changes there, that is none."""

CHECKED_ROWS = 2**12
"""Rows on which a shift is compared with what rows read, after it was found on all of them."""

MOST_SINGLE = 30
"""Coefficients of one variable that are shifted one by one, where levels are below several."""


@dataclass(frozen=True)
class Shift:
    """Variables that are shifted, and what levels do about it.

    Attributes
    ----------
    variables : ndarray of int64, shape (m,)
        Positions of the variables in a point.
    levels : GroupEffects
        The factor whose levels shift back.
    parent : ndarray of int64, shape (G,)
        For each level the variable, 0 to m - 1, above it; -1 if there is none.
    entry : ndarray of int64, shape (G,)
        The entry of φ through which rows of the level read that variable; -1 if only through the
        level's own entries.
    slot : int
        Which entry of the level makes up for it.
    ratio : ndarray, shape (G,)
        By how many times.
    """

    variables: np.ndarray
    levels: GroupEffects
    parent: np.ndarray
    entry: np.ndarray
    slot: int
    ratio: np.ndarray

    def is_same(self, other: "Shift") -> bool:
        """Whether both move the same levels back through their own entries, whatever the slot."""
        return (
            self.levels is other.levels
            and np.array_equal(self.variables, other.variables)
            and np.array_equal(self.parent, other.parent)
            and bool(np.all(self.entry < 0) and np.all(other.entry < 0))
        )

    def direction(self, field: LatentField, point: np.ndarray) -> np.ndarray | None:
        """Return by how much each level moves if its variable moves by 1, shape (G, q).

        None if that is not known at the hyperparameters of a point.
        """
        push, levels = field.derivatives.push, self.levels
        seed = np.zeros(point.size)
        seed[self.variables] = 1.0
        of_variables = push(point, seed)
        change = -of_variables[levels.rows]
        through = np.flatnonzero(self.entry >= 0)
        change[through, self.slot] -= self.ratio[through] * of_variables[self.entry[through]]
        change[self.parent < 0] = 0.0
        width = levels.latent.shape[1]
        blocks = np.empty((len(levels.latent), width, width))
        for slot in range(width):
            seed = np.zeros(point.size)
            seed[levels.latent[:, slot]] = 1.0
            blocks[:, :, slot] = push(point, seed)[levels.rows]
        moved, log_determinant = solve_square(blocks, change)
        return moved if np.isfinite(log_determinant) else None

    def along(self, direction: np.ndarray, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return a point shifted by a step of each variable, shape (m,)."""
        moved = point.copy()
        moved[self.variables] += step
        moved[self.levels.latent] += direction * np.append(step, 0.0)[self.parent][:, None]
        return moved


def find_shifts(
    field: LatentField, rows: RowFunctions, data: Sequence[np.ndarray], point: np.ndarray
) -> list[Shift]:
    """Find the shifts of a model, by what all rows read.

    Parameters
    ----------
    field
        Its latent field.
    rows
        Functions of rows.
    data
        The rows.
    point
        In the coordinates of the field; where shifts are compared with what rows read.
    """
    found: list[Shift] = []
    for levels in field.levels:
        if levels.latent.shape != levels.rows.shape:
            continue
        for slot in range(levels.rows.shape[1]):
            entry, ratio = _multiples(rows, data, levels, slot, field.spread_of_phi.size)
            of_slot = _of_variables(field, levels, slot, (entry, ratio), point)
            found += [new for new in of_slot if not any(new.is_same(old) for old in found)]
    return [shift for shift in found if _is_unseen(field, rows, data, point, shift)]


# --- What rows read -----------------------------------------------------------------------------


class _OwnLevels(NamedTuple):
    """How some rows read the entries of their levels.

    Attributes
    ----------
    level : ndarray, shape (n,)
        Which.
    weight : ndarray, shape (n, M)
        By how much each predictor reads it.
    largest : ndarray of int64, shape (n, 1)
        The predictor that reads most of it.
    """

    level: np.ndarray
    weight: np.ndarray
    largest: np.ndarray

    def ratio(self, by: np.ndarray) -> np.ndarray | None:
        """Return how many times as much of something else is read; None if that is no multiple.

        Parameters
        ----------
        by : ndarray, shape (n, M)
            By how much each predictor reads it.
        """
        with np.errstate(all="ignore"):
            ratio = np.take_along_axis(by / self.weight, self.largest, axis=1)[:, 0]
        ratio[~by.any(axis=1)] = 0.0
        if not np.isfinite(ratio).all():
            return None
        multiple = ratio[:, None] * self.weight
        differs = np.abs(by - multiple) > RTOL * (np.abs(by) + np.abs(multiple))
        return None if differs.any() else ratio


class _Source:
    """An entry of φ that rows read beside one of their level, as long as it is a multiple of that.

    Parameters
    ----------
    n_levels
        G.
    reads
        What rows read.
    columns : sequence of int
        Columns that the entry is read by, if it is the same in all rows.
    gathered : sequence of int
        Places of what rows gather, if each reads its own.

    Attributes
    ----------
    is_multiple : bool
        Whether it still is one.
    """

    def __init__(
        self,
        n_levels: int,
        reads: DesignTerms,
        *,
        columns: Sequence[int] = (),
        gathered: Sequence[int] = (),
    ) -> None:
        self.reads, self.columns, self.gathered, self.is_multiple = reads, columns, gathered, True
        self.entry = np.full(n_levels, -1, dtype=np.int64)
        self.ratio = np.full(n_levels, np.nan)

    def take(self, own: _OwnLevels, batch: Sequence[np.ndarray], read: np.ndarray) -> None:
        """Take rows in: whether all rows of a level read the same entry by the same ratio.

        Parameters
        ----------
        own
            How they read their levels.
        batch
            Columns, gathered entries and weights.
        read : ndarray of bool, shape (P + 1,)
            Which entries are read by what is no multiple; these are added. The last is none.
        """
        columns, entries, weights = batch
        if self.is_multiple and not self._agrees(own, batch):
            self.is_multiple = False
            read[self.entry[self.ratio != 0.0]] = True
        if not self.is_multiple:
            for i in self.columns:
                read[self.reads.dense[i]] |= columns[:, i].any()
            for i in self.gathered:
                read[entries[weights[:, i] != 0.0, i]] = True

    def _agrees(self, own: _OwnLevels, batch: Sequence[np.ndarray]) -> bool:
        columns, entries, weights = batch
        by = np.zeros_like(own.weight)
        for i in self.columns:
            by[:, self.reads.dense_predictor[i]] += columns[:, i]
            entry = np.full(len(by), self.reads.dense[i])
        for i in self.gathered:
            by[:, self.reads.predictor[i]] += weights[:, i]
            entry = entries[:, i]
        if any(not np.array_equal(entry, entries[:, i]) for i in self.gathered):
            return False
        level, ratio = own.level, own.ratio(by)
        if ratio is None:
            return False
        new = np.isnan(self.ratio[level])
        self.entry[level[new]], self.ratio[level[new]] = entry[new], ratio[new]
        known = self.ratio[level]
        return bool(
            np.all(np.abs(ratio - known) <= RTOL * np.abs(known))
            and np.all((self.entry[level] == entry) | (known == 0.0))
        )


def _multiples(
    rows: RowFunctions,
    data: Sequence[np.ndarray],
    levels: GroupEffects,
    slot: int,
    n_phi: int,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Find what an entry of each level can make up for: entries of φ, and by which ratio.

    An entry that some row reads in another way as well, by however little, is left out.

    Returns
    -------
    entries, ratios : list of ndarray, shape (G,)
        One for each entry, or gathered effect, that all rows read as a multiple of it.
    """
    level_of, read = np.full(n_phi, -1, dtype=np.int64), np.zeros(n_phi + 1, dtype=np.bool_)
    level_of[levels.rows[:, slot]] = np.arange(len(levels.rows))
    sources: list[_Source] | None = None
    for values in _chunks(data):
        batch = rows.arrays.jitted(*values)
        _, entries, weights = batch
        if sources is None:
            own = np.flatnonzero(np.all(level_of[entries] >= 0, axis=0))
            of_predictor = rows.reads.predictor[own]
            if not own.size or np.unique(of_predictor).size < own.size:
                return [], []
            sources = list(_sources(rows.reads, entries, own, len(levels.rows)))
        level = level_of[entries[:, own[0]]]
        if np.any(level < 0) or np.any(level_of[entries[:, own]] != level[:, None]):
            return [], []
        weight = np.zeros((len(level), rows.reads.n_predictors))
        weight[:, of_predictor] = weights[:, own]
        own_levels = _OwnLevels(level, weight, np.abs(weight).argmax(axis=1)[:, None])
        for source in sources:
            source.take(own_levels, batch, read)
        if not any(source.is_multiple for source in sources):
            return [], []
    found = [source for source in sources or [] if source.is_multiple]
    read[-1] = False  # levels without an entry
    ratios = [np.where(read[source.entry], 0.0, np.nan_to_num(source.ratio)) for source in found]
    return [source.entry for source in found], ratios


def _sources(
    reads: DesignTerms, entries: np.ndarray, own: np.ndarray, n_levels: int
) -> Iterator[_Source]:
    """List what rows read beside their levels; what all predictors of a row gather is one source.

    Parameters
    ----------
    reads
        What rows read.
    entries : ndarray, shape (n, L)
        What some rows gather.
    own : ndarray of int
        Places of the levels' entries among these.
    n_levels
        G.
    """
    for number in np.unique(reads.dense):
        yield _Source(n_levels, reads, columns=np.flatnonzero(reads.dense == number).tolist())
    left = [i for i in range(entries.shape[1]) if i not in own]
    while left:
        same = [i for i in left if np.array_equal(entries[:, i], entries[:, left[0]])]
        yield _Source(n_levels, reads, gathered=same)
        left = [i for i in left if i not in same]


def _chunks(data: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    for start in range(0, len(data[0]), CHUNK_ROWS):
        yield [np.array(values[start : start + CHUNK_ROWS]) for values in data]


# --- Which variables ----------------------------------------------------------------------------


def _of_variables(
    field: LatentField,
    levels: GroupEffects,
    slot: int,
    multiples: tuple[list[np.ndarray], list[np.ndarray]],
    point: np.ndarray,
) -> list[Shift]:
    """List the shifts of the variables of the dense part against an entry of the levels."""
    parts, layout = _parts(field, point), field.latent
    names = field.derivatives.tall.layout.slices
    of_levels = np.zeros(parts.shape[0], dtype=bool)
    of_levels[levels.rows] = True
    found = []
    for where in names.values():
        own = np.arange(where.start, where.stop)
        own = own[np.isin(own, layout.dense) & ~np.isin(own, levels.latent)]
        together = _family(parts, levels, slot, multiples, of_levels, own)
        if together is not None:
            found.append(together)
        elif 1 < own.size <= MOST_SINGLE:
            singles = (
                _family(parts, levels, slot, multiples, of_levels, own[i : i + 1])
                for i in range(own.size)
            )
            found += [shift for shift in singles if shift is not None]
    return found


def _parts(field: LatentField, point: np.ndarray) -> sparse.csc_array:
    """Return what each entry of φ takes from each variable of the dense part, shape (P, D)."""
    projector, layout, rows = field.projector_at(point), field.latent, field.rows
    dense = sparse.coo_array(projector.dense)
    cross = sparse.coo_array(projector.cross)
    groups = rows.groups.ravel()
    values = np.concatenate([dense.data, cross.data])
    at = np.concatenate([rows.dense[dense.coords[0]], groups[cross.coords[0]]])
    by = np.concatenate([layout.dense[dense.coords[1]], layout.dense[cross.coords[1]]])
    shape = (field.spread_of_phi.size, point.size)
    parts = sparse.csc_array((values, (at, by)), shape=shape)
    parts.eliminate_zeros()
    return parts


def _family(
    parts: sparse.csc_array,
    levels: GroupEffects,
    slot: int,
    multiples: tuple[list[np.ndarray], list[np.ndarray]],
    of_levels: np.ndarray,
    variables: np.ndarray,
) -> Shift | None:
    """Return the shift of some variables of which no two are above the same level."""
    n_phi, n_levels = parts.shape[0], len(levels.rows)
    columns = parts[:, variables].tocoo()
    entry, variable = columns.coords
    outside = ~of_levels[entry]
    variable_of = np.full(n_phi, -1, dtype=np.int64)
    variable_of[entry[outside]] = variable[outside]
    n_outside = np.bincount(variable[outside], minlength=variables.size)
    level_of = np.full(n_phi, -1, dtype=np.int64)
    level_of[levels.rows] = np.arange(n_levels)[:, None]
    parent = np.full(n_levels, -1, dtype=np.int64)
    through = np.full(n_levels, -1, dtype=np.int64)
    ratios = np.zeros(n_levels)
    below = np.unique(np.stack([level_of[entry[~outside]], variable[~outside]]), axis=1)
    if np.unique(below[0]).size < below.shape[1]:
        return None
    parent[below[0]] = below[1]
    made_up = np.zeros(n_phi, dtype=bool)
    for entries, ratio in zip(*multiples, strict=True):
        reached = np.flatnonzero((entries >= 0) & (ratio != 0.0))
        own = variable_of[entries[reached]]
        reached, own = reached[own >= 0], own[own >= 0]
        if np.any((through[reached] >= 0) | ((parent[reached] >= 0) & (parent[reached] != own))):
            return None
        parent[reached], through[reached] = own, entries[reached]
        ratios[reached] = ratio[reached]
        made_up[entries[reached]] = True
    n_made_up = np.bincount(variable[outside & made_up[entry]], minlength=variables.size)
    moves = (n_outside == n_made_up) & (n_outside <= 1)
    moves &= np.isin(np.arange(variables.size), parent)
    if not moves.any():
        return None
    number = np.full(variables.size + 1, -1, dtype=np.int64)
    number[:-1][moves] = np.arange(int(moves.sum()))
    parent = number[parent]
    through = np.where(parent >= 0, through, -1)
    return Shift(
        variables[moves], levels, parent, through, slot, np.where(parent >= 0, ratios, 0.0)
    )


def _is_unseen(
    field: LatentField,
    rows: RowFunctions,
    data: Sequence[np.ndarray],
    point: np.ndarray,
    shift: Shift,
) -> bool:
    """Whether rows read the same after a random shift, compared with one of the variables alone."""
    rng = np.random.default_rng(2000)
    direction = shift.direction(field, point)
    if direction is None:
        return False
    step = field.spread[shift.variables] * rng.standard_normal(shift.variables.size)
    alone = point.copy()
    alone[shift.variables] += step
    chosen = np.sort(rng.choice(len(data[0]), min(CHECKED_ROWS, len(data[0])), replace=False))
    batch = [np.array(values[chosen]) for values in data]
    phi = field.derivatives.phi
    points = (point, alone, shift.along(direction, point, step))
    here, before, after = (rows.predictors_at(phi(p), *batch) for p in points)
    size = np.abs(before - here).max(axis=1) + RTOL * np.abs(here).max(axis=1)
    return bool(np.all(np.abs(after - here).max(axis=1) <= HELD * (size + size.max())))
