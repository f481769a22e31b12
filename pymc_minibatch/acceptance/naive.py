"""The naive minibatch test: the estimate from a batch is taken for the log ratio itself.

::

    accept iff  log u < delta*

The noise of the estimate makes the chain accept more often than it should, which widens the
posterior. It is here to show what the corrected tests are for.

Reference
---------
Micropolis II: Minibatch Metropolis-Hastings, the naive test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pymc_minibatch.acceptance.decision import (
    Acceptance,
    Decision,
    FirstBatchRule,
    RowReaders,
    Rows,
    batch_variance,
    decided_by_all,
    decided_by_batch,
    rejected,
    takes_all,
)
from pymc_minibatch.acceptance.growing import moments
from pymc_minibatch.jit.linking import jit_part
from pymc_minibatch.reference.density import Density

__all__ = ["Naive"]


@dataclass(frozen=True)
class Naive(Acceptance):
    """Metropolis's test on the estimate from a batch, as if it were exact.

    Biased, and meant for comparison: the chain samples a wider distribution than the posterior
    unless the noise of the batch is small. Use :class:`CorrectedBarker`.

    Notes
    -----
    The batch has the same size at each decision, ``batch_size`` of :class:`MinibatchMH` (100 if not
    given), and is not tuned, for no size is too small for this test. Beyond half of the rows all
    are read and the test is exact.

    ``test_error`` in the sample stats is the standard deviation s of the estimated log ratio, at
    most 1: since min(1, exp) has no slope above 1, it bounds the error of the acceptance
    probability.

    References
    ----------
    Micropolis II, the naive test.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.Naive()
    Naive()
    """

    first_batch: ClassVar[FirstBatchRule] = "fixed"
    draws_by_size: ClassVar[bool] = True

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        return float(temperature), batch_size

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        draw_log_ratios, sum_log_ratios, _ = readers

        @jit_part
        def decide(
            rng: np.random.Generator,
            psi: float,
            current: np.ndarray,
            proposed: np.ndarray,
            density: Density,
            rows: Rows,
            parameters: tuple[float, np.ndarray],
        ) -> Decision:
            temperature, batch_size = parameters
            n_rows, n = density.data[0].shape[0], batch_size[0]
            log_u = -rng.standard_exponential()
            if takes_all(n, n_rows):
                total, impossible = sum_log_ratios(current, proposed, density)
                accepted = log_u < psi + total / temperature
                return decided_by_all(accepted, n_rows, 0, impossible, 0)
            impossible = draw_log_ratios(rng, current, proposed, density, rows, np.int64(0), n)
            seen = moments(rows.log_ratios[:n])
            if impossible >= 0 or seen.mean == -np.inf:
                return rejected(n, False, impossible, 0)
            scale = n_rows / temperature
            s2 = batch_variance(scale, seen.variance, n, rows.population)
            accepted = log_u < psi + scale * seen.mean
            return decided_by_batch(accepted, n, n, False, s2, min(1.0, math.sqrt(s2)), 0)

        return decide
