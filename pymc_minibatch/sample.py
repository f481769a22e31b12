"""Sample a model by the step that suits it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.model import Model
from pymc.util import RandomState, get_random_generator

from pymc_minibatch.arguments import checked_choice, checked_count, checked_model
from pymc_minibatch.check import checked
from pymc_minibatch.convergence import convergence
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.jit.memory import fits, in_words, require_memory
from pymc_minibatch.recorded import Values, recorded
from pymc_minibatch.results import Result, note_made_of
from pymc_minibatch.run import Chain, run_chains
from pymc_minibatch.steps import SGFS, SGHMC, SGLD, SGNHT, FlyMC, MinibatchMH
from pymc_minibatch.steps.common import Block, TallStep, WaitingStep, will_record
from pymc_minibatch.store import Begun, Keeper, begin_store, identity_of, read_store
from pymc_minibatch.tall import NotTallError, TallModel
from pymc_minibatch.tall.fingerprint import MadeOf
from pymc_minibatch.warn import warn

__all__ = ["resume", "sample"]

_log = logging.getLogger("pymc.minibatch")

METHODS: Mapping[str, Callable[..., TallStep]] = {
    "minibatch": MinibatchMH,
    "flymc": FlyMC,
    "sghmc": SGHMC,
    "sgnht": SGNHT,
    "sgld": SGLD,
    "sgfs": SGFS,
}

OWN = (
    "cores",
    "blas_cores",
    "mp_ctx",
    "progressbar",
    "progressbar_theme",
    "quiet",
    "initvals",
    "var_names",
    "discard_tuned_samples",
    "compute_convergence_checks",
    "idata_kwargs",
)
"""Options of ``pm.sample`` that are understood here; with others it samples."""

OF_NUTS = ("target_accept", "max_treedepth", "nuts", "nuts_sampler", "init", "n_init", "backend")
"""Options of ``pm.sample`` that only NUTS has."""

MOST_CHAINS = 4
"""Chains, and cores, if nothing else is asked for."""

COPIES_OF_DRAWS = 2
"""How often draws are in memory: as they come, and as the result."""

R_HAT_LIMIT, ESS_LIMIT, LEAST_DRAWS = 1.01, 100, 100
"""Beyond these PyMC warns; with fewer draws it does not look."""


def sample(
    model: Any = None,
    draws: int = 1000,
    tune: int = 500,
    chains: int | None = None,
    *,
    method: Literal[
        "auto", "minibatch", "nuts", "flymc", "sghmc", "sgnht", "sgld", "sgfs"
    ] = "auto",
    fallback: Literal["nuts", "error"] = "nuts",
    step: Any = None,
    data: Any = None,
    store: str | Path | None = None,
    random_seed: RandomState = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Sample a model, by minibatches if that pays and by NUTS if it does not.

    One line in the log says which method is used, and why. With the same step, seed and number of
    chains the draws are those of ``pm.sample(step=...)``; they come in less time, since the step
    makes many of them in one call.

    Parameters
    ----------
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given. The result of a Bambi model is that of its
        ``fit``.
    draws : int, default 1000
        Draws that each chain keeps.
    tune : int, default 500
        Draws before them, in which each chain tunes.
    chains : int, optional
        Number of chains; as many as there are cores if not given, from 2 to 4.
    method : str, default "auto"
        The sampler: "auto" takes what :func:`check` names as ``method``. "minibatch" is
        :class:`MinibatchMH`; "nuts" is what ``pm.sample`` uses; "flymc", "sghmc", "sgnht", "sgld"
        and "sgfs" are the other steps with their default settings.
    fallback : {"nuts", "error"}, default "nuts"
        What happens if "auto" finds that minibatches cannot be used or do not pay. "nuts" samples
        with NUTS; so does a chain that finds it while it tunes, from where it is. "error" never
        does: a model that is not supported raises the reason, and others are sampled by
        minibatches.
    step : step of this package, optional
        A step with settings of your own, instead of `method`.
    data : mapping of str to array, or TallModel, optional
        Data instead of the model's own; see :class:`TallModel`.
    store : str or path, optional
        A new folder to which draws are written as they come. A run that ends before its time, for
        whatever reason, is continued by :func:`resume`. For NUTS there is none.
    random_seed : int, sequence of int, or numpy.random.Generator, optional
        As for ``pm.sample``. The same seed gives the same draws, whatever the number of cores.
    **kwargs
        Further arguments of ``pm.sample``, such as ``cores``, ``initvals``, ``var_names`` and
        ``progressbar``. With ``trace``, ``callback`` and others that need every draw by itself,
        ``pm.sample`` makes the draws.

    Returns
    -------
    DataTree
        The result of ``pm.sample``. An interrupted run returns the draws so far.

    Raises
    ------
    NotTallError
        If the model is not supported, and NUTS may not be used.
    ValueError
        If an argument is out of range.
    NotEnoughMemoryError
        If the set-up or the draws do not fit into memory; raised beforehand.
    SamplingError
        If the run was interrupted before any chain had made a draw after tuning.

    See Also
    --------
    check : Says in seconds what would be done.
    worst : The parameters that have converged least.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=100_000))
    >>> idata = pmb.sample(model)  # doctest: +SKIP
    """
    checked_choice("method", method, ("auto", "nuts", *METHODS))
    checked_choice("fallback", fallback, ("nuts", "error"))
    bambi = None if model is None or isinstance(model, Model) else _bambi(model)
    pymc_model = checked_model(model if bambi is None else bambi.backend.model)
    of_nuts = [name for name in OF_NUTS if name in kwargs]
    if of_nuts and (method != "nuts" or step is not None):
        raise ValueError(
            f"{of_nuts[0]} is an option of NUTS: pass method='nuts' with it, or leave it out."
        )
    if isinstance(step, type):
        raise TypeError(
            f"{step.__name__} is the class of a step. Write step=pmb.{step.__name__}()."
        )
    draws, tune = checked_count("draws", draws, 1), checked_count("tune", tune, 0)
    kept = kwargs.get("var_names") or (None if bambi is None else _bambi_names(bambi))
    with will_record(kept):
        wanted = step if step is not None else _step_of(method, fallback, pymc_model, data)
    options = {"draws": draws, "tune": tune, "random_seed": random_seed} | kwargs
    if chains is not None:
        options["chains"] = checked_count("chains", chains, 1)
    if wanted is None:
        if store is not None:
            warn(
                "PMB503",
                f"This run is not stored in {store}: it uses NUTS, and only runs with minibatches "
                "are stored.",
            )
        return _by_nuts(bambi, pymc_model, options)
    with pymc_model:
        if isinstance(wanted, WaitingStep):
            with will_record(kept):
                wanted = wanted[0]
        if not (_is_whole(wanted, pymc_model) and set(kwargs) <= set(OWN)):
            if store is not None:
                raise ValueError(
                    "store is for runs of one step that moves all variables, without "
                    f"{', '.join(sorted(set(kwargs) - set(OWN))) or 'others'}: leave one of them "
                    "out."
                )
            return _through_pymc(bambi, wanted, options)
        if bambi is not None:
            options.setdefault("var_names", _bambi_names(bambi))
        idata = _in_blocks(wanted, pymc_model, store=store, **options)
    return idata if bambi is None else _as_bambi(bambi, idata)


