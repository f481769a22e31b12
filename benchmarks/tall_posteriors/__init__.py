"""Twelve posteriors of real tall data, programs that sample them, and one table of both."""

from benchmarks.tall_posteriors.catalogue import POSTERIORS, PROGRAMS, posterior_of, program_of
from benchmarks.tall_posteriors.linear import Linear
from benchmarks.tall_posteriors.tables import MissingPackageError, Table

__all__ = [
    "POSTERIORS",
    "PROGRAMS",
    "Linear",
    "MissingPackageError",
    "Table",
    "posterior_of",
    "program_of",
]
