"""Find the posterior mode, and what a Taylor expansion about it needs, in a few passes.

The mode is found on a subsample of the rows, then polished on all of them by Newton steps with the
subsample's Hessian. The last pass sums gradient and Hessian over all rows (:mod:`.derivatives`).
The control variates built on it are right for any reference point; a poor one only makes batches
larger. A few more searches, on few rows and from elsewhere, tell whether there are other modes.
Where rows have kinks, second derivatives tell nothing, and gradients at the scale of the posterior
take their place.
"""

import logging
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from pymc_minibatch.arguments import checked_temperature, checked_type
from pymc_minibatch.reference.added import with_added_rows
from pymc_minibatch.reference.derivatives import Derivatives, row_derivatives
from pymc_minibatch.reference.kinks import average_precision, climb, has_kinks, outer_precision
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.fingerprint import Fingerprint
from pymc_minibatch.tall.gradients import NO_DERIVATIVE
from pymc_minibatch.warn import warn

__all__ = [
    "ExpansionOfMost",
    "NoReferenceError",
    "Reference",
    "SeveralModesError",
    "discrete_in_rows",
    "find_reference",
    "fitting",
    "search",
]

SUBSAMPLE = 20_000
ROWS_EACH = 100
"""Rows for each parameter, whose Hessian is for Newton steps on all rows."""

SEARCH_STEPS = 100
NEWTON_STEPS = 20
LONGEST, LEAST_RISE = 3.0, 0.1
"""How many units Newton's method goes in one step, and the least rise, relative to the slope."""

HALVINGS = 10
"""How often a step is halved that does not rise so."""

SLOW = 0.5
"""A Newton step is expected to be shorter than the one before by this factor."""

TOLERANCE = 1e-3
"""Newton steps end when one is shorter than this many posterior standard deviations, root mean
square over the parameters."""

KINK_ROUNDS = 2
KINKED_LENGTH = 0.1
"""Where rows have kinks, and gradients jump, a step of so many sds ends the search."""

IMPOSSIBLE = 1e300
"""What a search takes for minus the log-density where the model is impossible."""

SMALL = 1e-3
"""The jitter of a start, in units of the coordinates."""

UNITS_OF_ORDER_ONE = 100.0
"""Coordinates whose scale is within this factor of one are searched as they are; the others in
powers of ten."""

LARGEST = 1e6
"""A search that leads further than so many units of a coordinate has run off to infinity."""

FAR = 3.0
LEAST_FALL = 0.1
"""At 3 standard deviations the log-density must have fallen by this much (a Gaussian's: 4.5)."""

UNIT_ROWS = 100
"""The units of the coordinates are taken from so many rows."""

FLAT = 1e-3
"""Rows whose curvature is below this share of the square of their slope have none that tells."""

TRIAL_ROWS = 2000
TRIAL_STARTS = 4
TRIAL_JITTER = 2.0
"""Other modes are looked for on this many rows, from this many starts so far from the first."""

ELSEWHERE = "A search from elsewhere may find a mode: pass reference=pmb.find_reference(start=...)"

MOST_MIRRORED = 4
"""So many more from the mode with the sign of a single number changed."""

LEAST_DENSITY = 10.0
"""A mode whose log-density, on those rows, is lower by more does not count."""

COMPARED_ROWS = 20
"""The likelihood of a reference is told from others by so many rows."""

SAME_SUMS = 1e-4
"""Differences of sums over rows that rounding, also of float32, makes; in units of curvature."""

HELD = 1e-6
"""Precision in place of that of discrete variables, which are held; rows tell nothing of them."""

VERIFIED_AT = 2.0
"""The split is verified again so many standard deviations to either side of the mode."""

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
_NUMBERS = ("n_rows", "checksum", "temperature", "several_modes", "passes", "seconds")


_log = logging.getLogger("pymc.minibatch")


class NoReferenceError(ValueError):
    """No reference point: the posterior has no proper mode; the message says how it failed."""


class SeveralModesError(NoReferenceError):
    """A reference point would hide that there are other modes."""


