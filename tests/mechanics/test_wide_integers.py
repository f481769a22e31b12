"""Integers given as arguments are computed without overflow."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_minibatch as pmb
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.tall.wide_integers import with_wide_integers


@pytest.mark.parametrize("sigma", [10, 20, 10.0])
def test_a_prior_with_integers_has_its_density(sigma):
    """``nu * sigma**2`` is 300 or 1,200, and each of the numbers fits eight bits."""
    with pm.Model() as model:
        pm.HalfStudentT("scale", nu=3, sigma=sigma)
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=np.zeros(50))
    tall = pmb.TallModel(model)
    for log_scale in (0.0, 2.0, 4.0):
        found = tall.prior_logp({"scale_log__": np.array(log_scale), "mu": np.array(0.0)})
        expected = np.log(2) + stats.t(3, scale=sigma).logpdf(np.exp(log_scale)) + log_scale
        assert found == pytest.approx(expected + stats.norm.logpdf(0.0), abs=1e-6)


@pytest.mark.parametrize("sigma", [10, 20])
def test_rows_with_integers_have_their_density(sigma):
    values = np.array([-3.0, 0.5, 30.0])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.StudentT("y", nu=3, mu=mu, sigma=sigma, observed=values)
    found = pmb.TallModel(model).row_logp({"mu": np.array(0.5)}, [0, 1, 2])
    np.testing.assert_allclose(found, stats.t(3, 0.5, sigma).logpdf(values), rtol=1e-6)


def test_effects_with_integers_stay_by_level():
    """Their prior by level and that of the model are one, and both are right."""
    with pm.Model() as model:
        z = pm.HalfStudentT("z", nu=3, sigma=20, shape=300)
        pm.Poisson("y", z[np.arange(3000) % 300], observed=np.full(3000, 3))
    field = locate(pmb.TallModel(model), 1.0).reference.surrogate.field
    assert any(len(levels.latent) == 300 for levels in field.levels)


@pytest.mark.parametrize(
    "graph", [pt.switch(0.5, np.int8(1), np.int8(2)), ~pt.constant(np.uint8(5)) - np.uint8(1)]
)
def test_operations_other_than_arithmetic_stay(graph):
    assert with_wide_integers([graph]) == [graph]


def test_what_is_not_of_numbers_alone_is_left_as_it_is():
    x = pt.vector("x")
    graph = x * pt.constant(3.0) + 2
    assert with_wide_integers([graph]) == [graph]


def test_operations_other_than_elementwise_read_the_types_that_they_had():
    number = pt.constant(np.int8(50)) * pt.constant(np.int8(3))
    [graph] = with_wide_integers([pt.stack([number, number]).sum() + pt.log(number)])
    value = pytensor.function([], graph, mode="FAST_COMPILE")()
    assert value == pytest.approx(2 * (150 - 256) + np.log(150.0))


def test_what_fits_is_left_as_it_is():
    graph = pt.gammaln(pt.constant(np.int8(50)) * pt.constant(np.int8(2)))
    assert with_wide_integers([graph]) == [graph]
