"""Rows written for a test, as kernels call them."""

from collections.abc import Callable

import numpy as np
from numba import njit

from pymc_minibatch.reference.taylor import beside


def at_both(row: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Evaluate a jitted ``(point, constants, batch) -> array`` at two points."""

    @njit
    def rows(here, there, constants, batch):
        return beside(row(here, constants, batch), row(there, constants, batch))

    return rows
