"""Hyperparameters move along a Hamiltonian trajectory, and the effects as rows read them stay.

If effects are centered, the prior alone says what hyperparameters are given them: scales and
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

from pymc_minibatch.latent.field import with_values
from pymc_minibatch.latent.moves.decisions import Decisions
from pymc_minibatch.latent.moves.protocol import EffectsModel, Planned, Proposal, Setting
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.trajectory import MANY_HYPER, Frame, HamiltonianMove
from pymc_minibatch.latent.moves.tuners import HyperScale

__all__ = ["CenteredTrajectory", "plan"]

TIMES = 2
"""Trajectories in a scan: each leaves hyperparameters hardly correlated given effects, and takes
some ten gradients of the prior."""

CLIMBS, HALVINGS = 8, 6
"""Newton's steps to the mode, and how often one that leads down is halved, at most."""

NEAR = 0.1
"""Steps that promise less than so many nats for each variable are the last."""

MOST, MOST_WORK, BY_ROWS = 200, 500_000, 2.0
"""Variables that move, at most; and times all variables, in entries of a Hessian, of which a scan
finds some eight. So many take 0.3 s, or as long as a scan if each row is read in it."""

LEAST = 1e-4
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


class CenteredTrajectory(HamiltonianMove):
    """Moves of hyperparameters that rows do not read, and of means that they do not read."""

    name, words = "centered trajectory", "hyperparameters along a trajectory, predictors held"
    scope, counts_as = "prior", None

    def __init__(self, model: EffectsModel) -> None:
        super().__init__(model)
        self.positions = unread(model)
        self.last: tuple[np.ndarray, np.ndarray | None] | None = None

    def frame(self, state: ChainState, setting: Setting) -> PriorFrame | None:
        """Return the coordinates y, None if the prior has no curvature where the way begins."""
        start = self._start(state.point, setting.scale)
        if self.last is None or not np.array_equal(self.last[0], start):
            self.last = start, self._root_at_mode(start)
        root = self.last[1]
        return None if root is None else PriorFrame(state.point, self.positions, root)

    def is_at(self, point: np.ndarray, frame: PriorFrame, scale: HyperScale) -> bool:
        """Whether the coordinates at a point, found anew, are these."""
        root = self._root_at_mode(self._start(point, scale))
        return root is not None and np.array_equal(root, frame.root)

    def _start(self, point: np.ndarray, scale: HyperScale) -> np.ndarray:
        """Return where the way to the mode begins, whatever the variables are that move."""
        start = self.model.surrogate.center.copy()
        start[self.model.field.hyper] = self.model.tails.to_hyper(scale.mean)
        return with_values(point, self.positions, start[self.positions])

    @np.errstate(all="ignore")
    def _root_at_mode(self, point: np.ndarray) -> np.ndarray | None:
        """Return C at the mode given what stays, or nearer to it than a point."""
        nearer = root = self._root(point)
        for _ in range(CLIMBS):
            if nearer is None:
                break
            root, slope = nearer, self.derivatives.prior_gradient(point)[self.positions]
            y = root.T @ slope
            if not 0.5 * float(y @ y) > NEAR * y.size:
                break
            point = self._higher(point, root @ y)
            nearer = self._root(point)
        return root

    def _higher(self, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return where the log prior is higher, by a step that is halved until it is, if any is."""
        log_prior = self.derivatives.prior
        for _ in range(HALVINGS):
            moved = point.copy()
            moved[self.positions] += step
            if log_prior(moved) > log_prior(point):
                return moved
            step = step / 2.0
        return point

    def _root(self, point: np.ndarray) -> np.ndarray | None:
        """Return C, with C Cᵀ the inverse of the Hessian bent down; None if it has no digits."""
        columns, seed = [], np.zeros(point.size)
        for position in self.positions:
            seed[position] = 1.0
            columns.append(self.derivatives.prior_product(point, seed)[self.positions])
            seed[position] = 0.0
        hessian = np.array(columns)
        if not np.isfinite(hessian).all():
            return None
        diagonal = np.abs(np.diagonal(hessian))
        unit = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
        scaled = unit[:, None] * (hessian + hessian.T) / 2 * unit
        values, vectors = np.linalg.eigh(scaled)
        values = np.maximum(np.abs(values), LEAST * np.abs(values).max())
        return np.asarray(unit[:, None] * vectors / np.sqrt(values))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal | None:
        """Draw a momentum and follow it; nowhere, if rows would not read the same there."""
        proposal, field = super().propose(rng, state, target, setting), state.surrogate.field
        if proposal is None or proposal.path is None:
            return proposal
        if not field.reads_same(proposal.path.point, field.derivatives.phi(state.point)):
            return Proposal(None)
        return proposal

    def force(self, frame: Frame, slope: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the gradient by y."""
        return frame.slope(slope)

    def drift(self, y: np.ndarray, p: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Return y and p after a straight step."""
        return y + angle * p, p

    def slope_at(self, point: np.ndarray, decisions: Decisions) -> np.ndarray:
        """Return the gradient of the log prior."""
        return self.derivatives.prior_gradient(point)


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
    """Return how it enters a scan: if many hyperparameters are in the prior alone.

    If sums say everything of the rows, all of them move together anyway, as often as is needed.
    """
    fits = not (model.fixed_factor or model.has_own_scales or model.surrogate.expansion.is_exact)
    if not fits or model.field.hyper.size < MANY_HYPER:
        return []
    move = CenteredTrajectory(model)
    work = move.positions.size * model.surrogate.center.size
    is_cheap = work <= max(MOST_WORK, BY_ROWS * model.all_rows)
    pays = MANY_HYPER <= move.positions.size <= MOST and is_cheap
    return [Planned(move, in_a_row=TIMES)] if pays else []
