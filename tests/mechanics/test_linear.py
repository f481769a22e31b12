"""Linear models with crossed factors: the form of their posterior, and moves."""

from collections.abc import Callable

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent import sampler as sampler_module
from pymc_minibatch.latent.batched import log_diagonal
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.linear import LinearMoves, LinearPlace
from pymc_minibatch.latent.linear_model import find_linear, log_density
from pymc_minibatch.latent.moves.collapsed import collapsed_pairs
from pymc_minibatch.latent.moves.decisions import MoveCounts
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.skew_transform import SkewTransform
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.tall import TallModel

N, A, B = 150, 15, 8


def crossed_model(
    effects: str = "not centred", rows: Callable[..., object] = pm.Normal
) -> pm.Model:
    """Few rows for each of the levels of two factors, and a coefficient."""
    rng = np.random.default_rng(1)
    a, b, x = rng.integers(0, A, N), rng.integers(0, B, N), rng.normal(size=N)
    y = 1 + 0.5 * rng.normal(size=A)[a] + 0.4 * rng.normal(size=B)[b] + rng.normal(size=N)
    with pm.Model() as model:
        mu, slope, sd = pm.Normal("mu", 0, 2), pm.Normal("slope"), pm.HalfNormal("sd_a")
        if effects == "heavy":
            first = pm.StudentT("a", nu=4, mu=0, sigma=sd, shape=A)
        elif effects == "of a mean":
            first, mu = pm.Normal("a", mu, sd, shape=A), 0.0
        elif effects == "slopes":
            first = pm.HalfNormal("sd_x") * pm.Normal("x", shape=A)[a] * x
            first = first + sd * pm.Normal("a", shape=A)[a]
        elif effects == "centred":
            first = pm.Normal("a", 0, sd, shape=A)
        else:
            first = sd * pm.Normal("a", shape=A)
        first = first if effects == "slopes" else first[a]
        second = pm.Normal("b", 0, pm.HalfNormal("sd_b"), shape=B)
        s = pm.HalfNormal("s", 2)
        rows("y", mu + slope * x + first + second[b], s, observed=y)
    return model


def surrogate_of(model: pm.Model) -> Surrogate:
    return make_latent_sampler(TallModel(model), None, 1.0).reference.surrogate


def costly(sampler: LatentSampler) -> LatentSampler:
    """As if factoring were costly."""
    sampler.work, sampler.collapsed = 1e12, collapsed_pairs(sampler.reference.surrogate)
    sampler.tails = SkewTransform.none(sampler.field.hyper_coordinates, sampler.reference.hyper)
    assert sampler.collapsed
    return sampler


@pytest.mark.parametrize("effects", ["not centred", "centred", "slopes"])
def test_density_in_what_rows_read(effects: str) -> None:
    """The log posterior, with the change of volume from effects to what rows read of them."""
    surrogate = surrogate_of(crossed_model(effects))
    model = find_linear(surrogate)
    assert model is not None
    rng, differences = np.random.default_rng(2), []
    for _ in range(5):
        point = surrogate.center + rng.normal(size=surrogate.center.size)
        scales = model.scales(point[surrogate.field.hyper])
        here = model.here(
            point[surrogate.field.hyper],
            scales,
            scales.offset + scales.scale * point[model.effects],
        )
        volume = np.log(np.abs(scales.scale)).sum()
        flat = surrogate.field.derivatives.coordinates.to_model(point)
        values = surrogate.tall.layout.unflatten(flat)
        modelled = log_density(scales, here.phi, here.of_rows) + volume
        differences.append(modelled - surrogate.tall.logp(values))
    np.testing.assert_allclose(differences, differences[0], atol=1e-6)


@pytest.mark.parametrize("effects", ["heavy", "of a mean"])
def test_other_posteriors_have_no_such_form(effects: str) -> None:
    assert find_linear(surrogate_of(crossed_model(effects))) is None


def test_rows_that_are_not_normal_have_no_such_form() -> None:
    def rows(name: str, mu: object, s: object, observed: np.ndarray) -> None:
        pm.StudentT(name, nu=5, mu=mu, sigma=s, observed=observed)

    assert find_linear(surrogate_of(crossed_model(rows=rows))) is None


@pytest.fixture(scope="module")
def sampler() -> LatentSampler:
    return costly(make_latent_sampler(TallModel(crossed_model("slopes")), None, 1.0))


