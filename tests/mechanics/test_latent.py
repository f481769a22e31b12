"""Latent fields: arrow matrices, sums over rows, coordinates and blocks."""

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import sparse
from scipy.linalg import block_diag

import pymc_minibatch as pmb
from pymc_minibatch.acceptance import Penalty
from pymc_minibatch.acceptance.growing import new_first_batch, upper_smoothness
from pymc_minibatch.kernels.by_group import GroupTable
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix, compact, congruent
from pymc_minibatch.latent.batched import solve_square
from pymc_minibatch.latent.cholesky import DenseCholesky, SparseCholesky, factor_sparse
from pymc_minibatch.latent.choose import make_latent_sampler, most_share
from pymc_minibatch.latent.coordinates import Coordinates
from pymc_minibatch.latent.deciding import EVERY, FIRST_BATCH, DecisionState, DecisionTests
from pymc_minibatch.latent.expander import RowBudget
from pymc_minibatch.latent.expansion import expand, semidefinite
from pymc_minibatch.latent.factors import find_factors
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.grouping import GroupEffects
from pymc_minibatch.latent.hyper_coordinates import HyperCoordinates
from pymc_minibatch.latent.laplace import KnownModeError, LaplaceSearch
from pymc_minibatch.latent.layout import ArrowheadLayout
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.marginal_curvature import curvature_of_marginal
from pymc_minibatch.latent.minibatch import SIGMAS, MinibatchSampler
from pymc_minibatch.latent.modes import APART, _is_same, find_modes
from pymc_minibatch.latent.moves import scan
from pymc_minibatch.latent.moves.border import BLOCKS_ACCEPTED, MOST_BLOCKS, RandomBlocks
from pymc_minibatch.latent.moves.collapsed import followed
from pymc_minibatch.latent.moves.costs import COSTLY, FACTORING_SHARE, factoring_share
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.moves.state import ChainState
from pymc_minibatch.latent.moves.tuners import HyperScale
from pymc_minibatch.latent.no_field import NoFieldError
from pymc_minibatch.latent.projector import ProjectedCurvature
from pymc_minibatch.latent.recognition import find_field
from pymc_minibatch.latent.search import FewRows, search
from pymc_minibatch.latent.skew_transform import SkewTransform, find_tails
from pymc_minibatch.latent.smoothing import rows_have_kinks
from pymc_minibatch.latent.surrogate import PredictorState, Surrogate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

N, G = 4000, 30


def whole(arrowhead: ArrowheadMatrix) -> np.ndarray:
    dense, cross = (
        m.toarray() if sparse.issparse(m) else m for m in (arrowhead.dense, arrowhead.cross)
    )
    blocks = block_diag(*arrowhead.blocks)[-len(cross) :] if len(cross) else np.zeros((0, 0))
    return np.block([[dense, cross.T], [cross, blocks]])


@pytest.mark.parametrize(
    ("p", "n_groups", "width", "share"),
    [(3, 5, 2, 1.0), (4, 7, 1, 1.0), (3, 0, 1, 1.0), (0, 6, 3, 1.0), (400, 200, 2, 0.02)],
)
def test_arrow_is_the_matrix_it_stands_for(p: int, n_groups: int, width: int, share: float) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.normal(size=(n_groups, width, width))
    cross = rng.normal(size=(n_groups * width, p)) * (rng.random((n_groups * width, p)) < share)
    arrowhead = ArrowheadMatrix(
        compact(20 * np.eye(p)),
        compact(cross),
        blocks @ blocks.transpose(0, 2, 1) + 3 * np.eye(width),
    )
    assert sparse.issparse(arrowhead.cross) == (share < 1.0)
    matrix, factor = whole(arrowhead), arrowhead.factor()
    dense, groups = rng.normal(size=p), rng.normal(size=(n_groups, width))
    vector = np.concatenate([dense, groups.ravel()])

    def joined(parts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts[0], parts[1].ravel()])

    np.testing.assert_allclose(
        joined(arrowhead.product(dense, groups)), matrix @ vector, atol=1e-12
    )
    np.testing.assert_allclose(joined(factor.solve(dense, groups)), np.linalg.solve(matrix, vector))
    np.testing.assert_allclose(joined(factor.color(*factor.whiten(dense, groups))), vector)
    whitened = joined(factor.whiten(dense, groups))
    assert whitened @ whitened == pytest.approx(vector @ matrix @ vector)
    assert factor.log_determinant() == pytest.approx(0.5 * np.linalg.slogdet(matrix)[1])


def test_an_arrow_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="dense part"):
        ArrowheadMatrix(np.eye(2), np.full((3, 2), 2.0), np.ones((3, 1, 1))).factor()
    with pytest.raises(np.linalg.LinAlgError, match="block of a group"):
        ArrowheadMatrix(np.eye(2), np.zeros((3, 2)), -np.ones((3, 1, 1))).factor()


def test_square_systems_of_groups() -> None:
    rng = np.random.default_rng(2)
    matrices, right = rng.normal(size=(9, 3, 3)), rng.normal(size=(9, 3))
    matrices[0, 0, 0] = 0.0  # asks for another pivot
    solved, log_determinant = solve_square(matrices, right)
    np.testing.assert_allclose(solved, np.linalg.solve(matrices, right[:, :, None])[:, :, 0])
    assert log_determinant == pytest.approx(np.linalg.slogdet(matrices)[1].sum())
    matrices[4] = 0.0
    assert solve_square(matrices, right)[1] == -np.inf


def test_a_sparse_factor_is_the_dense_one() -> None:
    """Neighbours on a line, in any order, and an unknown that meets all."""
    rng = np.random.default_rng(3)
    size = 120
    matrix = 2.5 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)
    matrix[0, 1:] = matrix[1:, 0] = 0.1 * rng.normal(size=size - 1)
    shuffled = rng.permutation(size)
    matrix = matrix[np.ix_(shuffled, shuffled)]
    factor = factor_sparse(sparse.csr_array(matrix))
    assert isinstance(factor, SparseCholesky)
    assert factor.entries.size < 3 * size
    x, y = rng.normal(size=(2, size))
    solved = factor.solve_transposed(factor.solve(x))
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, x), rtol=1e-9, atol=1e-12)
    assert factor.log_determinant() == pytest.approx(np.linalg.slogdet(matrix)[1] / 2, rel=1e-12)
    np.testing.assert_allclose(factor.solve_transposed(factor.multiply_transposed(y)), y)
    both = factor.multiply_transposed(x) @ factor.multiply_transposed(y)
    assert both == pytest.approx(x @ matrix @ y, rel=1e-9)
    matrix[3, 3] = -1.0
    with pytest.raises(np.linalg.LinAlgError, match="dense part"):
        factor_sparse(sparse.csr_array(matrix))
    full = sparse.csr_array(np.eye(size) + 0.001)
    assert isinstance(factor_sparse(full), DenseCholesky)


@pytest.mark.parametrize("kind", ["scaled", "shuffled", "shared", "general"])
def test_sparse_congruences(kind: str) -> None:
    rng = np.random.default_rng(4)
    matrix = sparse.random_array((12, 12), density=0.3, rng=rng).toarray()
    matrix += matrix.T
    scale = rng.normal(size=12)
    a = {
        "scaled": np.diag(scale),
        "shuffled": np.diag(scale)[:, rng.permutation(12)],
        "shared": np.repeat(np.diag(scale[:6]), 2, axis=0),
        "general": np.tril(np.triu(rng.normal(size=(12, 12)), -1)),
    }[kind]
    found = congruent(sparse.csr_array(matrix), sparse.csr_array(a))
    np.testing.assert_allclose(found.toarray(), a.T @ matrix @ a, atol=1e-12)
    np.testing.assert_allclose(congruent(matrix, a), a.T @ matrix @ a, atol=1e-12)