def _step_of(method: str, fallback: str, model: Model, data: Any) -> TallStep | None:
    """Choose and set up the step; None is NUTS.

    Raises
    ------
    NotTallError
        If the model is not supported, and NUTS may not be used.
    """
    if method == "nuts":
        return None
    of_chains: Literal["nuts"] | None = "nuts" if fallback == "nuts" else None
    if method == "minibatch":
        return MinibatchMH(data=data, fallback=of_chains, model=model)
    if method != "auto":
        return METHODS[method](data=data, model=model)
    found, tall, moved = checked(model, data)
    if found.method == "nuts" and fallback == "nuts" and data is None:
        _log.info(f"pmb.sample uses NUTS: {found.reasons[0]}")
        return None
    if tall is None:
        raise NotTallError(found.reasons[0])
    try:
        step = MinibatchMH(moved, data=tall, fallback=of_chains, model=model)
    except NotTallError as error:
        if fallback == "error" or data is not None:
            raise
        _log.info(f"pmb.sample uses NUTS: {error}")
        return None
    _log.info(f"pmb.sample uses MinibatchMH on {step.n_rows:,} rows: {step.choice}")
    return step


def _is_whole(step: Any, model: Model) -> bool:
    """Whether a step moves all variables by itself."""
    return isinstance(step, TallStep) and len(step.var_names) == len(model.value_vars)


def _by_nuts(bambi: Any, model: Model, options: Mapping[str, Any]) -> xr.DataTree:
    if bambi is not None:
        found: xr.DataTree = bambi.fit(**options)
        return found
    with model:
        return pm.sample(**options)


def _through_pymc(bambi: Any, step: Any, options: Mapping[str, Any]) -> xr.DataTree:
    """Let PyMC's loop make the draws."""
    found: xr.DataTree = (pm.sample if bambi is None else bambi.fit)(step=step, **options)
    note_made_of(found, step)
    return found


