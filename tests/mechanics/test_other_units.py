"""The same model in other units of its data: the same claims and the same draws, up to rounding.

Units are powers of two next to powers of ten, so that nothing but logarithms of them is rounded.
``python -m tests.units`` changes those of variables, of models of the gallery and the zoo.
"""

import numpy as np
import pymc as pm
import pytest
from units import differ, power_of_two, run

N = 120
RNG = np.random.default_rng(4)
X = RNG.normal(size=(N, 2))
PREDICTOR = 0.3 + X @ [0.5, -0.4]
YES = RNG.binomial(1, 1 / (1 + np.exp(-PREDICTOR)))
Y = PREDICTOR + 0.7 * RNG.normal(size=N)

EXPONENTS = -9, 9


def answers(unit: float) -> pm.Model:
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1 / unit, shape=2)
        pm.Bernoulli("y", logit_p=a + (unit * X) @ b, observed=YES)
    return model


def outcomes(unit: float) -> pm.Model:
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2 * unit), pm.Normal("b", 0, unit, shape=2)
        pm.Normal("y", a + X @ b, pm.HalfNormal("sigma", unit), observed=unit * Y)
    return model


def in_unit_one(draws: dict[str, np.ndarray], factors: dict[str, float]) -> dict[str, np.ndarray]:
    """Return draws as those of the model in the unit 1; those of scales are logarithms."""
    return {
        name: chain + np.log(factors.get(name, 1.0))
        if name == "sigma"
        else chain * factors.get(name, 1.0)
        for name, chain in draws.items()
    }


def unlike(build, exponent: int, *names: str, inverse: bool = False) -> str:
    """Say how a run in another unit differs; variables with these names are measured in it."""
    unit = power_of_two(exponent)
    choice, draws = run(lambda: build(unit))
    factor = unit if inverse else 1 / unit
    changed = in_unit_one(draws, dict.fromkeys(names, factor))
    return differ(run(lambda: build(1.0)), (choice, changed))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("build", [answers])
def test_units_of_predictors_change_no_draw(build, exponent):
    assert unlike(build, exponent, "b", inverse=True) == ""


@pytest.mark.slow
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("build", [outcomes])
def test_units_of_the_outcome_change_no_draw(build, exponent):
    assert unlike(build, exponent, "a", "b", "sigma") == ""
