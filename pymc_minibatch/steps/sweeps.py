"""What steps share that sweep over the effects of a model."""

from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.acceptance import Exact, Penalty
from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.modes import ModeSampler
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.recognition import has_effects
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.weight_check import Contradiction
from pymc_minibatch.messages import with_id
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = [
    "ROUNDS",
    "EffectsPlan",
    "complaint_of_level",
    "copied_for_effects",
    "plan_effects",
    "scans_of_draw",
    "stats_of_effects",
    "stats_of_sampler",
]

ROUNDS, ROUNDS_WITH_DETERMINISTICS = 2, 4
"""Moves of all effects for a draw; and for one at which PyMC evaluates a number for each row."""

MANY_ROWS = 200_000
"""With fewer rows this evaluation is cheaper than a round."""


class EffectsPlan(NamedTuple):
    """How a model with effects is sampled.

    Attributes
    ----------
    sampler
        Its moves, and what decides on them.
    acceptance
        The test.
    rows
        "size" or "uniform".
    choice
        What decides, in words.
    """

    sampler: LatentSampler
    acceptance: Acceptance
    rows: str
    choice: str


def plan_effects(
    tall: TallModel, acceptance: Acceptance | None, rows: str, temperature: float, **options: Any
) -> EffectsPlan:
    """Settle how effects and their scales are moved, by a test that is asked for or any.

    Parameters
    ----------
    tall, acceptance, temperature, **options
        As :func:`.make_latent_sampler` takes them.
    rows : {"auto", "size", "uniform"}
        How rows are drawn.

    Raises
    ------
    NoFieldError, LinAlgError
        If the model has no effects that can be moved so.
    """
    sampler = make_latent_sampler(tall, acceptance, temperature, rows != "uniform", **options)
    if isinstance(sampler, ModeSampler):
        _warn_of_modes(sampler)
    if not sampler.by_batches:
        return EffectsPlan(sampler, Exact(), "uniform", f"Exact: {sampler.describe()}.")
    test = acceptance or Penalty()
    name = type(test).__name__
    if isinstance(test, Penalty):
        name += " of tuned sigma" if acceptance is None else f" at sigma {test.sigma:g}"
    rows = "uniform" if rows == "uniform" else "size"
    return EffectsPlan(sampler, test, rows, f"{name}: {sampler.describe()}.")


def scans_of_draw(tall: TallModel) -> int:
    """Return how many rounds of moves make a draw, where that is left open."""
    many = tall.n_rows >= MANY_ROWS and bool(tall.deterministics_of_rows())
    return ROUNDS_WITH_DETERMINISTICS if many else ROUNDS


def stats_of_effects(counts: MoveCounts) -> dict[str, Any]:
    """Return the acceptance rate of all moves, and the stats of effects."""
    shares = counts.by_stat()
    kinds = {stat: float(np.mean(accepted or [np.nan])) for stat, accepted in shares.items()}
    return {
        "acceptance_rate": float(np.mean([a for accepted in shares.values() for a in accepted])),
        "acceptance_rate_hyper": kinds["hyper"],
        "acceptance_rate_dense": kinds["dense"],
        "acceptance_rate_groups": kinds["groups"],
        "n_sweeps": counts.sweeps,
        "rows_per_sweep": counts.sweep_rows / counts.sweeps if counts.sweeps else np.nan,
    }


def stats_of_sampler(latent: LatentSampler, counts: MoveCounts) -> dict[str, Any]:
    """Return the stats of a draw in which a test or all rows decide on moves of effects."""
    n_decisions = max(counts.decisions, 1)
    values, gradients = latent.evaluations
    n_read_for_slopes = counts.n_slopes * latent.tall.n_rows if latent.has_slopes else 0
    return {
        "n_likelihood": values * counts.n_evaluated,
        "n_gradient": gradients * counts.n_evaluated + n_read_for_slopes,
        "n_scanned": 0,
        "batch_size": counts.batch_rows / n_decisions,
        "log_ratio_var": counts.variance / n_decisions,
        "test_error": counts.test_error,
        "exact": not latent.by_batches,
        "diverging": False,
        **stats_of_effects(counts),
    }


def copied_for_effects(tall: TallModel) -> TallModel:
    """Copy rows in partitions to this machine where the model has effects, and say so."""
    structure = tall.structure
    if tall.partitions is None or structure is None or not has_effects(tall, structure):
        return tall
    size = tall.row_bytes * tall.n_rows
    warn(
        "PMB501",
        "Updates of effects may read any row at any time, so the "
        f"{size / 1e9:,.1f} GB of rows are copied to this machine. With acceptance='exact', "
        "or a reference= of your own, all variables are updated jointly instead, and rows stay in "
        "their partitions.",
    )
    return tall.copied()


def _warn_of_modes(sampler: ModeSampler) -> None:
    """Name the variables in which modes differ."""
    names = ", ".join(sampler.differing())
    warn(
        "PMB107",
        f"The posterior has {len(sampler.samplers)} modes, which differ in {names}. Chains start "
        "about all of them and jump between them; if R-hat says that they do not mix, there are "
        "too few jumps: make one mode improbable by the prior, or by a constraint on a sign.",
    )


def complaint_of_level(tall: TallModel, contradicted: Contradiction) -> str:
    """Say that a level is where its own rows object."""
    name = tall.layout.name_of(contradicted.position)
    element = contradicted.position - tall.layout.slices[name].start
    return with_id(
        "PMB204",
        f"{name}[{element}] has moved to a value that its own rows contradict: their "
        f"log-likelihood is {contradicted.nats:,.0f} below what the minibatches indicated. "
        "Draws of it and of all that depends on it are wrong. Please report this model; "
        "meanwhile, set a larger batch_size.",
    )
