"""How many transitions make a draw, from how long draws of tuning are correlated."""

import numpy as np
import pymc as pm
import pytest
from models import logistic_model
from scipy.signal import lfilter

from pymc_minibatch import MinibatchMH
from pymc_minibatch.steps.mixing import MOST_TRANSITIONS, Mixing, uncorrelated_after
from pymc_minibatch.steps.trajectories import trajectories_of_draw
from pymc_minibatch.tall.layout import PointLayout

RNG = np.random.default_rng(1)
QUICK, SLOW = RNG.normal(size=4000), lfilter([1.0], [1.0, -0.93], RNG.normal(size=4000))


def test_the_lag_is_that_of_the_slowest_parameter() -> None:
    """The correlation of the slow one is ½ after ln ½ / ln 0.93 = 9.6 draws."""
    assert uncorrelated_after(QUICK[:, None]) == 1
    lag = uncorrelated_after(np.column_stack([QUICK, SLOW, np.ones(4000)]))
    assert 7 <= lag <= 13
    assert uncorrelated_after(2.0**-40 * SLOW[:, None]) == uncorrelated_after(SLOW[:, None])
    assert 50 <= uncorrelated_after(np.arange(400.0)[:, None]) <= 100


@pytest.mark.parametrize(
    ("n_draws", "n_read", "draws", "least", "most"),
    [
        (50, 0.0, 1000, 1, 1),  # too few to tell
        (4000, 0.0, 1000, 50, 50),  # all that takes seconds, if draws are correlated
        (4000, 4e4, 1000, 14, 26),  # of two transitions each
        (4000, 0.0, 10**7, 1, 1),  # would take long
        (4000, 4e5, 1000, 4, 4),  # fewer than would make draws independent
        (4000, 1e7, 1000, 1, 1),
    ],
)
def test_transitions_are_affordable(
    n_draws: int, n_read: float, draws: int, least: int, most: int
) -> None:
    mixing = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 100.0)
    for value in SLOW[:n_draws]:
        mixing.add(np.array([value]), n_read, 2)
    assert least <= mixing.transitions(2, draws) <= most <= MOST_TRANSITIONS


def test_draws_that_are_nearly_independent_need_no_more_transitions() -> None:
    mixing = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 100.0)
    for value in QUICK:
        mixing.add(np.array([value]), 0.0, 2)
    assert mixing.transitions(2, 1000) == 2


def slowly_in_part(share: float) -> np.ndarray:
    """Return draws of which a part of the variance moves slowly, and the rest at once."""
    slow = lfilter([1.0], [1.0, -0.98], RNG.normal(size=4000))
    return np.sqrt(1 - share) * RNG.normal(size=4000) + np.sqrt(share) * slow / slow.std()


@pytest.mark.parametrize(
    ("values", "are_apart"),
    [
        (QUICK, True),
        (lfilter([1.0], [1.0, -0.15], QUICK), True),
        (lfilter([1.0], [1.0, -0.4], QUICK), False),
        (slowly_in_part(0.2), False),
        (np.ones(4000), False),
        (QUICK[:80], False),  # too few to tell
    ],
    ids=["independent", "0.15", "0.4", "slow in part", "still", "few"],
)
def test_draws_that_are_apart(values: np.ndarray, are_apart: bool) -> None:
    mixing = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 100.0)
    for value in values:
        mixing.add(np.array([value]), 0.0, 1)
    assert mixing.are_apart == are_apart


@pytest.mark.parametrize(("values", "scans"), [(QUICK, 1), (slowly_in_part(0.2), 2)])
def test_a_draw_takes_one_scan_if_tuning_shows_that_it_suffices(
    values: np.ndarray, scans: int
) -> None:
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=60)
        pm.Poisson("y", pm.math.exp(effect[rng.integers(0, 60, 600)]), observed=np.ones(600))
    step = MinibatchMH(model=model, rng=1)
    assert step.latent is not None
    assert step.n_transitions == 1
    point = step.tall.start.copy()
    for value in values[:1000]:
        step.mixing.add(point + value, 1e9, step.n_transitions)
    step.stop_tuning()
    step.tune = False
    assert step.n_transitions == scans
    step.setup_chain(np.random.default_rng(3), 0, 10)
    step.stop_tuning()
    assert step.n_transitions == scans


def test_blocks_make_as_many_transitions_as_single_draws() -> None:
    step = MinibatchMH(model=logistic_model(), rng=1)
    step.stop_tuning()
    step.tune, step.transitions = False, 20
    block = step.make_draws(step.tall.start.copy(), 50)
    assert block.stats["acceptance_rate"].mean() > 0.3


@pytest.mark.parametrize("asked", ["auto", 2])
def test_a_step_takes_more_transitions_where_draws_are_correlated(asked: int | str) -> None:
    step = MinibatchMH(model=logistic_model(), steps_per_draw=asked, rng=1)
    assert step.tune
    point = step.tall.start.copy()
    for value in SLOW[:1000]:
        if asked == "auto":
            step.mixing.add(point + value, 10.0, step.n_transitions)
    step.stop_tuning()
    if asked == "auto":
        assert step.n_transitions >= 14
        assert step.n_transitions > step.steps_per_draw
    else:
        assert step.n_transitions == step.steps_per_draw == 2
    _, [stats] = step.step(step.tall.model.initial_point())
    assert 0.0 <= stats["acceptance_rate"] <= 1.0


