"""Posteriors of angles, beside integrals: about half a turn, weakly known, and with two modes."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.tall import TallModel

TUNE = 300
GRID = np.linspace(-np.pi, np.pi, 20_001)[:-1]


def draws_of(model: pm.Model, name: str, n_draws: int) -> np.ndarray:
    """Draw the angles with this name; values on the line must stay about where they were found."""
    sampler = make_latent_sampler(TallModel(model), None, 1.0)
    rng, state = np.random.default_rng(5), sampler.initial_state()
    point, angles = sampler.tall.start.copy(), sampler.field.derivatives.angles
    seen = np.empty((n_draws, point.size))
    for k in range(-TUNE, n_draws):
        sampler.draw(rng, point, 1, k < 0, state)
        if k == -1:
            sampler.end_tuning(state)
        if k >= 0:
            seen[k] = point
    away = np.abs(seen[:, angles.positions] - angles.centers)
    assert (away > 1.2 * np.pi).mean() < 1e-3
    assert away.max() < 1.5 * np.pi
    values = seen[:, sampler.tall.layout.slices[f"{name}_circular__"]]
    return np.arctan2(np.sin(values), np.cos(values))


def errors(drawn: np.ndarray, expected: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return errors of means of draws (n, G), in their standard errors."""
    ess = np.array([float(az.ess(column[None])) for column in drawn.T])
    assert ess.min() > 200
    return (drawn.mean(axis=0) - expected) / (spread / np.sqrt(ess))


def compare(drawn: np.ndarray, log_density: np.ndarray) -> None:
    """Compare draws (n, G) with densities at GRID (n_grid, G)."""
    density = np.exp(log_density - log_density.max(axis=0))
    density /= density.sum(axis=0)
    mode = GRID[density.argmax(axis=0)]

    def both(angle: np.ndarray) -> list[np.ndarray]:
        return [np.sin(angle - mode), 1.0 * (np.ones_like(mode) * angle > 0)]

    for found, exact in zip(both(drawn), both(GRID[:, None]), strict=True):
        mean = (density * exact).sum(axis=0)
        spread = np.sqrt((density * exact**2).sum(axis=0) - mean**2)
        varies = spread > 0.1  # enough draws are on either side
        assert np.abs(errors(found, mean, spread)[varies]).max(initial=0.0) < 5.0


@pytest.mark.parametrize("amplitude", [0.15, 0.5])
@pytest.mark.parametrize("true", [0.0, 3.1])
def test_angles_of_levels(true: float, amplitude: float) -> None:
    """Of 20, each with 100 rows."""
    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(20), 100), rng.uniform(-np.pi, np.pi, 2000)
    y = amplitude * np.cos(x - true) + rng.normal(size=x.size)
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0, 0.3, shape=20)
        pm.Normal("y", amplitude * pm.math.cos(x - angle[group]), 1.0, observed=y)
    # Σ (y − A cos(x − a))² by sums over the rows of each level, so that no row is on the grid
    of_x = np.array([np.ones_like(x), np.cos(x), np.sin(x)])
    products = np.array([[np.bincount(group, a * b) for a in of_x] for b in of_x])
    with_y = np.array([np.bincount(group, a * y) for a in of_x])
    mean = amplitude * np.array([np.zeros_like(GRID), np.cos(GRID), np.sin(GRID)])
    of_rows = np.einsum("kn,kg->ng", mean, with_y)
    of_rows -= 0.5 * np.einsum("kn,jn,kjg->ng", mean, mean, products)
    compare(draws_of(model, "angle", 1500), of_rows + 0.3 * np.cos(GRID)[:, None])


@pytest.mark.parametrize("amplitude", [0.03, 0.4])
def test_an_angle_of_all_rows(amplitude: float) -> None:
    """Beside effects, about half a turn."""
    rng = np.random.default_rng(2)
    group, x = np.repeat(np.arange(40), 50), rng.uniform(-np.pi, np.pi, 2000)
    y = amplitude * np.cos(x - np.pi) + 0.5 * rng.normal(size=40)[group] + rng.normal(size=x.size)
    with pm.Model() as model:
        angle, effect = pm.VonMises("angle", 0, 0.1), pm.Normal("effect", 0, 0.5, shape=40)
        pm.Normal("y", amplitude * pm.math.cos(x - angle) + effect[group], 1.0, observed=y)
    grid = GRID[:, None]
    rest = [y - amplitude * np.cos(x - each) for each in grid[::20]]
    of_rows = [
        -0.5 * r @ r + 0.5 * np.sum(np.bincount(group, r) ** 2) / (50 + 0.5**-2) for r in rest
    ]
    log_density = np.interp(GRID, GRID[::20], of_rows, period=2 * np.pi)[:, None]
    compare(draws_of(model, "angle", 2000), log_density + 0.1 * np.cos(grid))


def test_a_mode_with_a_share_of_three_per_cent() -> None:
    """Rows see the sine; the prior prefers one of the two angles that have it."""
    rng, n_levels = np.random.default_rng(1), 10
    group = np.repeat(np.arange(n_levels), 30)
    y = 2.0 * np.sin(0.5) + 0.5 * rng.normal(size=group.size)
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0, 2.0, shape=n_levels)
        pm.Normal("y", 2.0 * pm.math.sin(angle[group]), 0.5, observed=y)
    mean = np.bincount(group, y) / 30
    log_density = -0.5 * 30 * ((mean - 2.0 * np.sin(GRID)[:, None]) / 0.5) ** 2
    density = np.exp(log_density + 2.0 * np.cos(GRID)[:, None])
    density /= density.sum(axis=0)
    share = density[np.abs(GRID) > np.pi / 2].sum(axis=0)
    assert np.all((share > 0.02) & (share < 0.04))
    is_far = np.abs(draws_of(model, "angle", 4000)) > np.pi / 2
    changes = (is_far[1:] != is_far[:-1]).sum(axis=0)
    assert np.median(changes) >= 20
    # Changes are nearly independent of one another: of as many stays there the length varies.
    stays = changes.sum() / 2
    assert is_far.mean() == pytest.approx(share.mean(), rel=5 * np.sqrt(2 / stays))
