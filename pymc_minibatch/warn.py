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
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb, warnings
    >>> with pm.Model(), warnings.catch_warnings():
    ...     warnings.simplefilter("error", pmb.MinibatchWarning)
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(100.0))
    ...     try:
    ...         step = pmb.SGLD(step_size=3.0)
    ...     except pmb.MinibatchWarning as warning:
    ...         print(warning)
    With a step_size of 3 the variances of the draws are too large by about 300% in the worst
    direction. Make it smaller, or leave it out for the default, which aims at 10%. [PMB112]
    """


def warn(identifier: str, message: str) -> None:
    """Warn at the first line outside of this package; the message ends with its id."""
    words = with_id(identifier, message)
    warnings.warn(words, MinibatchWarning, skip_file_prefixes=(PACKAGE,))
