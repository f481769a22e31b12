"""Claims are decided by values, at points with the scale of the model, entry by entry."""

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.tall.layout import PointLayout
from pymc_minibatch.tall.probes import prior_points
from pymc_minibatch.tall.verify import agree, compare, quadratic, uneven

POINTS = [np.array([0.3, -1.2]), np.array([4.0, 1e-6])]


def sizes(point):
    """Two entries of very different size."""
    return np.array([1e12 * np.exp(point[0]), point[1] ** 3])


def test_every_entry_is_compared_with_its_own_size():
    assert agree(sizes, lambda point: sizes(point) * (1 + 1e-12), POINTS) is None
    wrong = agree(sizes, lambda point: sizes(point) * [1.0, 1 + 1e-4], POINTS, rows=[7, 8])
    assert wrong is not None
    assert (wrong.point, wrong.entry) == (0, 8)
    assert "entry 8" in str(wrong)


@pytest.mark.parametrize("power", range(-9, 10, 3))
def test_units_change_nothing(power):
    unit = 10.0**power

    def fine(point):
        return unit * np.sin(point)

    assert agree(fine, lambda point: fine(point) * (1 + 1e-9), POINTS) is None
    assert agree(fine, lambda point: fine(point) * (1 + 1e-5), POINTS) is not None


def test_rounding_of_what_has_lost_its_digits_is_no_difference():
    def one(point):
        return (1e8 + point - 1e8) ** 2

    def other(point):
        return (2e8 + 2 * point - 2e8) ** 2 / 4

    assert agree(one, other, [np.array([1e8 + 0.123, 3e8 + 0.7])]) is None


def test_what_is_finite_in_one_is_finite_in_the_other():
    impossible = np.array([1.0, -np.inf])
    assert compare(impossible, impossible) is None
    assert compare(impossible, np.array([1.0, -1e300])).entry == 1
    assert compare(np.array([np.nan]), np.array([0.0])) is not None


PARABOLAS = {
    "a parabola": lambda s: np.array([-0.5 * (s - 3) ** 2, -1e9 * (s + 0.1) ** 2]),
    "one far from zero": lambda s: np.array([-0.5 * (1e6 + s) ** 2]),
    "a line": lambda s: np.array([2.0 * s]),
}
OTHERS = {
    "a kink at the middle": lambda s: np.array([-0.5 * s**2, -abs(s)]),
    "a kink far out": lambda s: np.array([-0.5 * s**2 - max(0.0, s - 7.3)]),
    "a wall": lambda s: np.array([-0.5 * s**2 - (1e5 if s < -4 else 0)]),
    "a heavy tail": lambda s: np.array([-2.5 * np.log1p(s**2 / 4)]),
    "an edge": lambda s: np.array([-0.5 * s**2 if s < 9 else -np.inf]),
    "a small entry beside a large": lambda s: np.array([-1e9 * s**2, -1e-4 * s**4]),
}


@pytest.mark.parametrize("name", PARABOLAS)
def test_parabolas_pass(name):
    assert quadratic(PARABOLAS[name]) is None


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_parabola_is_told_by_values(name):
    assert quadratic(OTHERS[name]) is not None


def test_slope_and_curvature_have_to_be_those_of_the_values():
    def along(s):
        return np.array([1.0 + 2.0 * s - 3.0 * s**2])

    assert quadratic(along, slope=[2.0], curvature=[-6.0]) is None
    assert quadratic(along, slope=[2.0], curvature=[-6.1]) is not None


def test_arrays_are_compared_entry_by_entry():
    array = np.array([1e12, 1.0])
    assert uneven([array, array, array]) is None
    assert uneven([array, array, array + np.array([0, 0.1])]).point == 2


def test_points_of_the_prior_have_its_scales_and_constraints():
    with pm.Model() as model:
        pm.Normal("wide", 0, 1e6, shape=3)
        pm.HalfNormal("scale", 1e-4)
        low = pm.Flat("low", shape=2)
        pm.Normal("child", low, 1e-6)
    layout = PointLayout.of(model.initial_point(), [v.name for v in model.value_vars])
    points = prior_points(model, layout, 40)
    assert points.shape == (40, layout.size)
    assert np.isfinite(points).all()
    named = {name: points[:, where] for name, where in layout.slices.items()}
    assert 5e5 < named["wide"].std() < 2e6
    assert -12 < named["scale_log__"].mean() < -8
    np.testing.assert_allclose(named["child"], named["low"], atol=1e-5)
    assert not np.array_equal(points[0], points[1])
    np.testing.assert_array_equal(points, prior_points(model, layout, 40))
