"""The mean of the field where effects are multiplied with others, by expectation and maximisation.

Abilities and discriminations multiply each other, and at their joint mode abilities are far too
small, discriminations far too large: nowhere near the posterior. So the dense part is climbed with
the levels of the largest factor averaged over: these are Gaussian given it, each by itself, and a
row's slope and curvature are averages over two opposite points of them. Steps of the levels and of
the dense part alternate, from the start and not from the joint mode, and none lowers the bound of
the log marginal that the averages give.

References
----------
Bock and Aitkin (1981), Marginal maximum likelihood estimation of item parameters: application of
an EM algorithm.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_minibatch.latent.batched import (
    factored_blocks,
    log_diagonal,
    solve_blocks,
    solve_blocks_transposed,
)
from pymc_minibatch.latent.cholesky import factor_dense
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.expansion import Expansion, semidefinite
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["average", "by_expectation"]

TURNS, HALVINGS = 40, 10
STILL = 0.05
"""Turns end when no variable of the dense part moves by more standard deviations."""

FALL = 1e-3
"""Nats by which the bound may fall, since the levels' averages change with it."""

DAMPING = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)

Expand = Callable[[np.ndarray], Surrogate]


class _Averaged(NamedTuple):
    surrogate: Surrogate
    bound: float


def by_expectation(field: LatentField, expand: Expand, point: np.ndarray) -> Surrogate:
    """Return averages of rows about where the dense part is most probable, levels averaged over.

    Parameters
    ----------
    field
        The latent field.
    expand
        ``point -> surrogate``, of all rows about a point.
    point
        Where to begin.

    Raises
    ------
    LinAlgError
        If the log-likelihood is not finite there, or the precision never positive definite.
    """
    return _Expectation(field, expand).climb(point)


def average(one: Expansion, other: Expansion) -> Expansion:
    """Return the average of expansions about two opposite points."""
    curvature = (one.curvature + other.curvature).scaled(0.5)
    with np.errstate(invalid="ignore"):
        psd_shift = semidefinite(curvature.blocks) - curvature.blocks
    return replace(
        one,
        at=(one.at + other.at) / 2,
        value=(one.value + other.value) / 2,
        slope=(one.slope + other.slope) / 2,
        curvature=curvature,
        psd_shift=psd_shift,
    )


class _Expectation:
    def __init__(self, field: LatentField, expand: Expand) -> None:
        self.field, self.expand = field, expand
        noise = np.random.default_rng(5).standard_normal(field.latent.groups.shape)
        # Levels count together: their averages are to have no error in common.
        self.noise = noise / np.sqrt(np.mean(noise**2, axis=0))

    def climb(self, point: np.ndarray) -> Surrogate:
        hyper = point[self.field.hyper]
        present = _Averaged(self.expand(point), 0.0)
        for turn in range(TURNS):
            given = present.surrogate.factored_later(hyper)
            cholesky = factored_blocks(given.blocks)
            halfway = solve_blocks(cholesky, given.slope[1][:, :, None])[:, :, 0]
            of_levels = np.zeros_like(point)
            of_levels[self.field.latent.groups] = solve_blocks_transposed(cholesky, halfway)
            present = self._averaged(point, cholesky)
            point, present = self._farther(point, of_levels, cholesky, present)
            step, moved = self._of_dense(present.surrogate.factored_later(hyper))
            point, present = self._farther(point, step, cholesky, present)
            if turn and moved < STILL:
                break
        return present.surrogate

    def _averaged(self, point: np.ndarray, cholesky: np.ndarray) -> _Averaged:
        """Average rows over the levels, at two opposite points."""
        away = np.zeros_like(point)
        away[self.field.latent.groups] = solve_blocks_transposed(cholesky, self.noise)
        both = [self.expand(point + sign * away) for sign in (1.0, -1.0)]
        averaged = average(*(surrogate.expansion for surrogate in both))
        prior = sum(self.field.derivatives.smooth_prior(s.center) for s in both) / 2
        surrogate = Surrogate(both[0].tall, self.field, averaged, point)
        return _Averaged(surrogate, float(prior + averaged.value) - log_diagonal(cholesky))

    def _farther(
        self, point: np.ndarray, step: np.ndarray, cholesky: np.ndarray, present: _Averaged
    ) -> tuple[np.ndarray, _Averaged]:
        """Go a step, halved until the bound does not fall; stay if it always does."""
        for halving in range(HALVINGS):
            moved = point + step * 0.5**halving
            averaged = self._averaged(moved, cholesky)
            if averaged.bound > present.bound - FALL:
                return moved, averaged
        if not np.isfinite(present.bound):
            raise np.linalg.LinAlgError("The log-likelihood is not finite all over the levels.")
        return point, present

    def _of_dense(self, given: Conditional) -> tuple[np.ndarray, float]:
        """Return the step of the dense part, the levels held, and its length in sds."""
        dense = given.dense.toarray() if sparse.issparse(given.dense) else given.dense
        step = np.zeros_like(given.here)
        for damping in DAMPING:
            shifted = dense + damping * np.diag(np.abs(dense.diagonal()))
            try:
                factor = factor_dense(np.asfortranarray(shifted))
            except np.linalg.LinAlgError:
                continue
            step[self.field.latent.dense] = factor.solve_transposed(factor.solve(given.slope[0]))
            whitened = factor.multiply_transposed(step[self.field.latent.dense])
            return step, np.inf if damping else float(np.abs(whitened).max(initial=0.0))
        raise np.linalg.LinAlgError("The dense part is not positive definite.")
