"""Warnings that point to the user's line, however deep in the package they arise."""

import os
import sys
import warnings
from pathlib import Path

from pymc_minibatch.messages import with_id

__all__ = ["MinibatchWarning", "warn"]

PACKAGE = os.path.join(Path(__file__).parent, "")

CALLERS = ("pymc", "bambi")
"""Packages through which users call this one, as ``pm.sample`` makes a step that waits."""


class MinibatchWarning(UserWarning):
    """A warning of this package, so that they can be filtered together.

    Examples
    --------
    >>> import warnings, pymc_minibatch as pmb
    >>> warnings.filterwarnings("error", category=pmb.MinibatchWarning)  # doctest: +SKIP
    """


def warn(identifier: str, message: str) -> None:
    """Warn at the first line outside of this package, PyMC and Bambi; its id ends the message."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in CALLERS]
    skipped = (PACKAGE, *(os.path.join(Path(file).parent, "") for file in files if file))
    warnings.warn(with_id(identifier, message), MinibatchWarning, skip_file_prefixes=skipped)
