"""The one way in which results are read: by name and by label, a variable at a time.

Whatever takes a result reads it through `Result`. Results come from `pm.sample`, Bambi, other
samplers and stores, which order variables, dimensions, labels, chains and draws as they like, leave
arrays on disk, stack chains and draws, or end chains early. Here all of them look alike, or are
refused.
"""

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_minibatch.elements import MOST_SHOWN, SAMPLE
from pymc_minibatch.tall.fingerprint import Changes, MadeOf

if TYPE_CHECKING:
    from pymc_minibatch.tall import TallModel

__all__ = [
    "Result",
    "interrupted",
    "named_results",
    "note_made_of",
]

MADE_OF = "made_of"
"""The attribute of sample_stats that says what a run was made of."""

GRADIENTS = ("n_steps", "tree_size", "num_steps", "num_integration_steps")
"""Names of the gradients of a trajectory: PyMC and nutpie, old PyMC, NumPyro, and BlackJAX."""


class Result:
    """A result as everything that reads it sees it.

    Parameters
    ----------
    idata
        Result of ``pm.sample``, or one of the same form: a DataTree, or an object with
        datasets as attributes.
    what
        How messages call it.

    Attributes
    ----------
    posterior
        The draws, with dimensions chain and draw, in the order of their labels. Arrays that were
        opened lazily stay on disk.

    Raises
    ------
    TypeError
        If it has no draws by chain and draw.
    ValueError
        If it has no draw at all.
    """

    def __init__(self, idata: Any, what: str = "idata") -> None:
        self.what = what
        self._idata = idata
        posterior = _group(idata, "posterior")
        posterior = None if posterior is None else _by_chain_and_draw(posterior)
        if posterior is None or not set(SAMPLE) <= set(posterior.sizes):
            raise TypeError(
                f"{what} must be a result of pm.sample, with chains and draws in its group "
                f"posterior; got an object of type {type(idata).__name__}."
            )
        if not posterior.sizes["chain"] * posterior.sizes["draw"]:
            raise ValueError(f"{what} has no draws.")
        self.posterior = posterior
        self._refuse_joined()

    def _refuse_joined(self) -> None:
        """Refuse chains of different models or rows, as far as they have recorded these."""
        for name, of in (("model_checksum", "models"), ("rows_checksum", "rows")):
            try:
                found = self.stat(name)
            except ValueError:  # stats of other draws, which matter to those who read them
                return
            chains = () if found is None else found
            recorded = [np.unique(chain[np.isfinite(chain) & (chain != 0)]) for chain in chains]
            known = [numbers for numbers in recorded if numbers.size]
            if any(not np.array_equal(numbers, known[0]) for numbers in known):
                raise ValueError(
                    f"{self.what} has chains of different {of}. Join chains of the same {of} only."
                )

    @property
    def n_chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    @property
    def n_draws(self) -> int:
        """Draws of each chain."""
        return int(self.posterior.sizes["draw"])

    @property
    def attrs(self) -> Mapping[Hashable, Any]:
        """What the sampler noted of the draws."""
        return self.posterior.attrs

    @cached_property
    def names(self) -> list[str]:
        """Variables that hold a number for each draw."""
        return [
            str(name)
            for name, values in self.posterior.data_vars.items()
            if set(SAMPLE) <= set(values.dims) and values.dtype.kind in "biuf"
        ]

    def array(self, name: str) -> xr.DataArray:
        """Read a variable; floats are float64, and chain and draw are the first dimensions."""
        values = self.posterior[name].transpose(*SAMPLE, ...).compute()
        return values.astype(np.float64) if values.dtype.kind == "f" else values

    def stat(self, name: str) -> np.ndarray | None:
        """Read a sample stat, shape (chains, draws, steps), of the draws that there are; or None.

        Stats that several steps record have one value for each of them, in their order.
        """
        if self._stats is None or name not in self._stats.data_vars:
            return None
        values = self._stats[name].transpose(*SAMPLE, ...).values
        return values.reshape(*values.shape[:2], -1)

    @cached_property
    def _stats(self) -> xr.Dataset | None:
        stats = _group(self._idata, "sample_stats")
        stats = None if stats is None else _by_chain_and_draw(stats)
        if stats is None or not set(SAMPLE) <= set(stats.sizes):
            return None
        for dim in SAMPLE:
            own, wanted = (part.indexes.get(dim) for part in (stats, self.posterior))
            same_size = stats.sizes[dim] == self.posterior.sizes[dim]
            if own is None or wanted is None or own.equals(wanted):
                found = same_size
            elif own.is_unique and wanted.is_unique and wanted.isin(own).all():
                stats, found = stats.isel({dim: own.get_indexer(wanted)}), True
            else:
                found = False
            if not found:
                raise ValueError(
                    f"{self.what} has sample_stats of other {dim}s than its posterior: "
                    f"{stats.sizes[dim]} and {self.posterior.sizes[dim]}. Take the same from both, "
                    f"as idata.isel({dim}=...) does."
                )
        return stats

    @property
    def rows_checksum(self) -> int | None:
        """Checksum of the rows of the run; None if it is not known."""
        return self._recorded_once("rows_checksum")

    def _recorded_once(self, name: str) -> int | None:
        """Return the number that all draws and steps have recorded, if it is one and not 0."""
        found = self.stat(name)
        known = None if found is None else np.unique(found[np.isfinite(found) & (found != 0)])
        return None if known is None or known.size != 1 else int(known[0])

    @cached_property
    def made_of(self) -> MadeOf | None:
        """What the run was made of, as its attributes say or this process knows; None if neither.

        What a file says in another form than that of this version is not known.
        """
        text = {} if self._stats is None else self._stats.attrs
        if isinstance(text.get(MADE_OF), str):
            try:
                return MadeOf.from_json(text[MADE_OF])
            except (ValueError, TypeError, KeyError):
                return None
        number, checksum = self._recorded_once("model_checksum"), self.rows_checksum
        return None if number is None else MadeOf.known(number, checksum or 0)

    def changes(self, tall: "TallModel") -> Changes:
        """Say what a model has otherwise than that of the run, apart from the rows.

        Nothing is said of runs that have recorded nothing of it.
        """
        if self.made_of is not None:
            return self.made_of.changes(tall)
        number = self._recorded_once("model_checksum")
        if number is None or self.n_rows != tall.n_rows:
            return Changes([], [])
        return tall.fingerprint.unlike(number)

    @property
    def is_stand_in(self) -> bool:
        """Whether rows were bound by data, so that the model holds others."""
        stand_in = self.stat("stand_in")
        return stand_in is not None and bool(np.any(stand_in))

    @property
    def n_rows(self) -> int | None:
        """Rows that a step of this package recorded."""
        recorded = self.stat("n_rows")
        return None if recorded is None else int(np.nanmax(recorded))

    @property
    def n_steps(self) -> int:
        """How many steps of this package made a draw."""
        recorded = self.stat("n_rows")
        return 0 if recorded is None else recorded.shape[2]

    @property
    def is_of_bambi(self) -> bool:
        """Whether Bambi made it, which moves intercepts after sampling."""
        return self.attrs.get("modeling_interface") == "bambi"

    @property
    def thinning(self) -> int:
        """Distance of the draws that are left, by their labels; 1 if that is not known."""
        labels = self.posterior.indexes.get("draw")
        if labels is None or labels.dtype.kind not in "iu" or len(labels) < 2:
            return 1
        steps = np.diff(labels.to_numpy())
        return int(steps[0]) if steps[0] > 1 and (steps == steps[0]).all() else 1

    def observed(self) -> Iterator[xr.DataArray]:
        """Give what was observed."""
        data = _group(self._idata, "observed_data")
        yield from () if data is None else data.data_vars.values()

    @cached_property
    def finished(self) -> np.ndarray:
        """Draws that each chain has made, shape (chains,): fewer if it was interrupted.

        Draws that were not made are nan in all variables, to the end of the chain.
        """
        floats = [name for name in self.names if self.posterior[name].dtype.kind == "f"]
        made = np.full((self.n_chains, self.n_draws), not floats)
        for name in floats:
            if made.all():
                break
            values = self.array(name).values
            made |= ~np.isnan(values.reshape(*values.shape[:2], -1)).all(axis=2)
        last = self.n_draws - made[:, ::-1].argmax(axis=1)
        return np.where(made.any(axis=1), last, 0)

    @property
    def is_made(self) -> np.ndarray:
        """Whether a draw was made, shape (chains, draws)."""
        made: np.ndarray = np.arange(self.n_draws) < self.finished[:, None]
        return made

    def rows_read(self, n_rows: int | None) -> np.ndarray | None:
        """Count row evaluations of each draw, shape (chains, draws), or None if not known.

        What was read for draws that are left out between two of them counts for the second.
        """
        read = self._rows_of_our_steps()
        if read is None:
            gradients = (self.stat(name) for name in GRADIENTS)
            n_steps = next((steps for steps in gradients if steps is not None), None)
            if n_steps is None or n_rows is None:
                return None
            read = n_steps.sum(axis=2) * n_rows
        counted: np.ndarray = np.where(self.is_made, np.nan_to_num(read), 0) * self.thinning
        return counted

    def _rows_of_our_steps(self) -> np.ndarray | None:
        """Add the rows of all steps: log-likelihoods or gradients, whichever are more, and scans.

        Steps that only follow gradients record no log-likelihoods.
        """
        likelihoods, gradients = self.stat("n_likelihood"), self.stat("n_gradient")
        scanned = self.stat("n_scanned")
        if likelihoods is None or gradients is None:
            known = likelihoods if gradients is None else gradients
            read = None if known is None else known.sum(axis=2)
        else:
            padded = np.zeros_like(gradients)
            with_both = _columns(gradients, likelihoods.shape[2])
            padded[..., with_both] = likelihoods
            read = np.maximum(padded, gradients).sum(axis=2)
        return read if read is None or scanned is None else read + scanned.sum(axis=2)

    def refuse_unfinished(self) -> None:
        """Refuse a run with chains that were interrupted.

        Raises
        ------
        ValueError
        """
        if not (text := interrupted(self)) or not self.finished.any():
            return
        begun = np.flatnonzero(self.finished)
        parts = [f"draw=slice({self.finished[begun].min()})"]
        parts += [f"chain={begun.tolist()}"] if begun.size < self.n_chains else []
        raise ValueError(
            f"{self.what} has draws that are not finite, since the run was interrupted: {text}. "
            f"Leave out what is missing, with idata.isel({', '.join(parts)})."
        )

    def check_finite(self, name: str, values: xr.DataArray) -> None:
        """Refuse draws that are not finite, or no numbers.

        Raises
        ------
        ValueError
        """
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"{name} has draws of dtype {values.dtype} in {self.what}, which are no real "
                "numbers. Convert them, as in .astype(float)."
            )
        bad = ~np.isfinite(values.values.reshape(*values.shape[:2], -1)).all(axis=2)
        if bad.any():
            self.refuse_unfinished()
            chain, draw = np.argwhere(bad)[0]
            raise ValueError(
                f"{name} has draws that are not finite: {int(bad.sum())} of {bad.size}, first "
                f"draw {draw} of chain {chain}. Leave them out, with "
                "idata.isel(draw=...) or idata.isel(chain=...), and look for the cause: a prior or "
                "a likelihood that overflows there."
            )


