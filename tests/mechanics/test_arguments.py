"""Arguments of the wrong type or size are refused in words, before anything is compiled."""

import re

import numpy as np
import pymc as pm
import pytest
from models import normal_model

import pymc_minibatch as pmb


@pytest.fixture(scope="module")
def model():
    return normal_model()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("MinibatchMH", {"acceptance": "penalties"}, "acceptance must be one of .*'penalties'"),
        ("MinibatchMH", {"acceptance": pmb.Penalty}, r"Call the class: Penalty\(\)"),
        ("MinibatchMH", {"proposal": "laplacian"}, "proposal must be one of .*'laplacian'"),
        ("MinibatchMH", {"proposal": pmb.RandomWalk}, r"Call the class: RandomWalk\(\)"),
        ("MinibatchMH", {"reference": "reference.npz"}, r"must be a Reference; got 'refe.*load\("),
        ("FlyMC", {"reference": {"mu": 0.0}}, r"reference must be a Reference; got \{'mu'"),
        ("SGLD", {"reference": 3}, "reference must be a Reference; got 3"),
        ("MinibatchMH", {"control_variate": True}, "control_variate must be 'auto', 0, 1 or 2"),
        ("SGFS", {"control_variate": True}, "control_variate must be 'auto', 0, 1 or 2"),
        ("MinibatchMH", {"control_variate": [2]}, "control_variate must be 'auto', 0, 1 or 2"),
        ("MinibatchMH", {"temperature": "hot"}, "temperature must be a positive, finite number"),
        ("MinibatchMH", {"temperature": True}, "temperature must be a positive, finite number"),
        ("MinibatchMH", {"temperature": 1j}, "temperature must be a positive, finite number"),
        ("MinibatchMH", {"temperature": None}, "temperature must be a positive, finite number"),
        ("MinibatchMH", {"temperature": [1.0]}, "temperature must be a positive, finite number"),
        ("MinibatchMH", {"steps_per_draw": 10**30}, "steps_per_draw .* at most 1,000,000,000; got"),
        ("FlyMC", {"theta_updates": 10**30}, "theta_updates must .* at most"),
        ("SGLD", {"batch_size": 10**30}, "batch_size must .* at most"),
        ("FlyMC", {"proposal": ["slice"]}, "proposal must be one of"),
        (
            "FlyMC",
            {"dark_to_bright_probability": "small"},
            "dark_to_bright_probability must be over 0 and below 1; got 'small'",
        ),
        ("MinibatchMH", {"vars": ["mu", "mu"]}, "vars names mu twice"),
        ("MinibatchMH", {"vars": ["sigma", "sigma_log__"]}, "vars names sigma_log__ twice"),
        ("MinibatchMH", {"model": "mine"}, "model must be a Model; got 'mine'"),
        ("MinibatchMH", {"witness": "no"}, "witness must be a bool; got 'no'"),
        ("TallModel", {"model": 3}, "model must be a Model; got 3"),
        ("find_reference", {"temperature": -1.0}, "temperature must be a positive, finite number"),
        ("find_reference", {"temperature": "hot"}, "temperature must be a positive, finite number"),
    ],
)
def test_refuses(model, kind, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(pmb, kind)(**{"model": model} | options)


@pytest.mark.parametrize("kind", [pmb.CorrectedBarker, pmb.Penalty])
def test_an_error_of_a_probability_is_below_one(kind):
    with pytest.raises(ValueError, match=r"test_error must be .* below 1.*; got 2\.0"):
        kind(test_error=2.0)


def test_without_a_model():
    with pytest.raises(TypeError, match=r"There is no model\. Pass model="):
        pmb.TallModel()
    with pytest.raises(TypeError, match="There is no model"):
        pmb.find_reference()


@pytest.mark.parametrize("thing", [None, 3, {"mu": np.zeros(10)}, "result.nc", np.zeros((2, 10))])
def test_what_is_no_result(model, thing):
    with pytest.raises(TypeError, match="idata must be a result of"):
        pmb.ksd(thing, model)
    with pytest.raises(TypeError, match="run 'mine' must be a result of"):
        pmb.compare({"mine": thing}, baseline="mine")
    with pytest.raises(TypeError, match="runs must be a dict of results by name"):
        pmb.compare(thing if not isinstance(thing, dict) else [thing], baseline="mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size must be a whole number, at least 1"),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1"),
        ({"max_draws": 50.5}, "max_draws must be a whole number, at least 40"),
        ({"control_variate": True}, "control_variate must be 'auto', 0, 1 or 2"),
        ({"reference": "r.npz"}, "reference must be a Reference"),
    ],
)
def test_ksd_refuses(model, options, message):
    with model:
        draws = pm.sample_prior_predictive(5, random_seed=1)
    draws["posterior"] = draws.prior
    with pytest.raises((TypeError, ValueError), match=re.compile(message)):
        pmb.ksd(draws, model, **options)


def test_an_audit_needs_the_step_of_the_run():
    with pytest.raises(
        TypeError, match=r"step must be a step of this package.* NoneType\. Pass the"
    ):
        pmb.audit(None, None)


def test_an_audit_needs_moves(model):
    with model:
        step = pmb.SGLD(step_size=1e-4, preconditioner="identity", control_variate=0)
    for n_moves in (0, 2.5, -3):
        with pytest.raises(ValueError, match="n_moves must be a whole number, at least 1"):
            pmb.audit(None, step, n_moves=n_moves)


@pytest.mark.parametrize("n", [-1, 0, 2.5, "all"])
def test_worst_lists_some(model, n):
    with pytest.raises(ValueError, match="n must be a whole number, at least 1"):
        pmb.worst(None, n)
