"""Sample a model by the step that suits it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import pymc as pm
import xarray as xr
from pymc.model import Model
from pymc.util import RandomState

from pymc_minibatch.arguments import checked_choice, checked_count, checked_model
from pymc_minibatch.check import checked
from pymc_minibatch.in_blocks import sample_in_blocks
from pymc_minibatch.options import OF_NUTS, check_options, refuse_steps_of_others
from pymc_minibatch.results import note_made_of
from pymc_minibatch.steps import SGFS, SGHMC, SGLD, SGNHT, FlyMC, MinibatchMH
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.steps.row_deterministics import will_record
from pymc_minibatch.steps.waiting import WaitingStep
from pymc_minibatch.store import Begun, identity_of, read_store
from pymc_minibatch.tall import NotTallError
from pymc_minibatch.tall.fingerprint import MadeOf
from pymc_minibatch.tall.missing_responses import missing_responses
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
        with NUTS. A chain that finds this during tuning continues with NUTS from its current point.
        "error" never uses NUTS: a model that is not supported raises an error with the reason, and
        others are sampled by minibatches.
    step : step of this package, optional
        A step with settings of your own, instead of `method`.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own; see :class:`TallModel`.
    store : str or path, optional
        A new folder to which draws are written as they are made. If the run is interrupted, for
        whatever reason, :func:`resume` continues it. Runs of NUTS are not stored.
    random_seed : int, sequence of int, or numpy.random.Generator, optional
        As for ``pm.sample``. The same seed gives the same draws, whatever the number of cores.
    **kwargs
        Further arguments of ``pm.sample``, such as ``cores``, ``initvals``, ``var_names`` and
        ``progressbar``. With ``trace``, ``callback`` and others that need every draw separately,
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
    check : Estimates within seconds how the model would be sampled.
    worst : The parameters that have converged least.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=100_000)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    >>> idata = pmb.sample(model, chains=2, random_seed=1, progressbar=False)
    >>> idata.posterior["mu"].shape, float(idata.posterior["mu"].mean().round(1))
    ((2, 1000), 3.0)
    """
    checked_choice("method", method, ("auto", "nuts", *METHODS))
    checked_choice("fallback", fallback, ("nuts", "error"))
    source = _source_of(model)
    _refuse_options_of_nuts(kwargs, is_nuts=method == "nuts" and step is None)
    known = (*OWN, *source.options)
    check_options(source.model, step, kwargs | {"random_seed": random_seed}, known)
    draws, tune = checked_count("draws", draws, 1), checked_count("tune", tune, 0)
    options = {"draws": draws, "tune": tune, "random_seed": random_seed} | kwargs
    if chains is not None:
        options["chains"] = checked_count("chains", chains, 1)
    kept = kwargs.get("var_names") or source.names
    with will_record(kept):
        wanted = step if step is not None else _step_of(method, fallback, source.model, data)
    if wanted is None:
        if store is not None:
            warn(
                "PMB503",
                f"This run is not stored in {store}: it uses NUTS, and only runs with minibatches "
                "are stored.",
            )
        return source.fit(**options)
    refuse_steps_of_others(wanted, source.model)
    with source.model:
        if isinstance(wanted, WaitingStep):
            with will_record(kept):
                wanted = wanted[0]
        foreign = sorted(set(kwargs) - set(OWN))
        if _is_whole(wanted, source.model) and not foreign:
            options.setdefault("var_names", source.names)
            return source.result(sample_in_blocks(wanted, source.model, store=store, **options))
        if store is not None and missing_responses(source.model):
            raise ValueError(
                "store is for models without missing values of responses. Remove the rows without "
                "a response before you build the model, or leave store out."
            )
        if store is not None:
            raise ValueError(
                "store is for runs of one step that moves all variables, without "
                f"{', '.join(foreign) or 'others'}: leave one of them out."
            )
        idata = source.fit(step=wanted, **options)
    note_made_of(idata, wanted)
    return idata