@pytest.mark.parametrize("factor", [0, 1])
def test_levels_given_all_else(sampler: LatentSampler, factor: int) -> None:
    """The density of a draw, given all else, times that of all else is the posterior."""
    moves = sampler.moves
    assert isinstance(moves, LinearMoves)
    rng, model = np.random.default_rng(3), moves.linear
    hyper = sampler.reference.hyper + 0.3
    phi = model.at + rng.normal(size=model.at.size)
    here = model.here(hyper, model.scales(hyper), phi)
    levels = moves.given_others(here, here.scales, moves.factors[factor])
    place = LinearPlace(here, levels)
    there = moves.drawn(np.random.default_rng(4), place, MoveCounts()).state
    noise = np.random.default_rng(4).standard_normal(levels.halfway.shape)
    log_conditional = log_diagonal(levels.cholesky) - 0.5 * np.sum(noise**2)
    log_joint = log_density(there.scales, there.phi, there.of_rows)
    assert log_joint - log_conditional == pytest.approx(levels.log_density, rel=1e-10)
    others = np.delete(np.arange(phi.size), levels.entries.ravel())
    np.testing.assert_array_equal(there.phi[others], phi[others])
    again = moves.given_others(there, there.scales, moves.factors[factor])
    assert again.log_density == pytest.approx(levels.log_density, rel=1e-10)


def test_scales_next_to_zero(sampler: LatentSampler) -> None:
    """Effects are next to zero as well there: the prior of the log scale is all that changes."""
    moves = sampler.moves
    assert isinstance(moves, LinearMoves)
    rng, model = np.random.default_rng(8), moves.linear
    phi = model.at + rng.normal(size=model.at.size)
    for axis, k in moves.pairs:
        found = []
        for log_scale in (-20.0, -25.0):
            hyper = sampler.reference.hyper.copy()
            here = model.here(hyper, model.scales(hyper), phi)
            hyper[axis] = log_scale
            then = model.scales(hyper)
            found.append(moves.given_others(here, then, moves.factors[k]).log_density)
        assert found[0] - found[1] == pytest.approx(5.0, abs=1e-6)


def test_a_usual_posterior_is_that_given_its_hyperparameters(sampler: LatentSampler) -> None:
    """Its mode has no slope, and its factor is that of the curvature."""
    moves = sampler.moves
    assert isinstance(moves, LinearMoves)
    model, hyper = moves.linear, sampler.reference.hyper - 0.2
    frame = model.frame(hyper)
    at_mode = model.here(hyper, frame.scales, frame.mode)
    top = log_density(frame.scales, at_mode.phi, at_mode.of_rows)
    rng, groups = np.random.default_rng(5), model.field.rows.groups
    for _ in range(3):
        noise = rng.normal(size=model.n_dense), rng.normal(size=groups.shape)
        away = np.concatenate([part.ravel() for part in frame.factor.color(*noise)])
        there = model.here(hyper, frame.scales, frame.mode + away)
        fall = 0.5 * sum(np.sum(part**2) for part in noise)
        assert top - log_density(frame.scales, there.phi, there.of_rows) == pytest.approx(fall)


def test_the_density_of_a_proposal_of_the_dense_part(sampler: LatentSampler) -> None:
    """At each usual h it is normal, with its constant: else moves of h would be wrong."""
    moves = sampler.moves
    assert isinstance(moves, LinearMoves)
    rng, model = np.random.default_rng(9), moves.linear
    for shift in (-0.4, 0.0, 0.4):
        frame = model.frame(sampler.reference.hyper + shift)
        noise, phi = rng.normal(size=model.n_dense), model.at + rng.normal(size=model.at.size)
        schur = frame.factor.schur
        phi[: model.n_dense] = frame.mode[: model.n_dense] + schur.solve_transposed(noise)
        here = model.here(sampler.reference.hyper, model.scales(sampler.reference.hyper), phi)
        place = moves.weighed(here, frame)
        log_q = schur.log_determinant() - 0.5 * np.sum(noise**2)
        assert place.given is not None
        assert place.given.log_density - place.log_density == pytest.approx(log_q, rel=1e-9)


@pytest.mark.slow
def test_moves_of_linear_models_have_the_posterior_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scales are known badly, so that all moves are rejected now and then."""
    draws = []
    for linear in (True, False):
        if not linear:
            monkeypatch.setattr(sampler_module, "find_linear", lambda surrogate: None)
        sampler = make_latent_sampler(TallModel(crossed_model("slopes")), None, 1.0)
        if linear:
            sampler = costly(sampler)
        assert isinstance(sampler.moves, LinearMoves) == linear
        chains = []
        for seed in (6, 7):
            rng, state = np.random.default_rng(seed), sampler.initial_state()
            point = sampler.near_mode(rng, sampler.tall.start).copy()
            sampler.draw(rng, point, 1000, True, state)
            sampler.end_tuning(state)
            counts, chain = MoveCounts(), []
            for _ in range(8000):
                counts = sampler.draw(rng, point, 1, False, state)
                chain.append(point.copy())
            chains.append(chain)
            assert counts.n_evaluated == 0
        draws.append(np.array(chains))
    for j in range(draws[0].shape[2]):
        first, second = (np.ascontiguousarray(d[:, :, j]) for d in draws)
        for method, of in (("mean", np.mean), ("sd", np.std)):
            errors = [float(az.mcse(d, method=method)) for d in (first, second)]
            assert max(errors) < 0.2 * second.std()
            assert abs(of(first) - of(second)) < 4.5 * np.hypot(*errors), (j, method)
