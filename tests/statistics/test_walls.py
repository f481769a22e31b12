"""Densities that end at a wall: a potential of −inf, or a prior without a transform.

A location is known by a closed form or by quadrature, with the wall 1 sd below the mode, at it, and
1 and 3 sds above, so that a tail of 0.1 % is all that is left.
"""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from benchmarks import walls

ROWS = np.random.default_rng(1).standard_t(4, size=300) + 0.5
GRID = np.linspace(0.0, 1.2, 6001)
LOG_DENSITY = (-2.5 * np.log1p((ROWS[:, None] - GRID) ** 2 / 4)).sum(axis=0)


def moments(beyond, log_density=LOG_DENSITY):
    """Mean and sd of a density on a grid that ends at a wall."""
    weights = np.where(beyond < GRID, np.exp(log_density - log_density.max()), 0.0)
    weights /= weights.sum()
    mean = weights @ GRID
    return mean, np.sqrt(weights @ (GRID - mean) ** 2)


def wall_at(sds):
    mean, sd = moments(-np.inf)
    return float(mean + sds * sd)


def draws_beyond(wall, step, draws=4000, by="potential", **options):
    """Sample a location of Student-t rows that is larger than the wall."""
    start = wall + 0.01
    with pm.Model():
        if by == "potential":
            mu = pm.Normal("mu", 0, 100, initval=start)
            pm.Potential("wall", pt.switch(mu > wall, 0.0, -np.inf))
        else:
            mu = pm.Uniform("mu", wall, 100, default_transform=None, initval=start)
        pm.StudentT("y", nu=4, mu=mu, sigma=1, observed=ROWS)
        posterior = pm.sample(
            draws,
            tune=1000,
            chains=1,
            cores=1,
            step=step(**options),
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        ).posterior
    return posterior["mu"].values.ravel()


def assert_moments(draws, wall, bias=0.0):
    """Mean and sd are those by quadrature, within Monte Carlo errors and a bias in sds."""
    assert draws.min() > wall
    mean, sd = moments(wall)
    for found, true in ((draws, mean), ((draws - mean) ** 2, sd**2)):
        error = found.std() / np.sqrt(float(az.ess(found[None])))
        scale = sd if true == mean else 2 * sd**2
        assert abs(found.mean() - true) < 4.5 * error + bias * scale


@pytest.mark.parametrize("sds", [-1.0, 1.0])
@pytest.mark.parametrize("kernel", ["hamiltonian", "langevin", "metropolis", "slice"])
def test_firefly(kernel, sds):
    wall = wall_at(sds)
    assert_moments(draws_beyond(wall, pmb.FlyMC, proposal=kernel), wall)


@pytest.mark.parametrize(("sds", "by"), [(0.0, "uniform"), (-1.0, "potential"), (3.0, "potential")])
@pytest.mark.parametrize("kind", [pmb.SGLD, pmb.SGHMC, pmb.SGNHT, pmb.MinibatchMH])
def test_gradient_steps(kind, sds, by):
    """Draws of the gradient steps are wider by a few per cent, as without a wall."""
    wall = wall_at(sds)
    draws = draws_beyond(wall, kind, by=by, steps_per_draw=20)
    assert_moments(draws, wall, bias=0.0 if kind is pmb.MinibatchMH else 0.12)


def benchmark_cells():
    """Mean and sd along the wall and across it, for one form and one distance for each step."""
    forms = (("potential", 0.0), ("uniform", 1.0), ("truncated", 3.0))
    steps = ("MinibatchMH", "SGHMC", "SGNHT")
    return [(step, *form) for step, form in zip(steps, forms, strict=True)]


@pytest.mark.parametrize(("step", "form", "sds"), benchmark_cells())
def test_the_table_of_walls(step, form, sds):
    found = walls.run(step, form, sds, draws=2000, tune=500)
    assert found.is_right(step in walls.EXACT), found


@pytest.mark.parametrize("step", ["SGFS", walls.ESTIMATOR])
def test_what_is_made_for_a_gaussian_refuses(step):
    for form in walls.FORMS:
        with pytest.raises(ValueError, match="beyond a hard constraint"):
            walls.run(step, form, 0.0)


@pytest.mark.parametrize("form", walls.FORMS)
@pytest.mark.parametrize("sds", [-1e-9, 0.0, 1e-9])
def test_a_mode_on_a_wall_is_found(form, sds):
    """It may lie beyond the wall by rounding."""
    wall = walls.FORMS[form](sds)
    found = pmb.find_reference(wall.model, progressbar=False)
    np.testing.assert_allclose(found.flat, walls.MODE, atol=1e-4)


@pytest.mark.parametrize("kind", [pmb.SGLD, pmb.SGHMC, pmb.SGNHT])
def test_a_gradient_without_a_limit_throws_no_draw_far_away(kind):
    """The density falls to zero like the distance from the wall, one sd below the mode."""
    y = np.random.default_rng(1).normal(size=3000)
    wall, sd = y.mean(), 1 / np.sqrt(y.size)
    grid = np.linspace(wall, wall + 9 * sd, 100_001)
    density = (grid - wall) * np.exp(-0.5 * ((grid - wall) / sd) ** 2)
    mean = np.average(grid, weights=density)
    true = np.sqrt(np.average((grid - mean) ** 2, weights=density))
    with pm.Model():
        mu = pm.Normal("mu", 0, 10, initval=wall + sd)
        pm.Potential("wall", pt.log(mu - wall))
        pm.Normal("y", mu, 1.0, observed=y)
        idata = pm.sample(
            3000, tune=1000, chains=2, cores=1, step=kind(), random_seed=1, progressbar=False
        )
    draws = idata.posterior["mu"].values
    assert abs(draws.mean() - mean) < 0.2 * true
    assert 0.9 < draws.std() / true < 1.2
    assert draws.max() < mean + 8 * true
