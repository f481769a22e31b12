"""The third and fourth order of the log-likelihood, group by group.

Groups with few rows are not known so well that their log-likelihood is quadratic, and where they
are many what is missing adds up. With δ = φ − φ̂ and K = −H, the coordinates

    u_g = K_gg⁻¹ (K δ)_g = δ_g + K_gg⁻¹ Σ_{j ≠ g} K_gj δ_j

are what the rows of group g read of everything, as far as entries of this group can say it: a
common intercept and the effect of the group add up to one number. In them small tensors for each
group hold nearly all of the third and fourth order,

    C(φ) = Σ_g (⅙ T_g[u_g, u_g, u_g] + ¹⁄₂₄ F_g[u_g, u_g, u_g, u_g]),   T_g = Σ_n f‴ w ⊗ w ⊗ w,

and F_g likewise, with w the weights by which row n reads the entries of its group. An entry of φ
that is a predictor by itself, such as the scale of the rows, is one more coordinate of each
group, u = δ, and is left out of the sum. Third derivatives by such entries alone, and fourth ones
by them or by four different predictors, are left to the remainders. Each row has its share in C,
which its remainder subtracts; so nothing depends on how well u says what the rows read.

Reference
---------
Shun and McCullagh (1995), Laplace approximation of high dimensional integrals, for why the order
beyond the second matters where effects are many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.latent.batched import multiply_blocks
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["Cubic", "cubic_of"]

REACH = 8.0
"""Coordinates end at so many standard deviations of what the rows of a group say.

Farther out, powers of them would be large beyond the digits of a sum, and say nothing of the rows.
"""

LEAST_CURVATURE = 1e-6
"""Directions with less curvature than this share of the largest are left to the remainders."""


@dataclass(frozen=True)
class Cubic:
    """Higher orders of the log-likelihood by the levels of a factor, divided by T.

    Attributes
    ----------
    entries : ndarray of int64, shape (G, q)
        Positions in φ of what rows read of each level.
    scalars : ndarray of int64, shape (m,)
        Positions of those that are predictors by themselves.
    blocks : ndarray, shape (G, q, q)
        K_gg.
    inverse : ndarray, shape (G, q, q)
        K_gg⁻¹, zero in directions of which rows say nothing.
    coupling : ndarray, shape (G, q, m)
        What K has between the groups and the scalars.
    tensor : ndarray, shape (G, q + m, q + m, q + m)
        T_g.
    quartic : ndarray, shape (G, q, q, q, q)
        F_g.
    reach : ndarray, shape (G, q + m)
        Where coordinates end.
    """

    entries: np.ndarray
    scalars: np.ndarray
    blocks: np.ndarray
    inverse: np.ndarray
    coupling: np.ndarray
    tensor: np.ndarray
    quartic: np.ndarray
    reach: np.ndarray

    def coordinates(self, delta: np.ndarray, curved: np.ndarray) -> np.ndarray:
        """Return u_g, shape (G, q + m), given δ and Kδ of shape (P,)."""
        of_scalars, read = delta[self.scalars], curved[self.entries]
        return clipped(self.inverse, self.coupling, self.reach, of_scalars, read)

    def distances(self, u: np.ndarray) -> np.ndarray:
        """Return the square of how far out each group is, shape (G,)."""
        return squared_distances(u, self.reach)

    def put(self, flat: np.ndarray, u: np.ndarray) -> None:
        """Write coordinates into the positions of their entries of φ."""
        width = self.entries.shape[1]
        flat[self.entries] = u[:, :width]
        flat[self.scalars] = u[0, width:]

    def values(self, u: np.ndarray) -> np.ndarray:
        """Return the share of each group in C, shape (G,)."""
        return powers(self.tensor, self.quartic, u)

    def slope(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two vectors whose first, times K, and second are the gradient of C by φ.

        The first, shape (G, q), is in the positions of the entries, the second, shape (m,), in
        those of the scalars.
        """
        width = self.entries.shape[1]
        curved = 0.5 * np.einsum("gijk,gj,gk->gi", self.tensor, u, u)
        own = u[:, :width]
        curved[:, :width] += np.einsum("gijkl,gj,gk,gl->gi", self.quartic, own, own, own) / 6.0
        of_groups = multiply_blocks(self.inverse, curved[:, :width].copy())
        of_scalars = curved[:, width:].sum(axis=0)
        return of_groups, of_scalars - np.einsum("gqm,gq->m", self.coupling, of_groups)


