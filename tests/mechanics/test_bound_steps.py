"""Steps for some of the variables, when the data in the model are a stand-in."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

N_ROWS = 4000
QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N_ROWS)
    return {"x": x, "y": 1 + 0.5 * x + rng.normal(size=N_ROWS)}


@pytest.fixture(scope="module")
def model():
    """A stand-in of which nothing is like the data; its rows do not depend on mu."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        alpha = pm.Normal("alpha", mu, 1)
        beta = pm.Normal("beta")
        mean = alpha + beta * pm.Data("x", np.linspace(3, 4, 40))
        pm.Normal("y", mean, 1, observed=np.full(40, 9.0))
    return model


@pytest.fixture(scope="module")
def make(model):
    def make(names, data):
        return pmb.MinibatchMH(names, data=data, model=model, control_variate=0)

    return make


@pytest.fixture(scope="module")
def data():
    return rows(1)


@pytest.fixture(scope="module")
def both(make, data):
    return make(["mu", "alpha"], data), make(["beta"], data)


def compound(*moves):
    def step(point):
        for move in moves:
            point, _ = move(point)
        return point

    return step


def stand_in(point):
    """Move beta as a step does that knows nothing of the data."""
    return point | {"beta": point["beta"] + 1.0}, []


def test_a_variable_left_to_pymc_is_refused(model, make, data):
    step = make(["mu", "alpha"], data)
    with model, pytest.raises(ValueError, match=r"depend on \['beta'\], which MinibatchMH leaves"):
        pm.sample(5, tune=5, step=step, chains=1, cores=1, random_seed=1, **QUIET)


def test_a_step_bound_to_other_data_does_not_count(model, make, data):
    first, _other = make(["alpha", "mu"], data), make(["beta"], rows(2))
    with pytest.raises(ValueError, match=r"depend on \['beta'\]"):
        first.step(model.initial_point())


def test_a_step_that_is_there_but_does_not_move_the_variable(model, both):
    for step in both:
        step.setup_chain(np.random.default_rng(1), 0, 10)
    move = compound(both[0].step, stand_in)
    point = move(model.initial_point())
    with pytest.raises(ValueError, match=r"depend on \['beta'\]"):
        move(point)


def test_steps_bound_to_the_same_data(model, both, data):
    with model:
        drawn = pm.sample(
            1500, tune=500, step=list(both), chains=2, cores=2, random_seed=2, **QUIET
        )
    design = np.column_stack([np.ones(N_ROWS), data["x"]])
    exact, *_ = np.linalg.lstsq(design, data["y"], rcond=None)
    for name, mean in zip(["alpha", "beta"], exact, strict=True):
        assert abs(float(drawn.posterior[name].mean()) - mean) < 1 / np.sqrt(N_ROWS)
        assert 0.5 < float(drawn.posterior[name].std()) * np.sqrt(N_ROWS) < 2


def test_what_rows_do_not_depend_on_may_be_left_to_pymc(model, make, data):
    step = make(["alpha", "beta"], data)
    with model:
        pm.sample(5, tune=5, step=step, chains=1, cores=1, random_seed=1, **QUIET)
