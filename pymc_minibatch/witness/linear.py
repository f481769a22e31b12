"""Moves of linear models with crossed factors, compared with the model's own density.

Levels that a move integrates out are drawn anew after it. So it is the move of them all, from φ to
φ' with the levels drawn given all else, and

    p(h, rest) = p(h, φ) / N(φ_levels | h, rest),   p(h, φ) = π(h, z) / Π |scale|.
"""

import math
from collections.abc import Iterator

import numpy as np

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.linear import HeldPredictors, LinearMoves, LinearPlace
from pymc_minibatch.latent.linear_model import BankFrame, IntegratedLevels, LinearState
from pymc_minibatch.latent.moves.decisions import Candidate, ExactDecisions, MoveCounts
from pymc_minibatch.latent.moves.kernels import hyper_walk_share
from pymc_minibatch.latent.moves.scan import Tuning
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.witness import Look

__all__ = ["MovesOfLinearModels"]


class MovesOfLinearModels(Look):
    """What is compared where effects are normal and linear.

    Parameters
    ----------
    density
        The model's own.
    moves
        Those of the chain.
    settings
        What they are made with, tuned.
    """

    def __init__(self, density: ModelDensity, moves: LinearMoves, settings: Tuning) -> None:
        self.density, self.moves, self.settings = density, moves, settings
        self.linear = moves.linear

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare one move of each kind, of a scan from a point of the model."""
        inside = self.linear.field.derivatives.coordinates.from_model(point).copy()
        listener = _Listener(self, rng)
        kept, self.moves.decisions = self.moves.decisions, listener
        try:
            with one_blas_thread():
                self.moves.draw(rng, inside, self.settings._replace(is_on=False), MoveCounts())
        finally:
            self.moves.decisions = kept
        yield from listener.compared.values()

    def compared(self, rng: np.random.Generator, move: Candidate) -> Comparison:
        """Compare a move with the model's own density."""
        start, end = _places(move)
        here, there = start.state, self._redrawn(rng, end)
        before, after = self._log_density(here), self._log_density(there)
        expected = after - before + self._kernel(move)
        for sign, state, place in ((-1.0, there, end), (1.0, here, start)):
            if place.given is not None:
                expected += sign * _of_levels(state, place.given)
            if place.frame is not None:
                expected += sign * self._of_frame(state, place.frame)
        changed = np.flatnonzero(self._point(here) != self._point(there))
        return Comparison(
            move=self.moves.by_name[move.name].words,
            names=self.density.tall.layout.names_of(changed),
            rests_on="rows are quadratic in their predictors, and effects are independent and "
            "normal given their scales",
            log_ratio=move.log_ratio,
            expected=expected,
            rounding=rounding(self.density.tall.n_rows, [before, after, expected]),
        )

    def _redrawn(self, rng: np.random.Generator, place: LinearPlace) -> LinearState:
        """Return the end of a move with the levels drawn that it integrates out."""
        state, given = place.state, place.given
        if given is None:
            return state
        phi = state.phi.copy()
        noise = rng.standard_normal(given.halfway.shape)
        away = np.linalg.solve(
            given.cholesky.transpose(0, 2, 1), (given.halfway + noise)[:, :, None]
        )
        phi[given.entries] = given.mean + away[:, :, 0]
        return self.linear.here(state.hyper, state.scales, phi)

    def _point(self, place: LinearState) -> np.ndarray:
        """Return the point of the model at a place."""
        point = self.linear.surrogate.center.copy()
        point[self.linear.field.hyper] = place.hyper
        point[self.linear.effects] = (place.phi - place.scales.offset) / place.scales.scale
        return self.linear.field.derivatives.coordinates.to_model(point)

    def _log_density(self, place: LinearState) -> float:
        """Return log p(h, φ), from the model's density of h and z."""
        return self.density(self._point(place)) - float(np.log(np.abs(place.scales.scale)).sum())

    def _kernel(self, move: Candidate) -> float:
        """Return the log ratio of the densities of both proposals of h."""
        axis = _axis(move)
        centered = self.moves.by_name[move.name]
        if axis is None or (isinstance(centered, HeldPredictors) and centered.only_walks[axis]):
            return 0.0
        mean, cholesky, _ = self.settings.scale
        sd = math.sqrt(float(cholesky[axis] @ cholesky[axis]))
        z, moved = (
            (place.state.hyper[axis : axis + 1] - mean[axis]) / sd for place in _places(move)
        )
        before, after = hyper_walk_share(z), hyper_walk_share(moved)
        if move.proposal.walks:
            return math.log(after / before)
        turned = 0.5 * float(moved @ moved - z @ z)
        return turned + math.log((1.0 - after) / (1.0 - before))

    def _of_frame(self, place: LinearState, frame: BankFrame) -> float:
        """Return the log density with which the dense part of a place is proposed."""
        dense, groups = self.linear.parts(place.phi - frame.mode)
        eta, _ = frame.factor.whiten(dense, np.zeros_like(groups))
        return frame.factor.schur.log_determinant() - 0.5 * float(eta @ eta)


def _of_levels(place: LinearState, given: IntegratedLevels) -> float:
    """Return the log density of levels given all else, up to a constant."""
    away = place.phi[given.entries] - given.mean
    eta = np.einsum("gqr,gq->gr", given.cholesky, away) - given.halfway
    log_scale = np.linalg.slogdet(given.cholesky)[1].sum()
    return float(log_scale) - 0.5 * float(np.sum(eta**2))


def _places(move: Candidate) -> tuple[LinearPlace, LinearPlace]:
    """Return where a move begins and ends."""
    start, end = move.states
    return start, end


def _axis(move: Candidate) -> int | None:
    """Return which hyperparameter moves; None for none."""
    start, end = (place.state.hyper for place in _places(move))
    moved = np.flatnonzero(start != end)
    return int(moved[0]) if moved.size else None


class _Listener(ExactDecisions):
    """Decides as the chain does, and compares the first move of each kind."""

    def __init__(self, owner: MovesOfLinearModels, rng: np.random.Generator) -> None:
        self.owner, self.rng = owner, rng
        self.compared: dict[tuple[str, bool], Comparison] = {}

    def on_all(self, rng: np.random.Generator, move: Candidate, counts: MoveCounts) -> bool:
        """Compare a move, and decide on it."""
        kind = move.name, _axis(move) is not None
        if kind not in self.compared:
            self.compared[kind] = self.owner.compared(self.rng, move)
        return super().on_all(rng, move, counts)