@dataclass(frozen=True)
class Reference:
    """A reference point and the Taylor expansion of the log-likelihood about it.

    Attributes
    ----------
    mode : dict of str to ndarray
        The posterior mode, as ``model.initial_point()`` gives points.
    flat : ndarray, shape (D,)
        The reference point, raveled in the order of the model's value variables: the mode, or where
        rows were added to those of another reference, its point.
    gradient : ndarray, shape (D,)
        Sum over all rows of the gradients of their log-likelihood at the reference point.
    hessian : ndarray, shape (D, D)
        Sum over all rows of the Hessians of their log-likelihood at the reference point.
    curvature : ndarray, shape (D, D)
        The same, averaged over the scale of the posterior where rows have kinks, which `hessian`
        does not see (Laplace errors, quantile regression); equal to it elsewhere.
    prior_hessian : ndarray, shape (D, D)
        Hessian of the prior part there. Discrete variables, which only the prior part may
        read, are held where the search started, and have a negligible number here.
    compared_rows : ndarray of int64, shape (at most 20,)
        Numbers of rows at equal distances, by which another likelihood is noticed.
    row_logps : ndarray, shape (at most 20,)
        Their log-likelihoods at the reference point.
    n_rows : int
        Rows of the data.
    checksum : int
        Of the values of all rows, by which other data are noticed.
    parts : ndarray of int64, shape (P, 2)
        Rows and checksum of each partition; P is 0 where the rows are on this machine.
    temperature : float
        T of the posterior whose mode it is.
    several_modes : bool
        Whether another mode was seen; chains stay about this one.
    passes : float
        How often all rows were read.
    seconds : float
        Time that was spent.
    made_of : Fingerprint
        Of the model: by which another likelihood, constant or prior is noticed.

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

        Rows are the same if :meth:`other_rows` is None. Where the graphs differ, sums of gradients
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

        Where the graphs differ, slope and curvature of the prior at the mode decide.
        """
        names = self.made_of.differences(tall.fingerprint)[1]
        if not names or self._prior_agrees(tall):
            return None
        return f"another prior: {' and '.join(names)} has changed"

    def _prior_agrees(self, tall: TallModel) -> bool:
        """Whether the mode is one under the prior of a model, with the curvature that it had."""
        prior = Derivatives(_prior_given(tall, self.flat), tall.flat)
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
        """Read what :meth:`save` wrote.

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
    """Add the suffix where it is missing, as NumPy does when it saves."""
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def find_reference(
    model: Model | None = None,
    *,
    data: Any = None,
    tall: TallModel | None = None,
    temperature: float = 1.0,
    start: Mapping[str, np.ndarray] | Reference | None = None,
    random_seed: int = 0,
    progressbar: bool = True,
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
    start : dict of str to ndarray, or Reference, optional
        Where the search starts: values of some or all value variables, as ``model.initial_point()``
        names them, or another reference, such as one of yesterday's data; the model's initial point
        if not given. Of several modes it finds one near there. Discrete variables stay there. Where
        rows stay in partitions, and the first of these are those of a reference, only those that
        follow are read, unless the mode has moved by more than half a posterior standard deviation
        (root mean square over the parameters) or rows have kinks; a message says so.
    random_seed : int, default 0
        Chooses the subsample on which the search starts.
    progressbar : bool, default True
        Whether passes over much data show their progress.

    Returns
    -------
    Reference

    Raises
    ------
    NoReferenceError
        If the search runs away (separation under a flat prior, say), or ends where the log-density
        is not concave, or the rows read discrete variables.
    TypeError, ValueError
        If an argument is of the wrong type or out of range, or `start` is not of this model.

    Warns
    -----
    UserWarning
        If there are other modes about as probable. Modes that none of a few starts leads to are not
        seen.

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
    temperature = checked_temperature(temperature)
    checked_type("tall", tall, TallModel, "Leave it out, or split the model: pmb.TallModel(model).")
    tall = TallModel(model, data=data) if tall is None else tall
    tall.check_sources()
    flat = _checked_start(tall, start)
    reference = None
    if isinstance(start, Reference):
        reference = _with_added_rows(tall, start, temperature, progressbar)
    reference = reference or search(tall, temperature, random_seed, progressbar, flat)
    if reference.several_modes:
        warn(
            "The posterior seems to have several modes. Moves about this one do not reach the "
            "others, and R-hat of chains that all stay here does not show it."
        )
    return reference


def _checked_start(tall: TallModel, start: Any) -> np.ndarray:
    """Return the flat point at which a search starts."""
    if isinstance(start, Reference):
        start.check_variables(tall)
        return start.center.copy()
    if not isinstance(start, Mapping | None):
        raise TypeError(f"start must be a dict of values by name, or a Reference; got {start!r}.")
    point = tall.layout.unflatten(tall.start)
    for name, value in (start or {}).items():
        if name not in tall.layout.names:
            raise ValueError(
                f"start names {name}, which is not one of the value variables of the model: "
                f"{list(tall.layout.names)}. Transformed ones have names such as sigma_log__."
            )
        wanted, given = np.shape(point[name]), np.shape(value)
        if given != wanted:
            raise ValueError(f"{name} has shape {given} in start, and {wanted} in the model.")
        point[name] = np.asarray(value)
    flat = tall.layout.flatten(point)
    if not np.isfinite(flat).all():
        raise ValueError(f"start must be finite; got {start!r}.")
    return flat


def _with_added_rows(
    tall: TallModel, old: Reference, temperature: float, progressbar: bool
) -> Reference | None:
    """Add the rows that follow those of a reference; None where all have to be read."""
    started = time.perf_counter()
    prior = Derivatives(_prior_given(tall, old.flat), tall.flat)
    found = with_added_rows(tall, old, prior, temperature, progressbar)
    return found and replace(found, seconds=time.perf_counter() - started)


def search(
    tall: TallModel,
    temperature: float,
    random_seed: int = 0,
    progressbar: bool = True,
    start: np.ndarray | None = None,
) -> Reference:
    """Do what :func:`find_reference` does, without the warning, from a flat point."""
    started = time.perf_counter()
    if discrete := discrete_in_rows(tall):
        raise NoReferenceError(
            f"the rows read {discrete}, which are discrete, and an expansion about one of their "
            "values says nothing of the rows at another"
        )
    initial = tall.start.copy() if start is None else start
    held = initial.copy()
    try:
        density = _Density(tall, temperature, progressbar, held)
    except NO_DERIVATIVE as error:
        raise NoReferenceError(
            f"the log-density cannot be differentiated twice: {error}"
        ) from error
    rng = np.random.default_rng(random_seed)
    sample = _sample(tall, SUBSAMPLE, rng)
    density.take_units(initial, sample)
    try:
        theta, precision = _climb(density, initial, sample, rng)
    except NoReferenceError:
        if np.all(density.units == 1.0):
            raise
        # Few rows that tell far more than others make units too short to arrive.
        density.units = np.ones(initial.size)
        theta, precision = _climb(density, initial, sample, rng)
    theta = np.where(tall.layout.is_continuous, theta, held)
    gradient, hessian = density.row_derivatives(theta, None)
    prior_hessian = density.prior_hessian(theta)
    curvature = -(precision + prior_hessian) * temperature if density.kinked else hessian
    rows = _compared_rows(tall)
    reference = Reference(
        mode=tall.layout.unflatten(theta),
        flat=theta,
        gradient=gradient,
        hessian=hessian,
        curvature=curvature,
        prior_hessian=prior_hessian,
        compared_rows=rows,
        row_logps=tall.vector_row_logp(theta, *tall.batch(rows)),
        n_rows=tall.n_rows,
        checksum=tall.checksum,
        parts=tall.part_checksums,
        temperature=temperature,
        several_modes=_has_other_mode(density, theta, initial, rng),
        passes=density.rows_read / tall.n_rows,
        seconds=time.perf_counter() - started,
        made_of=tall.fingerprint,
    )
    # Refuses what is not concave.
    factor, _ = density.factor(theta, reference.precision_at(temperature))
    shift = VERIFIED_AT * solve_triangular(factor, rng.standard_normal(theta.size))
    tall.verify_at(theta + shift, theta - shift)
    return reference


def fitting(tall: TallModel, reference: Reference) -> Reference:
    """Return the reference of a model; found anew from one of other rows or another prior.

    Raises
    ------
    ValueError
        If the reference has other variables or another likelihood.
    NoReferenceError
        If it has to be found anew, and is not found.
    """
    reference.check_likelihood(tall)
    change = reference.other_rows(tall) or reference.other_prior(tall)
    if change is None:
        return reference
    _log.info(f"The reference is of {change}. It is found anew from its mode.")
    return search(tall, reference.temperature, start=reference.center.copy())


class ExpansionOfMost:
    """Expansions of the log-likelihood of all but a few rows.

    Parameters
    ----------
    tall
        The model.
    whole
        An expansion of all rows.
    rows
        The few.
    """

    def __init__(self, tall: TallModel, whole: Reference, rows: np.ndarray) -> None:
        self.whole = whole
        self._density = _Density(tall, whole.temperature, False, whole.flat)
        self._few, self._share = tall.batch(rows), rows.size / tall.n_rows

    def about(self, flat: np.ndarray) -> Reference:
        """Expand about a point, in one pass."""
        of_all = self._density.row_derivatives(flat, None)
        of_few = self._density.row_derivatives(flat, self._few)  # as an estimate for all
        gradient, hessian = (a - self._share * b for a, b in zip(of_all, of_few, strict=True))
        return replace(
            self.whole,
            mode=self._density.tall.layout.unflatten(flat),
            flat=flat,
            gradient=gradient,
            hessian=hessian,
            curvature=hessian,
            prior_hessian=self._density.prior_hessian(flat),
        )

    def prior_gradient(self, flat: np.ndarray) -> np.ndarray:
        """Gradient of the prior part."""
        return self._density.prior_gradient(flat)


def discrete_in_rows(tall: TallModel) -> list[str]:
    """Name the discrete variables that the rows read."""
    return [name for name in tall.row_parameters if name in tall.layout.discrete]


def _compared_rows(tall: TallModel) -> np.ndarray:
    """Return the numbers of rows at equal distances."""
    return np.unique(np.linspace(0, tall.n_rows - 1, COMPARED_ROWS).astype(np.int64))


_Rows = Sequence[np.ndarray]


def _sample(
    tall: TallModel, size: int, rng: np.random.Generator, given: _Rows | None = ()
) -> _Rows | None:
    """Take some rows at random; None where that would be all of them.

    Those that are given suffice where they are as many.
    """
    if given is None or (len(given) and len(given[0]) >= size):
        return given
    if size >= tall.n_rows:
        return None
    if tall.partitions is None:
        return tall.batch(np.sort(rng.choice(tall.n_rows, size, replace=False)))
    return tall.batch(np.sort(tall.random_rows(rng, size)))


def _climb(
    density: "_Density", initial: np.ndarray, sample: _Rows | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a mode, and the precision there.

    Raises
    ------
    NoReferenceError
        If none is found.
    """
    # The jitter leaves saddle points, on which symmetric models start.
    start = initial + SMALL * density.units * rng.standard_normal(initial.size)
    density.look_for_kinks(start, sample)
    theta = density.maximise(start, sample)
    if not density.kinked:
        density.look_for_kinks(theta, sample)
    more = _sample(density.tall, ROWS_EACH * theta.size, rng, sample)
    try:
        return density.polish(theta, sample, more)
    except np.linalg.LinAlgError as error:
        raise NoReferenceError(
            f"the log-density has no finite curvature where its mode seems to be ({error}): it may "
            "have a wall there, or no mode"
        ) from error


