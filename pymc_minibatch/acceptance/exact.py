"""An exact test from a few rows, where the third derivative of each row is bounded.

With θ̂ the reference point, LLᵀ the precision of the Gaussian approximation, z = Lᵀ(θ − θ̂) and
row n depending on θ through an affine predictor η_n alone, let x̃_n = L⁻¹ ∂η_n/∂θ, K_n a bound on
the third derivative of the row by its predictor, and c_n = K_n |x̃_n|³. The Taylor remainder r_n of
second order has a gradient of length at most K_n (x̃_nᵀz)² |x̃_n| / 2 ≤ c_n |z|² / 2, and its
integral along the way from z to z' gives ::

    |r_n(z') − r_n(z)| ≤ c_n M,   M = |z' − z| (|z|² + zᵀz' + |z'|²) / 6

With C = Σ c_n, T the temperature and ψ the log ratio for prior times Taylor likelihood, a proposal
is decided on in two stages. The second takes over a part ψ₂ of ψ, with the sign of ψ and
|ψ₂| = min(|ψ|, h C M / T):

1. Metropolis's test on ψ − ψ₂, which reads no row.
2. Draw B ~ Poisson(C M / T) rows, row n with probability c_n / C. For each of them
   v = (r_n(z') − r_n(z)) / (c_n M) lies in [−1, 1]; keep it with probability 1 − max(0, v). Accept
   with probability min(1, exp(ψ₂) Π (1 + min(0, v)) / (1 − max(0, v))), the product over the kept.

The counts of kept rows are independent Poisson variables with means φ_n = c_n M/T (1 − max(0, v)),
and for the move back, with −v, φ'_n = c_n M/T (1 + min(0, v)). So φ'_n − φ_n = c_n M v / T, whose
sum is what the rows add to ψ, and ::

    Π (φ'_n / φ_n)^k_n · exp(Σ φ_n − φ'_n) · exp(Σ c_n M v / T) = Π (φ'_n / φ_n)^k_n

is the ratio of target times counts at both ends: Metropolis's test on it leaves the posterior
invariant, whatever the rows. Nothing is estimated. Sizes above c_n serve as well.

In a tail that is heavier than that of the Taylor likelihood, ψ and the remainders nearly cancel.
With ψ₂ = 0, as in the paper, stage 1 would reject moves outwards and stage 2 those inwards, and a
chain would stay there for long. What the remainders may make up for is therefore left to stage 2.
Any h is exact, as ψ₂ changes its sign for the move back.

If K_n holds only within a distance from the reference, all rows are read for moves from or to a
point outside, and if C M / T exceeds half of the rows; both depend on the two points alike, so
that the test stays exact. There ψ₂ = 0, so that not all rows are read for moves that are far off.

Reference
---------
Prado, Nemeth and Sherlock (2024), Metropolis-Hastings with scalable subsampling, arXiv 2407.19602,
with control variates of second order. The bound M is an integral in place of theirs, and smaller;
ψ₂ is not in the paper.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Acceptance,
    Decision,
    FirstBatchRule,
    Prepared,
    RowReaders,
    Rows,
    RowSurvey,
    decided_by_all,
    decided_by_batch,
    rejected,
)
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.reference.density import Density

__all__ = ["Ball", "Exact", "bound_factor"]

CHUNK_ROWS = 2048
"""Rows drawn at once."""

MADE_UP = 0.1
"""h: remainders of a move are rarely more than this share of their bound, since they fall short of
it and cancel. A larger share would read rows for moves that no remainders save."""

GRAZE = 0.01
"""Ratios up to this much above their bound are taken for rounded."""


class Ball(NamedTuple):
    """Where the bounds hold, and how large they are.

    Attributes
    ----------
    reference : ndarray, shape (D,)
        θ̂.
    whiten : ndarray, shape (D, D)
        Lᵀ.
    radius : float
        Bounds hold where |z| is at most this.
    total : float
        C, the sum of the sizes by which rows are drawn.
    at_once : bool
        Whether decisions that read all rows have one stage: then chains leave a heavy tail sooner,
        and all rows are read for each proposal out there.
    """

    reference: np.ndarray
    whiten: np.ndarray
    radius: float
    total: float
    at_once: bool = False


@dataclass(frozen=True)
class Exact(Acceptance):
    """The exact test of Prado, Nemeth and Sherlock, with control variates of second order.

    The chain samples the posterior itself: there is no error to bound. It needs rows that depend on
    the parameters through one affine predictor each, in a way whose third derivative is bounded:
    Bernoulli by logit or probit, Binomial by logit, Poisson, NegativeBinomial, Exponential, Gamma
    and Weibull by log link, StudentT and Normal, scale and shape known.

    Parameters
    ----------
    third : float or ndarray of shape (N,), optional
        For other rows: a bound on the absolute value of the third derivative of each row's
        log-likelihood by its predictor, which must hold everywhere. It is verified on random rows
        and points, and a chain that finds a row for which it does not hold stops.

    Notes
    -----
    The number of rows is random, and grows like D³/√N: some ten for 20 parameters and 10⁵ rows. For
    hundreds of parameters, :class:`CorrectedBarker` takes fewer. ``batch_size`` of
    :class:`MinibatchMH` cannot be set, rows are always drawn by the size of their bounds, and the
    control variate has order 2. ``log_ratio_var`` and ``test_error`` in the sample stats are 0.

    References
    ----------
    Prado, Nemeth and Sherlock (2024), Metropolis-Hastings with scalable subsampling,
    algorithm 2.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Exact()
    Exact(third=None)
    """

    third: Any = None
    first_batch: ClassVar[FirstBatchRule] = "designed"
    draws_by_size: ClassVar[bool] = True
    needs_order: ClassVar[int | None] = 2
    is_exact: ClassVar[bool] = True

    def prepare(self, rows: RowSurvey) -> Prepared:
        """Bound the remainders of all rows."""
        if rows.uniformly:
            raise ValueError("Exact draws rows by the size of their bounds: leave rows out.")
        if rows.order != self.needs_order:
            raise ValueError(
                "Exact needs a control variate of order 2: leave control_variate at 'auto' or set "
                "it to 2."
            )
        bounds, reference = rows.remainder_bounds(self.third), rows.reference
        return Prepared(
            bounds.sizes,
            lambda total: Ball(reference, bounds.whiten, bounds.radius, total),
            bounds.expected_rows,
        )

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test, apart from the bounds."""
        return (float(temperature),)

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        draw_log_ratios, sum_log_ratios, _ = readers

        @jit_part
        def decide(
            rng: np.random.Generator,
            psi: float,
            current: np.ndarray,
            proposed: np.ndarray,
            density: Density,
            rows: Rows,
            parameters: tuple[float, Ball],
        ) -> Decision:
            temperature, ball = parameters
            n_rows = density.data[0].shape[0]
            largest, factor = bound_factor(current, proposed, ball)
            mean_rows = ball.total * factor / temperature
            reads_all = largest > ball.radius or mean_rows > n_rows / 2
            of_all = np.inf if ball.at_once else 0.0
            most = of_all if reads_all else MADE_UP * mean_rows
            second = max(-most, min(psi, most))
            if -rng.standard_exponential() >= psi - second:
                return decided_by_batch(False, 0, 0, False, 0.0, 0.0, 0)
            log_u = -rng.standard_exponential()
            if reads_all:
                total, impossible = sum_log_ratios(current, proposed, density)
                accepted = log_u < second + total / temperature
                return decided_by_all(accepted, n_rows, 0, impossible, 0)
            n = poisson(rng, mean_rows)
            log_ratio = second
            for first in range(0, n, min(CHUNK_ROWS, rows.drawn.size)):
                size = min(n - first, CHUNK_ROWS, rows.drawn.size)
                bad = draw_log_ratios(rng, current, proposed, density, rows, np.int64(0), size)
                if bad != -1:
                    return rejected(n, False, bad, 0)
                for i in range(size):
                    v = rows.log_ratios[i] * n_rows / (ball.total * factor)
                    if not abs(v) <= 1 + GRAZE:
                        return rejected(n, False, rows.drawn[i], 0)
                    v = max(-1.0, min(1.0, v))
                    if v < 0 or rng.random() >= v:
                        log_ratio += math.log1p(v) if v < 0 else -math.log1p(-v)
            return decided_by_batch(log_u < log_ratio, n, n, False, 0.0, 0.0, 0)

        return decide


@register_jitable
def poisson(rng: np.random.Generator, mean: float) -> int:
    """Count the events of a Poisson process of rate 1 until a time, which is not infinite.

    As many exponential times as rows will be read; the generator's own method compiles slowly.
    """
    n, time = 0, rng.standard_exponential()
    while time < mean:
        n += 1
        time += rng.standard_exponential()
    return n


@register_jitable(fastmath={"reassoc", "contract"})
def bound_factor(current: np.ndarray, proposed: np.ndarray, ball: Ball) -> tuple[float, float]:
    """Return the larger of |z| and |z'|, and M."""
    here = there = both = way = 0.0
    for i in range(current.size):
        z = step = 0.0
        for j in range(current.size):
            z += ball.whiten[i, j] * (current[j] - ball.reference[j])
            step += ball.whiten[i, j] * (proposed[j] - current[j])
        here += z**2
        there += (z + step) ** 2
        both += z * (z + step)
        way += step**2
    return math.sqrt(max(here, there)), math.sqrt(way) * (here + both + there) / 6
