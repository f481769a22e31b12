"""What people pass to evaluate rows."""

import numpy as np
import pytest
from models import N_ROWS, normal_model

import pymc_minibatch as pmb

POINT = {"mu": np.array(0.3), "sigma_log__": np.array(0.1)}


@pytest.fixture(scope="module")
def tall():
    return pmb.TallModel(normal_model())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([True, False], "np.flatnonzero"),
        (np.arange(N_ROWS) < 2, "np.flatnonzero"),
        ([0.7], "whole numbers"),
        ([[1, 2]], "a list of whole numbers"),
        (3, "a list of whole numbers"),
        ("a", "whole numbers"),
        ([0, -1], f"from 0 to {N_ROWS - 1}; there is -1"),
        ([0, N_ROWS], f"there is {N_ROWS}"),
        (np.ma.masked_array([1, 2], [True, False]), "none masked"),
    ],
)
def test_no_row_numbers(tall, rows, message):
    with pytest.raises(ValueError, match=message):
        tall.row_logp(POINT, rows)


def test_row_numbers(tall):
    expected = tall.row_logp(POINT, [0, 5, 5])
    np.testing.assert_array_equal(tall.row_logp(POINT, np.array([0, 5, 5], np.uint8)), expected)
    assert expected.shape == (3,)
    assert tall.row_logp(POINT, []).shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": np.zeros(2)}, r"mu of the point has shape \(2,\); the model needs \(\)"),
        ({"mu": [0.3]}, r"shape \(1,\)"),
        ({"mu": "a"}, "must be numbers"),
        ({"mu": np.ma.masked_array(0.3, True)}, "none masked"),
        ({"mu": None}, "must be numbers"),
    ],
)
def test_no_point(tall, changes, message):
    for evaluate in (tall.prior_logp, tall.logp, lambda point: tall.row_logp(point, [0])):
        with pytest.raises(ValueError, match=message):
            evaluate(POINT | changes)


def test_a_point_lacks_a_variable(tall):
    with pytest.raises(ValueError, match="The point has no sigma_log__"):
        tall.logp({"mu": np.array(0.3), "sigma": np.array(1.1)})
    with pytest.raises(ValueError, match="maps names"):
        tall.logp(np.array([0.3, 0.1]))
