"""R-hat and effective sample sizes of many parameters are those of ArviZ."""

import arviz as az
import numpy as np
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch import convergence as module
from pymc_minibatch.convergence import Convergence, convergence


def autoregressions(rng, chains, draws, size):
    """Chains of all kinds: from antithetic to hardly moving, with ties, constants and gaps."""
    values = rng.normal(size=(chains, draws, size))
    rho = np.linspace(-0.6, 0.999, size)
    for t in range(1, draws):
        values[:, t] = rho * values[:, t - 1] + np.sqrt(1 - rho**2) * values[:, t]
    values[:, :, 0] = np.round(values[:, :, 0])
    values[:, :, 1] = 3.0
    values[:, :, 2] = values[:, :, 2] > 0
    values[0, 0, 3] = np.nan
    values[0, :, 4] += 2.0
    return values


def of_arviz(values):
    data = xr.Dataset({"x": (("chain", "draw", "k"), values)})
    with np.errstate(all="ignore"):
        r_hat = az.rhat(data)["x"].values if len(values) > 1 else np.full(values.shape[2], np.nan)
        return Convergence(
            r_hat, *(az.ess(data, method=kind)["x"].values for kind in ("bulk", "tail"))
        )


@pytest.mark.parametrize("shape", [(4, 200, 30), (2, 301, 30), (1, 400, 30), (3, 4, 8), (3, 7, 8)])
@pytest.mark.parametrize("few", [0, module.FEW])
def test_numbers_are_those_of_arviz(monkeypatch, shape, few):
    values = autoregressions(np.random.default_rng(4), *shape)
    monkeypatch.setattr(module, "FEW", few)
    monkeypatch.setattr(module, "CHUNK", shape[0] * shape[1] * 7)
    for found, expected in zip(convergence(values), of_arviz(values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_slow_chains_are_left_to_arviz(monkeypatch):
    values = autoregressions(np.random.default_rng(5), 2, 200, 30)
    monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(module, "MOST_LAGS", 8)
    for found, expected in zip(convergence(values), of_arviz(values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_too_few_draws_tell_nothing():
    assert np.isnan(np.array(convergence(np.zeros((4, 3, 2))))).all()


def test_worst_lists_the_parameters_with_fewest_effective_draws():
    rng = np.random.default_rng(6)
    slow, fast = rng.normal(size=(2, 300)).cumsum(axis=1), rng.normal(size=(2, 300, 4))
    posterior = xr.Dataset(
        {"slow": (("chain", "draw"), slow), "fast": (("chain", "draw", "k"), fast)},
        coords={"k": list("abcd")},
    )
    idata = xr.DataTree.from_dict({"posterior": posterior})
    table = pmb.worst(idata, 2)
    assert table.index[0] == "slow"
    assert len(table) == 2
    expected = az.summary(idata, var_names=["slow"], round_to="none")
    assert table.loc["slow", "ess_bulk"] == pytest.approx(az.ess(idata)["slow"].item())
    assert table.loc["slow", "r_hat"] == pytest.approx(expected["r_hat"].item(), abs=1e-2)
    assert set(pmb.worst(idata, None, var_names=["fast"]).index) == {f"fast[{k}]" for k in "abcd"}
    with pytest.raises(ValueError, match="other is not in the posterior"):
        pmb.worst(idata, var_names=["other"])
