"""Chains as tasks of a Dask cluster."""

import pickle
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.model import Model
from pymc.util import RandomState, get_random_generator

from pymc_minibatch.arguments import checked_count, checked_model
from pymc_minibatch.results import note_made_of
from pymc_minibatch.tall.sources import by_value

__all__ = ["sample_on"]


def sample_on(
    client: Any,
    model: Model | None = None,
    *,
    step: Any,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    random_seed: RandomState = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Sample chains on a Dask cluster, each of them as a task.

    Workers get the step with the rows that it has fetched. If a worker dies, Dask runs its chain
    again elsewhere, with the same seed.

    Parameters
    ----------
    client : dask.distributed.Client
        The cluster.
    model : pymc.Model, optional
        The model; taken from the context if not given.
    step : MinibatchMH or another step, or a list of steps
        As for ``pm.sample``.
    draws, tune : int, default 1000
        As for ``pm.sample``.
    chains : int, default 4
        Number of chains.
    random_seed : int, sequence of int, or numpy.random.Generator, optional
        Chains get seeds that are spawned from it, or one seed each from a sequence of as many as
        there are chains. The same seed gives the same draws, whatever workers there are.
    **kwargs
        Further arguments of ``pm.sample``, such as ``var_names`` or ``initvals``: a dict for all
        chains, or a sequence of one for each.

    Returns
    -------
    DataTree
        The result of ``pm.sample``, with all chains.

    Raises
    ------
    TypeError
        If `client` is no client of a cluster.
    ValueError
        If an argument belongs to one machine (``cores``, ``mp_ctx``, ``trace``), or there are
        initial values for another number of chains.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> from dask.distributed import Client
    >>> data = np.random.default_rng(1).normal(3.0, size=10_000)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=data)
    ...     step = pmb.MinibatchMH()
    >>> with Client(processes=False, dashboard_address=None) as client:
    ...     idata = pmb.sample_on(
    ...         client, model, step=step, draws=200, tune=200, chains=2, random_seed=1,
    ...         progressbar=False,
    ...     )
    >>> idata.posterior["mu"].shape, float(idata.posterior["mu"].mean().round(1))
    ((2, 200), 3.0)
    """
    if not hasattr(client, "submit"):
        raise TypeError(
            f"sample_on takes a dask.distributed.Client; got {type(client).__name__}. On one "
            "machine use pm.sample."
        )
    if own := sorted({"cores", "mp_ctx", "trace", "return_inferencedata"} & set(kwargs)):
        raise ValueError(f"{own[0]} is for chains on one machine: leave it out, or use pm.sample.")
    import cloudpickle

    model = checked_model(model)
    kwargs |= {"draws": checked_count("draws", draws, 1), "tune": checked_count("tune", tune, 0)}
    chains = checked_count("chains", chains, 1)
    starts = _starts(kwargs.pop("initvals", None), chains)
    with by_value():
        job = cloudpickle.dumps((model, step, kwargs))
    rngs = _generators(random_seed, chains)
    [shipped] = client.scatter([job], broadcast=True, hash=False)
    futures = [
        client.submit(_sample, shipped, rng, start, pure=False)
        for rng, start in zip(rngs, starts, strict=True)
    ]
    try:
        return _together(client.gather(futures))
    finally:
        client.cancel(futures, force=True)


_one_at_a_time = Lock()
"""Chains of a process take turns: PyTensor compiles in one thread at a time."""


def _starts(initvals: Any, chains: int) -> list[Any]:
    """Return the initial values of each chain, given those of all or a sequence of them."""
    if initvals is None or isinstance(initvals, Mapping):
        return [initvals] * chains
    starts = list(initvals)
    if len(starts) != chains:
        raise ValueError(
            f"initvals is a sequence of {len(starts)}, and there are {chains} chains. Pass one "
            "dict for all of them, or one for each."
        )
    return starts


def _generators(random_seed: RandomState, chains: int) -> list[Any]:
    """Return the generator of each chain, of its own seed if there is one for each."""
    if isinstance(random_seed, Sequence | np.ndarray) and len(random_seed) == chains:
        return [np.random.default_rng(seed) for seed in random_seed]
    return list(get_random_generator(random_seed).spawn(chains))


def _sample(job: bytes, rng: np.random.Generator, initvals: Any) -> xr.DataTree:
    """Sample one chain."""
    from distributed import secede

    secede()  # or there would be no place for jobs that gather rows
    with _one_at_a_time:
        model, step, kwargs = pickle.loads(job)
        options = {"progressbar": False, "compute_convergence_checks": False} | kwargs
        with model:
            found = pm.sample(
                step=step, chains=1, cores=1, random_seed=rng, initvals=initvals, **options
            )
        note_made_of(found, step)
        return found


def _together(results: list[xr.DataTree]) -> xr.DataTree:
    """Join the chains of the groups that have some; the others are those of the first result."""
    groups = {}
    for path, node in results[0].subtree_with_keys:
        nodes = [node, *(dict(result.subtree_with_keys)[path] for result in results[1:])]
        datasets = [of_chain.to_dataset(inherit=False) for of_chain in nodes]
        if "chain" in datasets[0].dims:
            numbered = [
                dataset.assign_coords(chain=[chain]) for chain, dataset in enumerate(datasets)
            ]
            groups[path] = xr.concat(numbered, "chain", combine_attrs="override")
        else:
            groups[path] = node.to_dataset(inherit=False)
    return xr.DataTree.from_dict(groups)
