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
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
from pymc_minibatch.latent.moves.bank import FactorBank
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.moves.kernels import moved_alone
from pymc_minibatch.latent.moves.scan import Tuning
from pymc_minibatch.latent.moves.tuners import HyperScale, Walks
from pymc_minibatch.latent.skew_transform import SkewTransform

__all__ = ["LinearMove", "LinearMoves"]

BANK_SIZE, MOST_ENTRIES = 16, 4e7
"""Hyperparameters for which the dense part is factored; fewer if that takes more numbers."""

CENTERED_IN_A_ROW = 2
"""Moves of a hyperparameter with φ held, in a round; one of those that also move with a factor."""

CARRIED_IN_A_ROW, DENSE_IN_A_ROW = 2, 2
"""Moves of a hyperparameter while its factor is integrated out, and of the dense part while the
groups are. Those after the first cost less."""


class LinearMove(NamedTuple):
    """A move before it is decided on.

    Attributes
    ----------
    kind : str
        "centered", "collapsed" or "dense".
    log_ratio : float
        Its log ratio, with what is integrated out left out.
    here, there : LinearState
        Before and after it. What is integrated out is the same at both, and means nothing.
    given, given_then : IntegratedLevels or None
        The levels that are integrated out, given all else at either end.
    axis : int
        The hyperparameter that moves; -1 for none.
    walks : bool
        Whether it walks by itself, and is not drawn from what is known of it.
    is_symmetric : bool
        Whether all its moves are steps of a walk.
    frames : tuple of BankFrame
        By which the dense part was, and would be, proposed.
    """

    kind: str
    log_ratio: float
    here: LinearState
    there: LinearState
    given: IntegratedLevels | None = None
    given_then: IntegratedLevels | None = None
    axis: int = -1
    walks: bool = False
    is_symmetric: bool = False
    frames: tuple[BankFrame, ...] = ()


