"""A checksum of all rows, by which the same data are recognised wherever they lie."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np

from pymc_minibatch.tall.partitions import PartitionedArray
from pymc_minibatch.tall.passes import over_chunks

__all__ = ["checksum", "of_all", "of_parts"]

CHUNK_ENTRIES = 2**17
"""Entries of a chunk: what an entry takes in memory must not decide, since types may differ."""


def checksum(data: Sequence[np.ndarray]) -> int:
    """Take a checksum of values and order of the rows of all arrays, in one pass.

    Equal values give the same one whatever their type is; those in partitions, if partitions are
    the same.
    """
    if isinstance(data[0], PartitionedArray):
        return of_all(of_parts(data))
    parts = [part for values in data for part in _chunk_sums(values)]
    return crc32(np.array([len(data[0]), *parts], dtype=np.int64))


def of_parts(data: Sequence[Any]) -> np.ndarray:
    """Return rows and checksum of each partition, shape (parts, 2); none of rows elsewhere."""
    if not isinstance(data[0], PartitionedArray):
        return np.empty((0, 2), dtype=np.int64)
    partitions = data[0].partitions
    sums = partitions.run(_part_sum, title="Taking a checksum")
    return np.column_stack([partitions.lengths, np.array(sums, dtype=np.int64)])


def of_all(parts: np.ndarray) -> int:
    """Return the checksum of all rows, given :func:`of_parts`."""
    return crc32(np.array([parts[:, 0].sum(), *parts[:, 1]], dtype=np.int64))


def _part_sum(arrays: Sequence[np.ndarray]) -> int:
    return checksum(arrays)


def _chunk_sums(values: np.ndarray) -> list[int]:
    entries = max(1, values[:1].size)
    step = max(1, CHUNK_ENTRIES // entries)

    def chunk_sum(chunk: np.ndarray) -> int:
        return crc32(
            np.add(chunk, 0, dtype=np.float64, order="C")
        )  # -0.0 becomes 0.0, which it is equal to

    return [part for _, part in over_chunks(chunk_sum, [values], "Taking a checksum", step)]
