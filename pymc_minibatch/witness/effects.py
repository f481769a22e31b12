"""Moves of effects and their scales, compared with the model's own density.

A scan is made from a copy of the point, with the chain's own moves and tuning, in which all rows
decide; each move is compared before it is decided on. The densities of proposals are found anew
(:mod:`.proposal_densities`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.batch_decisions import MinibatchDecisions
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.level_steps import OwnRowMoves, draw_steps
from pymc_minibatch.latent.moves.decisions import (
    Candidate,
    Decisions,
    LevelMoves,
    MoveCounts,
)
from pymc_minibatch.latent.moves.scan import LatentMoves, Tuning
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.batches import (
    MOST_ROWS,
    compare_batches,
)
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.determinants import NotComparedError, quadratic_form
from pymc_minibatch.witness.listener import Batching, Listener
from pymc_minibatch.witness.proposal_densities import ProposalDensities
from pymc_minibatch.witness.witness import Look

__all__ = ["MovesOfEffects"]


class MovesOfEffects(Look):
    """What is compared where a model has effects.

    Parameters
    ----------
    density
        The model's own.
    moves
        Those of the chain.
    settings
        What they are made with, tuned.
    rests_on : str
        What is presumed of the rows.
    n_scans : int, default 1
        Scans from a point.
    """

    def __init__(
        self,
        density: ModelDensity,
        moves: LatentMoves,
        settings: Tuning,
        rests_on: str,
        n_scans: int = 1,
    ) -> None:
        self.density, self.moves, self.settings = density, moves, settings
        self.rests_on, self.n_scans = rests_on, n_scans
        self.field: LatentField = moves.model.field
        self.proposals = ProposalDensities(density, moves, settings)

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare one move of each kind, of a scan from a point of the model."""
        listener = _Comparing(self.moves.decisions, self, rng)
        self.scan(rng, point, listener)
        yield from listener.compared

    def look_at_batches(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare batches that decide on a move of a scan from a point of the model."""
        if not isinstance(self.moves.decisions, MinibatchDecisions):
            return
        if self.density.tall.n_rows > MOST_ROWS:
            return
        listener = Batching(self.moves.decisions, self.density.tall.n_rows)
        self.scan(rng, point, listener)
        if listener.batches:
            names = tuple(self.density.tall.layout.names)
            yield from compare_batches(
                listener.batches, listener.probabilities, self.density.tall.n_rows, names
            )

    def scan(self, rng: np.random.Generator, point: np.ndarray, listener: Decisions) -> None:
        """Make scans from a copy of a point, on which a listener decides."""
        inside = self.field.derivatives.coordinates.from_model(point).copy()
        kept = self.moves.decisions, self.moves.last
        self.moves.decisions, self.moves.last = listener, None
        try:
            with one_blas_thread():
                for _ in range(self.n_scans):
                    self.moves.draw(rng, inside, self.settings._replace(is_on=False), MoveCounts())
        finally:
            self.moves.decisions, self.moves.last = kept

    # --- Moves that all rows see --------------------------------------------------------------

    def of_move(self, move: Candidate, log_ratio: float) -> Comparison:
        """Compare a move on which all rows decide, given its log ratio by them."""
        log_q = self.proposals.of_move(move)
        return self._comparison(move.name, move.points, log_ratio, log_q)

    def of_centered(self, move: Candidate) -> Comparison:
        """Compare a move of h or of coefficients with what rows read held."""
        log_q = self.proposals.of_centered(move)
        return self._comparison(move.name, move.points, move.log_ratio, log_q)

    # --- Levels -------------------------------------------------------------------------------

    def of_levels(self, moves: LevelMoves, of_rows: np.ndarray, chosen: np.ndarray) -> Comparison:
        """Compare the moves of some levels, which are independent given all else, as one."""
        here, proposed = moves.points
        levels = self.field.levels[moves.factor]
        there = here.copy()
        there[levels.latent[chosen]] = proposed[levels.latent[chosen]]
        found = float(np.sum((moves.log_ratios + of_rows)[chosen]))
        log_q = self.proposals.of_levels(moves, here, proposed)[chosen].sum()
        return self._comparison(moves.name, (here, there), found, float(log_q), levels.latent)

    def of_own_rows(self, rng: np.random.Generator, moves: OwnRowMoves, state: Any) -> Comparison:
        """Compare one step of some levels by their own density."""
        own = self.moves.decisions.own_rows(moves)
        try:
            factor = own.factor(state.conditional)
            steps = draw_steps(rng, factor, moves._replace(times=1))
        except np.linalg.LinAlgError:  # there these levels do not step
            raise NotComparedError from None
        here = own.about(state.point)
        before = here.state.levels.copy()
        [log_ratios] = here.step(steps, np.full(steps.is_anew.shape, -np.inf))
        made = np.isfinite(log_ratios)
        log_q = (steps.log_q(before) - steps.log_q(here.state.levels))[made].sum()
        found = float(log_ratios[made].sum())
        return self._comparison(
            moves.name, (state.point, here.point), found, float(log_q), own.latent
        )

    # --- What they share ----------------------------------------------------------------------

    def _comparison(
        self,
        name: str,
        points: tuple[np.ndarray, np.ndarray],
        log_ratio: float,
        log_q: float,
        positions: np.ndarray | None = None,
    ) -> Comparison:
        to_model, layout = self.field.derivatives.coordinates.to_model, self.density.tall.layout
        move, (here, there) = self.moves.by_name[name], map(to_model, points)
        before, after = self.density(here), self.density(there)
        lost, self.proposals.lost = self.proposals.lost, 0.0
        changed = np.flatnonzero(here != there) if positions is None else positions.ravel()
        return Comparison(
            move=move.words,
            names=layout.names_of(changed),
            rests_on=self.rests_on
            if move.scope != "prior"
            else "predictors stay the same if effects are fixed, so that the prior alone decides",
            log_ratio=log_ratio,
            expected=after - before + log_q,
            rounding=lost
            + sum(map(self._lost_by_sums, points))
            + rounding(self.density.tall.n_rows, [before, after, log_ratio, log_q]),
        )

    def _lost_by_sums(self, point: np.ndarray) -> float:
        """Return how far rounding may have put a log-likelihood off that sums over rows say.

        Effects that rows hardly tell apart add up to little, each being large.
        """
        surrogate = self.moves.model.surrogate
        if not surrogate.expansion.is_exact:
            return 0.0
        phi = surrogate.phi(point)
        away = self.field.rows.split(phi - surrogate.expansion.at)
        _, lost = quadratic_form(surrogate.expansion.curvature, away)
        return abs(surrogate.expansion.shared(phi)[1]) * lost


class _Comparing(Listener[Decisions]):
    """Decides by all rows, and compares the first move of each kind with the model's density."""

    def __init__(
        self, decisions: Decisions, owner: MovesOfEffects, rng: np.random.Generator
    ) -> None:
        super().__init__(decisions)
        self.owner, self.rng = owner, rng
        self.compared: list[Comparison] = []
        self.seen: set[Any] = set()

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Decide by all rows."""
        log_ratio = self.decisions.log_ratio(move)
        self._compare(move.name, lambda: self.owner.of_move(move, log_ratio))
        return bool(-rng.standard_exponential() < log_ratio)

    def on_prior(self, level: float, move: Candidate) -> bool:
        """Decide by the prior."""
        self._compare(move.name, lambda: self.owner.of_centered(move))
        return level < move.log_ratio

    def on_levels(
        self, rng: np.random.Generator, moves: LevelMoves, counts: MoveCounts
    ) -> np.ndarray:
        """Decide level by level, by all rows of each."""
        of_rows = self.decisions.of_rows_by_level(moves)
        finite = moves.moving & np.isfinite(moves.log_ratios)
        chosen = finite & (self.rng.random(finite.size) < 0.5)
        if not chosen.any():
            chosen = finite
        if chosen.any():
            compare = self.owner.of_levels
            self._compare(moves.name, lambda: compare(moves, of_rows, chosen))
        return moves.moving & (-rng.standard_exponential(of_rows.size) < moves.undecided + of_rows)

    def on_own_rows(
        self, rng: np.random.Generator, moves: OwnRowMoves, state: Any, counts: MoveCounts
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let levels step as the chain does."""
        compare = self.owner.of_own_rows
        self._compare(moves.name, lambda: compare(self.rng, moves, state))
        return super().on_own_rows(rng, moves, state, counts)

    def _compare(self, kind: Any, compare: Callable[[], Comparison]) -> None:
        if kind in self.seen:
            return
        self.seen.add(kind)
        try:
            self.compared.append(compare())
        except NotComparedError:
            self.seen.discard(kind)
