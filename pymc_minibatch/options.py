"""Options of ``pm.sample``, checked before a step is set up."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from multiprocessing import get_all_start_methods
from typing import Any

import numpy as np
import pymc as pm
from pymc.model import Model
from pymc.sampling.mcmc import sample as pymc_sample  # pm.sample may be wrapped
from pymc.step_methods.compound import BlockedStep, CompoundStep

from pymc_minibatch.arguments import checked_choice, checked_count
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.steps.waiting import WaitingStep

__all__ = ["OF_NUTS", "check_labels", "check_names", "check_options", "refuse_steps_of_others"]

OF_NUTS = ("target_accept", "max_treedepth", "nuts", "nuts_sampler", "init", "n_init", "backend")
"""Options of ``pm.sample`` that only NUTS has."""

SEEDS = (
    int,
    np.integer,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.SeedSequence,
    np.random.RandomState,
    Sequence,
    np.ndarray,
)
"""Types of seeds that NumPy and PyMC take."""


def check_options(
    model: Model, step: Any, options: Mapping[str, Any], own: Collection[str]
) -> None:
    """Refuse what ``pm.sample`` would refuse once the step is set up, or once it has sampled.

    Parameters
    ----------
    model
        The model.
    step
        What was passed as a step, or None.
    options
        The others, by name.
    own
        Names of options that ``pm.sample`` has not.

    Raises
    ------
    TypeError
        If the step is none, or there is no such option.
    ValueError
        If a value is out of range or names a variable that the model has not.
    """
    _check_step(step)
    known = {*signature(pymc_sample).parameters, *OF_NUTS, *own} - {"kwargs"}
    known |= {str(kind.name) for kind in pm.STEP_METHODS if getattr(kind, "name", None)}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f": did you mean {near[0]}?" if near else "."
            raise TypeError(f"{name} is no option of pmb.sample or pm.sample{meant}")
    if options.get("cores") is not None:
        checked_count("cores", options["cores"], 1)
    context, callback = options.get("mp_ctx"), options.get("callback")
    if isinstance(context, str):
        checked_choice("mp_ctx", context, tuple(get_all_start_methods()))
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function; got {callback!r}.")
    _check_seed(options.get("random_seed"))
    check_names(model, options.get("var_names"))
    _check_initvals(model, options.get("initvals"))
    result = signature(pm.to_inference_data).parameters
    for name in options.get("idata_kwargs") or ():
        if name not in result:
            raise ValueError(
                f"idata_kwargs has {name!r}, which is no argument of pm.to_inference_data: "
                f"{', '.join(result)}."
            )
    check_labels(model)


def _check_step(step: Any) -> None:
    for each in step if isinstance(step, list | tuple) else [step]:
        if isinstance(each, type) and issubclass(each, BlockedStep):
            package = "pmb" if issubclass(each, TallStep) else "pm"
            raise TypeError(
                f"{each.__name__} is the class of a step. Write step={package}.{each.__name__}()."
            )
        if each is not None and not isinstance(each, BlockedStep | CompoundStep | WaitingStep):
            raise TypeError(
                f"step must be a step, such as pmb.MinibatchMH(); got {each!r}. A method is chosen "
                "by its name with method=."
            )


def refuse_steps_of_others(step: Any, model: Model) -> None:
    """Refuse a step that would sample another model, though its variables have the same names.

    Raises
    ------
    ValueError
        If a step of this package was made for another model.
    """
    for each in step if isinstance(step, list | tuple) else [step]:
        if isinstance(each, TallStep) and each.tall.given_model is not model:
            kind = type(each).__name__
            raise ValueError(
                f"This {kind} was made for another model, which it would sample instead. Pass the "
                f"model that it was made for, or make the step anew: pmb.{kind}(model=model)."
            )


def _check_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, str | bool) or not isinstance(seed, SEEDS)):
        raise TypeError(
            f"random_seed must be a whole number, a list of them, or a generator; got {seed!r}."
        )


def check_names(model: Model, names: Any) -> None:
    """Refuse names of variables that are to be kept but are not in the model.

    Raises
    ------
    ValueError
        Naming the first.
    """
    if names is None:
        return
    known = [variable.name for variable in model.unobserved_RVs]
    if isinstance(names, str) or not len(names):
        raise ValueError(f"var_names must be a list of variables; got {names!r}.")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0]} is no variable of the model, which has {known}.")


def _check_initvals(model: Model, initvals: Any) -> None:
    known = {v.name: v for v in (*model.value_vars, *model.named_vars.values())}
    for each in initvals if isinstance(initvals, list | tuple | np.ndarray) else [initvals]:
        if each is not None and not isinstance(each, Mapping):
            raise TypeError(f"initvals must be a dict, or a list of dicts; got {each!r}.")
        unknown = [str(name) for name in each or () if str(name) not in known]
        if unknown:
            raise ValueError(
                f"initvals has {unknown[0]}, which is no variable of the model: {sorted(known)}."
            )
        for name, value in (each or {}).items():
            if not isinstance(value, str) and np.ndim(value) > known[str(name)].ndim:
                raise ValueError(
                    f"initvals of {name} has shape {np.shape(value)}, but the variable has "
                    f"{known[str(name)].ndim} dimensions."
                )


def check_labels(model: Model) -> None:
    """Refuse labels that xarray has not, which a result would have.

    Raises
    ------
    ValueError
        Naming the dimension.
    """
    used = {dim for dims in model.named_vars_to_dims.values() for dim in dims}
    for dim, labels in model.coords.items():
        if (
            dim in used
            and labels is not None
            and any(isinstance(label, list | tuple) for label in labels)
        ):
            raise ValueError(
                f"coords of {dim} are lists or tuples, which a result cannot have as labels. Join "
                "each to a string, for example."
            )
