"""Trajectories that read all rows, for posteriors that batches do not serve.

A mixture within each row, a product of unknowns or a ridge that bends may leave nothing to win:
decisions read all rows, and moves that are made for the neighbourhood of a mode come nowhere. From
where such a chain is, the No-U-Turn sampler (Hoffman and Gelman, 2014), as PyMC has it, goes on: on
the model's own log-density, and on what is left of tuning.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection
from pymc.step_methods.hmc.quadpotential import (
    QuadPotential,
    QuadPotentialDiagAdapt,
    QuadPotentialFullAdapt,
)
from pymc.util import RandomGeneratorState
from scipy.linalg import solve_triangular

from pymc_minibatch.steps.mixing import Mixing
from pymc_minibatch.tall.model import TallModel
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness.comparison import Comparison, rounding
from pymc_minibatch.witness.witness import Look

__all__ = [
    "Trajectories",
    "TrajectoryLook",
    "trajectories_of_draw",
]

MOST_DENSE, MOST_WHITENED = 50, 1000
"""Parameters up to which correlations are learnt, beside variances: PyMC's first window has some
100 draws, of which covariances of more parameters would be singular or nearly so. Up to so many,
the correlations that are known are kept, and variances are learnt in coordinates without them."""

WEIGHT = 10
"""Draws that the covariance with which trajectories begin counts for, as in PyMC."""


UPDATED_EVERY = 10
"""Draws of tuning after which correlations are learnt anew."""

SETTLED = 100
"""Draws of tuning before which decisions tell nothing of those to come."""

GRADIENT = 2.0
"""What a row and its gradient cost, relative to two rows, as which the stats count them."""

AFFORDABLE = 1e10
"""Rows that trajectories of a chain may read where nothing else has a result: a few minutes, with
3e-8 s for a row and its gradient, which count for four."""


def trajectories_of_draw(mixing: Mixing, n_draws: int) -> int:
    """Return how many trajectories make a draw: until draws are nearly independent, if affordable.

    Parameters
    ----------
    mixing
        What is known of draws of tuning along trajectories.
    n_draws : int
        Draws that are to be made.
    """
    if len(mixing.draws) < SETTLED:
        return 1
    affordable = AFFORDABLE / (max(n_draws, 1) * GRADIENT * mixing.cost)
    return max(1, min(mixing.longest_lag, int(affordable)))


class Trajectories:
    """The No-U-Turn sampler for the variables of a step.

    Parameters
    ----------
    tall
        The model.
    names : sequence of str
        The value variables that move.
    active : ndarray of int64, shape (d,)
        Their positions in a flat point.
    start : ndarray, shape (D,)
        Current point of the chain.
    covariance : ndarray, shape (d, d) or (d,)
        Of the posterior, or variances, as far as they are known.
    """

    def __init__(
        self,
        tall: TallModel,
        names: Sequence[str],
        *,
        active: np.ndarray,
        start: np.ndarray,
        covariance: np.ndarray,
    ) -> None:
        self.tall, self.active, self.names = tall, active, tuple(names)
        values = {value.name: value for value in tall.model.value_vars}
        point = tall.layout.unflatten(start)
        with tall.model:
            self.nuts = pm.NUTS(
                [values[name] for name in names],
                model=tall.model,
                potential=_potential(start[active], covariance),
                initial_point=point,
            )

    def draw_with_stats(
        self, flat: np.ndarray, rng: np.random.Generator, tune: bool, n_trajectories: int = 1
    ) -> dict[str, Any]:
        """Move a point along trajectories, and return the stats of :class:`MinibatchMH`."""
        made = [self.draw(flat, rng, tune) for _ in range(n_trajectories)]
        read = sum(int(each["tree_size"]) for each in made) * self.tall.n_rows
        return {
            "acceptance_rate": float(np.mean([each["mean_tree_accept"] for each in made])),
            "n_likelihood": read,
            "n_gradient": read,
            "n_scanned": 0,
            "batch_size": float(self.tall.n_rows),
            "log_ratio_var": 0.0,
            "test_error": 0.0,
            "exact": True,
            "diverging": any(each["diverging"] for each in made),
            "scale": made[-1]["step_size"],
            "warning": None,
        }

    def draw(self, flat: np.ndarray, rng: np.random.Generator, tune: bool) -> dict[str, Any]:
        """Move a flat point along a trajectory, in place; return PyMC's stats of it."""
        if self.nuts.tune and not tune:
            self.nuts.stop_tuning()
        self.nuts.rng = self.nuts.potential.rng = rng
        point, [stats] = self.nuts.step(self.tall.layout.unflatten(flat))
        moved = self.tall.layout.flatten(point)
        flat[self.active] = moved[self.active]
        return stats

    @property
    def state(self) -> dict[str, Any]:
        """What it has learnt, in plain values and arrays."""
        return _plain(self.nuts.sampling_state)

    @state.setter
    def state(self, stored: Mapping[str, Any]) -> None:
        self.nuts.sampling_state = _filled(self.nuts.sampling_state, stored)