def test_a_chain_that_stands_still_says_so_once() -> None:
    step = MinibatchMH(model=logistic_model(), rng=1)
    said = [step.warning_of_no_move({"acceptance_rate": rate}) for rate in [0.0] * 49 + [0.5]]
    assert not any(said)
    said = [step.warning_of_no_move({"acceptance_rate": 0.0}) for _ in range(120)]
    assert [bool(text) for text in said].count(True) == 1
    assert "No proposal" in said[49]


def test_draws_that_drift_go_nowhere_if_they_are_dear():
    rng = np.random.default_rng(1)
    drifts, moves = rng.normal(size=(2, 200))
    for steps, n_read, expected in (
        (np.cumsum(drifts), 50_000, True),
        (np.cumsum(drifts), 50, False),  # cheap: more transitions will do
        (moves, 50_000, False),
    ):
        mixing = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 100.0)
        said = []
        for step in steps:
            mixing.add(np.array([step]), n_read, 1)
            said.append(mixing.goes_nowhere(made=1, n_rows=1000))
        assert said[199] == expected
        assert not mixing.goes_nowhere(made=1, n_rows=1000, passes=1e5)  # trajectories are dearer
        assert not any(said[:99])


def _drifting(n: int, fixed_cost: float) -> Mixing:
    mixing = Mixing(PointLayout.of({"a": np.zeros(9)}, ["a"]), fixed_cost)
    for point in np.cumsum(np.random.default_rng(1).normal(size=(n, 9)), axis=0):
        mixing.add(point, 0.0, 1)
    return mixing


def test_tuning_takes_more_transitions_until_it_can_tell_how_many_are_needed():
    assert _drifting(99, 100.0).while_tuning(1, 1000) == 1  # too early
    mixing = _drifting(100, 100.0)
    assert mixing.while_tuning(1, 1000) == 4
    assert not mixing.draws  # those with fewer transitions say nothing of others
    assert mixing.transitions(4, 1000) == 4
    assert _drifting(100, 100.0).while_tuning(20, 1000) == MOST_TRANSITIONS
    assert _drifting(100, 1e6).while_tuning(1, 1000) == 1  # dear
    quick = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 100.0)
    for value in QUICK[:100]:
        quick.add(np.array([value]), 0.0, 1)
    assert quick.while_tuning(1, 1000) == 1
    assert len(quick.draws) == 100


@pytest.mark.parametrize(
    ("made", "fixed_cost", "expected"),
    [(50, 100.0, True), (1, 100.0, False), (1, 1e6, True)],
)
def test_a_chain_is_hopeless_if_no_affordable_number_of_transitions_is_enough(
    made: int, fixed_cost: float, expected: bool
) -> None:
    assert _drifting(100, fixed_cost).is_hopeless(made, 1000) == expected
    quick = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), fixed_cost)
    for value in QUICK[:100]:
        quick.add(np.array([value]), 0.0, made)
    assert not quick.is_hopeless(made, 1000)


def test_as_many_trajectories_make_a_draw_as_leave_it_nearly_independent():
    mixing = Mixing(PointLayout.of({"a": np.zeros(1)}, ["a"]), 0.0)
    for value in SLOW[:50]:
        mixing.add(np.array([value]), 1000.0, 1)
    assert trajectories_of_draw(mixing, 1000) == 1  # too few to tell
    for value in SLOW[50:]:
        mixing.add(np.array([value]), 1000.0, 1)
    assert 7 <= trajectories_of_draw(mixing, 1000) <= 13
    assert trajectories_of_draw(mixing, 10**6) == 5  # 10¹⁰ rows are affordable
    assert trajectories_of_draw(mixing, 10**8) == 1


def test_the_slowest_of_thousands_of_parameters_is_seen() -> None:
    """Of each variable only some are followed closely; 0.9 has a lag of 6.6 draws."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(300, 3000))
    for slow, expected in ((False, (2, 2)), (True, (8, 20))):
        if slow:
            draws[:, 1234] = lfilter([1.0], [1.0, -0.9], draws[:, 1234])
        mixing = Mixing(PointLayout.of({"a": np.zeros(3000)}, ["a"]), 100.0)
        for draw in draws:
            mixing.add(1e6 + draw, 2e4, 2)
        assert 1234 not in mixing.followed
        assert expected[0] <= mixing.transitions(2, 1000) <= expected[1]


def test_what_is_known_of_tuning_can_be_continued() -> None:
    whole, part = (Mixing(PointLayout.of({"a": np.zeros(300)}, ["a"]), 9.0) for _ in range(2))
    draws = np.cumsum(np.random.default_rng(1).normal(size=(120, 300)), axis=0)
    for draw in draws:
        whole.add(draw, 10.0, 1)
    for draw in draws[:70]:
        part.add(draw, 10.0, 1)
    other = Mixing(PointLayout.of({"a": np.zeros(300)}, ["a"]), 9.0)
    other.state = part.state
    for draw in draws[70:]:
        other.add(draw, 10.0, 1)
    np.testing.assert_equal(other.state, whole.state)
    assert other.transitions(1, 1000) == whole.transitions(1, 1000) > 1


@pytest.mark.parametrize(
    ("n", "n_first", "away"), [(600, 60, 30.0), (600, 150, 10.0), (1000, 150, 30.0)]
)
def test_how_a_chain_begins_says_nothing_of_its_draws(n: int, n_first: int, away: float) -> None:
    rng = np.random.default_rng(1)
    mixing = Mixing(PointLayout.of({"a": np.zeros(5)}, ["a"]), 100.0)
    for k in range(n):
        mixing.add(rng.normal(size=5) + away * max(0.0, 1.0 - k / n_first), 1000.0, 1)
    assert mixing.transitions(1, 1000) == 1
