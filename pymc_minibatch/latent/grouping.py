"""Effects of grouping factors whose levels are independent given everything else, and their priors.

Which variables are those of a factor's levels, and whether a level has them to itself, is seen by
values at draws from the prior (:mod:`.claims`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.util import get_var_name
from pytensor.gradient import grad
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, compile_python
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.claims import ROUNDING, Probes, add_up, are_gaussian, spread_of
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.potentials import parts_of_total
from pymc_minibatch.tall.verify import compare
from pymc_minibatch.tall.wide_integers import with_wide_integers

__all__ = ["RTOL_OF_FIELD", "GroupEffects", "LevelPrior", "effects_of_factor", "prior_of_levels"]

RTOL_OF_FIELD = 1e-10
"""That of derivatives which a variable does not change. It is small, as a slab that bounds a scale
changes it by little wherever the scale is small."""

WHOLE = 1e-6
"""How far the ratio of two derivatives may be from the number of a term."""


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
        self.angles = Angles.none()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled function out."""
        return {name: value for name, value in self.__dict__.items() if name != "logp"}

    def with_weights(self, angles: Angles) -> "LevelPrior":
        """Return the same priors with the weights of angles."""
        other = LevelPrior.__new__(LevelPrior)
        other.__dict__ |= self.__getstate__() | {"angles": angles}
        return other

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
        shapes = dict(zip(self.tall.layout.names, self.tall.layout.shapes, strict=True))
        total: Any = 0.0
        for name, entries in self.entries.items():
            value = variables[name]
            terms = model.logp(vars=[model.values_to_rvs[value]], sum=False)
            [term] = with_wide_integers(terms)
            total = total + _by_levels(name, term, shapes[name], entries)
            where = self.tall.layout.slices[name].start + entries
            if np.isin(where, self.angles.positions).any():
                weights = self.angles.log_weight_graph(self.tall.flat, where)
                total = total + weights.sum(axis=1)
        for term, levels in zip(self._potentials(), self.of_terms, strict=True):
            own = np.flatnonzero(levels >= 0)
            if own.size:
                total = pt.inc_subtensor(total[levels[own]], term.ravel()[own])
        return compile_numba([self.tall.flat], [self.tall.bind(total, {})])

    def _potentials(self) -> list[Any]:
        """List the terms of the potentials of the prior, as arrays."""
        model = self.tall.model
        potentials = [p for p in model.potentials if p.name not in self.tall.row_potentials]
        graphs = model.logp(vars=potentials, sum=False) if potentials else []
        graphs = with_wide_integers(graphs)
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
        terms, numbers = self.tall.bind(term.ravel(), {}), pt.dvector("numbers")
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


def _by_levels(name: str, term: Any, shape: tuple[int, ...], entries: np.ndarray) -> Any:
    """Return the log prior of a variable for each level, from that of its entries or vectors.

    Raises
    ------
    NoFieldError
        If a number is that of entries of several levels.
    """
    if term.ndim == len(shape):
        return term.ravel()[entries].sum(axis=1)
    level = np.empty(entries.size, dtype=np.int64)
    level[entries] = np.arange(len(entries))[:, None]
    of_vectors = level.reshape(math.prod(shape[: term.ndim]), -1)
    if np.any(of_vectors != of_vectors[:, :1]):
        raise NoFieldError(f"The prior of {name} is one number for several entries.")
    return pt.zeros(len(entries))[of_vectors[:, 0]].inc(term.ravel())


def effects_of_factor(
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


def prior_of_levels(
    tall: TallModel,
    derivatives: Derivatives,
    probes: Probes,
    entries: Mapping[str, np.ndarray],
    levels: np.ndarray,
) -> Any:
    """Return the priors of the levels, None if they are Gaussian, NotImplemented if not known.

    Those of angles are not, as they will have weights.
    """
    value, product = derivatives.prior, derivatives.prior_product
    is_angle = bool(tall.is_angle[levels].any())
    if not is_angle and are_gaussian(value, derivatives.prior_gradient, product, probes, levels):
        return None
    prior = LevelPrior(tall, entries, probes)
    try:
        is_known = add_up(value, prior.logp, product, probes, levels)
    except NoFieldError:
        return NotImplemented
    return prior if is_known else NotImplemented
