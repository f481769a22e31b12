"""Log-likelihoods whose digits are lost are no reason to move."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.logprob.abstract import _logprob
from pytensor.tensor.random.basic import PoissonRV

from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.witness.comparison import Comparison

N = 400
RNG = np.random.default_rng(1)
TRIALS = RNG.integers(5, 200, N)
COUNTS = RNG.binomial(TRIALS, RNG.beta(3, 7, N))


def beta_binomial() -> None:
    share, size = pm.math.sigmoid(pm.Normal("mu")), pm.math.exp(pm.Normal("log_k", 3, 1))
    size = size + np.zeros(N)
    pm.BetaBinomial("y", share * size, (1 - share) * size, n=TRIALS, observed=COUNTS)


def weighted() -> None:
    rate = pm.math.exp(pm.Normal("mu") + np.zeros(N))
    pm.Potential("y", 0.5 * pm.logp(pm.Poisson.dist(rate), COUNTS))


def without_constant() -> None:
    def log_density(value: object, rate: object) -> object:
        return value * pm.math.log(rate) - rate

    rate = pm.math.exp(pm.Normal("mu") + np.zeros(N))
    pm.CustomDist("y", rate, logp=log_density, dtype="int64", observed=COUNTS)


class RatesRV(PoissonRV):
    pass


@_logprob.register(RatesRV)
def _(op: Any, values: Any, rng: Any, size: Any, rate: Any, **options: Any) -> Any:
    return values[0] * pt.log(rate) - rate


class Rates(pm.Discrete):
    rv_op = RatesRV()

    @classmethod
    def dist(cls, rate: Any, **options: Any) -> Any:
        return super().dist([rate], **options)


def of_an_own_kind() -> None:
    Rates("y", pm.math.exp(pm.Normal("mu") + np.zeros(N)), observed=COUNTS)


def normal() -> None:
    pm.Normal("y", pm.Normal("mu"), 1e-3, observed=1e-3 * RNG.normal(size=N))


def tall_of(declare: Callable[[], None]) -> TallModel:
    with pm.Model() as model:
        declare()
    return TallModel(model)


def test_no_probability_is_larger_than_one() -> None:
    """A concentration of e⁴⁵ has no digits left: log Γ has errors of 10⁵, of either sign."""
    tall = tall_of(beta_binomial)
    assert tall.structure is not None
    rows = RowFunctions(tall.structure)

    phi_at = pm.pytensorf.compile([tall.structure.flat], tall.structure.phi)

    def values(point: dict[str, float]) -> np.ndarray:
        phi = phi_at(np.array(list(point.values())))
        return np.asarray(rows.row(rows.predictors_at(phi, *tall.data), *tall.data)[0])

    near, far = ({"mu": -0.8, "log_k": log_k} for log_k in (3.0, 45.0))
    right = tall.row_logp({name: np.array(value) for name, value in near.items()}, np.arange(N))
    np.testing.assert_allclose(values(near), right, rtol=1e-10)
    found = values(far)
    assert (found == -np.inf).any()
    assert found.max() < 0.2


@pytest.mark.parametrize("declare", [weighted, without_constant, of_an_own_kind, normal])
def test_other_rows_may_have_any_value(declare: Callable[[], None]) -> None:
    structure = tall_of(declare).structure
    assert structure is not None
    assert structure.most == math.inf


@pytest.mark.parametrize(("rounding", "agrees"), [(1e5, True), (1e-3, False)])
def test_what_rounding_may_have_made_is_no_contradiction(rounding: float, agrees: bool) -> None:
    """The sampler rejects a move whose log ratio is, by the model's own, anything up to 10⁴."""
    compared = Comparison("levels", ("lk",), "", -np.inf, 1e4, rounding)
    assert compared.agrees == agrees
