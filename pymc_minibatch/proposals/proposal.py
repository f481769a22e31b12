"""What every proposal is given and gives."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from pymc_minibatch.reference.control_variate import ControlVariate

__all__ = ["Approximation", "Proposal", "ProposalContext", "approximate"]


class Approximation(NamedTuple):
    """The log-density to second order about a reference point, for the d sampled of D parameters.

    Attributes
    ----------
    mode : ndarray, shape (d,)
        Mean of the Gaussian approximation of the posterior.
    precision : ndarray, shape (d, d)
        The inverse of its covariance, given the other parameters.
    reference : ndarray, shape (D,)
        The point about which the log-likelihood is expanded.
    slope : ndarray, shape (d,)
        Gradient of the log-likelihood there, divided by T.
    curvature : ndarray, shape (d, D)
        Rows of its Hessian there, divided by T.
    heavy : ndarray of int64
        Which of the d have a heavier tail than a Gaussian's.
    """

    mode: np.ndarray
    precision: np.ndarray
    reference: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    heavy: np.ndarray = np.empty(0, dtype=np.int64)


def approximate(
    control: ControlVariate, active: np.ndarray, heavy: Sequence[int] | np.ndarray = ()
) -> Approximation:
    """Return the approximation for some of the parameters, given the others.

    Of all parameters those at the positions `heavy` have heavy tails.
    """
    reference, temperature = control.gaussian, control.temperature
    return Approximation(
        mode=reference.center[active],
        precision=control.precision(active),
        reference=reference.flat,
        slope=reference.gradient[active] / temperature,
        curvature=reference.curvature[active] / temperature,
        heavy=np.flatnonzero(np.isin(active, heavy)),
    )


class ProposalContext(NamedTuple):
    """The point and state in which a move is made.

    Attributes
    ----------
    guide
        What the proposal knows of the posterior; see :meth:`Proposal.guide`.
    point : ndarray, shape (D,)
        All parameters. Those that are sampled may be overwritten.
    active : ndarray of int64, shape (d,)
        Positions of the sampled parameters in it.
    """

    guide: Any
    point: np.ndarray
    active: np.ndarray


class Proposal(Protocol):
    """A way to move. Its state is a NamedTuple of arrays, which jitted code changes in place."""

    needs_prior_gradient: ClassVar[bool]
    """Whether moves call the gradient of the prior part, ``(point,) -> array``, by address."""

    def initial_state(
        self, dim: int, default_variance: float, approximation: Approximation | None = None
    ) -> Any:
        """Return the state before tuning, for `dim` parameters."""

    def guide(
        self, approximation: Approximation | None, prior_gradient: int = 0
    ) -> tuple[Any, ...]:
        """Return what moves read and nothing changes."""

    def build(self) -> tuple[Callable[..., float], Callable[..., None]]:
        """Return jitted functions.

        ``propose(rng, theta, candidate, state, place)`` writes a candidate and returns
        ``log q(theta | candidate) - log q(candidate | theta)``; ``adapt(rng, theta, accepted,
        cost, state)`` is called after each transition while the chain tunes, with the rows it read.
        """

    def end_draw(self, state: Any) -> None:
        """Adapt what is too costly to adapt at each transition; called while the chain tunes."""

    def end_tuning(self, state: Any) -> None:
        """Fix the results of tuning."""

    def scale(self, state: Any) -> float:
        """Return the length of the moves, for the sample stats."""

    @property
    def jit_options(self) -> tuple[Any, ...]:
        """What the jitted functions depend on."""
