"""Climbs of a marginal whose evaluations are dear, its curvature, and searches that go on."""

import math
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import sparse

from pymc_minibatch.latent import expansion, modes
from pymc_minibatch.latent import search as search_module
from pymc_minibatch.latent.climb import Climb
from pymc_minibatch.latent.laplace import LaplaceSearch
from pymc_minibatch.latent.locate import locate, without
from pymc_minibatch.latent.marginal_curvature import curvature_of_marginal
from pymc_minibatch.latent.row_sizes import sizes_of_rows
from pymc_minibatch.tall import TallModel

PRECISION = np.array([[400.0, 30.0, 0.0], [30.0, 9.0, -1.0], [0.0, -1.0, 1.0]])


class Parabola:
    """A density with a known mode, bent a little, that counts its evaluations."""

    def __init__(self, mode: np.ndarray, bent: float = 0.0) -> None:
        self.mode, self.bent, self.calls = mode, bent, 0

    def log_marginal_in(self, x: np.ndarray) -> float:
        self.calls += 1
        away = x - self.mode
        return 1e5 - 0.5 * float(away @ PRECISION @ away) - self.bent * float(np.sum(away**4))


def test_a_second_climb_needs_one_slope() -> None:
    climb, mode = Climb(), np.array([0.3, -0.2, 0.5])
    first = Parabola(mode, bent=0.1)
    found = climb(first.log_marginal_in, np.zeros(3), 1.0, is_last=True)
    sd = np.sqrt(np.diagonal(np.linalg.inv(PRECISION)))
    assert np.all(np.abs(found - mode) < 0.05 * sd)
    assert first.calls < 80
    second = Parabola(mode + 0.02 * sd, bent=0.1)
    again = climb(second.log_marginal_in, found, 1.0)
    assert np.all(np.abs(again - second.mode) < 0.05 * sd)
    assert second.calls == 4


def test_a_climb_stays_in_its_box() -> None:
    """On a face of it the others go to where they are most probable there."""
    density = Parabola(np.array([0.0, 5.0, 0.0]))
    found = Climb()(density.log_marginal_in, np.zeros(3), 1.0, is_last=True)
    others = [0, 2]
    pull = -PRECISION[np.ix_(others, [1])][:, 0] * (1.0 - 5.0)
    expected = np.clip(np.linalg.solve(PRECISION[np.ix_(others, others)], pull), -1.0, 1.0)
    assert found[1] == 1.0
    assert found[others] == pytest.approx(expected, abs=0.02)


def test_no_step_is_taken_towards_a_pole() -> None:
    """Before the field has no density its determinant vanishes, and the marginal has no bound."""

    def log_density(x: np.ndarray) -> float:
        return -0.5 * math.log(x[0] + 0.3) if x[0] > -0.3 else -math.inf

    assert Climb()(log_density, np.zeros(1), 1.0) == pytest.approx(0.0)


@pytest.mark.parametrize("widths", [None, np.array([0.05, 0.4, 1.0])])
def test_curvature_of_a_parabola(widths: np.ndarray | None) -> None:
    density = Parabola(np.array([0.3, -0.2, 0.5]))
    curvature = curvature_of_marginal(density, density.mode, widths)  # type: ignore[arg-type]
    np.testing.assert_allclose(curvature, PRECISION, rtol=1e-6, atol=1e-6)


def test_a_search_without_few_rows_goes_on_from_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where a search from the start does."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 40, 2000)
    eta = rng.normal(0, 0.7, 40)[group]
    with pm.Model() as model:
        effects = pm.Normal("effects", pm.Normal("mean"), pm.HalfNormal("sd"), shape=40)
        pm.Bernoulli(
            "y", logit_p=effects[group], observed=rng.random(2000) < 1 / (1 + np.exp(-eta))
        )
    tall, left_out = TallModel(model), np.arange(10)
    located = locate(tall, 1.0)
    afresh = search_module.search(
        tall,
        located.reference.surrogate.field,
        located.rows,
        located.factors,
        left_out=left_out,
    )

    def refuse(*args: object) -> None:
        raise AssertionError("the search started over")

    monkeypatch.setattr(LaplaceSearch, "from_point", refuse)
    found = without(tall, located, left_out).reference
    sd = np.sqrt(np.diagonal(afresh.hyper_cholesky @ afresh.hyper_cholesky.T))
    assert np.all(np.abs(found.hyper - afresh.hyper) < 0.25 * sd)
    given = afresh.surrogate.conditional(afresh.hyper)
    mean = found.surrogate.conditional(found.hyper).point
    dense, groups = given.frame.whiten(mean)
    assert np.abs(np.concatenate([dense, groups.ravel()])).max() < 0.25


