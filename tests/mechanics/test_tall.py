"""The split of a model into a prior part and rows, against PyMC's own log-density."""

import subprocess
import sys

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import normal_model, random_point

from pymc_minibatch import NotTallError, TallModel

N = 90
RNG = np.random.default_rng(20240229)
X = RNG.normal(size=(N, 3))
BETA = np.array([0.5, -1.0, 0.2])
Y = X @ BETA + RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(X @ BETA))
GROUP = RNG.integers(0, 5, N)
REFERENCE = "FAST_COMPILE"  # evaluates a graph without compiling it


def data_with_dims():
    coords = {"row": np.arange(N), "coef": ["a", "b", "c"]}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", X, dims=("row", "coef"))
        target = pm.Data("target", Y, dims="row")
        beta = pm.Normal("beta", dims="coef")
        sigma = pm.HalfNormal("sigma")
        mean = pm.Deterministic("mean", x @ beta, dims="row")
        pm.Normal("y", mean, sigma, observed=target, dims="row")
    return model


def data_without_dims():
    with pm.Model() as model:
        x = pm.Data("x", X)
        beta = pm.Normal("beta", shape=3)
        pm.Bernoulli("y", logit_p=x @ beta, observed=pm.Data("target", (Y > 0).astype(int)))
    return model


def constants():
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        pm.StudentT("y", 4.0, mu=X @ beta, observed=Y)
    return model


def transposed_constant():
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        pm.Normal("y", beta @ np.ascontiguousarray(X.T), 1.0, observed=Y)
    return model


def transposed_data():
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        pm.Normal("y", beta @ pm.Data("x", X.T), 1.0, observed=Y)
    return model


def square_constant():
    """Rows may lie along either axis of the matrix."""
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=30)
        pm.Normal("y", beta @ RNG.normal(size=(30, 30)), 1.0, observed=Y[:30])
    return model


def index_constant():
    with pm.Model() as model:
        alpha = pm.Normal("alpha", shape=5)
        size = pm.Exponential("size", 1.0)
        pm.NegativeBinomial("y", mu=pt.exp(alpha[GROUP]), alpha=size, observed=COUNTS)
    return model


def index_data():
    with pm.Model() as model:
        alpha = pm.Normal("alpha", shape=5)
        pm.Poisson("y", pt.exp(alpha[pm.Data("group", GROUP)]), observed=COUNTS)
    return model


def mixture():
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        centres = pm.Normal("centres", shape=2)
        pm.NormalMixture("y", weights, centres, 1.0, observed=Y)
    return model


def matrix_rows():
    observed = RNG.normal(size=(N, 3))
    with pm.Model() as model:
        mean = pm.Normal("mean", shape=3)
        sigma = pm.HalfNormal("sigma", shape=3)
        pm.Normal("y", mean, sigma, observed=observed)
    return model


def two_observed():
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=2)
        pm.Normal("y", slope[0] * X[:, 0], 1.0, observed=Y)
        pm.Poisson("counts", pt.exp(slope[1] * X[:, 1]), observed=COUNTS)
    return model


def smaller_terms():
    """A potential and an observed variable of other sizes are prior part."""
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=7)
        pm.Potential("pull", -((mu - np.arange(7.0)) ** 2))
        pm.Normal("pilot", mu[0], 2.0, observed=Y[:11])
        pm.Normal("y", mu[1], 1.0, observed=Y)
    return model


def single_precision():
    """PyMC itself turns pm.Data and what is observed to double precision."""
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        pm.Normal("y", X.astype("float32") @ beta, 1.0, observed=Y)
    return model


MODELS = [
    data_with_dims,
    data_without_dims,
    constants,
    transposed_constant,
    transposed_data,
    square_constant,
    index_constant,
    index_data,
    mixture,
    matrix_rows,
    two_observed,
    smaller_terms,
    single_precision,
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda build: build.__name__)
def tall(request):
    return TallModel(request.param())