def named_results(runs: Any, baseline: str | None = None) -> dict[str, Result]:
    """Read several results by name.

    Raises
    ------
    TypeError
        If they are no mapping of results.
    ValueError
        If there is none, or the baseline is not among them.
    """
    if not isinstance(runs, Mapping):
        raise TypeError(
            "runs must be a dict of results by name, such as {'NUTS': idata}; got an object of "
            f"type {type(runs).__name__}."
        )
    if baseline is not None and baseline not in runs:
        raise ValueError(
            f"The baseline {baseline!r} is not among the runs, which are {list(runs)}."
        )
    if not runs:
        raise ValueError("runs is empty. Give at least one result.")
    return {name: Result(run, f"The run {name!r}") for name, run in runs.items()}


def note_made_of(idata: Any, step: Any) -> None:
    """Write what a run was made of into the attributes of its result, given its step or steps."""
    steps = list(step) if isinstance(step, list | tuple) else getattr(step, "methods", [step])
    known = [each.made_of for each in steps if hasattr(each, "made_of")]
    if known and isinstance(idata, xr.DataTree) and "sample_stats" in idata.children:
        idata["sample_stats"].attrs[MADE_OF] = known[0].to_json()


def interrupted(result: Result) -> str:
    """Say which chains ended early; empty if none did."""
    ended = np.flatnonzero(result.finished < result.n_draws)
    if not ended.size:
        return ""
    if ended.size == result.n_chains and np.ptp(result.finished) == 0:
        return f"all chains stopped after {result.finished[0]} of {result.n_draws} draws"
    chains = [f"chain {c} stopped after {result.finished[c]}" for c in ended[:MOST_SHOWN]]
    more = f" and {ended.size - MOST_SHOWN} others early" if ended.size > MOST_SHOWN else ""
    return f"{', '.join(chains)}{more} of {result.n_draws} draws"


