"""Find the posterior mode, and what a Taylor expansion about it needs, in a few passes.

The mode is found on a subsample of the rows, then polished on all of them by Newton steps with the
subsample's Hessian. The last pass sums gradient and Hessian over all rows (:mod:`.derivatives`).
The control variates built on it are right for any reference point; a poor one only makes batches
larger. A few more searches, on few rows and from elsewhere, tell whether there are other modes.
If rows have kinks, second derivatives tell nothing, and gradients at the scale of the posterior
take their place.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pymc.model import Model
from scipy.linalg import solve_triangular

from pymc_minibatch.arguments import checked_temperature
from pymc_minibatch.reference.added import with_added_rows
from pymc_minibatch.reference.derivatives import Derivatives
from pymc_minibatch.reference.mode_search import find_mode, sample_rows
from pymc_minibatch.reference.other_modes import has_other_mode
from pymc_minibatch.reference.reference import NoReferenceError, Reference, prior_given
from pymc_minibatch.reference.search_density import SearchDensity
from pymc_minibatch.renamed import renamed
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import NO_DERIVATIVE
from pymc_minibatch.tall.model import split
from pymc_minibatch.warn import warn

__all__ = ["discrete_in_rows", "find_reference", "fitting", "search"]

SUBSAMPLE = 20_000
"""Rows on which the search starts."""

COMPARED_ROWS = 20
"""The likelihood of a reference is told from others by so many rows."""

VERIFIED_AT = 2.0
"""The split is verified again so many standard deviations to either side of the mode."""

_log = logging.getLogger("pymc.minibatch")


@renamed(tall="data")
def find_reference(
    model: Model | None = None,
    *,
    data: Any = None,
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
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, or the model already split, such as ``step.tall``; see
        :class:`TallModel`.
    temperature : float, default 1.0
        T > 0; the likelihood counts with power 1/T.
    start : dict of str to ndarray, or Reference, optional
        Start of the search: values of some or all value variables, as ``model.initial_point()``
        names them, or another reference, such as one of yesterday's data; the model's initial point
        if not given. Of several modes it finds one near there. Discrete variables stay there. If
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
        If the search diverges, for example because of separation under a flat prior; if it ends
        where the log-density is not concave; or if the rows depend on discrete variables.
    TypeError, ValueError
        If an argument is of the wrong type or out of range, or `start` is not of this model.

    Warns
    -----
    MinibatchWarning
        If there are other modes that are about as probable. The search can miss a mode: it starts
        from a few points only.

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
    tall = split(model, data)
    tall.check_sources()
    flat = _checked_start(tall, start)
    reference = None
    if isinstance(start, Reference):
        reference = _with_added_rows(tall, start, temperature, progressbar)
    reference = reference or search(tall, temperature, random_seed, progressbar, flat)
    if reference.several_modes:
        warn(
            "PMB106",
            "The posterior seems to have several modes. Chains will explore only the one that was "
            "found, and R-hat will not show it. Start chains elsewhere with "
            "find_reference(start=...), or set control_variate=0.",
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
    """Add the rows that follow those of a reference; None if all have to be read."""
    started = time.perf_counter()
    prior = Derivatives(prior_given(tall, old.flat), tall.flat)
    found = with_added_rows(tall, old, prior, temperature, progressbar)
    return found and replace(found, seconds=time.perf_counter() - started)


def search(
    tall: TallModel,
    temperature: float,
    random_seed: int = 0,
    progressbar: bool = True,
    start: np.ndarray | None = None,
    *,
    will_be_witnessed: bool = False,
) -> Reference:
    """Do what :func:`find_reference` does, without the warning, from a flat point."""
    started = time.perf_counter()
    if discrete := discrete_in_rows(tall):
        raise NoReferenceError(
            f"the rows depend on the discrete variables {discrete}, and a Taylor expansion is "
            "valid for one of their values only"
        )
    initial = tall.start.copy() if start is None else start
    fixed = initial.copy()
    try:
        density = SearchDensity(tall, temperature, progressbar, fixed)
    except NO_DERIVATIVE as error:
        raise NoReferenceError(
            f"the log-density cannot be differentiated twice: {error}"
        ) from error
    rng = np.random.default_rng(random_seed)
    sample = sample_rows(tall, SUBSAMPLE, rng)
    density.take_units(initial, sample)
    try:
        theta, precision = find_mode(density, initial, sample, rng)
    except NoReferenceError:
        if np.all(density.units == 1.0):
            raise
        # Few rows that tell far more than others make units too short to arrive.
        density.units = np.ones(initial.size)
        theta, precision = find_mode(density, initial, sample, rng)
    theta = np.where(tall.layout.is_continuous, theta, fixed)
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
        several_modes=has_other_mode(density, theta, initial, rng),
        passes=density.rows_read / tall.n_rows,
        seconds=time.perf_counter() - started,
        made_of=tall.fingerprint,
    )
    # Refuses what is not concave.
    factor, _ = density.factor(theta, reference.precision_at(temperature))
    shift = VERIFIED_AT * solve_triangular(factor, rng.standard_normal(theta.size))
    tall.verify_at(theta + shift, theta - shift, will_be_witnessed=will_be_witnessed)
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


def discrete_in_rows(tall: TallModel) -> list[str]:
    """Name the discrete variables that the rows read."""
    return [name for name in tall.row_parameters if name in tall.layout.discrete]


def _compared_rows(tall: TallModel) -> np.ndarray:
    """Return the numbers of rows at equal distances."""
    return np.unique(np.linspace(0, tall.n_rows - 1, COMPARED_ROWS).astype(np.int64))