def full_rows(tall, points):
    """Log-likelihood of every row by the model's own graph."""
    row_variables = [tall.model[name] for name in tall.row_names]
    terms = tall.model.logp(vars=row_variables, sum=False)
    rows = sum(term.sum(axis=1) if term.ndim == 2 else term for term in terms)
    evaluate = tall.model.compile_fn(rows, inputs=tall.model.value_vars, mode=REFERENCE)
    return [evaluate(point) for point in points]


def test_logp_is_that_of_the_model(tall):
    logp = tall.model.compile_logp(mode=REFERENCE)
    for seed in range(5):
        point = random_point(tall.model, seed)
        assert tall.logp(point) == pytest.approx(float(logp(point)), rel=1e-9)


def test_row_logp_is_that_of_the_full_graph(tall):
    points = [random_point(tall.model, seed) for seed in range(3)]
    rng = np.random.default_rng(3)
    for point, expected in zip(points, full_rows(tall, points), strict=True):
        for size in (1, 7, 3 * tall.n_rows):
            rows = rng.integers(0, tall.n_rows, size)
            actual = tall.row_logp(point, rows)
            assert actual.dtype == np.float64
            np.testing.assert_allclose(actual, expected[rows], rtol=1e-12, atol=1e-13)


def test_prior_and_rows_add_up(tall):
    point = random_point(tall.model, 8)
    total = tall.prior_logp(point) + tall.row_logp(point, range(tall.n_rows)).sum()
    assert tall.logp(point) == pytest.approx(total, rel=1e-12)


def test_row_inputs_hold_the_rows_first(tall):
    assert tall.row_inputs
    for row_input in tall.row_inputs.values():
        assert row_input.values.shape[0] == tall.n_rows


def test_row_inputs_are_named():
    assert set(TallModel(data_with_dims()).row_inputs) == {"x", "target"}
    assert set(TallModel(index_data()).row_inputs) == {"group", "y"}


def test_single_precision_is_kept():
    tall = TallModel(single_precision())
    assert tall.row_inputs["constant"].values.dtype == np.float32
    assert "constant: float32 (90, 3)" in tall.describe()


def test_rows_are_those_of_the_longest_observed_variables():
    assert TallModel(two_observed()).row_names == ["y", "counts"]
    smaller = TallModel(smaller_terms())
    assert (smaller.n_rows, smaller.row_names) == (N, ["y"])


def test_describe():
    text = TallModel(data_with_dims()).describe()
    assert "90 rows of y" in text
    assert "x: float64 (90, 3)" in text
    assert "target: float64 (90,)" in text
    assert "beta, sigma (4 unconstrained parameters)" in text
    assert "warning: Deterministic mean has one value per row" in text
    assert "var_names" in text
    text = TallModel(transposed_data()).describe()
    assert "(90, 3), rows along axis 1" in text
    assert "warning" not in text
    assert "32 bytes per row, 0.0 MB in all" in text
    text = TallModel(smaller_terms()).describe()
    assert "prior part: mu, observed pilot, potential pull (7 unconstrained parameters)" in text


