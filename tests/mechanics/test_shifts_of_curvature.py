"""Proposals may have another curvature than the surrogate: their ratios say by how much."""

import pickle
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.tall import TallModel

N, LARGE, SMALL = 2000, 60, 12


@pytest.fixture(scope="module")
def shifted() -> Surrogate:
    """Counts with two crossed factors; the dense part and the groups have a shift."""
    rng = np.random.default_rng(1)
    one, other, x = rng.integers(0, LARGE, N), rng.integers(0, SMALL, N), rng.normal(size=N)
    with pm.Model() as model:
        eta = pm.Normal("c", 0, 2) + pm.Normal("k", 0, 2) * x
        eta += pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=LARGE)[one]
        eta += pm.Normal("v", 0, pm.HalfNormal("t", 1), shape=SMALL)[other]
        pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(1.0, N))
    known = locate(TallModel(model), 1.0).reference.surrogate
    curvature = known.expansion.curvature
    expansion = replace(
        known.expansion, dense_shift=0.3 * curvature.dense, psd_shift=0.2 * curvature.blocks
    )
    return Surrogate(known.tall, known.field, expansion, known.center, known.cubics)


def test_the_slope_of_the_gaussian_is_that_of_its_precision(shifted: Surrogate) -> None:
    layout = shifted.field.latent
    given = shifted.conditional(shifted.center[shifted.field.hyper] + 0.3)
    point = given.frame.color(layout.noise(np.random.default_rng(2)))
    found = shifted.slope_at(given, point, shifted.read(point))
    expected = given.precision.product(*layout.split(given.point - point))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("factor", [0, 1])
def test_ratios_of_levels_are_of_density_and_proposal(shifted: Surrogate, factor: int) -> None:
    """log π̃ / q of all levels together, with higher orders by this factor alone."""
    rng, levels = np.random.default_rng(3), shifted.field.levels[factor]
    given = shifted.conditional(shifted.center[shifted.field.hyper] + 0.3)
    point = given.frame.color(shifted.field.latent.noise(rng))
    before = shifted.read(point)
    mean, cholesky = shifted.given_others(given, point, before, levels)
    moved = point.copy()
    moved[levels.latent] = mean + 0.7 * rng.normal(size=levels.latent.shape)
    after = shifted.read_levels(moved, before, levels)

    def log_density(at: np.ndarray, predictors: PredictorState) -> float:
        delta = predictors.phi - shifted.expansion.at
        second_order = shifted.expansion.slope @ delta
        second_order -= 0.5 * delta @ shifted.curvature_product(delta)
        cubic = shifted.cubic(levels.rows)
        higher = 0.0 if cubic is None else shifted.of_third_order(cubic, predictors).sum()
        return float(shifted.field.derivatives.prior(at) + second_order + higher)

    def log_proposal(at: np.ndarray) -> float:
        whitened = np.einsum("gqr,gq->gr", cholesky, at[levels.latent] - mean)
        return -0.5 * float(np.sum(whitened**2))

    found = shifted.level_ratios(given, (point, moved), (before, after), levels).sum()
    expected = log_density(moved, after) - log_density(point, before)
    expected -= log_proposal(moved) - log_proposal(point)
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_marginal_is_that_of_the_gaussian(shifted: Surrogate) -> None:
    """At the top of the field, with the shift of the dense part in its density, too."""
    hyper = shifted.center[shifted.field.hyper] + 0.3
    given = shifted.conditional(hyper)
    away, _ = shifted.field.rows.split(shifted.phi(given.point) - given.phi)
    assert shifted.expansion.dense_shift is not None
    expected = shifted.smooth_log_density(given.point) - given.log_determinant
    expected -= 0.5 * away @ shifted.expansion.dense_shift @ away
    assert shifted.log_marginal(hyper) == pytest.approx(expected, rel=1e-12)


def test_shifts_outlive_pickling(shifted: Surrogate) -> None:
    again = pickle.loads(pickle.dumps(shifted.expansion))
    assert again.is_shifted
    np.testing.assert_array_equal(again.dense_shift, shifted.expansion.dense_shift)
