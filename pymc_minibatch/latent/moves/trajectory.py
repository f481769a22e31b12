"""All variables move along a Hamiltonian trajectory, whose Gaussian part is exact.

In coordinates y in which the posterior is about standard normal (:mod:`..joint_frame`),

    H(y, p) = ½ |y|² + ½ |p|² + V(y),   V(y) = −log π(y) − ½ |y|²,

and without V the motion is a rotation, of which a quarter turn makes y independent of where it was.
A step is a kick by −∇V for half its angle, a rotation, and another half kick. Its length is limited
by what is not Gaussian, hardly by the number of variables, and all of them move with two or three
gradients of all rows, where moves of a random walk would be short. If a factorization for each h is
cheap, half of the trajectories move the field only, in the coordinates that h gives it: these fit
where scales are so uncertain that one map does not fit all of them.

References
----------
Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3.1. Beskos, Pinski,
Sanz-Serna and Stuart (2011), Hybrid Monte Carlo on Hilbert spaces.
"""

import math
from abc import abstractmethod
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.joint_frame import JointFrame
from pymc_minibatch.latent.moves.decisions import Decisions
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Move,
    Outcome,
    Planned,
    Proposal,
    Setting,
)
from pymc_minibatch.latent.moves.state import ChainState

__all__ = [
    "MANY_HYPER",
    "Angle",
    "Frame",
    "HamiltonianMove",
    "Path",
    "Start",
    "Trajectory",
    "TrajectoryOfField",
    "plan",
]

QUARTER_TURN = math.pi / 2
JITTER = 0.4
"""Trajectories are shorter by up to this share, so that no orbit closes."""

TIMES = 2
"""Trajectories in a scan, if they are of one kind; of two kinds there is one of each."""

MANY_HYPER = 6
"""Hyperparameters from which on a random walk, or draws from a Gaussian, hardly move them."""

BESIDE_OWN_SCALES = 0.02
"""Share of scans with one of all variables, if scales of single coefficients have moves of their
own (:mod:`.by_surrogate`): with these many scales trajectories are long, and accepted in vain."""

FIRST_ANGLE, LEAST_ANGLE = 0.3, QUARTER_TURN / 64
"""Of a step, in radians: before tuning, and at least."""

ACCEPTED = 0.75
"""Share of trajectories that tuning aims at, between the best for long ones (0.65) and for short
ones (Beskos, Pillai, Roberts, Sanz-Serna and Stuart, 2013)."""


class Angle(NamedTuple):
    """What tuning changes.

    Attributes
    ----------
    log_angle : ndarray, shape (1,)
        Log of the angle of a step.
    n_moves : ndarray, shape (1,)
        Trajectories while tuning.
    """

    log_angle: np.ndarray
    n_moves: np.ndarray

    @property
    def angle(self) -> float:
        """Of a step."""
        return math.exp(self.log_angle[0])

    def tune(self, accepted: bool) -> None:
        """Change the angle so that trajectories are accepted often enough."""
        self.n_moves[0] += 1
        change = (accepted - ACCEPTED) / self.n_moves[0] ** 0.6
        bounds = math.log(LEAST_ANGLE), math.log(QUARTER_TURN)
        self.log_angle[0] = min(max(self.log_angle[0] + change, bounds[0]), bounds[1])


class Frame(Protocol):
    """The map of y to points."""

    @property
    def size(self) -> int:
        """How many coordinates there are."""

    def point(self, y: np.ndarray) -> np.ndarray:
        """Return the point with these coordinates."""

    def coordinates(self, point: np.ndarray) -> np.ndarray:
        """Undo :meth:`point`."""

    def slope(self, slope: np.ndarray) -> np.ndarray:
        """Return the gradient by y, given that by points."""


class Start(NamedTuple):
    """Where a trajectory begins, or ends.

    Attributes
    ----------
    point : ndarray, shape (D,)
        In the coordinates of the field.
    momentum : ndarray
        p.
    frame : Frame
        The coordinates y.
    """

    point: np.ndarray
    momentum: np.ndarray
    frame: Frame

    @property
    def energy(self) -> float:
        """½ |p|²."""
        return 0.5 * float(self.momentum @ self.momentum)

    @property
    def reversed(self) -> "Start":
        """The start of the way back."""
        return self._replace(momentum=-self.momentum)


class Path(NamedTuple):
    """A trajectory.

    Attributes
    ----------
    start, end : Start
        Where it begins and ends.
    steps : (float, int)
        The angle of each step, and how many.
    n_slopes : int
        How often it has found the slope of the log-likelihood.
    """

    start: Start
    end: Start
    steps: tuple[float, int]
    n_slopes: int

    @property
    def point(self) -> np.ndarray:
        """Where it ends."""
        return self.end.point

    @property
    def log_kernel(self) -> float:
        """Log density of the momentum at its end less that at its start."""
        return self.start.energy - self.end.energy


