"""What a run and a step say of themselves."""

import re

import numpy as np
import pytest
import xarray as xr
from models import PlainMH, logistic_model, logistic_rows

import pymc_minibatch as pmb
from pymc_minibatch.steps.display import mean_rows

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
    assert "2,000 evaluations per draw (2.00% of a pass), 40 passes for all draws" in text
    assert "500 rows on average (0.50%), with an estimated error of at most 0.0001" in text
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


def test_advice_for_chains_that_are_nearly_together():
    near = np.random.default_rng(1).normal(size=SHAPE) + 0.15 * np.arange(4)[:, None]
    text = pmb.report(run(near, **GOOD)).partition("What to change:")[2]
    assert re.search(r"R-hat of mu is 1\.0[1-4]\d, above 1\.01: take more draws", text), text


def test_no_advice_where_all_rows_decide_on_effects():
    effects = GOOD | {"batch_size": 100_000.0, "acceptance_rate_hyper": 0.4}
    assert pmb.report(run(**effects)).endswith("Nothing to change.")


def draws(change=lambda values: None, shape=SHAPE):
    values = np.random.default_rng(1).normal(size=shape)
    change(values)
    return values


def set_to(where, value):
    def change(values):
        values[where] = value

    return change


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (set_to((2, slice(300, None)), np.nan), "chain 2 stopped after 300 of 500 draws"),
        (set_to((slice(None), slice(450, None)), np.nan), "all chains stopped after 450 of 500"),
        (set_to((1, 77), np.inf), r"not finite, in 1 element \(mu\)"),
        (set_to((3, slice(None)), 0.1), "Chains never moved in mu"),
        (set_to(slice(None), np.arange(4.0)[:, None]), "Chains never moved in mu"),
        (set_to(slice(None), 0.3), "mu has the same value in all draws"),
    ],
)
def test_advice_for_draws(change, advice):
    text = pmb.report(run(draws(change), **GOOD)).partition("What to change:")[2]
    assert re.search(advice, text), text


def alone(values):
    """A result of one chain, or of few draws."""
    stats = {name: (("chain", "draw"), np.full(values.shape, v)) for name, v in GOOD.items()}
    posterior = xr.Dataset({"mu": (("chain", "draw"), values)})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset(stats)})


def test_advice_for_one_chain_and_few_draws():
    trend = draws(shape=(1, 500)) + np.linspace(0, 6, 500)
    assert "The halves of the chain disagree" in pmb.report(alone(trend))
    assert "One chain does not show" in pmb.report(alone(draws(shape=(1, 500))))
    assert "3 draws of 4 chains cannot show convergence" in pmb.report(alone(draws(shape=(4, 3))))


def test_elements_that_never_vary_are_no_fault():
    """The diagonal of a correlation matrix, and an indicator that is certain."""
    result = run(**GOOD)
    matrix = np.broadcast_to(np.eye(2), (*SHAPE, 2, 2)).copy()
    matrix[..., 1, 0] = matrix[..., 0, 1] = 0.1 * draws()
    result.posterior["corr"] = (("chain", "draw", "i", "j"), matrix)
    result.posterior["z"] = (("chain", "draw"), np.ones(SHAPE, dtype=int))
    assert pmb.report(result).endswith("Nothing to change.")


def test_each_of_several_steps():
    stats = {name: [value, value] for name, value in GOOD.items()}
    stats |= {"batch_size": [50.0, 2000.0], "exact": [True, False]}
    recorded = {
        name: (("chain", "draw", f"{name}_dim_0"), np.broadcast_to(values, (*SHAPE, 2)))
        for name, values in stats.items()
    }
    posterior = run().posterior.to_dataset()
    result = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset(recorded)})
    text = pmb.report(result)
    assert "4,000 evaluations per draw" in text
    assert "50 and 2,000 rows on average (0.05% and 2.00%), some by an exact test" in text


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0.0, "Decisions: 0 rows on average (0.00%)"),
        (0.2, "Decisions: fewer than one row on average (less than 0.01%)"),
        (0.9, "Decisions: fewer than one row on average (less than 0.01%)"),
        (1.0, "Decisions: 1.0 rows on average (less than 0.01%)"),
        (2.34, "Decisions: 2.3 rows on average (less than 0.01%)"),
        (50.4, "Decisions: 50 rows on average (0.05%)"),
    ],
)
def test_decisions_that_read_hardly_a_row(size, words):
    assert words in pmb.report(run(**(GOOD | {"batch_size": size})))


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (0.0, "no row"),
        (0.234, "fewer than one row"),
        (16.04, "about 16 rows"),
        (2996.0, "about 2,996 rows"),
    ],
)
def test_mean_rows_in_words(mean, words):
    assert mean_rows(mean) == words


def test_bright_rows_and_sweeps_of_hardly_a_row():
    text = pmb.report(run(**GOOD, n_bright=0.3, rows_per_sweep=0.4))
    assert "Bright rows: fewer than one on average (less than 0.01%)" in text
    assert "Sweeps over groups: fewer than one row each (less than 0.01%)" in text


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