def test_remainders_beside_several_factors() -> None:
    rng = np.random.default_rng(8)
    group, item = rng.integers(0, 30, 1000), rng.integers(0, 20, 1000)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=30)
        other = pm.Normal("other", 0, pm.HalfNormal("sd_other"), shape=20)
        pm.Bernoulli("y", logit_p=effect[group] + other[item], observed=rng.integers(0, 2, 1000))
    tall = TallModel(model)
    located = locate(tall, 1.0)
    surrogate, rows = located.reference.surrogate, located.rows
    assert len(surrogate.cubics) == 2
    given = surrogate.conditional(located.reference.hyper)
    predictors = [surrogate.read(given.frame.color(given.layout.noise(rng))) for _ in range(2)]
    seen = [[surrogate.seen_by_rows(p, c) for p in predictors] for c in surrogate.cubics]
    phis, at = np.array([p.phi for p in predictors]), surrogate.expansion.at
    coordinates = np.array([[reading[at.size :] for reading in pair] for pair in seen])
    found = rows.remainders_by_factors(phis, coordinates, at, tall.data)
    for own, pair in zip(found, seen, strict=True):
        expected = rows.remainders(*pair, at, tall.data)
        np.testing.assert_allclose(own, expected, rtol=1e-12, atol=1e-14)
    [alone] = rows.remainders_by_factors(phis, 0 * coordinates[:1], at, tall.data)
    np.testing.assert_allclose(alone, rows.remainders(*phis, at, tall.data), rtol=1e-12)
    assert rows.remainders_by_factors(phis, coordinates[:0], at, tall.data).shape[0] == 0
    assert sizes_of_rows(located.reference, rows, []) == []


def test_a_mode_of_few_rows_is_searched_from_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows have their modes far from those of all, and most starts end in the same one."""
    rng = np.random.default_rng(39)
    group, x = rng.integers(0, 20, 4000), rng.normal(size=4000)
    eta = rng.normal(0, 0.7, 20)[group] + 0.5 * x
    with pm.Model() as model:
        effect = pm.HalfNormal("sd") * pm.Normal("z", shape=20)
        slope = pm.Normal("slope", 0.3, 1) ** 2
        pm.Bernoulli(
            "y",
            logit_p=effect[group] + slope * x,
            observed=rng.random(4000) < 1 / (1 + np.exp(-eta)),
        )
    tall, searched = TallModel(model), []
    located = locate(tall, 1.0)
    search = search_module.search

    def counted(*args: Any, **kwargs: Any) -> Any:
        searched.append(kwargs["start"])
        return search(*args, **kwargs)

    monkeypatch.setattr(modes, "FEW_ROWS", 100)
    monkeypatch.setattr(modes, "search", counted)
    found = modes.find_modes(tall, located)
    position = tall.layout.slices["slope"].start
    signs = [np.sign(mode.surrogate.center[position]) for mode in found]
    assert sorted(signs) == [-1.0, 1.0]
    assert len(searched) <= 4


def test_effects_that_all_classes_read_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each threshold of ordered classes has a predictor, and all of them read the same levels."""
    rng = np.random.default_rng(10)
    group, item, x = rng.integers(0, 30, 500), rng.integers(0, 20, 500), rng.normal(size=500)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=30)
        other = pm.Normal("other", 0, pm.HalfNormal("sd_other"), shape=20)
        eta = effect[group] + x * other[item] + 0.5 * other[item] + pm.Normal("slope") * x
        cuts = pm.Normal("cuts", np.arange(3.0) - 1, 0.1, shape=3)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=rng.integers(0, 4, 500))
    tall = TallModel(model)
    located = locate(tall, 1.0)
    surrogate, rows = located.reference.surrogate, located.rows
    assert rows.n_predictors > 1
    phi = surrogate.expansion.at + 0.1 * rng.normal(size=surrogate.expansion.at.size)
    found = expansion.expand(rows, tall.data, phi, surrogate.field.rows, 1.0)
    joined, seen = expansion.joined_entries, []

    def as_they_are(gathered: Any) -> Any:
        seen.append((gathered.entries.shape[1], joined(gathered).entries.shape[1]))
        return gathered

    monkeypatch.setattr(expansion, "joined_entries", as_they_are)
    expected = expansion.expand(rows, tall.data, phi, surrogate.field.rows, 1.0)
    assert all(after < before for before, after in seen)
    np.testing.assert_allclose(found.slope, expected.slope, rtol=1e-9, atol=1e-9)
    for name in ("dense", "cross", "blocks"):
        own, wanted = (getattr(each.curvature, name) for each in (found, expected))
        if sparse.issparse(own):
            own, wanted = own.toarray(), wanted.toarray()
        np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-9)
