"""Draws of a step in blocks, as a result of ``pm.sample``."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.model import Model
from pymc.util import RandomState, get_random_generator

from pymc_minibatch.arguments import checked_count
from pymc_minibatch.convergence import convergence
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.jit.memory import fits, in_words, require_memory
from pymc_minibatch.recorded import Values, recorded
from pymc_minibatch.results import Result, note_made_of
from pymc_minibatch.run import Chain, Made, run_chains
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.store import Begun, Keeper, begin_store
from pymc_minibatch.tall import TallModel
from pymc_minibatch.warn import warn

__all__ = ["sample_in_blocks"]

_log = logging.getLogger("pymc.minibatch")

MOST_CHAINS = 4
"""Chains, and cores, if nothing else is asked for."""

COPIES_OF_DRAWS = 2
"""How often draws are in memory: as they come, and as the result."""

R_HAT_LIMIT, ESS_LIMIT, LEAST_DRAWS = 1.01, 100, 100
"""Beyond these PyMC warns; with fewer draws it does not look."""


def sample_in_blocks(
    step: TallStep,
    model: Model,
    *,
    draws: int,
    tune: int,
    random_seed: RandomState,
    chains: int | None = None,
    cores: int | None = None,
    blas_cores: int | Literal["auto"] | None = "auto",
    mp_ctx: Any = None,
    progressbar: Any = True,
    progressbar_theme: Any = None,
    quiet: bool = False,
    initvals: Any = None,
    var_names: Sequence[str] | None = None,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    idata_kwargs: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    begun: Begun | None = None,
) -> xr.DataTree:
    """Make the draws in blocks, and return what ``pm.sample`` would; or go on with a run."""
    cores = min(MOST_CHAINS, n_cores()) if cores is None else checked_count("cores", cores, 1)
    chains = max(2, cores) if chains is None else chains
    _ = step.vars  # which sets it up again if data were set
    n_kept = chains * (draws if discard_tuned_samples else tune + draws)
    values, bytes_of_draw = _values_that_fit(model, step.tall, var_names, n_kept)
    if begun is None:
        jobs = _chains(model, step, chains, random_seed, initvals)
    else:
        jobs = [
            Chain(k, c.rng, c.point, c.done, c.state or None, Keeper(c.folder))
            for k, c in enumerate(begun.chains)
        ]
    if store is not None:
        settings: dict[str, Any] = {"draws": draws, "tune": tune, "chains": chains}
        settings["var_names"] = var_names and list(var_names)
        folders = begin_store(Path(store), settings, [(c.start, c.rng) for c in jobs], step)
        jobs = [c._replace(keep=Keeper(f)) for c, f in zip(jobs, folders, strict=True)]
    started = time.time()
    made = run_chains(
        step,
        jobs,
        tune,
        draws,
        cores=cores,
        mp_ctx=mp_ctx,
        blas_cores=max(1, cores // min(cores, chains)) if blas_cores == "auto" else blas_cores,
        progressbar=progressbar and not quiet,
        progressbar_theme=progressbar_theme,
        bytes_of_draw=bytes_of_draw,
    )
    blocks = made.blocks
    if begun is not None:
        blocks = [c.blocks + new for c, new in zip(begun.chains, blocks, strict=True)]
    idata = recorded(
        values,
        blocks,
        tune,
        seconds=time.time() - started,
        discard_tuned_samples=discard_tuned_samples,
        idata_kwargs=idata_kwargs,
    )
    note_made_of(idata, step)
    _warn_of_an_early_end(made, idata)
    if compute_convergence_checks and not quiet:
        for message in _complaints(idata, [rv.name for rv in model.free_RVs]):
            _log.warning(message)
    return idata


def _warn_of_an_early_end(made: Made, idata: xr.DataTree) -> None:
    """Say so if not all draws were made."""
    if not (made.interrupted or made.memory_is_short):
        return
    had = idata["posterior"].sizes
    why = "was interrupted" if made.interrupted else "was stopped because memory is short"
    warn(
        "PMB201",
        f"The run {why}. The result has the {had['draw']:,} draws that "
        f"{had['chain']} of {len(made.blocks)} chains had made by then.",
    )


def _values_that_fit(
    model: Model, tall: TallModel, var_names: Sequence[str] | None, n_draws: int
) -> tuple[Values, float]:
    """Return what computes the variables that are kept, and the bytes of a draw of these.

    If draws of all variables do not fit into memory, those with one value per row are left out.
    Draws that do not fit even so are no error: the run stops when memory is short, and a person may
    mean to interrupt it before.

    Raises
    ------
    NotEnoughMemoryError
        If not even a few draws fit.
    """
    values = Values(model, tall.layout, var_names)
    sizes = {name: each.size for name, each in values(tall.start[None]).items()}
    of_draw = 8.0 * COPIES_OF_DRAWS * sum(sizes.values())
    if fits(n_draws * of_draw):
        return values, of_draw
    of_rows = tall.sizes_of_row_deterministics() if var_names is None else {}
    if of_rows:
        warn(
            "PMB504",
            f"{n_draws:,} draws of all variables take {in_words(n_draws * of_draw)} of memory, "
            f"more than is free. Deterministics {list(of_rows)}, which have one value for each of "
            f"the {tall.n_rows:,} rows, are left out. Compute them afterwards from some of the "
            "draws with pm.compute_deterministics, or name what to keep in var_names.",
        )
        left = [name for name in values.names if name not in of_rows]
        return _values_that_fit(model, tall, left, n_draws)
    largest = max(sizes, key=lambda name: sizes[name])
    what = f"draws of {sum(sizes.values()):,} numbers, of which {largest} has {sizes[largest]:,},"
    advice = "Take fewer draws or chains, or name in var_names what to keep."
    least = min(n_draws, LEAST_DRAWS)
    require_memory(least * of_draw, f"A result of {least:,} {what}", advice)
    warn(
        "PMB505",
        f"{n_draws:,} {what} take {in_words(n_draws * of_draw)} of memory, more than is free. The "
        f"run will stop when memory is short, and return the draws so far. {advice}",
    )
    return values, of_draw


def _chains(
    model: Model, step: TallStep, chains: int, random_seed: RandomState, initvals: Any
) -> list[Chain]:
    """Return chains with the seeds and starts that ``pm.sample`` gives them."""
    if isinstance(random_seed, int | np.integer) and random_seed == -1:
        raise ValueError("random_seed must not be -1. Pass None, or leave it out.")
    rngs = get_random_generator(random_seed).spawn(chains)
    seeds = [rng.integers(2**30) for rng in rngs]
    starts: list[Callable[..., Any]] = make_initial_point_fns_per_chain(
        model=model, overrides=initvals, jitter_rvs=set(), chains=chains
    )
    flatten = step.tall.layout.flatten
    return [
        Chain(k, rng, flatten(start(seed)))
        for k, (rng, start, seed) in enumerate(zip(rngs, starts, seeds, strict=True))
    ]


def _complaints(idata: xr.DataTree, names: Sequence[str]) -> list[str]:
    """Say what PyMC says of chains that have not converged, and of which parameters."""
    run = Result(idata)
    if run.n_draws < LEAST_DRAWS:
        return ["The number of draws is too small to check convergence."]
    if run.n_chains == 1:
        return ["Only one chain was sampled, which cannot show whether it has converged."]
    found = {}
    for name in names:
        if name in run.names:
            drawn = run.array(name).values
            found[name] = convergence(drawn.reshape(*drawn.shape[:2], -1))
    r_hat = {name: each.r_hat.max() for name, each in found.items() if each.r_hat.size}
    ess = {name: each.ess_bulk.min() for name, each in found.items() if each.r_hat.size}
    told = []
    if r_hat and max(r_hat.values()) > R_HAT_LIMIT:
        name = max(r_hat, key=lambda each: r_hat[each])
        told.append(
            f"The chains have not converged: R-hat is up to {r_hat[name]:.2f}, in {name}. Tune for "
            "longer, and see pmb.worst(idata)."
        )
    if ess and min(ess.values()) < ESS_LIMIT * run.n_chains:
        name = min(ess, key=lambda each: ess[each])
        told.append(
            f"There are {ess[name]:,.0f} effective draws of {name}, fewer than {ESS_LIMIT} per "
            "chain. Take more draws, and see pmb.worst(idata)."
        )
    return told
