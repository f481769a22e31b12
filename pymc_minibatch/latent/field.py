"""Which variables are a latent field, nearly Gaussian given a few hyperparameters.

With h the hyperparameters and z the rest of θ, what rows read is affine in z,

    φ = φ₀(h) + A(h) z,

and so is, as a rule, the gradient of the log prior, −P(h) z + …. Effects written ``mu + sd * z``,
``dot(chol, z)`` or centred, smooth terms, random walks and plain coefficients are all of this kind;
their scales, correlations and length scales are the hyperparameters. Nothing of this is recognised
by name. Variables are hyperparameters where they change the derivatives of φ or of the prior by
others, which is seen at random points.

A and P are sparse with a pattern that does not depend on h. Columns that share no row are had by one
directional derivative, and those that do not change are had once.

References
----------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, section
1.2. Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.util import get_var_name
from pytensor.gradient import grad, pushforward
from scipy import sparse

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.latent.arrow import Arrow
from pymc_minibatch.latent.layout import ArrowLayout
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["LatentField", "NoFieldError", "find_field"]

PROBES = 3
"""Points at which derivatives are compared."""

SPREAD = 0.3
TOLERANCE = 1e-7
MOST_DENSE = 700
"""More latent variables than this outside of groups are too many for a dense matrix."""

MOST_HYPER = 30
"""More hyperparameters than this are too many for moves of all at once."""


class NoFieldError(ValueError):
    """The variables are no latent field; the message says why."""


class Derivatives:
    """Compiled functions of the flat point; rebuilt where they are needed.

    Parameters
    ----------
    tall, structure
        The model and what its rows read.
    """

    def __init__(self, tall: TallModel, structure: RowStructure) -> None:
        self.tall, self.structure = tall, structure

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled functions out."""
        return {"tall": self.tall, "structure": self.structure}

    @cached_property
    def phi(self) -> CompiledFunction:
        """``(point,) -> φ``."""
        return compile_numba([self.structure.flat], [self.structure.phi])

    @cached_property
    def push(self) -> CompiledFunction:
        """``(point, vector) -> Jφ · vector``."""
        vector: Any = pt.dvector("vector")
        flat, phi = self.structure.flat, self.structure.phi
        return compile_numba([flat, vector], [pushforward(phi, flat, vector)])

    @cached_property
    def prior_gradient(self) -> CompiledFunction:
        """``(point,) -> gradient`` of the log prior."""
        return compile_numba([self.tall.flat], [self._prior_slope])

    @cached_property
    def prior_product(self) -> CompiledFunction:
        """``(point, vector) -> Hessian · vector`` of the log prior."""
        flat, vector = self.tall.flat, pt.dvector("vector")
        slope = pt.sum(self._prior_slope * vector)
        product: Any = grad(slope, flat, disconnected_inputs="ignore")
        return compile_numba([flat, vector], [product])

    @property
    def _prior_slope(self) -> Any:
        return grad(self.tall.prior_graph, self.tall.flat, disconnected_inputs="ignore")


