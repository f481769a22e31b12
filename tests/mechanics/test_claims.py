"""What is claimed of effects and their priors holds in any unit, for every level, by values."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_minibatch.latent.factors import find_factors
from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.recognition import find_field
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

N, G = 240, 12
RNG = np.random.default_rng(1)
GROUP, X, Y = np.arange(N) % G, RNG.normal(size=N), RNG.normal(size=N)
HELD_OUT = 3
UNITS = (1e-9, 1e9)


def field_of(model: pm.Model) -> tuple[TallModel, LatentField]:
    tall = TallModel(model)
    structure = tall.structure
    assert structure is not None
    factors = find_factors(RowFunctions(structure), tall.data)
    return tall, find_field(tall, structure, [factor.entries for factor in factors])


def claims(model: pm.Model) -> tuple[object, ...]:
    """Say what is claimed of a model."""
    tall, field = field_of(model)
    return (
        sorted({tall.layout.name_of(int(i)) for i in field.hyper}),
        [(levels.latent.shape, levels.prior is None) for levels in field.levels],
        field.map_jacobian.changing,
        field.prior_hessian.changing,
        field.fixed_map is None,
        field.fixed_prior is None,
        field.hyper_in_prior,
    )


def centred(unit: float) -> None:
    """Intercepts with an unknown sd beside slopes with a known one."""
    a = pm.Normal("a", pm.Normal("mu", 0, 2), pm.HalfNormal("sd"), shape=G)
    b = pm.Normal("b", 0, 0.5 / unit, shape=G)
    pm.Normal("y", a[GROUP] + b[GROUP] * (unit * X), 1.0, observed=Y)


def not_centred(unit: float) -> None:
    """Intercepts and slopes with unknown sds."""
    a = pm.HalfNormal("sd") * pm.Normal("za", shape=G)
    b = pm.HalfNormal("sds", 1 / unit) * pm.Normal("zb", shape=G)
    pm.Normal("y", (pm.Normal("mu") + a)[GROUP] + b[GROUP] * (unit * X), 1.0, observed=Y)


def student(unit: float) -> None:
    """Effects with long tails."""
    a = pm.StudentT("a", nu=3, mu=0, sigma=0.4 * unit, shape=G)
    pm.Normal("y", a[GROUP], pm.HalfNormal("sigma", unit), observed=unit * Y)


def positive(unit: float) -> None:
    """A positive coefficient beside effects."""
    a = pm.HalfNormal("sd") * pm.Normal("za", shape=G)
    b = pm.LogNormal("b", np.log(0.1 / unit), 1.0)
    pm.Normal("y", a[GROUP] + b * (unit * X), 1.0, observed=Y)


EXPECTED = {
    centred: (["sd_log__"], [((G, 2), True)]),
    not_centred: (["sd_log__", "sds_log__"], [((G, 2), True)]),
    student: ([], [((G, 1), False)]),
    positive: (["b_log__", "sd_log__"], [((G, 1), True)]),
}


@pytest.mark.parametrize("declare", EXPECTED)
def test_units_change_no_claim(declare: Callable[[float], None]) -> None:
    found = []
    for unit in UNITS:
        with pm.Model() as model:
            declare(unit)
        found.append(claims(model))
    assert found[0] == found[1]
    assert found[0][:2] == EXPECTED[declare]


PRIORS: dict[str, tuple[Callable[[], object], str]] = {
    "normal": (lambda: pm.Normal("u", shape=G), "Gaussian"),
    "own scales": (lambda: pm.Normal("u", 0, np.logspace(-6, 6, G), shape=G), "Gaussian"),
    "Laplace": (lambda: pm.Laplace("u", 0, 1e5, shape=G), "by level"),
    "one is not normal": (lambda: penalized(lambda u: pt.abs(u[HELD_OUT])), "by level"),
    "elastic net": (lambda: penalized(lambda u: pt.sum(pt.abs(u))), "by level"),
    "some are not": (lambda: penalized(lambda u: pt.sum(pt.abs(u[2:7]))), "by level"),
    "by weights": (lambda: penalized(lambda u: pt.dot(np.arange(12.0), pt.abs(u))), "by level"),
    "hinge": (lambda: penalized(lambda u: pt.sum(pt.maximum(u - 1, 0))), "by level"),
    "jump": (lambda: penalized(lambda u: pt.sum(pt.switch(u > 2, 1.0, 0.0))), "by level"),
    "one jumps": (lambda: penalized(lambda u: pt.switch(u[HELD_OUT] > 0, 1.0, 0.0)), "unknown"),
    "fused": (lambda: penalized(lambda u: pt.sum(pt.abs(u[1:] - u[:-1]))), "unknown"),
    "tied at the ends": (lambda: penalized(lambda u: pt.abs(u[0] - u[-1])), "unknown"),
}


def penalized(penalty: Callable[[pt.TensorVariable], pt.TensorVariable]) -> pt.TensorVariable:
    """Declare normal effects with a penalty beside."""
    u = pm.Normal("u", shape=G)
    pm.Potential("penalty", -5.0 * penalty(u))
    return u


@pytest.mark.parametrize("name", PRIORS)
def test_the_prior_of_every_level_is_known_by_its_values(name: str) -> None:
    declare, expected = PRIORS[name]
    with pm.Model() as model:
        u = declare()
        pm.Normal("y", u[GROUP], pm.HalfNormal("sigma"), observed=Y)
    tall, field = field_of(model)
    found = "unknown"
    for levels in field.levels:
        found = "Gaussian" if levels.prior is None else "by level"
        if levels.prior is not None:  # it is the prior, level by level
            point = np.random.default_rng(2).normal(size=tall.layout.size)
            moved = point.copy()
            moved[levels.latent[HELD_OUT]] += 3.0
            change = levels.prior.logp(moved) - levels.prior.logp(point)
            total = tall.compiled_prior_logp(moved) - tall.compiled_prior_logp(point)
            assert change[HELD_OUT] == pytest.approx(float(total))
            assert np.all(np.delete(change, HELD_OUT) == 0.0)
    assert found == expected


def test_effects_are_not_held_while_a_small_coefficient_moves() -> None:
    """It is 10⁻¹⁰, and an absolute tolerance would not see it move."""
    with pm.Model() as model:
        positive(1e9)
    tall, field = field_of(model)
    [b, sd] = [tall.layout.slices[name].start for name in ("b_log__", "sd_log__")]
    point = tall.layout.flatten(model.initial_point()) + 0.1
    for position, is_held in ((sd, True), (b, False)):
        hyper = point[field.hyper]
        hyper[field.hyper == position] += 0.3
        assert (field.with_effects_held(point, hyper) is not None) == is_held


def test_effects_are_held_where_terms_cancel() -> None:
    """An entry of φ that is a rounding error has the size of its terms."""
    with pm.Model() as model:
        not_centred(1.0)
    tall, field = field_of(model)
    point = np.random.default_rng(3).normal(size=tall.layout.size)
    where = tall.layout.slices
    sd = np.exp(point[where["sd_log__"]])
    point[where["za"].start] = -(point[where["mu"]] / sd)[0] * (1.0 + 1e-12)
    hyper = point[field.hyper] + 0.2
    assert field.with_effects_held(point, hyper) is not None


def test_a_scale_with_a_knot_is_a_hyperparameter() -> None:
    """At its start it changes nothing."""
    with pm.Model() as model:
        scale = 1.0 + pt.maximum(pm.Normal("t") - 0.5, 0.0)
        pm.Normal("y", (scale * pm.Normal("z", shape=G))[GROUP], 1.0, observed=Y)
    tall, field = field_of(model)
    assert {tall.layout.name_of(int(i)) for i in field.hyper} == {"t"}


def test_a_false_claim_is_seen_out_in_the_posterior() -> None:
    """Effects with long tails that are said to be normal."""
    with pm.Model() as model:
        a = pm.StudentT("a", nu=3, mu=0, sigma=pm.HalfNormal("sd"), shape=G)
        pm.Normal("y", a[GROUP], 1.0, observed=Y + np.linspace(-1, 1, G)[GROUP])
    latent_model = locate(TallModel(model), 1.0)
    surrogate, root = latent_model.reference.surrogate, latent_model.reference.hyper_cholesky
    assert surrogate.violation(latent_model.reference.hyper, root) is None
    surrogate.field.levels = [replace(levels, prior=None) for levels in surrogate.field.levels]
    claim = surrogate.violation(latent_model.reference.hyper, root)
    assert claim is not None
    assert "Gaussian" in claim
