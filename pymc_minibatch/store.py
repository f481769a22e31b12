"""A run on disk, that can be killed at any moment and continued.

A run is a folder: ``run.json`` with its settings, and a folder for each chain with where it starts
and its blocks of draws, one file each. A file holds the draws, their stats, and all that the chain
needs to go on after them; it gets its name when it is complete and on the disk, so a reader sees
all of it or nothing. Files hold NumPy arrays and JSON, and are read without unpickling anything.
"""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pymc.util import RandomGeneratorState, get_state_from_generator, random_generator_from_state

from pymc_minibatch.steps.common import Block, TallStep

__all__ = ["Begun", "Keeper", "Saved", "begin_store", "identity_of", "read_store", "restore"]

VERSION = 4
"""Of the files."""

RUN, START, JSON = "run.json", "start.npz", "json"


DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError)
"""What reading a damaged file raises."""


class Begun(NamedTuple):
    """What is on disk of a run.

    Attributes
    ----------
    settings : dict
        What it was begun with.
    chains : list of Saved
        Its chains.
    """

    settings: dict[str, Any]
    chains: list["Saved"]


class Saved(NamedTuple):
    """What is on disk of a chain.

    Attributes
    ----------
    folder : str
        Its path.
    start : ndarray
        The flat point at which it started.
    rng : numpy.random.Generator
        Its random numbers, as they were then.
    blocks : list of Block
        Its draws.
    state : dict
        What the step needs to go on after them; empty if there are none.
    not_read : list of Path
        Files of blocks that do not go on from those before them.
    """

    folder: str
    start: np.ndarray
    rng: np.random.Generator
    blocks: list[Block]
    state: dict[str, Any]
    not_read: Sequence[Path] = ()

    @property
    def done(self) -> int:
        """Draws that were made, tuning included."""
        return sum(len(block.points) for block in self.blocks)

    @property
    def point(self) -> np.ndarray:
        """Current point of the chain."""
        return self.blocks[-1].points[-1].copy() if self.blocks else self.start


@dataclass(frozen=True)
class Keeper:
    """Writes the blocks of a chain to its folder."""

    folder: str

    def __call__(self, block: Block, first: int, step: TallStep) -> None:
        """Write a block, given the number of its first draw, and the state of the step after it."""
        stats = {f"stat_{name}": values for name, values in block.stats.items()}
        state = state_of(step)
        _write(
            Path(self.folder) / f"{first:012}.npz",
            {"first": first, "state": state},
            {
                "points": block.points,
                **stats,
            },
        )


# --- Files ----------------------------------------------------------------------------------------


def begin_store(
    path: Path,
    settings: Mapping[str, Any],
    starts: list[tuple[np.ndarray, np.random.Generator]],
    step: TallStep,
) -> list[str]:
    """Make the folder of a run, and return those of its chains.

    Raises
    ------
    ValueError
        If there is something of this name.
    """
    if path.exists():
        raise ValueError(
            f"{path} exists. pmb.resume({str(path)!r}) continues the run in it; for another run "
            "name another folder."
        )
    new = path.with_name(f".{path.name}.{os.getpid()}")
    folders = [f"chain-{k}" for k in range(len(starts))]
    for folder, (start, rng) in zip(folders, starts, strict=True):
        (new / folder).mkdir(parents=True)
        arrays: list[np.ndarray] = []
        state = encoded(get_state_from_generator(rng), arrays)
        given = {f"array_{i}": values for i, values in enumerate(arrays)}
        _write(new / folder / START, {"rng": state}, {"start": start, **given})
    whole = {**settings, "version": VERSION, "run_of": identity_of(step)}
    (new / RUN).write_text(json.dumps(whole, indent=1))
    _sync(new / RUN)
    _sync(new)
    new.rename(path)
    _sync(path.parent)
    return [str(path / folder) for folder in folders]


def read_store(path: Path) -> Begun:
    """Read a run.

    Raises
    ------
    ValueError
        If there is none, or its files are damaged.
    """
    if not (path / RUN).exists():
        raise ValueError(f"{path} holds no run that pmb.sample(store=...) has begun.")
    try:
        settings = json.loads((path / RUN).read_text())
        version = settings["version"]
    except DAMAGED as error:
        raise ValueError(f"{path / RUN} cannot be read ({error}).") from error
    if version != VERSION:
        raise ValueError(
            f"{path} was written by another version of pymc_minibatch, in another format. Continue "
            "it with that version."
        )
    return Begun(settings, [_chain(path / f"chain-{k}") for k in range(settings["chains"])])


