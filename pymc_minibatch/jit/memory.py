"""How much memory this process may still take, and whether what is to be made fits into it.

Large arrays are budgeted before they are made: the caller says what they are for and how many bytes
they take, takes a plan that needs less if there is one, and otherwise stops in words, before work
begins. An operating system would end the process without any.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pymc_minibatch.messages import IdentifiedError

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

__all__ = [
    "LEAST_BYTES",
    "NotEnoughMemoryError",
    "fits",
    "free_bytes",
    "give_back_memory",
    "in_words",
    "require_memory",
]

LEAST_BYTES = 64e6
"""Bytes: less than this is not budgeted."""

SHARE = 0.9
"""Share of the free memory that may be planned for; estimates leave small arrays out."""

LIMIT_VARIABLE = "PYMC_MINIBATCH_MEMORY"
"""Environment variable: bytes that this process may take in all, such as 4e9."""

MEMINFO, STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
OWN_GROUPS = Path("/proc/self/cgroup")
ROOTS = {"": Path("/sys/fs/cgroup"), "memory": Path("/sys/fs/cgroup/memory")}
"""Folders of control groups of the second version, and of those of the first for memory."""

FILES = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Limit and use of a control group, by its version."""


class NotEnoughMemoryError(IdentifiedError, MemoryError):
    """Something needs more memory than is free; the message names it and says what to do.

    It is raised before the work begins, so nothing is lost and the process continues. The limit is
    the smallest amount that is left by the machine, the control groups of its container,
    ``ulimit -v`` and the environment variable ``PYMC_MINIBATCH_MEMORY`` (total bytes of the
    process).

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> issubclass(pmb.NotEnoughMemoryError, MemoryError)
    True
    """

    id = "PMB608"


def free_bytes() -> float:
    """Return the bytes that this process may still take; inf if nothing says.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import free_bytes
    >>> free_bytes() > 0
    True
    """
    return max(0.0, min(_of_machine(), _of_process(), *_of_containers(), float("inf")))


def fits(n_bytes: float) -> bool:
    """Whether arrays of so many bytes can be made.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import fits
    >>> fits(8.0), fits(1e18)
    (True, False)
    """
    return n_bytes < LEAST_BYTES or n_bytes <= SHARE * free_bytes()


def require_memory(n_bytes: float, what: str, advice: str) -> None:
    """Stop before arrays are made that do not fit.

    Parameters
    ----------
    n_bytes
        Bytes that they take together.
    what
        What takes them, the subject of a sentence.
    advice
        What to do: whole sentences.

    Raises
    ------
    NotEnoughMemoryError
        If more is needed than is free.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import require_memory
    >>> require_memory(1e18, "A matrix of everything", "Take fewer parameters.")
    Traceback (most recent call last):
    pymc_minibatch.jit.memory.NotEnoughMemoryError: A matrix of everything needs ...
    """
    if fits(n_bytes):
        return
    raise NotEnoughMemoryError(
        f"{what} needs {in_words(n_bytes)} of memory, but {in_words(free_bytes())} is free. "
        f"{advice}"
    )


def in_words(n_bytes: float) -> str:
    """Write a number of bytes in MB or GB.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import in_words
    >>> in_words(2.5e9), in_words(8e7)
    ('2.5 GB', '80 MB')
    """
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"


def give_back_memory() -> None:
    """Return freed memory to the operating system, if the C library is glibc.

    It keeps what lies between arrays that are still needed: after the set-up of a model with
    100,000 effects and a million rows, 260 MB of 390. Forked processes would copy that, too.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import give_back_memory
    >>> give_back_memory()
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _of_machine() -> float:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return float("inf")
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * int(found[0]) if found else float("inf")  # it counts in KiB


def _of_process() -> float:
    """Return what is left of the limits of the process: addresses, and what a person asked for."""
    try:
        addresses, resident = (int(pages) for pages in STATM.read_text().split()[:2])
        page = os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        addresses = resident = page = 0
    left = float("inf")
    if resource is not None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            left = float(limit - addresses * page)
    if asked := os.environ.get(LIMIT_VARIABLE):
        try:
            left = min(left, float(asked) - resident * page)
        except ValueError:
            raise ValueError(
                f"The environment variable {LIMIT_VARIABLE} is {asked!r}. Write the bytes that "
                "this process may take as a number, such as 4e9."
            ) from None
    return left


def _of_containers() -> Iterator[float]:
    """Yield what is left of the limits of the control groups of this process, and of theirs."""
    for group in dict.fromkeys(_groups()):
        for limit, used in FILES:
            with suppress(OSError, ValueError):  # a limit may be "max", which is none
                most, taken = (int((group / name).read_text()) for name in (limit, used))
                yield float(most - taken) + _given_back(group)


def _groups() -> Iterator[Path]:
    """Yield the folders of the control groups of this process, and of those that they are in."""
    yield from ROOTS.values()  # all that a container sees of its own
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        for kind in kinds.split(","):
            if kind in ROOTS:
                group = ROOTS[kind] / path.lstrip("/")
                while group != ROOTS[kind] and ROOTS[kind] in group.parents:
                    yield group
                    group = group.parent


def _given_back(group: Path) -> float:
    """Return the bytes of files that are kept in memory while nobody needs it."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0.0
    counted = dict(line.split(" ", 1) for line in lines if " " in line)
    return float(counted.get("total_inactive_file", counted.get("inactive_file", 0)))
