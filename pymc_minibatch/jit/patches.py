"""One switch for what makes Numba and PyTensor compile otherwise than they do by themselves.

Linking (:mod:`pymc_minibatch.jit.linking`), files of the cache that may be broken
(:mod:`pymc_minibatch.jit.cache`) and rewrites of graphs for machine code rest on parts of Numba
that are not public. They only save time; ``benchmarks/cold_start.py`` says how much. So they are in
use with the versions that they were tested with, and with others Numba works as it comes.
"""

import os

from numba import __version__ as numba_version

__all__ = ["PATCHED", "is_known"]

KNOWN = ("0.68",)
"""Minor versions of Numba with which the tests of this package were run."""

VARIABLE = "PYMC_MINIBATCH_PATCHES"
"""An environment variable that decides instead: 0 is off, 1 is on."""


def is_known(version: str) -> bool:
    """Whether the patches are made for a version of Numba."""
    return ".".join(version.split(".")[:2]) in KNOWN


def decide(asked: str | None, version: str) -> bool:
    return is_known(version) if asked not in ("0", "1") else asked == "1"


PATCHED = decide(os.environ.get(VARIABLE), numba_version)
"""Whether they are in use; it does not change while Python runs."""