class TrajectoryLook(Look):
    """Compares the density that trajectories move on with the model's own."""

    def __init__(self, density: ModelDensity, trajectories: Trajectories) -> None:
        self.density, self.trajectories = density, trajectories

    def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
        """Compare the ends of one leapfrog step."""
        nuts, layout = self.trajectories.nuts, self.density.tall.layout
        nuts.potential.rng = rng
        values = layout.unflatten(point)
        for name, shared in nuts.shared.items():
            shared.set_value(values[name])
        start = nuts.integrator.compute_state(
            DictToArrayBijection.map({name: values[name] for name in self.trajectories.names}),
            nuts.potential.random(),
        )
        end = nuts.integrator.step(float(nuts.step_size), start)
        moved = layout.flatten({**values, **DictToArrayBijection.rmap(end.q)})
        before, after = self.density(point), self.density(moved)
        yield Comparison(
            move="along a trajectory",
            names=self.trajectories.names,
            rests_on="PyMC's function of the log-density and its gradient is that of the model",
            log_ratio=float(end.model_logp - start.model_logp),
            expected=after - before,
            rounding=rounding(self.density.tall.n_rows, [before, after]),
        )


class WhitenedPotential(QuadPotentialDiagAdapt):
    """Variances are learnt along z = L⁻¹θ, where L Lᵀ is a known covariance.

    Parameters
    ----------
    start : ndarray, shape (d,)
        Current point of the chain.
    cholesky : ndarray, shape (d, d)
        L.
    """

    def __init__(self, start: np.ndarray, cholesky: np.ndarray) -> None:
        self.cholesky = np.ascontiguousarray(cholesky)
        self.whiten = solve_triangular(cholesky, np.eye(len(cholesky)), lower=True)
        super().__init__(len(start), self.whiten @ start, np.ones(len(start)), WEIGHT)

    def velocity(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the velocity of a momentum."""
        found: np.ndarray = np.dot(self.cholesky, super().velocity(x @ self.cholesky), out=out)
        return found

    def energy(self, x: np.ndarray, velocity: np.ndarray | None = None) -> float:
        """Return the kinetic energy of a momentum."""
        return 0.5 * float(x @ (self.velocity(x) if velocity is None else velocity))

    def random(self) -> np.ndarray:
        """Draw a momentum."""
        return np.asarray(super().random() @ self.whiten)

    def update(self, sample: np.ndarray, grad: np.ndarray, tune: bool) -> None:
        """Take note of a draw."""
        super().update(self.whiten @ sample, grad @ self.cholesky, tune)


def _potential(start: np.ndarray, covariance: np.ndarray) -> QuadPotential:
    if covariance.ndim == 2 and MOST_DENSE < len(start) <= MOST_WHITENED:
        return WhitenedPotential(start, np.linalg.cholesky(covariance))
    if covariance.ndim == 2 and len(start) <= MOST_DENSE:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "QuadPotentialFullAdapt is an experimental feature")
            return QuadPotentialFullAdapt(
                len(start), start, covariance, WEIGHT, update_window=UPDATED_EVERY
            )
    variances = np.diagonal(covariance) if covariance.ndim == 2 else covariance
    return QuadPotentialDiagAdapt(len(start), start, variances.copy(), WEIGHT)


def _plain(state: Any) -> dict[str, Any]:
    """Return a state of PyMC's without generators, settings and traces."""
    kept = {each.name: getattr(state, each.name) for each in fields(state) if _varies(each)}
    return {
        name: _plain(value) if is_dataclass(value) else value
        for name, value in kept.items()
        if not isinstance(value, RandomGeneratorState | list)
    }


def _filled(state: Any, stored: Mapping[str, Any]) -> Any:
    """Put what :func:`_plain` has kept back into a state."""
    parts = {
        name: _filled(getattr(state, name), value) if isinstance(value, Mapping) else value
        for name, value in stored.items()
    }
    return replace(state, **parts)


def _varies(each: Any) -> bool:
    return not each.metadata.get("frozen", False)
