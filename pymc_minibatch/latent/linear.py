"""Moves of linear models with large crossed factors, whose effects are normal given their scales.

The posterior has the form of :mod:`.linear_model`: h changes numbers for each effect, and no
matrix. A scan is made of

- one hyperparameter, the effects as rows read them held;
- one hyperparameter with a factor whose effects follow it: these are integrated out, and drawn
  anew whether or not it moves;
- the dense part, by itself or with a hyperparameter, the groups integrated out and drawn anew. It
  is proposed from the posterior given an h close by, whose precision has been factored before; how
  the two differ decides.

Reference
---------
Papaspiliopoulos, Roberts and Zanella (2020), Scalable inference for crossed random effects models.
"""

import math
from collections.abc import Sequence

import numpy as np

from pymc_minibatch.latent.batched import solve_blocks_transposed
from pymc_minibatch.latent.linear_model import (
    BankFrame,
    IntegratedLevels,
    LinearModel,
    LinearState,
    Scales,
    integrate,
    log_density,
)
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.bank import FactorBank
from pymc_minibatch.latent.moves.collapsed import Collapsed
from pymc_minibatch.latent.moves.decisions import ExactDecisions, MoveCounts
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.scan import LatentMoves
from pymc_minibatch.latent.moves.tuners import Walks

__all__ = ["CollapsedFactor", "DensePart", "HeldPredictors", "LinearMoves", "LinearPlace"]

BANK_SIZE, MOST_ENTRIES = 16, 4e7
"""Hyperparameters for which the dense part is factored; fewer if that takes more numbers."""

CENTERED_IN_A_ROW = 2
"""Moves of a hyperparameter with φ held, in a scan; one of those that also move with a factor."""

COLLAPSED_IN_A_ROW = 2
"""Moves of a hyperparameter while its factor is integrated out. Those after the first cost less."""


class LinearPlace:
    """Where a chain is, and what is integrated out there.

    Attributes
    ----------
    state : LinearState
        h and φ. What is integrated out has no place; the numbers for it mean nothing.
    given : IntegratedLevels or None
        The levels that are integrated out, given all else.
    frame : BankFrame or None
        By which the dense part is proposed.
    """

    __slots__ = ("_log_density", "frame", "given", "state")

    def __init__(
        self,
        state: LinearState,
        given: IntegratedLevels | None = None,
        frame: BankFrame | None = None,
        log_density: float | None = None,
    ) -> None:
        self.state, self.given, self.frame = state, given, frame
        self._log_density = log_density

    @property
    def hyper(self) -> np.ndarray:
        """The hyperparameters."""
        return self.state.hyper

    @property
    def log_density(self) -> float:
        """Log density of all that is not integrated out; less that of its proposal by a frame."""
        if self._log_density is None:
            state = self.state
            self._log_density = log_density(state.scales, state.phi, state.of_rows)
        return self._log_density

    @property
    def point(self) -> np.ndarray:
        """The hyperparameters and effects."""
        state, model = self.state, self.state.model
        point = model.surrogate.center.copy()
        point[model.field.hyper] = state.hyper
        point[model.effects] = (state.phi - state.scales.offset) / state.scales.scale
        return point


