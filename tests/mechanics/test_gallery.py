"""Many models are split into prior part and rows as PyMC's own log-density says."""

import numpy as np
import pytest
from gallery import GALLERY
from models import random_point

from pymc_minibatch import TallModel

REFERENCE = "FAST_COMPILE"  # evaluates a graph without compiling it
SPREAD = 0.2


def full_graph(tall):
    """Return functions of a point: log-density, and log-likelihood of every row, of the model."""
    terms = tall.model.logp(vars=[tall.model[name] for name in tall.row_names], sum=False)
    rows = []
    for name, term in zip(tall.row_names, terms, strict=True):
        [value] = [v for k, v in tall.row_inputs.items() if k == name] or [None]
        axis = 0 if value is None else value.axis
        rows.append(term.sum(axis=[other for other in range(term.ndim) if other != axis]))
    return tall.model.compile_logp(mode=REFERENCE), tall.model.compile_fn(
        sum(rows), inputs=tall.model.value_vars, mode=REFERENCE
    )


def points(model, seeds=range(4)):
    """Return points at which most rows are possible, discrete variables at their start."""
    start = model.initial_point()
    for seed in seeds:
        point = random_point(model, seed, SPREAD)
        for value in model.discrete_value_vars:
            point[value.name] = start[value.name]
        yield point


def check(tall):
    logp, all_rows = full_graph(tall)
    rng = np.random.default_rng(3)
    for point in points(tall.model):
        assert tall.logp(point) == pytest.approx(float(logp(point)), rel=1e-9)
        expected = all_rows(point)
        assert np.isfinite(expected).any()
        for size in (1, 7, 3 * tall.n_rows):
            rows = rng.integers(0, tall.n_rows, size)
            actual = tall.row_logp(point, rows)
            np.testing.assert_allclose(actual, expected[rows], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", GALLERY)
def test_split_is_that_of_the_full_graph(name):
    model = GALLERY[name]()
    tall = TallModel(model)
    assert tall.n_rows == 40
    check(tall)
