"""What a program is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.outcome import Clock
from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import Table

__all__ = ["CHAINS", "CannotError", "Job", "Run"]

CHAINS = 2


class CannotError(Exception):
    """A program cannot express a posterior; the message is what its cell says."""


@dataclass(frozen=True)
class Job:
    """One posterior for one program.

    Attributes
    ----------
    posterior
        The module of the posterior.
    table
        Its rows.
    clock
        Marks phases.
    length
        Multiple of the usual number of draws.
    """

    posterior: Any
    table: Table
    clock: Clock
    length: float = 1.0
    seed: int = 1

    def model(self) -> Any:
        """Build the model as a practitioner would: of PyMC, or of Bambi."""
        built = self.posterior.model(self.table)
        self.clock.mark("model")
        return built

    def pymc_model(self) -> Any:
        """Build the model; that of Bambi as PyMC's."""
        built = self.model()
        if hasattr(built, "backend"):
            if not built.built:
                built.build()
            built = built.backend.model
        return built

    def linear(self) -> Linear:
        """Return the posterior as a linear predictor.

        Raises
        ------
        CannotError
            If it is none.
        """
        if not hasattr(self.posterior, "linear"):
            raise CannotError("cannot express: not a generalised linear (mixed) model")
        return self.posterior.linear(self.table)


@dataclass(frozen=True)
class Run:
    """What a program found.

    Attributes
    ----------
    draws
        Arrays of shape (chain, draw, ...), by variable of the PyMC model; may be some of them.
    sampling
        Seconds of drawing alone, after tuning, which more draws would multiply; None for draws
        that cost next to nothing.
    rows_read
        Rows whose log-likelihood, gradient or directional derivative was evaluated.
    moments
        Means and standard deviations of variables, if there are no draws.
    """

    draws: Mapping[str, np.ndarray] = field(default_factory=dict)
    sampling: float | None = None
    rows_read: float | None = None
    moments: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def drawn(idata: Any, model: Any) -> dict[str, np.ndarray]:
    """Take the draws of a model's free variables out of a result."""
    posterior = idata["posterior"]
    names = [rv.name for rv in model.free_RVs]
    return {name: np.asarray(posterior[name].values) for name in names if name in posterior}
