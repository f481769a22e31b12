"""The kernel Stein discrepancy of draws whose distribution is known."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from models import normal_model
from normal_rows import BATCH, FULL, draw, normal_rows

from pymc_minibatch import SGLD, find_reference, ksd
from pymc_minibatch.stein import discrepancy, pairs


def tree(**variables):
    """Wrap arrays (draw, ...) as the result of one chain."""
    arrays = {
        name: xr.DataArray(values[None], dims=("chain", "draw", *"abc"[: values.ndim - 1]))
        for name, values in variables.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(arrays)})


def test_pairs_against_differences():
    rng = np.random.default_rng(1)
    z, s = rng.normal(size=(2, 2, 3))
    h, axes = 1e-4, np.eye(3)

    def k(x, y):
        return (1 + ((x - y) ** 2).sum() / 3) ** -0.5

    def along(f, x):
        return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in axes])

    expected = s[0] @ s[1] * k(*z) + s[0] @ along(lambda y: k(z[0], y), z[1])
    expected += s[1] @ along(lambda x: k(x, z[1]), z[0])
    expected += sum(
        along(lambda x: along(lambda y: k(x, y), z[1])[i], z[0])[i]  # noqa: B023
        for i in range(3)
    )
    assert pairs(z, s)[0, 1] == pytest.approx(expected, rel=1e-6)


def correlated_normals(rng, rho, chains, n_draws, dim):
    """Return draws of stationary standard normal chains, chain after chain."""
    z = rng.normal(size=(chains, n_draws, dim))
    for i in range(1, n_draws):
        z[:, i] = rho * z[:, i - 1] + np.sqrt(1 - rho**2) * z[:, i]
    return z.reshape(-1, dim)


@pytest.mark.parametrize(("rho", "chains"), [(0.0, 1), (0.8, 1), (0.8, 2), (0.8, 50)])
@pytest.mark.parametrize("spread", [1.0, 1.3])
def test_draws_of_a_chain(rho, chains, spread):
    """Autocorrelation shows in the standard error, not in the estimate."""
    rng = np.random.default_rng(1)
    expected = 0.0 if spread == 1 else 0.05
    found = []
    for _ in range(60):
        z = spread * correlated_normals(rng, rho, chains, 800 // chains, 5)
        found.append(discrepancy(z, 0.5 * rng.normal(size=z.shape) - z, chains))
    squared, errors = np.transpose(found)
    assert squared.mean() == pytest.approx(expected, abs=4 * squared.std() / np.sqrt(60) + 0.002)
    # Of eight seeds the ratio was 0.82 ± 0.09 to 1.05 ± 0.09, by the parameters.
    assert 0.45 < squared.std() / np.sqrt((errors**2).mean()) < 1.5


@pytest.fixture(scope="module")
def correlated():
    model, mean, precision = normal_rows(FULL)
    return model, mean, precision, find_reference(model)


def exact(mean, precision, n, rng, spread=1.0):
    return mean + spread * rng.normal(size=(n, 3)) @ np.linalg.inv(np.linalg.cholesky(precision))


@pytest.mark.parametrize("order", [0, 1])
def test_unbiased_with_and_without_a_control_variate(correlated, order):
    """The noise of the batches shows in the standard error, not in the estimate."""
    model, mean, precision, reference = correlated
    rng = np.random.default_rng(2)
    options = {"model": model, "reference": reference, "control_variate": order}
    right = ksd(tree(mu=exact(mean, precision, 2000, rng)), batch_size=20, **options)
    assert abs(right.squared) < 5 * right.standard_error
    assert right.n_gradient == 2000 * 20 * (1 + order)
    wide = ksd(tree(mu=exact(mean, precision, 2000, rng, 1.5)), batch_size=20, **options)
    assert wide.squared == pytest.approx(0.118, abs=5 * wide.standard_error)
    assert wide.value == np.sqrt(wide.squared)
    assert (wide.standard_error < 0.012) == (order == 1)
    assert order == 0 or wide.squared > 8 * wide.standard_error


@pytest.mark.filterwarnings("ignore:.*step_size of:UserWarning")
def test_tells_step_sizes_apart(correlated):
    model, _, _, reference = correlated
    found = []
    for epsilon in (2.5, 1.5, 0.1):
        step = SGLD(
            step_size=epsilon,
            control_variate=1,
            batch_size=BATCH,
            reference=reference,
            steps_per_draw=int(20 / epsilon),
            model=model,
            rng=3,
        )
        draws, _ = draw(step, 20, 1500)
        found.append(ksd(tree(mu=draws), model, reference=reference))
    assert found[0].squared > found[1].squared + 3 * found[1].standard_error
    assert found[1].squared > found[2].squared + 3 * found[1].standard_error
    assert abs(found[2].squared) < 5 * found[2].standard_error


def test_transforms_are_undone():
    """The scale is log-transformed in the model, and as it is in the result."""
    model = normal_model()
    reference = find_reference(model)
    rng = np.random.default_rng(4)
    flat = rng.multivariate_normal(reference.flat, reference.covariance, 1000)
    near = ksd(tree(mu=flat[:, 0], sigma=np.exp(flat[:, 1])), model, reference=reference)
    assert near.squared < 0.01
    far = ksd(tree(mu=flat[:, 0], sigma=1.1 * np.exp(flat[:, 1])), model, reference=reference)
    assert far.squared > 0.1


def test_bad_input():
    with pm.Model() as model:
        mu, k = pm.Normal("mu"), pm.Poisson("k", 1.0)
        pm.Normal("y", mu + k, 1.0, observed=np.arange(10.0))
    with pytest.raises(ValueError, match=r"\['k'\] are discrete"):
        ksd(tree(mu=np.zeros(5)), model)
    model = normal_model()
    with pytest.raises(ValueError, match="max_draws"):
        ksd(tree(mu=np.zeros(5)), model, max_draws=39)
    with pytest.raises(ValueError, match=r"The posterior lacks \['sigma'\]"):
        ksd(tree(mu=np.zeros(5)), model)
    with pytest.raises(ValueError, match="5 draws are too few"):
        ksd(tree(mu=np.zeros(5), sigma=np.ones(5)), model)
    with pytest.raises(ValueError, match=r"sigma has draws that are not finite"):
        ksd(tree(mu=np.zeros(50), sigma=np.r_[np.ones(49), np.nan]), model)
