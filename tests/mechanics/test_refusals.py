"""Models that do not split are refused: which variable, why, and what to do instead."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt
import pytest
import xarray as xr
from gallery import SLOPE, N, X, Y
from pytensor import scan
from pytensor.tensor.signal import convolve1d

from pymc_minibatch import NotTallError, TallModel
from pymc_minibatch.tall import splitting

DATA = "before building the model"


def observed(mean):
    pm.Normal("y", mean, 1.0, observed=Y)


def random_walk():
    start = pm.Normal.dist()
    pm.GaussianRandomWalk("y", sigma=pm.HalfNormal("sigma"), init_dist=start, observed=Y)


def own_class_of_each_row():
    high = pm.Bernoulli("high", 0.5, shape=N)
    observed(pm.math.switch(high, 1.0, 0.0))


def latent_random_walk():
    observed(pm.GaussianRandomWalk("level", init_dist=pm.Normal.dist(), shape=N))


def autoregression():
    pm.AR("y", pm.Normal("rho", shape=1), 1.0, init_dist=pm.Normal.dist(), observed=Y)


def lag_in_the_graph():
    y = pm.Data("past", Y)
    observed(pm.Normal("rho") * pt.concatenate([pt.zeros(1), y[:-1]]))


def garch():
    a = pm.Uniform("a", 0, 0.4)
    pm.GARCH11("y", omega=1.0, alpha_1=a, beta_1=0.4, initial_vol=1.0, observed=Y)


def marginal_gaussian_process():
    scale = pm.HalfNormal("scale")
    process = pm.gp.Marginal(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
    process.marginal_likelihood("y", X=SLOPE[:, None], y=Y, sigma=1.0)


def latent_gaussian_process():
    """With a fixed length scale it would be a matrix product, whose rows are independent."""
    process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 5, 5)))
    observed(process.prior("f", X=SLOPE[:, None]))


def cumulative_sum():
    observed(pm.Normal("drift") * pt.cumsum(pm.Data("x", SLOPE)))


def cumulative_sum_of_rare_events():
    """Random rows in small batches would hardly meet one."""
    events = np.zeros(3000)
    events[2900] = 1.0
    total = pt.cumsum(pm.Data("events", events))
    pm.Normal("y", pm.Normal("jump") * total, 1.0, observed=np.zeros(3000))


def distance_to_a_common_value():
    """Nearly all rows have the smallest value, so that small batches have it too."""
    x = np.zeros(3000, dtype=int)
    x[[7, 1500]] = 1
    data = pm.Data("x", x)
    pm.Normal("y", pm.Normal("slope") * (data - data.min()), 1.0, observed=np.zeros(3000))


def lag_of_a_constant():
    """Every row has the same past; other data would not."""
    past = pm.Data("past", np.ones(N))
    observed(pm.Normal("rho") * pt.concatenate([past[:1], past[:-1]]))


def centred_in_the_graph():
    x = pm.Data("x", SLOPE)
    observed(pm.Normal("slope") * (x - x.mean()))


def softmax_over_rows():
    x = pm.Data("x", SLOPE)
    observed(pm.math.softmax(pm.Normal("slope") * x, axis=0))


def total_in_a_matrix_product():
    x = pm.Data("x", X)
    observed(x @ (x.T @ x @ pm.Normal("beta", shape=3)))


def first_row_as_baseline():
    x = pm.Data("x", SLOPE)
    observed(pm.Normal("slope") * (x - x[0]))


def _adstock(by_scan):
    """Each row reads the past of others through a weight that is not known."""
    x, kept = pm.Data("x", SLOPE), pm.Beta("kept", 2.0, 2.0)
    if not by_scan:
        return observed(convolve1d(x, kept ** np.arange(6))[:N])
    stock = scan(
        lambda x, before, kept: x + kept * before,
        sequences=[x],
        outputs_info=[pt.zeros(())],
        non_sequences=[kept],
        return_updates=False,
    )
    return observed(stock)


def adstock_by_a_loop():
    _adstock(by_scan=True)


def adstock_by_a_convolution():
    _adstock(by_scan=False)


def discounted_sum():
    x, kept, t = pm.Data("x", SLOPE), pm.Uniform("kept", 0.5, 1.0), np.arange(N)
    observed(pt.cumsum(x * kept ** (-t)) * kept**t)


def adstock_by_lags():
    """The window of each date is constant data, so that dates are rows."""
    x, kept = pm.Data("x", SLOPE), pm.Beta("kept", 2.0, 2.0)
    padded = pt.concatenate([pt.zeros(3), x])
    observed(sum(kept**k * padded[3 - k : 3 - k + N] for k in range(4)))


def adstock_by_a_matrix():
    kept, t = pm.Beta("kept", 2.0, 2.0), np.arange(N)
    lag = t[:, None] - t
    observed(pt.dot(pt.switch(lag >= 0, kept ** np.maximum(lag, 0), 0.0), pm.Data("x", SLOPE)))


def own_variable_of_each_row():
    observed(pm.Normal("effect", shape=N))


def missing_values():
    row, values = pm.Normal.dist(pm.Normal("mu")), np.where(np.arange(N) == 4, np.nan, Y)
    with pytest.warns(UserWarning, match="imput"):
        pm.Censored("y", row, lower=-9.0, upper=None, observed=values)


def labelled_axes():
    pm.modelcontext(None).add_coord("row", np.arange(N))
    mu = pmd.Normal("mu", mu=0, sigma=1)
    pmd.Normal("y", mu=mu, sigma=1, observed=xr.DataArray(Y, dims="row"), dims="row")


def nothing_observed():
    pm.Normal("mu")


def likelihood_in_a_potential():
    pm.Potential("likelihood", pm.logp(pm.Normal.dist(pm.Normal("mu"), 1.0), np.arange(40.0)))


def potential_of_rows():
    mu = pm.Normal("mu")
    observed(mu)
    pm.Potential("penalty", -((mu - SLOPE) ** 2))


def weighted_likelihood():
    mu, weights = pm.Normal("mu"), pm.Data("weights", np.linspace(1.0, 2.0, N))
    terms = pm.logp(pm.Normal.dist(mu, pm.HalfNormal("sigma")), Y)
    pm.Potential("likelihood", N / weights.sum() * (weights * terms).sum())


def product_of_vectors():
    terms = pm.logp(pm.Normal.dist(pm.Normal("mu"), 1.0), Y)
    pm.Potential("likelihood", -pt.dot(np.linspace(1.0, 2.0, N), -terms) / 2.0)


def sum_of_sums():
    mu = pm.Normal("mu")
    terms = pm.logp(pm.Normal.dist(mu, 1.0), Y)
    pm.Potential("likelihood", pt.sum(terms) - pt.sum((mu * SLOPE) ** 2))


def potential_of_the_rows_together():
    mu = pm.Normal("mu")
    observed(mu)
    pm.Potential("penalty", -pt.sqrt(pt.sum((mu - SLOPE) ** 2)))


def simulator():
    mu = pm.Normal("mu")
    pm.Simulator("y", lambda rng, mu, size: rng.normal(mu, size=size), mu, observed=Y)


def total_size():
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=Y, total_size=10_000)


def prior_of_rows():
    x = pm.Data("x", SLOPE)
    slope = pm.Normal("slope", 0, 1 / pt.std(x))
    observed(slope * x)


def no_common_axis():
    observed(pm.Data("x", X[1:]) @ pm.Normal("beta", shape=3))


def one_density_for_all():
    def logp(value, mean):
        return -pt.sum((value - mean) ** 2)

    mean = pm.Normal("mu") * np.ones(N)
    pm.CustomDist("y", mean, logp=logp, signature="(n)->(n)", observed=Y)


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (random_walk, ["y (", "RandomWalk", "one number for all its rows", "past values as data"]),
        (autoregression, ["y (AR)", "past values as data", "NUTS"]),
        (garch, ["y (GARCH11)", "NUTS"]),
        (marginal_gaussian_process, ["y (", "Normal)", "pm.gp.HSGP"]),
        (own_class_of_each_row, ["high has one value per row", "marginalize"]),
        (latent_gaussian_process, ["f_rotated_ has one value per row", "pm.gp.HSGP", "NUTS"]),
        (softmax_over_rows, ["of y is not", "x is normalised over all rows", DATA]),
        (adstock_by_a_loop, ["x is computed one row after another", "the data of others", "lags"]),
        (adstock_by_a_convolution, ["x is convolved over the rows", "the data of others", "lags"]),
        (discounted_sum, ["is cumulated over the rows", "each row depends on", "weight[k]"]),
        (labelled_axes, ["y", "pymc.dims", "has the same name"]),
        (missing_values, ["y has", "missing value", "imputes", "Remove those rows"]),
        (nothing_observed, ["no observed variable", "observed="]),
        (potential_of_the_rows_together, ["Potential penalty", "40 rows", "not a sum", DATA]),
        (simulator, ["y is a pm.Simulator", "pm.sample_smc"]),
        (total_size, ["y has total_size", "minibatch already", "leave total_size out"]),
        (no_common_axis, ["x (39, 3)", "y (40,)", "same number of rows"]),
        (one_density_for_all, ["y (", "one number for all its rows", "ndim_supp=0"]),
    ],
)
def test_refuses(build, parts):
    with pm.Model() as model:
        build()
    with pytest.raises(NotTallError) as error:
        TallModel(model)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "build",
    [
        lag_in_the_graph,
        adstock_by_lags,
        adstock_by_a_matrix,
        own_variable_of_each_row,
        latent_random_walk,
        cumulative_sum,
        cumulative_sum_of_rare_events,
        distance_to_a_common_value,
        lag_of_a_constant,
        centred_in_the_graph,
        total_in_a_matrix_product,
        first_row_as_baseline,
        prior_of_rows,
        likelihood_in_a_potential,
        potential_of_rows,
        weighted_likelihood,
        product_of_vectors,
        sum_of_sums,
    ],
)
def test_splits_what_is_computed_from_data_or_written_as_a_potential(build):
    """The prior part and the rows are the model's density, and rows are split."""
    with pm.Model() as model:
        build()
    tall = TallModel(model)
    logp, rng = model.compile_logp(), np.random.default_rng(3)
    for _ in range(3):
        point = tall.layout.unflatten(tall.start + rng.normal(0, 0.5, tall.start.size))
        assert tall.logp(point) == pytest.approx(float(logp(point)), rel=1e-9)
        rows = tall.row_logp(point, np.arange(tall.n_rows))
        assert np.ptp(rows) > 0
        assert tall.prior_logp(point) + rows.sum() == pytest.approx(float(logp(point)), rel=1e-9)


