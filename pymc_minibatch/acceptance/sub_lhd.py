"""The subsampling-likelihood test: stop when a concentration bound separates mean and threshold.

After t rows, at look k, the mean of their log ratios is within ::

    c = sd √(2 log(3/δ_k) / t) √(1 - (t-1)/N) + 3 C log(3/δ_k) / t,   δ_k = (p-1) / (p k^p) δ

of the mean of all rows with probability 1 - δ_k, C the range of the log ratios over all rows: the
empirical Bernstein bound. The test stops at the first look where c is no more than the distance
from the threshold (:mod:`.sequential`), and each look has γ times as many rows as the one before.

Reference
---------
Bardenet, Doucet and Holmes (2014), Towards scaling up Markov chain Monte Carlo: an adaptive
subsampling approach, section 3 and figure 3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Acceptance,
    Decision,
    FirstBatchRule,
    RowReaders,
    Scan,
)
from pymc_minibatch.acceptance.sequential import build_sequential

__all__ = ["SubLhd"]


@dataclass(frozen=True)
class SubLhd(Acceptance):
    """Metropolis's test with a concentration bound, MHSubLhd.

    Meant for comparison: the test needs the range of the log ratios, which takes a scan of all
    rows at each decision. The rows of the scan are reported as ``n_scanned`` and are not part of
    ``n_likelihood`` and ``batch_size``.

    Parameters
    ----------
    p : float, default 2.0
        How fast the probability of error decreases from look to look, above 1.
    gamma : float, default 2.0
        Factor by which the batch grows between looks, above 1.
    delta : float, default 0.01
        Bound on the probability that a decision differs from that of all rows, in (0, 1).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    The first look takes ``batch_size`` rows of :class:`MinibatchMH` (100 if not given), which is
    not tuned. Beyond half of the rows all are read and the decision is exact. ``test_error`` in the
    sample stats is `delta`, unless all rows are read.

    References
    ----------
    Bardenet, Doucet and Holmes (2014), Towards scaling up Markov chain Monte Carlo, section
    3 and figure 3.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> pmb.SubLhd(delta=0.05)
    SubLhd(p=2.0, gamma=2.0, delta=0.05)
    """

    p: float = 2.0
    gamma: float = 2.0
    delta: float = 0.01
    first_batch: ClassVar[FirstBatchRule] = "fixed"
    draws_by_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.p > 1 and self.gamma > 1 and 0 < self.delta < 1):
            raise ValueError(
                f"SubLhd needs p > 1, gamma > 1 and 0 < delta < 1; got p={self.p}, "
                f"gamma={self.gamma}, delta={self.delta}."
            )

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        plan = (float(self.p), float(self.gamma), float(self.delta))
        return float(temperature), True, (batch_size, plan)

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        return build_sequential(readers, begin, half_width, extend)


@register_jitable
def begin(
    mu0: float, scan: Scan, n_rows: int, details: tuple[np.ndarray, tuple[float, float, float]]
) -> tuple[int, float, tuple[float, float, float]]:
    """Start with the first batch."""
    batch_size, plan = details
    return batch_size[0], plan[2], plan


@register_jitable
def half_width(
    n: int, look: int, sd: float, n_rows: int, scan: Scan, plan: tuple[float, float, float]
) -> float:
    """Return the empirical Bernstein bound c."""
    p, _, delta = plan
    log_odds = math.log(3 * p * look**p / ((p - 1) * delta))
    unseen = math.sqrt(1 - (n - 1) / n_rows)
    return sd * math.sqrt(2 * log_odds / n) * unseen + 3 * scan.range * log_odds / n


@register_jitable
def extend(n: int, plan: tuple[float, float, float]) -> int:
    """Multiply the rows by gamma."""
    return math.ceil(plan[1] * n)
