"""The prior of the variables of a step, given those that other steps move."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.derivatives import Derivatives
from pymc_minibatch.tall import TallModel

__all__ = ["FLATTEST", "MOST_PARAMETERS", "ConditionalPrior"]

MOST_PARAMETERS = 1000
"""With more no Hessian is taken."""

PROBES = 10
"""Random signs by which the prior's curvature is taken where parameters are many."""

FLATTEST = 1e-3
"""No direction is taken for flatter than this share of what it is at the reference."""


class ConditionalPrior:
    """The curvature of that prior, which changes as other steps move.

    Parameters
    ----------
    tall
        The model.
    vars
        The value variables of the step.
    active
        Their positions in a flat point.
    """

    def __init__(self, tall: TallModel, vars: Sequence[Variable], active: np.ndarray) -> None:
        self.tall, self.vars, self.active = tall, vars, active

    @cached_property
    def others(self) -> np.ndarray:
        """Positions of what other steps move, if the prior of some parameter here depends on it."""
        own, model = set(self.vars), self.tall.model
        factors = [[rv, *rv.owner.inputs] for rv in model.free_RVs]
        scopes = [
            _values_in(model, each) for each in factors + [[each] for each in model.potentials]
        ]
        joined = any(scope & own and scope - own for scope in scopes)
        everything = np.arange(self.tall.layout.size)
        return np.setdiff1d(everything, self.active) if joined else everything[:0]

    @cached_property
    def _derivatives(self) -> Derivatives:
        return Derivatives(self.tall.prior_graph, self.tall.flat)

    def curvature(self, flat: np.ndarray) -> np.ndarray:
        """Return the diagonal of the curvature, exact unless parameters are many (Hutchinson)."""
        dim = flat.size
        with np.errstate(all="ignore"):
            if dim <= MOST_PARAMETERS:
                diagonal = np.diag(self._derivatives.hessian(flat))
            else:
                signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, dim))
                _, products = self._derivatives.products_at(flat, signs)()
                diagonal = np.mean(signs * products, axis=0)
        return np.abs(np.nan_to_num(diagonal[self.active], posinf=0.0, neginf=0.0))

    def curvature_given_others(self, flat: np.ndarray) -> np.ndarray:
        """Return it where the step's own variables are at the initial point."""
        return self.curvature(self._with_others(flat, self.tall.start))

    def precision_given_others(self, flat: np.ndarray, control: ControlVariate) -> np.ndarray:
        """Return the precision of the Gaussian approximation with the prior as it is at a point.

        If that is not convex there it counts for no less than a share of what it was.
        """
        block, reference = np.ix_(self.active, self.active), control.gaussian
        precision = control.precision(self.active)
        now = self._derivatives.hessian(self._with_others(flat, reference.flat))[block]
        change = reference.prior_hessian[block] - np.nan_to_num(now)
        lower = np.linalg.cholesky(precision)
        inverse = np.linalg.inv(lower)
        values, vectors = np.linalg.eigh(inverse @ (precision + change) @ inverse.T)
        root = lower @ vectors * np.sqrt(np.maximum(values, FLATTEST))
        return np.asarray(root @ root.T)

    def _with_others(self, flat: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return a point with the other variables as they are, and those of this step elsewhere.

        What moves are made by must not depend on where this step's own variables are.
        """
        point = own.copy()
        point[self.others] = flat[self.others]
        return point


def _values_in(model: Model, variables: Sequence[Variable]) -> set[Variable]:
    """Return the value variables of the free variables on which some variables depend."""
    found = set(ancestors(variables))
    return {model.rvs_to_values[rv] for rv in model.free_RVs if rv in found}
