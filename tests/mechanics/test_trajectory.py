"""Trajectories of hyperparameters and effects: coordinates, slopes, the way back, and when."""

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.joint_frame import JointFrame
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.trajectory import Start, Trajectory, TrajectoryOfField
from pymc_minibatch.latent.whole import WholeSampler
from pymc_minibatch.tall import TallModel

STEPS = (0.2, 5)


@pytest.fixture(scope="module")
def sampler() -> WholeSampler:
    """Two crossed factors, one of them centred, and slopes; rows are so few that all decide."""
    rng = np.random.default_rng(2)
    first, second = rng.integers(0, 30, 400), rng.integers(0, 12, 400)
    x = rng.normal(size=(400, 3))
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("sd_a"), shape=30)
        b = pm.HalfNormal("sd_b") * pm.Normal("z_b", shape=12)
        rate = pm.math.exp(a[first] + b[second] + x @ pm.Normal("slope", shape=3))
        pm.Poisson("y", rate, observed=rng.poisson(1.0, 400))
    found = make_latent_sampler(TallModel(model), None, 1.0)
    assert isinstance(found, WholeSampler)
    return found


def point_of(sampler: WholeSampler, seed: int) -> np.ndarray:
    away = np.random.default_rng(seed).standard_normal(sampler.tall.layout.size)
    return frames(sampler)[0].point(away)


def frames(sampler: WholeSampler) -> list[JointFrame]:
    reference = sampler.reference
    surrogate, cholesky = reference.surrogate, reference.hyper_cholesky
    return [
        JointFrame.about(surrogate, reference.hyper, cholesky),
        JointFrame.of_field(surrogate.conditional(reference.hyper)),
    ]


def log_density(sampler: WholeSampler, point: np.ndarray) -> float:
    named = sampler.tall.layout.unflatten(sampler.coordinates.to_model(point))
    return float(sampler.tall.model.compile_logp()(named))


@pytest.mark.parametrize("kind", [0, 1], ids=["all", "field"])
def test_coordinates_and_their_slope(sampler: WholeSampler, kind: int) -> None:
    """There and back; and the gradient by y is what differences of the log-density say."""
    frame, rng = frames(sampler)[kind], np.random.default_rng(1)
    y, along = rng.standard_normal((2, frame.size))
    point = frame.point(y)
    assert frame.coordinates(point) == pytest.approx(y, abs=1e-9)
    trajectory = sampler.moves.by_name["trajectory"]
    assert isinstance(trajectory, Trajectory)
    slope = frame.slope(trajectory.slope_at(point, sampler.decisions))
    ends = [log_density(sampler, frame.point(y + step * along)) for step in (1e-5, -1e-5)]
    assert slope @ along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-4)


def test_the_slope_is_that_of_the_prior_with_its_kinks() -> None:
    """Of Laplace effects, whose slopes and curvatures are smoothed elsewhere."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 30, 300)
    with pm.Model() as model:
        effect = pm.Laplace("effect", 0, pm.HalfNormal("b"), shape=30)
        rate = pm.math.exp(pm.Normal("mu") + effect[group])
        pm.Poisson("y", rate, observed=rng.poisson(1.0, 300))
    found = make_latent_sampler(TallModel(model), None, 1.0)
    assert isinstance(found, WholeSampler)
    trajectory = found.moves.by_name["trajectory"]
    assert isinstance(trajectory, Trajectory)
    point, along = point_of(found, 5), rng.standard_normal(found.tall.layout.size)
    slope = trajectory.slope_at(point, found.decisions)
    ends = [log_density(found, point + step * along) for step in (1e-6, -1e-6)]
    assert slope @ along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-4)


def test_coordinates_are_nearly_standard_normal(sampler: WholeSampler) -> None:
    """Along each of them the log-density falls about as that of a normal."""
    frame = frames(sampler)[0]
    density = sampler.tall.model.compile_logp()
    to_model, unflatten = sampler.coordinates.to_model, sampler.tall.layout.unflatten

    def value(y: np.ndarray) -> float:
        return float(density(unflatten(to_model(frame.point(y)))))

    peak = value(np.zeros(frame.size))
    units = np.eye(frame.size)
    falls = [peak - (value(unit) + value(-unit)) / 2 for unit in units]
    assert np.median(falls) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", [0, 1], ids=["all", "field"])
def test_the_way_back(sampler: WholeSampler, kind: int) -> None:
    """It ends where the trajectory began, with the momentum turned round, and volumes stay."""
    frame, decisions = frames(sampler)[kind], sampler.decisions
    name = (Trajectory.name, TrajectoryOfField.name)[kind]
    trajectory = sampler.moves.by_name[name]
    assert isinstance(trajectory, Trajectory)
    momentum = np.random.default_rng(5).standard_normal(frame.size)
    point = frame.point(np.random.default_rng(6).standard_normal(frame.size))
    path = trajectory.follow(Start(point, momentum, frame), STEPS, decisions)
    assert path is not None
    back = trajectory.follow(path.end.reversed, STEPS, decisions)
    assert back is not None
    assert back.point == pytest.approx(point, abs=1e-8)
    assert back.end.momentum == pytest.approx(-momentum, abs=1e-8)
    assert back.log_kernel == pytest.approx(-path.log_kernel, abs=1e-8)
    energies = [
        0.5 * float(end.momentum @ end.momentum) - log_density(sampler, end.point)
        for end in (path.start, path.end)
    ]
    assert abs(energies[1] - energies[0]) < 1.0  # small steps hardly change the energy


def test_slopes_are_remembered_at_both_ends(sampler: WholeSampler) -> None:
    """The next trajectory begins at one of them, and reads the rows once less."""
    frame, decisions = frames(sampler)[0], sampler.decisions
    trajectory = Trajectory(sampler.model)
    momentum = np.ones(frame.size)
    first = trajectory.follow(Start(point_of(sampler, 7), momentum, frame), STEPS, decisions)
    assert first is not None
    assert first.n_slopes == STEPS[1] + 1
    for start in (first.start.point, first.point):
        again = Trajectory(sampler.model)
        again.remembered = list(trajectory.remembered)
        path = again.follow(Start(start, momentum, frame), STEPS, decisions)
        assert path is not None
        assert path.n_slopes == STEPS[1]
        afresh = Trajectory(sampler.model).follow(Start(start, momentum, frame), STEPS, decisions)
        assert afresh is not None
        assert np.array_equal(path.point, afresh.point)


def test_impossible_points_end_a_trajectory(
    sampler: WholeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rejected then, and learned from: steps become shorter."""
    trajectory = Trajectory(sampler.model)
    nowhere = lambda *_: np.full(sampler.tall.layout.size, np.nan)  # noqa: E731
    monkeypatch.setattr(trajectory, "slope_at", nowhere)
    tuner = trajectory.initial()
    run = sampler.moves.run(sampler.settings(sampler.initial_state(), True), None)
    setting = run.setting._replace(tuners={trajectory.name: tuner})
    state = ChainState(sampler.reference.surrogate, point_of(sampler, 8))
    proposal = trajectory.propose(np.random.default_rng(1), state, None, setting)
    assert proposal is not None
    assert proposal.state is None
    before = tuner.angle
    tuner.tune(False)
    assert tuner.angle < before
