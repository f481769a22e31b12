"""What a run and a step say of themselves."""

import numpy as np
import pytest
import xarray as xr
from models import PlainMH, logistic_model, logistic_rows

import pymc_minibatch as pmb

SHAPE = (4, 500)


def run(draws=None, **stats):
    """A result with sample stats that are the same at every draw."""
    draws = np.random.default_rng(1).normal(size=SHAPE) if draws is None else draws
    dims = ("chain", "draw")
    values = {name: (dims, np.full(SHAPE, value)) for name, value in stats.items()}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"mu": (dims, draws)}, attrs={"sampling_time": 2.5}),
            "sample_stats": xr.Dataset(values),
        }
    )


GOOD = {
    "n_rows": 100_000,
    "setup_seconds": 3.0,
    "batch_size": 500.0,
    "n_likelihood": 2000,
    "n_gradient": 2000,
    "acceptance_rate": 0.45,
    "test_error": 1e-4,
    "exact": False,
    "stand_in": False,
}


def test_a_good_run():
    text = pmb.report(run(**GOOD))
    assert "4 chains of 500 draws from 100,000 rows: 3.0 s of set-up, 2.5 s of sampling." in text
    assert "2,000 evaluations in a draw (2.00% of a pass), 40 passes for all draws" in text
    assert "500 rows on average (0.50%), acceptance probabilities off by at most 0.0001" in text
    assert "Acceptance: 0.45." in text
    assert "(mu)" in text
    assert text.endswith("Nothing to change.")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"batch_size": 60_000.0}, "Decisions read 60% of the rows"),
        ({"acceptance_rate": 0.05}, "Only 5.0% of the moves are accepted"),
        ({"test_error": 0.03}, "may be off by 0.03: use a smaller sigma"),
        ({"gradient_noise": 0.8}, "set a larger batch_size"),
        ({"stand_in": True}, "hold the model's stand-in"),
    ],
)
def test_advice(change, advice):
    text = pmb.report(run(**(GOOD | change)))
    assert advice in text.partition("What to change:")[2]
    assert text.count("\n- ") == 1


def test_advice_for_chains():
    apart = np.random.default_rng(1).normal(size=SHAPE) + np.arange(4)[:, None]
    assert "The chains disagree" in pmb.report(run(apart, **GOOD))
    slow = np.random.default_rng(1).normal(size=SHAPE).cumsum(axis=1)
    assert "set a larger steps_per_draw" in pmb.report(run(slow, **GOOD))


def test_kinds_of_moves_and_exact_tests():
    kinds = {"acceptance_rate_hyper": 0.3, "acceptance_rate_dense": np.nan}
    text = pmb.report(run(**GOOD, **kinds, rows_per_sweep=300.0))
    assert "Sweeps over groups: 300 rows each (0.30%)." in text
    assert "Acceptance: 0.45 (0.30 for scales of effects)." in text
    assert "by an exact test" in pmb.report(run(**(GOOD | {"exact": True})))
    assert "Bright rows: 70 on average (0.07%)" in pmb.report(run(**GOOD, n_bright=70.0))


def test_other_samplers_are_refused():
    with pytest.raises(ValueError, match=r"no n_rows.* use az\.summary"):
        pmb.report(run(tree_depth=3))


@pytest.fixture(scope="module")
def steps():
    """Steps of every kind; one is bound to data."""
    model = logistic_model()
    X, y = logistic_rows(900)
    return {
        "mh": PlainMH(model=model, data={"X": X, "y": y}),
        "flymc": pmb.FlyMC(model=model),
        "sgld": pmb.SGLD(model=model, steps_per_draw=3),
    }


@pytest.mark.parametrize(
    ("kind", "title", "facts"),
    [
        ("mh", "MinibatchMH on 900 rows of y", ["bound by data", "RandomWalk(", "uniform, tuned"]),
        ("flymc", "FlyMC on 600 rows of y", ["JaakkolaJordan(", "X float64"]),
        ("sgld", "SGLD on 600 rows of y", ["300 rows", "order 2, about a mode", "3 steps"]),
    ],
)
def test_steps_describe_themselves(steps, kind, title, facts):
    step = steps[kind]
    text, html = repr(step), step._repr_html_()
    assert text.startswith(f"{title}\n")
    assert "2 in beta" in text
    for fact in facts:
        assert fact in text
    assert title in html
    assert html.count("<tr>") == text.count("\n")


def test_printing_computes_nothing(steps):
    """What is found when it is asked for is not found for a description."""
    tall = steps["sgld"].tall
    before = set(vars(tall))
    repr(steps["sgld"])
    assert set(vars(tall)) == before


def test_a_step_that_waits_says_so():
    assert "which pm.sample makes" in repr(pmb.MinibatchMH())


def test_a_bound_step_marks_its_draws(steps):
    step = steps["mh"]
    point = step.tall.model.initial_point()
    assert step.step(point)[1][0]["stand_in"] is True
    other = steps["flymc"]
    assert other.step(point)[1][0]["stand_in"] is False