class HamiltonianMove(Move):
    """Moves along a trajectory that is found step by step, in some coordinates y."""

    def __init__(self, model: EffectsModel) -> None:
        self.model = model
        self.remembered: list[tuple[np.ndarray, np.ndarray]] = []

    @cached_property
    def derivatives(self) -> Derivatives:
        """Of the prior with its kinks, and of what rows read."""
        return self.model.field.derivatives.with_kinks()

    @abstractmethod
    def frame(self, state: ChainState, setting: Setting) -> Frame | None:
        """Return the coordinates y, None if there are none."""

    @abstractmethod
    def slope_at(self, point: np.ndarray, decisions: Decisions) -> np.ndarray:
        """Return the gradient by points of the log-density that is followed."""

    @abstractmethod
    def force(self, frame: Frame, slope: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return by what the momentum changes, given the gradient by points."""

    @abstractmethod
    def drift(self, y: np.ndarray, p: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Return y and p after a step without force."""

    def initial(self) -> Angle:
        """Return a short step."""
        return Angle(np.array([math.log(FIRST_ANGLE)]), np.zeros(1))

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal | None:
        """Draw a momentum and follow it."""
        frame = self.frame(state, setting)
        if frame is None:
            return None
        length = QUARTER_TURN * (1.0 - JITTER * rng.random())
        n_steps = math.ceil(length / setting.tuners[self.name].angle)
        momentum = rng.standard_normal(frame.size)
        start = Start(state.point, momentum, frame)
        path = self.follow(start, (length / n_steps, n_steps), setting.decisions)
        if path is None:
            return Proposal(None)
        return Proposal(state.at(path.point), path.log_kernel, path=path)

    def follow(self, start: Start, steps: tuple[float, int], decisions: Decisions) -> Path | None:
        """Return a trajectory of steps of an angle, and how many; None if it leads nowhere."""
        with np.errstate(all="ignore"):  # far out there may be no density
            return self._followed(start, steps, decisions)

    def _followed(
        self, start: Start, steps: tuple[float, int], decisions: Decisions
    ) -> Path | None:
        (point, p, frame), (angle, n_steps) = start, steps
        y = frame.coordinates(point)
        known = self._known_slope(point)
        first = slope = self.slope_at(point, decisions) if known is None else known
        for _ in range(n_steps):
            p = p + angle / 2 * self.force(frame, slope, y)
            y, p = self.drift(y, p, angle)
            point = frame.point(y)
            slope = self.slope_at(point, decisions)
            if not np.isfinite(slope).all():
                return None
            p = p + angle / 2 * self.force(frame, slope, y)
        self.remembered = [(start.point, first), (point, slope)]
        return Path(start, Start(point, p, frame), steps, n_steps + (known is None))

    def _known_slope(self, point: np.ndarray) -> np.ndarray | None:
        """Return the slope at either end of the last trajectory, from memory."""
        for at, slope in self.remembered:
            if np.array_equal(at, point):
                return slope
        return None

    def learn(
        self,
        rng: np.random.Generator,
        tuner: Angle,
        target: None,
        proposal: Proposal,
        outcome: Outcome,
    ) -> None:
        """Lengthen or shorten steps."""
        tuner.tune(bool(outcome.accepted))


class Trajectory(HamiltonianMove):
    """Moves of hyperparameters and effects at once."""

    name, words, counts_as = "trajectory", "all variables, along a trajectory", "dense"

    def frame(self, state: ChainState, setting: Setting) -> Frame | None:
        """Return the coordinates y, None if there are none."""
        return self._fixed_frame

    @cached_property
    def _fixed_frame(self) -> JointFrame:
        model = self.model
        return JointFrame.about(model.surrogate, model.hyper, model.hyper_cholesky)

    def slope_at(self, point: np.ndarray, decisions: Decisions) -> np.ndarray:
        """Return the gradient of the log posterior, with the kinks that its prior has."""
        derivatives = self.derivatives
        of_rows = derivatives.pull(point, decisions.slope(derivatives.phi(point)))
        return of_rows + derivatives.prior_gradient(point)

    def force(self, frame: Frame, slope: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return −∇V."""
        return frame.slope(slope) + y

    def drift(self, y: np.ndarray, p: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Return y and p after a rotation."""
        cos, sin = math.cos(angle), math.sin(angle)
        return cos * y + sin * p, cos * p - sin * y


class TrajectoryOfField(Trajectory):
    """Moves of all effects at once, h as it is."""

    name, words = "trajectory of the field", "all effects, along a trajectory"

    def frame(self, state: ChainState, setting: Setting) -> JointFrame | None:
        """Return the coordinates η that h gives the field, None if it is no Gaussian there."""
        given = state.conditional
        return JointFrame.of_field(given) if given.is_proper else None


def plan(model: EffectsModel) -> list[Planned]:
    """Return how both enter a scan, if all rows decide, or if sums say everything of them.

    Given h the field is drawn from its Gaussian then, and h moves by itself unless it is long.
    """
    joint, of_field = Trajectory(model), TrajectoryOfField(model)
    if not model.has_slopes:
        by_sums = model.surrogate.expansion.is_exact and model.surrogate.kinks is None
        is_long = model.field.hyper.size >= MANY_HYPER
        fits = not (model.fixed_factor or model.has_own_scales)
        return [Planned(joint, in_a_row=TIMES)] if by_sums and is_long and fits else []
    if model.fixed_factor or not model.field.hyper.size:
        return [Planned(joint, in_a_row=TIMES)]
    return [
        Planned(joint, share=BESIDE_OWN_SCALES if model.has_own_scales else 1.0),
        Planned(of_field),
    ]