def slopes_model() -> pm.Model:
    """Correlated intercepts and slopes, other coefficients and an unknown scale."""
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, G, N), rng.normal(size=(N, 3))
    y = x @ [0.3, -0.2, 0.1] + 0.5 * rng.normal(size=G)[group] + rng.normal(size=N)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2)
        )
        mu, z = pm.Normal("mu", shape=2), pm.Normal("z", shape=(G, 2))
        effects = mu + pm.math.dot(z, chol.T)
        beta, sigma = pm.Normal("beta", shape=3), pm.HalfNormal("sigma")
        data = pm.Data("x", x)
        eta = effects[group, 0] + effects[group, 1] * data[:, 0] + data @ beta
        pm.Normal("y", eta, sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def tall() -> TallModel:
    return TallModel(slopes_model())


@pytest.fixture(scope="module")
def field(tall: TallModel) -> LatentField:
    structure = tall.structure
    assert structure is not None
    factors = find_factors(RowFunctions(structure), tall.data)
    return find_field(tall, structure, [factor.entries for factor in factors])


def test_hyperparameters_are_what_bends_the_rest(tall: TallModel, field: LatentField) -> None:
    names = {tall.layout.name_of(int(position)) for position in field.hyper}
    assert names == {"chol_cholesky-cov-packed__"}
    assert field.latent.groups.shape == (G, 2)
    assert sorted(tall.layout.name_of(int(i)) for i in field.latent.dense) == sorted(
        ["mu"] * 2 + ["beta"] * 3 + ["sigma_log__"]
    )


def test_hyperparameters_that_bend_the_rest_far_from_the_start_only() -> None:
    """The slab of a regularized horseshoe bounds no scale that is as small as at the start."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(200, 6)), rng.integers(0, 2, 200)
    with pm.Model() as model:
        tau = pm.HalfStudentT("tau", 2, sigma=1e-4)
        local, slab = pm.HalfStudentT("local", 5, shape=6), pm.InverseGamma("slab", 1, 1)
        bounded = local * pm.math.sqrt(slab / (slab + tau**2 * local**2))
        beta = pm.Normal("z", shape=6) * tau * bounded
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + X @ beta, observed=y)
    tall = TallModel(model)
    structure = tall.structure
    assert structure is not None
    field = find_field(tall, structure, [])
    names = {tall.layout.name_of(int(position)) for position in field.hyper}
    assert names == {"tau_log__", "local_log__", "slab_log__"}


def test_sums_over_rows_are_the_derivatives(tall: TallModel, field: LatentField) -> None:
    structure = tall.structure
    assert structure is not None
    phi = np.random.default_rng(3).normal(0, 0.3, field.rows.dense.size + field.rows.groups.size)
    found = expand(RowFunctions(structure), tall.data, phi, field.rows, 2.0)
    symbolic = pytensor.tensor.dvector("phi")
    inputs = structure.predictor_graphs(symbolic)
    [row] = pytensor.graph.replace.graph_replace(
        [structure.row], dict(zip(structure.predictors, inputs, strict=True)), strict=False
    )
    total = row.sum() / 2.0
    gradient = pytensor.gradient.grad(total, symbolic)
    hessian = pytensor.gradient.hessian(total, symbolic)
    evaluate = pytensor.function(
        [symbolic, *structure.batch], [total, gradient, hessian], on_unused_input="ignore"
    )
    value, slope, curvature_product = evaluate(phi, *tall.data)
    order = np.concatenate([field.rows.dense, field.rows.groups.ravel()])
    assert found.value == pytest.approx(float(value))
    np.testing.assert_allclose(found.slope, slope, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        whole(found.curvature), -curvature_product[np.ix_(order, order)], atol=1e-6
    )


def test_remainders_are_of_third_order(tall: TallModel) -> None:
    structure = tall.structure
    assert structure is not None
    rng = np.random.default_rng(4)
    at = rng.normal(0, 0.3, 2 * G + 4)
    remainders = RowFunctions(structure).remainders
    direction = rng.normal(size=at.size)
    predictors = at + 1e-3 * direction, at + 1e-2 * direction
    small, large = np.abs(remainders(*predictors, at, tall.data)).max(axis=1)
    assert large / small == pytest.approx(1000.0, rel=0.1)


def intercepts_model() -> pm.Model:
    """Groups with an intercept each, dispersed counts."""
    rng = np.random.default_rng(30)
    group = rng.integers(0, G, N)
    y = rng.poisson(np.exp(0.5 + 0.4 * rng.normal(size=G)[group]))
    with pm.Model() as model:
        sd, z = pm.HalfNormal("sd"), pm.Normal("z", shape=G)
        eta = pm.Normal("mu") + sd * z[group]
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.Exponential("alpha"), observed=y)
    return model


@pytest.fixture(scope="module")
def intercepts() -> MinibatchSampler:
    return make_latent_sampler(TallModel(intercepts_model()), Penalty(), 1.0)


def test_higher_orders_by_groups(intercepts: MinibatchSampler) -> None:
    """What is left is of fifth order, where rows read an effect and a dispersion that stays."""
    tall, surrogate = intercepts.tall, intercepts.reference.surrogate
    [cubic], at = surrogate.cubics, surrogate.expansion.at
    assert cubic.tensor.shape == (G, 2, 2, 2)  # an effect, and alpha
    rng = np.random.default_rng(31)
    direction = rng.normal(size=at.size)
    structure = tall.structure
    assert structure is not None
    varied, direction[cubic.scalars] = direction[cubic.scalars].copy(), 0.0

    def remainder(seen: np.ndarray) -> np.ndarray:
        return intercepts.rows.remainders(seen, seen, at, tall.data)[0]

    def read(h: float) -> PredictorState:
        return surrogate.predictor(at + h * direction)

    def left(h: float) -> float:
        seen = surrogate.seen_by_rows(read(h), cubic)
        return float(np.abs(remainder(seen)).max())

    assert left(1e-1) / left(2e-2) == pytest.approx(5.0**5, rel=0.2)
    direction[cubic.scalars] = varied
    # The shares of all rows are what the surrogate adds.
    predictor = read(0.1)
    seen = surrogate.seen_by_rows(predictor, cubic)
    shares = remainder(predictor.phi) - remainder(seen)
    u = cubic.coordinates(predictor.phi - at, predictor.curved)
    assert cubic.values(u).sum() == pytest.approx(float(shares.sum()), rel=1e-9)


def categories_model() -> pm.Model:
    """Ordered categories: a row reads the effect of its group in two differences."""
    rng = np.random.default_rng(32)
    group = rng.integers(0, G, N)
    latent = rng.normal(size=G)[group] + rng.logistic(size=N)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=G)
        cuts = np.array([-1.5, 0.0, 1.5])
        pm.OrderedLogistic("y", effect[group], cuts, observed=np.digitize(latent, cuts))
    return model


def location_and_scale_model() -> pm.Model:
    """Each group has a mean and a scale."""
    rng = np.random.default_rng(33)
    group = rng.integers(0, G, N)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=G)
        log_scale = pm.Normal("log_scale", 0, pm.HalfNormal("sd_scale"), shape=G)
        y = rng.normal(0.5 * rng.normal(size=G)[group], np.exp(0.3 * rng.normal(size=G)[group]))
        pm.StudentT("y", 4, effect[group], sigma=pm.math.exp(log_scale[group]), observed=y)
    return model


@pytest.mark.parametrize("make", [categories_model, location_and_scale_model])
def test_fourth_order_where_rows_read_several_numbers(make: Callable[[], pm.Model]) -> None:
    """What is left when effects change is of fifth order."""
    sampler = make_latent_sampler(TallModel(make()), Penalty(), 1.0)
    surrogate = sampler.reference.surrogate
    cubic, at = surrogate.cubics[0], surrogate.expansion.at
    direction = np.zeros(at.size)
    direction[cubic.entries] = np.random.default_rng(34).normal(size=cubic.entries.shape)

    def left(h: float) -> float:
        seen = surrogate.seen_by_rows(surrogate.predictor(at + h * direction), cubic)
        return float(np.abs(sampler.rows.remainders(seen, seen, at, sampler.tall.data)[0]).max())

    assert left(1e-1) / left(2e-2) == pytest.approx(5.0**5, rel=0.2)


def decision_state(test: int) -> DecisionState:
    return DecisionState(new_first_batch(10 * FIRST_BATCH), np.array([test]), np.zeros(3))


def learn(decide: DecisionTests, state: DecisionState, variance: float, uneven: float) -> None:
    """Let a decision be seen whose rows have this variance, and are as uneven as is said."""
    n, s2 = max(round(1000 * variance), 1), 1e-3
    limits = decide.chosen(state)[0]
    error = upper_smoothness(s2, limits) * (n * s2) ** 1.5 / n**2 * uneven
    decide.tune(state, False, n, s2, error)


def test_noise_grows_where_rows_cost_more_than_the_rest() -> None:
    """Until so many are needed that all are read, whatever the noise."""
    tests = [Penalty(sigma=sigma) for sigma in SIGMAS]
    decide = DecisionTests(tests, 1.0, 10**6, overhead=300.0)
    chosen = []
    for variance in (0.01, 0.1, 0.3, 3.0, 1e3, 1e9):
        state = decision_state(test=2)
        for _ in range(2 * EVERY):
            learn(decide, state, variance, uneven=3.0)
        np.testing.assert_allclose(state.moments[1:], np.log([variance, 3.0]))
        chosen.append(int(state.test[0]))
    assert chosen[:-1] == sorted(chosen[:-1])
    assert (chosen[0], chosen[-2], chosen[-1]) == (0, len(SIGMAS) - 1, 0)
    assert len(set(chosen)) >= 3


def test_first_batches_follow_the_noise() -> None:
    decide = DecisionTests([Penalty(sigma=s) for s in (0.3, 1.0)], 1.0, 10**6, overhead=300.0)
    state = decision_state(test=0)
    for _ in range(EVERY - 1):
        learn(decide, state, 1000.0, uneven=1.0)
    before = state.batch.size[0]
    learn(decide, state, 1000.0, uneven=1.0)
    few, many = decide.wanted(1000 * np.exp(1.0), 1.0)[::-1]
    assert state.test[0] == 1
    learn(decide, state, 1000.0, uneven=1.0)
    assert state.batch.size[0] / before == pytest.approx(few / many, rel=0.1)
    state.batch.size[0] = 10**7  # never more than there are
    assert decide.chosen(state)[0].batch_size[0] == 10**6


def test_each_kind_of_moves_has_its_own_first_batch() -> None:
    """With a given size they keep it."""
    model = crossed_model()
    sizes = []
    for batch_size in (None, 40):
        sampler = make_latent_sampler(TallModel(model), Penalty(), 1.0, batch_size=batch_size)
        rng, state = np.random.default_rng(38), sampler.initial_state()
        point = sampler.near_mode(rng, sampler.tall.start)
        sampler.draw(rng, point, 60, True, state)
        sizes.append({name: int(test.batch.size[0]) for name, test in state.tests.items()})
    assert sizes[0]["noncentered"] != sizes[0]["border"]
    assert sizes[1] == {"noncentered": 40, "border": 40, "coefficients": 40}


def test_slope_of_the_higher_orders(intercepts: MinibatchSampler) -> None:
    surrogate = intercepts.reference.surrogate
    cubic = surrogate.cubics[0]
    rng = np.random.default_rng(32)
    delta, step = rng.normal(0, 0.1, (2, surrogate.expansion.at.size))

    def value(delta: np.ndarray) -> float:
        return cubic.values(cubic.coordinates(delta, surrogate.curvature_product(delta))).sum()

    slope = surrogate.slope_of_higher_orders(delta, surrogate.curvature_product(delta))
    difference = (value(delta + 1e-4 * step) - value(delta - 1e-4 * step)) / 2e-4
    assert slope @ step == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize("name", ["intercepts", "slopes", "walk", "areas"])
def test_hyperparameters_move_with_effects_held(name: str, intercepts: MinibatchSampler) -> None:
    """Rows read the same, and the Jacobian is that of differences."""
    makers = {"slopes": slopes_model, "walk": walk_model, "areas": areas_model}
    field = sampler_of(makers[name]()).field if name in makers else intercepts.field
    tall = field.derivatives.tall
    rng = np.random.default_rng(33)
    point = tall.start + rng.normal(0, 0.3, tall.start.size)
    hyper = point[field.hyper] + rng.normal(0, 0.3, field.hyper.size)
    centered = field.with_effects_held(point, hyper)
    assert centered is not None
    moved = centered.point
    np.testing.assert_array_equal(moved[field.hyper], hyper)
    phi = field.derivatives.phi
    np.testing.assert_allclose(phi(moved), phi(point), rtol=1e-8, atol=1e-8)
    latent = np.concatenate([field.latent.dense, field.latent.groups.ravel()])
    jacobian = np.empty((latent.size, latent.size))
    for j, position in enumerate(latent):
        shifted = point.copy()
        shifted[position] += 1e-3
        there = field.with_effects_held(shifted, hyper)
        assert there is not None
        jacobian[:, j] = (there.point - moved)[latent] / 1e-3
    assert centered.log_jacobian() == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-6)


def accepted_share(places: np.ndarray, log_density: np.ndarray) -> float:
    """How often independent proposals of the best Gaussian are accepted, on an even grid."""
    p = np.exp(log_density - log_density.max())
    p /= p.sum()
    mean = p @ places
    q = np.exp(-0.5 * (places - mean) ** 2 / (p @ (places - mean) ** 2))
    both = np.outer(p, q / q.sum())
    return float(np.minimum(both, both.T).sum())


def as_they_are(size: int) -> HyperCoordinates:
    """Coordinates that are the hyperparameters themselves."""
    none = np.zeros(0, dtype=np.int64)
    return HyperCoordinates(size, none, none)


def test_tails_that_fall_exponentially_become_more_gaussian() -> None:
    """One is that of the log of a scale that may be zero, one Gaussian."""
    mode = np.array([0.3, -1.0])

    def log_density(hyper: np.ndarray) -> float:
        u = (hyper - mode) * [1.0, 2.0]
        return float(u[0] - 0.5 * np.exp(2 * u[0]) - 0.5 * u[1] ** 2)

    tails = find_tails(log_density, mode, np.diag([math.sqrt(0.5), 0.5]), as_they_are(2))
    assert tails.left[0] > 0.5
    assert max(tails.left[1], *tails.right) < 0.01
    places = np.linspace(-20.0, 3.0, 1500)
    points = np.stack([places, np.full(places.size, mode[1])], axis=1)
    in_h = accepted_share(places, np.array([log_density(h) for h in points]))
    there = [log_density(tails.to_hyper(w)) + tails.log_slope(w) for w in points]
    assert in_h < 0.8
    assert accepted_share(places, np.array(there)) > 0.9


def test_coordinates_of_hyperparameters_and_their_jacobian() -> None:
    rng = np.random.default_rng(37)
    bends = rng.exponential(size=(2, 3))
    tails = SkewTransform(as_they_are(3), rng.normal(size=3), *bends)
    for w in tails.center + 3.0 * rng.normal(size=(20, 3)):
        np.testing.assert_allclose(tails.from_hyper(tails.to_hyper(w)), w, rtol=1e-12)
        slopes = (tails.to_hyper(w + 1e-6) - tails.to_hyper(w - 1e-6)) / 2e-6
        assert tails.log_slope(w) == pytest.approx(np.log(slopes).sum(), abs=1e-5)
    none = SkewTransform.none(as_they_are(3), tails.center)
    np.testing.assert_allclose(none.to_hyper(tails.center + 1.5), tails.center + 1.5)


def test_a_tail_that_does_not_end_is_measured_up_to_a_limit() -> None:
    about = np.zeros(1), np.eye(1), as_they_are(1)
    tails = find_tails(lambda h: float(-np.maximum(h[0], 0.0)), *about)
    assert np.isfinite(tails.left).all()
    assert tails.right[0] == pytest.approx(2 * (3.0 - math.sqrt(6.0)) / 6.0, rel=0.05)
    improper = find_tails(lambda h: -np.inf if h[0] else 0.0, *about)
    elsewhere = find_tails(lambda h: -0.5 * float(h[0] + 20) ** 2, *about)
    for found in (improper, elsewhere):
        np.testing.assert_array_equal([*found.left, *found.right], 0.0)


def test_levels_follow_a_hyperparameter() -> None:
    """The Jacobian of the move is that of differences; here two factors share a scale."""
    sampler = sampler_of(shared_scale_model())
    surrogate, field = sampler.reference.surrogate, sampler.field
    rng = np.random.default_rng(34)
    point = field.derivatives.tall.start + rng.normal(0, 0.3, field.derivatives.tall.start.size)
    hyper = point[field.hyper] + 0.2
    latent = np.concatenate([field.latent.dense, field.latent.groups.ravel()])
    assert len(field.levels) == 2

    def followed_from(
        start: np.ndarray, hyper: np.ndarray, levels: GroupEffects
    ) -> tuple[np.ndarray, float]:
        state, log_jacobian = followed(ChainState(surrogate, start), hyper, levels)
        assert state is not None
        return state.point, log_jacobian

    for levels in field.levels:
        proposed, log_jacobian = followed_from(point, hyper, levels)
        jacobian = np.empty((latent.size, latent.size))
        for j, position in enumerate(latent):
            shifted = point.copy()
            shifted[position] += 1e-3
            jacobian[:, j] = (followed_from(shifted, hyper, levels)[0] - proposed)[latent] / 1e-3
        assert log_jacobian == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-6)
        back, log_back = followed_from(proposed, point[field.hyper], levels)
        np.testing.assert_allclose(back, point, rtol=1e-8, atol=1e-8)
        assert log_back == pytest.approx(-log_jacobian, abs=1e-8)


def test_hyperparameters_at_which_the_field_is_improper_are_left_alone() -> None:
    """Such as where a prior is not concave: no move rests on a factor that is not there."""
    sampler = sampler_of(shared_scale_model())
    moves, field, rng = sampler.moves, sampler.field, np.random.default_rng(36)
    assert isinstance(moves, scan.LatentMoves)
    point = sampler.start(rng, field.derivatives.tall.start).copy()
    given = sampler.reference.surrogate.conditional(point[field.hyper])
    improper = replace(given, blocks=-given.blocks)
    assert not improper.is_proper
    state = ChainState(sampler.reference.surrogate, point, improper)
    run = moves.run(sampler.settings(sampler.initial_state(), False), MoveCounts())
    for name in ("border", "levels of factor 0", "noncentered"):
        move = moves.by_name[name]
        for target in move.targets(rng, run.tuning.tuners[name]):
            assert scan.step(rng, move, state, target, run) is state
    assert followed(state, point[field.hyper] + 0.1, field.levels[0])[1] == -np.inf


def test_effects_whose_scales_are_known() -> None:
    """There is no hyperparameter; effects move about their exact conditional means."""
    rng = np.random.default_rng(37)
    group = np.repeat(np.arange(60), 20)
    y = rng.normal(size=60)[group] + rng.normal(size=group.size)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("effect", 0, 1, shape=60)[group], 1.0, observed=y)
    sampler = sampler_of(model)
    assert not sampler.field.hyper.size
    sums = np.bincount(group, y)
    np.testing.assert_allclose(sampler.reference.surrogate.center, sums / 21, rtol=1e-6)
    point, state = sums / 21, sampler.initial_state()
    draws = np.empty((400, 60))
    for draw in draws:
        sampler.draw(rng, point, 1, False, state)
        draw[:] = point
    z = (draws.mean(axis=0) - sums / 21) * np.sqrt(21)  # of some 200 effective draws
    assert np.abs(z).max() < 0.5
    assert draws.std() == pytest.approx(np.sqrt((sums / 21).var() + 1 / 21), rel=0.05)


def shared_scale_model() -> pm.Model:
    """Two crossed factors that are not centred, with one scale."""
    rng = np.random.default_rng(35)
    first, second = rng.integers(0, 12, 300), rng.integers(0, 7, 300)
    with pm.Model() as model:
        scale, mu = pm.HalfNormal("scale", 1), pm.Normal("mu", 0, 2)
        a, b = pm.Normal("a", shape=12), pm.Normal("b", shape=7)
        eta = mu + scale * (a[first] + b[second])
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 300))
    return model


def sampler_of(model: pm.Model) -> MinibatchSampler:
    return make_latent_sampler(TallModel(model), Penalty(), 1.0)


def walk_model() -> pm.Model:
    """A random walk by day, as sums of scaled steps."""
    rng = np.random.default_rng(34)
    day = rng.integers(0, 40, N)
    y = rng.poisson(np.exp(0.2 + np.cumsum(rng.normal(0, 0.1, 40))[day]))
    with pm.Model() as model:
        level = pm.math.cumsum(pm.HalfNormal("s", 0.2) * pm.Normal("z", shape=40))
        pm.Poisson("y", pm.math.exp(pm.Normal("a") + level[day]), observed=y)
    return model


def areas_model() -> pm.Model:
    """Areas with an effect like their neighbours' and one of their own."""
    rng = np.random.default_rng(36)
    area, ring = rng.integers(0, 40, N), np.arange(40)
    joined = np.zeros((40, 40))
    joined[ring, (ring + 1) % 40] = joined[(ring + 1) % 40, ring] = 1.0
    y = rng.poisson(np.exp(0.2 + 0.4 * np.sin(ring / 6.4)[area]))
    with pm.Model() as model:
        smooth = pm.HalfNormal("s") * pm.ICAR("neighbours", W=joined)
        own = pm.HalfNormal("t") * pm.Normal("own", shape=40)
        pm.Poisson("y", pm.math.exp(pm.Normal("a") + smooth[area] + own[area]), observed=y)
    return model


def test_a_walk_is_the_same_in_sparse_coordinates() -> None:
    """Its field given a scale, and the marginal of the scale, as in the model's own variables."""
    sampler = sampler_of(walk_model())
    surrogate, field = sampler.reference.surrogate, sampler.field
    coordinates = field.derivatives.coordinates
    assert coordinates.positions.size == 40
    assert isinstance(sampler.table, GroupTable)  # though days are not swept one by one
    plain = field.derivatives.within(Coordinates.none())
    points = [surrogate.center, surrogate.center + 0.5]
    own = LatentField(plain, field.hyper, field.latent, field.rows, [], points)
    center = coordinates.to_model(surrogate.center)
    np.testing.assert_allclose(coordinates.from_model(center), surrogate.center, atol=1e-12)
    other = Surrogate(sampler.tall, own, surrogate.expansion, center, surrogate.cubics)
    rng = np.random.default_rng(38)
    differences = []
    for shift in (0.0, 0.4):
        hyper = sampler.reference.hyper + shift
        inside, outside = surrogate.conditional(hyper), other.conditional(hyper)
        in_model = coordinates.to_model(inside.point)
        np.testing.assert_allclose(in_model, outside.point, rtol=1e-9, atol=1e-9)
        away = rng.normal(size=center.size)
        none = np.empty((0, 1))
        norms = [
            np.linalg.norm(given.factor.whiten(vector[field.latent.dense], none)[0])
            for given, vector in ((outside, away), (inside, coordinates.from_model(away)))
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-9)
        precision = np.abs(inside.precision.dense)
        assert np.count_nonzero(precision > 1e-9 * precision.max()) < 6 * 41
        differences.append(surrogate.log_marginal(hyper) - other.log_marginal(hyper))
    assert differences[0] == pytest.approx(differences[1], abs=1e-8)


def curve_model() -> pm.Model:
    """A smooth curve over 40 places, of scaled steps along directions that all places share."""
    rng = np.random.default_rng(37)
    place, at = rng.integers(0, 40, N), np.linspace(0, 1, 40)
    factor = np.linalg.cholesky(np.exp(-50 * (at[:, None] - at) ** 2) + 1e-3 * np.eye(40))
    y = rng.poisson(np.exp(0.3 * np.sin(6 * at)[place]))
    with pm.Model() as model:
        curve = pm.math.dot(factor, pm.HalfNormal("s") * pm.Normal("z", shape=40))
        pm.Poisson("y", pm.math.exp(pm.Normal("a") + curve[place]), observed=y)
    return model


def test_a_matrix_that_is_only_scaled_takes_one_derivative() -> None:
    field = sampler_of(curve_model()).field
    assert not field.derivatives.coordinates.positions.size
    assert field.map_jacobian.unscale is not None
    start = field.derivatives.tall.start
    point = start + np.random.default_rng(35).normal(0, 0.3, start.size)
    expected = np.zeros((field.rows.dense.size, field.latent.dense.size))
    for j, position in enumerate(field.latent.dense):
        seed = np.zeros(point.size)
        seed[position] = 1.0
        expected[:, j] = field.derivatives.push(point, seed)[field.rows.dense]
    found = field.projector_at(point).dense
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("seed", [5, 6])
def test_map_and_prior_precision(tall: TallModel, field: LatentField, seed: int) -> None:
    """A(h) and P(h) against the derivatives, one variable at a time."""
    rng = np.random.default_rng(seed)
    point = tall.start + rng.normal(0, 0.4, tall.start.size)
    rows = np.concatenate([field.rows.dense, field.rows.groups.ravel()])
    order = np.concatenate([field.latent.dense, field.latent.groups.ravel()])
    jacobian = np.zeros((rows.size, order.size))
    precision = np.zeros((order.size, order.size))
    for j, position in enumerate(order):
        seed_vector = np.zeros(point.size)
        seed_vector[position] = 1.0
        jacobian[:, j] = field.derivatives.push(point, seed_vector)[rows]
        precision[:, j] = -field.derivatives.prior_product(point, seed_vector)[order]
    np.testing.assert_allclose(whole(field.prior_precision_at(point)), precision, atol=1e-8)
    width = field.latent.groups.shape[1]
    curvature = ArrowheadMatrix(
        np.eye(field.rows.dense.size) * 2.0,
        rng.normal(size=(G * width, field.rows.dense.size)),
        np.tile(np.eye(width) * 3.0, (G, 1, 1)),
    )
    projector = field.projector_at(point)
    joined = ProjectedCurvature(curvature, projector.dense)
    pulled = ArrowheadMatrix(
        projector.project_dense(joined, curvature.blocks),
        projector.project_cross(joined, curvature.blocks),
        projector.project_blocks(curvature.blocks),
    )
    np.testing.assert_allclose(whole(pulled), jacobian.T @ whole(curvature) @ jacobian, atol=1e-8)


def test_crossed_factors_of_many_levels() -> None:
    """What levels of two factors have in common is kept sparse, and is that of the rows."""
    rng = np.random.default_rng(8)
    sizes = 900, 400
    first, second = (rng.integers(0, n, N) for n in sizes)
    with pm.Model() as model:
        a, b = (pm.HalfNormal(f"sd{k}") * pm.Normal(f"z{k}", shape=n) for k, n in enumerate(sizes))
        pm.Normal("y", pm.Normal("mu") + a[first] + b[second], 1.0, observed=rng.normal(size=N))
    tall = TallModel(model)
    structure = tall.structure
    assert structure is not None
    rows = RowFunctions(structure)
    field = find_field(tall, structure, [f.entries for f in find_factors(rows, tall.data)])
    point = rng.normal(0, 0.5, tall.layout.size)
    phi = field.derivatives.phi(point)
    here = expand(rows, tall.data, phi, field.rows, 1.0)
    precision = Surrogate(tall, field, here, point).conditional(point[field.hyper]).precision
    assert sparse.issparse(precision.cross)
    assert sparse.issparse(precision.dense)
    second_levels = field.levels[1].latent
    none = precision.columns_of(field.latent, second_levels, np.empty(0, dtype=np.int64))
    assert isinstance(none, np.ndarray)
    assert none.shape == (*second_levels.shape, 0)
    # The rows are normal: the change of their slope is the curvature, at any distance.
    vector = np.zeros(point.size)
    field.latent.put(vector, rng.normal(size=401), rng.normal(size=(900, 1)))
    change = field.derivatives.push(point, vector)
    there = expand(rows, tall.data, phi + change, field.rows, 1.0)
    expected = change @ (here.slope - there.slope)
    expected -= vector @ field.derivatives.prior_product(point, vector)
    dense, groups = field.latent.split(vector)
    of_dense, of_groups = precision.product(dense, groups)
    assert dense @ of_dense + np.sum(groups * of_groups) == pytest.approx(expected, rel=1e-9)
    factor = precision.factor()
    solved = factor.solve(of_dense, of_groups)
    np.testing.assert_allclose(solved[0], dense, atol=1e-8)
    np.testing.assert_allclose(solved[1], groups, atol=1e-8)


def test_layouts_split_and_put() -> None:
    layout = ArrowheadLayout(np.array([0, 3]), np.array([[1, 4], [2, 5]]))
    flat = np.arange(6.0)
    dense, groups = layout.split(flat)
    other = np.zeros(6)
    layout.put(other, dense, groups)
    np.testing.assert_array_equal(other, flat)


def crossed_model(**prior: float) -> pm.Model:
    rng = np.random.default_rng(7)
    first, second = rng.integers(0, 25, N), rng.integers(0, 12, N)
    y = rng.poisson(np.exp(0.4 * rng.normal(size=25)[first] + 0.3 * rng.normal(size=12)[second]))
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("sd_a"), shape=25)
        if prior:
            b = pm.StudentT("b", mu=0, sigma=pm.HalfNormal("sd_b"), shape=12, **prior)
        else:
            b = pm.HalfNormal("sd_b") * pm.Normal("b", shape=12)
        pm.Poisson("y", pm.math.exp(a[first] + b[second]), observed=y)
    return model


