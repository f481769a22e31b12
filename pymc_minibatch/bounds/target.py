"""The posterior with lower bounds under its rows, as Firefly Monte Carlo samples it.

With 0 < Bₙ(θ) ≤ Lₙ(θ) and z the rows that are bright,

    p(θ, z | y) ∝ p₀(θ) Πₙ Bₙ(θ) Π_{bright} (Lₙ(θ)/Bₙ(θ) − 1).

What is left of the rows is the gap gₙ = log Lₙ − log Bₙ ≥ 0; the bounds of all rows and the prior
make up the base.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba, jit_kept
from pymc_minibatch.jit.made_once import made_once
from pymc_minibatch.messages import IdentifiedError, with_id
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.row_input import RowInput

__all__ = ["BoundError", "FireflyTarget", "JittedTarget", "trial_rows", "violation"]

TRIAL_ROWS = 500
TOLERANCE = 1e-9
"""Rounding errors allowed, relative to the largest log-likelihood or predictor of a row."""


class BoundError(IdentifiedError, ValueError):
    """A bound lies above its likelihood, or does not collapse; the message says where.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data, xi = np.linspace(-2, 3, 100), 1.5
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Laplace("y", mu, 1.0, observed=data)
    ...     rows = -np.log(2) - ((data - mu) ** 2 / xi + xi) / 2
    ...     try:
    ...         step = pmb.FlyMC(bound=pmb.Bound(rows, total=2 * rows.sum()))
    ...     except pmb.BoundError as error:
    ...         print(error)
    The rows of the bound add up to ..., and its total is ..., at a point near the start.
    Sampling needs them to agree.
    """

    id = "PMB604"


class JittedTarget(NamedTuple):
    """The two parts of the density as Numba functions, which a kernel calls by address.

    Attributes
    ----------
    base
        ``(point, constants, gradient) -> float``: prior and collapsed bounds; writes the gradient.
    gap
        ``(point, constants, batch, gradient) -> array``: the gaps gₙ of the rows of a batch; adds
        the gradient of ``Σ log (exp gₙ − 1)``, if the target was compiled with gradients.
    """

    base: Callable[..., float]
    gap: Callable[..., np.ndarray]


def make_base(
    parts: Callable[..., Any], assemble: Callable[..., tuple[float, np.ndarray]]
) -> Callable[..., float]:
    """Build the base from its compiled parts."""

    def base(point: np.ndarray, constants: Any, gradient: np.ndarray) -> float:
        value, slope = assemble(point, parts(point, constants[0]), constants)
        for i in range(gradient.size):
            gradient[i] = slope[i]
        return value

    return base


def make_base_with_rows(
    parts: Callable[..., Any],
    assemble: Callable[..., tuple[float, np.ndarray]],
    rows: Callable[..., Any],
    n_collapsed: int,
) -> Callable[..., float]:
    """Build the base if some rows are always read: `constants` end with their data."""

    def base(point: np.ndarray, constants: Any, gradient: np.ndarray) -> float:
        value, slope = assemble(point, parts(point, constants[0]), constants[:n_collapsed])
        gaps, more = rows(point, constants[0], *constants[n_collapsed:])
        for i in range(gradient.size):
            gradient[i] = slope[i] + more[i]
        return value + gaps.item()

    return base


def make_gap(rows: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the gaps."""

    def gap(point: np.ndarray, constants: Any, batch: Any, gradient: np.ndarray) -> np.ndarray:
        return rows(point, constants[0], *batch)[0]

    return gap


