"""Levels: step sizes, path lengths and costs, the moments of what they sample, their allocation."""

from dataclasses import dataclass, field

import numpy as np

from pymc_minibatch.kernels.multilevel import Coupling

__all__ = ["Level", "Schedule", "allocate"]


@dataclass(frozen=True)
class Schedule:
    """How step size and path length depend on the level.

    Level ℓ has steps h₀ 2^(−ℓ) and paths of length τ (ℓ + 1). The values of f are taken at the same
    times before the end on all levels, multiples of h₀, so that the levels add up.

    Attributes
    ----------
    step_size : float
        h₀.
    n_contraction : int
        Steps of length h₀ in τ.
    n_average : int
        Values of f whose mean a path returns.
    antithetic : bool
        Whether there are two coarse paths.
    batch_size : int
        Rows of each gradient.
    row_cost : int
        Evaluations for a row of a gradient.
    """

    step_size: float
    n_contraction: int
    n_average: int
    antithetic: bool
    batch_size: int
    row_cost: int

    def coupling(self, level: int) -> Coupling:
        """Return the settings of the kernel."""
        return Coupling(
            step_size=self.step_size / 2**level,
            n_alone=self.n_contraction * 2**level if level else 0,
            n_joint=self.n_contraction * level * 2 ** (level - 1) if level else self.n_contraction,
            n_fine=2 if level else 1,
            n_coarse=(2 if self.antithetic else 1) if level else 0,
            every=2 ** (level - 1) if level else 1,
            n_values=self.n_average,
            batch_size=self.batch_size,
        )

    def cost(self, level: int) -> int:
        """Row evaluations of a sample."""
        c = self.coupling(level)
        return self.row_cost * c.batch_size * (c.n_alone + c.n_joint * (c.n_fine + c.n_coarse))

    @property
    def variance_order(self) -> int:
        """Power of h with which the variance of the differences falls."""
        return 2 if self.antithetic else 1

    def length(self, level: int) -> float:
        """Time of the fine path."""
        return self.step_size * self.n_contraction * (level + 1)


@dataclass
class Level:
    """Samples of a level, as far as they are kept: their number, and sums about the first mean."""

    n: int = 0
    shift: np.ndarray = field(default_factory=lambda: np.empty(0))
    total: np.ndarray = field(default_factory=lambda: np.empty(0))
    outer: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    def add(self, differences: np.ndarray) -> None:
        """Take in samples, shape (n, k)."""
        if self.n == 0:
            k = differences.shape[1]
            self.shift, self.total, self.outer = differences.mean(axis=0), np.zeros(k), np.zeros(())
        shifted = differences - self.shift
        self.n += len(differences)
        self.total = self.total + shifted.sum(axis=0)
        self.outer = self.outer + shifted.T @ shifted

    @property
    def mean(self) -> np.ndarray:
        """Mean, shape (k,)."""
        return self.shift + self.total / self.n

    @property
    def covariance(self) -> np.ndarray:
        """Covariance, shape (k, k)."""
        mean = self.total / self.n
        return (self.outer - self.n * np.outer(mean, mean)) / (self.n - 1)


def allocate(variances: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Choose samples per level whose means have variances that add up to 1, at the least cost.

    N_ℓ = √(V_ℓ/C_ℓ) Σ_k √(V_k C_k)
    """
    samples: np.ndarray = np.sqrt(variances / costs) * np.sqrt(variances * costs).sum()
    return samples