def _has_other_mode(
    density: "_Density", theta: np.ndarray, initial: np.ndarray, rng: np.random.Generator
) -> bool:
    """Whether searches from elsewhere, on few rows, end in another mode than the one that is known.

    The log-density is that of these rows alone, so that a mode does not count as improbable because
    of how these rows happen to fall.
    """
    rows = _sample(density.tall, TRIAL_ROWS, rng)
    rows = density.tall.data if rows is None else rows
    alone = copy(density)
    alone.temperature *= density.tall.n_rows / len(rows[0])

    def climb(start: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
        """Return a mode, its log-density and its precision; None if the search ends in none."""
        try:
            point = alone.maximise(start, rows)
            precision = alone.precision(point, rows)
            factor = alone.factor(point, precision)
        except NoReferenceError:
            return None
        value, gradient = alone.value_gradient(point, rows)
        if not np.isfinite(gradient).all():
            return None
        tolerance = KINKED_LENGTH if alone.kinked else TOLERANCE
        arrived = gradient @ cho_solve(factor, gradient) < tolerance
        return (point, value, precision) if arrived else None

    known = climb(theta)
    jitter = rng.uniform(-TRIAL_JITTER, TRIAL_JITTER, (TRIAL_STARTS // 2, initial.size))
    jitter *= density.units
    starts = [initial + shift for shift in (*jitter, *-jitter)]  # pairs find permuted modes sooner
    for start in (*starts, *_mirrored(density.tall, theta)):
        other = climb(start)
        if known is None or other is None:
            continue
        delta = other[0] - known[0]
        as_probable = known[1] - other[1] < LEAST_DENSITY
        if as_probable and delta @ known[2] @ delta > FAR**2:
            return True
    return False


def _mirrored(tall: TallModel, theta: np.ndarray) -> Iterator[np.ndarray]:
    """Change the sign of a variable at a mode, of some that may have either sign."""
    own = {rv.name for rv in tall.model.free_RVs}
    small = [
        where
        for name, where in tall.layout.slices.items()
        if name in own and where.stop - where.start == 1
    ]
    for where in small[:MOST_MIRRORED]:
        flipped = theta.copy()
        flipped[where] *= -1.0
        yield flipped


class _Density:
    """Value, gradient and Hessian of the log-density, with rows read in chunks."""

    def __init__(
        self, tall: TallModel, temperature: float, progressbar: bool, held: np.ndarray
    ) -> None:
        self.tall, self.temperature, self.progressbar = tall, temperature, progressbar
        self._prior = Derivatives(_prior_given(tall, held), tall.flat)
        self._rows = row_derivatives(tall)
        self.rows_read = 0
        self.dim = tall.layout.size
        self.kinked = False
        self.units = np.ones(self.dim)

    def _of(self, rows: _Rows | None) -> tuple[_Rows, str | None, float]:
        """Return rows, a title where these are all, and by what sums are multiplied."""
        data = self.tall.data if rows is None else rows
        self.rows_read += len(data[0])
        title = "Finding the posterior mode" if rows is None and self.progressbar else None
        return data, title, self.tall.n_rows / len(data[0])

    def row_derivatives(
        self, theta: np.ndarray, rows: _Rows | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian of the log-likelihood; where some rows are given, estimates."""
        data, title, scale = self._of(rows)
        gradient, hessian = self._rows.gradient_hessian(theta, data, title)
        return scale * gradient, scale * hessian

    def prior_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the prior part."""
        return np.asarray(self._prior.slope_at(theta)()[1])

    def values(self, thetas: np.ndarray, rows: _Rows | None) -> np.ndarray:
        """Log-density at many points."""
        data, _, scale = self._of(rows)
        self.rows_read += (len(thetas) - 1) * len(data[0])
        of_prior = [float(self._prior.slope_at(theta)()[0]) for theta in thetas]
        return of_prior + scale / self.temperature * self._rows.values(thetas, data)

    def value_gradient(self, theta: np.ndarray, rows: _Rows | None) -> tuple[float, np.ndarray]:
        """Log-density and its gradient."""
        data, title, scale = self._of(rows)
        value, gradient = self._rows.value_gradient(theta, data, title)
        prior_value, prior_gradient = self._prior.slope_at(theta)()
        scale /= self.temperature
        return float(prior_value) + scale * value, prior_gradient + scale * gradient

    def product(self, theta: np.ndarray, vector: np.ndarray, rows: _Rows | None) -> np.ndarray:
        """Multiply the Hessian of the log-density with a vector."""
        data, _, scale = self._of(rows)
        of_rows = scale * self._rows.product(theta, vector, data)
        _, [of_prior] = self._prior.products_at(theta, vector[None])()
        return np.asarray(of_prior + of_rows / self.temperature)

    def prior_hessian(self, theta: np.ndarray) -> np.ndarray:
        """Hessian of the prior part."""
        return self._prior.hessian(theta)

    def hessian(self, theta: np.ndarray, rows: _Rows | None) -> np.ndarray:
        return self.prior_hessian(theta) + self.row_derivatives(theta, rows)[1] / self.temperature

    def gradient(self, theta: np.ndarray, rows: _Rows | None) -> np.ndarray:
        return self.value_gradient(theta, rows)[1]

    def take_units(self, theta: np.ndarray, rows: _Rows | None) -> None:
        """Take the scale on which one row and the prior vary as the unit of each coordinate.

        A row's curvature tells it, and where it has none (kinks), its slope.
        """
        data = self.tall.data if rows is None else rows
        some = [np.ascontiguousarray(v[:: max(1, len(v) // UNIT_ROWS)]) for v in data]
        n_some = len(some[0])
        curvature = np.diag(self._rows.gradient_hessian(theta, some, None)[1]) / n_some
        slopes = [
            self._rows.value_gradient(theta, [v[i : i + 1] for v in some], None)[1]
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

    def look_for_kinks(self, theta: np.ndarray, rows: _Rows | None) -> None:
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

    def outer_precision(self, theta: np.ndarray, rows: _Rows | None) -> np.ndarray:
        """Precision by the outer products of the slopes of some rows."""
        data = self.tall.data if rows is None else rows
        some = np.sort(np.random.default_rng(0).integers(0, len(data[0]), TRIAL_ROWS))
        batch = [np.ascontiguousarray(values[some]) for values in data]
        return outer_precision(
            lambda point: self.tall.vector_row_logp(point, *batch),
            theta,
            self.units,
            self.tall.n_rows / (TRIAL_ROWS * self.temperature),
            self.prior_hessian(theta),
        )

    def precision(self, theta: np.ndarray, rows: _Rows | None) -> np.ndarray:
        """Curvature of the log-density, at the scale of the posterior where rows have kinks."""
        if not self.kinked:
            return -self.hessian(theta, rows)
        precision = self.outer_precision(theta, rows)
        for _ in range(KINK_ROUNDS):
            self.factor(theta, precision)
            precision = average_precision(lambda t: self.gradient(t, rows), theta, precision)
        return precision

    def maximise(self, theta: np.ndarray, rows: _Rows | None) -> np.ndarray:
        """Find the mode on some rows, or all."""
        if self.kinked:
            precision = self.outer_precision(theta, rows)
            self.factor(theta, precision)  # refuses what has no scale
            found = climb(lambda t: self.value_gradient(t, rows), theta, precision)
            self._check_bounded(found)
            return found

        theta, arrived = self._climbed(theta, rows)
        if arrived:
            self._check_bounded(theta)
            return theta
        units = self.units

        def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.value_gradient(units * z, rows)
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                return IMPOSSIBLE, np.zeros(self.dim)
            return -value, -units * gradient

        def precision_there(z: np.ndarray) -> np.ndarray:
            found = -self.hessian(units * z, rows)
            if not np.isfinite(found).all() and loss(z)[0] == IMPOSSIBLE:  # the search turns back
                return np.eye(self.dim)
            self._check_finite(units * z, found)
            return units[:, None] * found * units

        if self._rows.by_reading is None:
            how: dict[str, Any] = {
                "method": "trust-krylov",
                "hessp": lambda z, vector: -units * self.product(units * z, units * vector, rows),
            }
        else:
            how = {"method": "trust-exact", "hess": precision_there}
        try:
            found = minimize(
                loss,
                theta / units,
                jac=True,
                **how,
                options={
                    "maxiter": SEARCH_STEPS,
                    "initial_trust_radius": 1.0,
                    "max_trust_radius": 100.0,
                },
            )
        except (ValueError, LinAlgError) as error:  # derivatives that are not finite
            raise NoReferenceError(
                "derivatives of the log-density are not finite where the search for its mode leads "
                f"({error}). {ELSEWHERE}"
            ) from error
        theta = units * found.x
        self._check_bounded(theta)
        return theta

    def _climbed(self, theta: np.ndarray, rows: _Rows | None) -> tuple[np.ndarray, bool]:
        """Newton's method, as long as the density is concave and rises; also say if that is enough.

        Where it is, and parameters are many, this is much faster than a method for all cases.
        """
        if self._rows.by_reading is None:
            return theta, False
        value, gradient = self.value_gradient(theta, rows)
        for _ in range(SEARCH_STEPS):
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                break
            try:
                step = cho_solve(cho_factor(-self.hessian(theta, rows)), gradient)
            except (LinAlgError, ValueError):
                break
            rise = float(step @ gradient)
            if rise < TOLERANCE**2 * self.dim:
                return theta + step, True
            share = min(1.0, LONGEST / np.abs(step / self.units).max())
            for _ in range(HALVINGS):
                moved = self.value_gradient(theta + share * step, rows)
                if moved[0] > value + LEAST_RISE * share * rise:
                    break
                share /= 2
            else:
                break
            theta, (value, gradient) = theta + share * step, moved
        return theta, False

    def _check_bounded(self, found: np.ndarray) -> None:
        lengths = np.abs(found / self.units)
        if not np.isfinite(found).all() or lengths.max() > LARGEST:
            blamed = self.tall.layout.name_of(int(np.argmax(np.nan_to_num(lengths))))
            raise NoReferenceError(
                f"the search for the posterior mode ran off to infinity, mostly in {blamed}: the "
                "data do not determine it and its prior does not either"
            )

    def factor(self, theta: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, bool]:
        """Factor the precision at a point, or say in which variable it is none."""
        self._check_finite(theta, precision)
        try:
            return cho_factor(precision)
        except LinAlgError:
            scale = np.sqrt(np.maximum(np.abs(np.diag(precision)), np.finfo(float).tiny))
            worst = int(
                np.argmax(np.abs(np.linalg.eigh(precision / np.outer(scale, scale))[1][:, 0]))
            )
            raise NoReferenceError(
                "the log-density is not concave where the search for its mode ended, mostly in "
                f"{self._at(theta, worst)}. {ELSEWHERE}"
            ) from None

    def _check_finite(self, theta: np.ndarray, precision: np.ndarray) -> None:
        if not np.isfinite(precision).all():
            worst = int(np.argmin(np.isfinite(precision).all(axis=0)))
            raise NoReferenceError(
                "second derivatives of the log-density are not finite where the search for its "
                f"mode leads, first by {self._at(theta, worst)}. Infinite data, such as "
                "upper=np.inf of a pm.Censored, are a frequent cause: put a large finite number in "
                "their place"
            )

    def _at(self, theta: np.ndarray, position: int) -> str:
        """Name a variable and say where it is."""
        return f"{self.tall.layout.name_of(position)} (there {theta[position]:.3g})"

    def check_falls_off(self, theta: np.ndarray, precision: np.ndarray, rows: _Rows | None) -> None:
        """Refuse a mode at infinity, which looks like one where the log-density is just flat."""
        directions = solve_triangular(cholesky(precision, lower=True), np.eye(self.dim), lower=True)
        both = np.vstack([directions, -directions])
        peak, *values = self.values(np.vstack([theta, theta + FAR * both]), rows)
        flat = np.flatnonzero(peak - np.array(values) < LEAST_FALL)
        if flat.size:
            blamed = self.tall.layout.name_of(int(np.argmax(np.abs(both[flat[0]]))))
            raise NoReferenceError(
                f"the log-density does not fall off from its mode, mostly in {blamed}: the "
                "data do not determine it (separation, say) and its prior does not either"
            )

    def polish(
        self, theta: np.ndarray, rows: _Rows | None, more: _Rows | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Move from the mode of some rows to that of all, by Newton steps with the Hessian of more.

        Where these steps do not shorten fast the search goes on with the Hessian of all rows.

        Returns
        -------
        theta
            The mode.
        precision
            That of these; where rows have kinks, that of all rows.
        """
        precision = self.precision(theta, rows)
        factor = self.factor(theta, precision)
        self.check_falls_off(theta, precision, rows)
        if self.kinked:
            return self._polish_kinked(theta, precision)
        if more is not rows:
            precision = self.precision(theta, more)
            factor = self.factor(theta, precision)
        start, last = theta, np.inf
        for _ in range(NEWTON_STEPS):
            _, gradient = self.value_gradient(theta, None)
            if not np.isfinite(gradient).all():  # a step too far, or rows that some do not tell of
                break
            step = cho_solve(factor, gradient)
            length = math.sqrt(step @ gradient)
            if length > SLOW * last:
                break
            theta, last = theta + step, length
            if length < TOLERANCE * math.sqrt(self.dim):
                return theta, precision
        return self.maximise(start, None), precision

    def _polish_kinked(
        self, theta: np.ndarray, precision: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Newton steps with the average curvature of all rows, while they bring something."""
        for _ in range(NEWTON_STEPS):
            precision = average_precision(lambda t: self.gradient(t, None), theta, precision)
            gradient = self.gradient(theta, None)
            step = cho_solve(self.factor(theta, precision), gradient)
            theta = theta + step
            if not np.isfinite(self.gradient(theta, None)).all():  # a step beyond a wall
                return theta - step, precision
            if step @ gradient < KINKED_LENGTH**2:
                break
        return theta, precision


def _prior_given(tall: TallModel, held: np.ndarray) -> Variable:
    """Build the prior part with the discrete variables held at their values in a flat point.

    A wide Gaussian takes their place, so that they are coordinates like the others of a search.
    """
    discrete = np.flatnonzero(~tall.layout.is_continuous)
    if not discrete.size:
        return tall.prior_graph
    flat: Any = tall.flat
    fixed: dict[Variable, Variable] = {flat: pt.set_subtensor(flat[discrete], held[discrete])}
    prior: Any
    [prior] = graph_replace([tall.prior_graph], fixed, strict=False)
    return prior - HELD / 2 * pt.sum((flat[discrete] - held[discrete]) ** 2)
