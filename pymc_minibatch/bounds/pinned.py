"""Rows whose bounds are loose where the posterior is, which are read always instead.

A bound that touches at the mode is more curved there than its likelihood. If the rows that tell
of a parameter are all but certain, as those of a dummy that separates, the likelihood is nearly
flat and its bound is not: with these rows dark θ hardly moves, and each of them turns bright long
before the chain is where the others are. Such rows are cheaper read at every evaluation, so that
nothing is left of their bounds. What is sampled does not depend on which rows these are.
"""

import numpy as np

from pymc_minibatch.bounds.collapse import CollapsedTarget
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.warn import warn

__all__ = [
    "curvature_of_posterior",
    "looser_than_most",
    "posterior_root",
    "rows_to_pin",
    "warn_of_narrow_bounds",
]

SHORT_WAY = 0.1
"""Standard deviations of prior and bounds on which the curvature of the gaps is measured."""

FLATTEST = 1e-4
TRIAL_POINTS = 8

LOOSE = 0.01
LOOSER_THAN_MOST = 20.0
"""A bound is loose if its row would be bright with larger odds, and so many times the median's."""

MOST_PINNED = 0.1
"""A larger share of the rows is not read always: little would be left to save."""

NARROW = 50.0
"""Warn where the posterior has so many times the variance that prior and bounds have."""


def curvature_of_posterior(
    target: CollapsedTarget,
    constants: tuple[np.ndarray, ...],
    approximation: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """Estimate the precision of the posterior where the bounds touch, from two passes.

    It is that of prior and bounds less Σ κₙ JₙᵀAJₙ, with J the Jacobian of the predictor and κₙ
    twice the gap of row n a short way off, over the squared change of its predictor.
    """
    reference, (_, root, inverse) = constants[0], approximation
    where = [int(np.flatnonzero(target.active == position)[0]) for position in target.moving]
    rng = np.random.default_rng(20140406)
    change = SHORT_WAY * (root @ rng.standard_normal(len(root)))[where]
    moved = reference.copy()
    moved[target.moving] += change

    def lost(*batch: np.ndarray) -> np.ndarray:
        total = np.zeros((len(where), len(where)))
        for part in target.parts_for_cache(batch):
            jacobian = target.jacobian(reference, part)
            gaps = target.compiled_gap.jitted(moved, reference, *part)[0]
            total += target.weighted_square(jacobian, _curvature(target, jacobian, change, gaps))
        return total

    curvature = inverse.T @ inverse
    if where:
        curvature[np.ix_(where, where)] -= sum(part for _, part in over_chunks(lost, target.data))
    return curvature


def _curvature(
    target: CollapsedTarget, jacobian: np.ndarray, change: np.ndarray, gaps: np.ndarray
) -> np.ndarray:
    way = np.tensordot(change, jacobian, axes=1)
    squares = np.einsum("bk,kl,bl->b", way, target.metric, way)
    safe = np.maximum(squares, np.finfo(float).tiny)
    return np.where(squares > 0, 2 * np.maximum(gaps, 0.0) / safe, 0.0)


def posterior_root(root: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Return a root of the posterior's covariance, from one of the covariance of the bounds."""
    values, vectors = np.linalg.eigh(root.T @ curvature @ root)
    return root @ (vectors / np.sqrt(np.maximum(values, FLATTEST)))


def rows_to_pin(
    target: CollapsedTarget,
    constants: tuple[np.ndarray, ...],
    approximation: tuple[np.ndarray, np.ndarray, np.ndarray],
    curvature: np.ndarray,
) -> np.ndarray:
    """Find the rows that had better be read always: their numbers."""
    reference, (center, root, _) = constants[0], approximation
    wide = posterior_root(root, curvature)
    points = []
    for z in np.random.default_rng(20140406).standard_normal((TRIAL_POINTS, len(root))):
        points.append(reference.copy())
        points[-1][target.active] = center + wide @ z

    def mean_gaps(*batch: np.ndarray) -> np.ndarray:
        gaps = [target.compiled_gap.jitted(point, reference, *batch)[0] for point in points]
        return np.mean(gaps, axis=0)

    gaps = np.concatenate([part for _, part in over_chunks(mean_gaps, target.data)])
    return looser_than_most(gaps)


def looser_than_most(gaps: np.ndarray, least: float = LOOSE) -> np.ndarray:
    """Return the numbers of the rows whose mean gaps over the posterior stand out, if few do."""
    wide = np.flatnonzero(gaps > max(least, LOOSER_THAN_MOST * float(np.median(gaps))))
    return wide if wide.size <= MOST_PINNED * gaps.size else wide[:0]


def warn_of_narrow_bounds(target: CollapsedTarget, root: np.ndarray, curvature: np.ndarray) -> None:
    """Warn where θ moves in small steps because most of the bounds are too curved."""
    values, vectors = np.linalg.eigh(root.T @ curvature @ root)
    if values[0] > 1 / NARROW:
        return
    worst = int(np.argmax(np.abs(root @ vectors[:, 0])))
    times = 1 / np.sqrt(max(values[0], FLATTEST))
    warn(
        "PMB110",
        f"The posterior is about {times:.0f} times as wide as the bounds of its rows, mostly in "
        f"{target.tall.layout.name_of(int(target.active[worst]))}, for example if an outcome is "
        "rare or nearly certain in many rows. FlyMC's steps are only as long as the bounds are "
        "wide, so chains mix slowly. Check the effective sample size, or use MinibatchMH.",
    )
