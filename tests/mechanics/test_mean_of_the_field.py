"""The mean of the field is where rows lead, on average over it."""

import math

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.mean_correction import MeanCorrection, with_mean_correction
from pymc_minibatch.latent.surrogate import Surrogate
from pymc_minibatch.tall import TallModel

GROUPS, ROWS = 40, 4000


def model() -> pm.Model:
    rng = np.random.default_rng(3)
    group, x = rng.integers(0, GROUPS, ROWS), rng.normal(size=ROWS)
    y = rng.poisson(np.exp(0.4 * rng.normal(size=GROUPS)[group] + 0.3 * x - 1.0))
    with pm.Model() as made:
        eta = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x
        eta += pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=GROUPS)[group]
        pm.Poisson("y", pm.math.exp(eta), observed=y)
    return made


@pytest.mark.parametrize("sds", [0.0, 1.5, -1.5])
def test_a_mean_is_not_believed_if_rows_lead_away(
    sds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slope that is made up moves it by some standard deviations of a coefficient."""
    original, found = MeanCorrection.corrected, list[float]()
    with_higher_orders = MeanCorrection.with_higher_orders

    def corrected(self: MeanCorrection, surrogate: Surrogate) -> Surrogate:
        right = original(self, surrogate)
        expansion, dense = right.expansion, right.field.rows.dense
        slope = expansion.mean_correction.copy()
        slope[dense] += sds * np.sqrt(expansion.curvature.dense.diagonal())
        return with_mean_correction(right, slope)

    def watched(self: MeanCorrection, surrogate: Surrogate) -> tuple[Surrogate, float]:
        result = with_higher_orders(self, surrogate)
        found.append(result[1])
        return result

    monkeypatch.setattr(MeanCorrection, "corrected", corrected)
    monkeypatch.setattr(MeanCorrection, "with_higher_orders", watched)
    field = locate(TallModel(model()), 1.0).reference
    assert found
    assert all(math.isinf(away) if sds else away < 1.0 for away in found), found
    center, hyper = field.surrogate.center, field.surrogate.field.hyper
    mean = field.surrogate.conditional(center[hyper]).point
    assert np.abs(mean - center).max() < 0.3
