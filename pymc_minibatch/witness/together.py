"""Moves of all variables at once, compared with the model's own density.

The kernel that makes the chain's transitions makes one more from a copy of the point, with the
tuned proposal and random numbers of its own, and leaves there what it proposed and the log ratio
without rows. All rows are added by the compiled function that decisions read them by. The densities
of the proposal are computed from its definition, in NumPy, from the same random numbers.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_minibatch.kernels.metropolis import Totals
from pymc_minibatch.proposals import Laplace, RandomWalk, SurrogateHamiltonian
from pymc_minibatch.proposals.bandit import chosen
from pymc_minibatch.proposals.guided import ALONG_AXES, Guide, walk_share
from pymc_minibatch.proposals.proposal import Proposal
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.tall.passes import over_chunks
from pymc_minibatch.witness.batches import Batch, Probabilities, compare_batches
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.witness import Look

__all__ = ["JointMove", "MovesTogether"]


class JointMove(NamedTuple):
    """A move as the kernel made it.

    Attributes
    ----------
    proposed : ndarray, shape (D,)
        θ'.
    log_q : float
        Its log ratio of proposal densities.
    without_rows : float
        That and prior and expansion: the log ratio before any row is read.
    totals : Totals, optional
        What the decision on it has read.
    """

    proposed: np.ndarray
    log_q: float
    without_rows: float
    totals: Totals | None = None


class Kernel(Protocol):
    """What makes one transition from a copy of a point; see :class:`MovesTogether`."""

    def __call__(self, rng: np.random.Generator, point: np.ndarray) -> JointMove:
        """Make it."""


class Batches(Protocol):
    """What draws batches as decisions on moves from a point do; see :class:`MovesTogether`."""

    def __call__(
        self, rng: np.random.Generator, point: np.ndarray
    ) -> tuple[list[Batch], Probabilities | None]:
        """Return them and the probabilities of rows; None for all the same."""


class MovesTogether(Look):
    """What is compared where all variables move at once.

    Parameters
    ----------
    density
        The model's own.
    make
        Makes one transition from a copy of a point.
    row
        ``(here, there, constants, batch) -> (2, b)``, as decisions read rows.
    constants, data
        What it reads.
    active : ndarray of int64
        Positions of the variables that move.
    proposal, state, guide
        The proposal, as it was tuned.
    prior_gradient
        Of the log prior, at a point; needed by proposals with gradients.
    drawn
        ``(here, there)`` gives which rows can be drawn for a decision on a move, shape (N,); None
        for all of them.
    rests_on : str
        What the sampler presumes.
    batches
        Draws batches; None where none are looked at.
    """

    def __init__(
        self,
        density: ModelDensity,
        make: Kernel,
        row: Callable[..., np.ndarray],
        constants: Any,
        data: tuple[np.ndarray, ...],
        active: np.ndarray,
        proposal: Proposal,
        state: Any,
        guide: Any,
        prior_gradient: Callable[[np.ndarray], np.ndarray] | None,
        drawn: Callable[[np.ndarray, np.ndarray], "np.ndarray | None"],
        rests_on: str,
        batches: Batches | None = None,
    ) -> None:
        self.batches = batches
        self.density, self.make, self.row = density, make, row
        self.constants, self.data, self.active = constants, data, active
        self.proposal, self.state, self.guide = proposal, state, guide
        self.prior_gradient, self.drawn, self.rests_on = prior_gradient, drawn, rests_on

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare one move from a point."""
        seed = int(rng.integers(2**63))
        move = self.make(np.random.default_rng(seed), point)
        log_q = self._log_q(np.random.default_rng(seed), point, move)
        before, after = self.density(point), self.density(move.proposed)
        n_rows, of_rows = self.density.tall.n_rows, 0.0
        if np.isfinite(move.without_rows):
            of_rows = self._of_rows(point, move.proposed) / self.density.temperature
        yield Comparison(
            move=f"all at once, {type(self.proposal).__name__}",
            names=self._names,
            rests_on=self.rests_on,
            log_ratio=move.without_rows + of_rows,
            expected=after - before + log_q,
            rounding=rounding(n_rows, [before, after, move.without_rows, of_rows]),
        )

    def look_at_batches(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare batches that decisions on moves from a point draw."""
        if self.batches is not None:
            batches, drawn_by = self.batches(rng, point)
            yield from compare_batches(batches, drawn_by, self.density.tall.n_rows, self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.density.tall.layout.names_of(self.active)

    def _of_rows(self, here: np.ndarray, there: np.ndarray) -> float:
        """Sum what decisions read of each row, of those that they may ever read."""
        drawn = self.drawn(here, there)
        if drawn is not None and not drawn.any():
            return 0.0

        def total(first: int, *batch: np.ndarray) -> float:
            terms = self.row(here, there, self.constants, batch)
            with np.errstate(invalid="ignore"):
                changes = np.where(terms[1] < np.inf, terms[1], -np.inf) - terms[0]
            if drawn is not None:
                changes = changes[drawn[first : first + changes.size]]
            return float(np.sum(changes))

        return float(sum(part for _, part in over_chunks(total, self.data, numbered=True)))

    def _log_q(self, rng: np.random.Generator, here: np.ndarray, move: JointMove) -> float:
        """Return log q(θ | θ') − log q(θ' | θ) from the definition of the proposal."""
        if isinstance(self.proposal, RandomWalk):
            return 0.0
        if not isinstance(self.proposal, Laplace | SurrogateHamiltonian):
            return move.log_q  # of a proposal that is not of this package
        guide, proposal = self.guide, self.proposal
        z = np.linalg.solve(guide.cholesky, here[self.active] - guide.mode)
        moved = np.linalg.solve(guide.cholesky, move.proposed[self.active] - guide.mode)
        shares = [walk_share(part, proposal.random_walk) for part in (z, moved)]
        if rng.random() < shares[0]:
            if guide.axes.size and rng.random() < ALONG_AXES:
                return self._along_axis(here, move.proposed) + math.log(shares[1] / shares[0])
            return math.log(shares[1] / shares[0])
        kept = math.log((1.0 - shares[1]) / (1.0 - shares[0]))
        if isinstance(proposal, Laplace):
            return kept + 0.5 * float(moved @ moved - z @ z)
        setting = self.state.settings[chosen(rng, self.state)]
        momentum = rng.standard_normal(z.size)
        start = 0.5 * float(momentum @ momentum)
        end = self._leapfrog(setting, z, momentum, here)
        return kept + start - 0.5 * float(end @ end)

    def _along_axis(self, here: np.ndarray, there: np.ndarray) -> float:
        """Return the log ratio of cosh t, t = arsinh of a deviation in sds, where an axis walks."""
        guide: Guide = self.guide
        [*moved] = np.flatnonzero(here[self.active] != there[self.active])
        if len(moved) != 1:
            return -math.inf  # it would have gone too far, and stays
        i = moved[0]
        sd = float(np.linalg.norm(guide.cholesky[i]))
        ends = [(point[self.active][i] - guide.mode[i]) / sd for point in (here, there)]
        return float(np.diff(np.log(np.cosh(np.arcsinh(ends))))[0])

    def _leapfrog(
        self, setting: np.ndarray, z: np.ndarray, p: np.ndarray, point: np.ndarray
    ) -> np.ndarray:
        """Return the momentum at the end of a trajectory under the surrogate.

        The Gaussian part is integrated exactly, by turns; what the surrogate has beyond it kicks.
        """
        n_steps = int(setting[0]) - 1
        h = setting[1] / n_steps
        turn = np.array([[math.cos(h), math.sin(h)], [-math.sin(h), math.cos(h)]])
        p = p + 0.5 * h * self._force(z, point)
        for step in range(n_steps):
            z, p = turn @ np.array([z, p])
            p = p + (h if step < n_steps - 1 else 0.5 * h) * self._force(z, point)
        return p

    def _force(self, z: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return ∇u(z): what the log surrogate has beside −|z|²/2."""
        guide: Guide = self.guide
        assert self.prior_gradient is not None
        there = point.copy()
        there[self.active] = guide.mode + guide.cholesky @ z
        slope = self.prior_gradient(there)[self.active] + guide.slope
        slope = slope + guide.curvature @ (there - guide.reference)
        return guide.cholesky.T @ slope + z
