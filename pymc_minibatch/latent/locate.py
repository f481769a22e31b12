"""Where a model with effects is: its factors, its field, and where to expand the rows."""

from typing import Literal, NamedTuple

import numpy as np

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.angles import Angles
from pymc_minibatch.latent.cholesky import refuse_large
from pymc_minibatch.latent.factors import Factor, find_factors, is_same_block, with_joined_levels
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.recognition import find_field, has_effects
from pymc_minibatch.latent.search import LatentReference, search
from pymc_minibatch.latent.shifts import find_shifts
from pymc_minibatch.latent.smoothing import find_smoothing, rows_have_kinks
from pymc_minibatch.latent.sums import ParabolicRows, find_parabolic_rows
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.gradients import NO_DERIVATIVE
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["LatentModel", "Sums", "locate", "structure_with_effects", "without"]

MOST_COLUMNS, MOST_ALONE = 6000, 50_000
"""Coefficients by which all rows multiply data, and coefficients and effects if there is no
grouping factor. A full matrix of the first size is factored in some seconds, and a search factors
it a hundred times; others may be banded, or sparse once a factor is eliminated, or are refused when
they are factored."""

Sums = Literal["no", "may", "must"]
"""Whether sums over rows may or must take the place of rows."""


class LatentModel(NamedTuple):
    """What is known of a model with effects before it is settled how moves are decided.

    Attributes
    ----------
    rows : RowFunctions
        What the rows read.
    factors : list of Factor
        The grouping factors.
    reference : LatentReference
        Where the log-likelihood is expanded.
    parabolic : ParabolicRows or None
        What sums say of the rows, where they say everything.
    """

    rows: RowFunctions
    factors: list[Factor]
    reference: LatentReference
    parabolic: ParabolicRows | None = None


def without(tall: TallModel, latent_model: LatentModel, left_out: np.ndarray) -> LatentModel:
    """Find again where a model is, by an expansion of all but a few rows."""
    rows, factors, reference, _ = latent_model
    field = reference.surrogate.field
    with one_blas_thread():
        found = search(
            tall, field, rows, factors, reference.temperature, left_out=left_out, near=reference
        )
    return latent_model._replace(reference=found)


def locate(
    tall: TallModel, temperature: float, *, sums: Sums = "no", effects: bool = True
) -> LatentModel:
    """Find the latent field of a model and where it is.

    The reference is exact where sums say everything of the rows, if they may. Models without
    effects are refused, unless none are asked for.

    Raises
    ------
    NoFieldError
        If the model has no latent field that is nearly Gaussian given a few hyperparameters, or
        no such sums where it must.
    """
    structure = structure_with_effects(tall) if effects else _known_structure(tall)
    parabolic = None if sums == "no" else find_parabolic_rows(tall, structure)
    if parabolic is not None:
        try:
            return _located(tall, structure, temperature, parabolic)
        except NoFieldError:  # none with the scalars as hyperparameters, or sums are wrong
            pass
    if sums == "must":
        raise NoFieldError("sums over the rows are not sufficient statistics of them.")
    return _located(tall, structure, temperature, None)


def _located(
    tall: TallModel,
    structure: RowStructure,
    temperature: float,
    parabolic: ParabolicRows | None,
) -> LatentModel:
    try:
        return _located_by_derivatives(tall, structure, temperature, parabolic)
    except NO_DERIVATIVE as error:  # of the prior, such as an interpolation by lines, or of rows
        raise NoFieldError(f"The log-density cannot be differentiated twice: {error}.") from error


def _located_by_derivatives(
    tall: TallModel,
    structure: RowStructure,
    temperature: float,
    parabolic: ParabolicRows | None,
) -> LatentModel:
    rows = RowFunctions(structure)
    # Threads of BLAS cost more than they save on matrices of this size.
    with one_blas_thread():
        own = find_factors(rows, tall.data)
        candidates = with_joined_levels(own, tall.layout.shapes)
        entries = [factor.entries for factor in candidates]
        scalars = np.empty(0, dtype=np.int64) if parabolic is None else parabolic.scalars
        field = find_field(tall, structure, entries, scalars)
        factors = _taken(candidates, own, field)
        if parabolic is None:
            _refuse_many(field, structure)
        start = field.derivatives.phi(field.derivatives.coordinates.from_model(tall.start))
        if rows_have_kinks(structure, start, tall.data):
            rows.smoothing = find_smoothing(rows, start, tall.data, np.zeros(start.size))
        reference = search(tall, field, rows, factors, temperature, parabolic=parabolic)
        mode = field.derivatives.coordinates.to_model(reference.surrogate.center)
        field.weigh(Angles.about(tall, mode))
        claim = reference.surrogate.violation(reference.hyper, reference.hyper_cholesky)
        if claim is not None:
            raise NoFieldError(f"{claim}, out in the posterior.")
        field.shifts = find_shifts(field, rows, tall.data, reference.surrogate.center)
        tall.verify_at(mode)
    return LatentModel(rows, factors, reference, parabolic)


def _taken(candidates: list[Factor], own: list[Factor], field: LatentField) -> list[Factor]:
    """Return factors as the field has them; of those that it has not, as rows read them."""
    swept = [levels.rows for levels in field.levels]
    taken = [
        factor
        for factor in candidates
        if any(factor.entries is rows for rows in swept)
        or (
            any(factor is each for each in own)
            and not any(is_same_block(factor.entries, rows) for rows in swept)
        )
    ]
    return sorted(taken, key=lambda factor: -factor.n_levels)


def _refuse_many(field: LatentField, structure: RowStructure) -> None:
    """Refuse what would be a full matrix that is too large."""
    columns = sum(t.block.stop - t.block.start for t in structure.terms if t.index is None)
    refuse_large(columns, MOST_COLUMNS)
    if not field.latent.groups.size:
        refuse_large(field.latent.dense.size, MOST_ALONE)


def structure_with_effects(tall: TallModel) -> RowStructure:
    """Return what the rows of a model with effects read.

    Raises
    ------
    NoFieldError
        If that is not known, or the model has no effects.
    """
    structure = _known_structure(tall)
    if not has_effects(tall, structure):
        raise NoFieldError("no variable depends on others, and there are few effects.")
    return structure


def _known_structure(tall: TallModel) -> RowStructure:
    if tall.structure is None:
        raise NoFieldError("the linear predictor of the rows was not identified.")
    return tall.structure
