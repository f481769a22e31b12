"""An array that holds row data, and how it travels to other processes."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from pymc_minibatch.tall.mapped import RowFile, read_only
from pymc_minibatch.tall.partitions import PartitionedArray
from pymc_minibatch.tall.refusals import leaf_name
from pymc_minibatch.tall.slicing import leaf_value
from pymc_minibatch.tall.sources import share

__all__ = ["RowInput", "inputs_along", "make_input"]


@dataclass(frozen=True)
class RowInput:
    """An array that holds row data.

    Attributes
    ----------
    name
        Name of the variable, or ``"constant"`` for an unnamed array in the graph.
    leaf
        The variable of the model's graph.
    axis
        The axis of the model's array along which the rows lie.
    values
        The data with rows along the first axis: an array, or where the rows stay elsewhere a
        ``PartitionedArray``.
    file
        Where they lie and what the file was when they were bound; None for arrays in memory.
    """

    name: str
    leaf: Variable
    axis: int
    values: Any
    file: RowFile | None = None

    def taken(self, rows: np.ndarray) -> "RowInput":
        """Return some rows as an input of its own."""
        return RowInput(self.name, self.leaf, self.axis, self.values[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle large arrays by reference to a file, so that processes share them."""
        if isinstance(self.values, PartitionedArray):
            return RowInput, (self.name, self.leaf, self.axis, self.values)
        return _restored_input, (self.name, self.leaf, self.axis, self.file or share(self.values))


def make_input(name: str, leaf: Variable, axis: int, values: Any) -> RowInput:
    """Take an array as row data, by reference where it lies in a file or in partitions."""
    if isinstance(values, PartitionedArray):
        return RowInput(name, leaf, axis, values)
    return RowInput(name, leaf, axis, read_only(values), RowFile.of(values))


def inputs_along(row_axes: Mapping[Variable, int]) -> dict[str, RowInput]:
    """Take arrays of a model as row data along an axis each; no two have the same name."""
    row_inputs: dict[str, RowInput] = {}
    for leaf, axis in row_axes.items():
        name = base = leaf_name(leaf)
        for number in itertools.count(1):
            if name not in row_inputs:
                break
            name = f"{base}_{number}"
        values = np.ascontiguousarray(np.moveaxis(leaf_value(leaf), axis, 0))
        row_inputs[name] = make_input(name, leaf, axis, values)
    return row_inputs


def _restored_input(name: str, leaf: Variable, axis: int, values: np.ndarray | RowFile) -> RowInput:
    if isinstance(values, RowFile):
        return RowInput(name, leaf, axis, read_only(values.open()), values)
    return RowInput(name, leaf, axis, read_only(values))