def make_gap_and_gradient(rows: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Build the gaps, and add their gradient."""

    def gap(point: np.ndarray, constants: Any, batch: Any, gradient: np.ndarray) -> np.ndarray:
        gaps, slope = rows(point, constants[0], *batch)
        for i in range(gradient.size):
            gradient[i] += slope[i]
        return gaps

    return gap


class FireflyTarget(ABC):
    """A density split in base and gaps; what the kinds of bounds have in common.

    Attributes
    ----------
    tall : TallModel
        The model.
    active : ndarray of int
        The positions in the flat point that are sampled.
    uses_gradient : bool
        Whether the gaps are compiled with their gradient.
    extra : tuple of RowInput
        Row data that a bound reads in addition to those of the model.
    entering : ndarray of int
        The positions that the likelihood depends on.
    pinned : ndarray of int
        Rows that are read with the base instead of being bright or dark: their gaps are added to
        it, so that of their bounds nothing is left.
    """

    tall: TallModel
    pinned: np.ndarray = np.empty(0, np.int64)
    active: np.ndarray
    uses_gradient: bool
    extra: tuple[RowInput, ...] = ()
    entering: np.ndarray

    @property
    def data(self) -> tuple[np.ndarray, ...]:
        """Row data: those of the model, then those that only the bound reads."""
        return *self.tall.data, *(row_input.values for row_input in self.extra)

    @abstractmethod
    def base_graph(self) -> tuple[list[Variable], list[Any]]:
        """Build what makes up the base; its inputs begin with point and reference."""

    @abstractmethod
    def gap_graph(self) -> tuple[list[Variable], Any]:
        """Build the gaps; the inputs are point, reference and then the batch."""

    @property
    @abstractmethod
    def assemble(self) -> Callable[..., tuple[float, np.ndarray]]:
        """How the parts of the base and the collapsed bounds are put together."""

    def base(
        self, point: np.ndarray, constants: tuple[np.ndarray, ...]
    ) -> tuple[float, np.ndarray]:
        """Value and gradient of the base."""
        parts = self.compiled_base.jitted(point, constants[0])
        collapsed = constants[: self._n_collapsed(constants)]
        value, gradient = self.assemble(point, parts, collapsed)
        if self.pinned.size:
            rows = self.compiled_always.jitted(point, constants[0], *constants[len(collapsed) :])
            return float(value + rows[0]), gradient + rows[1]
        return float(value), gradient

    def constants(
        self, reference: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Return what the base reads: the collapsed bounds, then the rows that are always read.

        The reference point comes first. If `rows` are given, the sums are estimated from these.
        """
        pinned = self.batch(self.pinned) if self.pinned.size else []
        return *self.collapsed(reference, rows), *pinned

    @abstractmethod
    def collapsed(
        self, reference: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Collapse the bounds in one pass; the reference point comes first."""

    def _n_collapsed(self, constants: tuple[np.ndarray, ...]) -> int:
        return len(constants) - (len(self.data) if self.pinned.size else 0)

    @made_once
    def compiled_base(self) -> CompiledFunction:
        """``(point, reference) -> (value, gradient)`` of each part of the base."""
        inputs, parts = self.base_graph()
        outputs = [graph for part in parts for graph in (part, _gradient(part, inputs[0]))]
        return compile_numba(inputs, outputs)

    @made_once
    def compiled_gap(self) -> CompiledFunction:
        """``(point, reference, *batch) -> (gaps[, gradient of the sum of log(exp(gap) - 1)])``."""
        inputs, gap = self.gap_graph()
        if not self.uses_gradient:
            return compile_numba(inputs, [gap])
        slope = disconnected_grad(-1.0 / pt.expm1(-gap))
        return compile_numba(inputs, [gap, _gradient(pt.sum(slope * gap), inputs[0])])

    @made_once
    def compiled_always(self) -> CompiledFunction:
        """``(point, reference, *batch) -> (sum of the gaps, its gradient)``."""
        inputs, gap = self.gap_graph()
        total = pt.sum(gap)
        return compile_numba(inputs, [total, _gradient(total, inputs[0])])

    def jitted(self, constants: tuple[np.ndarray, ...]) -> JittedTarget:
        """Compile what a kernel calls with constants like these."""
        gap = self.compiled_gap
        make = make_gap_and_gradient if self.uses_gradient else make_gap
        return JittedTarget(
            self._jitted_base(constants), jit_kept(make(gap.jitted), [gap.cache_key])
        )

    def _jitted_base(self, constants: tuple[np.ndarray, ...]) -> Callable[..., float]:
        parts, assemble = self.compiled_base, njit(self.assemble)
        keys = [parts.cache_key, self.assemble.__name__]
        if not self.pinned.size:
            return jit_kept(make_base(parts.jitted, assemble), keys)
        rows, n_collapsed = self.compiled_always, self._n_collapsed(constants)
        base = make_base_with_rows(parts.jitted, assemble, rows.jitted, n_collapsed)
        return jit_kept(base, [*keys, rows.cache_key, str(n_collapsed)])

    def prior_at(self, point: Variable) -> Any:
        """Build the log-density of the prior part."""
        at: dict[Variable, Variable] = {self.tall.flat: point}
        return graph_replace([self.tall.prior_graph], at, strict=False)[0]

    def gaps(self, point: np.ndarray, reference: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gaps of some rows."""
        return self.compiled_gap(point, reference, *self.batch(rows))

    def batch(self, rows: np.ndarray) -> list[np.ndarray]:
        """Gather row data."""
        return [np.ascontiguousarray(values[rows]) for values in self.data]

    def tolerance(self, reference: np.ndarray) -> float:
        """Negative gaps up to this size are rounding errors."""
        largest = np.abs(self.row_logp(reference, trial_rows(self.tall.n_rows))).max()
        return TOLERANCE * max(1.0, float(largest))

    def row_logp(self, point: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Log-likelihood of some rows."""
        return self.tall.row_logp(self.tall.layout.unflatten(point), rows)

    def check_bound(self, reference: np.ndarray, points: Sequence[np.ndarray]) -> None:
        """Verify on random rows, at some points, that the bounds are below the likelihood.

        Raises
        ------
        BoundError
            Naming a row whose bound is not.
        """
        rows = trial_rows(self.tall.n_rows)
        for point in points:
            gaps = self.gaps(point, reference, rows)
            if np.isnan(gaps).any() or gaps.min() < -self.tolerance(reference):
                worst = int(np.argmin(np.nan_to_num(gaps, nan=-np.inf)))
                raise BoundError(violation(self.tall, int(rows[worst]), float(gaps[worst])))

    def __getstate__(self) -> dict[str, object]:
        """Leave compiled functions out."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("compiled_")}


def trial_rows(n_rows: int, size: int = TRIAL_ROWS) -> np.ndarray:
    """Return row numbers on which to verify."""
    if n_rows <= size:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(20140406).choice(n_rows, size, replace=False))


def violation(tall: TallModel, row: int, gap: float) -> str:
    """Say that a bound is not one."""
    return with_id(
        "PMB305",
        f"The lower bound of row {row} of {' + '.join(tall.row_names)} lies above its likelihood "
        f"(log L - log B = {gap:.3g}). FlyMC needs bounds that hold at every value of the "
        "parameters; look at the bound, or use MinibatchMH.",
    )


def _gradient(total: Variable, point: Variable) -> Any:
    if point not in ancestors([total]):
        return pt.zeros_like(point)
    return grad(total, point, disconnected_inputs="ignore")
