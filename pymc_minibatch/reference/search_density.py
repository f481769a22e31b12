"""The log-density that a search for its mode evaluates, on some rows or all, and its scales."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import LinAlgError, cho_factor

from pymc_minibatch.jit.memory import require_memory
from pymc_minibatch.reference.derivatives import Derivatives, row_derivatives
from pymc_minibatch.reference.kinks import average_precision, has_kinks, outer_precision
from pymc_minibatch.reference.reference import NoReferenceError, prior_given
from pymc_minibatch.tall import TallModel

__all__ = ["ELSEWHERE", "MATRICES", "TRIAL_ROWS", "Rows", "SearchDensity"]

type Rows = Sequence[np.ndarray]

MATRICES = 6
"""Matrices of D × D that the search and what follows it keep at a time."""

KINK_ROUNDS = 2
"""How often the curvature of rows with kinks is averaged, over the scale found last."""

UNITS_OF_ORDER_ONE = 100.0
"""Coordinates whose scale is within this factor of one are searched as they are; the others in
powers of ten."""

UNIT_ROWS = 100
"""The units of the coordinates are taken from so many rows."""

FLAT = 1e-3
"""Rows whose curvature is below this share of the square of their slope have none that tells."""

TRIAL_ROWS = 2000
"""Rows on which kinks and other modes are looked for."""

ELSEWHERE = "A search from elsewhere may find a mode: pass reference=pmb.find_reference(start=...)"


class SearchDensity:
    """Value, gradient and Hessian of the log-density, with rows read in chunks."""

    def __init__(
        self, tall: TallModel, temperature: float, progressbar: bool, start: np.ndarray
    ) -> None:
        self.tall, self.temperature, self.progressbar = tall, temperature, progressbar
        self._prior = Derivatives(prior_given(tall, start), tall.flat)
        self.rows = row_derivatives(tall)
        self.rows_read = 0
        self.dim = tall.layout.size
        require_memory(
            8.0 * MATRICES * self.dim**2,
            f"Moving all {self.dim:,} parameters at once, by matrices of their second derivatives,",
            "Write effects so that each row reads few of them (an index into a vector, such as "
            "effect[group]), which are then updated by group, or sample this model with NUTS.",
        )
        self.kinked = False
        self.units = np.ones(self.dim)

    def _of(self, rows: Rows | None) -> tuple[Rows, str | None, float]:
        """Return rows, a title where these are all, and by what sums are multiplied."""
        data = self.tall.data if rows is None else rows
        self.rows_read += len(data[0])
        title = "Finding the posterior mode" if rows is None and self.progressbar else None
        return data, title, self.tall.n_rows / len(data[0])

    def row_derivatives(
        self, theta: np.ndarray, rows: Rows | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian of the log-likelihood; if some rows are given, estimates."""
        data, title, scale = self._of(rows)
        gradient, hessian = self.rows.gradient_hessian(theta, data, title)
        return scale * gradient, scale * hessian

    def prior_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the prior part."""
        return np.asarray(self._prior.slope_at(theta)()[1])

    def is_possible(self, theta: np.ndarray) -> bool:
        """Whether the prior part is finite: not beyond a wall."""
        return bool(np.isfinite(self._prior.slope_at(theta)()[0]))

    def values(self, thetas: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Log-density at many points."""
        data, _, scale = self._of(rows)
        self.rows_read += (len(thetas) - 1) * len(data[0])
        of_prior = [float(self._prior.slope_at(theta)()[0]) for theta in thetas]
        return of_prior + scale / self.temperature * self.rows.values(thetas, data)

    def value_gradient(self, theta: np.ndarray, rows: Rows | None) -> tuple[float, np.ndarray]:
        """Log-density and its gradient."""
        data, title, scale = self._of(rows)
        value, gradient = self.rows.value_gradient(theta, data, title)
        prior_value, prior_gradient = self._prior.slope_at(theta)()
        scale /= self.temperature
        return float(prior_value) + scale * value, prior_gradient + scale * gradient

    def product(self, theta: np.ndarray, vector: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Multiply the Hessian of the log-density with a vector."""
        data, _, scale = self._of(rows)
        of_rows = scale * self.rows.product(theta, vector, data)
        _, [of_prior] = self._prior.products_at(theta, vector[None])()
        return np.asarray(of_prior + of_rows / self.temperature)

    def prior_hessian(self, theta: np.ndarray) -> np.ndarray:
        """Hessian of the prior part."""
        return self._prior.hessian(theta)

    def hessian(self, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Hessian of the log-density."""
        return self.prior_hessian(theta) + self.row_derivatives(theta, rows)[1] / self.temperature

    def gradient(self, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Gradient of the log-density."""
        return self.value_gradient(theta, rows)[1]

    def take_units(self, theta: np.ndarray, rows: Rows | None) -> None:
        """Take the scale on which one row and the prior vary as the unit of each coordinate.

        A row's curvature tells it, and if it has none (kinks), its slope.
        """
        data = self.tall.data if rows is None else rows
        some = [np.ascontiguousarray(v[:: max(1, len(v) // UNIT_ROWS)]) for v in data]
        n_some = len(some[0])
        curvature = np.diag(self.rows.gradient_hessian(theta, some, None)[1]) / n_some
        slopes = [
            self.rows.value_gradient(theta, [v[i : i + 1] for v in some], None)[1]
            for i in range(n_some)
        ]
        squares = np.mean(np.square(slopes), axis=0)
        of_row = np.where(np.abs(curvature) > FLAT * squares, np.abs(curvature), squares)
        information = of_row + np.abs(np.diag(self.prior_hessian(theta)))
        known = np.isfinite(information) & (information > 0)
        exponents = -np.log10(np.where(known, information, 1.0)) / 2
        ordinary = np.abs(exponents) <= math.log10(UNITS_OF_ORDER_ONE)
        self.units = np.where(ordinary, 1.0, 10.0 ** np.round(exponents))
        self.rows_read += 2 * n_some

    def look_for_kinks(self, theta: np.ndarray, rows: Rows | None) -> None:
        """Note whether rows have kinks, by few of them at the scale of their posterior."""
        data = self.tall.data if rows is None else rows
        stride = max(1, len(data[0]) // TRIAL_ROWS)
        some = [np.ascontiguousarray(values[::stride]) for values in data]

        self.kinked = has_kinks(
            lambda point: self.gradient(point, some),
            lambda vector: self.product(theta, vector, some),
            theta,
            self.outer_precision(theta, some) * len(some[0]) / self.tall.n_rows,
            list(self.tall.layout.slices.values()),
        )

    def outer_precision(self, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Precision by the outer products of the slopes of some rows."""
        data = self.tall.data if rows is None else rows
        n = len(data[0])
        some = np.arange(n)
        if n > TRIAL_ROWS:
            some = np.sort(np.random.default_rng(0).integers(0, n, TRIAL_ROWS))
        batch = [np.ascontiguousarray(values[some]) for values in data]
        return outer_precision(
            lambda point: self.tall.vector_row_logp(point, *batch),
            theta,
            self.units,
            self.tall.n_rows / (some.size * self.temperature),
            self.prior_hessian(theta),
        )

    def precision(self, theta: np.ndarray, rows: Rows | None) -> np.ndarray:
        """Curvature of the log-density, at the scale of the posterior if rows have kinks."""
        if not self.kinked:
            return -self.hessian(theta, rows)
        precision = self.outer_precision(theta, rows)
        for _ in range(KINK_ROUNDS):
            self.factor(theta, precision)
            precision = average_precision(lambda t: self.gradient(t, rows), theta, precision)
        return precision

    def factor(self, theta: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, bool]:
        """Factor the precision at a point, or say in which variable it is none."""
        self.check_finite(theta, precision)
        try:
            return cho_factor(precision)
        except LinAlgError:
            scale = np.sqrt(np.maximum(np.abs(np.diag(precision)), np.finfo(float).tiny))
            worst = int(
                np.argmax(np.abs(np.linalg.eigh(precision / np.outer(scale, scale))[1][:, 0]))
            )
            raise NoReferenceError(
                "the log-density is not concave at the end of the search for its mode, mostly in "
                f"{self._at(theta, worst)}. {ELSEWHERE}"
            ) from None

    def check_finite(self, theta: np.ndarray, precision: np.ndarray) -> None:
        """Refuse derivatives that are not finite; name the variable."""
        if not np.isfinite(precision).all():
            worst = int(np.argmin(np.isfinite(precision).all(axis=0)))
            raise NoReferenceError(
                "second derivatives of the log-density are not finite at a point that the search "
                f"for its mode has reached, first by {self._at(theta, worst)}. Infinite data, such "
                "as upper=np.inf of a pm.Censored, are a frequent cause: put a large finite number "
                "in their place"
            )

    def _at(self, theta: np.ndarray, position: int) -> str:
        """Name a variable and say where it is."""
        return f"{self.tall.layout.name_of(position)} (there {theta[position]:.3g})"
