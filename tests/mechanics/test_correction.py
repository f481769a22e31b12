"""The correction distribution, measured with SciPy's distributions on grids of its own."""

import time

import numpy as np
import pytest
from scipy.stats import chisquare, logistic, norm

from pymc_minibatch.acceptance.correction import Correction, correction

SIGMAS = [0.5, 0.63, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4]

ERROR_BARS = {
    0.5: 1e-12,
    0.7: 1e-12,
    0.8: 2e-12,
    0.9: 1e-9,
    1.0: 1e-7,
    1.1: 2e-6,
    1.2: 2e-5,
    1.4: 6e-4,
}


def cdf_distance(c: Correction, x: np.ndarray) -> np.ndarray:
    """Distance between the distribution functions at x, from the tail nearer to x."""
    tail = np.abs(x)
    return np.abs(norm.sf(tail[:, None], c.atoms, c.sigma) @ c.weights - logistic.sf(tail))


def second_derivative(c: Correction, tau: float, x: np.ndarray) -> np.ndarray:
    """G'' of N(0, tau^2) + X_corr at x."""
    z = (x[:, None] - c.atoms) / tau
    return -(z * norm.pdf(z)) @ c.weights / tau**2


def sup_third_derivative(c: Correction, tau: float) -> float:
    """Sup |G'''| by central differences of G'' on an even grid of half the line."""
    x = np.arange(-0.01, 12.0, tau / 25)
    h = 1e-4 * tau
    slope = (second_derivative(c, tau, x + h) - second_derivative(c, tau, x - h)) / (2 * h)
    return float(np.abs(slope).max())


@pytest.mark.parametrize(("sigma", "bar"), ERROR_BARS.items())
def test_cdf_error_meets_its_bar(sigma, bar):
    """The bars are the accuracy that the package states."""
    x = np.linspace(-55.0, 55.0, 30_011)
    assert cdf_distance(correction(sigma), x).max() <= bar


@pytest.mark.parametrize("sigma", SIGMAS)
def test_cdf_error_is_the_sup(sigma):
    """The reported error is attained, and not exceeded on a grid of another step."""
    c = correction(sigma)
    measured = cdf_distance(c, np.linspace(0.0, 55.0, 20_011)).max()
    assert measured == pytest.approx(c.cdf_error, rel=1e-2, abs=1e-15)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_is_a_symmetric_distribution(sigma):
    """Weights are positive with sum 1, and atoms mirror each other exactly."""
    c = correction(sigma)
    assert np.all(np.diff(c.atoms) > 0)
    np.testing.assert_array_equal(c.atoms[::-1], -c.atoms)
    np.testing.assert_array_equal(c.weights[::-1], c.weights)
    assert np.all(c.weights > 0)
    assert c.weights.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_variance_completes_the_logistic(sigma):
    """Variances add up to that of the logistic, whatever the error in distribution."""
    c = correction(sigma)
    assert c.weights @ c.atoms**2 == pytest.approx(logistic.var() - sigma**2, abs=1e-6)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_cumulative_looks_up_every_atom(sigma):
    """Both ends of [0, 1) land on the outer atoms, and each step has the width of its weight."""
    c = correction(sigma)
    assert c.cumulative[-1] == 1.0
    assert np.all(np.diff(c.cumulative) > 0)
    np.testing.assert_allclose(np.diff(c.cumulative, prepend=0.0), c.weights, rtol=0, atol=1e-15)
    index = np.searchsorted(c.cumulative, [0.0, np.nextafter(1.0, 0.0)], side="right")
    np.testing.assert_array_equal(index, [0, c.atoms.size - 1])


@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.4])
def test_look_up_reproduces_the_weights(sigma):
    """Frequencies of a million draws agree with the weights, at level 1e-5."""
    c = correction(sigma)
    n = 1_000_000
    u = np.random.default_rng(20170811).random(n)
    count = np.bincount(np.searchsorted(c.cumulative, u, side="right"), minlength=c.atoms.size)
    common = n * c.weights >= 10
    observed = np.append(count[common], count[~common].sum())
    expected = n * np.append(c.weights[common], c.weights[~common].sum())
    kept = expected > 0
    assert chisquare(observed[kept], expected[kept]).pvalue > 1e-5


@pytest.mark.parametrize("sigma", [0.5, 0.9, 1.0, 1.2, 1.4])
def test_smoothness_bounds_the_third_derivative_between_nodes(sigma):
    """The larger neighbour bounds sup |G'''| in between, and does so tightly."""
    c = correction(sigma)
    for i in range(0, c.variance_grid.size - 10, 7):
        lower, upper = c.variance_grid[i : i + 2]
        bound = c.smoothness[i : i + 2].max()
        for fraction in (0.02, 0.5, 0.98):
            s2 = lower + fraction * (upper - lower)
            direct = sup_third_derivative(c, np.sqrt(sigma**2 - s2))
            assert direct <= bound
            assert bound <= 1.4 * direct


@pytest.mark.parametrize("sigma", SIGMAS)
def test_smoothness_runs_from_the_logistic_to_infinity(sigma):
    """Nothing taken over leaves the logistic, whose sup |G'''| is 1/8; all of it leaves jumps."""
    c = correction(sigma)
    assert c.smoothness[0] == pytest.approx(0.125, rel=2e-3 if sigma <= 1.1 else 0.08)
    assert c.variance_grid[0] == 0.0
    assert c.variance_grid[-1] == sigma**2
    assert np.all(np.diff(c.variance_grid) > 0)
    assert np.all(np.isfinite(c.smoothness[:-1]))
    assert c.smoothness[-1] == np.inf
    assert np.all(np.diff(c.smoothness) >= 0)


@pytest.mark.parametrize("sigma", [0.499, 1.401, 0.0, -1.0, np.nan, np.inf, -np.inf])
def test_refuses_sigma_out_of_range(sigma):
    """The message gives the range and the reason."""
    with pytest.raises(ValueError, match=r"\[0\.5, 1\.4\].*1e-3.*more rows"):
        correction(sigma)


def test_one_object_a_sigma():
    """Python and NumPy numbers of equal value share one object, which nobody can change."""
    c = correction(1.0)
    assert correction(1) is c
    assert correction(np.float64(1.0)) is c
    assert correction(np.float32(1.0)) is c
    for array in c[1:4] + c[5:]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


@pytest.mark.parametrize("sigma", [0.512, 0.803, 0.957])
def test_first_use_is_quick(sigma):
    """A sigma that no other test has asked for takes under 3 seconds."""
    start = time.process_time()
    correction(sigma)
    assert time.process_time() - start < 3.0
