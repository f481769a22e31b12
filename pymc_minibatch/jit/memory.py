"""How much memory this process may still take."""

from pathlib import Path

__all__ = ["free_bytes"]

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of a container, in the second and the first version of control groups."""


def free_bytes() -> float:
    """Return the bytes that are free on the machine and in its container; inf where nobody tells.

    Examples
    --------
    >>> from pymc_minibatch.jit.memory import free_bytes
    >>> free_bytes() > 0
    True
    """
    return min([_of_machine(), *(_of_container(limit, used) for limit, used in CGROUPS)])


def _of_machine() -> float:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return float("inf")
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * int(found[0]) if found else float("inf")  # it counts in KiB


def _of_container(limit: Path, used: Path) -> float:
    """Return what is left of the limit of a control group; it may be "max", which is none."""
    try:
        return max(0.0, float(int(limit.read_text()) - int(used.read_text())))
    except (OSError, ValueError):
        return float("inf")