@pytest.mark.parametrize("prior", [{}, {"nu": 4.0}], ids=["normal", "student"])
def test_all_crossed_factors_are_swept(prior: dict[str, float]) -> None:
    sampler = make_latent_sampler(TallModel(crossed_model(**prior)), Penalty(), 1.0)
    levels = sampler.field.levels
    assert [level.latent.shape for level in levels] == [(25, 1), (12, 1)]
    assert (levels[1].prior is None) == (not prior)
    # Levels given all else: what the surrogate says of one level alone.
    surrogate = sampler.reference.surrogate
    given = surrogate.conditional(sampler.reference.hyper)
    point = given.point + 0.1 * np.random.default_rng(8).normal(size=given.point.size)
    point[sampler.field.hyper] = sampler.reference.hyper
    mean, cholesky = surrogate.given_others(given, point, surrogate.read(point), levels[0])
    shifted = point.copy()
    shifted[levels[0].latent] += 0.3
    again, _ = surrogate.given_others(given, shifted, surrogate.read(shifted), levels[0])
    np.testing.assert_allclose(mean, again, atol=1e-10)  # a level's own value does not matter
    second_order = replace(
        surrogate.expansion, smoothing_correction=surrogate.expansion.mean_correction
    )
    gaussian = Surrogate(sampler.tall, sampler.field, second_order, surrogate.center)
    densities = []
    for step in (-1e-2, 0.0, 1e-2):
        moved = point.copy()
        moved[levels[0].latent] = mean
        moved[levels[0].latent[3]] += step
        densities.append(gaussian.log_density(moved, gaussian.read(moved)))
    slope = (densities[2] - densities[0]) / 2e-2
    curvature_product = (densities[0] + densities[2] - 2 * densities[1]) / 1e-4
    assert abs(slope) < 1e-3 * abs(curvature_product)
    assert -curvature_product == pytest.approx(float(cholesky[3, 0, 0] ** 2), rel=1e-4)


