"""Hyperparameters given surrogate data: predictors stay near, and the way back leads back."""

import numpy as np
import pytest
from scipy import sparse

from benchmarks.calibration import MODELS, Calibration
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix
from pymc_minibatch.latent.moves.scan import LatentMoves
from pymc_minibatch.latent.moves.surrogate_data import WithSurrogateData
from pymc_minibatch.latent.whole import WholeSampler


@pytest.fixture(scope="module", params=["noncentred", "crossed"])
def sampler(request: pytest.FixtureRequest) -> WholeSampler:
    calibration = Calibration(MODELS[request.param]())
    [(_, y)] = calibration.truths(1, seed=3)
    calibration.put(y)
    return WholeSampler(calibration.tall, calibration.latent_model(), 1.0)


def test_effects_follow_there_and_back_and_predictors_stay_near(sampler: WholeSampler) -> None:
    rng, surrogate, hyper = (
        np.random.default_rng(4),
        sampler.reference.surrogate,
        sampler.field.hyper,
    )
    assert isinstance(sampler.moves, LatentMoves)
    move = sampler.moves.by_name["surrogate data"]
    assert isinstance(move, WithSurrogateData)
    root, known = sampler.reference.hyper_cholesky, move.precision > 0.0
    moved = {"data": [], "none": []}
    for _ in range(20):
        here, there = (
            sampler.reference.hyper + 0.7 * root @ rng.normal(size=hyper.size) for _ in "ab"
        )
        plain = [surrogate.conditional(h).frame for h in (here, there)]
        point = plain[0].color(sampler.field.latent.noise(rng))
        phi = surrogate.phi(point)
        data = move.data(rng, phi)
        given = [move.frame(move.given(h), data) for h in (here, there)]
        after = given[1].color(given[0].whiten(point))
        back = given[0].color(given[1].whiten(after))
        np.testing.assert_allclose(back, point, atol=1e-8)
        for name, end in (("data", after), ("none", plain[1].color(plain[0].whiten(point)))):
            away = np.sqrt(move.precision) * (surrogate.phi(end) - phi)
            moved[name].append(np.sum(away[known] ** 2))
    assert np.mean(moved["data"]) < 0.5 * np.mean(moved["none"])


def test_a_sparse_curvature_is_raised_and_stays_sparse() -> None:
    rng = np.random.default_rng(5)
    dense, cross, blocks = rng.normal(size=(4, 4)), np.zeros((6, 4)), rng.normal(size=(3, 2, 2))
    raised = ArrowheadMatrix(sparse.csr_array(dense), cross, blocks).damped(3.0)
    assert sparse.issparse(raised.dense)
    expected = dense + 3.0 * np.diag(np.abs(np.diag(dense)))
    np.testing.assert_allclose(raised.dense.toarray(), expected, rtol=1e-14)
