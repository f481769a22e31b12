"""A mode is found whatever the units of the outcome and of the predictors are."""

import numpy as np
import pymc as pm
import pytest
from scipy.optimize import minimize

import pymc_minibatch as pmb

N = 1000
RNG = np.random.default_rng(1)
X = RNG.normal(size=N)
Y = 2.5 + 0.4 * X + RNG.standard_t(5, size=N)

LOSSES = {
    "Normal": lambda e: e**2 / 2,
    "StudentT": lambda e: 3 * np.log1p(e**2 / 5),
    "Laplace": np.abs,
}


def _model(kind: str, of_outcome: float, of_predictor: float) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 100 * of_outcome)
        b = pm.Normal("b", 0, 100 * of_outcome / of_predictor)
        mu, y = a + b * (X * of_predictor), Y * of_outcome
        if kind == "Normal":
            pm.Normal("y", mu, of_outcome, observed=y)
        elif kind == "StudentT":
            pm.StudentT("y", nu=5, mu=mu, sigma=of_outcome, observed=y)
        else:
            pm.Laplace("y", mu, of_outcome, observed=y)
    return model


def _mode(kind: str) -> np.ndarray:
    def loss(p: np.ndarray) -> float:
        return float(LOSSES[kind](Y - p[0] - p[1] * X).sum() + p @ p / 2e4)

    method = {"method": "Nelder-Mead", "options": {"xatol": 1e-6, "fatol": 1e-8}}
    return minimize(loss, [2.4, 0.3], **method).x


@pytest.mark.parametrize(("of_outcome", "of_predictor"), [(-9, 0), (5, 0), (9, -9), (0, 9)])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_mode_in_any_units(kind: str, of_outcome: int, of_predictor: int) -> None:
    u, v = 10.0**of_outcome, 10.0**of_predictor
    reference = pmb.find_reference(_model(kind, u, v), progressbar=False)
    found = np.array([reference.mode["a"] / u, reference.mode["b"] * v / u])
    assert np.abs(found - _mode(kind)).max() < (0.01 if kind == "Laplace" else 1e-3)
    units = np.array([u, u / v])
    precision = np.outer(units, units) * reference.precision_at(1.0)
    of_plain = pmb.find_reference(_model(kind, 1.0, 1.0), progressbar=False).precision_at(1.0)
    assert np.allclose(precision, of_plain, rtol=0.1 if kind == "Laplace" else 1e-3, atol=1.0)


def test_the_mode_of_a_scale_in_large_units() -> None:
    with pm.Model() as model:
        a, s = pm.Normal("a", 0, 1e8), pm.HalfNormal("s", 1e7)
        pm.Normal("y", a + 4e5 * X, s, observed=1e6 * Y)
    mode = pmb.find_reference(model, progressbar=False).mode
    rest = Y - 0.4 * X
    assert abs(mode["a"] / 1e6 - rest.mean()) < 1e-3
    assert abs(np.exp(mode["s_log__"]) / 1e6 - rest.std()) < 5e-3


def test_what_the_data_do_not_determine_is_refused_in_any_units() -> None:
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b")
        pm.Bernoulli("y", logit_p=(a + b * 1e7 * X), observed=(X > 0).astype(int))
    with pytest.raises(pmb.NoReferenceError):
        pmb.find_reference(model, progressbar=False)