@pytest.mark.parametrize(
    "maker", [crossed_model, lambda: slopes_model()], ids=["crossed", "slopes"]
)
def test_what_rows_read_of_levels_that_moved(maker: Callable[[], pm.Model]) -> None:
    """It is what they read of the whole point, as far as these levels go."""
    sampler = make_latent_sampler(TallModel(maker()), Penalty(), 1.0)
    surrogate, rng = sampler.reference.surrogate, np.random.default_rng(9)
    point = surrogate.center + rng.normal(0, 0.1, surrogate.center.size)
    before = surrogate.read(point)
    given = surrogate.conditional(point[sampler.field.hyper])
    for levels in sampler.field.levels:
        cubic = surrogate.cubic(levels.rows)
        moved = point.copy()
        moved[levels.latent[::2]] += rng.normal(0, 0.3, levels.latent[::2].shape)
        whole, found = surrogate.read(moved), surrogate.read_levels(moved, before, levels)
        assert not np.allclose(whole.curved, before.curved)
        seen = [surrogate.seen_by_rows(predictor, cubic) for predictor in (whole, found)]
        np.testing.assert_allclose(*seen, rtol=1e-9, atol=1e-11)
        ratios = [
            surrogate.level_ratios(given, (point, moved), (before, after), levels)
            for after in (whole, found)
        ]
        np.testing.assert_allclose(*ratios, rtol=1e-8, atol=1e-10)


