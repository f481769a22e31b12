"""Effects that rows read through a function of several variables."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_minibatch.latent.locate import locate
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel

N, G = 3000, 60
RNG = np.random.default_rng(1)
GROUP = np.append(np.arange(G), RNG.integers(0, G, N - G))
X = RNG.normal(size=N)
N_FEW, FEW = 12, GROUP % 12
COUNTS, NUMBERS = RNG.poisson(1.5, N), RNG.normal(size=N)


def top_of_uniform() -> None:
    rate = pm.Uniform("rate", 0, pm.HalfNormal("top", 5), shape=G)
    pm.Poisson("y", rate[GROUP] * pm.math.exp(pm.Normal("b") * X), observed=COUNTS)


def angles() -> None:
    angle = pm.VonMises("angle", pm.VonMises("mu", 0, 1), pm.Gamma("kappa", 2, 0.5), shape=G)
    pm.Normal("y", pt.sin(angle[GROUP] + X), pm.HalfNormal("sigma", 1), observed=NUMBERS)


def height_of_a_sigmoid() -> None:
    effect = pm.Normal("mu") + pm.HalfNormal("sd", 1) * pm.Normal("z", shape=G)
    share = pm.Deterministic("share", pm.HalfNormal("height", 3) * pm.math.sigmoid(effect))
    pm.Normal("y", share[GROUP], pm.HalfNormal("sigma", 2), observed=NUMBERS)


def height_of_what_is_gathered() -> None:
    effect = pm.Normal("mu") + pm.HalfNormal("sd", 1) * pm.Normal("z", shape=G)
    share = pm.HalfNormal("height", 3) * pm.math.sigmoid(effect)[GROUP]
    pm.Normal("y", share, pm.HalfNormal("sigma", 2), observed=NUMBERS)


def regions_of_groups() -> None:
    effect = pm.Normal("mu") + pm.HalfNormal("sd", 1) * pm.Normal("z", shape=N_FEW)
    rate = pm.math.exp(effect)[np.arange(G) % N_FEW]
    pm.Poisson("y", rate[GROUP], observed=COUNTS)


def rows_of_two_columns() -> None:
    effect = pm.Normal("mu", shape=2) + pm.Normal("z", shape=(G, 2))
    both = pm.HalfNormal("height", 3, shape=2) * pm.math.sigmoid(effect)
    mean = (both[GROUP] * np.column_stack([np.ones(N), X])).sum(axis=1)
    pm.Normal("y", mean, 1.0, observed=NUMBERS)


def ratio_of_columns() -> None:
    sd = pm.HalfNormal("sd", 1, shape=2)
    both = pm.math.exp(pm.Normal("mu", shape=2) + sd * pm.Normal("z", shape=(G, 2)))
    size = np.linspace(1, 2, G)
    ratio = (both[:, 0] * size**0.75 / both[:, 1])[GROUP]
    pm.Normal("y", ratio * X + both[GROUP, 1], 1.0, observed=NUMBERS)


def probabilities() -> None:
    chances = pm.Dirichlet("chances", a=pm.Gamma("c", 2, 0.5, shape=3), shape=(G, 3))
    pm.Categorical("y", p=chances[GROUP], observed=np.minimum(COUNTS, 2))


def beside_a_category() -> None:
    effect = pt.concatenate([np.zeros((G, 1)), pm.Normal("z", 0, 1.5, shape=(G, 2))], axis=1)
    chances = pt.special.softmax(effect, axis=1)
    pm.Categorical("y", p=chances[GROUP], observed=np.minimum(COUNTS, 2))


def beside_a_level() -> None:
    effect = pt.concatenate([[0.0], pm.Normal("z", 0, pm.HalfNormal("sd"), shape=G - 1)])
    pm.Normal("y", pm.math.exp(effect)[GROUP] * X, 1.0, observed=NUMBERS)


def shares_of_a_total() -> None:
    share = pm.Dirichlet("share", a=np.full(3, 2.0), shape=(G, 3)).cumsum(axis=1)
    pm.Normal("y", share[GROUP, 1] * X, 1.0, observed=NUMBERS)


def zeros_by_level() -> None:
    """The weights of a mixture, which PyMC adds up to see whether they are 1."""
    absent = pm.math.sigmoid(pm.HalfNormal("sd") * pm.Normal("z", shape=G))
    rate = pm.math.exp(pm.Normal("log_rate", 0, 1, shape=G))
    pm.ZeroInflatedPoisson("y", psi=absent[GROUP], mu=rate[GROUP], observed=COUNTS)


def weights_of_a_mixture() -> None:
    share = pm.math.sigmoid(pm.HalfNormal("sd") * pm.Normal("z", dims="few"))[FEW]
    parts = [pm.Normal.dist(-1, 1), pm.Normal.dist(1, 1)]
    pm.Mixture("y", pt.stack([1 - share, share], axis=1), parts, observed=NUMBERS)


def thresholds() -> None:
    cut = pm.Normal(
        "cut",
        np.arange(3),
        pm.HalfNormal("sd"),
        dims=("few", "threshold"),
        transform=pm.distributions.transforms.ordered,
        initval=np.tile(np.arange(3.0), (N_FEW, 1)),
    )
    eta = pm.Normal("b") * X
    pm.OrderedLogistic("y", eta, cut[FEW], observed=np.minimum(COUNTS, 3), compute_p=False)


def stretched_thresholds() -> None:
    """As raters use a scale: each shifts and stretches the thresholds that all have."""
    shift = pm.HalfNormal("shift_sd", 1) * pm.Normal("shift", shape=G)
    stretch = pm.math.exp(pm.HalfNormal("stretch_sd", 0.5) * pm.Normal("stretch", shape=G))
    ordered = pm.distributions.transforms.ordered
    cut = pm.Normal("cut", 0, 2, shape=5, transform=ordered, initval=np.linspace(-1, 2, 5))
    own = shift[:, None] + stretch[:, None] * cut
    answers = np.minimum(COUNTS, 5)
    pm.OrderedLogistic("y", pm.Normal("b") * X, own[GROUP], observed=answers, compute_p=False)


@pytest.mark.parametrize(
    ("declare", "hyper"),
    [
        (top_of_uniform, set()),
        (zeros_by_level, {"sd_log__"}),
        (angles, {"mu_circular__", "kappa_log__"}),
        (height_of_a_sigmoid, {"sd_log__"}),
        (height_of_what_is_gathered, {"sd_log__"}),
        (regions_of_groups, {"sd_log__"}),
        (rows_of_two_columns, set()),
        (ratio_of_columns, {"sd_log__"}),
        (probabilities, {"c_log__"}),
        (shares_of_a_total, set()),
        (beside_a_category, set()),
        (weights_of_a_mixture, {"sd_log__"}),
        (thresholds, {"sd_log__"}),
        (stretched_thresholds, {"shift_sd_log__", "stretch_sd_log__"}),
    ],
)
def test_rows_apply_the_function(declare: Callable[[], None], hyper: set[str]) -> None:
    """Then effects are a field given few hyperparameters, and rows say what they said."""
    with pm.Model(coords={"few": range(N_FEW), "threshold": range(3)}) as model:
        declare()
    tall = TallModel(model)
    field = locate(tall, 1.0).reference.surrogate.field
    slices = tall.layout.slices
    in_hyper = {name for name, where in slices.items() if where.start in field.hyper}
    assert in_hyper == hyper
    assert any(len(levels.latent) in (G, N_FEW) for levels in field.levels)
    assert tall.structure is not None
    functions, right = RowFunctions(tall.structure), model.compile_logp()
    phi_at = pm.pytensorf.compile([tall.structure.flat], tall.structure.phi)
    for _ in range(3):
        point = tall.start + RNG.normal(0, 0.5, tall.start.size)
        rows = functions.row(functions.predictors_at(phi_at(point), *tall.data), *tall.data)[0]
        found = float(tall.compiled_prior_logp(point)) + rows.sum()
        np.testing.assert_allclose(found, right(tall.layout.unflatten(point)), rtol=1e-10)


def test_effects_times_a_function_stay_what_rows_read() -> None:
    """Given the scale of each level, they are affine in the effects."""
    with pm.Model() as model:
        scale = pm.InverseGamma("scale", 3, 2, shape=G)
        effect = pm.Normal("z", shape=G) * pt.sqrt(scale)
        pm.Normal("y", effect[GROUP], 1.0, observed=NUMBERS)
    structure = TallModel(model).structure
    assert structure is not None
    [term] = structure.terms
    assert term.block.stop - term.block.start == G


def three_sums() -> None:
    parts = [pm.math.exp(pm.Normal(f"z{i}", shape=(G, 6))).sum(axis=1)[GROUP] for i in range(3)]
    pm.Normal("y", pm.Normal("k") * parts[0] + parts[1] * X + parts[2], 1.0, observed=NUMBERS)


def many_shares() -> None:
    weight = pm.Gamma("weight", 2, 1, shape=(G, 20))
    share = weight / weight.sum(axis=1, keepdims=True)
    columns = RNG.normal(size=(N, 20))
    pm.Normal("y", (share[GROUP] * columns).sum(axis=1), 1.0, observed=NUMBERS)


@pytest.mark.parametrize("declare", [three_sums, many_shares, beside_a_level])
def test_rows_that_would_read_too_much_gather_what_is_written(declare: Callable[[], None]) -> None:
    with pm.Model() as model:
        declare()
    structure = TallModel(model).structure
    assert structure is not None
    assert len(structure.predictors) <= 3


@pytest.mark.parametrize(("shape", "index"), [((G, 8), GROUP), (3, GROUP % 3)])
def test_many_columns_and_few_levels_stay_what_rows_read(
    shape: int | tuple[int, int], index: np.ndarray
) -> None:
    """A row would read many numbers; and few levels are hyperparameters."""
    with pm.Model() as model:
        value = pm.Uniform("value", 0, pm.HalfNormal("top", 5), shape=shape)[index]
        mean = value if value.ndim == 1 else value.sum(axis=1)
        pm.Normal("y", mean, 1.0, observed=NUMBERS)
    structure = TallModel(model).structure
    assert structure is not None
    assert len(structure.predictors) == 1


def test_a_sum_of_many_columns_hides_no_function_beside_it() -> None:
    """Rows that would read fourteen functions of effects read their sum, and the other effects."""
    columns = RNG.normal(size=(N, 14))
    with pm.Model() as model:
        cost = pm.math.exp(pm.HalfNormal("sd") * pm.Normal("z", shape=G))[GROUP] * X
        slopes = pm.math.exp(pm.Normal("w", 0, 1, shape=(G, 14)))[GROUP]
        pm.Normal("y", (slopes * columns).sum(axis=1) - cost, 1.0, observed=NUMBERS)
    structure = TallModel(model).structure
    assert structure is not None
    assert len(structure.predictors) == 2


@pytest.mark.parametrize("n_levels", [1, 4])
def test_a_loop_over_a_variable_with_dims(n_levels: int) -> None:
    """Loops refuse lengths of one that they were not made with."""
    with pm.Model(coords={"k": range(n_levels)}) as model:
        b = pm.Normal("b", dims="k")
        powers = pytensor.scan(
            lambda power, b: power * b,
            outputs_info=[b],
            non_sequences=[b],
            n_steps=3,
            return_updates=False,
        )
        pm.Normal("y", powers[-1].sum() * X, 1, observed=NUMBERS)
    assert TallModel(model).structure is not None


def test_small_factors_do_not_keep_a_large_one_from_its_function() -> None:
    """Together rows would read twenty numbers below functions."""
    with pm.Model() as model:
        sizes = [N_FEW] * 9 + [G]
        total: Any = 0.0
        for i, size in enumerate(sizes):
            value = pm.Uniform(f"v{i}", 0, pm.HalfNormal(f"top{i}", 5), shape=size)
            total = total + value[GROUP % size]
        pm.Normal("y", total, 1.0, observed=NUMBERS)
    structure = TallModel(model).structure
    assert structure is not None
    names = list(structure.blocks)
    assert "v9_interval__" in names
    assert "v0_interval__" not in names
