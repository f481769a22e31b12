"""Functions of a point in the coordinates of the field: φ, the prior, and derivatives of both."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad, pushforward

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.jit.pointers import OF_NUMBER_GRAPH, OF_VECTOR_GRAPH, address_of_graph
from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.coordinates import Coordinates
from pymc_minibatch.latent.smoothed_prior import without_kinks
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["Derivatives"]


class Derivatives:
    """Functions of a point in the coordinates of the field; compiled again where they are needed.

    Parameters
    ----------
    tall, structure
        The model and what its rows read.
    coordinates
        Which variables have others in their place.
    smooths
        Whether slope and curvature of the prior are those of one without kinks.
    angles
        Those whose weights are part of the prior.
    """

    def __init__(
        self,
        tall: TallModel,
        structure: RowStructure,
        coordinates: Coordinates | None = None,
        *,
        smooths: bool = True,
        angles: Angles | None = None,
    ) -> None:
        self.tall, self.structure, self.smooths = tall, structure, smooths
        self.coordinates = coordinates or Coordinates.none()
        self.angles = angles or Angles.none()

    def __getstate__(self) -> dict[str, Any]:
        """Leave compiled functions out."""
        names = ("tall", "structure", "coordinates", "smooths", "angles")
        return {name: getattr(self, name) for name in names}

    def with_kinks(self) -> "Derivatives":
        """Return the same functions, with the prior's own slope and curvature."""
        if self._smooth_prior is self._prior_graph:
            return self
        return Derivatives(
            self.tall, self.structure, self.coordinates, smooths=False, angles=self.angles
        )

    def with_weights(self, angles: Angles) -> "Derivatives":
        """Return the same functions, with the weights of angles in the prior."""
        return Derivatives(
            self.tall, self.structure, self.coordinates, smooths=self.smooths, angles=angles
        )

    def within(self, coordinates: Coordinates) -> "Derivatives":
        """Return the same functions in other coordinates, with those that are compiled."""
        other = Derivatives.__new__(Derivatives)
        other.__dict__ |= vars(self) | {"coordinates": coordinates}
        return other

    def phi(self, point: np.ndarray) -> np.ndarray:
        """Return φ."""
        return self._phi(self.coordinates.to_model(point))

    def push(self, point: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return ``Jφ · vector``."""
        to_model = self.coordinates.to_model
        return self._push(to_model(point), to_model(vector))

    def pull(self, point: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Return ``Jφᵀ · slope``: the gradient by the point of what has this slope by φ."""
        return self.coordinates.gradient(self._pull(self.coordinates.to_model(point), slope))

    def prior(self, point: np.ndarray) -> float:
        """Return the log prior."""
        return float(self._prior(self.coordinates.to_model(point)))

    def smooth_prior(self, point: np.ndarray) -> float:
        """Return the log prior without kinks, whose slope and curvature the others are."""
        if self._smooth_prior is self._prior_graph:
            return self.prior(point)
        return float(self._smooth_prior_value(self.coordinates.to_model(point)))

    def prior_gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient of the log prior without kinks, which is not for decisions."""
        slope = self._prior_gradient(self.coordinates.to_model(point))
        return self.coordinates.gradient(slope)

    def prior_product(self, point: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian of the log prior without kinks, times a vector."""
        to_model = self.coordinates.to_model
        return self.coordinates.gradient(self._prior_product(to_model(point), to_model(vector)))

    def are_finite(self, point: np.ndarray) -> bool:
        """Whether φ, the log prior and derivatives of both are finite at a point."""
        every = np.ones(point.size)
        with np.errstate(all="ignore"):
            seen = (
                self.phi(point),
                self.push(point, every),
                self.prior(point),
                self.prior_gradient(point),
                self.prior_product(point, every),
            )
        return all(bool(np.all(np.isfinite(each))) for each in seen)

    def addresses(self) -> tuple[np.ndarray, Any]:
        """Return those of φ, its push, the prior, its gradient and its product, all of the model.

        The second result has to stay alive as long as the addresses are used.
        """
        point = np.empty(self.tall.layout.size)
        functions = (
            (self._phi, OF_VECTOR_GRAPH, point),
            (self._push, OF_VECTOR_GRAPH, point, point),
            (self._prior, OF_NUMBER_GRAPH, point),
            (self._prior_gradient, OF_VECTOR_GRAPH, point),
            (self._prior_product, OF_VECTOR_GRAPH, point, point),
        )
        found = [
            address_of_graph(function.jitted, *arguments, returns=kind)
            for function, kind, *arguments in functions
        ]
        return np.array([address for address, _ in found]), [kept for _, kept in found]

    @made_once
    def _phi(self) -> CompiledFunction:
        return compile_numba([self.structure.flat], [self.structure.phi])

    @made_once
    def _push(self) -> CompiledFunction:
        vector: Any = pt.dvector("vector")
        flat, phi = self.structure.flat, self.structure.phi
        along: Any = pushforward(phi, flat, vector)
        return compile_numba([flat, vector], [along])

    @made_once
    def _pull(self) -> CompiledFunction:
        slope: Any = pt.dvector("slope")
        flat, phi = self.structure.flat, self.structure.phi
        pulled: Any = grad(pt.sum(phi * slope), flat, disconnected_inputs="ignore")
        return compile_numba([flat, slope], [pulled])

    @made_once
    def _prior_graph(self) -> Any:
        return self.angles.weighted(self.tall.prior_graph, self.tall.flat)

    @made_once
    def _prior(self) -> CompiledFunction:
        if self._prior_graph is self.tall.prior_graph:
            return self.tall.compiled_prior_logp
        return compile_numba([self.tall.flat], [self._prior_graph])

    @made_once
    def _smooth_prior(self) -> Any:
        prior, flat = self._prior_graph, self.tall.flat
        return without_kinks(prior, flat) if self.smooths else prior

    @made_once
    def _smooth_prior_value(self) -> CompiledFunction:
        return compile_numba([self.tall.flat], [self._smooth_prior])

    @made_once
    def _prior_gradient(self) -> CompiledFunction:
        return compile_numba([self.tall.flat], [self._prior_slope])

    @made_once
    def _prior_product(self) -> CompiledFunction:
        flat, vector = self.tall.flat, pt.dvector("vector")
        slope = pt.sum(self._prior_slope * vector)
        product: Any = grad(slope, flat, disconnected_inputs="ignore")
        return compile_numba([flat, vector], [product])

    @property
    def _prior_slope(self) -> Any:
        return grad(self._smooth_prior, self.tall.flat, disconnected_inputs="ignore")
