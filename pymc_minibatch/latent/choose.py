"""What decides on the moves of a model with effects."""

import numpy as np

from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.latent.exact import ExactSampler
from pymc_minibatch.latent.locate import LatentModel, Sums, locate, without
from pymc_minibatch.latent.minibatch import MinibatchSampler
from pymc_minibatch.latent.modes import ModeSampler, find_modes
from pymc_minibatch.latent.moves.costs import LARGE
from pymc_minibatch.latent.moves.trajectory import MANY_HYPER
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.whole import WholeSampler
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

__all__ = ["make_latent_sampler", "most_read", "most_share", "moves_saved_by_hyper"]

MOST_READ, DERIVATIVES = 1 / 10, 4.0
"""Batches of a larger share of the rows take longer than to evaluate all of them, and of a still
smaller one where rows have many derivatives: so many cost about as much as the row itself."""

SAVED = 4.0
"""Moves of a large border by batches that a trajectory saves at its own cost: it replaces some 16,
and reads all rows some four times. Measured on births (372,864 rows, of which a move by batches
reads 3,300), where batches win, and on cancelled flights (336,776 and 15,000), where they lose."""

SAVED_BY_HYPER, MOST_SAVED_BY_HYPER = 0.4, 8.0
"""The same for each hyperparameter, and at most. Measured with two simplexes (20 hyperparameters,
27,360 ordinal rows, of which a move by batches reads 1,200): trajectories give two to seven times
as many effective draws in the same time."""


def make_latent_sampler(
    tall: TallModel,
    acceptance: Acceptance | None,
    temperature: float,
    by_size: bool = True,
    batch_size: int | None = None,
    effects: bool = True,
    may_sum: bool = True,
) -> LatentSampler:
    """Set up; by size, rows are drawn in proportion to what they can tell.

    If nothing is asked for, no row is read if sums say everything of them, and all are if
    batches would be a good part of them. Without a test the penalty test is taken, with the noise
    at which moves are cheapest; without a size of the first batches, each kind of moves tunes its
    own. Models without `effects` are set up where it is said that there are none. If sums may not
    be used, rows are read whatever they are.

    Raises
    ------
    NoFieldError
        If the model has no latent field that is nearly Gaussian given a few hyperparameters, or
        if the test is to be exact and sums do not say everything of the rows.
    """
    is_free = acceptance is None and by_size and batch_size is None
    must = acceptance is not None and acceptance.is_exact
    sums: Sums = "must" if must else "may" if is_free and may_sum else "no"
    latent_model = locate(tall, temperature, sums=sums, effects=effects)
    assert acceptance is None or acceptance.decides_levels

    def make(about: LatentModel) -> LatentSampler:
        if about.reference.is_exact:
            return ExactSampler(tall, about.reference)
        assert not must
        by_batches = MinibatchSampler(tall, about, acceptance, temperature, by_size, batch_size)
        if is_free and (pinned := by_batches.rows_to_pin()).size:
            return WholeSampler(tall, _without_if_possible(tall, about, pinned), temperature)
        rows_read = by_batches.rows_of_a_move * moves_saved(by_batches)
        if is_free and rows_read > most_share(about.rows) * tall.n_rows:
            return WholeSampler(tall, about, temperature)
        return by_batches

    with one_blas_thread():
        modes = find_modes(tall, latent_model)
        samplers = [make(latent_model._replace(reference=mode)) for mode in modes]
    if len({type(sampler) for sampler in samplers}) > 1:  # all rows decide everywhere
        samplers = [
            WholeSampler(tall, latent_model._replace(reference=mode), temperature) for mode in modes
        ]
    if len(samplers) > 1 and not samplers[0].has_determinant:
        raise NoFieldError(
            "There are several modes, and too many effects outside of the largest grouping factor "
            "to move between them."
        )
    return samplers[0] if len(samplers) == 1 else ModeSampler(samplers)


def _without_if_possible(
    tall: TallModel, latent_model: LatentModel, pinned: np.ndarray
) -> LatentModel:
    """Expand all rows but a few, unless the others do not determine the model."""
    try:
        return without(tall, latent_model, pinned)
    except NoFieldError:
        return latent_model


def moves_saved(sampler: LatentSampler) -> float:
    """Return how many moves by batches a trajectory saves: of a large border, and of a long h.

    Kinks of the prior stop trajectories, and scales of single coefficients move by themselves.
    """
    if sampler.reference.surrogate.kinks is not None:
        return 1.0
    of_border = SAVED if sampler.field.latent.dense.size > LARGE else 1.0
    n_hyper = sampler.field.hyper.size
    if n_hyper >= MANY_HYPER and sampler.model.has_own_scales:
        return of_border
    return max(of_border, moves_saved_by_hyper(n_hyper))


def moves_saved_by_hyper(n_hyper: int) -> float:
    """Return the same for so many hyperparameters."""
    few = n_hyper < MANY_HYPER
    return 1.0 if few else max(1.0, min(SAVED_BY_HYPER * n_hyper, MOST_SAVED_BY_HYPER))


def most_share(rows: RowFunctions) -> float:
    """Return :func:`most_read` of some rows."""
    return most_read(rows.n_predictors, len({last for *_, last in rows.triples}))


def most_read(k: int, n_differences: int | None = None) -> float:
    """Return the share of the rows from which on it costs less to evaluate all of them.

    Of a row in a batch the derivatives up to second order are needed, and those at other places to
    take differences of them.

    Parameters
    ----------
    k
        Predictors of a row.
    n_differences
        Predictors by which differences are taken; all if not given.
    """
    places = 1 + 2 * (k if n_differences is None else n_differences)
    return min(MOST_READ, DERIVATIVES / (places * (1 + k + k * (k + 1) // 2)))