def _refuse_options_of_nuts(options: Mapping[str, Any], is_nuts: bool) -> None:
    of_nuts = [name for name in OF_NUTS if name in options]
    if of_nuts and not is_nuts:
        raise ValueError(
            f"{of_nuts[0]} is an option of NUTS: pass method='nuts' with it, or leave it out."
        )


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
    data : dict, DataFrame, path, Columns or TallModel, optional
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
        If there is no run in the folder or its files are damaged, if the step, its settings or the
        rows are not those of the run, or if it has more than `draws` draws.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = np.random.default_rng(1).normal(3.0, size=100_000)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     run = Path(folder) / "run"
    ...     idata = pmb.sample(model, 100, chains=2, store=run, random_seed=1, progressbar=False)
    ...     longer = pmb.resume(run, model, draws=300, progressbar=False)
    >>> longer.posterior["mu"].shape
    (2, 300)
    >>> bool((longer.posterior["mu"][:, :100] == idata.posterior["mu"]).all())
    True
    """
    begun = read_store(Path(store))
    if foreign := sorted(set(kwargs) - set(OWN) | set(kwargs) & {"initvals"}):
        raise ValueError(f"{foreign[0]} is no option of a run that is continued: leave it out.")
    source, settings = _source_of(model), begun.settings
    check_options(source.model, step, kwargs, OWN)
    with source.model:
        if step is None:
            kind = {made.__name__: made for made in METHODS.values()}[settings["run_of"]["step"]]
            step = kind(data=data, model=source.model)
        elif isinstance(step, WaitingStep):
            step = step[0]
        refuse_steps_of_others(step, source.model)
        _check_same_run(step, settings["run_of"], Path(store))
        options = {"var_names": settings["var_names"]} | kwargs
        draws = _draws_in_the_end(begun, draws)
        for saved in begun.chains:
            for file in saved.not_read:
                file.unlink()
        idata = sample_in_blocks(
            step,
            source.model,
            draws=draws,
            tune=settings["tune"],
            random_seed=None,
            chains=settings["chains"],
            begun=begun,
            **options,
        )
    return source.result(idata)


def _draws_in_the_end(begun: Begun, draws: int | None) -> int:
    """Return how many draws each chain keeps, not fewer than it has.

    Raises
    ------
    ValueError
        If fewer are asked for.
    """
    has = max(saved.done for saved in begun.chains) - begun.settings["tune"]
    if draws is None:
        return max(int(begun.settings["draws"]), has)
    if checked_count("draws", draws, 1) < has:
        raise ValueError(
            f"draws is how many draws each chain keeps in the end, and {has:,} are kept already; "
            f"got {draws}. Leave it out, or ask for {has} or more."
        )
    return draws


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


# --- Models of PyMC and of Bambi ------------------------------------------------------------------


class _Source:
    """A model of PyMC: how PyMC samples it, and what becomes of its draws."""

    names: Sequence[str] | None = None
    """Variables that a result keeps if nobody names others; None for all."""

    options: Sequence[str] = ()
    """Options beside those of ``pm.sample``."""

    def __init__(self, model: Model | None) -> None:
        self.model = checked_model(model)

    def fit(self, **options: Any) -> xr.DataTree:
        """Let PyMC's loop make the draws."""
        with self.model:
            return pm.sample(**options)

    def result(self, idata: xr.DataTree) -> xr.DataTree:
        """Return what a run gives to the user."""
        return idata


class _BambiSource(_Source):
    """A model of Bambi, whose ``fit`` keeps no parameters of the likelihood, one for each row."""

    def __init__(self, bambi: Any) -> None:
        if not bambi.built:
            bambi.build()
        super().__init__(bambi.backend.model)
        self.bambi, params = bambi, bambi.family.likelihood.params
        self.options = list(signature(bambi.fit).parameters)
        left = [each.name for each in self.model.deterministics if each.name in params]
        self.names = [each.name for each in self.model.unobserved_RVs if each.name not in left]

    def fit(self, **options: Any) -> xr.DataTree:
        idata: xr.DataTree = self.bambi.fit(**options)
        return idata

    def result(self, idata: xr.DataTree) -> xr.DataTree:
        """Put the intercept back: predictors are centred."""
        cleaned: xr.DataTree = self.bambi.backend._clean_results(
            idata, omit_offsets=True, include_response_params=False
        )
        return cleaned


def _source_of(model: Any) -> _Source:
    """Return a model of PyMC or Bambi as such, or that of the context.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if model is None or isinstance(model, Model):
        return _Source(model)
    if not (hasattr(model, "build") and hasattr(model, "fit") and hasattr(model, "backend")):
        raise TypeError(
            f"model must be a pymc.Model or a bambi.Model; got an object of type "
            f"{type(model).__name__}."
        )
    return _BambiSource(model)
