"""One decision on all rows, for moves that are made outside of jitted code."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit

from pymc_minibatch.acceptance.decision import Acceptance, Rows
from pymc_minibatch.kernels.rows import Drawing, make_readers
from pymc_minibatch.reference.density import Density

__all__ = ["make_decision"]


def make_decision(
    ndims: Sequence[int], acceptance: Acceptance, by_size: Drawing = False
) -> Callable[..., Any]:
    """Compose a test with the functions that read the data; it returns plain numbers."""
    test = acceptance.build(make_readers(ndims, by_size))

    @njit
    def decide(
        rng: np.random.Generator,
        psi: float,
        current: np.ndarray,
        proposed: np.ndarray,
        density: Density,
        rows: Rows,
        parameters: Any,
    ) -> tuple[bool, int, int, bool, float, float, int, int]:
        d = test(rng, psi, current, proposed, density, rows, parameters)
        return (
            d.accepted,
            d.batch_size,
            d.n_evaluated,
            d.grown,
            d.log_ratio_var,
            d.test_error,
            d.impossible_row,
            d.n_scanned,
        )

    return decide
