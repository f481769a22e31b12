"""Rows of which sums say everything: found where they are like this, and nowhere else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.latent import expander
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.exact import ExactSampler
from pymc_minibatch.latent.expansion import Expansion
from pymc_minibatch.latent.locate import locate, structure_with_effects
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.sums import CommonFactor, expand_exactly, find_parabolic_rows
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.passes import CHUNK_ROWS

N, G = 900, 30
RNG = np.random.default_rng(1)
GROUP, OTHER, X = RNG.integers(0, G, N), RNG.integers(0, 7, N), RNG.normal(size=N)
Y = 2.0 + 0.5 * RNG.normal(size=G)[GROUP] + 0.8 * RNG.normal(size=N)
WEIGHT = RNG.uniform(0.5, 2.0, N)


def effects() -> pt.TensorVariable:
    """Return what every model here has: a mean and an intercept for each group."""
    return pm.Normal("mu", 0, 3) + (pm.HalfNormal("tau") * pm.Normal("z", shape=G))[GROUP]


def scale_unknown() -> None:
    pm.Normal("y", effects(), pm.HalfNormal("s"), observed=Y)


def scale_known() -> None:
    pm.Normal("y", effects(), 0.8, observed=Y)


def weighted() -> None:
    pm.Normal("y", effects() + pm.Normal("b") * X, WEIGHT * pm.Exponential("s", 1), observed=Y)


def precision_unknown() -> None:
    pm.Normal("y", effects(), tau=pm.Gamma("precision", 2, 2), observed=Y)


def crossed() -> None:
    other = pm.HalfNormal("sd") * pm.Normal("w", shape=7)
    pm.Normal("y", effects() + other[OTHER], pm.HalfStudentT("s", 4, 1), observed=Y)


def correlated() -> None:
    chol, _, _ = pm.LKJCholeskyCov("c", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2))
    effect = pm.Normal("m", 0, 2, shape=2) + pm.math.dot(pm.Normal("z", shape=(G, 2)), chol.T)
    pm.Normal("y", effect[GROUP, 0] + effect[GROUP, 1] * X, pm.HalfNormal("s"), observed=Y)


def log_normal() -> None:
    pm.LogNormal("y", effects(), pm.HalfNormal("s"), observed=np.exp(Y))


def raw_scale() -> None:
    """Rows far from where the search begins, in units of their scale."""
    mean = pm.Normal("mu", 0, 1e6) + (pm.HalfNormal("tau") * pm.Normal("z", shape=G))[GROUP]
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=1e5 + Y)


def student() -> None:
    pm.StudentT("y", nu=5, mu=effects(), sigma=pm.HalfNormal("s"), observed=Y)


def scale_of_other_group() -> None:
    pm.Normal("y", effects(), pm.HalfNormal("s", shape=7)[OTHER], observed=Y)


def scale_that_varies() -> None:
    scale = pm.math.exp(pm.Normal("a") + pm.Normal("b") * X)
    pm.Normal("y", effects(), scale, observed=Y)


def censored() -> None:
    dist = pm.Normal.dist(effects(), pm.HalfNormal("s"))
    pm.Censored("y", dist, lower=0.5, upper=None, observed=np.maximum(Y, 0.5))


def huber() -> None:
    """Rows that are parabolas wherever these data and parameters near the start bring them."""
    away, most = effects() - Y, 30.0
    square = -0.5 * away**2
    linear = most**2 / 2 - most * pt.abs(away)
    pm.Potential("y", pt.where(pt.abs(away) < most, square, linear))


def mean_reads_the_scale() -> None:
    scale = pm.HalfNormal("s")
    pm.Normal("y", effects() + scale * X, scale * WEIGHT, observed=Y)


def logistic() -> None:
    pm.Bernoulli("y", logit_p=effects(), observed=Y > 2)


def scale_first() -> None:
    """What the rows read of their scale comes before the effects."""
    scale = pm.HalfNormal("s") * WEIGHT
    pm.Potential("y", -pt.log(scale) - 0.5 * ((Y - effects()) / scale) ** 2)


def last_row_differs() -> None:
    error = pt.where(np.arange(N) < N - 1, 1.0, pm.HalfNormal("s2")) * pm.HalfNormal("s")
    pm.Normal("y", effects(), error, observed=Y)


PARABOLIC = [
    scale_unknown,
    scale_known,
    weighted,
    precision_unknown,
    crossed,
    correlated,
    log_normal,
    raw_scale,
    scale_first,
]
OTHERS = [
    student,
    scale_of_other_group,
    scale_that_varies,
    censored,
    huber,
    mean_reads_the_scale,
    logistic,
    last_row_differs,
]


def made(build: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        build()
    return model


@pytest.mark.parametrize("build", PARABOLIC)
def test_sums_are_the_log_density(build: Callable[[], None]) -> None:
    """Up to a constant, at hyperparameters and effects far beyond the posterior."""
    model = made(build)
    tall, rng = TallModel(model), np.random.default_rng(2)
    prior, likelihood = (
        model.compile_logp(terms)
        for terms in (model.free_RVs, [*model.observed_RVs, *model.potentials])
    )
    for temperature in (1.0, 2.5):
        sampler = make_latent_sampler(tall, None, temperature)
        assert isinstance(sampler, ExactSampler)
        reference, surrogate = sampler.reference, sampler.reference.surrogate
        differences = []
        for width in (0.0, 1.0, 4.0, 4.0, 4.0):
            away = reference.hyper_cholesky @ rng.normal(size=reference.hyper.size)
            frame = surrogate.conditional(reference.hyper + width * np.clip(away, -1, 1)).frame
            dense, groups = frame.layout.noise(rng)
            point = frame.color((width * dense, width * groups))
            values = tall.layout.unflatten(sampler.coordinates.to_model(point))
            logp = prior(values) + likelihood(values) / temperature
            differences.append(surrogate.log_density(point, surrogate.read(point)) - logp)
        np.testing.assert_allclose(differences, differences[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("build", OTHERS)
def test_rows_of_which_sums_do_not_say_everything(build: Callable[[], None]) -> None:
    tall = TallModel(made(build))
    assert find_parabolic_rows(tall, structure_with_effects(tall)) is None


@pytest.mark.parametrize("n_rows", [CHUNK_ROWS + 1, 2 * CHUNK_ROWS])
def test_rows_of_the_second_chunk_differ(n_rows: int) -> None:
    """All of them, in the same way."""
    group, second = np.arange(n_rows) % G, np.arange(n_rows) >= CHUNK_ROWS
    with pm.Model() as model:
        mean = (pm.HalfNormal("tau") * pm.Normal("z", shape=G))[group]
        scale = pm.HalfNormal("s") * pm.HalfNormal("s2") ** second
        pm.Normal("y", mean, scale, observed=np.random.default_rng(4).normal(size=n_rows))
    tall = TallModel(model)
    assert find_parabolic_rows(tall, structure_with_effects(tall)) is None


def test_sums_are_compared_with_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong ones are not used, neither by themselves nor where they were asked for."""
    tall = TallModel(made(crossed))
    assert locate(tall, 1.0, sums="may").reference.is_exact

    def wrong(*args: Any) -> Expansion:
        found = expand_exactly(*args)
        assert isinstance(found.common, CommonFactor)
        return replace(found, common=replace(found.common, squares=1.001 * found.common.squares))

    monkeypatch.setattr(expander, "expand_exactly", wrong)
    assert not locate(tall, 1.0, sums="may").reference.is_exact
    with pytest.raises(NoFieldError, match="sums over the rows are not sufficient statistics"):
        locate(tall, 1.0, sums="must")