def test_data_from_elsewhere_are_not_computed_once():
    """The data in the model are a stand-in, whose mean is not that of the rows."""
    with pm.Model() as model:
        centred_in_the_graph()
    with pytest.raises(NotTallError, match="x is reduced over all rows"):
        TallModel(model, data={"x": SLOPE, "y": Y})


def test_what_was_not_tried_is_not_accused(monkeypatch):
    """Whether scales of groups hold rows takes two tries where there are as many of both."""

    def build():
        group = pm.Data("group", np.r_[0, np.arange(1, N)[::-1] - 1])  # one of them twice
        scale = pm.Data("scale", np.linspace(1.0, 2.0, N))
        pm.Normal("y", (pm.Normal("effect", 0, 1) * scale)[group], 1.0, observed=Y)

    with pm.Model() as model:
        build()
    assert TallModel(model).n_rows == N
    monkeypatch.setattr(splitting, "MAX_LAYOUTS", 1)
    with pytest.raises(NotTallError, match=r"Several arrays .* length 40.* \(1 ways were tried\)"):
        TallModel(model)


def test_variables_in_single_precision():
    """Machine code that added rows in another order was taken to be wrong."""
    with pm.Model() as model:
        a, b = pm.Normal("a", dtype="float32"), pm.Normal("b")
        pm.Normal("y", a + b * np.arange(20.0), 1.0, observed=np.arange(20.0))
    with pytest.raises(NotTallError, match=r"a is of type float32.*floatX = 'float64'"):
        TallModel(model)
