"""Densities of the proposals by which effects and their scales move, found anew.

They follow from the coordinates in which a move is simple, x = Φ(θ): a part of x turns or walks,
the rest stays, and

    log q(θ | θ') − log q(θ' | θ) = log k(x | x') − log k(x' | x) + log |Φ'(θ)| − log |Φ'(θ')|.

Determinants are found anew (:mod:`.determinants`).

Reference
---------
Green (1995), Reversible jump Markov chain Monte Carlo computation and Bayesian model determination.
"""

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from pymc_minibatch.latent.batched import multiply_blocks
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.moves.by_surrogate import BySurrogate, Step, log_density_of
from pymc_minibatch.latent.moves.centered_trajectory import CenteredTrajectory
from pymc_minibatch.latent.moves.collapsed import Collapsed, followed
from pymc_minibatch.latent.moves.decisions import (
    Candidate,
    LevelMoves,
)
from pymc_minibatch.latent.moves.kernels import hyper_walk_share
from pymc_minibatch.latent.moves.levels import level_walk_shares, log_stretch
from pymc_minibatch.latent.moves.scan import LatentMoves, Tuning
from pymc_minibatch.latent.moves.shifted import Shifted, log_kernel_of
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.surrogate_data import WithSurrogateData
from pymc_minibatch.latent.moves.trajectory import (
    HamiltonianMove,
    Trajectory,
    TrajectoryOfField,
)
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.determinants import (
    NotComparedError,
    log_determinant,
    log_determinant_of_few,
    log_determinant_of_map,
    quadratic_form,
)

__all__ = ["ProposalDensities"]

STEP, LEAST_STEP = 1e-6, 1e-8
"""Of central differences along a hyperparameter, in its standard deviations, and at least in |h|.
Beside the center of the tails, where their slope has a kink, differences err by about as much; by
rounding, by 10⁻⁸ at most."""

RETRACED = 1e-5
"""Of the largest coordinate: how far the way back may end from where a trajectory began. Rounding
errors of slopes, of some 10⁻¹⁰, grow along it."""

UNSTABLE = 20.0
"""Change of energy along a trajectory, in nats, beyond which rounding errors may grow without bound
along it. Where energy is nearly kept, the way back is found."""

NEVER = -100.0
"""Log ratio, in nats, below which a step is never made. It may be a difference of numbers so large
that no digit of it is right, as where a scale changes by a factor of 10²⁵."""