def test_no_row_is_read_and_draws_are_the_same_in_processes() -> None:
    with made(crossed):
        step = pmb.MinibatchMH()
        draws = [
            pm.sample(
                30, tune=20, chains=2, cores=cores, step=step, random_seed=3, progressbar=False,
                compute_convergence_checks=False,
            )
            for cores in (1, 2)
        ]  # fmt: skip
    assert "sums over the rows are sufficient statistics" in step.choice
    assert "batches" not in str(step)
    costs = pmb.compare({"one": draws[0], "other": draws[1]}, baseline="one")
    assert np.isinf(costs["ess_per_million_rows"]).all()
    stats = draws[0].sample_stats
    assert not stats["n_likelihood"].any()
    assert not stats["rows_per_sweep"].any()
    assert stats["exact"].all()
    np.testing.assert_array_equal(draws[0].posterior["z"], draws[1].posterior["z"])


def test_an_exact_test_moves_effects_where_sums_say_everything() -> None:
    with made(scale_unknown):
        assert isinstance(pmb.MinibatchMH(acceptance="exact").latent, ExactSampler)
        assert not isinstance(pmb.MinibatchMH(acceptance="penalty").latent, ExactSampler)


def simplex() -> None:
    """Monotonic effects: eight hyperparameters, and a level that rows read with them."""
    steps = pm.Dirichlet("steps", np.ones(7))
    share = pt.concatenate([pt.zeros(1), pt.cumsum(steps)])[OTHER % 7]
    mean = effects() + pm.Normal("size", 0, 2) * share
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y + 0.8 * (OTHER / 6) ** 2)


def simplex_and_a_share() -> None:
    """Rows have a standard deviation that is computed, in a small unit."""
    steps = pm.Dirichlet("steps", np.ones(7))
    share = pt.concatenate([pt.zeros(1), pt.cumsum(steps)])[OTHER % 7]
    mean = pm.Normal("mu", 0, 3) + (pm.HalfNormal("tau") * pm.Normal("z", shape=G))[GROUP]
    s = 1e-6 * pm.HalfNormal("whole") * pt.sqrt(pm.Beta("share", 2, 2))
    pm.Normal("y", 1e-6 * (mean + pm.Normal("size", 0, 2) * share), s, observed=1e-6 * Y)


@pytest.mark.parametrize("build", [simplex, simplex_and_a_share])
def test_slopes_of_sums_are_those_of_all_rows(build: Callable[[], None]) -> None:
    with made(build):
        step = pmb.MinibatchMH()
    sampler = step.latent
    assert isinstance(sampler, ExactSampler)
    rows = RowFunctions(structure_with_effects(step.tall))
    rng, center = np.random.default_rng(3), sampler.reference.surrogate.center
    for sd in (0.1, 1.0):
        phi = sampler.reference.surrogate.phi(center + sd * rng.normal(size=center.size))
        expected = rows.slope(phi, *step.tall.data)
        error = np.abs(sampler.decisions.slope(phi) - expected)
        assert np.all(error < 1e-3 * np.abs(expected) + 1e-6 * np.abs(expected).max())


def test_many_hyperparameters_move_along_trajectories_that_read_no_row() -> None:
    with made(simplex):
        step = pmb.MinibatchMH()
        idata = pm.sample(
            400, tune=300, chains=1, step=step, random_seed=3, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert "trajectory" in {planned.move.name for planned in step.latent.plan}
    assert not idata.sample_stats["n_gradient"].any()
    assert idata.sample_stats["witness_error"].max() < 1e-3
    assert az.ess(idata.posterior, var_names=["steps"])["steps"].min() > 80
