"""The austere test: a sequential t-test of the mean log ratio against Metropolis's threshold.

After n rows with mean l̄ and standard deviation s_l the statistic is ::

    t = (l̄ - mu0) / se,   se = s_l/√n √(1 - (n-1)/(N-1))

and the test stops (:mod:`.sequential`) as soon as 1 - CDF_t(|t|) < ε, with n - 1 degrees of
freedom; otherwise m rows are added. The pair (m, ε) comes from a grid (:mod:`.design`): the least
expected rows among those whose probability of a wrong decision is within a bound.

Reference
---------
Korattikara, Chen and Welling (2014), Austerity in MCMC Land: Cutting the Metropolis-Hastings
Budget, algorithm 1 and section 5. Seita, Pan, Chen and Canny (2017), appendix C.2.1, for the two
variants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numba.extending import register_jitable

from pymc_minibatch.acceptance.decision import (
    Acceptance,
    Decision,
    FirstBatchRule,
    RowReaders,
    Scan,
)
from pymc_minibatch.acceptance.design import Designs, designs, error_and_rows
from pymc_minibatch.acceptance.sequential import build_sequential

__all__ = ["Austere"]

BATCH_SIZES = (50, 100, 150, 200, 250, 300, 350, 400, 450, 500)
THRESHOLDS = (1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.15, 0.2)


@dataclass(frozen=True)
class Austere(Acceptance):
    """Metropolis's test by a sequential t-test, AustereMH.

    Parameters
    ----------
    error_bound : float, default 0.05
        Limit on the probability that a decision differs from that of all rows, in (0, 0.5).
    variant : {"c", "nc"}, default "c"
        How batch size and threshold are found. "c", conservative: once, for the worst case, a
        mean log ratio just at the threshold. "nc": at every decision, with the true mean and
        standard deviation of the log ratios, which takes a scan of all rows. The rows of the scan
        are reported as ``n_scanned`` and are not part of ``n_likelihood`` and ``batch_size``.
    batch_sizes : tuple of int, default (50, 100, ..., 500)
        Numbers of rows m to choose from, each at least 2. So many are added until the test stops.
    thresholds : tuple of float, default (1e-5, 1e-4, 5e-4, 0.001, 0.005, 0.01, ..., 0.2)
        Tail probabilities ε to choose from, in (0, 0.5).

    Raises
    ------
    ValueError
        If an argument is out of range or, when a step is made with variant "c", if no pair of the
        grid meets the bound.

    Notes
    -----
    The batch sizes are those of Seita et al. (2017); smaller thresholds are added to their grid,
    since in the worst case none of theirs meets a small bound with many rows. With variant "nc" a
    decision for which no pair meets the bound reads all rows. Beyond half of the rows all are read
    in any case, and the decision is exact. ``batch_size`` of :class:`MinibatchMH` cannot be set.

    The error is the probability of a wrong decision given u, computed for normal log ratios.
    ``test_error`` in the sample stats is the error of the design (at the true mean for "nc"), or 0
    if all rows are read.

    References
    ----------
    Korattikara, Chen and Welling (2014), Austerity in MCMC Land, algorithm 1 and section 5.

    Examples
    --------
    >>> import pymc_minibatch as pmb
    >>> test = pmb.Austere(error_bound=0.1)
    >>> test.design(n_rows=13_000)
    (100, 0.01)
    """

    error_bound: float = 0.05
    variant: Literal["c", "nc"] = "c"
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    thresholds: tuple[float, ...] = THRESHOLDS
    first_batch: ClassVar[FirstBatchRule] = "designed"
    draws_by_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.error_bound < 0.5:
            raise ValueError(f"error_bound must lie in (0, 0.5); got {self.error_bound}.")
        if self.variant not in ("c", "nc"):
            raise ValueError(f"variant must be 'c' or 'nc'; got {self.variant!r}.")
        object.__setattr__(self, "batch_sizes", tuple(int(size) for size in self.batch_sizes))
        object.__setattr__(self, "thresholds", tuple(float(eps) for eps in self.thresholds))
        if not self.batch_sizes or min(self.batch_sizes) < 2:
            raise ValueError(f"batch_sizes must be 2 or more; got {self.batch_sizes}.")
        if not self.thresholds or not all(0 < eps < 0.5 for eps in self.thresholds):
            raise ValueError(f"thresholds must lie in (0, 0.5); got {self.thresholds}.")

    def design(self, n_rows: int) -> tuple[int, float]:
        """Find batch size and threshold of variant "c".

        Parameters
        ----------
        n_rows : int
            Number of rows N of the data.

        Returns
        -------
        batch_size : int
            m.
        threshold : float
            ε.

        Raises
        ------
        ValueError
            If no pair of the grid meets the bound.
        """
        k, _ = self._worst_case(n_rows)
        return self.batch_sizes[k // len(self.thresholds)], self.thresholds[
            k % len(self.thresholds)
        ]

    def _worst_case(self, n_rows: int) -> tuple[int, float]:
        grid = designs(n_rows, self.batch_sizes, self.thresholds)
        k, error = choose(grid, 0.0, n_rows, self.error_bound)
        if k < 0:
            least = min(error_and_rows(grid, k, 0.0, n_rows)[0] for k in range(len(grid.boundary)))
            raise ValueError(
                f"With {n_rows} rows no pair of batch_sizes and thresholds keeps the error of a "
                f"decision within {self.error_bound}; the least is {least:.2g}. Add smaller "
                "thresholds or larger batch_sizes, or allow a larger error_bound."
            )
        return k, error

    def parameters(
        self, temperature: float, batch_size: np.ndarray, n_rows: int
    ) -> tuple[Any, ...]:
        """Return the parameters of the jitted test."""
        grid = designs(n_rows, self.batch_sizes, self.thresholds)
        scans = self.variant == "nc"
        k, error = (-1, 0.0) if scans else self._worst_case(n_rows)
        return float(temperature), scans, (grid, int(k), float(error), float(self.error_bound))

    def build(self, readers: RowReaders) -> Callable[..., Decision]:
        """Compose the test with the functions that read the data."""
        return build_sequential(readers, begin, half_width, extend)


@register_jitable
def choose(grid: Designs, mu_std: float, n_rows: int, error_bound: float) -> tuple[int, float]:
    """Return the design with the least expected rows within the bound, or -1, and its error."""
    best, best_error, least = -1, 0.0, np.inf
    for k in range(grid.boundary.size):
        error, rows = error_and_rows(grid, k, mu_std, n_rows)
        if error <= error_bound and rows < least:
            best, best_error, least = k, error, rows
    return best, best_error


@register_jitable
def begin(
    mu0: float, scan: Scan, n_rows: int, details: tuple[Designs, int, float, float]
) -> tuple[int, float, tuple[int, float]]:
    """Take the design for the worst case, or find the one for this decision."""
    grid, k, error, error_bound = details
    if k < 0:
        if scan.sd == 0.0:  # any batch tells the mean
            k = int(np.argmin(grid.batch_size))
        else:
            mu_std = (scan.mean - mu0) * math.sqrt(n_rows - 1) / scan.sd
            k, error = choose(grid, mu_std, n_rows, error_bound)
    if k < 0:
        return n_rows, 0.0, (n_rows, 0.0)
    return grid.batch_size[k], error, (grid.batch_size[k], grid.boundary[k])


@register_jitable
def half_width(
    n: int, look: int, sd: float, n_rows: int, scan: Scan, plan: tuple[int, float]
) -> float:
    """Return the distance from mu0 at which 1 - CDF_t(|t|) is the threshold.

    The normal quantile is turned into Student's by the first terms of Fisher and Cornish (1960).
    """
    z, dof = plan[1], n - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    quantile = z + first / dof + second / dof**2 + third / dof**3
    return quantile * sd / math.sqrt(n) * math.sqrt(1 - (n - 1) / (n_rows - 1))


@register_jitable
def extend(n: int, plan: tuple[int, float]) -> int:
    """Add m rows."""
    return n + plan[0]