def test_the_slope_of_the_field_from_what_rows_read() -> None:
    """It is that of the Gaussian, by its precision."""
    sampler = make_latent_sampler(TallModel(outlying_model()), Penalty(), 2.0)
    surrogate, rng = sampler.reference.surrogate, np.random.default_rng(10)
    assert np.any(surrogate.expansion.psd_shift > 0)
    point = surrogate.center + rng.normal(0, 0.3, surrogate.center.size)
    given = surrogate.conditional(point[sampler.field.hyper])
    found = surrogate.slope_at(given, point, surrogate.read(point))
    curved = given.precision.product(*given.layout.split(point - given.here))
    for slope, origin, fall in zip(found, given.slope, curved, strict=True):
        np.testing.assert_allclose(slope, origin - fall, rtol=1e-9, atol=1e-9)


def outlying_model() -> pm.Model:
    """Small groups with gross outliers, which bend their log-likelihood upwards."""
    rng = np.random.default_rng(20)
    group = rng.integers(0, 60, 240)
    y = 0.5 * rng.normal(size=60)[group] + rng.standard_t(2, size=240)
    y[::5] += rng.choice([-12.0, 12.0], y[::5].size)
    with pm.Model() as model:
        effect = pm.StudentT("effect", nu=5, mu=0, sigma=pm.HalfNormal("sd"), shape=60)
        pm.StudentT("y", nu=3, mu=pm.Normal("mu") + effect[group], sigma=0.6, observed=y)
    return model


def test_rounding_bends_no_block_upwards() -> None:
    """Blocks of rank one have eigenvalues of zero up to rounding, in any units."""
    rng = np.random.default_rng(36)
    columns = rng.normal(size=(200, 3)) * np.array([1.0, 1e6, 1e-6])
    blocks = np.einsum("gi,gj->gij", columns, columns)
    assert np.linalg.eigvalsh(blocks).min() < 0
    np.testing.assert_array_equal(semidefinite(blocks), blocks)
    bent = blocks.copy()
    bent[7, 0, 0] -= 0.1 * bent[7, 0, 0]
    raised = semidefinite(bent)
    assert not np.array_equal(raised[7], bent[7])
    np.testing.assert_array_equal(np.delete(raised, 7, axis=0), np.delete(bent, 7, axis=0))


