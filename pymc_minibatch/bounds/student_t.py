"""A Gaussian bound of Student's t.

With r = (y − η)/σ, −(ν + 1)/2 log(1 + r²/ν) is convex in r², so its tangent at r² = ξ²,

    −(ν + 1)/2 [log(1 + ξ²/ν) + (r² − ξ²)/(ν + ξ²)],

lies below it: a Gaussian in r, which collapses for an unknown σ too.

References
----------
Maclaurin and Adams (2014), Firefly Monte Carlo, section 4.3.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import Quadratic

__all__ = ["StudentT"]


@dataclass(frozen=True)
class StudentT:
    """Bound of Student's t likelihood.

    Parameters
    ----------
    xi : float, default 0.0
        The bounds touch at residuals ±ξσ if they are not tuned; at least 0. Tuned bounds
        touch each row at its residual at the posterior mode.

    Raises
    ------
    ValueError
        If `xi` is negative or not finite.

    References
    ----------
    Maclaurin and Adams (2014), section 4.3.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=10_000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma")
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=data)
    ...     step = pmb.FlyMC(bound=pmb.StudentT())
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> [float(idata.posterior[name].mean().round(1)) for name in ("mu", "sigma")]
    [3.0, 1.0]
    """

    xi: float = 0.0
    family: ClassVar[str] = "student_t"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.xi) and self.xi >= 0):
            raise ValueError(f"xi must be finite and not negative; got {self.xi}.")

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> TensorVariable:
        """Return log L − log B = (ν + 1)/2 (x − log(1 + x)), where x = (r² − ξ²)/(ν + ξ²)."""
        nu, xi2 = rows.parameters["nu"], self._touch(tangent, tuned)
        x = (_residual(rows) ** 2 - xi2) / (nu + xi2)
        return (nu + 1) / 2 * (x - pt.log1p(x))

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients of the bound that touches at the residuals of `rows`, or at ±xi."""
        nu, r, xi2 = rows.parameters["nu"], _residual(rows), self._touch(rows, tuned)
        sigma: Any = rows.scale
        weight = (nu + 1) / (nu + xi2)
        level = -(nu + 1) / 2 * pt.log1p(xi2 / nu) + weight * xi2 / 2
        return Quadratic(level, -weight * r**2 / 2, weight * r / sigma, -weight / sigma**2)

    def _touch(self, tangent: Likelihood, tuned: bool) -> TensorVariable:
        r = _residual(tangent)
        return r**2 if tuned else self.xi**2 * pt.ones_like(r)

    def metric(self, n_classes: int) -> np.ndarray:
        """One: the predictor is a single number."""
        return np.ones((1, 1))


def _residual(rows: Likelihood) -> TensorVariable:
    return (rows.observed - rows.predictor) / rows.scale