def _in_blocks(
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
    if begun is not None:
        jobs = [
            Chain(k, c.rng, c.point, c.done, c.state or None, Keeper(c.folder))
            for k, c in enumerate(begun.chains)
        ]
    else:
        jobs = _chains(model, step, chains, random_seed, initvals)
    if store is not None:
        folders = begin_store(
            Path(store),
            {
                "draws": draws,
                "tune": tune,
                "chains": chains,
                "var_names": var_names and list(var_names),
            },
            [(chain.start, chain.rng) for chain in jobs],
            step,
        )
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
    before: Sequence[list[Block]] = [[] for _ in jobs]
    if begun is not None:
        before = [chain.blocks for chain in begun.chains]
    idata = recorded(
        values,
        [old + new for old, new in zip(before, made.blocks, strict=True)],
        tune,
        seconds=time.time() - started,
        discard_tuned_samples=discard_tuned_samples,
        idata_kwargs=idata_kwargs,
    )
    note_made_of(idata, step)
    if made.interrupted or made.memory_is_short:
        had = idata["posterior"].sizes
        why = "was interrupted" if made.interrupted else "was stopped because memory is short"
        warn(
            "PMB201",
            f"The run {why}. The result has the {had['draw']:,} draws that "
            f"{had['chain']} of {chains} chains had made by then.",
        )
    if compute_convergence_checks and not quiet:
        for message in _complaints(idata, [rv.name for rv in model.free_RVs]):
            _log.warning(message)
    return idata


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


def resume(
    store: str | Path,
    model: Any = None,
    *,
    draws: int | None = None,
    step: Any = None,
    data: Any = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Continue a run that :func:`sample` has written to a folder.

    The result is that of a run that was never stopped: the same draws. It does not matter how the
    run was stopped, not even if its process was killed.

    Parameters
    ----------
    store : str or path
        The folder.
    model : pymc.Model or bambi.Model, optional
        The model of the run, with the same data; taken from the context if not given.
    draws : int, optional
        Draws that each chain keeps in the end; those of the run if not given. More extend a run,
        finished or not.
    step : step of this package, optional
        A step with the settings of the run, if it was begun with one.
    data : mapping of str to array, or TallModel, optional
        The data of the run, if it was begun with some.
    **kwargs
        As for :func:`sample`: ``cores``, ``progressbar``, ``var_names`` and others.

    Returns
    -------
    DataTree
        The result of :func:`sample`.

    Raises
    ------
    ValueError
        If there is no run in the folder, or the step, its settings or the rows are not those of the
        run.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=100_000))
    >>> idata = pmb.sample(model, store="run")  # doctest: +SKIP
    >>> idata = pmb.resume("run", model)  # doctest: +SKIP
    """
    begun = read_store(Path(store))
    if foreign := sorted(set(kwargs) - set(OWN) | set(kwargs) & {"initvals"}):
        raise ValueError(f"{foreign[0]} is no option of a run that is continued: leave it out.")
    bambi = None if model is None or isinstance(model, Model) else _bambi(model)
    pymc_model = checked_model(model if bambi is None else bambi.backend.model)
    settings = begun.settings
    with pymc_model:
        if step is None:
            kind = {made.__name__: made for made in METHODS.values()}[settings["run_of"]["step"]]
            step = kind(data=data, model=pymc_model)
        elif isinstance(step, WaitingStep):
            step = step[0]
        _check_same_run(step, settings["run_of"], Path(store))
        options = {"var_names": settings["var_names"]} | kwargs
        draws = settings["draws"] if draws is None else checked_count("draws", draws, 1)
        idata = _in_blocks(
            step,
            pymc_model,
            draws=draws,
            tune=settings["tune"],
            random_seed=None,
            chains=settings["chains"],
            begun=begun,
            **options,
        )
    return idata if bambi is None else _as_bambi(bambi, idata)


def _check_same_run(step: TallStep, known: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on with another step, on other rows, or with another likelihood or prior.

    Raises
    ------
    ValueError
        Naming what differs.
    """
    now, before = identity_of(step), MadeOf.from_json(known["made_of"])
    differ = [name for name in known if name != "made_of" and now.get(name) != known[name]]
    changes, sources = before.changes(step.tall), before.other_sources(step.tall)
    if before.rows_checksum != step.rows_checksum and before.n_rows == step.n_rows:
        what = f"rows were others ({sources})" if sources else "rows were others"
    elif changes.likelihood or changes.prior:
        what = f"{changes} since"
    elif differ:
        what = f"{differ[0]} was {known[differ[0]]}, and is {now.get(differ[0])}"
    else:
        return
    raise ValueError(
        f"The run in {path} cannot be continued: {what}. Pass the model, the data and the step of "
        "the run."
    )


# --- Bambi ----------------------------------------------------------------------------------------


def _bambi(model: Any) -> Any:
    """Build a Bambi model.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if not (hasattr(model, "build") and hasattr(model, "fit") and hasattr(model, "backend")):
        raise TypeError(
            f"model must be a pymc.Model or a bambi.Model; got an object of type "
            f"{type(model).__name__}."
        )
    if not model.built:
        model.build()
    return model


def _bambi_names(bambi: Any) -> list[str]:
    """List what ``fit`` of Bambi keeps: not the parameters of the likelihood, one for each row."""
    model, params = bambi.backend.model, bambi.family.likelihood.params
    left = [each.name for each in model.deterministics if each.name in params]
    return [each.name for each in model.unobserved_RVs if each.name not in left]


def _as_bambi(bambi: Any, idata: xr.DataTree) -> xr.DataTree:
    """Return what ``fit`` of Bambi makes of draws of its model, whose predictors are centred."""
    found: xr.DataTree = bambi.backend._clean_results(
        idata, omit_offsets=True, include_response_params=False
    )
    return found
