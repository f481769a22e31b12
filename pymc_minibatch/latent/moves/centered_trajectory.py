"""Hyperparameters move along a Hamiltonian trajectory, and the effects as rows read them stay.

If effects are centred, the prior alone says what hyperparameters are given them: scales and
correlations, and means that rows do not read themselves. A trajectory moves all of these at once,
with gradients of the prior and no row, where walks along one of many at a time creep. It is a
leapfrog in coordinates in which minus the Hessian of the log prior is the identity at the mode
given the effects: these stay, and so do coordinates.

References
----------
Neal (2011), MCMC using Hamiltonian dynamics, sections 4.1 and 5.4. Betancourt (2013), A general
metric for Riemannian manifold Hamiltonian Monte Carlo (absolute values of eigenvalues).
"""

from dataclasses import dataclass

import numpy as np

from pymc_minibatch.latent.moves.decisions import Decisions
from pymc_minibatch.latent.moves.protocol import EffectsModel, Planned, Proposal, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.trajectory import MANY_HYPER, Frame, Trajectory
from pymc_minibatch.latent.moves.tuners import HyperScale

__all__ = ["CenteredTrajectory", "plan"]

TIMES = 2
"""Trajectories in a scan: each leaves hyperparameters hardly correlated given effects, and takes
some ten gradients of the prior."""

CLIMBS, HALVINGS = 8, 6
"""Newton's steps to the mode, and how often one that leads down is halved, at most."""

NEAR = 0.1
"""Steps that promise less than so many nats for each variable are the last."""

LEAST = 1e-8
"""Least eigenvalue of the Hessian with unit diagonal, relative to the largest."""


@dataclass(frozen=True)
class PriorFrame:
    """The map of y to points where some variables are C y, and all others stay.

    Attributes
    ----------
    origin : ndarray, shape (D,)
        The point whose other variables stay.
    positions : ndarray of int64, shape (n,)
        Which variables move.
    root : ndarray, shape (n, n)
        C.
    """

    origin: np.ndarray
    positions: np.ndarray
    root: np.ndarray

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return self.positions.size

    def point(self, y: np.ndarray) -> np.ndarray:
        """Return the point with these coordinates."""
        point = self.origin.copy()
        point[self.positions] = self.root @ y
        return point

    def coordinates(self, point: np.ndarray) -> np.ndarray:
        """Undo :meth:`point`."""
        return np.asarray(np.linalg.solve(self.root, point[self.positions]))

    def slope(self, slope: np.ndarray) -> np.ndarray:
        """Return the gradient by y, given that by points."""
        return np.asarray(self.root.T @ slope[self.positions])


class CenteredTrajectory(Trajectory):
    """Moves of hyperparameters that rows do not read, and of means that they do not read."""

    name, words = "centered trajectory", "hyperparameters along a trajectory, predictors held"
    scope, counts_as = "prior", None

    def __init__(self, model: EffectsModel) -> None:
        super().__init__(model)
        self.positions = unread(model)
        self.last: tuple[np.ndarray, np.ndarray] | None = None

    def frame(self, state: ChainState, setting: Setting) -> PriorFrame:
        """Return the coordinates y."""
        start = self._start(state.point, setting.scale)
        if self.last is None or not np.array_equal(self.last[0], start):
            self.last = start, self._root_at_mode(start)
        return PriorFrame(state.point, self.positions, self.last[1])

    def _start(self, point: np.ndarray, scale: HyperScale) -> np.ndarray:
        """Return where the way to the mode begins, whatever the variables are that move."""
        start, center = point.copy(), self.model.surrogate.center
        start[self.positions] = center[self.positions]
        start[self.model.field.hyper] = self.model.tails.to_hyper(scale.mean)
        return start

    def _root_at_mode(self, point: np.ndarray) -> np.ndarray:
        """Return C at the mode given what stays, or nearer to it than a point."""
        log_prior, own = self._derivatives.prior, self.positions
        here, root = log_prior(point), self._root(point)
        for _ in range(CLIMBS):
            y = root.T @ self._derivatives.prior_gradient(point)[own]
            if not 0.5 * float(y @ y) > NEAR * own.size:
                break
            for _ in range(HALVINGS):
                moved = point.copy()
                moved[own] += root @ y
                there = log_prior(moved)
                if there > here:
                    break
                y /= 2.0
            else:
                break
            point, here, root = moved, there, self._root(moved)
        return root

    def _root(self, point: np.ndarray) -> np.ndarray:
        """Return C, with C Cᵀ the inverse of the Hessian that is bent down."""
        columns, seed = [], np.zeros(point.size)
        for position in self.positions:
            seed[position] = 1.0
            columns.append(self._derivatives.prior_product(point, seed)[self.positions])
            seed[position] = 0.0
        hessian = np.nan_to_num(np.array(columns))
        diagonal = np.abs(np.diagonal(hessian))
        unit = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
        values, vectors = np.linalg.eigh((hessian + hessian.T) / 2 * np.outer(unit, unit))
        values = np.maximum(np.abs(values), LEAST * np.abs(values).max())
        return np.asarray(unit[:, None] * vectors / np.sqrt(values))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal | None:
        """Draw a momentum and follow it; nowhere, if rows would not read the same there."""
        field = state.surrogate.field
        with np.errstate(all="ignore"):  # far out there may be no density
            proposal = super().propose(rng, state, target, setting)
        if proposal is None or proposal.path is None:
            return proposal
        if not field.reads_same(proposal.path.point, field.derivatives.phi(state.point)):
            return Proposal(None)
        return proposal

    @staticmethod
    def force(frame: Frame, slope: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the gradient by y: nothing is split from the potential."""
        return frame.slope(slope)

    @staticmethod
    def drift(y: np.ndarray, p: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Return y and p after a straight step."""
        return y + angle * p, p

    def slope_at(self, point: np.ndarray, decisions: Decisions) -> np.ndarray:
        """Return the gradient of the log prior."""
        return self._derivatives.prior_gradient(point)


def unread(model: EffectsModel) -> np.ndarray:
    """Return the positions of hyperparameters and coefficients that the prior alone speaks of.

    None, if rows do not read effects as they are, but times what hyperparameters are.
    """
    field, center = model.field, model.surrogate.center
    if field.map_jacobian.changing or field.fixed_map is None:
        return np.empty(0, dtype=np.int64)
    found, seed = [], np.zeros(center.size)
    for position in field.hyper:
        seed[position] = 1.0
        if not any(field.derivatives.push(p, seed).any() for p in (center, center + field.spread)):
            found.append(position)
        seed[position] = 0.0
    projector = field.projector_at(center)
    reads = [abs(part).sum(axis=0) for part in (projector.dense, projector.cross)]
    return np.concatenate([found, field.latent.dense[sum(reads) == 0.0]]).astype(np.int64)


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: if many hyperparameters are in the prior alone."""
    if model.fixed_factor or model.has_own_scales or model.field.hyper.size < MANY_HYPER:
        return []
    move = CenteredTrajectory(model)
    return [Planned(move, in_a_row=TIMES)] if move.positions.size >= MANY_HYPER else []
