"""Moves of linear models with crossed factors, compared with the model's own density.

Levels that a move integrates out are drawn anew after it. So it is the move of them all, from φ to
φ' with the levels drawn given all else, and

    p(h, rest) = p(h, φ) / N(φ_levels | h, rest),   p(h, φ) = π(h, z) / Π |scale|.
"""

import math
from collections.abc import Iterator

import numpy as np

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.linear import LinearMove, LinearMoves
from pymc_minibatch.latent.linear_model import BankFrame, IntegratedLevels, LinearState
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.moves.kernels import hyper_walk_share
from pymc_minibatch.latent.moves.scan import Tuning
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.witness import Look

__all__ = ["MovesOfLinearModels"]

NAMES = {
    "centered": "a hyperparameter, predictors held",
    "collapsed": "a hyperparameter, one factor integrated out",
    "dense": "coefficients and the smaller factors, the largest integrated out",
}


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
        self.model = moves.model

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare one move of each kind, of a scan from a point of the model."""
        inside = self.model.field.derivatives.coordinates.from_model(point).copy()
        compared: dict[str, Comparison] = {}

        def listen(move: LinearMove) -> None:
            kind = f"{move.kind} {move.axis >= 0}"
            if kind not in compared:
                compared[kind] = self._compared(rng, move)

        self.moves.listen = listen
        try:
            with one_blas_thread():
                self.moves.draw(rng, inside, self.settings._replace(is_on=False), MoveCounts())
        finally:
            self.moves.listen = None
        yield from compared.values()

    def _compared(self, rng: np.random.Generator, move: LinearMove) -> Comparison:
        here, there = move.here, self._redrawn(rng, move)
        before, after = self._log_density(here), self._log_density(there)
        expected = after - before + self._kernel(move)
        for sign, place, given in ((-1.0, there, move.given_then), (1.0, here, move.given)):
            if given is not None:
                expected += sign * _of_levels(place, given)
        if move.frames:
            expected += self._of_frame(here, move.frames[0]) - self._of_frame(there, move.frames[1])
        changed = np.flatnonzero(self._point(here) != self._point(there))
        return Comparison(
            move=NAMES[move.kind],
            names=self.density.tall.layout.names_of(changed),
            rests_on="rows are quadratic in their predictors, and effects are independent and "
            "normal given their scales",
            log_ratio=move.log_ratio,
            expected=expected,
            rounding=rounding(self.density.tall.n_rows, [before, after, expected]),
        )

    def _redrawn(self, rng: np.random.Generator, move: LinearMove) -> LinearState:
        """Return the end of a move with the levels drawn that it integrates out."""
        given = move.given_then
        if given is None:
            return move.there
        phi = move.there.phi.copy()
        noise = rng.standard_normal(given.halfway.shape)
        away = np.linalg.solve(
            given.cholesky.transpose(0, 2, 1), (given.halfway + noise)[:, :, None]
        )
        phi[given.entries] = given.mean + away[:, :, 0]
        return move.there._replace(phi=phi)

    def _point(self, place: LinearState) -> np.ndarray:
        """Return the point of the model at a place."""
        point = self.model.surrogate.center.copy()
        point[self.model.field.hyper] = place.hyper
        point[self.model.effects] = (place.phi - place.scales.offset) / place.scales.scale
        return self.model.field.derivatives.coordinates.to_model(point)

    def _log_density(self, place: LinearState) -> float:
        """Return log p(h, φ), from the model's density of h and z."""
        return self.density(self._point(place)) - float(np.log(np.abs(place.scales.scale)).sum())

    def _kernel(self, move: LinearMove) -> float:
        """Return the log ratio of the densities of both proposals of h."""
        if move.is_symmetric:
            return 0.0
        mean, cholesky, _ = self.settings.scale
        sd = math.sqrt(float(cholesky[move.axis] @ cholesky[move.axis]))
        z, moved = (
            (place.hyper[move.axis : move.axis + 1] - mean[move.axis]) / sd
            for place in (move.here, move.there)
        )
        before, after = hyper_walk_share(z), hyper_walk_share(moved)
        if move.walks:
            return math.log(after / before)
        turned = 0.5 * float(moved @ moved - z @ z)
        return turned + math.log((1.0 - after) / (1.0 - before))

    def _of_frame(self, place: LinearState, frame: BankFrame) -> float:
        """Return the log density with which the dense part of a place is proposed."""
        dense, groups = self.model.parts(place.phi - frame.mode)
        eta, _ = frame.factor.whiten(dense, np.zeros_like(groups))
        return frame.factor.schur.log_determinant() - 0.5 * float(eta @ eta)


def _of_levels(place: LinearState, given: IntegratedLevels) -> float:
    """Return the log density of levels given all else, up to a constant."""
    away = place.phi[given.entries] - given.mean
    eta = np.einsum("gqr,gq->gr", given.cholesky, away) - given.halfway
    log_scale = np.linalg.slogdet(given.cholesky)[1].sum()
    return float(log_scale) - 0.5 * float(np.sum(eta**2))
