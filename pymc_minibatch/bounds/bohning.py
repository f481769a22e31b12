"""Böhning's bound of the softmax likelihood.

The Hessian of lse(η) = log Σₖ exp ηₖ is at most A = ½ (I − 11ᵀ/K), so that for any ψ

    lse(η) ≤ lse(ψ) + (η − ψ)ᵀ softmax(ψ) + ½ (η − ψ)ᵀ A (η − ψ),

with equality at η = ψ, and log-likelihoods η_y − lse(η) are bounded from below.

References
----------
Böhning (1992), Multinomial logistic regression algorithm.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.likelihood import Likelihood
from pymc_minibatch.bounds.quadratic import Quadratic

__all__ = ["Bohning"]


@dataclass(frozen=True)
class Bohning:
    """Bound of the categorical likelihood with softmax probabilities.

    Untuned bounds touch if all classes are equally likely (ψ = 0), tuned ones at the predictor
    of each row at the posterior mode.

    References
    ----------
    Böhning (1992); its use in Firefly Monte Carlo: Maclaurin and Adams (2014), section 4.2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> classes = np.repeat([0, 1, 2], [500, 300, 200])
    >>> with pm.Model():
    ...     alpha = pm.Normal("alpha", shape=3)
    ...     p = pm.Deterministic("p", pm.math.softmax(alpha))
    ...     y = pm.Categorical("y", p=p, observed=classes)
    ...     step = pmb.FlyMC(bound=pmb.Bohning())
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, random_seed=1, progressbar=False
    ...     )
    >>> idata.posterior["p"].mean(("chain", "draw")).values.round(1)
    array([0.5, 0.3, 0.2])
    """

    family: ClassVar[str] = "softmax"

    def gap(self, rows: Likelihood, tangent: Likelihood, tuned: bool) -> TensorVariable:
        """Return log L − log B; the terms of the observed class cancel."""
        psi = tangent.predictor if tuned else pt.zeros_like(tangent.predictor)
        return _lse_bound(rows.predictor, psi)[0] - _lse(rows.predictor)

    def quadratic(self, rows: Likelihood, tuned: bool) -> Quadratic:
        """Coefficients of the bound that touches at the predictor of `rows`, or at 0."""
        eta = rows.predictor
        psi = eta if tuned else pt.zeros_like(eta)
        lse_bound, slope = _lse_bound(eta, psi)
        chosen = pt.eq(rows.observed[:, None], pt.arange(eta.shape[1])[None, :])
        level = pt.sum(eta * chosen, axis=1) - lse_bound
        none = pt.zeros_like(level)
        return Quadratic(level, none, chosen - slope, none - 1.0)

    def metric(self, n_classes: int) -> np.ndarray:
        """Return A = ½ (I − 11ᵀ/K)."""
        return 0.5 * (np.eye(n_classes) - 1 / n_classes)


def _lse_bound(eta: TensorVariable, psi: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return the upper bound of lse(η) that touches at ψ, and its gradient."""
    p = pt.exp(psi - _lse(psi)[:, None])
    epsilon = eta - psi
    a_epsilon = 0.5 * (epsilon - pt.mean(epsilon, axis=1, keepdims=True))
    return _lse(psi) + pt.sum(epsilon * (p + 0.5 * a_epsilon), axis=1), p + a_epsilon


def _lse(eta: TensorVariable) -> TensorVariable:
    top = pt.max(eta, axis=1)
    return top + pt.log(pt.sum(pt.exp(eta - top[:, None]), axis=1))
