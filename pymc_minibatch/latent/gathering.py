"""Remainders of rows by their number: the one function of a model that tests have to know.

A test that reads rows itself is compiled anew for each number and type of arrays of data, which
takes seconds. This one calls a function by its address with the numbers of rows; the function finds
the data, gathers the rows and calls the remainders.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import (
    address_of,
    array_loader,
    batch_of_one,
    call_array,
    call_matrix,
    stored_arrays,
)
from pymc_minibatch.kernels.rows import make_take
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.remainders import RowConstants, remainders, remainders_of_one
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
    """

    def __init__(self, rows: RowFunctions, at: np.ndarray, data: tuple[np.ndarray, ...]) -> None:
        self._rows, self._at = rows, at
        self._data, self._stored = data, stored_arrays(data)
        self._numbers = (np.zeros(1, dtype=np.int64),)
        self._one = batch_of_one(data)
        self._constants = rows.constants(at, self._one)
        self._functions: list[Callable[..., np.ndarray]] = []

    @cached_property
    def density(self) -> Density:
        """Remainders at two readings.

        Its data are no arrays but the number of rows, and a batch is their numbers.
        """
        address = address_of(remainders, self._at, self._at, self._constants, self._one)
        return self._density(_gathered(self._data), address, (self._at, self._at), ())

    @cached_property
    def gaps(self) -> Density:
        """Those of second order at one reading, called with a gradient, which is left alone."""
        address = address_of(remainders_of_one, self._at, self._constants, self._one)
        return self._density(_gathered_of_one(self._data), address, (self._at,), (self._at,))

    def _density(
        self,
        function: Callable[..., np.ndarray],
        address: int,
        before: tuple[np.ndarray, ...],
        after: tuple[np.ndarray, ...],
    ) -> Density:
        self._functions.append(function)  # its address is good as long as it is alive
        where = np.array((address, self._stored.ctypes.data))
        constants = _Constants(self._constants, where)
        n_rows = np.broadcast_to(np.zeros(1, dtype=np.uint8), len(self._data[0]))
        found = address_of(function, *before, constants, self._numbers, *after)
        return Density((n_rows,), constants, found)


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

    return jit_kept(gathered, _kinds(data))


def _gathered_of_one(data: tuple[np.ndarray, ...]) -> Callable[..., np.ndarray]:
    take, load = make_take([values.ndim for values in data]), array_loader(data)

    def gathered_of_one(
        phi: np.ndarray, constants: _Constants, numbers: tuple[np.ndarray], unused: np.ndarray
    ) -> np.ndarray:
        batch: Any = take(load(constants.addresses[1]), numbers[0])
        return call_array(constants.addresses[0], (phi, constants.rows, batch))

    return jit_kept(gathered_of_one, _kinds(data))


def _kinds(data: tuple[np.ndarray, ...]) -> list[str]:
    return [f"{values.dtype} {values.ndim} {_layout(values)}" for values in data]


def _layout(values: np.ndarray) -> str:
    """Say what of an array beside its type determines how it is read."""
    flags = values.flags
    return f"{flags.c_contiguous} {flags.f_contiguous} {flags.writeable} {flags.aligned}"
