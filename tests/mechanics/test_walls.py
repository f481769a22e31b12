"""What is done about points where the density is zero, and how they are recognised."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pymc_minibatch as pmb
from pymc_minibatch.tall.support import may_be_impossible


def test_effects_start_inside_a_constraint():
    """Also where a random start is often outside, and the given one is far off."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(20), 30)
    y = 0.3 * rng.normal(size=20)[group] + rng.normal(size=600)
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 0, 2, initval=0.0), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", mu, sd, shape=20)
        pm.Normal("y", effect[group], 1.0, observed=y)
        pm.Potential("wall", pt.switch(mu > -0.1, 0.0, -np.inf))
        step = pmb.MinibatchMH()
    assert step.latent is not None
    flat = step.tall.layout.flatten(model.initial_point() | {"effect": np.full(20, 9.0)})
    starts = [step.latent.near_mode(np.random.default_rng(seed), flat) for seed in range(20)]
    assert all(np.isfinite(step.tall.compiled_prior_logp(start)) for start in starts)
    assert len({tuple(start) for start in starts}) >= 15  # some are the one that is surely possible


def test_odds_of_bright_rows_are_those_at_the_point_where_they_are_lit():
    """Also of rows that were bright before another step moved what their bounds depend on."""
    y = 1.0 + 2.0 * np.random.default_rng(1).standard_t(4, size=400)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 10), pm.HalfNormal("s", 5)
        pm.StudentT("y", nu=4, mu=b, sigma=s, observed=y)
        with pytest.warns(UserWarning, match="which other steps move"):
            step = pmb.FlyMC([b], proposal="metropolis", tune_bounds=False, rng=1)
    point = model.initial_point()
    for _ in range(5):
        point, _ = step.step(point)
    flat = step.tall.layout.flatten({**point, "s_log__": point["s_log__"] - 1.0})
    step.chosen = step.chosen.moved(step.target, flat, step.elsewhere)
    step.iterate(flat, 0, redraw_z=True)
    bright, log_odds = step.fireflies[:2]
    assert bright.size > 10
    assert np.unique(bright).size == bright.size
    gaps = step.target.gaps(flat, step.chosen.constants[0], bright)
    np.testing.assert_allclose(log_odds, gaps + np.log(-np.expm1(-gaps)), rtol=1e-10)


def test_a_trajectory_has_a_longest_length():
    """Where bright rows or the prior ask for short steps, a draw does not take ever longer."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("y", logit_p=X @ beta, observed=rng.integers(0, 2, 500))
        step = pmb.FlyMC(proposal="hamiltonian", tune_bounds=False, rng=1)
    step.tuning.log_step[0] = np.log(1e-4)
    step.tune = False
    _, [stat] = step.step(model.initial_point())
    assert stat["n_likelihood"] < 1000 + 70 * stat["n_bright"]


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.HalfNormal("x", 1),
        lambda: pm.Uniform("x", 2, 5.1),
        lambda: pm.Beta("x", 2, 2),
        lambda: pm.InverseGamma("x", 2, 1),
        lambda: pm.TruncatedNormal("x", 0, 1, lower=-1, upper=3),
        lambda: pm.StudentT("x", 3),
        lambda: pm.Normal("x", 0, pm.HalfCauchy("s", 1)),
        lambda: pm.Flat("x"),
    ],
)
def test_transforms_leave_no_wall(prior):
    """So that what is looked at in each step costs nothing where nothing is to be seen."""
    assert not may_be_impossible(split(prior).prior_graph)


def with_potential(potential):
    def build():
        x = pm.Normal("x", 0, 1, initval=1.0)
        pm.Potential("wall", potential(x))
        return x

    return build


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.Uniform("x", 0, 1, default_transform=None),
        lambda: pm.Exponential("x", 1, default_transform=None, initval=1.0),
        with_potential(lambda x: pt.switch(x > 0.1, 0.0, -np.inf)),
        with_potential(lambda x: pt.switch(pt.and_(x > 0, x**2 > 0.1), 0.0, -np.inf)),
        with_potential(pt.log),
        with_potential(lambda x: pt.log(pt.maximum(x, 0))),
        with_potential(lambda x: pt.sqrt(x - 0.5)),
        with_potential(lambda x: pt.log1p(-pt.exp(x - 3.0))),
    ],
)
def test_walls_are_seen(prior):
    assert may_be_impossible(split(prior).prior_graph)


def split(prior):
    with pm.Model() as model:
        pm.Normal("y", prior(), 1, observed=np.arange(100.0))
        return pmb.TallModel(model)


def walled_model(distance):
    """Rows of a known mean with a wall so many sds below it, by a potential."""
    y = np.random.default_rng(1).normal(size=2500)
    y -= y.mean()
    with pm.Model() as model:
        mu = pm.Flat("mu", initval=0.01)
        pm.Normal("y", mu, 1.0, observed=y)
        pm.Potential("wall", pt.switch(mu > -0.02 * distance, 0.0, -np.inf))
    return model


def test_what_is_made_for_a_gaussian_posterior_refuses_a_wall():
    for distance in (0.5, 2.0):
        model = walled_model(distance)
        with pytest.raises(ValueError, match="beyond a hard constraint"):
            pmb.SGFS(model=model)
        with pytest.raises(ValueError, match="beyond a hard constraint"):
            pmb.multilevel_sgld("mu", model=model)


def test_a_wall_far_away_is_no_reason_to_refuse():
    step = pmb.SGFS(model=walled_model(20.0), rng=1)
    point = {"mu": np.array(0.0)}
    for _ in range(30):
        point, _ = step.step(point)
    assert step.tuned.stopped[0] == 0


def test_steps_that_would_pass_a_wall_stop_the_run():
    """Without a reference the wall is seen only when steps lead there."""
    step = pmb.SGFS(model=walled_model(0.5), control_variate=0, steps_per_draw=50, rng=1)
    point = {"mu": np.array(0.01)}
    for _ in range(20):
        point, _ = step.step(point)
    step.stop_tuning()
    with pytest.raises(SamplingError, match="beyond a hard constraint"):
        run_inside(step, point)


def run_inside(step, point):
    for _ in range(100):
        point, _ = step.step(point)
        assert point["mu"] > -0.01
