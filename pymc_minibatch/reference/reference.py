"""A reference point: the mode, what an expansion about it needs, and of what model it is."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from scipy.linalg import cho_factor, cho_solve

from pymc_minibatch.messages import IdentifiedError
from pymc_minibatch.reference.derivatives import Derivatives, row_derivatives
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.fingerprint import Fingerprint

__all__ = [
    "KINKED_LENGTH",
    "TOLERANCE",
    "NoReferenceError",
    "Reference",
    "SeveralModesError",
    "prior_given",
]

TOLERANCE = 1e-3
"""Newton steps end when one is shorter than this many posterior standard deviations, root mean
square over the parameters."""

KINKED_LENGTH = 0.1
"""If rows have kinks, and gradients jump, a step of so many sds ends the search."""

SAME_SUMS = 1e-4
"""Differences of sums over rows that rounding, also of float32, makes; in units of curvature."""

HELD = 1e-6
"""Precision in place of that of discrete variables, which are held; rows tell nothing of them."""

FIND_AGAIN = "Find it again with pmb.find_reference()."

_ARRAYS = (
    "flat",
    "gradient",
    "hessian",
    "curvature",
    "prior_hessian",
    "compared_rows",
    "row_logps",
    "parts",
)
MOST_NAMES = 5
"""Names of variables that are shown."""
_NUMBERS = ("n_rows", "checksum", "temperature", "several_modes", "passes", "seconds")


class NoReferenceError(IdentifiedError, ValueError):
    """No reference point: the posterior has no proper mode; the message says how it failed.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Flat("mu")
    ...     y = pm.Poisson("y", pm.math.exp(mu), observed=np.zeros(100, dtype=int))
    ...     try:
    ...         reference = pmb.find_reference()
    ...     except pmb.NoReferenceError as error:
    ...         print(error)
    the log-density is flat about its mode, mostly along mu: neither the data nor the prior
    determine it, as with separated classes and a flat prior
    """

    id = "PMB602"


class SeveralModesError(NoReferenceError):
    """A reference point would hide that there are other modes."""


@dataclass(frozen=True, repr=False)
class Reference:
    """A reference point and the Taylor expansion of the log-likelihood about it.

    Attributes
    ----------
    mode : dict of str to ndarray
        The posterior mode, as ``model.initial_point()`` gives points.
    flat : ndarray, shape (D,)
        The reference point, raveled in the order of the model's value variables: the mode, or, if
        rows were added to those of another reference, its point.
    gradient : ndarray, shape (D,)
        Sum over all rows of the gradients of their log-likelihood at the reference point.
    hessian : ndarray, shape (D, D)
        Sum over all rows of the Hessians of their log-likelihood at the reference point.
    curvature : ndarray, shape (D, D)
        `hessian`, but averaged over the scale of the posterior if the log-likelihood has kinks
        (Laplace errors, quantile regression), which `hessian` misses.
    prior_hessian : ndarray, shape (D, D)
        Hessian of the prior part at the reference point. Discrete variables, on which only the
        prior part may depend, keep their initial values and have a negligible entry.
    compared_rows : ndarray of int64, shape (at most 20,)
        Numbers of rows at equal distances, whose log-likelihoods reveal another likelihood.
    row_logps : ndarray, shape (at most 20,)
        Their log-likelihoods at the reference point.
    n_rows : int
        Rows of the data.
    checksum : int
        Checksum of the values of all rows, which reveals other data.
    parts : ndarray of int64, shape (P, 2)
        Rows and checksum of each partition; P is 0 if the rows are on this machine.
    temperature : float
        Temperature T of the posterior.
    several_modes : bool
        Whether another mode was seen; chains stay about this one.
    passes : float
        Number of passes over all rows.
    seconds : float
        Seconds that the search took.
    made_of : Fingerprint
        Checksums of the model, which reveal another likelihood, constant or prior.

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
    curvature: np.ndarray
    prior_hessian: np.ndarray
    compared_rows: np.ndarray
    row_logps: np.ndarray
    n_rows: int
    checksum: int
    parts: np.ndarray
    temperature: float
    several_modes: bool
    passes: float
    seconds: float
    made_of: Fingerprint

    def __repr__(self) -> str:
        names = ", ".join(list(self.mode)[:MOST_NAMES]) + ", ..." * (len(self.mode) > MOST_NAMES)
        return (
            f"Reference of {self.flat.size:,} parameter{'s' * (self.flat.size != 1)} in {names} "
            f"and {self.n_rows:,} rows, found in {self.passes:.3g} passes and {self.seconds:.1f} s"
        )

    @property
    def center(self) -> np.ndarray:
        """The mode, raveled as `flat` is."""
        return np.concatenate([np.ravel(values) for values in self.mode.values()]).astype(float)

    def precision_at(self, temperature: float) -> np.ndarray:
        """Precision of the Gaussian approximation of the posterior at T, shape (D, D)."""
        return -(self.prior_hessian + self.curvature / temperature)

    @property
    def has_kinks(self) -> bool:
        """Whether the log-likelihood has kinks, so that its Hessian is not its curvature."""
        return self.curvature is not self.hessian and not np.array_equal(
            self.curvature, self.hessian
        )

    def check_fits(self, tall: TallModel) -> None:
        """Refuse the reference of a model with other variables or rows, or another density.

        Reads all rows once; twice if the graphs of the models differ.

        Raises
        ------
        ValueError
            If names, shapes or order of the variables differ, or number, values or order of the
            rows, or the log-likelihood, or the prior; what differs is named.
        """
        self.check_likelihood(tall)
        if change := self.other_rows(tall) or self.other_prior(tall):
            raise ValueError(f"The reference is of {change}. {FIND_AGAIN}")

    def other_rows(self, tall: TallModel) -> str | None:
        """Say how the rows of a model differ from those of the reference."""
        if self.n_rows != tall.n_rows:
            return f"other data: it sums over {self.n_rows} rows, and the model has {tall.n_rows}"
        if self.checksum != tall.checksum:
            return "other data: values of the rows, or their order, differ from those of the model"
        return None

    def check_likelihood(self, tall: TallModel) -> None:
        """Refuse the reference of other variables, or where rows are the same, another likelihood.

        Rows are the same if :meth:`other_rows` is None. If the graphs differ, sums of gradients
        and Hessians over all rows decide.

        Raises
        ------
        ValueError
        """
        self.check_variables(tall)
        if self.other_rows(tall):
            return
        found, differ = self._compared(tall)
        if differ.any():
            row = self.compared_rows[differ][0]
            raise ValueError(
                f"The reference is of another likelihood: at its point row {row} has "
                f"log-likelihood {found[differ][0]:.6g}, and had {self.row_logps[differ][0]:.6g}"
                f"{self._blamed(tall)}. {FIND_AGAIN}"
            )
        if self.made_of.differences(tall.fingerprint)[0] and not self._sums_agree(tall):
            raise ValueError(
                "The reference is of another likelihood: gradients and Hessians of the rows at its "
                f"point do not have the sums that they had{self._blamed(tall)}. {FIND_AGAIN}"
            )

    def _blamed(self, tall: TallModel) -> str:
        names = [n for n in self.made_of.differences(tall.fingerprint)[0] if n != "the likelihood"]
        return f", since {' and '.join(names)} has changed" if names else ""

    def _sums_agree(self, tall: TallModel) -> bool:
        """Whether the sums over all rows at the reference point are what they were."""
        gradient, hessian = row_derivatives(tall).gradient_hessian(self.flat, tall.data)
        scale = np.sqrt(np.abs(np.diag(self.hessian))) + np.finfo(float).tiny
        off = np.abs(gradient - self.gradient) / scale
        curvature_change = np.abs(hessian - self.hessian) / np.outer(scale, scale)
        return bool(off.max() < SAME_SUMS and curvature_change.max() < SAME_SUMS)

    def other_prior(self, tall: TallModel) -> str | None:
        """Say how the prior of a model differs from that of the reference.

        If the graphs differ, slope and curvature of the prior at the mode decide.
        """
        names = self.made_of.differences(tall.fingerprint)[1]
        if not names or self._prior_agrees(tall):
            return None
        return f"another prior: {' and '.join(names)} has changed"

    def _prior_agrees(self, tall: TallModel) -> bool:
        """Whether the mode is one under the prior of a model, with the curvature that it had."""
        prior = Derivatives(prior_given(tall, self.flat), tall.flat)
        hessian = prior.hessian(self.flat)
        precision = self.precision_at(self.temperature)
        scale = np.sqrt(np.abs(np.diag(precision)))
        curvature_change = np.abs(hessian - self.prior_hessian) / np.outer(scale, scale)
        slope = np.asarray(prior.slope_at(self.flat)()[1]) + self.gradient / self.temperature
        expected = self.center - self.flat  # a Newton step where rows were added
        off = np.linalg.solve(precision, slope) - expected
        limit = KINKED_LENGTH if self.has_kinks else 2 * TOLERANCE
        length = math.sqrt(max(off @ precision @ off, 0.0))
        return bool(
            curvature_change.max() < SAME_SUMS and length < limit * math.sqrt(self.flat.size)
        )

    def agrees_on_rows(self, tall: TallModel) -> bool:
        """Whether some rows have the log-likelihoods that they had."""
        return not self._compared(tall)[1].any()

    def _compared(self, tall: TallModel) -> tuple[np.ndarray, np.ndarray]:
        """Return log-likelihoods of some rows, and whether they differ from what they were."""
        found = tall.vector_row_logp(self.flat, *tall.batch(self.compared_rows))
        # Tolerances are as float32 may round.
        return found, ~np.isclose(found, self.row_logps, rtol=1e-3, atol=1e-3)

    def check_variables(self, tall: TallModel) -> None:
        """Refuse the reference of a model with other variables, or in another order.

        Raises
        ------
        ValueError
        """
        own = [(name, np.shape(value)) for name, value in self.mode.items()]
        wanted = list(zip(tall.layout.names, tall.layout.shapes, strict=True))
        if own != wanted:
            raise ValueError(
                f"The reference is of another model: its variables are {dict(own)}, and those of "
                f"the model {dict(wanted)}, by name and shape. {FIND_AGAIN}"
            )

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance of the Gaussian approximation of the posterior, shape (D, D)."""
        return cho_solve(cho_factor(self.precision_at(self.temperature)), np.eye(self.flat.size))

    def save(self, path: str | Path) -> None:
        """Write to a NumPy ``.npz`` file; the suffix is added if it is missing."""
        arrays: dict[str, Any] = {f"mode/{name}": value for name, value in self.mode.items()}
        arrays |= {name: getattr(self, name) for name in (*_ARRAYS, *_NUMBERS)}
        arrays["made_of"] = np.array(self.made_of.to_json())
        np.savez(_with_suffix(path), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Reference":
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged, or not that of a reference of this version.
        """
        path = _with_suffix(path)
        try:
            with open(path, "rb") as file, np.load(file) as stored:
                mode = {k.removeprefix("mode/"): stored[k] for k in stored if k.startswith("mode/")}
                fields: dict[str, Any] = {k: stored[k] for k in _ARRAYS}
                fields |= {k: stored[k].item() for k in _NUMBERS}
                fields["made_of"] = Fingerprint.from_json(stored["made_of"].item())
        except KeyError as error:
            raise ValueError(
                f"{path} has no {error}: it is not a reference, or was saved by another version. "
                "Find the reference again with pmb.find_reference()."
            ) from error
        except (ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is not a complete .npz file. Find the reference again with "
                "pmb.find_reference()."
            ) from error
        return cls(mode=mode, **fields)


def _with_suffix(path: str | Path) -> Path:
    """Add the suffix if it is missing, as NumPy does when it saves."""
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def prior_given(tall: TallModel, start: np.ndarray) -> Variable:
    """Build the prior part with the discrete variables held at their values in a flat point.

    A wide Gaussian takes their place, so that they are coordinates like the others of a search.
    """
    discrete = np.flatnonzero(~tall.layout.is_continuous)
    if not discrete.size:
        return tall.prior_graph
    flat: Any = tall.flat
    fixed: dict[Variable, Variable] = {flat: pt.set_subtensor(flat[discrete], start[discrete])}
    prior: Any
    [prior] = graph_replace([tall.prior_graph], fixed, strict=False)
    return prior - HELD / 2 * pt.sum((flat[discrete] - start[discrete]) ** 2)