class LinearMoves(LatentMoves):
    """Scans of the moves of one linear model.

    Parameters
    ----------
    linear
        Its posterior.
    model
        What moves are planned for.
    """

    def __init__(self, linear: LinearModel, model: EffectsModel) -> None:
        self.linear, self.pairs = linear, list(model.collapsed or ())
        rows, curvature = linear.field.rows, linear.surrogate.expansion.curvature
        self.groups = linear.place[rows.groups], curvature.blocks
        self.factors = [
            (linear.place[levels.rows], curvature.blocks_of(rows, levels.rows))
            for levels in linear.field.levels
        ]
        plan = [
            Planned(HeldPredictors(self, model)),
            Planned(CollapsedFactor(self, model), in_a_row=COLLAPSED_IN_A_ROW),
            Planned(DensePart(self)),
        ]
        super().__init__(model, ExactDecisions(linear.surrogate), plan)
        number = int(min(BANK_SIZE, 1 + MOST_ENTRIES / (1 + linear.n_dense**2)))
        if not model.has_determinant:  # it cancels as long as all moves have the same
            number = 1
        self.bank = FactorBank(linear.frame, model.tails, number)

    def start(self, rng: np.random.Generator, point: np.ndarray) -> LinearPlace:
        """Return the place from which a scan starts."""
        linear, hyper = self.linear, point[self.linear.field.hyper]
        scales = linear.scales(hyper)
        phi = scales.offset + scales.scale * point[linear.effects]
        return LinearPlace(linear.here(hyper, scales, phi))

    def given_others(
        self, here: LinearState, scales: Scales, factor: tuple[np.ndarray, np.ndarray]
    ) -> IntegratedLevels:
        """Return the levels of a factor given all else, at some h.

        Of the factor are given its entries and their blocks of K. The log density is NaN if the
        precision of a level is not positive definite.
        """
        entries, blocks = factor
        halfway, cholesky, added = integrate(
            entries,
            blocks,
            self.linear.slope - here.curved,
            here.phi.copy(),
            scales.factor,
            scales.precision,
            scales.mean,
        )
        log_marginal = scales.level + scales.factor * here.of_rows + added
        return IntegratedLevels(entries, scales.mean[entries], halfway, cholesky, log_marginal)

    def weighed(self, here: LinearState, frame: BankFrame) -> LinearPlace:
        """Return a place with the groups integrated out, the dense part proposed by a frame."""
        given, proposed = (
            self.given_others(here, scales, self.groups) for scales in (here.scales, frame.scales)
        )
        weight = given.log_density - (proposed.log_density - frame.log_total)
        return LinearPlace(here, given, frame, weight)

    def drawn(
        self, rng: np.random.Generator, place: LinearPlace, counts: MoveCounts
    ) -> LinearPlace:
        """Return a place with the levels drawn, given all else, that are integrated out."""
        state, levels = place.state, place.given
        assert levels is not None
        phi = state.phi.copy()
        noise = rng.standard_normal(levels.halfway.shape)
        away = solve_blocks_transposed(levels.cholesky, levels.halfway + noise)
        phi[levels.entries] = levels.mean + away
        counts.sweeps += 1
        counts.count("levels", "groups", 1.0)
        return LinearPlace(self.linear.here(state.hyper, state.scales, phi))


