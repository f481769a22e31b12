"""Repeat the decision on one move many times, as a chain would make it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit

from pymc_minibatch.acceptance.decision import Decision, Rows, batch_variance
from pymc_minibatch.acceptance.growing import moments
from pymc_minibatch.jit.pointers import call_scalar
from pymc_minibatch.kernels.rows import Drawing, make_readers, put
from pymc_minibatch.proposals.proposal import ProposalContext
from pymc_minibatch.reference.density import Density

__all__ = ["make_proposing", "make_repeating"]


def make_proposing(propose: Callable[..., float]) -> Callable[..., float]:
    """Make a function that proposes one move.

    ``(rng, point, proposed, active, state, guide)`` writes ``proposed[active]``, returns log q.
    """

    @njit
    def proposing(
        rng: np.random.Generator,
        point: np.ndarray,
        proposed: np.ndarray,
        active: np.ndarray,
        state: Any,
        guide: Any,
    ) -> float:
        theta, candidate = point[active], np.empty(active.size)
        scratch = point.copy()
        log_q = propose(rng, theta, candidate, state, ProposalContext(guide, scratch, active))
        put(candidate, active, proposed)
        return log_q

    return proposing


def make_repeating(
    ndims: Sequence[int], build_decide: Callable[..., Callable[..., Decision]], by_size: Drawing
) -> Callable[..., tuple[float, int]]:
    """Make a function that repeats decisions and estimates.

    ``(rng, current, proposed, density, rows, parameters, psi, sizes, means, variances)``, with psi
    of shape (R,), overwrites `psi` with 1 if the move was accepted and 0 where not, and `sizes`
    with the rows that it rested on. It fills `means` and `variances` with the mean log ratio of a
    batch of ``sizes[0]`` rows, as it was passed, and the estimated variance of that mean. It
    returns the log ratio of the part that reads no rows, and a row that is impossible, or -1.
    """
    readers = make_readers(ndims, by_size)
    draw_log_ratios, decide = readers.draw_log_ratios, build_decide(readers)

    @njit
    def repeating(
        rng: np.random.Generator,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        rows: Rows,
        parameters: Any,
        psi: np.ndarray,
        sizes: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
    ) -> tuple[float, int]:
        base: float = call_scalar(density.base, (proposed, density.constants))
        base -= call_scalar(density.base, (current, density.constants))
        n, impossible = sizes[0], -1
        for i in range(means.size):
            draw_log_ratios(rng, current, proposed, density, rows, np.int64(0), n)
            seen = moments(rows.log_ratios[:n])
            means[i] = seen.mean
            variances[i] = batch_variance(1.0, seen.variance, n, rows.population)
        for i in range(psi.size):
            shift = base + psi[i]
            decision = decide(rng, shift, current, proposed, density, rows, parameters)
            psi[i], sizes[i] = decision.accepted, decision.batch_size
            if decision.impossible_row != -1:
                impossible = decision.impossible_row
        return base, impossible

    return repeating
