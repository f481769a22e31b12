"""The Jaakkola-Jordan bound of the logistic likelihood.

With s = ±η the log-odds of what was observed and any ξ,

    log σ(s) ≥ a s² + s/2 + c,   a = −tanh(ξ/2)/(4ξ),   c = −a ξ² − ξ/2 + log σ(ξ),

with equality at s = ±ξ. A binomial row is the product of its trials: with y successes of n the
linear terms add up to (y − n/2) η, and a and c count n times.

References
----------
Jaakkola and Jordan (1997), A variational approach to Bayesian logistic regression models and their
extensions.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import Quadratic

__all__ = ["JaakkolaJordan"]

SMALL = 1e-4
"""Below this ξ, tanh(ξ/2)/(4ξ) is 1/8 to rounding error."""


@dataclass(frozen=True)
class JaakkolaJordan:
    """Bound of Bernoulli and binomial likelihoods by log-odds.

    Parameters
    ----------
    xi : float, default 1.5
        The bounds touch at log-odds ±ξ if they are not tuned; at least 0. Tuned bounds
        touch each row at its log-odds at the posterior mode.

    Raises
    ------
    ValueError
        If `xi` is negative or not finite.

    References
    ----------
    Jaakkola and Jordan (1997); its use in Firefly Monte Carlo: Maclaurin and Adams (2014),
    section 3.1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Bernoulli("y", logit_p=mu, observed=np.repeat([0, 1], [3750, 6250]))
    ...     step = pmb.FlyMC(bound=pmb.JaakkolaJordan(xi=1.0), tune_bounds=False)
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> float(idata.posterior["mu"].mean().round(1))
    0.5
    """

    xi: float = 1.5
    family: ClassVar[str] = "logistic"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.xi) and self.xi >= 0):
            raise ValueError(f"xi must be finite and not negative; got {self.xi}.")

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> TensorVariable:
        """Return log L − log B; the linear terms cancel."""
        eta, xi = rows.predictor, self._touch(tangent, tuned)
        at_eta, at_xi = (pt.softplus(x) - x / 2 for x in (eta, xi))
        return rows.parameters["trials"] * (
            at_xi - at_eta - quadratic_coefficient(xi) * (eta**2 - xi**2)
        )

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients of the bound that touches at the predictor of `rows`, or at ±xi."""
        trials, eta, xi = rows.parameters["trials"], rows.predictor, self._touch(rows, tuned)
        a, slope = quadratic_coefficient(xi), rows.observed - trials / 2
        level = trials * (a * (eta**2 - xi**2) + xi / 2 - pt.softplus(xi)) + slope * eta
        return Quadratic(level, pt.zeros_like(xi), slope + 2 * trials * a * eta, 2 * trials * a)

    def _touch(self, tangent: Likelihood, tuned: bool) -> TensorVariable:
        eta = tangent.predictor
        return pt.abs(eta) if tuned else self.xi * pt.ones_like(eta)

    def metric(self, n_classes: int) -> np.ndarray:
        """One: the predictor is a single number."""
        return np.ones((1, 1))


def quadratic_coefficient(xi: TensorVariable) -> TensorVariable:
    safe = pt.maximum(xi, SMALL)
    return -pt.tanh(safe / 2) / (4 * safe)