def test_levels_with_less_rows_than_effects_are_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their curvature has no full rank, which is not to say that it bends upwards."""
    rng = np.random.default_rng(37)
    group, x = rng.integers(0, 400, 3000), rng.normal(size=3000)
    with pm.Model() as model:
        a, b = (pm.HalfNormal(f"sd_{k}") * pm.Normal(k, shape=400) for k in "ab")
        eta = pm.Normal("mu") + a[group] + b[group] * x
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 3000))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("pymc_minibatch.latent.modes.search", refuse)
    make_latent_sampler(TallModel(model), None, 1.0)


def test_a_search_ends_about_a_mode_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows place it beside the known one, and the first turns on all rows lead there.

    Since few rows lead there from the known mode as well, no search starts there by itself.
    """
    rng = np.random.default_rng(38)
    group = rng.integers(0, 20, 20_000)
    with pm.Model() as model:
        effect = pm.HalfNormal("sd") * pm.Normal("z", shape=20)
        y = rng.normal(size=20)[group] + rng.standard_t(5, size=20_000)
        pm.StudentT("y", nu=5, mu=pm.Normal("mu") + effect[group], sigma=1.0, observed=y)
    tall = TallModel(model)
    located = locate(tall, 1.0)
    rows, factors, known, _ = located
    field = known.surrogate.field
    center = known.surrogate.center

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the search went on")

    monkeypatch.setattr("pymc_minibatch.latent.variational.VariationalSearch.from_mode", refuse)
    near = FewRows(tall, field, rows, factors, 1.0, 2000).mode(center).surrogate.center
    assert np.linalg.norm(near - center) > 0.1 * np.linalg.norm(center)
    start = field.derivatives.coordinates.to_model(near)
    with pytest.raises(KnownModeError):
        search(
            tall, field, rows, factors, start=start, is_known=lambda point: _is_same(known, point)
        )
    monkeypatch.setattr("pymc_minibatch.latent.modes.search", refuse)
    assert find_modes(tall, located) == [known]