class HeldPredictors(Move):
    """Moves of each hyperparameter, φ held.

    Those that move with a factor too walk, since φ leaves them little room.
    """

    name, words = "centered", "a hyperparameter, predictors held"

    def __init__(self, moves: LinearMoves, model: EffectsModel) -> None:
        self.linear, self.log_lengths = moves.linear, model.log_lengths
        axes = np.arange(self.log_lengths.size)
        self.only_walks = np.isin(axes, [axis for axis, _ in moves.pairs])

    def initial(self) -> Walks:
        """Return a walk along each axis."""
        return Walks.of(self.log_lengths.copy())

    def targets(self, rng: np.random.Generator, tuner: Walks) -> Sequence[int]:
        """Return the axes in random order."""
        order = rng.permutation(self.log_lengths.size)
        times = np.where(self.only_walks[order], 1, CENTERED_IN_A_ROW)
        return [int(i) for i in np.repeat(order, times)]

    def propose(
        self, rng: np.random.Generator, state: LinearPlace, target: int, setting: Setting
    ) -> Proposal:
        """Walk, or draw what is known of it."""
        here, log_length = state.state, setting.tuners[self.name].log_length[target]
        if self.only_walks[target]:
            hyper, log_kernel, walks = here.hyper.copy(), 0.0, True
            hyper[target] += math.exp(log_length) * rng.standard_normal()
        else:
            hyper, log_kernel, walks = kernels.moved_alone(
                rng, here.hyper, target, setting.scale, log_length
            )
        proposed = LinearPlace(here.with_hyper(hyper, self.linear.scales(hyper)))
        return Proposal(proposed, log_kernel, learns=walks, walks=walks)

    def learn(
        self,
        rng: np.random.Generator,
        tuner: Walks,
        target: int,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Change the length of walks, by how likely they are accepted."""
        tuner.learn(target, outcome.log_ratio)


class CollapsedFactor(Collapsed):
    """Moves of a hyperparameter with a factor integrated out, whose levels are then drawn anew."""

    words = "a hyperparameter, one factor integrated out"

    def __init__(self, moves: LinearMoves, model: EffectsModel) -> None:
        super().__init__(model)
        self.moves = moves

    def begin(self, state: LinearPlace, target: int, setting: Setting) -> LinearPlace:
        """Integrate the factor out."""
        return self._integrated(state.state, target)

    def follow(
        self, state: LinearPlace, hyper: np.ndarray, target: int
    ) -> tuple[LinearPlace, float]:
        """Return the place with another h, and the factor integrated out there."""
        there = state.state.with_hyper(hyper, self.moves.linear.scales(hyper))
        return self._integrated(there, target), 0.0

    def finish(
        self, rng: np.random.Generator, state: LinearPlace, target: int, counts: MoveCounts
    ) -> LinearPlace:
        """Draw the levels of the factor."""
        return self.moves.drawn(rng, state, counts)

    def _integrated(self, here: LinearState, target: int) -> LinearPlace:
        factor = self.moves.factors[self.moves.pairs[target][1]]
        given = self.moves.given_others(here, here.scales, factor)
        return LinearPlace(here, given, log_density=given.log_density)


class DensePart(Move):
    """Moves of the dense part, then with a hyperparameter, the groups integrated out.

    The dense part is drawn whatever it was. So what decides is how much more likely each place is
    than its proposal.
    """

    name, counts_as = "border", "dense"
    words = "coefficients and the smaller factors, the largest integrated out"

    def __init__(self, moves: LinearMoves) -> None:
        self.moves = moves

    def targets(self, rng: np.random.Generator, tuner: object) -> Sequence[str]:
        """Return what moves."""
        return ["alone", "with h"]

    def begin(self, state: LinearPlace, target: str, setting: Setting) -> LinearPlace:
        """Integrate the groups out."""
        if state.given is not None:
            return state
        return self.moves.weighed(state.state, self._frame(state.state.hyper, setting))

    def propose(
        self, rng: np.random.Generator, state: LinearPlace, target: str, setting: Setting
    ) -> Proposal:
        """Draw the dense part from the posterior given an h close by."""
        linear, here, pairs = self.moves.linear, state.state, self.moves.pairs
        hyper, scales, log_kernel, walks = here.hyper, here.scales, 0.0, True
        if target == "with h" and pairs:
            i = int(rng.integers(len(pairs)))
            log_length = setting.tuners[CollapsedFactor.name].log_length[i]
            hyper, log_kernel, walks = kernels.moved_alone(
                rng, hyper, pairs[i][0], setting.scale, log_length
            )
            scales = linear.scales(hyper)
        frame, phi = self._frame(hyper, setting), here.phi.copy()
        dense = slice(linear.n_dense)
        away = frame.factor.schur.solve_transposed(rng.standard_normal(linear.n_dense))
        phi[dense] = frame.mode[dense] + away
        proposed = self.moves.weighed(linear.here(hyper, scales, phi), frame)
        return Proposal(proposed, log_kernel, learns=False, walks=walks)

    def finish(
        self, rng: np.random.Generator, state: LinearPlace, target: str, counts: MoveCounts
    ) -> LinearPlace:
        """Draw the groups, at the end."""
        return state if target == "alone" else self.moves.drawn(rng, state, counts)

    def _frame(self, hyper: np.ndarray, setting: Setting) -> BankFrame:
        assert setting.bank is not None
        frame: BankFrame = setting.bank.nearest(hyper, setting.scale)
        return frame
