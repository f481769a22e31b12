"""Minibatch Metropolis-Hastings: proposal, acceptance test and rows in one jitted loop."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pymc_minibatch.acceptance.decision import Acceptance, Decision, Rows
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.entry import answer_signals
from pymc_minibatch.jit.pointers import call_scalar
from pymc_minibatch.jit.triangular import overwrite
from pymc_minibatch.kernels.rows import Drawing, make_readers, put
from pymc_minibatch.proposals.proposal import Proposal, ProposalContext
from pymc_minibatch.reference.density import Density

__all__ = ["Totals", "compile_transitions", "of_one_draw", "summed"]


class Totals(NamedTuple):
    """What happened in the transitions of one draw, or of many: each field is an array then.

    Attributes
    ----------
    n_accepted
        Number of accepted proposals.
    n_decisions
        Decisions that read rows; a proposal outside the prior's support is rejected without.
    n_grown
        Decisions for which the first batch was too small.
    n_evaluated
        Rows evaluated at both points.
    batch_rows, log_ratio_var
        Sums over the decisions of their batch size and s².
    test_error
        Largest bound on the error of the acceptance probability.
    impossible_row
        A row whose log-likelihood at the current point is not finite, or -1; or, where rows were
        gathered before and too few are left, :data:`.residents.OUT_OF_ROWS`.
    n_scanned
        Rows read at both points only to learn what the test presupposes.
    """

    n_accepted: int
    n_decisions: int
    n_grown: int
    n_evaluated: int
    batch_rows: int
    log_ratio_var: float
    test_error: float
    impossible_row: int
    n_scanned: int


def make_transitions(
    ndims: Sequence[int],
    build_decide: Callable[..., Callable[..., Decision]],
    propose: Callable[..., float],
    adapt: Callable[..., None],
    by_size: Drawing = False,
) -> Callable[..., int]:
    """Assemble the loop from jitted parts.

    Parameters
    ----------
    ndims
        Number of dimensions of each array of row data.
    build_decide
        Takes the functions that read rows, returns the acceptance test.
    propose, adapt
        The proposal and its tuning.
    by_size
        Whether rows are drawn by size.

    Returns
    -------
    transitions
        ``(rng, point, active, density, n_steps, tuning, proposal_state, guide, test_parameters,
        rows, proposed, ratios, points, totals)`` moves ``point[active]`` in place and writes draws
        to `points`, shape (draws, size), each after `n_steps` transitions, and the fields of
        :class:`Totals` to `totals`, shape (draws, 9). It returns the number of draws made, fewer
        where a row is impossible. The last proposal is left in `proposed`, and in `ratios`, shape
        (2,), its log ratio of proposal densities and that without the rows.
    """
    decide = build_decide(make_readers(ndims, by_size))

    @njit
    def transitions(
        rng: np.random.Generator,
        point: np.ndarray,
        active: np.ndarray,
        density: Density,
        n_steps: int,
        tuning: bool,
        proposal_state: Any,
        guide: Any,
        test_parameters: Any,
        rows: Rows,
        proposed: np.ndarray,
        ratios: np.ndarray,
        points: np.ndarray,
        totals: np.ndarray,
    ) -> int:
        overwrite(proposed, point)
        theta, candidate = np.empty(active.size), np.empty(active.size)
        for i in range(active.size):
            theta[i] = point[active[i]]
        log_base = call_scalar(density.base, (point, density.constants))
        place = ProposalContext(guide, proposed, active)
        for draw in range(points.shape[0]):
            n_accepted = n_decisions = n_grown = n_evaluated = batch_rows = 0
            log_ratio_var = test_error = 0.0
            impossible_row = -1
            n_scanned = 0
            for _ in range(n_steps):
                answer_signals()
                log_q = propose(rng, theta, candidate, proposal_state, place)
                put(candidate, active, proposed)
                candidate_log_base = call_scalar(density.base, (proposed, density.constants))
                accepted = False
                n_read = 0
                ratios[0], ratios[1] = log_q, candidate_log_base - log_base + log_q
                if np.isfinite(candidate_log_base):
                    psi = ratios[1]
                    decision = decide(rng, psi, point, proposed, density, rows, test_parameters)
                    accepted = decision.accepted
                    n_read = decision.n_evaluated + decision.n_scanned
                    n_decisions += 1
                    n_grown += decision.grown
                    n_evaluated += decision.n_evaluated
                    n_scanned += decision.n_scanned
                    batch_rows += decision.batch_size
                    log_ratio_var += decision.log_ratio_var
                    test_error = max(test_error, decision.test_error)
                    if decision.impossible_row != -1:
                        impossible_row = decision.impossible_row
                        break
                if accepted:
                    n_accepted += 1
                    overwrite(theta, candidate)
                    put(candidate, active, point)
                    log_base = candidate_log_base
                if tuning:
                    adapt(rng, theta, accepted, float(n_read), proposal_state)
            overwrite(points[draw], point)
            made = totals[draw]
            made[0], made[1], made[2], made[3] = n_accepted, n_decisions, n_grown, n_evaluated
            made[4], made[5], made[6] = batch_rows, log_ratio_var, test_error
            made[7], made[8] = impossible_row, n_scanned
            if impossible_row != -1:
                return draw + 1
        return points.shape[0]

    return transitions


def compile_transitions(
    ndims: Sequence[int], acceptance: Acceptance, proposal: Proposal, by_size: Drawing
) -> Callable[..., int]:
    """Compile the loop with this test and this proposal."""
    loop = make_transitions(ndims, acceptance.build, *proposal.build(), by_size)
    parts = [class_key(acceptance), class_key(proposal), repr(proposal.jit_options)]
    return jit_kept(loop, [*parts, repr(ndims), repr(by_size)])


def of_one_draw(totals: np.ndarray) -> Totals:
    """Read what happened in the only draw, shape (1, 9)."""
    values = totals[0].tolist()
    counts = [int(value) for value in (*values[:5], *values[7:])]
    return Totals(*counts[:5], *values[5:7], *counts[5:])


def summed(parts: Sequence[Totals]) -> Totals:
    """Add up what happened in several calls."""
    added = {name: sum(getattr(part, name) for part in parts) for name in Totals._fields}
    added["test_error"] = max(part.test_error for part in parts)
    added["impossible_row"] = parts[-1].impossible_row
    return Totals(**added)
