"""The right log ratio of a move, and what the sampler makes of it.

For a move θ → θ' of any kind the log ratio that Metropolis-Hastings needs is

    R = log π(θ') − log π(θ) + log q(θ | θ') − log q(θ' | θ),

with log π the model's own log-density (:mod:`pymc_minibatch.tall.model_density`) and q the density
of the proposal, here computed from its definition. What the sampler computes by its shortcuts, with
all rows in place of a batch, must be the same number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["AGREES", "Comparison", "SurpriseError", "rounding"]

AGREES = 1e-6
"""|R̂ − R| ≤ AGREES (1 + |R|), besides rounding: no acceptance probability is off by more."""

HOPELESS = -40.0
"""Moves whose log ratio is below this by both are never accepted (e⁻⁴⁰), nor compared closer; by
the model's own, as far as rounding leaves it open."""

ROUNDING = 3e-13
"""Relative error of a sum over rows, as NumPy sums in pairs: some log₂ N units in the last place,
with room for terms that cancel within a row."""


class Comparison(NamedTuple):
    """One move, compared.

    Attributes
    ----------
    move : str
        Its kind.
    names : tuple of str
        The variables that it changes.
    rests_on : str
        What the sampler presumes where it computes the log ratio of such moves.
    log_ratio, expected : float
        R̂ and R.
    rounding : float
        How far apart rounding alone may put them.
    says : str
        What is wrong if they differ, in words; by default that log ratios do.
    """

    move: str
    names: tuple[str, ...]
    rests_on: str
    log_ratio: float
    expected: float
    rounding: float
    says: str = ""

    @property
    def error(self) -> float:
        """|R̂ − R| / (1 + |R|), what rounding explains left out; 0 where both are hopeless."""
        if np.isnan(self.expected):  # both points are impossible, and so is the move
            return 0.0
        found, right = _number(self.log_ratio), self.expected
        if max(found, right - self.rounding) < HOPELESS:
            return 0.0
        if not np.isfinite(found + right):
            return np.inf if found != right else 0.0
        return max(0.0, abs(found - right) - self.rounding) / (1.0 + abs(right))

    @property
    def agrees(self) -> bool:
        """Whether they are the same."""
        return bool(self.error <= AGREES)

    def complaint(self) -> str:
        """Say what differs, and what the sampler presumed."""
        if self.says:
            return self.says
        names = ", ".join(self.names[:5]) + (", ..." if len(self.names) > 5 else "")
        return (
            f"A move of {names} ({self.move}) has the log ratio {self.log_ratio:.6g}, but the "
            f"model's own log-density gives {self.expected:.6g}. The sampler assumes here that "
            f"{self.rests_on}, which does not hold for this model"
        )


class SurpriseError(Exception):
    """A move whose log ratio is not the model's."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.complaint())
        self.comparison = comparison


def rounding(n_rows: int, log_densities: Sequence[float]) -> float:
    """Return how far rounding may put log ratios apart, given log-densities of their points."""
    sizes = [abs(value) for value in log_densities if np.isfinite(value)]
    return ROUNDING * (sum(sizes) + n_rows)


def _number(value: float) -> float:
    return -np.inf if np.isnan(value) else value
