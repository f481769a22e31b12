"""Which variables are hyperparameters, and which a latent field.

Nothing is recognised by name. Variables are hyperparameters where they change the derivatives of φ
or of the prior by others, which is seen at draws from the prior (:mod:`.claims`). Effects written
``mu + sd * z``, ``dot(chol, z)`` or centred, smooth terms, random walks and plain coefficients are
all latent; their scales, correlations and length scales are the hyperparameters.

Reference
---------
Rue, Martino and Chopin (2009), Approximate Bayesian inference for latent Gaussian models, section
1.2.
"""

from collections.abc import Sequence

import numpy as np
from pymc.util import get_var_name
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.jit.interpreted import evaluator
from pymc_minibatch.latent.claims import ROUNDING, Probes, find_probes, spread_of
from pymc_minibatch.latent.coordinates import find_coordinates
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.factors import is_same_block
from pymc_minibatch.latent.field import NOTHING, PROBES, LatentField, with_values
from pymc_minibatch.latent.grouping import (
    RTOL_OF_FIELD,
    GroupEffects,
    effects_of_factor,
    prior_of_levels,
)
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sparse_jacobian import RTOL
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.structure import RowStructure
from pymc_minibatch.tall.verify import compare

__all__ = ["find_field", "has_effects"]

RTOL_OF_PHI = 1e-9
"""That of φ and what its derivatives foretell."""

MOST_DENSE = 200_000
"""More latent variables than this outside of groups are too many for a dense matrix."""

MOST_HYPER, MOST_SCALES = 30, 3000
"""More hyperparameters are too many for moves of all at once. Those that rows do not see while the
effects are held, such as scales of single coefficients, are moved a few at a time."""

LEAST_LEVELS = 50
"""With fewer levels, effects of known scale are moved like other coefficients."""


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
        (levels, q'); the largest whose effects are conditionally independent is eliminated. If
        levels are there several times, joined in several ways, the finest such are taken.
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
    swept: list[GroupEffects] = []
    names: list[str] = []
    eliminated: set[str] = set()
    for groups in sorted(factors, key=lambda g: -g.shape[0]):
        if any(is_same_block(groups, each.rows) for each in swept):
            continue
        found = effects_of_factor(tall, derivatives, probes, rng, latent_names, groups)
        if found is None:
            continue
        prior = prior_of_levels(tall, derivatives, probes, *found)
        if prior is not NotImplemented:
            eliminated = eliminated or set(found[0])  # the factor with most levels
            swept.append(GroupEffects(found[1], groups, prior))
            names += found[0]
    none = np.empty((0, 1), dtype=np.int64)
    of_groups = (swept[0].latent, swept[0].rows) if swept else (none, none)
    dense = _joined(slices, [name for name in latent_names if name not in eliminated])
    read_alike = np.append(of_groups[1], scalars)
    rest = np.setdiff1d(np.arange(derivatives.phi(points[0]).size), read_alike)
    latent = ArrowheadLayout(dense, of_groups[0])
    rows = ArrowheadLayout(rest, of_groups[1])
    if latent.dense.size > MOST_DENSE:
        raise NoFieldError(
            f"{latent.dense.size:,} coefficients and effects are outside of the largest grouping "
            f"factor (limit {MOST_DENSE:,})."
        )
    others = [_joined(slices, [n]) for n in latent_names if n not in names]
    inside = derivatives.within(find_coordinates(derivatives.push, points, others))
    points = [inside.coordinates.from_model(point) for point in points]
    field = LatentField(inside, hyper, latent, rows, swept, points, scalars)
    variables = [_joined(slices, [name]) for name in latent_names]
    if not all(field.foretells(point, variables) for point in points[PROBES:]):
        raise NoFieldError("the effects depend on some variables differently at other points.")
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
        tall.layout.names, key=lambda n: (-(slices[n].stop - slices[n].start), n in transformed)
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
            moved = with_values(point, np.arange(where.start, where.stop), there[where])
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
    for moving, seeded, looked_at in ((new, others, others), (others, new, np.append(others, new))):
        moved, seed = with_values(point, moving, step[1][moving]), np.zeros(point.size)
        seed[seeded] = spread[seeded] * rng.standard_normal(seeded.size)
        here, there = (derivatives.prior_product(p, seed)[looked_at] for p in (point, moved))
        if compare(there, here, rtol=RTOL_OF_FIELD, allowed=noise[looked_at]) is not None:
            return False
    return True


def has_effects(tall: TallModel, structure: RowStructure) -> bool:
    """Whether variables depend on others, or enter with them, or are angles, or effects are many.

    If it is not so, all variables are best moved alike, and nothing is compiled to see that.
    """
    free = set(tall.model.free_RVs)
    if tall.is_angle.any() or any(free.intersection(ancestors(rv.owner.inputs)) for rv in free):
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
