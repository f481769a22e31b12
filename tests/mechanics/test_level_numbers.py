"""Numbers of levels below zero, which NumPy counts from the last: pandas codes missing ones so."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_minibatch as pmb

LABELS = ["a", "b", "c"]


def model_of(build_index, given):
    """Rows that read the level whose number is computed from data."""
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 10, shape=3)
        index = build_index(pm.Data("given", np.asarray(given)))
        pm.Normal("y", effect[index], 1.0, observed=np.zeros(len(given)))
    return model


INDICES = {
    "number": (lambda given: given, [0, 1, 2, 0, 1, 2], [0, 1, 2, -1]),
    "from_one": (lambda given: given - 1, [1, 2, 3, 1, 2, 3], [1, 2, 3, 0]),
    "of_a_column": (
        lambda given: pm.math.floor(given / 10).astype("int64"),
        [0.0, 15.0, 25.0, 5.0, 11.0, 29.0],
        [1.0, 2.0, 3.0, -4.0],
    ),
}


@pytest.mark.parametrize("name", INDICES)
def test_new_ones_are_refused(name):
    build, own, new = INDICES[name]
    model = model_of(build, own)
    data = {"given": np.array(new), "y": np.zeros(4)}
    with pytest.raises(pmb.NotTallError, match="-1 numbers a level of a group"):
        pmb.TallModel(model, data=data)
    fine = {name: values[:3] for name, values in data.items()}
    assert pmb.TallModel(model, data=fine).n_rows == 3


def test_missing_labels_are_refused():
    codes = pd.Categorical(["b", None, "c"], categories=LABELS).codes
    model = model_of(lambda given: given, np.array([0, 1, 2, 0], dtype=np.int8))
    with pytest.raises(pmb.NotTallError, match="missing and unknown labels"):
        pmb.TallModel(model, data={"given": codes, "y": np.zeros(3)})


def test_models_that_count_from_the_last_may_go_on():
    model = model_of(lambda given: given, [-3, -2, -1, 0, 1, 2])
    data = {"given": np.array([-1, 0, -3]), "y": np.ones(3)}
    tall = pmb.TallModel(model, data=data)
    point = {"effect": np.array([1.0, 2.0, 4.0])}
    expected = -0.5 * np.sum((np.array([4.0, 1.0, 1.0]) - 1.0) ** 2) - 1.5 * np.log(2 * np.pi)
    prior = -0.5 * np.sum(point["effect"] ** 2) / 100 - 3 * np.log(10 * np.sqrt(2 * np.pi))
    assert tall.logp(point) == pytest.approx(expected + prior)


@pytest.mark.parametrize("form", ["switch", "joined"])
def test_models_that_say_what_no_level_is_may_have_it(form):
    """An unknown level has the effect zero, by a condition or by an entry behind the others."""
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 10, shape=3)
        given = pm.Data("given", np.array([0, 1, 2, 0]))
        if form == "switch":
            read = pm.math.switch(given >= 0, effect[given], 0.0)
        else:
            read = pm.math.concatenate([effect, np.zeros(1)])[given]
        pm.Normal("y", read, 1.0, observed=np.zeros(4))
    tall = pmb.TallModel(model, data={"given": np.array([-1, 0, -1]), "y": np.ones(3)})
    values = tall.row_logp({"effect": np.array([1.0, 2.0, 4.0])}, [0, 1, 2])
    expected = -0.5 * np.array([1.0, 0.0, 1.0]) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(values, expected)


def test_a_last_level_that_is_joined_to_a_constant_is_no_place_for_missing_ones():
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 10, shape=2)
        given = pm.Data("given", np.array([0, 1, 2, 0]))
        pm.Normal("y", pm.math.concatenate([np.zeros(1), effect])[given], 1.0, observed=np.zeros(4))
    with pytest.raises(pmb.NotTallError, match="-1 numbers a level of a group"):
        pmb.TallModel(model, data={"given": np.array([-1, 0]), "y": np.ones(2)})


def test_other_numbers_below_zero_are_no_levels():
    """A predictor may well be negative, and one of the signed type may come as an unsigned one."""
    x, group = np.arange(6.0), np.array([0, 1, 2, 0, 1, 2])
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 10, shape=3)
        read = effect[pm.Data("group", group)] * pm.Data("x", x.astype(int))
        pm.Normal("y", read, 1.0, observed=np.zeros(6))
    data = {"x": np.array([-1, -2]), "group": np.array([0, 2], dtype=np.uint8), "y": np.zeros(2)}
    assert pmb.TallModel(model, data=data).n_rows == 2
