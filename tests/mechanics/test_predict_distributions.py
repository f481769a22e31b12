"""Predictions of distributions of every kind, compared with formulas; and what has no mean."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.stats as st
import xarray as xr

import pymc_minibatch as pmb

N_ROWS, N_DRAWS, T = 150, 300, 0.7

X = np.random.default_rng(1).normal(size=N_ROWS)
MU = np.exp(0.3 * T + 0.2 * X)
LINEAR = T + X
ZERO_MEANS = np.stack([np.zeros(N_ROWS), LINEAR, 0.5 * T - X], axis=1)
SHARES = np.exp(ZERO_MEANS) / np.exp(ZERO_MEANS).sum(axis=1, keepdims=True)


def shares(t):
    """Logits of three categories; the first are zeros."""
    return pm.math.stack([pm.math.zeros_like(t + X), t + X, 0.5 * t - X], axis=1)


def positive(t):
    return pm.math.exp(0.3 * t + 0.2 * X)


ONES, COUNTS = np.ones(N_ROWS), np.ones(N_ROWS, dtype=int)

KINDS = {
    "Wald": (lambda t: pm.Wald("y", mu=positive(t), lam=3.0, observed=ONES), MU, MU**3 / 3),
    "BetaBinomial": (
        lambda t: pm.BetaBinomial("y", n=7, alpha=positive(t), beta=1.7, observed=COUNTS),
        *st.betabinom.stats(7, MU, 1.7),
    ),
    "SkewNormal": (
        lambda t: pm.SkewNormal("y", mu=t + X, sigma=1.3, alpha=4.0, observed=ONES),
        *st.skewnorm.stats(4.0, LINEAR, 1.3),
    ),
    "Moyal": (lambda t: pm.Moyal("y", t + X, 1.0, observed=ONES), *st.moyal.stats(LINEAR)),
    "TruncatedNormal": (
        lambda t: pm.Truncated("y", pm.Normal.dist(t + X, 1.0), lower=0.0, observed=ONES),
        *st.truncnorm.stats(-LINEAR, np.inf, LINEAR),
    ),
    "HurdlePoisson": (
        lambda t: pm.HurdlePoisson("y", 0.6, positive(t), observed=COUNTS),
        0.6 * MU / -np.expm1(-MU),
        0.6 * (MU + MU**2) / -np.expm1(-MU) - (0.6 * MU / -np.expm1(-MU)) ** 2,
    ),
    "Categorical": (
        lambda t: pm.Categorical("y", logit_p=shares(t), observed=COUNTS),
        SHARES @ [0, 1, 2],
        SHARES @ [0, 1, 4] - (SHARES @ [0, 1, 2]) ** 2,
    ),
    "Multinomial": (
        lambda t: pm.Multinomial(
            "y", n=5, p=pm.math.softmax(shares(t), axis=1), observed=np.tile([1, 2, 2], (N_ROWS, 1))
        ),
        5 * SHARES,
        5 * SHARES * (1 - SHARES),
    ),
    "NormalMixture": (
        lambda t: pm.NormalMixture(
            "y", w=[0.3, 0.7], mu=pm.math.stack([t + X, t - X], axis=1), sigma=1.0, observed=ONES
        ),
        0.3 * (T + X) + 0.7 * (T - X),
        1 + 0.21 * (2 * X) ** 2,
    ),
    "DiscreteUniform": (
        lambda _: pm.DiscreteUniform("y", 0, 5, observed=COUNTS),
        np.full(N_ROWS, 2.5),
        np.full(N_ROWS, 35 / 12),
    ),
    "rows along the second axis": (
        lambda t: pm.Normal(
            "y", t + np.array([[1.0], [-2.0]]) * X, 1.5, observed=np.ones((2, N_ROWS))
        ),
        T + X[:, None] * [1.0, -2.0],
        np.full((N_ROWS, 2), 2.25),
    ),
}


@pytest.fixture(scope="module")
def idata():
    draws = np.full((2, N_DRAWS // 2), T)
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"t": (("chain", "draw"), draws)})})


@pytest.mark.parametrize("kind", KINDS)
def test_moments(idata, kind):
    build, mean, variance = KINDS[kind]
    with pm.Model():
        build(pm.Normal("t"))
        drawn = pmb.predict(idata, output="draws")["y"]
    values = drawn.values.reshape(N_DRAWS, *drawn.shape[2:])
    assert values.shape[1:] == np.shape(mean)
    z = (values.mean(axis=0) - mean) / np.sqrt(variance / N_DRAWS)
    assert np.abs(z).max() < 6.0  # a heavy tail moves a few
    assert 0.75 < np.sqrt((z**2).mean()) < 1.25
    assert np.mean(values.var(axis=0)) == pytest.approx(np.mean(variance), rel=0.15)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (KINDS["Categorical"][0], "y has no mean .*Categorical.* Leave kind out"),
        (lambda t: pm.Cauchy("y", t + X, 1.0, observed=ONES), "y has no mean .*Cauchy"),
        (KINDS["TruncatedNormal"][0], "mean of y is not known to PyMC. Leave kind out"),
    ],
)
def test_what_has_no_mean(idata, build, words):
    with pm.Model():
        build(pm.Normal("t"))
        with pytest.raises(pmb.NoPredictionError, match=words):
            pmb.predict(idata, kind="mean")


@pytest.fixture(scope="module")
def wide():
    """Two outcomes for each row, which lies along the second axis."""
    coords = {"what": ["one", "two"], "obs": np.arange(N_ROWS) + 10}
    with pm.Model(coords=coords) as model:
        x, factor = pm.Data("x", X), np.array([[1.0], [-2.0]])
        mu = pm.Normal("t") + factor * x
        pm.Normal("y", mu, 1.5, observed=np.ones((2, N_ROWS)), dims=("what", "obs"))
    return pmb.TallModel(model)


def test_axes_have_the_names_and_labels_of_the_model(idata, wide):
    found = pmb.predict(idata, data=wide, kind="mean")
    assert found["mean"].dims == ("obs", "what")
    np.testing.assert_allclose(found["mean"].sel(what="two"), T - 2 * X)
    assert found.obs.values[0] == 10
    new = pmb.predict(idata, {"x": np.array([1.0, 2.0])}, data=wide, kind="mean")
    np.testing.assert_allclose(new["mean"], [[T + 1, T - 2], [T + 2, T - 4]])


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        (["a", None, "b"], ["a", "b", "missing"]),
        ([1.0, np.nan, 0.0], [0.0, 1.0, np.nan]),
        (pd.Categorical(["v", None, "u"]), ["u", "v", "missing"]),
        ([1, "a", 2.5], [1, "a", 2.5]),
    ],
)
def test_rows_whose_label_is_missing_are_a_group(idata, wide, labels, groups):
    tiled = pd.Series(labels).iloc[np.arange(N_ROWS) % 3].to_numpy()
    found = pmb.predict(idata, data=wide, by=tiled)
    assert [str(g) for g in found.group.values] == [str(g) for g in groups]
    assert found.rows.values.tolist() == [N_ROWS // 3] * 3
    assert np.isfinite(found.coverage).all()
