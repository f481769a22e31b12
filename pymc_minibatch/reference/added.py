"""Rows that were added to those of a reference: only theirs are summed.

Sums of gradients and Hessians over rows can be added wherever they are taken, as long as it is at
the same point for all rows. So the expansion stays about the old point θ̂, and with G and H the
sums over all rows there the new mode is a Newton step away:

    θ* = θ̂ + Λ⁻¹ (∇ log prior(θ̂) + G/T),  Λ = −∇² log prior(θ̂) − H/T.

A control variate is unbiased about any point, and moves are made about θ*. But remainders grow with
the distance of θ* from θ̂, about √(D m / N) posterior standard deviations for m rows added to N. If
that is far, the mode is searched again on all rows: for data that grow, each time when they have
grown by a quarter.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pymc_minibatch.reference.derivatives import Derivatives, row_derivatives
from pymc_minibatch.reference.reference import Reference
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.checksum import of_all, of_parts

__all__ = ["with_added_rows"]

NEAR = 0.5
"""The mode may lie so far from the point of the expansion, in posterior sds times √D."""

_log = logging.getLogger("pymc.minibatch")


def with_added_rows(
    tall: TallModel, old: Reference, prior: Derivatives, temperature: float, progressbar: bool
) -> Reference | None:
    """Add the sums over partitions that follow those of a reference; None if it has none.

    It also returns None, and says why, if all rows have to be read again.
    """
    if tall.partitions is None or not len(old.parts):
        return None
    found = _added(tall, old, prior, temperature, progressbar)
    if isinstance(found, str):
        _log.info(f"All rows are read to find the posterior mode: {found}.")
        return None
    return found


def _added(
    tall: TallModel, old: Reference, prior: Derivatives, temperature: float, progressbar: bool
) -> Reference | str:
    """Return the reference, or why there is none."""
    partitions, n_old = tall.partitions, len(old.parts)
    assert partitions is not None
    if not np.array_equal(partitions.lengths[:n_old], old.parts[:, 0]):
        return "the first partitions do not have the rows of those of the reference"
    if old.has_kinks:
        return "their log-likelihoods have kinks"
    if old.made_of.differences(tall.fingerprint)[0] or not old.agrees_on_rows(tall):
        return "rows that the reference has seen have another log-likelihood now"
    flat, rest = old.flat, partitions.after(n_old)
    sources: Sequence[Any] = tall.data
    data = [replace(values, partitions=rest) for values in sources]
    gradient, hessian, parts = old.gradient, old.hessian, old.parts
    if rest.n_rows:
        title = "Adding rows to the reference" if progressbar else None
        sums = row_derivatives(tall).gradient_hessian(flat, data, title)
        gradient, hessian = gradient + sums[0], hessian + sums[1]
        parts = np.concatenate([parts, of_parts(data)])
        tall.verify_at(flat, data=data)
    prior_hessian = prior.hessian(flat)
    precision = -(prior_hessian + hessian / temperature)
    slope = np.asarray(prior.slope_at(flat)()[1]) + gradient / temperature
    try:
        step = cho_solve(cho_factor(precision), slope)
    except (LinAlgError, ValueError):  # not positive definite, or not finite
        return "their log-density is not concave about the old mode"
    length = math.sqrt(step @ slope / flat.size)
    if length > NEAR:
        return f"it has moved by {length:.2g} posterior standard deviations"
    tall.part_checksums = parts
    return replace(
        old,
        mode=tall.layout.unflatten(flat + step),
        flat=flat,
        gradient=gradient,
        hessian=hessian,
        curvature=hessian,
        prior_hessian=prior_hessian,
        n_rows=tall.n_rows,
        checksum=of_all(parts),
        parts=parts,
        temperature=temperature,
        passes=rest.n_rows / tall.n_rows,
        made_of=tall.fingerprint,
    )
