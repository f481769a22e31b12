"""What a step settles by itself: the acceptance test, how rows are drawn, transitions of a draw."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.acceptance.growing import rows_wanted
from pymc_minibatch.latent.choose import moves_saved
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.steps.deciding import (
    FEW_ROWS,
    MANY_ROWS,
    MOST_STEPS,
    _cheapest,
    steps_of_draw,
)


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 2))
    y = rng.random(3000) < 1 / (1 + np.exp(-X @ [0.5, -1.0]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=2)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return model, pmb.find_reference(model)


@pytest.fixture(scope="module")
def normal():
    y = np.random.default_rng(2).normal(size=2000)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=y)
    return model, pmb.find_reference(model)


def make(case, **options):
    model, reference = case
    return pmb.MinibatchMH(model=model, reference=reference, **options)


def test_takes_the_exact_test_where_it_reads_few_rows(logistic):
    step = make(logistic, rng=1)
    assert isinstance(step.acceptance, pmb.Exact)
    assert step.rows == "size"
    assert step.choice.startswith("Exact: ")
    point, rows = logistic[0].initial_point(), []
    for _ in range(600):
        point, [stats] = step.step(point)
        rows.append(stats["batch_size"])
    assert stats["exact"]
    assert stats["test_error"] == 0
    assert np.mean(rows) < FEW_ROWS


def test_takes_an_approximate_test_where_there_is_no_bound(normal):
    step = make(normal)
    assert isinstance(step.acceptance, pmb.CorrectedBarker | pmb.Penalty)
    assert "sigma_log__ in more than one place" in step.choice
    assert "CorrectedBarker about" in step.choice
    _, [stats] = step.step(normal[0].initial_point())
    assert not stats["exact"]


@pytest.mark.parametrize("options", [{"batch_size": 50}, {"rows": "uniform"}])
def test_takes_an_approximate_test_where_the_exact_one_does_not_fit(logistic, options):
    assert not isinstance(make(logistic, **options).acceptance, pmb.Exact)


@pytest.mark.parametrize(("rows", "s2"), [(100, 0.23), (1000, 0.40), (10_000, 0.59)])
def test_rows_that_a_batch_takes(rows, s2):
    """The largest s² that passes with so many rows, as tabulated in the docs."""
    limits = pmb.CorrectedBarker().parameters(1.0, np.empty(1), 10**6)[0]
    assert rows_wanted(limits, s2 * rows, 10**6) == pytest.approx(rows, rel=0.12)


def test_the_cheaper_of_two_tests():
    """Noise is what Penalty's test cannot stand; else it accepts twice as often."""
    reference = SimpleNamespace(flat=np.zeros(20))
    control, tall = ControlVariate(reference, 2, 1.0), SimpleNamespace(n_rows=10**6)
    tests = pmb.CorrectedBarker(), pmb.Penalty()
    assert _cheapest(tests, tall, control, 1e-3)[0] == pmb.Penalty()
    test, reason = _cheapest(tests, tall, control, 1e3)
    assert test == pmb.CorrectedBarker()
    assert "CorrectedBarker about" in reason
    assert _cheapest(tests, tall, control, np.inf)[1].count("1e+06") == 2


def test_tests_and_proposals_by_name(normal):
    step = make(normal, acceptance="penalty", proposal="surrogate_langevin", steps_per_draw=3)
    assert step.acceptance == pmb.Penalty()
    assert step.proposal == pmb.SurrogateLangevin()
    assert step.steps_per_draw == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance": "metropolis"}, "acceptance must be one of 'exact', .*; got 'metropolis'"),
        ({"acceptance": pmb.Penalty}, r"an instance such as Exact\(.*\); got Penalty"),
        ({"acceptance": 3}, "acceptance must be one of .*; got 3"),
        ({"proposal": "nuts"}, "proposal must be one of 'laplace', .*; got 'nuts'"),
        ({"acceptance": "exact", "rows": "uniform"}, "Exact draws rows by the size"),
        ({"acceptance": "exact", "control_variate": 1}, "Exact needs a control variate of order 2"),
        ({"acceptance": "exact", "batch_size": 20}, "Exact chooses the size of its batches"),
        ({"acceptance": "exact"}, "Exact cannot be used: the rows of y depend on mu, sigma_log__"),
    ],
)
def test_refusals(normal, options, message):
    with pytest.raises(ValueError, match=message):
        make(normal, **options)


def test_transitions_of_a_draw():
    laplace, walk = pmb.Laplace(), pmb.RandomWalk()
    exact, barker = pmb.Exact(), pmb.CorrectedBarker()
    assert steps_of_draw(exact, laplace, 20, 10) < steps_of_draw(barker, laplace, 20, 10)
    assert steps_of_draw(barker, laplace, 20, 10) < steps_of_draw(barker, walk, 1, 10)
    assert steps_of_draw(barker, walk, 100, 10) == MOST_STEPS
    assert steps_of_draw(barker, walk, 100, 2 * MANY_ROWS) == 1


@pytest.mark.parametrize(
    ("n_hyper", "n_dense", "has_own_scales", "kinks", "saved"),
    [
        (3, 10, False, None, 1.0),
        (3, 100, False, None, 4.0),
        (10, 10, False, None, 4.0),
        (50, 10, False, None, 8.0),
        (50, 10, True, None, 1.0),
        (50, 100, False, (), 1.0),
    ],
)
def test_how_many_moves_by_batches_a_trajectory_saves(
    n_hyper, n_dense, has_own_scales, kinks, saved
):
    sampler = SimpleNamespace(
        reference=SimpleNamespace(surrogate=SimpleNamespace(kinks=kinks)),
        field=SimpleNamespace(
            hyper=np.arange(n_hyper), latent=SimpleNamespace(dense=np.arange(n_dense))
        ),
        model=SimpleNamespace(has_own_scales=has_own_scales),
    )
    assert moves_saved(sampler) == pytest.approx(saved)