def _group(idata: Any, name: str) -> xr.Dataset | None:
    """Return a group of a result."""
    if isinstance(idata, xr.DataTree):
        return idata[name].to_dataset() if name in idata.children else None
    if isinstance(idata, xr.Dataset | xr.DataArray):
        return None
    found = getattr(idata, name, None)
    if isinstance(found, xr.DataTree):
        return found.to_dataset()
    return found if isinstance(found, xr.Dataset) else None


def _by_chain_and_draw(group: xr.Dataset) -> xr.Dataset:
    """Unstack draws, and sort chains and draws by their labels."""
    for dim, index in group.indexes.items():
        if isinstance(index, pd.MultiIndex) and set(SAMPLE) <= set(index.names):
            group = group.unstack(dim)
            break
    for dim in SAMPLE:
        labels = group.indexes.get(dim)
        if labels is None or not labels.is_unique or labels.is_monotonic_increasing:
            continue
        try:
            group = group.isel({dim: np.asarray(labels.argsort())})
        except TypeError:  # labels that have no order
            continue
    return group


def _columns(gradients: np.ndarray, n: int) -> np.ndarray:
    """Find the n steps that record log-likelihoods; those of gradients read a fixed number."""
    flat = gradients.reshape(-1, gradients.shape[2])
    is_fixed = (flat == flat[0]).all(axis=0) & (flat[0] > 0)
    order = np.argsort(is_fixed, kind="stable")
    return np.sort(order[:n])
