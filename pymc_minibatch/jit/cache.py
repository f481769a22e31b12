"""A key for the code of the jitted parts, so that kernels on disk are never stale."""

from functools import cache
from hashlib import sha256
from importlib.resources import files

__all__ = ["code_key"]

JITTED = ("acceptance", "bounds", "jit", "kernels", "proposals", "reference", "updates")
"""The subpackages whose functions are compiled into a kernel."""


@cache
def code_key() -> str:
    """Hash the source of everything a kernel is made of."""
    package = files("pymc_minibatch")
    digest = sha256()
    for folder in JITTED:
        sources = [path for path in (package / folder).iterdir() if path.name.endswith(".py")]
        for path in sorted(sources, key=lambda path: path.name):
            digest.update(path.read_bytes())
    return digest.hexdigest()
