"""The estimate: pilot runs, allocation of samples, and further levels until the target is met."""

import logging
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pymc_minibatch.multilevel.estimand import Estimand
from pymc_minibatch.multilevel.level import Level, Schedule, allocate
from pymc_minibatch.multilevel.paths import Paths
from pymc_minibatch.multilevel.result import MultilevelResult
from pymc_minibatch.warn import warn

__all__ = ["Accuracy", "Run"]

_log = logging.getLogger("pymc_minibatch")

PILOT = (64, 16, 8)
"""Samples before anything is known, by level; those above begin with as many as the last."""

LAST_LEVEL = 20

GROWTH = 4
"""A level grows by this factor at most before samples are allocated anew."""

ENOUGH = 0.99
"""A level with this share of the samples that it should have has enough."""

SURE = 3.0
"""Standard errors."""

LARGEST_BIAS = math.sqrt(0.5)
"""Of the target."""

ROUNDING = 1e-20
"""Variances smaller than this, relative to those of the level below, are of rounding errors."""

SMALLEST = 1e-100
"""Errors are compared with no target smaller than this."""


@dataclass(frozen=True)
class Accuracy:
    """What is asked for.

    Attributes
    ----------
    rtol : float
        Relative root mean square error.
    max_evaluations : float
        Row evaluations to spend at most.
    """

    rtol: float
    max_evaluations: float


