"""Priors with kinks that tie effects to each other, such as a fused lasso: what curves on average.

A kink has no curvature, and a Gaussian without it is far too wide. With θ ~ N(m, Q⁻¹) about the
posterior, and Q = R + H̄ of the rows and the prior, the Gaussian that is closest to it (in the sense
of variational inference) solves ::

    E ∇log p(θ) + r(m) = 0,        H̄ = −E ∇² log p(θ) = −E [∇log p(θ) (θ − m)ᵀ] Q

by gradients alone (Stein's identity). Gradients at a few hundred points give H̄ by least squares;
no row is read.

Reference
---------
Opper and Archambeau (2009), The variational Gaussian approximation revisited.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["Kinks", "find_kinks"]

MOST_TIED = 300
"""Effects; more gradients would be needed than set-up may take."""

PAIRS_EACH, ROUNDS, DAMPED, AVERAGED_FROM = 6, 30, 0.6, 10
"""Opposite points for each effect; rounds, and the share of a step that each takes at most; from
when on rounds are averaged (Robbins and Monro)."""

DIFFERENT = 0.3
"""Average curvature along a direction that is larger by this share of all curvature than that at
the mode comes from kinks."""


class Kinks(NamedTuple):
    """What kinks add to the Gaussian of the dense part.

    Attributes
    ----------
    slope : ndarray, shape (D,)
        At the center.
    curvature : ndarray, shape (D, D)
        To the precision.
    """

    slope: np.ndarray
    curvature: np.ndarray


def find_kinks(surrogate: Surrogate) -> Kinks | None:
    """Return what kinks of the prior add; None if it has none, or there are groups."""
    field, center = surrogate.field, surrogate.center
    dense, n = field.latent.dense, field.latent.dense.size
    if field.latent.groups.size or field.levels or not 1 < n <= MOST_TIED:
        return None
    given = surrogate.factored_later(center[field.hyper])
    whole, prior = _array(given.precision.dense), _array(given.prior_precision.dense)
    slope = given.slope[0]
    rows, of_rows = whole - prior, slope - given.prior_slope[0]
    rng = np.random.default_rng(19720101)
    gradient = field.derivatives.prior_gradient

    def slopes(away: np.ndarray) -> np.ndarray:
        points = np.tile(center, (len(away), 1))
        points[:, dense] += away
        return np.array([gradient(point)[dense] for point in points])

    shift, average = np.zeros(n), prior + np.diag(np.full(n, 1e-9) * whole.diagonal())
    for k in range(ROUNDS):
        share = min(DAMPED, 1.0 / max(1, k - AVERAGED_FROM))
        z = rng.standard_normal((PAIRS_EACH * n, n))
        try:
            lower = cholesky(rows + average, lower=True)
        except np.linalg.LinAlgError:
            return None
        delta = solve_triangular(lower.T, z.T).T
        above, below = slopes(shift + delta), slopes(shift - delta)
        if not (np.isfinite(above).all() and np.isfinite(below).all()):
            return None
        fitted = np.linalg.lstsq(delta, (below - above) / 2, rcond=None)[0]
        average = average + share * (_positive((fitted + fitted.T) / 2) - average)
        left = (above + below).mean(axis=0) / 2 + of_rows - rows @ shift
        shift = shift + share * cho_solve(cho_factor(rows + average), left)
    added = average - prior
    whitened = solve_triangular(lower, solve_triangular(lower, added, lower=True).T, lower=True)
    if np.linalg.eigvalsh(whitened).max() < DIFFERENT:
        return None
    return Kinks((whole + added) @ shift - slope, added)


def _positive(curvature: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix without its negative eigenvalues."""
    values, vectors = np.linalg.eigh(curvature)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _array(matrix: Any) -> np.ndarray:
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)
