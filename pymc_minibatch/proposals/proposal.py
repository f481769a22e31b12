"""What every proposal is given and gives."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Approximation", "Proposal"]


class Approximation(NamedTuple):
    """Gaussian approximation of the posterior of the sampled parameters, given the others.

    Attributes
    ----------
    mode : ndarray, shape (D,)
        Its mean.
    precision : ndarray, shape (D, D)
        The inverse of its covariance.
    """

    mode: np.ndarray
    precision: np.ndarray


class Proposal(Protocol):
    """A way to move. Its state is a NamedTuple of arrays, which jitted code changes in place."""

    def initial_state(
        self, dim: int, default_variance: float, approximation: Approximation | None = None
    ) -> Any:
        """Return the state before tuning, for `dim` parameters."""

    def build(self) -> tuple[Callable[..., float], Callable[..., None]]:
        """Return jitted functions.

        ``propose(rng, theta, proposal, state)`` writes a proposal and returns
        ``log q(theta | proposal) - log q(proposal | theta)``; ``adapt(theta, accepted, state)`` is
        called after each transition while the chain tunes.
        """

    def end_draw(self, state: Any) -> None:
        """Adapt what is too costly to adapt at each transition; called while the chain tunes."""

    def scale(self, state: Any) -> float:
        """Return the length of the moves, for the sample stats."""

    @property
    def jit_options(self) -> tuple[Any, ...]:
        """What the jitted functions depend on."""
