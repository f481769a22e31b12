"""Moves of a latent field if sums over the rows are sufficient statistics, so that none is read.

The surrogate is the posterior then (:mod:`.sums`), and what it accepts is accepted.
"""

from functools import cached_property

from pymc_minibatch.latent.moves.decisions import ExactDecisions
from pymc_minibatch.latent.sampler import LatentSampler

__all__ = ["ExactSampler"]


class ExactSampler(LatentSampler):
    """Moves that need no row."""

    presumes = "sums over the rows are sufficient statistics, each row quadratic in its predictor"

    @cached_property
    def decisions(self) -> ExactDecisions:
        """What decides on moves."""
        return ExactDecisions(self.reference.surrogate)

    def describe(self) -> str:
        """Say in words what moves how."""
        return f"sums over the rows are sufficient statistics; {super().describe()}"