@jit_kept
def clipped(
    inverse: np.ndarray,
    coupling: np.ndarray,
    reach: np.ndarray,
    of_scalars: np.ndarray,
    read: np.ndarray,
) -> np.ndarray:
    """Return u_g given δ of the scalars and Kδ of the groups."""
    n_groups, width = read.shape
    n_scalars = of_scalars.size
    u = np.zeros((n_groups, width + n_scalars))
    for g in range(n_groups):
        for j in range(width):
            own = read[g, j]
            for m in range(n_scalars):
                own -= coupling[g, j, m] * of_scalars[m]
            for i in range(width):
                u[g, i] += inverse[g, i, j] * own
        for m in range(n_scalars):
            u[g, width + m] = of_scalars[m]
        for i in range(width + n_scalars):
            u[g, i] = min(max(u[g, i], -reach[g, i]), reach[g, i])
    return u


@jit_kept
def squared_distances(u: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return ``‖u_g‖²`` in units of the reach, of which rows say something."""
    n_groups, width = u.shape
    squares = np.zeros(n_groups)
    for g in range(n_groups):
        for i in range(width):
            if reach[g, i] > 0.0:
                squares[g] += (u[g, i] / reach[g, i]) ** 2
    return squares


@jit_kept
def powers(tensor: np.ndarray, quartic: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return ``T_g[u_g, u_g, u_g] / 6 + F_g[u_g, u_g, u_g, u_g] / 24``."""
    n_groups, width = u.shape
    n_own = quartic.shape[1]
    values = np.empty(n_groups)
    for g in range(n_groups):
        cubic = 0.0
        for i in range(width):
            for j in range(width):
                along = 0.0
                for k in range(width):
                    along += tensor[g, i, j, k] * u[g, k]
                cubic += along * u[g, i] * u[g, j]
        fourth = 0.0
        for i in range(n_own):
            for j in range(n_own):
                for k in range(n_own):
                    along = 0.0
                    for m in range(n_own):
                        along += quartic[g, i, j, k, m] * u[g, m]
                    fourth += along * u[g, i] * u[g, j] * u[g, k]
        values[g] = cubic / 6.0 + fourth / 24.0
    return values


def cubic_of(
    rows: RowFunctions,
    data: Sequence[np.ndarray],
    phi: np.ndarray,
    entries: np.ndarray,
    curvature: tuple[np.ndarray, np.ndarray, np.ndarray],
    temperature: float,
) -> Cubic:
    """Sum third and fourth order by the levels of a factor at φ, in one pass.

    Parameters
    ----------
    rows
        What the rows read.
    data
        All rows.
    phi : ndarray, shape (P,)
        φ̂.
    entries : ndarray of int64, shape (G, q)
        Positions in φ of what rows read of each level.
    curvature : (ndarray, ndarray, ndarray), shapes (G, q, q), (G, q, m) and (m,)
        K_gg, what K has between the groups and the scalars, and the diagonal of the scalars,
        divided by T.
    temperature
        T.
    """
    n_groups, width = entries.shape
    place = np.full(phi.size, -1, dtype=np.int64)
    place[entries.ravel()] = np.arange(entries.size)
    reads = rows.reads
    predictors = np.concatenate([reads.predictor, reads.scalar_predictor])
    triples, n_triples = _numbered(rows.triples, predictors, order=3), len(rows.triples)
    quads = _numbered([(*quad, quad[2]) for quad in rows.quads], reads.predictor, order=4)
    tensor = np.zeros((n_groups, *(width + reads.scalars.size,) * 3))
    quartic = np.zeros((n_groups, *(width,) * 4))

    def add(*batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v = rows.predictors_at(phi, *batch)
        beyond = rows.higher(v, rows.derivatives(v, *batch), batch)
        third, fourth = beyond[:n_triples], beyond[n_triples:]
        columns, read, weights = rows.arrays.jitted(*batch)
        mine = np.zeros_like(tensor), np.zeros_like(quartic)
        both = np.concatenate([weights, columns[:, reads.scalar_column]], axis=1)
        add_cubes(third, triples, place[read], both, width, mine[0])
        add_quartics(fourth, quads, place[read], weights, width, mine[1])
        return mine

    for _, (cubes, quartics) in over_chunks(add, data, "Higher orders"):
        tensor += cubes
        quartic += quartics
    blocks, coupling, of_scalars = curvature
    inverse, t = _inverse(blocks), temperature
    variances = np.empty(tensor.shape[:2])
    variances[:, :width] = np.einsum("gqq->gq", inverse)
    variances[:, width:] = 1.0 / np.maximum(of_scalars, np.finfo(float).tiny)
    reach = REACH * np.sqrt(variances)
    return Cubic(entries, reads.scalars, blocks, inverse, coupling, tensor / t, quartic / t, reach)


@partial(jit_kept, nogil=True)
def add_cubes(
    third: np.ndarray,
    triples: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
    width: int,
    tensor: np.ndarray,
) -> None:
    """Add what rows give; a place of -1 belongs to another factor, and scalars come last."""
    n_gathered, n_terms = places.shape[1], weights.shape[1]
    slots = np.empty(n_terms, dtype=np.int64)
    for n in range(places.shape[0]):
        group = 0
        for s in range(n_terms):
            if s >= n_gathered:
                slots[s] = width + s - n_gathered
            elif places[n, s] >= 0:
                group, slots[s] = places[n, s] // width, places[n, s] % width
            else:
                slots[s] = -1
        for s in range(n_terms):
            for t in range(n_terms):
                for r in range(n_terms):
                    by = triples[s, t, r]
                    if by >= 0 and slots[s] >= 0 and slots[t] >= 0 and slots[r] >= 0:
                        value = third[by, n] * weights[n, s] * weights[n, t]
                        tensor[group, slots[s], slots[t], slots[r]] += value * weights[n, r]


@partial(jit_kept, nogil=True)
def add_quartics(
    fourth: np.ndarray,
    quads: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
    width: int,
    quartic: np.ndarray,
) -> None:
    """Add what rows give by gathered entries, as :func:`add_cubes` does."""
    own = np.empty(places.shape[1], dtype=np.int64)
    for n in range(places.shape[0]):
        n_own = 0
        for s in range(places.shape[1]):
            if places[n, s] >= 0:
                own[n_own] = s
                n_own += 1
        for s in own[:n_own]:
            group, i = places[n, s] // width, places[n, s] % width
            for t in own[:n_own]:
                j = places[n, t] % width
                for r in own[:n_own]:
                    k = places[n, r] % width
                    for q in own[:n_own]:
                        by = quads[s, t, r, q]
                        if by >= 0:
                            value = fourth[by, n] * weights[n, s] * weights[n, t]
                            value *= weights[n, r] * weights[n, q]
                            quartic[group, i, j, k, places[n, q] % width] += value


def _numbered(
    derivatives: Sequence[tuple[int, ...]], predictors: np.ndarray, order: int
) -> np.ndarray:
    """Return which of some derivatives is by any predictors of entries; -1 where none is."""
    number = {tuple(sorted(by)): i for i, by in enumerate(derivatives)}
    found = np.full((predictors.size,) * order, -1, dtype=np.int64)
    for index in np.ndindex(found.shape):
        found[index] = number.get(tuple(sorted(int(predictors[s]) for s in index)), -1)
    return found


def _inverse(blocks: np.ndarray) -> np.ndarray:
    """Invert blocks where they are positive; the rest is zero."""
    if blocks.shape[1] == 1:
        positive = blocks > LEAST_CURVATURE * blocks.max(initial=0.0)
        return np.where(positive, 1.0 / np.where(positive, blocks, 1.0), 0.0)
    values, vectors = np.linalg.eigh(blocks)
    positive = values > LEAST_CURVATURE * values.max(axis=1, keepdims=True, initial=0.0)
    values = np.where(positive, 1.0 / np.where(positive, values, 1.0), 0.0)
    return np.einsum("gij,gj,gkj->gik", vectors, values, vectors)