class ProposalDensities:
    """Log ratios log q(θ | θ') − log q(θ' | θ) of the densities of proposals.

    Parameters
    ----------
    density
        The model's own.
    moves
        Those of the chain.
    settings
        What they are made with, tuned.

    Attributes
    ----------
    lost : float
        What rounding errors of determinants and lengths may add up to since it was set to 0.
    """

    def __init__(self, density: ModelDensity, moves: LatentMoves, settings: Tuning) -> None:
        self.density, self.moves, self.settings = density, moves, settings
        self.field: LatentField = moves.model.field
        self.lost = 0.0

    def of_move(self, move: Candidate) -> float:
        """Return the log ratio of a move on which all rows decide.

        Raises
        ------
        NotComparedError
            If it has no density that can be found.
        """
        of_kinds = {
            "noncentered": self._noncentered,
            WithSurrogateData.name: self._with_surrogate_data,
            "collapsed": self._collapsed,
            BySurrogate.name: self._by_surrogate,
            "border": self._border,
            "coefficients": self._border,
            Trajectory.name: self._trajectory,
            TrajectoryOfField.name: self._trajectory,
        }
        return of_kinds.get(move.name, self._followed)(move, *move.points)

    def of_centered(self, move: Candidate) -> float:
        """Return that of a move of h or of coefficients with what rows read held."""
        here, there = move.points
        shifted = self.moves.by_name[move.name]
        if isinstance(shifted, CenteredTrajectory):
            frame, scale = move.proposal.path.start.frame, self.settings.scale
            if not all(shifted.is_at(point, frame, scale) for point in (here, there)):
                return -math.inf  # coordinates depend on what moves
            return self._trajectory(move, here, there)
        if isinstance(shifted, Shifted):
            moved = (there != here)[shifted.shift.variables]
            return log_kernel_of(self.field, shifted.shift, (here, there), moved)
        return self._volume(lambda z: self._centered(z, there), here)

    def of_levels(self, moves: LevelMoves, here: np.ndarray, there: np.ndarray) -> np.ndarray:
        """Return the log ratio of proposal densities of each level."""
        surrogate, levels = self.moves.model.surrogate, self.field.levels[moves.factor]
        given = surrogate.factored_later(here[self.field.hyper])
        mean, cholesky = surrogate.given_others(given, here, moves.predictors[0], levels)
        blocks = cholesky @ cholesky.transpose(0, 2, 1)
        etas, lengths = [], []
        for point in (here, there):
            away = point[levels.latent] - mean
            lengths.append(np.einsum("gq,gq->g", away, multiply_blocks(blocks, away)))
            etas.append(np.einsum("gqr,gq->gr", cholesky, away))
        turned = 0.5 * (lengths[1] - lengths[0])
        often = moves.often or self.moves.decisions.level_walks(moves.factor, levels)
        before, after = (level_walk_shares(eta, often) for eta in etas)
        turned = turned + np.log((1.0 - after) / (1.0 - before))
        stretched = log_stretch(etas[1]) - log_stretch(etas[0])
        return np.where(moves.walks, np.log(after / before) + stretched, turned)

    def _followed(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return the log ratio of proposal densities where a move says how variables follow."""
        if move.proposal.follow is None:
            raise NotComparedError
        log_kernel: float = move.proposal.log_kernel
        return log_kernel + self._volume(move.proposal.follow, here)

    def _noncentered(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return the log ratio of proposal densities where h moves and η stays."""

        def gaussian(point: np.ndarray) -> tuple[Conditional, np.ndarray]:
            given = self.moves.model.surrogate.factored_later(point[self.field.hyper])
            return given, given.point

        return self._eta_held(move, (here, there), gaussian)

    def _with_surrogate_data(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return that where η stays given surrogate data, whose density has a share in it."""
        of_kind, data = self.moves.by_name[move.name], move.proposal.data
        assert isinstance(of_kind, WithSurrogateData)
        precision, at = of_kind.precision, self.moves.model.surrogate.expansion.at
        known = precision > 0.0
        u = at[known] + data.pull[known] / precision[known]
        means = [self.field.derivatives.phi(point)[known] for point in (here, there)]
        away = [precision[known] @ (u - mean) ** 2 for mean in means]

        def gaussian(point: np.ndarray) -> tuple[Conditional, np.ndarray]:
            given = of_kind.surrogate.factored_later(point[self.field.hyper])
            return given, of_kind.frame(given, data).origin

        return self._eta_held(move, (here, there), gaussian) + 0.5 * float(away[0] - away[1])

    def _eta_held(
        self,
        move: Candidate,
        points: tuple[np.ndarray, np.ndarray],
        gaussian: Callable[[np.ndarray], tuple[Conditional, np.ndarray]],
    ) -> float:
        """Return that where h moves and η stays, in the Gaussian and the mean that points have."""
        mean, cholesky, _ = self.settings.scale
        z, moved = (np.linalg.solve(cholesky, self._w(point) - mean) for point in points)
        volumes, lengths = [], []
        for point in points:
            given, origin = gaussian(point)
            away = self.field.latent.split(point - origin)
            length, lost_length = quadratic_form(given.precision, away)
            log_volume, lost_volume = log_determinant(given.precision)
            lengths.append(length)
            volumes.append(0.5 * log_volume + self._slope_of_tails(point))
            self.lost += lost_length + lost_volume
        kernel = _mixture(
            z, moved, (hyper_walk_share(z), hyper_walk_share(moved)), move.proposal.walks
        )
        # η stays: what its Gaussian says is the same at both ends, if L is a factor of Λ.
        unequal = 0.5 * (lengths[1] - lengths[0])
        equal = abs(unequal) <= 1e-7 * (1.0 + abs(lengths[0])) + self.lost
        return kernel + volumes[0] - volumes[1] + (0.0 if equal else unequal)

    def _border(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return that where a part of η turns and h stays."""
        given = move.proposal.conditional
        lengths = []
        for point in (here, there):
            start = point if self.moves.bank is None else self._centered(point, given.here)
            away = self.field.latent.split(start - given.point)
            length, lost = quadratic_form(given.precision, away)
            lengths.append(length)
            self.lost += lost
        return 0.5 * (lengths[1] - lengths[0])

    def _trajectory(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return that of a trajectory, from the way back: it must lead to where it began."""
        trajectory, path = self.moves.by_name[move.name], move.proposal.path
        assert isinstance(trajectory, HamiltonianMove)
        back = trajectory.follow(path.end.reversed, path.steps, self.moves.decisions)
        y, *ends = [path.start.frame.coordinates(p) for p in (here, there)]
        scale, away = np.abs([y, *ends, path.start.momentum]).max(initial=1.0), np.inf
        if back is not None:
            missed = path.start.frame.coordinates(back.point) - y
            turned = back.end.momentum + path.start.momentum
            away = np.abs([missed, turned]).max(initial=0.0)
        if back is None or away > RETRACED * scale:
            to_model = self.field.derivatives.coordinates.to_model
            change = self.density(to_model(there)) - self.density(to_model(here))
            if abs(change + path.log_kernel) > UNSTABLE:
                raise NotComparedError
            return -math.inf
        before, after = back.end.momentum, path.end.momentum
        return 0.5 * float(before @ before - after @ after)

    def _collapsed(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return that where one hyperparameter moves and the levels of a factor follow."""
        collapsed = self.moves.by_name[move.name]
        assert isinstance(collapsed, Collapsed)
        axis, k = collapsed.pairs[move.target]
        mean, cholesky, _ = self.settings.scale
        sd = math.sqrt(float(cholesky[axis] @ cholesky[axis]))
        at = slice(axis, axis + 1)
        z, moved = ((p[self.field.hyper][at] - mean[at]) / sd for p in (here, there))
        kernel = _mixture(
            z, moved, (hyper_walk_share(z), hyper_walk_share(moved)), move.proposal.walks
        )
        hyper, levels = there[self.field.hyper], self.field.levels[k]
        surrogate = self.moves.model.surrogate

        def follow(point: np.ndarray) -> np.ndarray:
            state = followed(ChainState(surrogate, point), hyper, levels)[0]
            if state is None:
                raise NotComparedError
            return state.point

        return kernel + self._volume(follow, here)

    def _by_surrogate(self, move: Candidate, here: np.ndarray, there: np.ndarray) -> float:
        """Return that of many steps: the ratio of the surrogate's densities, if each keeps them."""
        of_kind = self.moves.by_name[move.name]
        assert isinstance(of_kind, BySurrogate)
        are_few, wrong = of_kind.few.are_few, 0.0
        for has_few in (False, True):
            steps = [
                step
                for step in move.proposal.data.watched
                if are_few[step.axis] == has_few and NEVER < step.log_ratio < math.inf
            ]
            if steps:
                likeliest = max(steps, key=lambda step: step.log_ratio)
                wrong += self._wrong_by_surrogate(of_kind, likeliest)
        return self._second_order(here) - self._second_order(there) + wrong

    def _wrong_by_surrogate(self, of_kind: BySurrogate, step: Step) -> float:
        """Return by how much the log ratio of a step is wrong; −∞ if there is no way back."""
        surrogate, scale = self.moves.model.surrogate, self.settings.scale
        here, there = step.points

        def moved(point: np.ndarray, length: float) -> np.ndarray:
            found = of_kind.moved(ChainState(surrogate, point), step.axis, length, scale)
            if found is None:
                raise NotComparedError
            return found

        away = np.abs(moved(there, -step.length) - here)
        if not np.all(away <= RETRACED * (1.0 + np.abs(here))):
            return -math.inf

        def follow(point: np.ndarray) -> np.ndarray:
            return moved(point, step.length)

        if of_kind.few.are_few[step.axis]:
            log_jacobian = log_determinant_of_few(follow, here, of_kind.few.followers[step.axis])
        else:
            log_jacobian = self._volume(follow, here)
        change = self._second_order(there) - self._second_order(here)
        return step.log_ratio - change - log_jacobian

    def _second_order(self, point: np.ndarray) -> float:
        """Return the log density of the surrogate to second order, anew."""
        return log_density_of(ChainState(self.moves.model.surrogate, point))

    def _w(self, point: np.ndarray) -> np.ndarray:
        return self.moves.model.tails.from_hyper(point[self.field.hyper])

    def _slope_of_tails(self, point: np.ndarray) -> float:
        """Return log |∂w/∂h|, by differences along each axis."""
        hyper, from_hyper = point[self.field.hyper], self.moves.model.tails.from_hyper
        jacobian, sds = np.empty((hyper.size, hyper.size)), self._sds
        for i in range(hyper.size):
            step = np.zeros(hyper.size)
            step[i] = max(STEP * sds[i], LEAST_STEP * abs(hyper[i]))
            ends = from_hyper(hyper + step) - from_hyper(hyper - step)
            jacobian[:, i] = ends / (2.0 * step[i])
        return float(np.linalg.slogdet(jacobian)[1])

    @cached_property
    def _sds(self) -> np.ndarray:
        """Standard deviations of h, about."""
        return np.asarray(np.linalg.norm(self.moves.model.hyper_cholesky, axis=1))

    def _centered(self, point: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return a point with the h of another one, at which rows read the same."""
        hyper = other[self.field.hyper]
        if np.array_equal(point[self.field.hyper], hyper):
            return point
        centered = self.field.with_effects_held(point, hyper)
        if centered is None:
            raise NotComparedError
        return centered.point

    def _volume(self, follow: Callable[[np.ndarray], np.ndarray], here: np.ndarray) -> float:
        """Return log |∂z'/∂z| of effects that follow h."""
        return log_determinant_of_map(follow, here, self.field.latent)


def _mixture(z: np.ndarray, moved: np.ndarray, shares: tuple[float, float], walks: bool) -> float:
    """Return log k(z | z') − log k(z' | z) of a walk, or of a turn about 0."""
    share, share_then = shares
    if walks:
        return math.log(share_then / share)
    return 0.5 * float(moved @ moved - z @ z) + math.log((1.0 - share_then) / (1.0 - share))
