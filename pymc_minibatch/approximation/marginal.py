"""What Laplace's approximation of the density of hyperparameters leaves out.

Laplace's approximation looks at one point of the field. If groups are many and small its error
adds up to standard deviations of h. Let η be the whitened field, x its border, η_g the effects of a
group, and ℓ(h, η) = log π − log q, which given h and x is a sum over groups. Then

    log p(h) = log p̃(h) + log E exp ℓ,
    log E[exp ℓ | x] = ℓ(x, 0) + Σ_g log E exp(ℓ_g(x, η_g) − ℓ_g(x, 0)),

where each group has its own integral of one dimension or two, by Gauss and Hermite's rule with the
same nodes for all groups: one pass over the rows for each node. The border is averaged over to the
second cumulant, over opposite pairs of points that have unit covariance among them if they are as
many as its entries. Groups whose integral has more dimensions are averaged over with the border.

The same integrals say what each group is given h beyond its Gaussian: mean, covariance and
skewness; and their slope by the border where the mean of that is. If the border has many entries,
its mean is found otherwise (:mod:`.border`), and the points over which is averaged are about it.

References
----------
Pinheiro and Bates (1995), Approximations to the log-likelihood function in the nonlinear
mixed-effects model, for adaptive Gauss-Hermite quadrature. Pitt, Silva, Giordani and Kohn (2012),
On some properties of Markov chain Monte Carlo simulation methods based on the particle filter, for
cumulants of an estimated likelihood. Cornish and Fisher (1938), Moments and cumulants in the
specification of distributions, for skewness.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_minibatch.approximation.border import SLOPES, mean_of_border
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.latent.batched import multiply_blocks
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.factors import find_factors, with_joined_levels
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.layout import BorderAndBlocks
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.whole import WholeDecisions
from pymc_minibatch.reference.rows import RowFunctions

__all__ = ["FIELD_ROWS", "FieldCorrection", "FieldIntegral"]

FIELD_ROWS = 2e8
"""Rows that may be evaluated for the marginal of h beyond Laplace (about 1.5 s on two cores)."""

NODES = {1: (5, 7, 11, 17, 25, 41), 2: (4, 6, 9, 13)}
"""Nodes of each dimension, by the number of effects of a group: as many as are needed. Four are the
fewest that integrate the square of a cubic, which is the leading term of what Laplace's
approximation leaves out; five cost no more in one dimension."""

LARGE_LEVELS = 100
"""Rows of a level, on average, from which that term may suffice; seven nodes are fewest if not."""

NODE_ROWS = 1e8
"""Rows that may be evaluated to find how many nodes are needed (about half a second)."""

NODE_ATOL = 0.02
"""How far the log-density of h may move with more nodes, from one such point to another: as much
moves the mean of h by a hundredth of its standard deviation."""

FINER_ROWS = 1e5
"""Rows up to which the finer of two rules that agree about the mode is taken, for tails of h."""

MOST_BORDER_PAIRS = 8
"""Opposite pairs of points of the border."""

LEAST_PAIRS, MOST_PAIRS = 4, 32
"""Opposite pairs of the whole field, if groups have no quadrature."""

BORDER_ROWS = 1e8
"""Rows that may be evaluated for the mean of the border by differences."""

SLOPE_ROWS = 1e9
"""Rows whose slopes may be evaluated for it, if it has many entries (about 5 s)."""

MOST_SKEWNESS = 0.6
"""With more, the transform of a group has its turning point within five standard deviations."""

MOST_SHIFT = 1.0
"""Farther than so many standard deviations the mean of the border is not moved."""

RTOL = 1e-7
"""How far what groups add up to may be from the log posterior, relative to its terms."""


class FieldCorrection(NamedTuple):
    """What the whitened field given h is beyond standard normal.

    Attributes
    ----------
    border : ndarray, shape (p,)
        Its mean.
    mean, skewness : ndarray, shape (G, q)
        Of each group; skewness in the coordinates in which it has unit covariance.
    root : ndarray, shape (G, q, q)
        Lower factors of covariances.
    """

    border: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    skewness: np.ndarray

    def apply(self, eta: BorderAndBlocks) -> tuple[BorderAndBlocks, float]:
        """Return the point that a standard normal one stands for, and the log-slope there."""
        dense, groups = eta
        size = np.sqrt(1.0 + self.skewness**2 / 18.0)
        moved = (groups + self.skewness / 6.0 * (groups**2 - 1.0)) / size
        slope = np.abs(1.0 + self.skewness / 3.0 * groups) / size
        log_slope = np.log(np.maximum(slope, np.finfo(float).tiny)).sum()
        log_slope += np.log(np.einsum("gii->gi", self.root)).sum()
        return (
            (self.border + dense, self.mean + multiply_blocks(self.root, moved)),
            float(log_slope),
        )


class FieldIntegral:
    """The log posterior with the field integrated out, from all rows.

    Parameters
    ----------
    sampler
        A model with effects, set up, whose surrogate is not the posterior itself.

    Attributes
    ----------
    has_large_levels : bool
        Whether Laplace's approximation is good enough for a first look.
    border : ndarray, shape (p,)
        The point about which the border is integrated.
    """

    def __init__(self, sampler: LatentSampler) -> None:
        self.surrogate, self.field = sampler.reference.surrogate, sampler.field
        self.n_rows, data = sampler.tall.n_rows, sampler.tall.data
        rows: RowFunctions = sampler.rows  # type: ignore[attr-defined]
        temperature = sampler.reference.temperature
        self.whole = WholeDecisions(self.surrogate, rows, data, [], temperature, level_rows=None)
        self.levels: GroupEffects | None = None
        self._looked_at: set[bytes] = set()
        layout, shapes = self.field.latent, sampler.tall.layout.shapes
        factors = with_joined_levels(find_factors(rows, data), shapes)
        for levels in self.field.levels if layout.groups.shape[1] in NODES else ():
            for factor in factors if levels.latent is layout.groups else ():
                if np.array_equal(factor.entries, levels.rows):
                    self.levels, self.row_levels = levels, factor.row_levels.astype(np.intp)
        self.border = np.zeros(layout.dense.size)
        n_levels, n_effects = layout.groups.shape
        self.has_large_levels = self.n_rows >= LARGE_LEVELS * n_levels
        fewest = 0 if n_effects > 1 or self.has_large_levels else 1
        self.n_nodes = NODES.get(n_effects, (1,))[fewest]

    def log_density(self, point: np.ndarray) -> float:
        """Return the log posterior at a point of the field."""
        return self._prior(point) + float(self.whole.of_all(self.surrogate.phi(point)).sum())

    def log_densities(self, points: Sequence[np.ndarray]) -> list[float]:
        """Return the log posterior at points of the field, several at a time."""
        _ = self.whole._chunks  # not in threads
        with ThreadPoolExecutor(n_cores()) as pool:
            return list(pool.map(self.log_density, points))

    def over_field(
        self, rng: np.random.Generator, conditionals: Sequence[Conditional], most: float
    ) -> np.ndarray:
        """Return log ∫ π(h, z) dz − log |L(h)|⁻¹ for several h, up to a constant, shape (K,).

        Parameters
        ----------
        rng
            Chooses points of the border, which are the same for all h.
        conditionals
            The Gaussian of the field given each h.
        most
            Evaluations of the log posterior, beyond the fewest.
        """
        for given in conditionals[:1]:
            self.is_by_level(given)
        points = self._points(rng, most / (2 * max(len(conditionals), 1)))
        _ = self.whole._chunks, [given.frame for given in conditionals]  # not in threads

        pairs = list(itertools.product(conditionals, points))
        with ThreadPoolExecutor(n_cores()) as pool:
            found = np.array(list(pool.map(self._given_border, *zip(*pairs, strict=True))))
        values = found.reshape(len(conditionals), len(points))
        values -= [(at[0] - self.border / 2) @ self.border for at in points]
        half = 0.5 * values.var(axis=1, ddof=1) if len(points) > 1 else 0.0
        determinants = np.array([given.log_determinant for given in conditionals])
        return np.asarray(values.mean(axis=1) + half - determinants)

    def is_by_level(self, given: Conditional) -> bool:
        """Whether levels are integrated out one by one, which is looked at once for each h."""
        at = given.here.tobytes()
        if self.levels is not None and at not in self._looked_at:
            self._looked_at.add(at)
            if not self._adds_up(given):
                self.levels = None
        return self.levels is not None

    @property
    def n_passes(self) -> int:
        """Evaluations of all rows by which all levels are integrated out."""
        return int(self.n_nodes ** self.field.latent.groups.shape[1])

    def choose_nodes(self, conditionals: Sequence[Conditional], cost: float) -> None:
        """Take more nodes until more of them do not change the density of h, if it can be paid for.

        Parameters
        ----------
        conditionals
            The Gaussian of the field given some h at the mode and on either side of it.
        cost
            Of an evaluation of the log posterior, in rows.
        """
        if not self.is_by_level(conditionals[0]):
            return
        n_effects = self.field.latent.groups.shape[1]
        left, known = NODE_ROWS, None
        for n_nodes in (n for n in NODES[n_effects] if n >= self.n_nodes):
            left -= len(conditionals) * n_nodes**n_effects * cost
            if left < 0:
                return
            found = self._integrals(conditionals, n_nodes)
            if known is not None:
                both = np.isfinite(found) & np.isfinite(known)
                is_enough = bool(both.any() and np.ptp((found - known)[both]) <= NODE_ATOL)
                if not is_enough or n_nodes**n_effects * cost <= FINER_ROWS:
                    self.n_nodes = n_nodes
                if is_enough:
                    return
            known = found

    def _integrals(self, conditionals: Sequence[Conditional], n_nodes: int) -> np.ndarray:
        """Return the sum of the logs of all levels' integrals given each h, shape (K,)."""
        nodes = _grid(n_nodes, self.field.latent.groups.shape[1])
        border = np.zeros(self.field.latent.dense.size)
        _ = self.whole._chunks, [given.frame for given in conditionals]  # not in threads

        def of(given: Conditional) -> float:
            return float(self._integrated(given, border, nodes)[1].sum())

        with ThreadPoolExecutor(n_cores()) as pool:
            return np.array(list(pool.map(of, conditionals)))

    def find_border(self, given: Conditional, cost: float) -> None:
        """Look for the mean of a border that has too many entries for differences along each.

        Parameters
        ----------
        given
            The Gaussian of the field given the mode of h.
        cost
            Of an evaluation of the log posterior, in rows.
        """
        takes_slopes = not self._has_few_entries(cost) and SLOPES * cost <= SLOPE_ROWS
        if takes_slopes and self.is_by_level(given):
            self.border = mean_of_border(given, partial(self._shares, given), self._slope)

    def _has_few_entries(self, cost: float) -> bool:
        return 2 * self.border.size * self.n_passes * cost <= BORDER_ROWS

    @cached_property
    def _derivatives(self) -> Derivatives:
        return self.field.derivatives.with_kinks()

    def _slope(self, point: np.ndarray) -> np.ndarray:
        derivatives = self._derivatives
        of_rows = derivatives.pull(point, self.whole.slope(derivatives.phi(point)))
        return of_rows + derivatives.prior_gradient(point)

    def at_borders(self, conditionals: Sequence[Conditional], borders: np.ndarray) -> np.ndarray:
        """Return the log-density of h and whitened borders, up to a constant, shape (K,).

        Parameters
        ----------
        conditionals
            The Gaussian of the field given each h.
        borders : ndarray, shape (K, p)
            Points of the whitened border, one for each.
        """
        still = np.zeros(self.field.latent.groups.shape)
        _ = self.whole._chunks, [given.frame for given in conditionals]  # not in threads

        def density(given: Conditional, border: np.ndarray) -> float:
            value = self._given_border(given, (border, still)) - given.log_determinant
            return value - 0.5 * float(np.sum(border**2))

        with ThreadPoolExecutor(n_cores()) as pool:
            return np.array(list(pool.map(density, conditionals, borders)))

    def correction(
        self, given: Conditional, cost: float, *, moves_border: bool = True
    ) -> FieldCorrection | None:
        """Return what the field given h is beyond its Gaussian; None if that is not known.

        Parameters
        ----------
        given
            The Gaussian of the field given h.
        cost
            Of an evaluation of the log posterior, in rows.
        moves_border
            Whether the mean of the border is to be found.
        """
        if not self.is_by_level(given):
            return None
        size = self.border.size
        border = self.border if moves_border else np.zeros(size)
        if moves_border and self._has_few_entries(cost):
            _ = self.whole._chunks, given.frame
            still = np.zeros(self.field.latent.groups.shape)
            ends = [(s * axis, still) for axis in np.eye(size) for s in (1.0, -1.0)]
            with ThreadPoolExecutor(n_cores()) as pool:
                values = np.array(list(pool.map(partial(self._given_border, given), ends)))
            # The squares that are in both ends cancel.
            border = np.clip((values[::2] - values[1::2]) / 2, -MOST_SHIFT, MOST_SHIFT)
            border = np.nan_to_num(border)
        found = self.correction_at(given, border)
        return None if found is None else found._replace(border=border)

    def correction_at(self, given: Conditional, border: np.ndarray) -> FieldCorrection | None:
        """Return what levels are given h and a whitened border; None if that is not known.

        Parameters
        ----------
        given
            The Gaussian of the field given h.
        border : ndarray, shape (p,)
            The border.
        """
        try:
            with np.errstate(all="ignore"):
                found = FieldCorrection(np.zeros(border.size), *self._moments_at(given, border))
        except np.linalg.LinAlgError:
            return None
        return found if all(np.isfinite(each).all() for each in found) else None

    def _moments_at(
        self, given: Conditional, border: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _moments(*self._shares(given, border))

    def _shares(self, given: Conditional, border: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shares (G, J) of the nodes (J, q) of each level."""
        nodes = self._nodes
        found = [
            log_weight + ratios for log_weight, ratios, _ in self._ratios(given, border, nodes)
        ]
        return np.exp(found - logsumexp(found, axis=0)).T, np.array([node for _, node in nodes])

    def _points(self, rng: np.random.Generator, n_pairs: float) -> list[BorderAndBlocks]:
        """List points over which is averaged: of the border, or of the whole field."""
        layout = self.field.latent
        if self.levels is None:
            n = int(np.clip(n_pairs, LEAST_PAIRS, MOST_PAIRS))
            noise = [layout.noise(rng) for _ in range(n)]
        else:
            n = int(np.clip(n_pairs / self.n_passes, 0, MOST_BORDER_PAIRS))
            still = np.zeros(layout.groups.shape)
            n = min(n, layout.dense.size)
            if n == 0:
                return [(self.border, still)]
            axes = np.linalg.qr(rng.standard_normal((layout.dense.size, n)))[0].T
            noise = [(axis * math.sqrt(layout.dense.size), still) for axis in axes]
        return [
            (self.border + s * dense, s * groups) for dense, groups in noise for s in (1.0, -1.0)
        ]

    def _given_border(self, given: Conditional, at: BorderAndBlocks) -> float:
        """Return the log posterior beside the Gaussian, with groups integrated out if they can."""
        squares = float(np.sum(at[0] ** 2) + np.sum(at[1] ** 2))
        point = given.frame.color(at)
        if self.levels is None:
            return self.log_density(point) + 0.5 * squares
        rows, by_level = self._integrated(given, at[0], self._nodes)
        return self._prior(point) + 0.5 * squares + rows + float(by_level.sum())

    def _integrated(
        self, given: Conditional, border: np.ndarray, nodes: Sequence[tuple[float, np.ndarray]]
    ) -> tuple[float, np.ndarray]:
        """Return the log-density of all rows at levels of 0, and what each level adds to its log.

        Integrated out, that is: log E exp(ℓ_g − ℓ_g(0)), shape (G,).
        """
        origin, total = 0.0, np.full(self.field.latent.groups.shape[0], -np.inf)
        for log_weight, ratios, rows in self._ratios(given, border, nodes):
            origin += rows
            total = np.logaddexp(total, log_weight + ratios)
        return origin, total

    def _ratios(
        self, given: Conditional, border: np.ndarray, nodes: Sequence[tuple[float, np.ndarray]]
    ) -> Iterator[tuple[float, np.ndarray, float]]:
        """Give log weight and ℓ_g − ℓ_g(0), shape (G,), of each node; with the first, all rows."""
        levels, surrogate = self.levels, self.surrogate
        assert levels is not None
        shape = self.field.latent.groups.shape
        origin = given.frame.color((border, np.zeros(shape)))
        before = surrogate.read(origin)
        at_origin = self.whole.of_all(before.phi)
        first = float(at_origin.sum())
        for log_weight, node in nodes:
            if not node.any():
                yield log_weight, np.zeros(shape[0]), first
            else:
                point = given.frame.color((border, np.broadcast_to(node, shape)))
                after = surrogate.read_levels(point, before, levels)
                change = self.whole.of_all(after.phi) - at_origin
                ratios = np.bincount(self.row_levels, change, minlength=shape[0])
                predictors = before, after
                ratios -= surrogate.change_of_levels(predictors, levels)
                ratios += surrogate.level_ratios(given, (origin, point), predictors, levels)
                yield log_weight, ratios, first
            first = 0.0

    def _adds_up(self, given: Conditional) -> bool:
        """Whether groups add up to the log posterior, at points that are no nodes."""
        shape, rng = self.field.latent.groups.shape, np.random.default_rng(8)
        border = rng.standard_normal(self.field.latent.dense.size)
        node: np.ndarray = rng.standard_normal(shape[1:])
        [(_, ratios, _)] = self._ratios(given, border, [(0.0, node)])
        groups = np.broadcast_to(node, shape)
        ends = [given.frame.color((border, each)) for each in (0.0 * groups, groups)]
        values = [self.log_density(end) for end in ends]
        squares = 0.5 * float(np.sum(groups**2))
        size = max(map(abs, values)) + np.abs(ratios).sum() + squares
        found = values[1] - values[0] + squares
        return bool(abs(float(ratios.sum()) - found) <= RTOL * size)

    @property
    def _nodes(self) -> list[tuple[float, np.ndarray]]:
        """Log weights and nodes."""
        return _grid(self.n_nodes, self.field.latent.groups.shape[1])

    def _prior(self, point: np.ndarray) -> float:
        return float(self.field.derivatives.prior(point))


def _grid(n_nodes: int, n_effects: int) -> list[tuple[float, np.ndarray]]:
    """Return log weights and nodes of Gauss and Hermite's rule in each dimension."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    logs = np.log(weights / weights.sum())
    return [
        (float(sum(logs[i] for i in chosen)), np.array([nodes[i] for i in chosen]))
        for chosen in itertools.product(range(n_nodes), repeat=n_effects)
    ]


def _moments(shares: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, roots of covariances and skewnesses of shares (G, J) at nodes (J, q)."""
    mean = shares @ nodes
    away = nodes - mean[:, None, :]
    covariance = np.einsum("gj,gji,gjk->gik", shares, away, away)
    root = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(root[:, None], away[..., None])[..., 0]
    skewness = np.einsum("gj,gji->gi", shares, whitened**3)
    return mean, root, np.clip(skewness, -MOST_SKEWNESS, MOST_SKEWNESS)
