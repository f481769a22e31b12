"""Which variables are a latent field, nearly Gaussian given a few hyperparameters.

With h the hyperparameters and z the rest of θ, what rows read is affine in z,

    φ = φ₀(h) + A(h) z,

and so is, as a rule, the gradient of the log prior, −P(h) z + …. Effects written ``mu + sd * z``,
``dot(chol, z)`` or centred, smooth terms, random walks and plain coefficients are all of this kind;
their scales, correlations and length scales are the hyperparameters. Nothing of this is recognised
by name. Variables are hyperparameters where they change the derivatives of φ or of the prior by
others, which is seen at draws from the prior (:mod:`.claims`).

A and P are sparse with a pattern that does not depend on h. Columns that share no row are found by
one directional derivative, and those that do not change are found once.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, section
1.2. Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.util import get_var_name
from pytensor.gradient import grad, pushforward
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.elemwise import Elemwise
from scipy import sparse

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.latent.arrowhead import (
    ArrowheadMatrix,
    Matrix,
    by_columns,
    compact,
    congruent,
    denser,
    is_empty,
    multiply_blocks,
    multiply_each,
    multiply_matrices,
    solve_square,
)
from pymc_minibatch.latent.claims import (
    ROUNDING,
    Probes,
    add_up,
    are_gaussian,
    find_probes,
    spread_of,
)
from pymc_minibatch.latent.coordinates import Coordinates, find_coordinates
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.potentials import parts_of_total
from pymc_minibatch.tall.structure import RowStructure
from pymc_minibatch.tall.verify import compare

__all__ = [
    "GroupEffects",
    "LatentField",
    "LevelPrior",
    "NoFieldError",
    "ProjectedCurvature",
    "Projector",
    "find_field",
    "has_effects",
]

PROBES = 3
"""Points at which whole matrices are looked at; they are compared with derivatives at more."""

RTOL = 1e-7
"""Relative difference of entries that do not depend on the point."""

RTOL_OF_FIELD = 1e-10
"""That of derivatives which a variable does not change. It is small, as a slab that bounds a scale
changes it by little wherever the scale is small."""

RTOL_OF_PHI = 1e-9
"""That of φ and what its derivatives foretell."""

WHOLE = 1e-6
"""How far the ratio of two derivatives may be from the number of a term."""

LEAST_SINGULAR = 1e-6
FULL_COLUMN = 5
"""A column with more entries has derivatives of its own, and its row is not read again."""

HELD = 1e-10
"""Relative error of each entry of φ that is to stay the same, or, where terms cancel, of these."""

REMEMBERED = 3
"""Values of the hyperparameters at which A is kept."""

MOST_DENSE = 3000
"""More latent variables than this outside of groups are too many for a dense matrix."""

MOST_HYPER, MOST_SCALES = 30, 200
"""More hyperparameters are too many for moves of all at once. Those that rows do not see while the
effects are held, such as scales of single coefficients, are moved a few at a time."""

NOTHING = np.empty(0, dtype=np.int64)

LEAST_LEVELS = 50
"""With fewer levels, effects of known scale are moved like other coefficients."""


class NoFieldError(ValueError):
    """The variables are no latent field; the message says why."""


class Derivatives:
    """Functions of a point in the coordinates of the field; compiled again where they are needed.

    Parameters
    ----------
    tall, structure
        The model and what its rows read.
    coordinates
        Which variables have others in their place.
    """

    def __init__(
        self, tall: TallModel, structure: RowStructure, coordinates: Coordinates | None = None
    ) -> None:
        self.tall, self.structure = tall, structure
        self.coordinates = coordinates or Coordinates.none()

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled functions out."""
        return {name: getattr(self, name) for name in ("tall", "structure", "coordinates")}

    def within(self, coordinates: Coordinates) -> "Derivatives":
        """Return the same functions in other coordinates."""
        other = copy(self)
        other.coordinates = coordinates
        return other

    def phi(self, point: np.ndarray) -> np.ndarray:
        """Return φ."""
        return self._phi(self.coordinates.to_model(point))

    def push(self, point: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return ``Jφ · vector``."""
        to_model = self.coordinates.to_model
        return self._push(to_model(point), to_model(vector))

    def prior(self, point: np.ndarray) -> float:
        """Return the log prior."""
        return float(self.tall.compiled_prior_logp(self.coordinates.to_model(point)))

    def prior_gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient of the log prior."""
        slope = self._prior_gradient(self.coordinates.to_model(point))
        return self.coordinates.gradient(slope)

    def prior_product(self, point: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian of the log prior times a vector."""
        to_model = self.coordinates.to_model
        return self.coordinates.gradient(self._prior_product(to_model(point), to_model(vector)))

    def are_finite(self, point: np.ndarray) -> bool:
        """Whether φ, the log prior and derivatives of both are finite at a point."""
        every = np.ones(point.size)
        with np.errstate(all="ignore"):
            seen = (
                self.phi(point),
                self.push(point, every),
                self.prior(point),
                self.prior_gradient(point),
                self.prior_product(point, every),
            )
        return all(bool(np.all(np.isfinite(each))) for each in seen)

    @made_once
    def _phi(self) -> CompiledFunction:
        return compile_numba([self.structure.flat], [self.structure.phi])

    @made_once
    def _push(self) -> CompiledFunction:
        vector: Any = pt.dvector("vector")
        flat, phi = self.structure.flat, self.structure.phi
        along: Any = pushforward(phi, flat, vector)
        return compile_numba([flat, vector], [along])

    @made_once
    def _prior_gradient(self) -> CompiledFunction:
        return compile_numba([self.tall.flat], [self._prior_slope])

    @made_once
    def _prior_product(self) -> CompiledFunction:
        flat, vector = self.tall.flat, pt.dvector("vector")
        slope = pt.sum(self._prior_slope * vector)
        product: Any = grad(slope, flat, disconnected_inputs="ignore")
        return compile_numba([flat, vector], [product])

    @property
    def _prior_slope(self) -> Any:
        return grad(self.tall.prior_graph, self.tall.flat, disconnected_inputs="ignore")


@dataclass(frozen=True)
class ProjectedCurvature:
    """What the dense part of z sees of a curvature K.

    Attributes
    ----------
    curvature : ArrowheadMatrix
        K.
    by : ndarray or sparse array, shape (P_dense, p)
        A_dd.
    """

    curvature: ArrowheadMatrix
    by: Matrix

    @cached_property
    def dense(self) -> Matrix:
        """``A_ddᵀ K_dd A_dd``, shape (p, p)."""
        return congruent(self.curvature.dense, self.by)

    @cached_property
    def through(self) -> Matrix:
        """``K_gd A_dd``, shape (G q', p)."""
        return by_columns(self.curvature.cross, self.by)


@dataclass(frozen=True)
class Projector:
    """A(h) in the layouts of φ (rows) and z (columns).

    Attributes
    ----------
    dense : ndarray or sparse array, shape (P_dense, p)
        What the dense part of φ takes from the dense part of z.
    cross : ndarray or sparse array, shape (G q', p)
        What the groups of φ take from the dense part of z.
    blocks : ndarray, shape (G, q', q)
        What each group of φ takes from its own z.
    """

    dense: Matrix
    cross: Matrix
    blocks: np.ndarray

    def pull_back_dense(self, joined: ProjectedCurvature, blocks: np.ndarray) -> Matrix:
        """Return the dense part of ``Aᵀ K A``.

        Given is what the dense part of A makes of K, and K's blocks.
        """
        dense, c = joined.dense, self.cross
        if not is_empty(c):
            mixed = c.T @ joined.through
            dense = dense + mixed + mixed.T + c.T @ multiply_each(blocks, c)
        return denser(dense)

    def pull_back_blocks(self, blocks: np.ndarray) -> np.ndarray:
        """Return the groups' blocks of ``Aᵀ K A``."""
        return multiply_matrices(self._transposed_blocks, multiply_matrices(blocks, self.blocks))

    def pull_back_cross(self, joined: ProjectedCurvature, blocks: np.ndarray) -> Matrix:
        """Return what ``Aᵀ K A`` has between groups and the dense part."""
        through, c = joined.through, self.cross
        if not is_empty(c):
            through = through + multiply_each(blocks, c)
        return multiply_each(self._transposed_blocks, denser(through))

    @cached_property
    def _transposed_blocks(self) -> np.ndarray:
        return np.ascontiguousarray(self.blocks.transpose(0, 2, 1))

    def times(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``A z``."""
        of_groups = multiply_blocks(self.blocks, groups)
        if not is_empty(self.cross):
            of_groups = of_groups + (self.cross @ dense).reshape(of_groups.shape)
        return self.dense @ dense, of_groups

    def transposed(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Aᵀ y``."""
        of_dense = self.dense.T @ dense
        if not is_empty(self.cross):
            of_dense += self.cross.T @ groups.ravel()
        return of_dense, multiply_blocks(self._transposed_blocks, groups)


@dataclass(frozen=True)
class MapEntries:
    """The entries of A(h), of which matrices are made where these are asked for.

    Attributes
    ----------
    columns : _Columns
        Where entries by the dense part of z are.
    entries : ndarray, shape (K,)
        Them.
    blocks : ndarray, shape (G, q', q)
        What each group of φ takes from its own z.
    """

    columns: "_Columns"
    entries: np.ndarray
    blocks: np.ndarray

    @cached_property
    def whole(self) -> Projector:
        """A(h)."""
        return Projector(*self.columns.of(self.entries), self.blocks)

    def scales_of(self, other: "MapEntries") -> np.ndarray:
        """Return how much larger each column by the dense part is in another map."""
        column, n = self.columns.column, self.columns.positions.size
        own = np.bincount(column, self.entries**2, minlength=n)
        both = np.bincount(column, self.entries * other.entries, minlength=n)
        return np.where(own > 0.0, both / np.where(own > 0.0, own, 1.0), 1.0)


class _Part:
    """Some of the rows of a sparse matrix whose pattern is known.

    Parameters
    ----------
    row, column : ndarray of int64, shape (K,)
        Where its entries are, by rows.
    shape
        Its shape.
    """

    def __init__(self, row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> None:
        self.row, self.column, self.shape = row, column, shape
        self.starts = np.searchsorted(row, np.arange(shape[0] + 1))
        self.sparse = not row.size or sparse.issparse(compact(self._as_sparse(np.ones(row.size))))

    def _as_sparse(self, entries: np.ndarray) -> sparse.csr_array:
        return sparse.csr_array((entries, self.column, self.starts), self.shape)

    def of(self, entries: np.ndarray) -> Matrix:
        """Return the matrix with these entries, compact; of none, an empty sparse one."""
        if self.sparse:
            return self._as_sparse(entries)
        matrix = np.zeros(self.shape)
        matrix[self.row, self.column] = entries
        return matrix


class _Columns:
    """Columns of a sparse matrix that depends on the point, by few directional derivatives.

    Parameters
    ----------
    derivatives, name
        What they are, and of which function.
    points
        Points at which they are looked at.
    positions
        Positions of the columns in a flat point.
    rows
        Positions of the rows in the derivative, for each of two parts of the matrix.
    sizes
        What is natural for a row, shape (rows,), and for the variable of a column, shape (D,): an
        entry times the one is a share of the other.
    symmetric
        Whether the first part is symmetric. Then entries that others have in common with a column
        of many, such as effects with their mean, are taken from that column.

    Attributes
    ----------
    row, column : ndarray of int64, shape (K,)
        Where entries are that may not be zero, by rows.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        name: str,
        points: Sequence[np.ndarray],
        positions: np.ndarray,
        rows: tuple[np.ndarray, np.ndarray],
        sizes: tuple[np.ndarray, np.ndarray],
        symmetric: bool = False,
    ) -> None:
        self.derivatives, self.name = derivatives, name
        self.positions, self.rows = positions, np.concatenate(rows)
        self.of_rows, self.of_columns = sizes[0], sizes[1][positions]
        self.row, self.column, seen = self._probe(points)
        changes = np.zeros(positions.size, dtype=np.bool_)
        self.noise = ROUNDING * self.of_rows[self.row] / self.of_columns[self.column]
        close = RTOL * np.abs(seen).max(axis=0) + self.noise
        moved = (np.abs(seen - seen[0]) > close).any(axis=0)
        changes[self.column[moved]] = True
        self.base = seen[0]
        n, self.first = rows[0].size, int(np.searchsorted(self.row, rows[0].size))
        own = slice(self.first), slice(self.first, None)
        self.parts = (
            _Part(self.row[own[0]], self.column[own[0]], (n, positions.size)),
            _Part(self.row[own[1]] - n, self.column[own[1]], (rows[1].size, positions.size)),
        )
        self.moving = np.flatnonzero(changes)
        self.changing = bool(changes.any())
        own = changes[self.column]
        self.mirrored, self.mirror = self._mirrored(own & symmetric)
        shape, read = (self.rows.size, positions.size), own.copy()
        read[self.mirrored] = False
        pattern = sparse.csc_array((read[read], (self.row[read], self.column[read])), shape)
        self.color = np.full(positions.size, -1)
        self.color[changes] = _colored(pattern[:, self.moving])
        self.unscale: np.ndarray | None = None
        self.seed = 1.0 / self.of_columns
        if self.color.max(initial=-1) > 0:
            self.read, place = np.unique(self.row[own], return_inverse=True)
            slot = np.searchsorted(self.moving, self.column[own])
            whole = np.zeros((len(points), self.read.size, self.moving.size))
            whole[:, place, slot] = seen[:, own]
            self.unscale, self.seed[self.moving] = _scaled_columns(whole)

    def _mirrored(self, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of some entries are taken from a full column, and where they are there."""
        size = self.positions.size
        in_square = np.flatnonzero(own & (self.row < size))
        row, column = self.row[in_square], self.column[in_square]
        full = np.bincount(column, minlength=size) > FULL_COLUMN
        taken = ~full[column] & full[row]
        keys, wanted = self.row * size + self.column, (column * size + row)[taken]
        mirror = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        there = keys[mirror] == wanted if keys.size else np.zeros(0, dtype=np.bool_)
        return in_square[taken][there], mirror[there]

    def _probe(self, points: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where entries are not zero at some of the points, by rows, and these entries."""
        at, columns, entries = [], [], []
        for j, position in enumerate(self.positions):
            derivatives = []
            for point in points:
                seed = np.zeros(point.size)
                seed[position] = 1.0
                derivatives.append(self.along(point, seed))
            column = np.array(derivatives)
            size = np.abs(column).max(axis=0)
            natural = self.of_rows / self.of_columns[j]
            own = np.flatnonzero(size > ROUNDING * np.minimum(size.max(initial=0.0), natural))
            at.append(own)
            columns.append(np.full(own.size, j))
            entries.append(column[:, own])
        none = np.empty(0, dtype=np.int64)
        row, column = np.concatenate([none, *at]), np.concatenate([none, *columns])
        order = np.lexsort((column, row))
        seen = np.concatenate([np.empty((len(points), 0)), *entries], axis=1)
        return row[order], column[order], seen[:, order]

    def along(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """Return the derivative along a direction."""
        return getattr(self.derivatives, self.name)(point, seed)[self.rows]

    def at(self, point: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return both parts of the matrix at a point."""
        return self.of(self.entries(point))

    @cached_property
    def _fixed(self) -> tuple[Matrix, Matrix]:
        return self._of(self.base)

    def of(self, entries: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return both parts of the matrix with these entries."""
        return self._of(entries) if self.changing else self._fixed

    def _of(self, entries: np.ndarray) -> tuple[Matrix, Matrix]:
        return self.parts[0].of(entries[: self.first]), self.parts[1].of(entries[self.first :])

    def entries(self, point: np.ndarray) -> np.ndarray:
        """Return the entries at a point."""
        if not self.changing:
            return self.base
        entries = self.base.copy()
        if self.unscale is not None:
            seed, scale = np.zeros(point.size), np.ones(self.positions.size)
            seed[self.positions[self.moving]] = self.seed[self.moving]
            scale[self.moving] = self.unscale @ self.along(point, seed)[self.read]
            return entries * scale[self.column]
        of_entry = self.color[self.column]
        for color in range(self.color.max() + 1):
            seed = np.zeros(point.size)
            seed[self.positions[self.color == color]] = 1.0
            own = of_entry == color
            entries[own] = self.along(point, seed)[self.row[own]]
        entries[self.mirrored] = entries[self.mirror]
        return entries


def _scaled_columns(seen: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Return what gives the scales of columns by their sum, if the point only scales columns.

    Parameters
    ----------
    seen : ndarray, shape (points, rows, columns)
        The matrix at some points; scales are relative to the first.

    Returns
    -------
    unscale : ndarray or None
        It; None if there is none.
    weights : ndarray
        Those of the columns in their sum, which are then alike, as are its rows.
    """
    first = seen[0]
    columns = np.abs(first).max(axis=0)
    weights = 1.0 / np.where(columns > 0.0, columns, 1.0)
    rows = np.abs(first * weights).max(axis=1, initial=0.0)
    alike = first * weights / np.where(rows > 0.0, rows, 1.0)[:, None]
    squares = np.sum(alike**2, axis=0)
    others = seen * weights / np.where(rows > 0.0, rows, 1.0)[:, None]
    scales = np.einsum("krc,rc->kc", others, alike) / np.maximum(squares, 1e-300)
    expected = scales[:, None, :] * alike
    noise = ROUNDING * np.abs(scales[:, None, :])
    if np.any(np.abs(others - expected) > RTOL * np.abs(expected) + noise):
        return None, weights
    singular = np.linalg.svd(alike, compute_uv=False)
    if singular[-1] <= LEAST_SINGULAR * singular[0]:
        return None, weights
    return np.linalg.pinv(alike) / np.where(rows > 0.0, rows, 1.0), weights


def _colored(pattern: sparse.csc_array) -> np.ndarray:
    """Give columns that share a row different colors, greedily."""
    n_rows, n_columns = pattern.shape
    colors = np.zeros(n_columns, dtype=np.int64)
    taken: list[np.ndarray] = []
    for j in range(n_columns):
        own = pattern.indices[pattern.indptr[j] : pattern.indptr[j + 1]]
        color = next((c for c, rows in enumerate(taken) if not rows[own].any()), len(taken))
        if color == len(taken):
            taken.append(np.zeros(n_rows, dtype=np.bool_))
        colors[j] = color
        taken[color][own] = True
    return colors


@dataclass(frozen=True)
class GroupEffects:
    """The effects of a grouping factor whose levels are independent given everything else.

    Attributes
    ----------
    latent : ndarray of int64, shape (G, q)
        Positions of each level's variables in the flat point.
    rows : ndarray of int64, shape (G, q')
        Positions of what rows read of each level, in φ.
    prior : LevelPrior or None
        The log priors of the levels, where they are not Gaussian.
    """

    latent: np.ndarray
    rows: np.ndarray
    prior: "LevelPrior | None"


class LevelPrior:
    """The log prior of the variables of each level, for priors that are not Gaussian.

    Parameters
    ----------
    tall
        The model.
    entries
        For each variable with levels which of its raveled entries those of a level are, shape
        (G, q).
    probes
        Points at which it is seen to which level a term of a potential belongs.
    """

    def __init__(self, tall: TallModel, entries: Mapping[str, np.ndarray], probes: Probes) -> None:
        self.tall, self.entries = tall, entries
        self.of_terms = [self._levels_of(term, probes) for term in self._potentials()]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled function out."""
        return {"tall": self.tall, "entries": self.entries, "of_terms": self.of_terms}

    @made_once
    def logp(self) -> CompiledFunction:
        """``(point,) -> log priors`` of the levels, shape (G,).

        Raises
        ------
        NoFieldError
            If a prior is one number for several entries.
        """
        model = self.tall.model
        variables = {get_var_name(value): value for value in model.value_vars}
        total: Any = 0.0
        for name, entries in self.entries.items():
            value = variables[name]
            [term] = model.logp(vars=[model.values_to_rvs[value]], sum=False)
            if term.ndim != value.ndim:
                raise NoFieldError(f"The prior of {name} is one number for several entries.")
            total = total + term.ravel()[entries].sum(axis=1)
        for term, levels in zip(self._potentials(), self.of_terms, strict=True):
            own = np.flatnonzero(levels >= 0)
            if own.size:
                total = pt.inc_subtensor(total[levels[own]], term.ravel()[own])
        return compile_numba([self.tall.flat], [self.tall._bind(total, {})])

    def _potentials(self) -> list[Any]:
        """List the terms of the potentials of the prior, as arrays."""
        model = self.tall.model
        potentials = [p for p in model.potentials if p.name not in self.tall.row_potentials]
        graphs = model.logp(vars=potentials, sum=False) if potentials else []
        own = {value for value in model.value_vars if get_var_name(value) in self.entries}

        def reads_levels(graph: Any) -> bool:
            return not own.isdisjoint(ancestors([graph]))

        return [part for graph in graphs for part in parts_of_total(pt.sum(graph), reads_levels)]

    def _levels_of(self, term: Any, probes: Probes) -> np.ndarray:
        """Return the level of each term of a potential; -1 for those of none.

        Terms are numbered, and those whose slopes a variable has are told by the ratio of two
        derivatives. What terms add up to is verified by :func:`.claims.add_up`.
        """
        slices, flat = self.tall.layout.slices, self.tall.flat
        terms, numbers = self.tall._bind(term.ravel(), {}), pt.dvector("numbers")
        slope: Any = grad(pt.sum(terms * numbers), flat, disconnected_inputs="ignore")
        evaluate = compile_python([flat, numbers], [slope])
        size = compile_python([flat], [terms])(probes.points[0]).size
        found = np.full(size, -1)
        positions = np.concatenate(
            [slices[name].start + entries for name, entries in self.entries.items()], axis=1
        )
        level = np.repeat(np.arange(len(positions)), positions.shape[1])
        own = positions.ravel()
        for point in probes.points:
            for away in (0.0, 10.0, -10.0):
                moved = point.copy()
                moved[own] += away * probes.spread[own]
                once = evaluate(moved, np.ones(size))[own]
                with np.errstate(all="ignore"):
                    ratio = evaluate(moved, np.arange(1.0, size + 1.0))[own] / once
                number = np.nan_to_num(np.rint(ratio), nan=0.0, posinf=0.0, neginf=0.0)
                seen = (np.abs(ratio - number) < WHOLE) & (number >= 1.0) & (number <= size)
                found[number[seen].astype(np.int64) - 1] = level[seen]
        for entries in self.entries.values():
            if entries.size == size:  # a term without slope may be that of its own entry
                of_entry = np.empty(size, dtype=np.int64)
                of_entry[entries] = np.arange(len(entries))[:, None]
                return np.where(found < 0, of_entry, found)
        return found


class CenteredPoint(NamedTuple):
    """A point with other hyperparameters, at which rows read the same.

    Attributes
    ----------
    point : ndarray, shape (D,)
        h' and z'.
    of_dense : ndarray, shape (p,)
        log |∂z'/∂z| of each variable of the dense part.
    of_groups : float
        The same of all groups.
    """

    point: np.ndarray
    of_dense: np.ndarray
    of_groups: float

    def log_jacobian(self) -> float:
        """Return log |∂z'/∂z|."""
        return float(self.of_dense.sum()) + self.of_groups


class LatentField:
    """Layouts of θ and φ, and A(h) and P(h).

    Attributes
    ----------
    hyper : ndarray of int64
        Positions of the hyperparameters h in the flat point.
    latent : ArrowheadLayout
        Positions of the latent variables z.
    rows : ArrowheadLayout
        Where the dense part and the groups lie in φ.
    derivatives
        Compiled functions.
    levels : sequence of GroupEffects
        The grouping factors that can be swept; the first has the groups of the layouts, if there
        are any.
    scalars : ndarray of int64
        Positions in φ of what hyperparameters alone determine; it is in no layout, and is not held
        with effects.
    hyper_in_prior : bool
        Whether the prior of z depends on h.
    spread : ndarray, shape (D,)
        Standard deviations of variables a priori.
    spread_of_phi : ndarray, shape (P,)
        Those of what rows read.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        hyper: np.ndarray,
        latent: ArrowheadLayout,
        rows: ArrowheadLayout,
        levels: Sequence[GroupEffects],
        points: Sequence[np.ndarray],
        scalars: np.ndarray = NOTHING,
    ) -> None:
        self.derivatives, self.hyper, self.latent, self.rows = derivatives, hyper, latent, rows
        self.levels, self.scalars = levels, scalars
        push, product = derivatives.push, derivatives.prior_product
        spread = self.spread = spread_of(np.array(points))
        of_phi = self.spread_of_phi = spread_of(np.array([derivatives.phi(p) for p in points]))
        both = rows.dense, rows.groups.ravel()
        everything = latent.dense, latent.groups.ravel()
        sizes = of_phi[np.concatenate(both)], spread
        probed = points[:PROBES]
        self._map = _Columns(derivatives, "push", probed, latent.dense, both, sizes)
        self._prior = _Columns(
            derivatives,
            "prior_product",
            probed,
            latent.dense,
            everything,
            (1.0 / spread[np.concatenate(everything)], spread),
            symmetric=True,
        )
        own = spread[latent.groups]
        self._noise_of_map = ROUNDING * of_phi[rows.groups][:, :, None] / own[:, None, :]
        self._noise_of_prior = ROUNDING / (own[:, :, None] * own[:, None, :])
        group_map = [self._group_blocks(push, p, rows.groups) for p in points]
        group_prior = [self._group_blocks(product, p, latent.groups) for p in points]
        self._fixed_map = group_map[0] if _alike(group_map, self._noise_of_map) else None
        self._fixed_prior = group_prior[0] if _alike(group_prior, self._noise_of_prior) else None
        self._precision: tuple[bytes, ArrowheadMatrix] | None = None
        self._maps: dict[bytes, MapEntries] = {}
        # Given h effects that are not centred have priors of their own.
        self.hyper_in_prior = not all(
            self._same_precision(points[0], _with(points[0], hyper, point[hyper]))
            for point in points[1:]
        )

    def _group_blocks(
        self, derivative: Callable[..., np.ndarray], point: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        n_groups, width = self.latent.groups.shape
        blocks = np.empty((n_groups, rows.shape[1], width))
        for slot in range(width):
            seed = np.zeros(point.size)
            seed[self.latent.groups[:, slot]] = 1.0
            blocks[:, :, slot] = derivative(point, seed)[rows]
        return blocks

    def _same_precision(self, point: np.ndarray, other: np.ndarray) -> bool:
        """Whether the curvature of the prior is the same at two points."""
        entries = [self._prior.entries(p) for p in (point, other)]
        noise = self._prior.noise
        blocks = [
            self._group_blocks(self.derivatives.prior_product, p, self.latent.groups)
            for p in (point, other)
        ]
        return _alike(entries, noise) and _alike(blocks, self._noise_of_prior)

    def projector_at(self, point: np.ndarray) -> Projector:
        """Return A(h) at the hyperparameters of a point, the last ones from memory."""
        return self._entries_at(point).whole

    def _entries_at(self, point: np.ndarray) -> MapEntries:
        fixed = not self._map.changing and self._fixed_map is not None
        key = b"" if fixed else point[self.hyper].tobytes()
        if key not in self._maps:
            blocks = self._fixed_map
            if blocks is None:
                blocks = self._group_blocks(self.derivatives.push, point, self.rows.groups)
            if len(self._maps) == REMEMBERED:
                self._maps.pop(next(iter(self._maps)))
            self._maps[key] = MapEntries(self._map, self._map.entries(point), blocks)
        return self._maps[key]

    def prior_precision_at(self, point: np.ndarray) -> ArrowheadMatrix:
        """Return P, minus the Hessian of the log prior by z, at a point, the last from memory."""
        key = b""
        if self._prior.changing or self._fixed_prior is None:
            elsewhere = point.copy()
            if not self.hyper_in_prior:
                elsewhere[self.hyper] = 0.0
            key = elsewhere.tobytes()
        if self._precision is None or self._precision[0] != key:
            self._precision = key, self._prior_precision(point)
        return self._precision[1]

    def _prior_precision(self, point: np.ndarray) -> ArrowheadMatrix:
        blocks = self._fixed_prior
        if blocks is None:
            blocks = self._group_blocks(self.derivatives.prior_product, point, self.latent.groups)
        dense, cross = self._prior.at(point)
        return ArrowheadMatrix(compact(-(dense + dense.T) / 2), -cross, -blocks)

    def with_effects_held(self, point: np.ndarray, hyper: np.ndarray) -> "CenteredPoint | None":
        """Change h and z so that rows read the same φ, but for scalars that h determines.

        Parameters
        ----------
        point
            Where to begin.
        hyper
            The new h.

        Returns
        -------
        CenteredPoint or None
            The new point; None where no z does that, as far as scales of the dense part and the
            blocks of groups go.
        """
        phi = self.derivatives.phi(point)
        moved = point.copy()
        moved[self.hyper] = hyper
        here, there = self._entries_at(point), self._entries_at(moved)
        of_dense, of_groups = np.zeros(self.latent.dense.size), 0.0
        if here is not there:
            if self._map.changing:
                scale = here.scales_of(there)
                if not (np.isfinite(scale).all() and np.all(scale)):
                    return None
                moved[self.latent.dense] /= scale
                of_dense = -np.log(np.abs(scale))
            if self._fixed_map is None:
                of_groups = self._hold_groups(moved, phi, here.blocks, there.blocks)
                if not np.isfinite(of_groups):
                    return None
        away = np.abs(self.derivatives.phi(moved) - phi)
        away[self.scalars] = 0.0
        doubtful = np.flatnonzero(~(away <= HELD * np.abs(phi)))
        if doubtful.size:
            terms = self._terms_of(moved, there)
            if not np.all(away[doubtful] <= HELD * terms[doubtful]):
                return None
        return CenteredPoint(moved, of_dense, of_groups)

    def _terms_of(self, point: np.ndarray, entries: MapEntries) -> np.ndarray:
        """Return the sum of the sizes of the terms of each entry of φ.

        Where they cancel, the entry itself is small, and does not say what rounding does to it.
        """
        projector, (dense, groups) = entries.whole, self.latent.split(np.abs(point))
        without = point.copy()
        without[self.latent.dense], without[self.latent.groups] = 0.0, 0.0
        terms = np.abs(self.derivatives.phi(without))
        of_groups = multiply_blocks(np.abs(projector.blocks), groups)
        if not is_empty(projector.cross):
            of_groups += (abs(projector.cross) @ dense).reshape(of_groups.shape)
        self.rows.put(
            terms,
            terms[self.rows.dense] + abs(projector.dense) @ dense,
            terms[self.rows.groups] + of_groups,
        )
        return terms

    def foretells(self, point: np.ndarray, variables: Sequence[np.ndarray]) -> bool:
        """Whether A(h) and P are what derivatives say at a point it was not made of.

        Parameters
        ----------
        point
            In the coordinates of the field.
        variables
            Positions of the latent variables, one by one: what the small of them do is not to be
            lost beside the large.
        """
        rng, derivatives = np.random.default_rng(20090404), self.derivatives
        projector, precision = self.projector_at(point), self.prior_precision_at(point)
        of_map, of_prior = np.zeros(self.spread_of_phi.size), np.zeros(point.size)
        z = np.concatenate([self.latent.dense, self.latent.groups.ravel()])
        read = np.concatenate([self.rows.dense, self.rows.groups.ravel()])
        for own in variables:
            seed = np.zeros(point.size)
            seed[own] = self.spread[own] * rng.standard_normal(own.size)
            dense, groups = self.latent.split(seed)
            self.rows.put(of_map, *projector.times(dense, groups))
            self.latent.put(of_prior, *precision.product(dense, groups))
            noise = 10.0 * ROUNDING * self.spread_of_phi, 10.0 * ROUNDING / self.spread
            of_phi, curved = derivatives.push(point, seed), -derivatives.prior_product(point, seed)
            if compare(of_phi[read], of_map[read], rtol=RTOL, allowed=noise[0][read]) or compare(
                curved[z], of_prior[z], rtol=RTOL, allowed=noise[1][z]
            ):
                return False
        return True

    def _hold_groups(
        self, moved: np.ndarray, phi: np.ndarray, here: np.ndarray, there: np.ndarray
    ) -> float:
        """Put groups where rows read φ, in place; return log |∂z'/∂z|, not finite if impossible."""
        if here.shape[1] == here.shape[2]:
            moved[self.latent.groups] = 0.0
            left = (phi - self.derivatives.phi(moved))[self.rows.groups]
            moved[self.latent.groups], below = solve_square(there, left)
            return solve_square(here, left)[1] - below
        # Rows read more of a level than it has variables of its own.
        with np.errstate(all="ignore"):
            scale = np.sum(here * there, axis=1) / np.sum(here**2, axis=1)
            moved[self.latent.groups] /= scale
            return -float(np.sum(np.log(np.abs(scale))))


def _with(point: np.ndarray, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a point with other values at some positions."""
    moved = point.copy()
    moved[positions] = values
    return moved


def _alike(arrays: Sequence[np.ndarray], noise: np.ndarray) -> bool:
    """Whether arrays are the same, entry by entry, up to rounding and what is noise."""
    return all(compare(array, arrays[0], rtol=RTOL, allowed=noise) is None for array in arrays[1:])


# --- Which variables are hyperparameters ----------------------------------------------------------


def find_field(
    tall: TallModel,
    structure: RowStructure,
    factors: Sequence[np.ndarray],
    scalars: np.ndarray = NOTHING,
) -> LatentField:
    """Sort variables into hyperparameters, a dense part and groups.

    Parameters
    ----------
    tall, structure
        The model and what its rows read.
    factors
        For each grouping factor the positions in φ of the entries of each of its levels, shape
        (levels, q'); the largest whose effects are conditionally independent is eliminated.
    scalars : ndarray of int64
        Positions in φ that hyperparameters alone are to determine; no layout has them.

    Raises
    ------
    NoFieldError
        If variables are not a latent field given a few others.
    """
    derivatives = Derivatives(tall, structure)
    rng = np.random.default_rng(20090401)
    probes = find_probes(tall, derivatives.are_finite, derivatives.prior_product)
    points = list(probes.points)
    apart = _determining(tall, derivatives, probes, scalars)
    latent_names, hyper_names = _sorted_variables(tall, derivatives, probes, rng, apart)
    slices = tall.layout.slices
    hyper = _joined(slices, hyper_names)
    too_many = NoFieldError(
        f"{hyper.size} variables ({', '.join(hyper_names)}) change how the others enter."
    )
    if hyper.size > MOST_SCALES:
        raise too_many
    n_phi = derivatives.phi(points[0]).size
    swept: list[GroupEffects] = []
    names: list[dict[str, np.ndarray]] = []
    for groups in sorted(factors, key=lambda g: -g.shape[0]):
        found = _grouped(tall, derivatives, probes, rng, latent_names, groups)
        if found is None:
            continue
        prior = _level_prior(tall, derivatives, probes, *found)
        if prior is not NotImplemented:
            swept.append(GroupEffects(found[1], groups, prior))
            names.append(found[0])
    if swept:  # the factor with most levels is eliminated
        dense = _joined(slices, [n for n in latent_names if n not in names[0]])
        latent = ArrowheadLayout(dense, swept[0].latent)
        rest = np.setdiff1d(np.arange(n_phi), np.append(swept[0].rows, scalars))
        rows = ArrowheadLayout(rest, swept[0].rows)
    else:
        none = np.empty((0, 1), dtype=np.int64)
        latent = ArrowheadLayout(_joined(slices, latent_names), none)
        rows = ArrowheadLayout(np.setdiff1d(np.arange(n_phi), scalars), none)
    if latent.dense.size > MOST_DENSE:
        raise NoFieldError(
            f"{latent.dense.size} variables beside those of the largest factor are too many."
        )
    of_levels = {name for found in names for name in found}
    others = [_joined(slices, [n]) for n in latent_names if n not in of_levels]
    inside = derivatives.within(find_coordinates(derivatives.push, points, others))
    points = [inside.coordinates.from_model(point) for point in points]
    field = LatentField(inside, hyper, latent, rows, swept, points, scalars)
    variables = [_joined(slices, [name]) for name in latent_names]
    if not all(field.foretells(point, variables) for point in points[PROBES:]):
        raise NoFieldError("How variables enter changes where that was not seen at other points.")
    if hyper.size > MOST_HYPER and field.with_effects_held(points[0], points[1][hyper]) is None:
        raise too_many
    return field


def _joined(slices: dict[str, slice], names: Sequence[str]) -> np.ndarray:
    parts = [np.arange(slices[name].start, slices[name].stop) for name in names]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _sorted_variables(
    tall: TallModel,
    derivatives: Derivatives,
    probes: Probes,
    rng: np.random.Generator,
    apart: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Take variables, the largest first, into the field as long as it stays one, some not."""
    slices = tall.layout.slices
    transformed = {
        get_var_name(value)
        for rv, value in tall.model.rvs_to_values.items()
        if tall.model.rvs_to_transforms.get(rv) is not None
    }
    order = sorted(
        tall.layout.names,
        key=lambda n: (-(slices[n].stop - slices[n].start), n in transformed),
    )
    of_phi = spread_of(np.array([derivatives.phi(point) for point in probes.points]))
    latent: list[str] = []
    hyper: list[str] = []
    for name in order:
        field = [slices[each] for each in [*latent, name]]
        joint = name not in apart and all(
            _enter_linearly(derivatives, step, field, probes.spread, of_phi, rng)
            and _keep_curvature(derivatives, step, field, probes.spread, rng)
            for step in probes.steps()
        )
        (latent if joint else hyper).append(name)
    return [n for n in tall.layout.names if n in latent], [
        n for n in tall.layout.names if n in hyper
    ]


def _determining(
    tall: TallModel, derivatives: Derivatives, probes: Probes, entries: np.ndarray
) -> list[str]:
    """Name the variables on which some entries of φ depend."""
    found = []
    for name, where in tall.layout.slices.items():
        for point, there in probes.steps():
            moved = _with(point, np.arange(where.start, where.stop), there[where])
            if np.any(derivatives.phi(moved)[entries] != derivatives.phi(point)[entries]):
                found.append(name)
                break
    return found


def _enter_linearly(
    derivatives: Derivatives,
    step: tuple[np.ndarray, np.ndarray],
    field: Sequence[slice],
    spread: np.ndarray,
    of_phi: np.ndarray,
    rng: np.random.Generator,
) -> bool:
    """Whether φ is affine in some variables from a point to another, by its values.

    What each of them does is compared by itself, so that the small are not lost beside the large.
    """
    point, moved, noise = step[0], step[0].copy(), ROUNDING * of_phi
    for where in field:
        moved[where] = step[1][where]
    for where in field:
        seed = np.zeros(point.size)
        seed[where] = spread[where] * rng.standard_normal(where.stop - where.start)
        here, there = derivatives.push(point, seed), derivatives.push(moved, seed)
        if compare(there, here, rtol=RTOL_OF_FIELD, allowed=noise) is not None:
            return False
    here, there, along = (
        derivatives.phi(point),
        derivatives.phi(moved),
        derivatives.push(point, moved - point),
    )
    allowed = RTOL_OF_PHI * np.maximum(np.abs(here), np.abs(along)) + noise
    return compare(there, here + along, rtol=RTOL_OF_PHI, allowed=allowed) is None


def _keep_curvature(
    derivatives: Derivatives,
    step: tuple[np.ndarray, np.ndarray],
    field: Sequence[slice],
    spread: np.ndarray,
    rng: np.random.Generator,
) -> bool:
    """Whether the last of some variables leaves the prior's curvature by the others as it is.

    Nor may they change its own with them.
    """
    *old, new = (np.arange(where.start, where.stop) for where in field)
    if not old:
        return True
    others = np.concatenate(old)
    noise, point = ROUNDING / spread, step[0]
    for moving, seeded, looked_at in (
        (new, others, others),
        (others, new, np.append(others, new)),
    ):
        moved, seed = _with(point, moving, step[1][moving]), np.zeros(point.size)
        seed[seeded] = spread[seeded] * rng.standard_normal(seeded.size)
        here, there = (derivatives.prior_product(p, seed)[looked_at] for p in (point, moved))
        if compare(there, here, rtol=RTOL_OF_FIELD, allowed=noise[looked_at]) is not None:
            return False
    return True


def _grouped(
    tall: TallModel,
    derivatives: Derivatives,
    probes: Probes,
    rng: np.random.Generator,
    latent: Sequence[str],
    groups: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """Find the latent variables of a factor's levels; None where levels are joined by others."""
    slices = tall.layout.slices
    shapes = dict(zip(tall.layout.names, tall.layout.shapes, strict=True))
    found: dict[str, np.ndarray] = {}
    for name in latent:
        for entries in _arrangements(shapes[name], groups.shape[0]):
            if _by_level(derivatives, probes, rng, slices[name].start + entries, groups):
                found[name] = entries
                break
    if not found:
        return None
    positions = [slices[name].start + entries for name, entries in found.items()]
    joined = np.concatenate(positions, axis=1)
    return (found, joined) if _by_level(derivatives, probes, rng, joined, groups) else None


def _arrangements(shape: tuple[int, ...], n_levels: int) -> Iterator[np.ndarray]:
    """List the ways in which the raveled entries of a variable may be those of levels, (G, q)."""
    every = np.arange(math.prod(shape)).reshape(shape)
    for axis, length in enumerate(shape):
        if length == n_levels:
            yield np.moveaxis(every, axis, 0).reshape(n_levels, -1)
    if len(shape) > 1 and every.size % n_levels == 0 and n_levels not in shape:
        yield every.reshape(n_levels, -1)
        yield every.reshape(-1, n_levels).T


def _by_level(
    derivatives: Derivatives,
    probes: Probes,
    rng: np.random.Generator,
    levels: np.ndarray,
    groups: np.ndarray,
) -> bool:
    """Whether each level's variables enter φ and the curvature of the prior by themselves.

    A random direction in all of them gives what the directions of single slots, level by level,
    add up to, and nothing outside of the factor.
    """
    weights = probes.spread[levels] * rng.standard_normal(levels.shape)
    push, product, enters = derivatives.push, derivatives.prior_product, False
    of_phi = spread_of(np.array([derivatives.phi(point) for point in probes.points]))
    noise = ROUNDING * of_phi[groups], ROUNDING / probes.spread[levels]
    for derivative, rows, rounded in ((push, groups, noise[0]), (product, levels, noise[1])):
        for point in probes.points:
            seed = np.zeros(point.size)
            seed[levels] = weights
            whole = derivative(point, seed)
            expected, terms = np.zeros(rows.shape), np.zeros(rows.shape)
            for slot in range(levels.shape[1]):
                seed = np.zeros(point.size)
                seed[levels[:, slot]] = 1.0
                term = weights[:, slot, None] * derivative(point, seed)[rows]
                expected, terms = expected + term, terms + np.abs(term)
            if compare(whole[rows], expected, allowed=RTOL_OF_FIELD * terms + rounded):
                return False
            if derivative is push:
                enters = enters or bool(np.any(expected))
                outside = np.setdiff1d(np.arange(whole.size), rows.ravel())
                if np.abs(whole[outside]).max(initial=0.0) > 0.0:
                    return False
    return enters


def _level_prior(
    tall: TallModel,
    derivatives: Derivatives,
    probes: Probes,
    entries: Mapping[str, np.ndarray],
    levels: np.ndarray,
) -> Any:
    """Return the priors of the levels, None if they are Gaussian, NotImplemented if not known."""
    value, product = derivatives.prior, derivatives.prior_product
    if are_gaussian(value, derivatives.prior_gradient, product, probes, levels):
        return None
    prior = LevelPrior(tall, entries, probes)
    try:
        is_known = add_up(value, prior.logp, product, probes, levels)
    except NoFieldError:
        return NotImplemented
    return prior if is_known else NotImplemented


def has_effects(tall: TallModel, structure: RowStructure) -> bool:
    """Whether variables depend on others, or enter with them, or effects are many.

    Where it is not so, all variables are best moved alike, and nothing is compiled to see that.
    """
    free = set(tall.model.free_RVs)
    if any(free.intersection(ancestors(rv.owner.inputs)) for rv in free):
        return True
    gathered = [term.block for term in structure.terms if term.index is not None]
    if any(block.stop - block.start >= LEAST_LEVELS for block in gathered):
        return True
    read = io_toposort([structure.flat], [structure.phi])
    if not any(isinstance(node.op, Elemwise) for node in read):
        return False
    phi = evaluator([structure.flat], [structure.phi])
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(tall.layout.size) for _ in range(2))
    terms = [phi(a), phi(b), phi(a + b), phi(np.zeros_like(a))]
    allowed = RTOL * np.sum(np.abs(terms), axis=0)
    return compare(terms[0] + terms[1], terms[2] + terms[3], allowed=allowed) is not None
