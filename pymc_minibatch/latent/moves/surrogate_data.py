"""Hyperparameters move, and what rows read stays near where it is.

With η held (:mod:`.noncentered`), every predictor moves by about its standard deviation, and what
the Gaussian of the field does not say of the rows adds up over all effects. With predictors held
(:mod:`.centered`), the field cannot move at all along what rows do not see, such as the shares of
two effects that are added. Between the two, draw surrogate data u of what rows read,

    u | φ ~ N(φ, ε² G⁻¹),   G the size of the diagonal of the curvature of the rows,

and hold η in the Gaussian that the field has given u, the rows and h. Then φ moves by some ε
standard deviations, and the field along all else by as much as h asks for. The log ratio is that of
:mod:`.noncentered`, with log N(u; φ', ε² G⁻¹) − log N(u; φ, ε² G⁻¹).

Reference
---------
Murray and Adams (2010), Slice sampling covariance hyperparameters of latent Gaussian models,
section 4.
"""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_minibatch.latent.conditional import Conditional, Frame
from pymc_minibatch.latent.moves import kernels
from pymc_minibatch.latent.moves.kernels import whitened
from pymc_minibatch.latent.moves.protocol import (
    EffectsModel,
    Planned,
    Proposal,
    Setting,
    TurningMove,
)
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.surrogate import Surrogate

__all__ = ["Data", "WithSurrogateData", "plan"]

TIMES = 2
"""How often in a scan, at most."""

PRECISION = 16.0
"""ε⁻², in units of what the rows say."""


class Data(NamedTuple):
    """Surrogate data.

    Attributes
    ----------
    noise : ndarray, shape (P,)
        √G (u − φ) / ε.
    pull : ndarray, shape (P,)
        G (u − φ̂) / ε², the slope that they add about φ̂.
    """

    noise: np.ndarray
    pull: np.ndarray


class WithSurrogateData(TurningMove):
    """Moves of all h with η held, given surrogate data."""

    name, words, counts_as = (
        "surrogate data",
        "hyperparameters, effects following surrogate data",
        "hyper",
    )

    def __init__(self, model: EffectsModel) -> None:
        self.model, self.tails, self.overhead = model, model.tails, model.overhead
        self._given: list[tuple[np.ndarray, Conditional]] = []

    @cached_property
    def precision(self) -> np.ndarray:
        """G / ε², shape (P,)."""
        rows, curvature = self.model.field.rows, self.model.surrogate.expansion.curvature
        precision = np.zeros(self.model.surrogate.expansion.at.size)
        rows.put(precision, curvature.dense.diagonal(), np.einsum("gii->gi", curvature.blocks))
        return PRECISION * np.abs(precision)

    @cached_property
    def surrogate(self) -> Surrogate:
        """The rows' Gaussian, with that of data about φ̂."""
        model = self.model.surrogate
        nearer = model.expansion.curvature.damped(PRECISION)
        expansion = replace(model.expansion, curvature=nearer)
        return Surrogate(model.tall, model.field, expansion, model.center)

    def data(self, rng: np.random.Generator, phi: np.ndarray) -> Data:
        """Draw them, where rows read φ."""
        noise, sd = rng.standard_normal(phi.size), np.sqrt(self.precision)
        away = phi - self.model.surrogate.expansion.at
        return Data(noise, self.precision * away + sd * noise)

    def given(self, hyper: np.ndarray) -> Conditional:
        """Return the Gaussian of the field given h, with data at φ̂, from memory if it is new."""
        for known, conditional in self._given:
            if np.array_equal(known, hyper):
                return conditional
        return self.surrogate.factored_later(hyper)

    def frame(self, given: Conditional, data: Data) -> Frame:
        """Return the coordinates η of the field given data."""
        slope = self.model.field.rows.split(data.pull)
        of_data = given.projector.transposed(*slope)
        step = given.factor.solve(given.slope[0] + of_data[0], given.slope[1] + of_data[1])
        origin, layout = given.here.copy(), given.layout
        dense, groups = layout.split(origin)
        layout.put(origin, dense + step[0], groups + step[1])
        return Frame(layout, origin, given.factor)

    def log_density_ratio(self, data: Data, moved: np.ndarray) -> float:
        """Return log N(u; φ', ε² G⁻¹) − log N(u; φ, ε² G⁻¹), where φ has moved."""
        noise = data.noise - np.sqrt(self.precision) * moved
        return 0.5 * float(data.noise @ data.noise - noise @ noise)

    def propose(
        self, rng: np.random.Generator, state: ChainState, target: None, setting: Setting
    ) -> Proposal:
        """Draw data, and turn or walk in the whitened coordinates of w."""
        scale, step_sizes = setting.scale, setting.tuners[self.name]
        phi = state.predictors.phi
        data, w = self.data(rng, phi), self.tails.from_hyper(state.hyper)
        z = whitened(w, scale)
        z_then, log_kernel, walks = kernels.moved_together(rng, z, step_sizes.angle)
        w_then = scale.mean + scale.cholesky @ z_then
        hyper = self.tails.to_hyper(w_then)
        given, then = self.given(state.hyper), self.given(hyper)
        self._given = [(state.hyper, given), (hyper, then)]
        proposed, log_jacobian = None, -np.inf
        if given.is_proper and then.is_proper:
            eta = self.frame(given, data).whiten(state.point)
            point = self.frame(then, data).color(eta)
            proposed = ChainState(state.surrogate, point)
            log_kernel += self.log_density_ratio(data, proposed.predictors.phi - phi)
            log_jacobian = given.log_determinant - then.log_determinant
            log_jacobian += self.tails.log_slope(w_then) - self.tails.log_slope(w)
        return Proposal(
            proposed,
            log_kernel,
            log_jacobian,
            step=z_then - z,
            learns=not walks,
            walks=walks,
            data=data,
        )


def plan(model: EffectsModel) -> list[Planned]:
    """Return how it enters a scan: if all rows decide and factorizations are cheap."""
    if not (model.field.hyper.size and model.has_determinant and model.has_slopes):
        return []
    return (
        []
        if model.fixed_factor or model.has_own_scales
        else [Planned(WithSurrogateData(model), in_a_row=TIMES, by_need=True)]
    )
