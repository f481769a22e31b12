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
    """Warn at the first line outside of this package, PyMC and Bambi; its id ends the message."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in CALLERS]
    skipped = (PACKAGE, *(os.path.join(Path(file).parent, "") for file in files if file))
    warnings.warn(with_id(identifier, message), MinibatchWarning, skip_file_prefixes=skipped)
