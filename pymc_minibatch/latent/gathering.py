"""Remainders of rows by their number: the one function of a model that tests have to know.

A test that reads rows itself is compiled anew for each number and type of arrays of data, which
takes seconds. This one calls a function by its address with the numbers of rows; the function finds
the data, gathers the rows and calls the remainders.

Of a remainder f(v) is small beside the expansion about v̂: several times all second derivatives,
which are the same in every decision. They are computed once and stored with the data, if that takes
little memory.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.memory import free_bytes
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
from pymc_minibatch.reference.remainders import (
    RowConstants,
    expansions,
    remainders,
    remainders_from_expansions,
    remainders_of_one,
)
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["Gathering"]


MOST_BYTES, MOST_SHARE = 2.0**30, 1 / 16
"""Memory that expansions may take in the process of a chain, and its share of what is free."""


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
    higher
        Whether readings say what higher orders are about.
    """

    def __init__(
        self, rows: RowFunctions, at: np.ndarray, data: tuple[np.ndarray, ...], higher: bool = False
    ) -> None:
        self._rows, self._at, self._data, self._higher = rows, at, data, higher
        self._numbers = (np.zeros(1, dtype=np.int64),)
        self._constants = rows.constants(at, batch_of_one(data))
        self._kept_alive: list[Any] = []

    @cached_property
    def density(self) -> Density:
        """Remainders at two readings.

        Its data are no arrays but the number of rows, and a batch is their numbers.
        """
        expansions = self._expansions()
        of_rows = remainders if expansions is None else remainders_from_expansions
        data = self._data if expansions is None else (*self._data, expansions)
        return self._density(_gathered, of_rows, data, (self._at, self._at), ())

    @cached_property
    def gaps(self) -> Density:
        """Those of second order at one reading, called with a gradient, which is left alone."""
        return self._density(
            _gathered_of_one, remainders_of_one, self._data, (self._at,), (self._at,)
        )

    def _expansions(self) -> np.ndarray | None:
        """Compute what belongs to φ̂ for all rows, shape (N, m); None if that is too large."""

        def of_chunk(*batch: np.ndarray) -> np.ndarray:
            found: np.ndarray = expansions(self._higher, self._constants, batch)
            return found

        one = of_chunk(*(np.array(values[:1]) for values in self._data))
        n_rows, width = len(self._data[0]), one.shape[1]
        if 8.0 * n_rows * width > min(MOST_BYTES, MOST_SHARE * free_bytes()):
            return None
        stored = np.empty((n_rows, width))
        for first, chunk in over_chunks(of_chunk, self._data):
            stored[first : first + len(chunk)] = chunk
        return stored

    def _density(
        self,
        make: Callable[..., Callable[..., np.ndarray]],
        of_rows: Callable[..., np.ndarray],
        data: tuple[np.ndarray, ...],
        before: tuple[np.ndarray, ...],
        after: tuple[np.ndarray, ...],
    ) -> Density:
        function, where = make(data), stored_arrays(data)
        address = address_of(of_rows, *before, self._constants, batch_of_one(data))
        # Addresses are good as long as what lies there is alive.
        self._kept_alive += [function, where, data]
        addresses = np.array((address, where.ctypes.data))
        constants = _Constants(self._constants, addresses)
        n_rows = np.broadcast_to(np.zeros(1, dtype=np.uint8), len(data[0]))
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