def test_a_mode_of_all_rows_is_found_where_some_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of levels with a location and a scale of their own some rows keep one or none each."""
    rng = np.random.default_rng(5)
    n_levels = 400
    group = np.repeat(np.arange(n_levels), 1 + rng.poisson(9, n_levels))
    spread = np.exp(1.9 + rng.normal(0, 0.35, n_levels))
    y = 55 + rng.normal(0, 13, n_levels)[group] + spread[group] * rng.normal(size=group.size)
    with pm.Model() as model:
        level = pm.Normal("level", 0, pm.HalfNormal("sd_level", 20), shape=n_levels)
        scale = pm.Normal("scale", 0, pm.HalfNormal("sd_scale", 1), shape=n_levels)
        mu, log_sigma = pm.Normal("mu", 50, 20), pm.Normal("log_sigma", 2, 1)
        pm.Normal("y", mu + level[group], pm.math.exp(log_sigma + scale[group]), observed=y)
    turn, failed = LaplaceSearch.turn, []

    def made(self: LaplaceSearch, surrogate: Any) -> Any:
        if self.rows.n_rows == 400:
            failed.append("some rows")
            raise np.linalg.LinAlgError
        return turn(self, surrogate)

    monkeypatch.setattr(LaplaceSearch, "turn", made)
    monkeypatch.setattr("pymc_minibatch.latent.search.SUBSAMPLE", 400)
    hyper = locate(TallModel(model), 1.0).reference.hyper
    assert failed == ["some rows"]
    np.testing.assert_allclose(hyper, np.log([13.0, 0.35]), atol=0.25)


def test_searches_in_vain_read_no_more_rows_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(39)
    group = rng.integers(0, 20, 2000)
    with pm.Model() as model:
        effect = pm.Normal("sd") * pm.Normal("z", shape=20)
        pm.Bernoulli("y", logit_p=effect[group], observed=rng.integers(0, 2, 2000))
    tall, read = TallModel(model), []
    located = locate(tall, 1.0)
    field, first = located.reference.surrogate.field, located.reference.passes * tall.n_rows

    def in_vain(*args: object, budget: RowBudget, **kwargs: object) -> None:
        for _ in range(1000):
            budget.spend(tall.n_rows)
            read.append(tall.n_rows)

    monkeypatch.setattr("pymc_minibatch.latent.modes._is_same", lambda *_: False)
    monkeypatch.setattr("pymc_minibatch.latent.modes.search", in_vain)
    assert find_modes(tall, located) == [located.reference]
    assert first <= sum(read) <= first + 2 * tall.n_rows
    with pytest.raises(NoFieldError, match="as many rows as it may"):
        search(tall, field, located.rows, located.factors, budget=RowBudget(-1.0))
    found = search(tall, field, located.rows, located.factors, budget=RowBudget(first))
    np.testing.assert_allclose(found.hyper, located.reference.hyper)


def test_a_mode_is_about_itself_however_far_the_mean_of_the_field_is() -> None:
    """Corrections move the mean away from where rows are expanded, to which searches lead."""
    rng = np.random.default_rng(40)
    group = rng.integers(0, 20, 2000)
    with pm.Model() as model:
        effect = pm.HalfNormal("sd") * pm.Normal("z", shape=20)
        eta = pm.Normal("mu") + effect[group]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 2000))
    reference = locate(TallModel(model), 1.0).reference
    surrogate, away = reference.surrogate, np.zeros(reference.surrogate.expansion.at.size)
    away[surrogate.field.rows.dense] = 0.5
    expansion = replace(surrogate.expansion, mean_correction=surrogate.curvature_product(away))
    corrected = Surrogate(surrogate.tall, surrogate.field, expansion, surrogate.center)
    reference = replace(reference, surrogate=corrected)
    given = corrected.conditional(reference.hyper)
    assert np.abs(given.frame.whiten(corrected.center)[0]).max() > 2 * APART
    assert _is_same(reference, corrected.center)
    assert _is_same(reference, given.point)
    far = corrected.center.copy()
    far[surrogate.field.latent.dense] -= 0.5
    assert not _is_same(reference, far)


def test_hundreds_of_scales_are_a_field_whose_correlations_are_left_to_tuning() -> None:
    """Each pair of them would take four factorizations."""
    rng = np.random.default_rng(41)
    X = rng.normal(size=(600, 230))
    with pm.Model() as model:
        tau, local = pm.HalfNormal("tau"), pm.HalfCauchy("local", 1, shape=230)
        beta = tau * local * pm.Normal("z", shape=230)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=rng.integers(0, 2, 600))
    tall = TallModel(model)
    field = find_field(tall, tall.structure, [])
    assert field.hyper.size == 231

    class Counted:
        calls = 0

        def log_marginal_in(self, hyper: np.ndarray) -> float:
            self.calls += 1
            return -0.5 * float(hyper @ hyper)

    surrogate = Counted()
    curvature = curvature_of_marginal(surrogate, np.zeros(231))
    np.testing.assert_allclose(curvature, np.eye(231), atol=1e-6)
    assert surrogate.calls < 20 * 231


def test_precision_of_effects_with_a_common_mean() -> None:
    """What effects have in common with their mean is read from its column, not from each of them.

    The effects are those of the smaller of two factors.
    """
    rng = np.random.default_rng(35)
    group, item = rng.integers(0, G, N), rng.integers(0, 12, N)
    with pm.Model() as model:
        mean, sd = pm.Normal("mean"), pm.HalfNormal("sd")
        effect = pm.Normal("effect", mean, sd, shape=12)
        other = pm.Normal("other", 0, pm.HalfNormal("sd_other"), shape=G)
        pm.Bernoulli("y", logit_p=effect[item] + other[group], observed=rng.integers(0, 2, N))
    sampler = make_latent_sampler(TallModel(model), Penalty(), 1.0)
    field = sampler.field
    dense, derivatives = field.latent.dense, field.derivatives
    assert field.prior_hessian.mirrored.size == 12
    assert field.prior_hessian.color.max() <= 1
    center = sampler.reference.surrogate.center
    point = center + rng.normal(0, 0.5, center.size)
    columns = [derivatives.prior_product(point, seed)[dense] for seed in np.eye(point.size)[dense]]
    np.testing.assert_allclose(field.prior_precision_at(point).dense, -np.array(columns))


@pytest.mark.parametrize("most", [60, 0])
def test_surrogate_and_remainders_are_the_posterior(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """At any point, up to a constant; and the levels' ratios are those of the posterior.

    With rows that read many numbers there are no higher orders.
    """
    monkeypatch.setattr("pymc_minibatch.reference.rows.MOST_TRIPLES", most)
    tall = TallModel(outlying_model())
    sampler = make_latent_sampler(tall, Penalty(), 2.0)
    surrogate, expansion = sampler.reference.surrogate, sampler.reference.surrogate.expansion
    assert np.any(expansion.psd_shift > 0)
    assert np.any(expansion.mean_correction != 0)
    structure = tall.structure
    assert structure is not None
    assert len(surrogate.cubics) == (1 if most else 0)
    cubic = surrogate.cubics[0] if most else None
    remainders = RowFunctions(structure).remainders
    rng = np.random.default_rng(21)

    def log_posterior(point: np.ndarray) -> float:
        values = tall.layout.unflatten(point)
        return tall.prior_logp(values) / 2 + tall.logp(values) / 2

    def log_remainders(predictor: PredictorState) -> np.ndarray:
        seen = surrogate.seen_by_rows(predictor, cubic)
        return remainders(seen, seen, expansion.at, tall.data)[0] / 2.0

    differences = []
    for _ in range(4):
        point = surrogate.center + rng.normal(0, 0.5, surrogate.center.size)
        predictor = surrogate.read(point)
        modelled = surrogate.log_density(point, predictor) + log_remainders(predictor).sum()
        modelled -= expansion.smoothing_correction @ (predictor.phi - expansion.at)
        differences.append(log_posterior(point) - modelled)
    np.testing.assert_allclose(differences, differences[0], atol=1e-7)

    [levels] = sampler.field.levels
    point = surrogate.center + rng.normal(0, 0.3, surrogate.center.size)
    point[sampler.field.hyper] = sampler.reference.hyper + 0.2
    given = surrogate.conditional(point[sampler.field.hyper])
    mean, cholesky = surrogate.given_others(given, point, surrogate.read(point), levels)
    moved = point.copy()
    moved[levels.latent[7]] += 0.8
    predictors = surrogate.read(point), surrogate.read(moved)
    ratio = surrogate.level_ratios(given, (point, moved), predictors, levels)[7]
    ratio += (log_remainders(predictors[1]) - log_remainders(predictors[0])).sum()
    z = (np.array([point, moved])[:, levels.latent[7, 0]] - mean[7, 0]) * cholesky[7, 0, 0]
    gaussian = 0.5 * (z[0] ** 2 - z[1] ** 2)
    assert ratio + gaussian == pytest.approx(log_posterior(moved) - log_posterior(point), abs=1e-7)


def test_rows_that_read_many_numbers_have_few_third_derivatives() -> None:
    rng = np.random.default_rng(39)
    group, x = rng.integers(0, 20, 200), rng.exponential(size=(200, 6))
    with pm.Model() as model:
        rate = pm.Normal("log_rate", shape=20)[group]
        for k in range(6):
            scale, power = pm.Normal(f"a{k}"), pm.Normal(f"b{k}")
            rate = rate + pt.exp(scale) * (1 - pt.exp(-pt.exp(power) * x[:, k]))
        pm.Poisson("y", pt.exp(rate), observed=rng.poisson(2.0, 200))
    structure = TallModel(model).structure
    assert structure is not None
    rows = RowFunctions(structure)
    assert rows.n_predictors == 13
    assert rows.triples == [(0, 0, 0)]
    assert not rows.reads.scalars.size
    assert most_share(rows) < 0.03


def kinked_model() -> pm.Model:
    """Quantiles of groups, some of them small, with a slope and a scale."""
    rng = np.random.default_rng(33)
    group, x = np.minimum(rng.geometric(0.1, 6000) - 1, 29), rng.normal(size=6000)
    y = 0.3 * x + rng.normal(size=30)[group] + rng.gumbel(size=6000)
    with pm.Model() as model:
        mu = pm.Normal("b") * x + pm.HalfNormal("tau") * pm.Normal("z", shape=30)[group]
        pm.AsymmetricLaplace("y", q=0.7, mu=mu, b=pm.HalfNormal("b_scale"), observed=y)
    return model


def test_averages_about_kinks_are_subtracted_from_rows() -> None:
    """Whatever their width: the sums added to the surrogate are those that rows lose."""
    tall = TallModel(kinked_model())
    sampler = make_latent_sampler(tall, Penalty(), 1.0)
    assert sampler.rows.kinked
    surrogate, expansion = sampler.reference.surrogate, sampler.reference.surrogate.expansion
    at = expansion.at
    rng = np.random.default_rng(34)
    shared = pickle.loads(pickle.dumps(sampler.rows))
    differences = []
    for _ in range(4):
        point = surrogate.center + rng.normal(0, 0.1, surrogate.center.size)
        predictor = surrogate.read(point)
        left, again = (
            rows.remainders(predictor.phi, predictor.phi, at, tall.data)[0]
            for rows in (sampler.rows, shared)
        )
        assert np.array_equal(left, again)
        assert np.abs(left).max() > 1e-3
        modelled = surrogate.log_density(point, predictor) + left.sum()
        modelled -= expansion.smoothing_correction @ (predictor.phi - at)
        values = tall.layout.unflatten(point)
        differences.append(tall.logp(values) - modelled)
    np.testing.assert_allclose(differences, differences[0], atol=1e-6)


def test_kinks_are_found_where_rows_have_some() -> None:
    """Not where a density has branches but is smooth across them."""
    rng = np.random.default_rng(35)
    group, y = rng.integers(0, G, N), rng.normal(size=N)

    def kinked(family: Callable[..., Any]) -> bool:
        with pm.Model() as model:
            effect = pm.HalfNormal("tau") * pm.Normal("z", shape=G)
            family("y", mu=effect[group])
        tall = TallModel(model)
        assert tall.structure is not None
        size = max(where.stop for where in tall.structure.blocks.values())
        phi = rng.normal(0, 0.3, size)
        return rows_have_kinks(tall.structure, phi, tall.data)

    assert kinked(partial(pm.Laplace, b=1.0, observed=y))
    assert kinked(partial(pm.AsymmetricLaplace, kappa=2.0, b=1.0, observed=y))
    assert not kinked(partial(pm.Normal, sigma=1.0, observed=y))
    assert not kinked(partial(pm.StudentT, nu=4, sigma=1.0, observed=y))
    assert not kinked(partial(pm.ExGaussian, sigma=1.0, nu=1.0, observed=y))


def growth_model() -> pm.Model:
    """Sizes of groups that grow on one logistic curve; started with none of it right."""
    rng = np.random.default_rng(36)
    group, t = rng.integers(0, G, N), rng.uniform(0, 10, N)
    size = np.exp(2 + 0.3 * rng.normal(size=G))
    y = size[group] / (1 + np.exp(-0.9 * (t - 4))) + 0.5 * rng.normal(size=N)
    with pm.Model() as model:
        sizes = pm.math.exp(pm.Normal("a", 2, 1) + pm.HalfNormal("tau") * pm.Normal("z", shape=G))
        curve = pm.math.sigmoid(pm.LogNormal("k") * (t - pm.Normal("b", 5, 2)))
        pm.Normal("y", sizes[group] * curve, pm.HalfNormal("sigma"), observed=y)
    return model


def far_model() -> pm.Model:
    """Student-t rows that all are outliers where the search starts."""
    rng = np.random.default_rng(37)
    group = rng.integers(0, G, N)
    y = 80 + 5 * rng.normal(size=G)[group] + rng.standard_t(3, size=N)
    with pm.Model() as model:
        effect = pm.HalfNormal("tau", 10) * pm.Normal("z", shape=G)
        pm.StudentT("y", nu=3, mu=pm.Normal("a", 0, 100) + effect[group], sigma=1.0, observed=y)
    return model


def outliers_model() -> pm.Model:
    """Rows of two normal distributions, one of them wide."""
    rng = np.random.default_rng(38)
    group, x = rng.integers(0, G, N), rng.normal(size=N)
    noise = np.where(rng.random(N) < 0.05, 5.0, 0.5) * rng.normal(size=N)
    y = 1 + 0.5 * x + 0.4 * rng.normal(size=G)[group] + noise
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, pm.HalfNormal("tau"), shape=G)
        mu = pm.Normal("a", 0, 2) + pm.Normal("b") * x + effect[group]
        share, narrow = pm.Beta("share", 1, 9), pm.HalfNormal("narrow")
        wide = narrow + pm.HalfNormal("wider", 10)
        components = [pm.Normal.dist(mu, narrow), pm.Normal.dist(mu, wide)]
        pm.Mixture("y", w=pt.stack([1 - share, share]), comp_dists=components, observed=y)
    return model


def wages_model() -> pm.Model:
    """Levels and slopes of persons with few rows each, a scale and tails that rows share.

    At the joint mode one row of each person is fitted without an error.
    """
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(400), rng.integers(1, 12, 400))
    x, u = rng.uniform(0, 20, person.size), rng.normal(size=(400, 2)) * [0.3, 0.02]
    noise = 0.15 * rng.standard_t(2.5, person.size)
    y = 1.2 + 0.05 * x + u[person, 0] + u[person, 1] * x + noise
    with pm.Model() as model:
        sds = pm.Exponential.dist(2.0, size=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sds, compute_corr=True)
        v = pm.Normal("z", shape=(400, 2)) @ chol.T
        mu = pm.Normal("a", 0, 5) + pm.Normal("b") * x + v[person, 0] + v[person, 1] * x
        sigma, nu = pm.HalfNormal("sigma"), pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=y)
    return model


@pytest.mark.parametrize(
    ("build", "names", "truth"),
    [(wages_model, ["chol_cholesky-cov-packed__"], np.array([np.log(0.3), 0.0, np.log(0.02)])),
     (growth_model, ["k_log__", "b", "sigma_log__"], np.array([np.log(0.9), 4.0, np.log(0.5)])),
     (far_model, ["tau_log__"], np.array([np.log(5.0)])),
     (outliers_model, ["b", "narrow_log__"], np.array([0.5, np.log(0.5)]))],
)  # fmt: skip
def test_the_search_climbs_where_rows_are_not_concave(
    build: Callable[[], pm.Model], names: list[str], truth: np.ndarray
) -> None:
    sampler = make_latent_sampler(TallModel(build()), Penalty(), 1.0)
    assert not sampler.rows.kinked
    center = sampler.coordinates.to_model(sampler.reference.surrogate.center)
    values = sampler.tall.layout.unflatten(center)
    found = np.array([values[name] for name in names])
    within = {"tau_log__": 0.6, "chol_cholesky-cov-packed__": 0.2}.get(names[0], 0.05)
    np.testing.assert_allclose(found.ravel(), truth, atol=within)


def test_plain_regressions_have_no_field() -> None:
    with pm.Model():
        beta = pm.Normal("beta", shape=3)
        x = np.random.default_rng(9).normal(size=(500, 3))
        pm.Normal("y", pm.Data("x", x) @ beta, pm.HalfNormal("s"), observed=x[:, 0])
        with pytest.raises(NoFieldError, match="no variable depends on others"):
            make_latent_sampler(TallModel(), Penalty(), 1.0)


@pytest.fixture(scope="module")
def step() -> pmb.MinibatchMH:
    with slopes_model():
        return pmb.MinibatchMH(acceptance="penalty")


def test_draws_are_the_same_after_pickling(step: pmb.MinibatchMH) -> None:
    sampler = step.latent
    assert isinstance(sampler, MinibatchSampler)
    other = pickle.loads(cloudpickle.dumps(sampler))
    points = []
    for s in (sampler, other):
        rng, state = np.random.default_rng(10), s.initial_state()
        point = s.near_mode(rng, s.tall.start)
        for _ in range(5):
            s.draw(rng, point, 2, True, state)
        points.append(point)
    np.testing.assert_array_equal(*points)


def test_a_chain_far_away_starts_near_the_mode(step: pmb.MinibatchMH) -> None:
    assert step.latent is not None
    rng = np.random.default_rng(11)
    near = step.latent.near_mode(rng, step.tall.start + 30.0)
    assert np.isfinite(step.tall.logp(step.tall.layout.unflatten(near)))
    np.testing.assert_array_equal(step.latent.near_mode(rng, near), near)


def drawn(step: pmb.MinibatchMH, **kwargs: Any) -> xr.Dataset:
    idata = pm.sample(
        20, tune=20, chains=2, step=step, model=step.tall.model, random_seed=12,
        progressbar=False, compute_convergence_checks=False, **kwargs,
    )  # fmt: skip
    return idata.posterior.to_dataset()


@pytest.fixture(scope="module")
def in_one_process(step: pmb.MinibatchMH) -> xr.Dataset:
    return drawn(step, cores=1)


@pytest.mark.parametrize("mp_ctx", ["fork", "forkserver", "spawn"])
def test_processes_give_the_same_draws(
    step: pmb.MinibatchMH, in_one_process: xr.Dataset, mp_ctx: str
) -> None:
    assert len(np.unique(in_one_process["mu"])) > 10
    xr.testing.assert_equal(drawn(step, cores=2, mp_ctx=mp_ctx), in_one_process)


def test_stats_of_sweeps(step: pmb.MinibatchMH) -> None:
    _, (stats,) = step.step(step.tall.model.initial_point())
    rounds = 1 if step.tune else step.steps_per_draw
    assert stats["n_sweeps"] == rounds  # of one factor
    assert 0 < stats["n_sweeps"] * stats["rows_per_sweep"] < stats["n_likelihood"] / 2
    assert stats["rows_per_sweep"] <= step.tall.n_rows


def test_large_dense_parts_move_in_as_many_parts_as_are_accepted() -> None:
    rng = np.random.default_rng(4)
    parts = RandomBlocks(np.zeros(1), np.zeros(1))
    assert [p.size for p in parts.split(rng, 600)] == [600]
    for _ in range(3000):  # acceptance falls with the size of what moves at once
        size = parts.split(rng, 600)[0].size
        parts.tune(bool(rng.random() < math.exp(-size / 100)), 600)
    split = parts.split(rng, 600)
    assert split[0].size == pytest.approx(-100 * math.log(BLOCKS_ACCEPTED), rel=0.35)
    assert np.unique(np.concatenate(split)).size == 600
    for _ in range(10_000):
        parts.tune(False, 600)
    assert [p.size for p in parts.split(rng, 600)] == [1] * MOST_BLOCKS


def test_factoring_is_rare_only_where_effects_follow_hyperparameters_in_other_ways() -> None:
    field: Any = sampler_of(shared_scale_model()).field
    assert factoring_share(field, None, 1e12) == 1.0
    assert factoring_share(field, [(0, 0)], 1e12) == FACTORING_SHARE
    many: Any = SimpleNamespace(
        latent=ArrowheadLayout(np.arange(600), field.latent.groups), levels=[]
    )
    assert factoring_share(many, [(0, 0)], 2 * COSTLY) == 0.5
    assert factoring_share(many, [(0, 0)], 1e12) == FACTORING_SHARE


def test_scales_of_hyperparameters_far_from_zero_are_those_of_the_draws() -> None:
    """Their variance is that about the mean, with no difference of large squares."""
    rng = np.random.default_rng(1)
    draws = np.column_stack([1e9 + rng.normal(size=700), np.full(700, 24.3)])
    scale = HyperScale.of(np.array([0.0, 24.3]), np.diag([1.0, 1e-19]))
    for w in draws:
        scale.observe(w)
    assert scale.mean == pytest.approx(draws.mean(axis=0), rel=0.1)
    assert scale.cholesky[0, 0] == pytest.approx(1.0, rel=0.2)
    assert 0 < scale.cholesky[1, 1] < 1e-18


def traits_of_persons(transposed: bool) -> pm.Model:
    """Items of two traits that are correlated: a row reads one of a person's traits."""
    rng = np.random.default_rng(6)
    n_persons, n_items = 800, 30
    trait = np.arange(n_items) % 2
    traits = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], n_persons)
    slope, level = np.exp(rng.normal(0, 0.3, n_items)), rng.normal(0, 1, n_items)
    person, item = (v.ravel() for v in np.meshgrid(range(n_persons), range(n_items), indexing="ij"))
    y = rng.binomial(1, 1 / (1 + np.exp(level[item] - slope[item] * traits[person, trait[item]])))
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1, 1)
        z = pm.Normal("z", 0, 1, shape=(2, n_persons) if transposed else (n_persons, 2))
        first, second = (z[0], z[1]) if transposed else (z[:, 0], z[:, 1])
        parts = [first, rho * first + pt.sqrt(1 - rho**2) * second]
        read = pt.stack(parts, axis=0 if transposed else 1)
        read = read[trait[item], person] if transposed else read[person, trait[item]]
        a, b = pm.LogNormal("a", 0, 0.5, shape=n_items), pm.Normal("b", 0, 2, shape=n_items)
        pm.Bernoulli("y", logit_p=a[item] * read - b[item], observed=y)
    return model