class Run:
    """An estimate in the making.

    Attributes
    ----------
    levels
        What has been sampled.
    spent
        Row evaluations so far.
    """

    def __init__(
        self,
        paths: Paths,
        estimand: Estimand,
        schedule: Schedule,
        accuracy: Accuracy,
        spent: int,
    ) -> None:
        self._paths, self._estimand, self._schedule = paths, estimand, schedule
        self._rtol, self._max_evaluations = accuracy.rtol, accuracy.max_evaluations
        self._function = paths.address(estimand.function)
        self.levels: list[Level] = []
        self.spent = spent
        self.converged, self.message = False, ""

    def until_met(self) -> None:
        """Sample until the target is met, or cannot be.

        Raises
        ------
        ValueError
            If f is not finite, or pilot runs show that the target cannot be met.
        """
        for level, n in enumerate(PILOT):
            self.sample(level, n)
        self._refuse_hopeless()
        while True:
            missing = self._missing()
            planned = float(missing @ self._costs(len(missing)))
            n_levels = len(self.levels)
            if missing.any() and self._affordable(planned):
                for level, n in enumerate(missing):
                    if n:
                        self.sample(level, int(n))
            elif missing.any():
                return
            elif (self._bias() <= LARGEST_BIAS * self._target()).all():
                self.converged, self.message = True, "The estimated RMSE meets the target."
                return
            elif n_levels > LAST_LEVEL:
                self._give_up(f"the bias of the step size has not vanished on level {LAST_LEVEL}")
                return
            elif self._affordable(PILOT[-1] * self._schedule.cost(n_levels)):
                self.sample(n_levels, PILOT[-1])
            else:
                return

    def sample(self, level: int, n: int) -> None:
        """Add n samples of the difference at a level."""
        if level == len(self.levels):
            self.levels.append(Level())
        coupling = self._schedule.coupling(level)
        self.spent += n * self._schedule.cost(level)
        fine, coarse = self._paths.run(coupling, n, self._function, self._estimand.n_values)
        difference = fine - coarse
        if not np.isfinite(difference).all():
            raise ValueError(
                "f is not finite on paths through the posterior, though it is at the mode: it must "
                "be finite wherever the posterior has mass."
            )
        self.levels[level].add(difference)
        _log.info(f"Level {level}: {self.levels[level].n:,} samples.")

    def result(self, n_rows: int, reference_passes: float) -> MultilevelResult:
        """Summarise."""
        estimates, errors, bias = self._estimates()[0], self._errors(), self._bias()
        shaped = self._estimand.shaped
        rmse = np.hypot(errors, bias)
        summary = pd.DataFrame(
            {
                "estimate": estimates,
                "standard_error": errors,
                "bias": bias,
                "rmse": rmse,
                "target": self._target(),
            },
            index=pd.Index(self._estimand.labels),
        )
        means, variances = self._differences()
        relative = variances / np.maximum(self._target(), SMALLEST) ** 2
        costs = self._costs(len(self.levels))
        decisive = int(np.argmax(np.sqrt(relative * costs[:, None]).sum(axis=0)))
        samples = np.array([level.n for level in self.levels])
        levels = pd.DataFrame(
            {
                "step": self._schedule.step_size * 0.5 ** np.arange(len(self.levels)),
                "length": [self._schedule.length(level) for level in range(len(self.levels))],
                "mean": means[:, decisive],
                "variance": variances[:, decisive],
                "samples": samples,
                "cost": costs,
                "total": samples * costs,
            }
        )
        levels.index.name = "level"
        unseen = self._estimand.relative and (estimates == 0) & (errors == 0)
        if np.any(unseen):
            self.message += (
                f" But {self._estimand.labels[int(np.argmax(unseen))]} was 0 on all paths: unless "
                "it is always 0, it is an event too rare to be seen, and nothing is known of its "
                "relative error."
            )
        if np.any(unseen) or not self.converged:
            warn("PMB206", self.message)
        return MultilevelResult(
            estimate=shaped(estimates),
            standard_error=shaped(errors),
            bias=shaped(bias),
            summary=summary,
            levels=levels,
            decisive=self._estimand.labels[decisive],
            n_gradient=self.spent,
            epochs=self.spent / n_rows,
            reference_passes=reference_passes,
            converged=self.converged,
            message=self.message,
        )

    def _costs(self, n_levels: int) -> np.ndarray:
        return np.array([self._schedule.cost(level) for level in range(n_levels)])

    def _estimates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._estimand.estimates(np.sum([level.mean for level in self.levels], axis=0))

    def _target(self) -> np.ndarray:
        target: np.ndarray = self._rtol * self._estimates()[2]
        return target

    def _differences(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the differences, to first order, shape (L, m)."""
        jacobian = self._estimates()[1]
        means = np.array([jacobian @ level.mean for level in self.levels])
        variances = np.array(
            [
                np.einsum("ij,jk,ik->i", jacobian, level.covariance, jacobian)
                for level in self.levels
            ]
        )
        return means, np.maximum(variances, 0.0)

    def _cautious_variances(self) -> np.ndarray:
        """Variances, not taken to be far below what those of the level below lead to expect.

        Those of high levels rest on few samples. The first two are before the fall sets in; but
        where no difference was seen on the second, f has jumps, and there are some.
        """
        _, variances = self._differences()
        for level in range(1, len(variances)):
            expected = variances[level - 1] / 2**self._schedule.variance_order
            known = (level == 1) & (variances[level] > ROUNDING * variances[level - 1])
            variances[level] = np.maximum(variances[level], np.where(known, 0.0, expected / 2))
        return variances

    def _errors(self) -> np.ndarray:
        variances = self._cautious_variances()
        n = np.array([level.n for level in self.levels])
        errors: np.ndarray = np.sqrt((variances / n[:, None]).sum(axis=0))
        return errors

    def _bias(self) -> np.ndarray:
        """Estimate what is left: for an error of order h, it is as large as the last difference.

        Of that and what the two before it lead to expect, the largest: few samples may make any of
        them small by chance, so that this is too large on average.
        """
        means, _ = self._differences()
        last = np.abs(means[1:][-3:])
        bias: np.ndarray = (last * 0.5 ** np.arange(len(last))[::-1, None]).max(axis=0)
        return bias

    def _missing(self) -> np.ndarray:
        """Count the samples to add to each level.

        The squared error may be what the bias leaves of it; or all of it, where levels are to come.
        """
        target = np.maximum(self._target(), SMALLEST)
        bias = self._bias() / target
        share = np.where(bias <= LARGEST_BIAS, 1 - bias**2, 1.0)
        relative = (self._cautious_variances() / (share * target**2)).max(axis=1)
        needed = allocate(relative, self._costs(len(self.levels)))
        n = np.array([level.n for level in self.levels])
        extra = np.ceil(np.minimum(needed - n, (GROWTH - 1) * n))
        return np.where(n < ENOUGH * needed, extra, 0.0)

    def _affordable(self, planned: float) -> bool:
        """Whether the limit allows more row evaluations; if not, say so."""
        if self.spent + planned <= self._max_evaluations:
            return True
        self._give_up(
            f"it would take more than max_evaluations={self._max_evaluations:.3g} row evaluations"
        )
        return False

    def _give_up(self, reason: str) -> None:
        self.message = (
            f"The target was not met: {reason}. The result has the standard error and the bias "
            "that were reached."
        )

    def _refuse_hopeless(self) -> None:
        """Refuse a target that takes too much even where what is uncertain favours it."""
        estimates, _, scale = self._estimates()
        errors = self._errors()
        target = np.maximum(self._rtol * (scale + SURE * errors), SMALLEST)
        means, variances = self._differences()
        noise = np.sqrt(variances[-1] / self.levels[-1].n)
        bias = np.maximum(np.abs(means[-1]) - SURE * noise, 0.0) / target
        more = max(0, math.ceil(math.log2(max(1.0, bias.max() / LARGEST_BIAS))))
        relative = variances / target**2
        fall = 2.0 ** -(self._schedule.variance_order * np.arange(1, more + 1))
        relative = np.vstack([relative, fall[:, None] * relative[-1]])
        costs = self._costs(len(relative))
        needed = float(allocate(relative.max(axis=1), costs) @ costs)
        if needed <= self._max_evaluations:
            return
        worst = int(np.argmax(np.sqrt(relative * costs[:, None]).sum(axis=0)))
        label, estimate, error = self._estimand.labels[worst], estimates[worst], errors[worst]
        advice = (
            "It may be zero, and then no error is small relative to it: add a constant to f, or "
            "name variables, for which errors are relative to standard deviations."
            if scale[worst] < SURE * error
            else f"About rtol={self._rtol * math.sqrt(needed / self._max_evaluations):.1g} can be "
            "met; or raise max_evaluations."
        )
        raise ValueError(
            f"rtol={self._rtol:g} cannot be met: {label}, {estimate:.3g} ± {error:.2g} in pilot "
            f"runs, would take about {needed:.1g} row evaluations, and max_evaluations is "
            f"{self._max_evaluations:.3g}. {advice}"
        )
