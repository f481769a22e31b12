"""Where chains that tune start: about the mode, wider than the posterior, given the other steps."""

import numpy as np
import pymc as pm
import pytest
from models import logistic_model

from pymc_minibatch import SGLD, FlyMC, MinibatchMH, TallModel, find_reference
from pymc_minibatch.reference.decide import START_SPREAD, nearer_start

FAR = {"beta": np.array([15.0, 15.0])}


@pytest.fixture(scope="module")
def model():
    return logistic_model(5000)


@pytest.fixture(scope="module")
def reference(model):
    return find_reference(model)


@pytest.mark.parametrize("kind", [MinibatchMH, SGLD, FlyMC])
def test_chains_start_wider_than_the_posterior(model, reference, kind):
    """Twice its standard deviation; the Gaussian of FlyMC is that of its bounds."""
    step = kind(model=model, reference=reference, rng=1)
    starts = np.array([step.near_mode(FAR)["beta"] for _ in range(300)]) - reference.flat
    squares = np.einsum("ki,ij,kj->k", starts, np.linalg.inv(reference.covariance), starts)
    assert 1.4 < np.sqrt(squares.mean() / 2) < 2.4


def test_a_wide_start_is_possible(model, reference):
    """Where a draw would be impossible the chain starts nearer to the mode."""
    step = MinibatchMH(model=model, reference=reference, rng=1)
    whiten = np.linalg.cholesky(reference.precision_at(1.0)).T
    edge = 1.2
    step.tall.logp = lambda point: (
        -np.inf
        if (distance := np.linalg.norm(whiten @ (point["beta"] - reference.flat))) > edge
        and distance < 100
        else -(distance**2)
    )
    active = np.arange(2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        start = nearer_start(step.tall, reference.flat, whiten, 1.0, active, FAR, rng)
        assert np.linalg.norm(whiten @ (start["beta"] - reference.flat)) <= edge
    assert START_SPREAD > 1.2


def test_a_start_near_the_mode_is_kept(model, reference):
    step = MinibatchMH(model=model, reference=reference, rng=1)
    near = {"beta": reference.flat + 0.5 * np.sqrt(np.diag(reference.covariance))}
    assert step.near_mode(near) is near


@pytest.fixture(scope="module")
def lines():
    """Intercept and slope of rows far from zero, which depend on each other strongly."""
    rng = np.random.default_rng(4)
    x = rng.normal(3.0, 1.0, 3000)
    y = 50.0 + 2.0 * x + rng.normal(size=x.size)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 100), pm.Normal("b", 0, 100)
        pm.Normal("y", a + b * x, 1.0, observed=y)
    return model, x, y


@pytest.mark.parametrize("kind", [MinibatchMH, FlyMC])
def test_a_block_starts_where_it_is_probable_given_the_others(lines, kind):
    model, x, y = lines
    step = kind([model["a"]], model=model, rng=1)
    point = {"a": np.array(0.0), "b": np.array(7.0)}
    starts = [step.near_mode(point) for _ in range(50)]
    assert all(start["b"] == 7.0 for start in starts)
    given_b = np.mean([start["a"] for start in starts])
    assert abs(given_b - np.mean(y - 7.0 * x)) < 5 * 2 / np.sqrt(x.size * 50)


def test_rows_that_are_impossible_at_the_start_move_it():
    """Of a uniform distribution whose end is 1 where the model starts, some are beyond it."""
    values = np.linspace(0.01, 1.2, 500)
    with pm.Model() as model:
        pm.Uniform("y", 0, pm.math.exp(pm.Normal("log_end", 0, 1)), observed=values)
    tall = TallModel(model)
    assert np.exp(tall.start).item() > 1.2
    assert np.isfinite(tall.row_logp(tall.layout.unflatten(tall.start), np.arange(500))).all()


def test_the_start_stays_if_the_prior_is_impossible_elsewhere():
    """A potential that ends at 0 lets the model start nowhere else."""
    with pm.Model() as model:
        log_end = pm.Normal("log_end", 0, 1)
        pm.Potential("wall", pm.math.switch(pm.math.eq(log_end, 0.0), 0.0, -np.inf))
        pm.Uniform("y", 0, pm.math.exp(log_end), observed=np.linspace(0.01, 1.2, 500))
    assert TallModel(model).start == 0.0


def test_a_start_at_which_all_rows_are_possible_stays(model):
    tall = TallModel(model)
    np.testing.assert_array_equal(tall.start, tall.layout.flatten(model.initial_point()))
