"""A scan of moves: which, in which order, and how often; and a step of a move.

:func:`step` is the only place that decides, counts and tunes. What is there to move, and in which
order, is data: a list of :class:`.protocol.Planned`, made once for a model.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.latent.deciding import DecisionState
from pymc_minibatch.latent.level_steps import OwnRowMoves
from pymc_minibatch.latent.moves import (
    border,
    by_surrogate,
    centered,
    centered_trajectory,
    coefficients,
    collapsed,
    levels,
    noncentered,
    shifted,
    slow_levels,
    surrogate_data,
    trajectory,
)
from pymc_minibatch.latent.moves.bank import BANK_SIZE, FactorBank
from pymc_minibatch.latent.moves.decisions import Candidate, Decisions, LevelMoves, MoveCounts
from pymc_minibatch.latent.moves.levels import ProposedLevels
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import HyperFrequency, HyperScale, StepSizes, shares_by_rate

__all__ = ["PLANS", "LatentMoves", "Run", "Tuning", "moves_of", "plan_scan", "step"]

PLANS: Sequence[Callable[[EffectsModel], list[Planned]]] = (
    noncentered.plan,
    surrogate_data.plan,
    by_surrogate.plan,
    centered.plan,
    centered_trajectory.plan,
    collapsed.plan,
    border.plan,
    coefficients.plan,
    shifted.plan,
    levels.plan,
    slow_levels.plan,
    trajectory.plan,
)
"""The moves of a scan, in their order."""


class Tuning(NamedTuple):
    """What moves are made with, and whether they change it.

    Attributes
    ----------
    is_on : bool
        Whether they do.
    scale : HyperScale
        Where the hyperparameters are thought to be.
    frequency : HyperFrequency
        How often all of them move.
    tuners : dict
        The tuner of each move, by its name.
    tests : dict of DecisionState
        What is tuned of the tests that decide, by the name of a move; empty where none are.
    """

    is_on: bool
    scale: HyperScale
    frequency: HyperFrequency
    tuners: Mapping[str, Any]
    tests: Mapping[str, DecisionState]


class Run(NamedTuple):
    """What a step is made with, beside its move.

    Attributes
    ----------
    decisions : Decisions
        What decides.
    tuning : Tuning
        What moves are tuned by.
    counts : MoveCounts
        What happens is counted here.
    setting : Setting
        What moves are made with.
    """

    decisions: Decisions
    tuning: Tuning
    counts: MoveCounts
    setting: Setting


def plan_scan(model: EffectsModel) -> list[Planned]:
    """Return the moves of a scan in their order."""
    return [planned for plan in PLANS for planned in plan(model)]


def moves_of(plan: Sequence[Planned]) -> dict[str, Move]:
    """Return the moves of a scan by their names."""
    return {planned.move.name: planned.move for planned in plan}


def step(
    rng: np.random.Generator, move: Move, state: ChainState, target: Any, run: Run
) -> ChainState:
    """Make a step of a move: propose, decide, count and tune."""
    tuning, counts = run.tuning, run.counts
    read = counts.n_evaluated
    proposal = move.propose(rng, state, target, run.setting)
    if proposal is None:
        return state
    decide = DECIDE[move.scope]
    state, accepted, log_ratio = decide(rng, move, state, target, proposal, run)
    outcome = Outcome(accepted, log_ratio, counts.n_evaluated - read)
    is_array = isinstance(accepted, np.ndarray)
    share = float(accepted.mean() if is_array else accepted)
    counts.count(move.name, move.counts_as, share)
    if move.counts_as == "groups":
        counts.sweeps += 1
        counts.sweep_rows += outcome.n_read
    if tuning.is_on and proposal.learns:
        move.learn(rng, tuning.tuners[move.name], target, proposal, outcome)
    return state


def _by_all_rows(
    rng: np.random.Generator,
    move: Move,
    state: ChainState,
    target: Any,
    proposal: Proposal,
    run: Run,
) -> tuple[ChainState, bool, float]:
    """Decide by all rows, if the proposal is possible under the surrogate."""
    proposed = proposal.state
    if proposal.path is not None:
        run.counts.n_slopes += proposal.path.n_slopes
    if proposed is None:
        return state, False, -np.inf
    log_ratio = proposed.log_density - state.log_density + proposal.log_q
    if not math.isfinite(log_ratio):
        return state, False, log_ratio
    candidate = Candidate(
        log_ratio,
        (state, proposed),
        move.name,
        run.tuning.is_on,
        test=run.tuning.tests.get(move.name),
        target=target,
        proposal=proposal,
    )
    accepted = run.decisions.on_all(rng, candidate, run.counts)
    return proposed if accepted else state, accepted, log_ratio


def _by_prior(
    rng: np.random.Generator,
    move: Move,
    state: ChainState,
    target: Any,
    proposal: Proposal,
    run: Run,
) -> tuple[ChainState, bool, float]:
    """Decide by the prior: rows read the same, but for scalars that they share."""
    level, proposed = -rng.standard_exponential(), proposal.state
    if proposed is None:
        return state, False, -np.inf
    log_ratio = proposed.log_prior - state.log_prior + proposal.log_q
    if state.surrogate.field.scalars.size:
        log_ratio += _of_scalars(state, proposed.point)
    candidate = Candidate(log_ratio, (state, proposed), move.name, target=target, proposal=proposal)
    accepted = run.decisions.on_prior(level, candidate)
    return proposed if accepted else state, accepted, log_ratio


def _of_scalars(state: ChainState, point: np.ndarray) -> float:
    """Return how the log-likelihood changes where scalars are all that changes of φ."""
    surrogate, before = state.surrogate, state.predictors
    scalars, phi = surrogate.field.scalars, before.phi.copy()
    phi[scalars] = surrogate.phi(point)[scalars]
    log_likelihood = surrogate.log_likelihood
    return log_likelihood(before._replace(phi=phi)) - log_likelihood(before)


def _by_level(
    rng: np.random.Generator,
    move: Move,
    state: ChainState,
    target: Any,
    proposal: ProposedLevels,
    run: Run,
) -> tuple[ChainState, np.ndarray, float]:
    """Decide level by level.

    By all rows of a level, rows and surrogate decide at once; a batch is for the levels that the
    surrogate lets move.
    """
    decisions, before, point = run.decisions, state.predictors, proposal.point
    decisions.refresh(rng, before)
    psi, after = proposal.log_ratios, proposal.predictors
    at_once = proposal.walks | decisions.sees_all
    moving = np.isfinite(psi) & (at_once | (-rng.standard_exponential(psi.size) < psi))
    if not moving.all():
        stays = proposal.positions[~moving]
        point = point.copy()
        point[stays] = state.point[stays]
        of_factor = state.surrogate.field.levels[proposal.factor]
        after = state.surrogate.read_levels(point, before, of_factor)
    candidates = LevelMoves(
        (before, after),
        proposal.factor,
        moving,
        undecided=np.where(at_once, psi, 0.0),
        points=(state.point, point),
        log_ratios=psi,
        walks=proposal.walks,
        often=proposal.often,
        name=move.name,
    )
    accepted = decisions.on_levels(rng, candidates, run.counts)
    made = state.point.copy()
    made[proposal.positions[accepted]] = point[proposal.positions[accepted]]
    return state.with_latent(made), accepted, np.nan


def _by_own_rows(
    rng: np.random.Generator,
    move: Move,
    state: ChainState,
    target: Any,
    proposal: OwnRowMoves,
    run: Run,
) -> tuple[ChainState, np.ndarray, float]:
    """Let some levels step by their own density."""
    point, moved = run.decisions.on_own_rows(rng, proposal, state, run.counts)
    return state.with_latent(point), moved, np.nan


DECIDE: Mapping[str, Callable[..., tuple[ChainState, Any, float]]] = {
    "all rows": _by_all_rows,
    "prior": _by_prior,
    "levels": _by_level,
    "own rows": _by_own_rows,
}
"""What decides on the moves of a scope."""


class LatentMoves:
    """Scans of the moves of one model.

    Parameters
    ----------
    model
        What moves are planned for.
    decisions
        What decides on them.
    plan
        The moves of a scan.
    """

    def __init__(
        self, model: EffectsModel, decisions: Decisions, plan: Sequence[Planned] | None = None
    ) -> None:
        self.model, self.decisions = model, decisions
        self.plan = plan_scan(model) if plan is None else plan
        self.by_name = moves_of(self.plan)
        self.bank: FactorBank[Any] | None = None
        if model.fixed_factor:
            self.bank = FactorBank(model.surrogate.factored_later, model.tails, BANK_SIZE)
        self.last: Any = None

    def forget(self) -> None:
        """Forget all that is kept in memory."""
        self.last = None
        if self.bank is not None:
            self.bank.forget()

    @contextmanager
    def without(self, kind: type[Move]) -> Iterator[None]:
        """Leave moves of a kind out of scans."""
        whole = self.plan
        self.plan = [planned for planned in whole if not isinstance(planned.move, kind)]
        try:
            yield
        finally:
            self.plan = whole

    def draw(
        self, rng: np.random.Generator, point: np.ndarray, tuning: Tuning, counts: MoveCounts
    ) -> None:
        """Move a point in place by one scan."""
        state, run, shares = self.start(rng, point), self.run(tuning, counts), self.shares(tuning)
        for move, share, at_most, in_a_row, by_need in self.plan:
            if share < 1.0 and rng.random() >= share:
                continue
            if by_need:
                in_a_row = tuning.frequency.times(rng, in_a_row, shares.get(move.name, 1.0))
            if not in_a_row:
                continue
            for target in move.targets(rng, tuning.tuners[move.name])[:at_most]:
                state = move.begin(state, target, run.setting)
                for _ in range(in_a_row):
                    if counts.impossible_row < 0:
                        state = step(rng, move, state, target, run)
                state = move.finish(rng, state, target, counts)
        point[:], self.last = state.point, state

    def shares(self, tuning: Tuning) -> dict[str, float]:
        """Return the shares of moves that are made as they are needed, by what they have gained."""
        tuners = {
            planned.move.name: tuning.tuners[planned.move.name]
            for planned in self.plan
            if planned.by_need
        }
        rates = {name: t.rate for name, t in tuners.items() if isinstance(t, StepSizes)}
        return shares_by_rate(rates)

    def run(self, tuning: Tuning, counts: MoveCounts) -> Run:
        """Return what steps of a scan are made with."""
        setting = Setting(tuning.tuners, tuning.scale, self.decisions, self.bank)
        return Run(self.decisions, tuning, counts, setting)

    def start(self, rng: np.random.Generator, point: np.ndarray) -> Any:
        """Return the state from which a scan starts."""
        state = self.state_at(point)
        self.decisions.refresh(rng, state.predictors)
        return state

    def state_at(self, point: np.ndarray) -> ChainState:
        """Return the state at a point, with what is known of it from the last scan."""
        if self.last is None:
            return ChainState(self.model.surrogate, point.copy())
        state: ChainState = self.last.at(point.copy())
        return state