def _chain(folder: Path) -> Saved:
    """Read a chain, up to where a block is missing.

    Blocks may overlap, if a process of a killed run wrote another one after the run was continued.
    A block that does not go on from those before it is not read, nor are later ones.
    """
    about, arrays = _read(folder / START)
    blocks: list[Block] = []
    state: dict[str, Any] = {}
    done, n_read, files = 0, 0, sorted(folder.glob("[0-9]*.npz"))
    for file in files:
        try:
            told, found = _read(file)
        except ValueError as error:
            raise ValueError(f"{error} Delete this file: its draws are made again.") from error
        known, points = done - told["first"], found["points"]
        if known < 0 or (known and not _goes_on(points[:known], blocks, told["first"])):
            break
        n_read += 1
        if known >= len(points):
            continue
        stats = {
            name.removeprefix("stat_"): values[known:]
            for name, values in found.items()
            if name.startswith("stat_")
        }
        blocks.append(Block(points[known:], stats, []))
        given = [found[f"array_{i}"] for i in range(told["state"]["n_arrays"])]
        state, done = told["state"] | {"arrays": given}, told["first"] + len(points)
    given = [arrays[f"array_{i}"] for i in range(len(arrays) - 2)]  # beside the start and JSON
    template = RandomGeneratorState(None, None)
    rng = random_generator_from_state(decoded(about["rng"], given, template))
    return Saved(str(folder), arrays["start"], rng, blocks, state, files[n_read:])


def _goes_on(points: np.ndarray, blocks: Sequence[Block], first: int) -> bool:
    """Whether points are those of blocks from a draw on."""
    known = np.concatenate([block.points for block in blocks])[first:]
    return np.array_equal(points, known[: len(points)])


def _write(path: Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file that is complete once it has its name."""
    about = dict(about)
    state = about.get("state")
    if state is not None:
        given = {f"array_{i}": values for i, values in enumerate(state["arrays"])}
        arrays = {**arrays, **given}
        about["state"] = {**state, "arrays": None, "n_arrays": len(given)}
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **{JSON: text}, **arrays)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync(path.parent)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(arrays[JSON].tobytes()), arrays
    except (*DAMAGED, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read ({error}).") from error


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- States ---------------------------------------------------------------------------------------


def identity_of(step: TallStep) -> dict[str, str]:
    """Describe what has to be the same for a run to go on: step, settings, rows and model."""
    state: Any = step.sampling_state
    frozen = {
        each.name: repr(getattr(state, each.name))
        for each in fields(state)
        if each.metadata.get("frozen", False)
    }
    return {"step": type(step).__name__, **frozen, "made_of": step.made_of.to_json()}


def state_of(step: TallStep) -> dict[str, Any]:
    """Return what a step needs to go on, in plain values and arrays."""
    arrays: list[np.ndarray] = []
    state: Any = step.sampling_state
    varying = {
        each.name: encoded(getattr(state, each.name), arrays)
        for each in fields(state)
        if not each.metadata.get("frozen", False)
    }
    witness = None if step.witness is None else encoded(step.witness.counts, arrays)
    return {"fields": varying, "witness": witness, "arrays": arrays}


def restore(step: TallStep, saved: Mapping[str, Any]) -> None:
    """Put a step into a state that was saved.

    Raises
    ------
    ValueError
        If the state is that of another step.
    """
    state: Any = step.sampling_state
    arrays = saved["arrays"]
    changes = {
        name: decoded(value, arrays, getattr(state, name))
        for name, value in saved["fields"].items()
    }
    step.sampling_state = replace(state, **changes)
    if step.witness is not None and saved["witness"] is not None:
        step.witness.counts = decoded(saved["witness"], arrays, step.witness.counts)


def encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON has it; arrays are appended to a list, and referred to by number.

    Raises
    ------
    TypeError
        If it has parts that are neither plain values nor arrays of numbers.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufSU":
        arrays.append(np.array(value))
        return {"array": len(arrays) - 1, "scalar": isinstance(value, np.generic)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"items": {f.name: encoded(getattr(value, f.name), arrays) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {"items": {str(name): encoded(each, arrays) for name, each in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [encoded(each, arrays) for each in value]}
    raise TypeError(f"A state holds a {type(value).__name__}, which is not kept on disk.")


def decoded(value: Any, arrays: list[np.ndarray], template: Any) -> Any:
    """Undo :func:`encoded`; the kinds of tuples and data classes are those of a template."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        found = arrays[value["array"]].copy()
        return found[()] if value["scalar"] else found
    if "items" in value:
        items = value["items"]
        if is_dataclass(template) and not isinstance(template, type):
            parts = {n: decoded(v, arrays, getattr(template, n)) for n, v in items.items()}
            return replace(template, **parts)
        known = template if isinstance(template, Mapping) else {}
        return {name: decoded(each, arrays, known.get(name)) for name, each in items.items()}
    listed = value["list"]
    same = isinstance(template, list | tuple) and len(template) == len(listed)
    known_parts = template if same else [None] * len(listed)
    parts_of = [decoded(each, arrays, own) for each, own in zip(listed, known_parts, strict=True)]
    if hasattr(template, "_fields"):
        return type(template)(*parts_of)
    return parts_of if isinstance(template, list) else tuple(parts_of)
