r"""Rows that are quadratic in their predictor: f''' = 0."""

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import NormalRV

from pymc_minibatch.bounds.families.family import STEPS, Family, Third, Trial, rows_agree
from pymc_minibatch.bounds.likelihood import Likelihood, Reader
from pymc_minibatch.bounds.normal import Normal

__all__ = ["NORMAL"]

NOTHING = 1e-12
"""Of f'': a third derivative that is rounding."""


def third(trial: Trial) -> tuple[Third, np.ndarray]:
    """Look for parabolas; those that go over into lines, as Huber's, are of no family."""
    at_mode = trial.derivatives(trial.eta, *trial.batch)[0]
    fits = np.ones(trial.eta.size, dtype=bool)
    for step in STEPS:
        f2, f3 = trial.derivatives(trial.eta + step, *trial.batch)
        fits &= (np.abs(f3) <= NOTHING * np.abs(f2)) & rows_agree(f2, at_mode)
    return Third(_no_bound, lambda eta, taylor, batch: np.zeros_like), fits


def _no_bound(lowest: np.ndarray, highest: np.ndarray, batch: Sequence[np.ndarray]) -> np.ndarray:
    return np.zeros(lowest.size)


def likelihood(reader: Reader, mu: Variable, sigma: Variable) -> Likelihood:
    """Read the mean and the standard deviation."""
    scale = reader.rows("scale", sigma)
    return reader.likelihood("normal", reader.rows("predictor", mu), None, scale)


NORMAL = Family(
    name="normal",
    rows=("Normal of known scale",),
    third=third,
    likelihoods={NormalRV: likelihood},
    bound=Normal(),
)