class LinearMoves:
    """The moves of one model.

    Parameters
    ----------
    model
        Its posterior.
    collapsed
        Hyperparameters with the factors whose levels follow them, by number.
    tails
        Coordinates of the hyperparameters.
    """

    def __init__(
        self, model: LinearModel, collapsed: Sequence[tuple[int, int]], tails: SkewTransform
    ) -> None:
        self.model, self.collapsed = model, collapsed
        bank_size = int(min(BANK_SIZE, 1 + MOST_ENTRIES / (1 + model.n_dense**2)))
        self.bank = FactorBank(model.frame, tails, bank_size)
        rows, curvature = model.field.rows, model.surrogate.expansion.curvature
        self.groups = model.place[rows.groups], curvature.blocks
        self.factors = [
            (model.place[levels.rows], curvature.blocks_of(rows, levels.rows))
            for levels in model.field.levels
        ]
        self.walking = np.isin(np.arange(model.field.hyper.size), [axis for axis, _ in collapsed])
        self.listen: Callable[[LinearMove], None] | None = None

    def initial(self, log_lengths: np.ndarray) -> dict[str, Walks]:
        """Return walks along each axis of h, of one length, and for each pair."""
        of_pairs = log_lengths[[axis for axis, _ in self.collapsed]]
        return {"centered": Walks.of(log_lengths.copy()), "collapsed": Walks.of(of_pairs)}

    def forget(self) -> None:
        """Forget all that is kept in memory."""
        self.bank.forget()

    def draw(
        self, rng: np.random.Generator, point: np.ndarray, settings: Tuning, counts: MoveCounts
    ) -> None:
        """Move a point in place by one round of all kinds of moves."""
        tuning, scale = settings.is_on, settings.scale
        walks, walks_of_pairs = settings.tuners["centered"], settings.tuners["collapsed"]
        model, hyper = self.model, point[self.model.field.hyper]
        scales, n_collapsed = model.scales(hyper), len(self.collapsed)
        here = model.here(hyper, scales, scales.offset + scales.scale * point[model.effects])
        here = self._move_centered(rng, here, tuning, scale, walks)
        for i in rng.permutation(n_collapsed):
            here = self._move_collapsed(rng, here, tuning, int(i), scale, walks_of_pairs, counts)
        here, phi = self._move_dense(rng, here, scale, walks_of_pairs, counts)
        n_drawn = n_collapsed + 1
        counts.sweeps += n_drawn
        for _ in range(n_drawn):
            counts.count("levels", "groups", 1.0)
        point[model.field.hyper] = here.hyper
        point[model.effects] = (phi - here.scales.offset) / here.scales.scale

    def _move_centered(
        self,
        rng: np.random.Generator,
        here: LinearState,
        tuning: bool,
        scale: HyperScale,
        walks: Walks,
    ) -> LinearState:
        """Move each hyperparameter, φ held.

        Those that move with a factor too walk, since φ leaves them little room.
        """
        order = rng.permutation(here.hyper.size)
        for i in np.repeat(order, np.where(self.walking[order], 1, CENTERED_IN_A_ROW)):
            if self.walking[i]:
                hyper, log_q, walk = here.hyper.copy(), 0.0, True
                hyper[i] += math.exp(walks.log_length[i]) * rng.standard_normal()
            else:
                hyper, log_q, walk = moved_alone(
                    rng, here.hyper, int(i), scale, walks.log_length[i]
                )
            level, then = -rng.standard_exponential(), self.model.scales(hyper)
            log_ratio = log_density(then, here.phi, here.of_rows) + log_q
            log_ratio -= log_density(here.scales, here.phi, here.of_rows)
            if self.listen is not None:
                there = here._replace(hyper=hyper, scales=then)
                is_symmetric = bool(self.walking[i])
                self.listen(
                    LinearMove(
                        "centered",
                        log_ratio,
                        here,
                        there,
                        axis=int(i),
                        walks=walk,
                        is_symmetric=is_symmetric,
                    )
                )
            if level < log_ratio:
                here = here._replace(hyper=hyper, scales=then)
            if tuning and walk:
                walks.learn(int(i), log_ratio)
        return here

    def _given_others(
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
            self.model.slope - here.curved,
            here.phi.copy(),
            scales.factor,
            scales.precision,
            scales.mean,
        )
        log_marginal = scales.level + scales.factor * here.of_rows + added
        return IntegratedLevels(entries, scales.mean[entries], halfway, cholesky, log_marginal)

    def _drawn(
        self, rng: np.random.Generator, here: LinearState, levels: IntegratedLevels
    ) -> np.ndarray:
        """Return φ with the levels of a factor drawn given all else."""
        phi = here.phi.copy()
        noise = rng.standard_normal(levels.halfway.shape)
        away = solve_blocks_transposed(levels.cholesky, levels.halfway + noise)
        phi[levels.entries] = levels.mean + away
        return phi

    def _move_collapsed(
        self,
        rng: np.random.Generator,
        here: LinearState,
        tuning: bool,
        i: int,
        scale: HyperScale,
        walks: Walks,
        counts: MoveCounts,
    ) -> LinearState:
        """Move a hyperparameter with a factor integrated out, and draw its levels anew."""
        axis, k = self.collapsed[i]
        factor = self.factors[k]
        given = self._given_others(here, here.scales, factor)
        for _ in range(CARRIED_IN_A_ROW):
            hyper, log_q, walk = moved_alone(rng, here.hyper, axis, scale, walks.log_length[i])
            then = self.model.scales(hyper)
            given_then = self._given_others(here, then, factor)
            log_ratio = given_then.log_density - given.log_density + log_q
            if self.listen is not None:
                there = here._replace(hyper=hyper, scales=then)
                self.listen(
                    LinearMove(
                        "collapsed",
                        log_ratio,
                        here,
                        there,
                        given,
                        given_then,
                        axis=axis,
                        walks=walk,
                    )
                )
            accepted = bool(-rng.standard_exponential() < log_ratio)
            if accepted:
                here, given = here._replace(hyper=hyper, scales=then), given_then
            counts.count("collapsed", "hyper", float(accepted))
            if tuning and walk:
                walks.tune(i, float(accepted))
        return self.model.here(here.hyper, here.scales, self._drawn(rng, here, given))

    def _move_dense(
        self,
        rng: np.random.Generator,
        here: LinearState,
        scale: HyperScale,
        walks: Walks,
        counts: MoveCounts,
    ) -> tuple[LinearState, np.ndarray]:
        """Move the dense part, every other time with a hyperparameter, the groups integrated out.

        The dense part is drawn whatever it was. So what decides is how much more likely each place
        is than its proposal. Return the last place, and its φ with the groups drawn anew.
        """
        model, dense = self.model, slice(self.model.n_dense)
        frame = last = self.bank.nearest(here.hyper, scale)
        given, weight = self._weighed(here, frame)
        for n in range(DENSE_IN_A_ROW):
            hyper, scales, log_q, axis, walk = here.hyper, here.scales, 0.0, -1, True
            if n % 2 and self.collapsed:
                i = int(rng.integers(len(self.collapsed)))
                axis, log_length = self.collapsed[i][0], walks.log_length[i]
                hyper, log_q, walk = moved_alone(rng, hyper, axis, scale, log_length)
                scales = model.scales(hyper)
            frame = self.bank.nearest(hyper, scale)
            phi = here.phi.copy()
            away = frame.factor.schur.solve_transposed(rng.standard_normal(model.n_dense))
            phi[dense] = frame.mode[dense] + away
            there = model.here(hyper, scales, phi)
            given_then, weight_then = self._weighed(there, frame)
            log_ratio = weight_then - weight + log_q
            if self.listen is not None:
                self.listen(
                    LinearMove(
                        "dense",
                        log_ratio,
                        here,
                        there,
                        given,
                        given_then,
                        axis=axis,
                        walks=walk,
                        is_symmetric=axis < 0,
                        frames=(last, frame),
                    )
                )
            accepted = bool(-rng.standard_exponential() < log_ratio)
            counts.count("border", "dense", float(accepted))
            if accepted:
                here, given, weight, last = there, given_then, weight_then, frame
        return here, self._drawn(rng, here, given)

    def _weighed(self, here: LinearState, frame: BankFrame) -> tuple[IntegratedLevels, float]:
        """Return the groups given the rest, and the log density of that less the proposal's."""
        given, proposed = (
            self._given_others(here, scales, self.groups) for scales in (here.scales, frame.scales)
        )
        return given, given.log_density - (proposed.log_density - frame.log_total)
