"""Warnings that point to the user's line, however deep in the package they arise."""

import os
import warnings
from pathlib import Path

from pymc_minibatch.messages import with_id

__all__ = ["MinibatchWarning", "warn"]

PACKAGE = os.path.join(Path(__file__).parent, "")


class MinibatchWarning(UserWarning):
    """A warning of this package, so that they can be filtered together.

    Examples
    --------
    >>> import warnings, pymc_minibatch as pmb
    >>> warnings.filterwarnings("error", category=pmb.MinibatchWarning)  # doctest: +SKIP
    """


def warn(identifier: str, message: str) -> None:
    """Warn at the first line outside of this package; the message ends with its id."""
    words = with_id(identifier, message)
    warnings.warn(words, MinibatchWarning, skip_file_prefixes=(PACKAGE,))
