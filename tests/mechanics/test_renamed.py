"""Arguments under the names of the last release."""

import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.renamed import renamed


@renamed(old="new")
def double(number: int = 0, *, new: int | None = None) -> int:
    """Return twice a number."""
    return 2 * (number if new is None else new)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as made:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=500))
    return made


def test_old_names_are_understood_with_a_warning() -> None:
    with pytest.warns(pmb.MinibatchWarning, match=r"old= of double is now called new=.*PMB001"):
        assert double(old=3) == 6  # type: ignore[call-arg]


def test_new_names_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert double(new=3) == double(3) == 6


def test_both_names_are_refused() -> None:
    with pytest.raises(TypeError, match=r"old= and new=, which mean the same\. Leave out old="):
        double(old=3, new=3)  # type: ignore[call-arg]


def test_a_split_model_was_passed_as_tall(model: pm.Model) -> None:
    tall = pmb.TallModel(model)
    with pytest.warns(pmb.MinibatchWarning, match=r"tall= of find_reference is now called data="):
        found = pmb.find_reference(tall=tall, progressbar=False)
    np.testing.assert_array_equal(found.flat, pmb.find_reference(data=tall).flat)


def test_steps_take_old_names(model: pm.Model) -> None:
    with pytest.warns(pmb.MinibatchWarning, match="rows= of MinibatchMH is now .* row_sampling="):
        step = pmb.MinibatchMH(model=model, rows="uniform")
    assert step.rows == "uniform"


def test_gradient_steps_and_firefly_take_old_names(model: pm.Model) -> None:
    noise = np.array([[500.0]])
    with pytest.warns(pmb.MinibatchWarning, match="B= of SGFS is now .* noise_covariance="):
        step = pmb.SGFS(model=model, B=noise)
    np.testing.assert_array_equal(step.options[3], noise)
    with pytest.warns(pmb.MinibatchWarning, match="q= of FlyMC .* dark_to_bright_probability="):
        assert pmb.FlyMC(model=model, q=0.25).fixed_q == 0.25


def test_every_step_takes_automatic_choices(model: pm.Model) -> None:
    for kind, steps in ((pmb.SGLD, 1), (pmb.SGFS, 1), (pmb.SGHMC, 20), (pmb.SGNHT, 20)):
        assert kind(model=model, steps_per_draw="auto").steps_per_draw == steps
    assert pmb.SGLD(model=model, preconditioner="auto").options[2] == "reference"


def test_a_reference_shows_no_matrices(model: pm.Model) -> None:
    shown = repr(pmb.find_reference(model))
    assert shown.startswith("Reference of 1 parameter in mu and 500 rows")
    assert len(shown) < 200
