"""Warnings that point to the user's line, however deep in the package they arise."""

import os
import warnings
from pathlib import Path

__all__ = ["warn"]

PACKAGE = os.path.join(Path(__file__).parent, "")


def warn(message: str) -> None:
    """Warn at the first line outside of this package."""
    warnings.warn(message, skip_file_prefixes=(PACKAGE,))
