"""Find the posterior mode, and what a Taylor expansion about it needs, in a few passes.

The mode is found on a subsample of the rows, then polished on all of them by Newton steps with the
subsample's Hessian. The last pass sums gradient and Hessian over all rows. The control variates
built on it are right for any reference point; a poor one only makes batches larger.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Variable
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize

from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.compiled import compile_numba

__all__ = ["NoReferenceError", "Reference", "find_reference"]

SUBSAMPLE = 20_000
CHUNK_ROWS = 2**12
NEWTON_STEPS = 10
TOLERANCE = 1e-3
"""Newton steps end when one is shorter than this many posterior standard deviations."""


FAR = 3.0
LEAST_FALL = 0.1
"""At 3 standard deviations the log-density must have fallen by this much (a Gaussian's: 4.5)."""

_ARRAYS = ("flat", "gradient", "hessian", "prior_hessian")
_NUMBERS = ("temperature", "passes", "seconds")


class NoReferenceError(ValueError):
    """No reference point: the posterior has no proper mode; the message says how it failed."""


@dataclass(frozen=True)
class Reference:
    """A reference point and the Taylor expansion of the log-likelihood about it.

    Attributes
    ----------
    mode : dict of str to ndarray
        The reference point, as ``model.initial_point()`` gives points.
    flat : ndarray, shape (D,)
        The same, raveled in the order of the model's value variables.
    gradient : ndarray, shape (D,)
        Sum over all rows of the gradients of their log-likelihood at the mode.
    hessian : ndarray, shape (D, D)
        Sum over all rows of the Hessians of their log-likelihood at the mode.
    prior_hessian : ndarray, shape (D, D)
        Hessian of the prior part at the mode.
    temperature : float
        T of the posterior whose mode it is.
    passes : float
        Passes over all rows that were spent; a Hessian-vector product of all rows is one pass.
    seconds : float
        Time that was spent.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(1000.0) / 1000)
    ...     reference = pmb.find_reference()
    >>> reference.hessian.round(6).tolist()
    [[-1000.0]]
    """

    mode: Mapping[str, np.ndarray]
    flat: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    prior_hessian: np.ndarray
    temperature: float
    passes: float
    seconds: float

    def precision_at(self, temperature: float) -> np.ndarray:
        """Precision of the Gaussian approximation of the posterior at T, shape (D, D)."""
        return -(self.prior_hessian + self.hessian / temperature)

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance of the Gaussian approximation of the posterior, shape (D, D)."""
        return cho_solve(cho_factor(self.precision_at(self.temperature)), np.eye(self.flat.size))

    def save(self, path: str | Path) -> None:
        """Write to a NumPy ``.npz`` file."""
        arrays: dict[str, Any] = {f"mode/{name}": value for name, value in self.mode.items()}
        arrays |= {name: getattr(self, name) for name in (*_ARRAYS, *_NUMBERS)}
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Reference":
        """Read what :meth:`save` wrote."""
        with np.load(path) as stored:
            mode = {k.removeprefix("mode/"): stored[k] for k in stored if k.startswith("mode/")}
            fields: dict[str, Any] = {k: stored[k] for k in _ARRAYS}
            fields |= {k: float(stored[k]) for k in _NUMBERS}
        return cls(mode=mode, **fields)


def find_reference(
    model: Model | None = None,
    *,
    data: Any = None,
    tall: TallModel | None = None,
    temperature: float = 1.0,
    random_seed: int = 0,
) -> Reference:
    """Find the posterior mode and expand the log-likelihood about it.

    Parameters
    ----------
    model : pymc.Model, optional
        The model; taken from the context if not given.
    data : mapping of str to array, optional
        Data in place of the model's own; see :class:`TallModel`.
    tall : TallModel, optional
        The model already split, to save doing it again.
    temperature : float, default 1.0
        T > 0; the likelihood counts with power 1/T.
    random_seed : int, default 0
        Chooses the subsample on which the search starts.

    Returns
    -------
    Reference

    Raises
    ------
    NoReferenceError
        If the search runs away (separation under a flat prior, say), or ends where the log-density
        is not concave.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(1000.0) / 1000)
    ...     reference = pmb.find_reference()
    >>> float(reference.mode["mu"].round(3)), float(reference.covariance[0, 0].round(6))
    (0.499, 0.001)
    """
    start = time.perf_counter()
    tall = TallModel(model, data=data) if tall is None else tall
    try:
        density = _Density(tall, temperature)
    except (NotImplementedError, NullTypeGradError) as error:
        raise NoReferenceError(
            f"the log-density cannot be differentiated twice: {error}"
        ) from error
    rng = np.random.default_rng(random_seed)
    size = min(SUBSAMPLE, tall.n_rows)
    sample = rng.choice(tall.n_rows, size, replace=False) if size < tall.n_rows else None
    theta = density.maximise(tall.layout.flatten(tall.model.initial_point()), sample)
    theta = density.polish(theta, sample)
    gradient, hessian = density.row_gradient(theta, None), density.row_hessian(theta, None)
    reference = Reference(
        mode=tall.layout.unflatten(theta),
        flat=theta,
        gradient=gradient,
        hessian=hessian,
        prior_hessian=density.prior_hessian(theta),
        temperature=temperature,
        passes=density.rows_read / tall.n_rows,
        seconds=time.perf_counter() - start,
    )
    _factor(reference.precision_at(temperature))  # refuses what is not concave
    return reference


class _Density:
    """Value, gradient and Hessian of the log-density, with rows read in chunks."""

    def __init__(self, tall: TallModel, temperature: float) -> None:
        self.tall, self.temperature = tall, temperature
        [flat, *batch], [term] = tall.batch_graph
        self._rows = _value_gradient_product(pt.sum(term), flat, batch)
        self._prior = _value_gradient_product(tall.prior_graph, tall.flat, [])
        self.rows_read = 0
        self.dim = tall.layout.size

    def row_sums(
        self, theta: np.ndarray, vector: np.ndarray, sample: np.ndarray | None
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Sum value, gradient and Hessian-vector product over all rows.

        Where a sample is given they are estimated from it.
        """
        n = self.tall.n_rows if sample is None else sample.size
        value, gradient, product = 0.0, np.zeros(self.dim), np.zeros(self.dim)
        for first in range(0, n, CHUNK_ROWS):
            chunk = slice(first, first + CHUNK_ROWS)
            where = chunk if sample is None else sample[chunk]
            batch = [np.array(values[where]) for values in self.tall.data]
            v, g, p = self._rows(theta, vector, *batch)
            value, gradient, product = value + float(v), gradient + g, product + p
        self.rows_read += n
        scale = self.tall.n_rows / n
        return scale * value, scale * gradient, scale * product

    def row_gradient(self, theta: np.ndarray, sample: np.ndarray | None) -> np.ndarray:
        return self.row_sums(theta, np.zeros(self.dim), sample)[1]

    def row_hessian(self, theta: np.ndarray, sample: np.ndarray | None) -> np.ndarray:
        columns = [self.row_sums(theta, e, sample)[2] for e in np.eye(self.dim)]
        hessian = np.array(columns)
        return (hessian + hessian.T) / 2

    def prior_hessian(self, theta: np.ndarray) -> np.ndarray:
        hessian = np.array([self._prior(theta, e)[2] for e in np.eye(self.dim)])
        return (hessian + hessian.T) / 2

    def value_gradient(
        self, theta: np.ndarray, sample: np.ndarray | None
    ) -> tuple[float, np.ndarray]:
        value, gradient, _ = self.row_sums(theta, np.zeros(self.dim), sample)
        prior_value, prior_gradient, _ = self._prior(theta, np.zeros(self.dim))
        return (
            float(prior_value) + value / self.temperature,
            prior_gradient + gradient / self.temperature,
        )

    def hessian(self, theta: np.ndarray, sample: np.ndarray | None) -> np.ndarray:
        return self.prior_hessian(theta) + self.row_hessian(theta, sample) / self.temperature

    def maximise(self, theta: np.ndarray, sample: np.ndarray | None) -> np.ndarray:
        """Find the mode on a sample of the rows."""

        def loss(t: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.value_gradient(t, sample)
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                return 1e300, np.zeros(self.dim)
            return -value, -gradient

        try:
            found = minimize(
                loss,
                theta,
                jac=True,
                hess=lambda t: -self.hessian(t, sample),
                method="trust-exact",
                options={"maxiter": 200, "initial_trust_radius": 1.0, "max_trust_radius": 100.0},
            )
        except (ValueError, LinAlgError) as error:  # derivatives that are not finite
            raise NoReferenceError(f"the search for the posterior mode failed: {error}") from error
        if not np.isfinite(found.x).all() or np.abs(found.x).max() > 1e6:
            raise NoReferenceError("the search for the posterior mode ran off to infinity")
        return found.x

    def check_falls_off(
        self, theta: np.ndarray, precision: np.ndarray, sample: np.ndarray | None
    ) -> None:
        """Refuse a mode at infinity, which looks like one where the log-density is just flat."""
        cholesky = np.linalg.cholesky(np.linalg.inv(precision))
        peak, _ = self.value_gradient(theta, sample)
        for direction in np.vstack([cholesky.T, -cholesky.T]):
            value, _ = self.value_gradient(theta + FAR * direction, sample)
            if peak - value < LEAST_FALL:
                blamed = self.tall.layout.name_of(int(np.argmax(np.abs(direction))))
                raise NoReferenceError(
                    f"the log-density does not fall off from its mode, mostly in {blamed}: the "
                    "data do not determine it (separation, say) and its prior does not either"
                )

    def polish(self, theta: np.ndarray, sample: np.ndarray | None) -> np.ndarray:
        """Move to the mode of all rows, by Newton steps with the sample's Hessian."""
        precision = -self.hessian(theta, sample)
        factor = _factor(precision)
        self.check_falls_off(theta, precision, sample)
        for _ in range(NEWTON_STEPS):
            _, gradient = self.value_gradient(theta, None)
            step = cho_solve(factor, gradient)
            theta = theta + step
            if step @ gradient < TOLERANCE**2:
                return theta
        raise NoReferenceError("the search for the mode of all rows does not come to an end")


def _factor(precision: np.ndarray) -> tuple[np.ndarray, bool]:
    try:
        return cho_factor(precision)
    except (LinAlgError, ValueError):  # ValueError: it is not finite
        raise NoReferenceError(
            "the log-density is not concave where the search for its mode ended"
        ) from None


def _value_gradient_product(
    total: Variable, flat: Variable, batch: list[Variable]
) -> Callable[..., tuple[np.ndarray, ...]]:
    """Compile ``(point, vector, *batch) -> (value, gradient, Hessian-vector product)``."""
    vector = pt.dvector("vector")
    gradient: Any = grad(total, flat, disconnected_inputs="ignore")
    product: Any = grad(pt.sum(gradient * vector), flat, disconnected_inputs="ignore")
    return compile_numba([flat, vector, *batch], [total, gradient, product]).jitted
