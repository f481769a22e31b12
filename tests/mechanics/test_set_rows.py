"""Values that are written into rows by their numbers are values of each row."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb

N, G = 60, 6
RARE = np.array([3, -20, 41])


def rows(kind: str) -> pm.Model:
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=N), np.arange(N) % G
    with pm.Model() as model:
        bias, scale = pm.Normal("bias"), 1.0
        mu = pm.Normal("a") + pm.Normal("b") * x
        if kind == "added":
            mu = pt.inc_subtensor(mu[RARE], bias)
        elif kind == "added, of data":
            mu = pt.inc_subtensor(mu[RARE], bias * x[RARE])
        elif kind == "made of what was there":
            mu = pt.set_subtensor(mu[RARE], pt.exp(0.1 * mu[RARE]) + bias)
        elif kind == "by a mask":
            mu = pt.set_subtensor(mu[x > 1], bias)
        elif kind == "each its own":
            mu = pt.inc_subtensor(mu[RARE], pm.Normal("own", shape=3))
        elif kind == "scales":
            scale = pt.set_subtensor(pt.ones(N)[RARE], pm.HalfNormal("s"))
        elif kind == "two columns":
            both = pt.inc_subtensor(pt.stack([mu, mu], axis=1)[RARE], pt.stack([bias, -bias]))
            mu = both[:, 0] * both[:, 1]
        else:
            some, others = pm.Normal("some", shape=3), pm.Normal("others", shape=3)
            u = pt.set_subtensor(pt.zeros(G)[np.array([0, 2, 5])], some)
            u = pt.set_subtensor(u[np.array([1, 3, 4])], 0.5 * others)
            mu = mu + u[group]
        pm.Normal("y", mu, scale, observed=x + rng.normal(size=N))
    return model


@pytest.mark.parametrize(
    "kind",
    [
        "added",
        "added, of data",
        "made of what was there",
        "by a mask",
        "each its own",
        "scales",
        "two columns",
        "effects in two parts",
    ],
)
def test_values_set_by_number(kind: str) -> None:
    model = rows(kind)
    tall = pmb.TallModel(model)
    rng = np.random.default_rng(2)
    point = tall.layout.unflatten(rng.normal(size=tall.layout.size))
    [expected] = model.compile_logp(vars=[model["y"]], sum=False)(point)
    some = np.array([41, 0, 3, 59])
    np.testing.assert_allclose(tall.row_logp(point, some), expected[some], rtol=1e-10)
    assert tall.logp(point) == pytest.approx(float(model.compile_logp()(point)))


def test_sums_over_rows_that_are_set_are_refused() -> None:
    """Two numbers of the same row are added both, which no row says by itself."""
    x = np.random.default_rng(1).normal(size=N)
    with pm.Model() as model:
        mu = pt.inc_subtensor((pm.Normal("a") * x)[np.array([3, 3, 17])], pm.Normal("bias"))
        pm.Normal("y", mu, 1.0, observed=x)
    with pytest.raises(pmb.NotTallError):
        pmb.TallModel(model)
