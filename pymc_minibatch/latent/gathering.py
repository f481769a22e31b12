"""Remainders of rows by their number: the one function of a model that tests have to know.

A test that reads rows itself is compiled anew for each number and type of arrays of data, which
takes seconds. This one calls a function by its address with the numbers of rows; the function finds
the data, gathers the rows and calls the remainders.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import (
    address_of,
    array_loader,
    batch_of_one,
    call_matrix,
    stored_arrays,
)
from pymc_minibatch.kernels.rows import make_take
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.remainders import RowConstants, remainders
from pymc_minibatch.reference.rows import RowFunctions

__all__ = ["Gathering"]


class _Constants(NamedTuple):
    """What is the same for all rows, and the addresses of the remainders and of the data."""

    rows: RowConstants
    addresses: np.ndarray


class Gathering:
    """Remainders of rows by their number, as long as this is alive.

    Parameters
    ----------
    rows
        What the rows read.
    at : ndarray, shape (P,)
        φ̂.
    data
        All rows.

    Attributes
    ----------
    density : Density
        Its data are no arrays but the number of rows, and a batch is their numbers.
    """

    def __init__(self, rows: RowFunctions, at: np.ndarray, data: tuple[np.ndarray, ...]) -> None:
        self._data, self._stored = data, stored_arrays(data)
        one = batch_of_one(data)
        constants = rows.constants(at, one)
        found = address_of(remainders, at, at, constants, one), self._stored.ctypes.data
        everything = _Constants(constants, np.array(found))
        self._function = _gathered(data)
        numbers = (np.zeros(1, dtype=np.int64),)
        address = address_of(self._function, at, at, everything, numbers)
        n_rows = np.broadcast_to(np.zeros(1, dtype=np.uint8), len(data[0]))
        self.density = Density((n_rows,), everything, address)


def _gathered(data: tuple[np.ndarray, ...]) -> Callable[..., np.ndarray]:
    take, load = make_take([values.ndim for values in data]), array_loader(data)

    def gathered(
        first: np.ndarray,
        second: np.ndarray,
        constants: _Constants,
        numbers: tuple[np.ndarray],
    ) -> np.ndarray:
        batch: Any = take(load(constants.addresses[1]), numbers[0])
        return call_matrix(constants.addresses[0], (first, second, constants.rows, batch))

    kinds = [f"{values.dtype} {values.ndim} {_layout(values)}" for values in data]
    return jit_kept(gathered, kinds)


def _layout(values: np.ndarray) -> str:
    """Say what of an array beside its type determines how it is read."""
    flags = values.flags
    return f"{flags.c_contiguous} {flags.f_contiguous} {flags.writeable} {flags.aligned}"