@dataclass(frozen=True)
class LatentMap:
    """A(h) in the layouts of φ (rows) and z (columns).

    Attributes
    ----------
    dense : sparse array, shape (P_dense, p)
        What the dense part of φ takes from the dense part of z.
    cross : ndarray, shape (G, q', c)
        What each group of φ takes from those dense z that enter groups.
    columns : ndarray, shape (c,)
        Which these are.
    blocks : ndarray, shape (G, q', q)
        What each group of φ takes from its own z.
    """

    dense: Any
    cross: np.ndarray
    columns: np.ndarray
    blocks: np.ndarray

    def pull_back(self, curvature: Arrow) -> Arrow:
        """Return ``Aᵀ K A``."""
        n_groups, width = self.blocks.shape[0], self.blocks.shape[2]
        a, p = self.dense, self.dense.shape[1]
        dense = np.asarray(a.T @ (a.T @ curvature.dense).T)
        rows, columns = curvature.cross.shape[1], curvature.cross.shape[2]
        flat = curvature.cross.reshape(n_groups * rows, columns)
        through = np.asarray((a.T @ flat.T).T).reshape(n_groups, rows, p)  # K_gd A_dd
        if self.columns.size:
            onto = self.cross.reshape(n_groups * rows, -1)
            mixed = onto.T @ through.reshape(n_groups * rows, p)
            dense[self.columns] += mixed
            dense[:, self.columns] += mixed.T
            carried = _times(curvature.blocks, self.cross)
            dense[np.ix_(self.columns, self.columns)] += onto.T @ carried.reshape(
                n_groups * rows, -1
            )
            through[:, :, self.columns] += carried
        if rows == width == 1:
            scale = self.blocks
            return Arrow(dense, scale * through, scale**2 * curvature.blocks)
        transposed = self.blocks.transpose(0, 2, 1)
        return Arrow(
            dense,
            _times(transposed, through),
            _times(transposed, _times(curvature.blocks, self.blocks)),
        )

    def transposed(self, dense: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Aᵀ y``."""
        of_dense = np.asarray(self.dense.T @ dense)
        if self.columns.size:
            of_dense[self.columns] += np.einsum("grc,gr->c", self.cross, groups)
        return of_dense, np.einsum("grq,gr->gq", self.blocks, groups)


def _times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply the blocks of each group."""
    if left.shape[1] == left.shape[2] == 1:
        return left * right
    return np.einsum("gij,gjk->gik", left, right)


class _Columns:
    """Columns of a sparse matrix that depends on the point, by few directional derivatives."""

    def __init__(
        self,
        derivatives: Derivatives,
        name: str,
        points: Sequence[np.ndarray],
        positions: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        self.derivatives, self.name = derivatives, name
        self.positions, self.rows = positions, rows
        size = points[0].size
        seen = []
        for point in points:
            columns = np.zeros((rows.size, positions.size))
            for j, position in enumerate(positions):
                seed = np.zeros(size)
                seed[position] = 1.0
                columns[:, j] = self.along(point, seed)
            seen.append(columns)
        scale = np.max([np.abs(c).max(initial=0.0) for c in seen]) or 1.0
        changes = np.max([np.abs(c - seen[0]) for c in seen], axis=0) > TOLERANCE * scale
        self.base = seen[0]
        self.changing = np.flatnonzero(changes.any(axis=0))
        pattern = np.any([c != 0.0 for c in seen], axis=0)
        self.colors = _colored(pattern[:, self.changing])
        self.pattern = pattern

    def along(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """Return the derivative along a direction."""
        return getattr(self.derivatives, self.name)(point, seed)[self.rows]

    def at(self, point: np.ndarray) -> np.ndarray:
        """Return the columns at a point, shape (rows, columns)."""
        if not self.changing.size:
            return self.base
        columns = self.base.copy()
        for color in range(self.colors.max() + 1):
            own = self.changing[self.colors == color]
            seed = np.zeros(point.size)
            seed[self.positions[own]] = 1.0
            product = self.along(point, seed)
            columns[:, own] = np.where(self.pattern[:, own], product[:, None], 0.0)
        return columns


def _colored(pattern: np.ndarray) -> np.ndarray:
    """Give columns that share a row different colors, greedily."""
    colors = np.zeros(pattern.shape[1], dtype=np.int64)
    taken: list[np.ndarray] = []
    for j in range(pattern.shape[1]):
        for color, rows in enumerate(taken):
            if not (rows & pattern[:, j]).any():
                colors[j] = color
                rows |= pattern[:, j]
                break
        else:
            colors[j] = len(taken)
            taken.append(pattern[:, j].copy())
    return colors


class LatentField:
    """Layouts of θ and φ, and A(h) and P(h).

    Attributes
    ----------
    hyper : ndarray of int64
        Positions of the hyperparameters h in the flat point.
    latent : ArrowLayout
        Positions of the latent variables z.
    rows : ArrowLayout
        Where the dense part and the groups lie in φ.
    derivatives
        Compiled functions.
    """

    def __init__(
        self,
        derivatives: Derivatives,
        hyper: np.ndarray,
        latent: ArrowLayout,
        rows: ArrowLayout,
        points: Sequence[np.ndarray],
    ) -> None:
        self.derivatives, self.hyper, self.latent, self.rows = derivatives, hyper, latent, rows
        push, product = derivatives.push, derivatives.prior_product
        both = np.concatenate([rows.dense, rows.groups.ravel()])
        self._map = _Columns(derivatives, "push", points, latent.dense, both)
        everything = np.concatenate([latent.dense, latent.groups.ravel()])
        self._prior = _Columns(derivatives, "prior_product", points, latent.dense, everything)
        group_map = [self._group_blocks(push, p, rows.groups) for p in points]
        group_prior = [self._group_blocks(product, p, latent.groups) for p in points]
        self._fixed_map = group_map[0] if _alike(group_map) else None
        self._fixed_prior = group_prior[0] if _alike(group_prior) else None
        n = rows.dense.size
        self._entering = np.flatnonzero(self._map.pattern[n:].any(axis=0))
        self._fixed: dict[str, Any] = {}

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

    def map_at(self, point: np.ndarray) -> LatentMap:
        """Return A(h) at the hyperparameters of a point."""
        if "map" in self._fixed:
            return self._fixed["map"]
        n, (n_groups, width) = self.rows.dense.size, self.rows.groups.shape
        columns = self._map.at(point)
        blocks = self._fixed_map
        if blocks is None:
            blocks = self._group_blocks(self.derivatives.push, point, self.rows.groups)
        cross = columns[n:][:, self._entering].reshape(n_groups, width, self._entering.size)
        dense: Any = columns[:n]
        if np.count_nonzero(dense) < 0.2 * dense.size:
            dense = sparse.csr_array(dense)
        found = LatentMap(dense, cross, self._entering, blocks)
        if not self._map.changing.size and self._fixed_map is not None:
            self._fixed["map"] = found
        return found

    def prior_precision_at(self, point: np.ndarray) -> Arrow:
        """Return P, minus the Hessian of the log prior by z, at a point."""
        if "prior" in self._fixed:
            return self._fixed["prior"]
        n, (n_groups, width) = self.latent.dense.size, self.latent.groups.shape
        columns = self._prior.at(point)
        blocks = self._fixed_prior
        if blocks is None:
            blocks = self._group_blocks(self.derivatives.prior_product, point, self.latent.groups)
        cross = columns[n:].reshape(n_groups, width, n)
        found = Arrow(-(columns[:n] + columns[:n].T) / 2, -cross, -blocks)
        if not self._prior.changing.size and self._fixed_prior is not None:
            self._fixed["prior"] = found
        return found


def _alike(blocks: Sequence[np.ndarray]) -> bool:
    scale = np.max([np.abs(b).max(initial=0.0) for b in blocks]) or 1.0
    return all(np.abs(b - blocks[0]).max(initial=0.0) <= TOLERANCE * scale for b in blocks)


# --- Which variables are hyperparameters ----------------------------------------------------------


def find_field(
    tall: TallModel, structure: RowStructure, factors: Sequence[np.ndarray]
) -> LatentField:
    """Sort variables into hyperparameters, a dense part and groups.

    Parameters
    ----------
    tall, structure
        The model and what its rows read.
    factors
        For each grouping factor the positions in φ of the entries of each of its levels, shape
        (levels, q'); the largest whose effects are conditionally independent is eliminated.

    Raises
    ------
    NoFieldError
        If variables are not a latent field given a few others.
    """
    derivatives = Derivatives(tall, structure)
    rng = np.random.default_rng(20090401)
    start = tall.layout.flatten(tall.model.initial_point())
    points = [start + rng.normal(0, SPREAD, start.size) for _ in range(PROBES)]
    latent_names, hyper_names = _sorted_variables(tall, derivatives, points, rng)
    slices = tall.layout.slices
    hyper = _joined(slices, hyper_names)
    if hyper.size > MOST_HYPER:
        raise NoFieldError(
            f"{hyper.size} variables ({', '.join(hyper_names)}) change how the others enter."
        )
    n_phi = derivatives.phi(start).size
    for groups in sorted(factors, key=lambda g: -g.shape[0]):
        found = _grouped(tall, derivatives, points, rng, latent_names, groups)
        if found is not None:
            names, positions = found
            dense = _joined(slices, [n for n in latent_names if n not in names])
            rest = np.setdiff1d(np.arange(n_phi), groups.ravel())
            if dense.size <= MOST_DENSE:
                return LatentField(
                    derivatives,
                    hyper,
                    ArrowLayout(dense, positions),
                    ArrowLayout(rest, groups),
                    points,
                )
    dense = _joined(slices, latent_names)
    if dense.size > MOST_DENSE:
        raise NoFieldError(f"{dense.size} latent variables are not in independent groups.")
    none = np.empty((0, 1), dtype=np.int64)
    return LatentField(
        derivatives,
        hyper,
        ArrowLayout(dense, none),
        ArrowLayout(np.arange(n_phi), none),
        points,
    )


def _joined(slices: dict[str, slice], names: Sequence[str]) -> np.ndarray:
    parts = [np.arange(slices[name].start, slices[name].stop) for name in names]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _sorted_variables(
    tall: TallModel,
    derivatives: Derivatives,
    points: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> tuple[list[str], list[str]]:
    """Take variables, the largest first, into the field as long as it stays one."""
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
    latent: list[str] = []
    hyper: list[str] = []
    for name in order:
        field = [*latent, name]
        joint = all(_is_field(slices, derivatives, p, field, rng) for p in points[:2])
        (latent if joint else hyper).append(name)
    return [n for n in tall.layout.names if n in latent], [
        n for n in tall.layout.names if n in hyper
    ]


def _is_field(
    slices: dict[str, slice],
    derivatives: Derivatives,
    point: np.ndarray,
    field: Sequence[str],
    rng: np.random.Generator,
) -> bool:
    """Whether φ is affine in these variables, and none changes the prior's curvature by others."""
    *old, new = field
    where = _joined(slices, field)
    moved = point.copy()
    moved[where] += rng.normal(0, 1.0, where.size)
    seed = np.zeros(point.size)
    seed[where] = rng.normal(size=where.size)
    here, there = derivatives.push(point, seed), derivatives.push(moved, seed)
    if not _same(here, there):
        return False
    if not old:
        return True
    others = _joined(slices, old)
    # The new variable must not change the curvature by the old ones, nor they its own with them.
    moved = point.copy()
    moved[slices[new]] += rng.normal(0, 1.0, slices[new].stop - slices[new].start)
    seed[slices[new]] = 0.0
    here = derivatives.prior_product(point, seed)[others]
    there = derivatives.prior_product(moved, seed)[others]
    if not _same(here, there):
        return False
    moved = point.copy()
    moved[others] += rng.normal(0, 1.0, others.size)
    seed = np.zeros(point.size)
    seed[slices[new]] = rng.normal(size=slices[new].stop - slices[new].start)
    here = derivatives.prior_product(point, seed)[where]
    there = derivatives.prior_product(moved, seed)[where]
    return _same(here, there)


def _same(here: np.ndarray, there: np.ndarray) -> bool:
    scale = max(np.abs(here).max(initial=0.0), np.abs(there).max(initial=0.0), 1e-300)
    return bool(np.abs(here - there).max(initial=0.0) <= TOLERANCE * scale)


def _grouped(
    tall: TallModel,
    derivatives: Derivatives,
    points: Sequence[np.ndarray],
    rng: np.random.Generator,
    latent: Sequence[str],
    groups: np.ndarray,
) -> tuple[list[str], np.ndarray] | None:
    """Find the latent variables of a factor's levels; None where levels are joined by others."""
    n_levels = groups.shape[0]
    slices, shapes = (
        tall.layout.slices,
        dict(zip(tall.layout.names, tall.layout.shapes, strict=True)),
    )
    names, columns = [], []
    for name in latent:
        for axis, length in enumerate(shapes[name]):
            if length != n_levels:
                continue
            where = np.arange(slices[name].start, slices[name].stop).reshape(shapes[name])
            levels = np.moveaxis(where, axis, 0).reshape(n_levels, -1)
            if _by_level(derivatives, points, rng, levels, groups):
                names.append(name)
                columns.append(levels)
                break
    if not names:
        return None
    positions = np.concatenate(columns, axis=1)
    if not _by_level(derivatives, points, rng, positions, groups):
        return None
    return names, positions


def _by_level(
    derivatives: Derivatives,
    points: Sequence[np.ndarray],
    rng: np.random.Generator,
    levels: np.ndarray,
    groups: np.ndarray,
) -> bool:
    """Whether each level's variables enter φ and the prior by themselves.

    A random direction in all of them gives what the directions of single slots, level by level,
    add up to, and nothing outside of the factor.
    """
    weights = rng.normal(size=levels.shape)
    for derivative, rows in ((derivatives.push, groups), (derivatives.prior_product, levels)):
        point = points[0]
        seed = np.zeros(point.size)
        seed[levels] = weights
        whole = derivative(point, seed)
        expected = np.zeros(rows.shape)
        for slot in range(levels.shape[1]):
            seed = np.zeros(point.size)
            seed[levels[:, slot]] = 1.0
            expected += weights[:, slot, None] * derivative(point, seed)[rows]
        if not _same(whole[rows], expected) or not np.any(expected):
            return False
        if derivative is derivatives.push:
            outside = np.setdiff1d(np.arange(whole.size), rows.ravel())
            if np.abs(whole[outside]).max(initial=0.0) > 0.0:
                return False
    return True