@pytest.mark.parametrize("transposed", [False, True])
def test_traits_of_a_person_are_one_level_whichever_a_row_reads(transposed: bool) -> None:
    """And the search does not follow expansions that lag to a correlation of one."""
    located = locate(TallModel(traits_of_persons(transposed)), 1.0)
    field = located.reference.surrogate.field
    assert field.latent.groups.shape == (800, 2)
    assert [factor.entries.shape for factor in located.factors] == [(800, 2), (30, 2)]
    persons = np.repeat(np.arange(800), 30)
    np.testing.assert_array_equal(located.factors[0].row_levels, persons)
    assert np.abs(located.reference.hyper - np.log(3.0)).max() < 1.5  # ran to 9.6


def test_effects_above_others_that_rows_do_not_read_leave_a_sparse_factor() -> None:
    """Rows read studies only; laboratories are in their means."""
    rng = np.random.default_rng(36)
    n, n_laboratories = 3000, 60
    laboratory = rng.integers(0, n_laboratories, n)
    with pm.Model() as model:
        between, within = pm.HalfNormal("between", 1), pm.HalfNormal("within", 1)
        laboratories = between * pm.Normal("z", shape=n_laboratories)
        study = pm.Normal("study", pm.Normal("mean") + laboratories[laboratory], within, shape=n)
        pm.Normal("y", study, rng.gamma(4, 0.04, n), observed=rng.normal(0, 0.3, n))
    sampler = make_latent_sampler(TallModel(model), Penalty(), 1.0)
    surrogate = sampler.reference.surrogate
    given = surrogate.conditional(surrogate.center[sampler.field.hyper])
    assert sparse.issparse(given.factor.reduced)
    assert given.factor.reduced.nnz < 4 * n