def test_warns_of_deterministics_of_unknown_length():
    """Without dims the length of pm.Data is known only when it is read."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        beta = pm.Normal("beta", shape=3)
        mean = pm.Deterministic("mean", x @ beta)
        pm.Deterministic("total", mean.sum())
        pm.Deterministic("twice", 2 * beta)
        pm.Normal("y", mean, 1.0, observed=Y)
    assert TallModel(model).deterministics_of_rows() == ["mean"]


def test_the_model_may_come_from_the_context():
    with normal_model() as model:
        assert TallModel().model is model


# --- Models that are refused: see also test_refusals.py ---------------------------------------


def test_refuses_rows_that_data_list_by_number():
    """In a batch these numbers lie outside of the array; a process of its own bears a crash."""
    script = (
        "import numpy as np, pymc as pm, pytensor.tensor as pt, pymc_minibatch as pmb\n"
        "treated = np.arange(0, 5000, 3)\n"
        "with pm.Model() as model:\n"
        "    rows = pm.Data('rows', treated)\n"
        "    mean = pt.set_subtensor(pt.zeros(5000)[rows], pm.Normal('effect'))\n"
        "    pm.Normal('y', mean, 1.0, observed=np.ones(5000))\n"
        "try:\n"
        "    pmb.TallModel(model)\n"
        "except pmb.NotTallError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "log-density of y is not a sum over 5000 independent rows" in run.stdout


# --- Data that are refused --------------------------------------------------------------------


def linear_model(x, y, as_data):
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=3)
        x, y = (pm.Data("x", x), pm.Data("target", y)) if as_data else (pt.constant(x), y)
        pm.Normal("y", x @ beta, 1.0, observed=y)
    return model


def with_value(values, row, value):
    changed = values.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["x", "target"])
def test_refuses_data_that_are_not_finite(name, value):
    model = linear_model(X, Y, as_data=True)
    with model:
        pm.set_data({name: with_value({"x": X, "target": Y}[name], 17, value)})
    with pytest.raises(ValueError, match=rf"^{name} has {value} in row 17\b"):
        TallModel(model)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_a_constant_that_is_not_finite(value):
    with pytest.raises(ValueError, match=rf"^constant has {value} in row 17\b"):
        TallModel(linear_model(with_value(X, (17, 1), value), Y, as_data=False))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_refuses_an_infinite_observed_value(value):
    """PyMC takes a missing one for something to impute."""
    with pytest.raises(ValueError, match=rf"^y has {value} in row 17\b"):
        TallModel(linear_model(X, with_value(Y, 17, value), as_data=False))


@pytest.mark.parametrize("as_data", [True, False])
def test_refuses_lengths_that_do_not_match(as_data):
    x, y = ("x", "target") if as_data else ("constant", "y")
    with pytest.raises(ValueError, match=rf"\b{x} \(89, 3\)") as error:
        TallModel(linear_model(X[1:], Y, as_data))
    assert f"{y} (90,)" in str(error.value)


@pytest.mark.parametrize(("n_rows", "said"), [(0, "y has no rows"), (1, "y has a single row")])
@pytest.mark.parametrize("as_data", [True, False])
def test_refuses_too_few_rows(n_rows, said, as_data):
    with pytest.raises(ValueError, match=said):
        TallModel(linear_model(X[:n_rows], Y[:n_rows], as_data))


def test_refuses_an_impossible_start():
    with pm.Model() as model:
        mu = pm.Normal("mu", initval=5.0)
        pm.Uniform("y", mu - 10, mu + 10, observed=with_value(Y, 31, 20.0))
    tall = TallModel(model)
    with pytest.raises(ValueError, match=r"^Row 31 of y has log-likelihood -inf.*initvals"):
        tall.check_start(model.initial_point())


def counts_by_income(mix=lambda log_rate: log_rate):
    """Log rates by a product of income and age, on their raw scales; the start is at rates of 1."""
    rng = np.random.default_rng(3)
    income, age = rng.lognormal(10.5, 0.8, N), rng.integers(18, 91, N)
    X = np.column_stack([np.ones(N), income, age, income * age])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=4)
        rate = pm.math.exp(mix(X @ beta))
        pm.NegativeBinomial("y", mu=rate, alpha=pm.Exponential("alpha", 1), observed=COUNTS)
    return model


def test_predictors_of_raw_scale_are_split():
    tall = TallModel(counts_by_income())
    assert tall.n_rows == N
    point = {"beta": np.array([0.3, 2e-6, -0.01, 3e-8]), "alpha_log__": np.array(0.2)}
    logp = tall.model.compile_logp(mode=REFERENCE)
    assert tall.logp(point) == pytest.approx(float(logp(point)), rel=1e-9)


def test_rows_that_depend_on_others_are_refused_on_raw_scales():
    with pytest.raises(NotTallError, match="changes with the rows"):
        TallModel(counts_by_income(lambda log_rate: log_rate - pt.mean(log_rate)))


@pytest.mark.parametrize("name", ["long", "short", "single", "half", "p(k, n)"])
def test_names_that_are_types(name):
    """NumPy reads some names of predictors as types; longitudes are often called "long"."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * pm.Data(name, X[:, 0]), observed=Y)
    assert set(TallModel(model).row_inputs) == {name, "y"}
