"""Many models are split into prior part and rows as PyMC's own log-density says."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from gallery import GALLERY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
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
        sum(rows), inputs=tall.model.value_vars, mode=REFERENCE, on_unused_input="ignore"
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


# --- Models made up ---------------------------------------------------------------------------

LINKS = {
    "real": [lambda eta: eta, lambda eta: pt.tanh(eta), lambda eta: eta**2 / 4],
    "positive": [pt.exp, pt.softplus],
    "unit": [pm.math.invlogit, pm.math.invprobit],
}
FAMILIES = {
    "Normal": ("real", lambda mean, y: pm.Normal("y", mean, 1.5, observed=y)),
    "StudentT": ("real", lambda mean, y: pm.StudentT("y", nu=4.0, mu=mean, sigma=1.5, observed=y)),
    "Laplace": ("real", lambda mean, y: pm.Laplace("y", mean, 1.5, observed=y)),
    "Gamma": ("positive", lambda mean, y: pm.Gamma("y", mu=mean, sigma=1.5, observed=y)),
    "Poisson": ("positive", lambda mean, y: pm.Poisson("y", mean, observed=y)),
    "Bernoulli": ("unit", lambda mean, y: pm.Bernoulli("y", p=mean, observed=y)),
}


def draw_observed(family, n_rows, rng):
    draws = {"Poisson": rng.poisson(2.0, n_rows), "Bernoulli": rng.integers(0, 2, n_rows)}
    draws["Gamma"] = rng.gamma(2.0, size=n_rows)
    return draws.get(family, rng.normal(size=n_rows))


def put(layout, name, values):
    """Put row data into a graph: where they come from, and along which axis rows lie."""
    values = np.ascontiguousarray(values.T) if "transposed" in layout else values
    held = pm.Data(name, values) if "data" in layout else pt.constant(values)
    return held.T if "transposed" in layout else held


@st.composite
def made_up_models(draw):
    """Draw a likelihood, its link, a number of groups and the layout of its data."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    support, likelihood = FAMILIES[family]
    link = draw(st.sampled_from(LINKS[support]))
    n_rows = draw(st.integers(2, 60))
    n_columns = draw(st.integers(1, 5))
    n_groups = draw(st.integers(0, 6))
    layout = draw(st.sampled_from(["constant", "data", "constant transposed", "data transposed"]))
    dtype = draw(st.sampled_from(["float64", "float32"]))
    index = draw(st.sampled_from(["int8", "int32", "int64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    with pm.Model() as model:
        x = put(layout, "x", rng.normal(size=(n_rows, n_columns)).astype(dtype))
        eta = (x * pm.Normal("beta", shape=n_columns)).sum(axis=1)
        if n_groups:
            group = put(layout, "group", rng.integers(0, n_groups, n_rows).astype(index))
            eta = eta + pm.Normal("alpha", shape=n_groups)[group]
        likelihood(link(eta), draw_observed(family, n_rows, rng))
    return model


@settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(made_up_models())
def test_split_of_a_made_up_model(model):
    check(TallModel(model))
