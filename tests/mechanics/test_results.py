"""Results in every form that they come in: the same numbers, or a refusal in words.

Each function that takes a result is tried with each change of one that leaves its meaning as it is,
and with some that do not. There is no third outcome.
"""

import re
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_minibatch as pmb
from pymc_minibatch import plots
from pymc_minibatch.draws import draws_of_step
from pymc_minibatch.panels import Panels

N_ROWS, SHAPE = 200, (3, 60)
SAMPLE = ("chain", "draw")
COORDS = {"g": ["a", "b", "c"], "k": ["one", "two"]}
LEVELS = np.array([[-3.0, 0.5], [0.0, 1.5], [4.0, -2.0]])


def rows():
    rng = np.random.default_rng(1)
    group, column = rng.integers(0, 3, N_ROWS), rng.integers(0, 2, N_ROWS)
    return group, column, LEVELS[group, column] + rng.normal(size=N_ROWS)


@pytest.fixture(scope="module")
def model():
    group, column, y = rows()
    with pm.Model(coords=COORDS) as model:
        u = pm.Normal("u", 0, 5, dims=("g", "k"))
        sigma = pm.HalfNormal("sigma")
        where = pm.Data("group", group), pm.Data("column", column)
        pm.Normal("y", u[where], sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def tall(model):
    return pmb.TallModel(model)


def made_up(seed):
    """A result as a step of this package returns it; every number is another."""
    rng = np.random.default_rng(seed)
    coords = {"chain": np.arange(SHAPE[0]), "draw": np.arange(SHAPE[1])}
    posterior = {
        "u": ((*SAMPLE, "g", "k"), rng.normal(LEVELS, 0.1, (*SHAPE, 3, 2))),
        "sigma": (SAMPLE, np.exp(rng.normal(0, 0.05, SHAPE))),
    }
    stats = {
        "n_rows": np.full(SHAPE, N_ROWS),
        "n_likelihood": rng.integers(10, 90, SHAPE),
        "n_gradient": rng.integers(10, 90, SHAPE),
        "batch_size": rng.uniform(10, 90, SHAPE),
        "n_bright": rng.integers(10, 90, SHAPE),
        "acceptance_rate": rng.uniform(0.3, 0.6, SHAPE),
        "log_ratio_var": rng.uniform(0.1, 1, SHAPE),
        "test_error": rng.uniform(0, 1e-3, SHAPE),
        "exact": np.zeros(SHAPE, dtype=bool),
        "stand_in": np.zeros(SHAPE, dtype=bool),
    }
    stats = {name: (SAMPLE, values) for name, values in stats.items()}
    return {
        "posterior": xr.Dataset(posterior, coords | COORDS, attrs={"sampling_time": 1.5}),
        "sample_stats": xr.Dataset(stats, coords),
    }


RUN, REFERENCE = made_up(2), xr.DataTree.from_dict(made_up(3))


def tree(change=lambda group: group, *, groups=RUN, only=()):
    """Build a result of changed groups."""
    return xr.DataTree.from_dict(
        {
            name: change(group) if name in (only or groups) else group
            for name, group in groups.items()
        }
    )


def shuffled(dim):
    return lambda group: (
        group.isel({dim: np.random.default_rng(4).permutation(group.sizes[dim])})
        if dim in group.dims
        else group
    )


def in_netcdf(folder):
    groups = {}
    for name, group in RUN.items():
        group.to_netcdf(folder / f"{name}.nc", engine="scipy")
        groups[name] = xr.open_dataset(folder / f"{name}.nc", engine="scipy")
    return xr.DataTree.from_dict(groups)


def in_zarr(folder, **chunks):
    pytest.importorskip("zarr", reason="zarr is an extra")
    tree().to_zarr(folder / "run.zarr")
    return xr.open_datatree(folder / "run.zarr", engine="zarr", **chunks)


def lazy(folder):
    pytest.importorskip("dask", reason="dask is an extra")
    return in_zarr(folder, chunks={"draw": 7})


def with_default_dims(group):
    """Name dimensions as samplers do that do not know those of the model."""
    if "u" not in group:
        return group
    return group.drop_vars(["g", "k"]).rename(g="u_dim_0", k="u_dim_1")


def of_nutpie(_):
    """A result as nutpie 0.16 makes it.

    It has no stats of this package, dims by name with labels as objects, groups of its warm-up,
    stats of other types, and attributes of its own.
    """
    draws = RUN["posterior"].assign_attrs(
        created_at="2026-11-26T12:13:25.620969+00:00",
        creation_library="ArviZ",
        creation_library_version="1.3.1",
        creation_library_language="Python",
        sample_dims=["chain", "draw"],
    )
    labels = {name: np.array(values, dtype=object) for name, values in COORDS.items()}
    draws = draws.assign_coords(labels)
    draws = draws.assign(total=draws["u"].sum(("g", "k")))  # a Deterministic
    kinds = {"depth": "uint64", "n_steps": "uint64", "diverging": "bool", "step_size": "float64"}
    stats = {name: (SAMPLE, np.full(SHAPE, 3).astype(kind)) for name, kind in kinds.items()}
    stats["divergence_message"] = (SAMPLE, np.full(SHAPE, None, dtype=object))
    stats["divergence_energy_error"] = (SAMPLE, np.full(SHAPE, np.nan))
    sampler = {"inference_library": "nutpie", "inference_library_version": "0.16.11"}
    stats = xr.Dataset(stats, {dim: draws[dim] for dim in SAMPLE}, draws.attrs | sampler)
    groups = {"posterior": draws, "sample_stats": stats}
    return xr.DataTree.from_dict(groups | {f"warmup_{name}": groups[name] for name in groups})


def of_another_sampler(_):
    """A result with other groups, more variables, and labels of a kind of their own."""
    posterior = with_default_dims(RUN["posterior"])
    posterior = posterior.assign_coords(u_dim_0=np.arange(3), u_dim_1=np.arange(2))
    posterior = posterior.assign(
        sigma_log__=np.log(posterior["sigma"]), name=(SAMPLE, np.full(SHAPE, "x", dtype=object))
    )
    warmup = {"warmup_posterior": posterior, "warmup_sample_stats": RUN["sample_stats"]}
    return xr.DataTree.from_dict(
        {"posterior": posterior, "sample_stats": RUN["sample_stats"], **warmup}
    )


SAME = {
    "variables": lambda _: tree(lambda group: group[sorted(group.data_vars)]),
    "dims": lambda _: tree(lambda group: group.transpose(..., "draw", "chain")),
    "levels": lambda _: tree(shuffled("g")),
    "levels_of_both": lambda _: tree(lambda group: shuffled("g")(shuffled("k")(group))),
    "chains": lambda _: tree(shuffled("chain")),
    "draws": lambda _: tree(shuffled("draw")),
    "chains_of_one_group": lambda _: tree(shuffled("chain"), only=["posterior"]),
    "stacked": lambda _: tree(lambda group: group.stack(sample=SAMPLE)),
    "stacked_otherwise": lambda _: tree(lambda group: group.stack(s=("draw", "chain"))),
    "without_labels": lambda _: tree(with_default_dims),
    "netcdf": in_netcdf,
    "zarr": in_zarr,
    "lazy": lazy,
    "float32": lambda _: tree(lambda group: group.astype(np.float32), only=["posterior"]),
    "another_sampler": of_another_sampler,
    "nutpie": of_nutpie,
    "one_dataset_each": lambda _: SimpleNamespace(
        posterior=xr.DataTree(RUN["posterior"]), sample_stats=RUN["sample_stats"]
    ),
    "stacked_and_lazy": lambda folder: lazy(folder).map_over_datasets(
        lambda group: group.stack(sample=SAMPLE) if "draw" in group.dims else group
    ),
    "attributes": lambda _: SimpleNamespace(**RUN),
    "stats_of_more_draws": lambda _: tree(
        lambda group: group.pad(draw=(0, 5), mode="edge").assign_coords(
            draw=np.arange(SHAPE[1] + 5)
        ),
        only=["sample_stats"],
    ),
}
"""Changes that leave the meaning of a result as it is."""


def drawn_by(monkeypatch, draw):
    """Return all numbers that a figure draws."""
    seen = []

    def curve(self, run, x, y, *args, **kwargs):
        seen.extend([np.asarray(x), np.asarray(y)])

    real = plots.drawable

    def drawable(run, arrays):
        seen.extend(values.values for values in arrays.values())
        return real(run, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(Panels, "line", curve)
        patch.setattr(Panels, "scatter", curve)
        patch.setattr(plots, "drawable", drawable)
        draw()
    return np.concatenate([np.ravel(values).astype(float) for values in seen])


def numbers_of_table(idata):
    table = pmb.compare({"run": idata, "reference": REFERENCE}, "reference")
    return table.drop(columns="verdict").loc["run"].to_numpy(dtype=float)


def numbers_of_worst(idata):
    table = pmb.worst(idata)
    of_model = [name for name in table.index if name == "sigma" or name.startswith("u[")]
    return table.loc[sorted(of_model)].to_numpy(dtype=float)


def numbers_of_report(idata):
    words = [word.strip(".:%()") for word in pmb.report(idata).replace(",", "").split()]
    return np.array([float(word) for word in words if word.replace(".", "").isdigit()])


def mean_by_running(idata, tall):
    """The mean of a function of all variables, for some rows."""
    model = tall.model
    f = pm.math.exp(model["u"][model["group"], model["column"]] * model["sigma"])
    mean = pmb.RunningMean(f, data={"group": [0, 2, 2], "column": [0, 0, 1]}, model=model)
    mean.add(idata)
    assert mean.n_draws
    return mean.mean


FUNCTIONS = {
    "loo": lambda idata, tall: pmb.loo(idata, 50, data=tall).elpd,
    "log_likelihood": lambda idata, tall: pmb.log_likelihood(idata, [3, 5], data=tall).y.values,
    "predict": lambda idata, tall: pmb.predict(idata, data=tall)["quantile"].values,
    "predict_means": lambda idata, tall: pmb.predict(idata, data=tall, kind="mean")["mean"].values,
    "ksd": lambda idata, tall: pmb.ksd(idata, data=tall, control_variate=0).squared,
    "worst": lambda idata, _: numbers_of_worst(idata),
    "RunningMean": mean_by_running,
    "audit": lambda idata, tall: draws_of_step(idata, tall).all_points(tall, 50, least=40),
    "compare": lambda idata, _: numbers_of_table(idata),
    "report": lambda idata, _: numbers_of_report(idata),
}

FIGURES = {
    "marginals": lambda idata: plots.marginals(
        {"reference": REFERENCE, "run": idata}, backend="none"
    ),
    "error_by_rows": lambda idata: plots.error_by_rows(
        {"run": idata, "reference": REFERENCE}, "reference", backend="none"
    ),
    "running_mean": lambda idata: plots.running_mean(
        {"run": idata, "reference": REFERENCE}, "reference", backend="none"
    ),
    "batch_sizes": lambda idata: plots.batch_sizes({"run": idata}, backend="none"),
    "bright_rows": lambda idata: plots.bright_rows({"run": idata}, backend="none"),
    "noise": lambda idata: plots.noise({"run": idata}, backend="none"),
    "accuracy_by_rows": lambda idata: plots.accuracy_by_rows(
        {"run": idata}, {"run": np.ones(SHAPE)}, backend="none"
    ),
}


@pytest.fixture
def outcome(monkeypatch, tall):
    """Return what a function makes of a result: numbers, or the words of its refusal."""

    def of(name, idata):
        try:
            if name in FIGURES:
                return drawn_by(monkeypatch, lambda: FIGURES[name](idata))
            return np.asarray(FUNCTIONS[name](idata, tall), dtype=float)
        except (ValueError, TypeError) as error:
            return str(error)

    return of


@pytest.fixture(scope="module")
def expected():
    """What each function makes of the result as it is, once it was asked for."""
    return {}


@pytest.mark.filterwarnings("ignore:.*standard error due to subsampling")
@pytest.mark.filterwarnings("ignore:.*Pareto k")
@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("name", [*FUNCTIONS, *FIGURES])
def test_the_same_numbers(tmp_path, outcome, expected, name, change):
    if change == "nutpie" and name in READ_STATS:
        words = "no sample stat|every step of this package records|does not record how many rows"
        assert re.search(words, outcome(name, of_nutpie(tmp_path)))
        return
    if change == "nutpie" and name in ("compare", "error_by_rows"):  # which count its gradients
        assert verdict(of_nutpie(tmp_path)) == verdict(tree())
        assert np.isfinite(outcome(name, of_nutpie(tmp_path))).any()
        return
    if name not in expected:
        expected[name] = outcome(name, tree())
        assert np.isfinite(expected[name]).sum() > 0
    found = outcome(name, SAME[change](tmp_path))
    assert not isinstance(found, str), found
    rtol = 2e-3 if change == "float32" else 1e-9
    np.testing.assert_allclose(found, expected[name], rtol, 1e-3 if rtol > 1e-9 else 1e-12)


def with_nan(group):
    group = group.copy(deep=True)
    group["u"][1, 20, 2, 0] = np.nan
    return group


def ended_early(group):
    made = xr.DataArray(np.arange(SHAPE[1]) < [[60], [25], [60]], dims=SAMPLE)
    return group.where(made)


OTHER = {
    "nan": (lambda: tree(with_nan, only=["posterior"]), "not finite: 1 of 180, first draw 20 of"),
    "interrupted": (
        lambda: tree(ended_early, only=["posterior"]),
        r"chain 1 stopped after 25 of 60 draws. Leave out .*isel\(draw=slice\(25\)\)",
    ),
    "other_labels": (
        lambda: tree(lambda group: group.assign_coords(g=list("abd")), only=["posterior"]),
        "u has other labels along g .*: d only in the posterior, c only in the",
    ),
    "fewer_levels": (
        lambda: tree(lambda group: group.isel(g=[0, 1]), only=["posterior"]),
        r"u has shape \(2, 2\) in the posterior and \(3, 2\)",
    ),
    "objects": (
        lambda: tree(lambda group: group.assign(u=group["u"].astype(object)), only=["posterior"]),
        "u has draws of dtype object in idata, which are no real numbers",
    ),
    "stats_of_other_draws": (
        lambda: tree(lambda group: group.isel(draw=slice(30)), only=["sample_stats"]),
        "sample_stats of other draws than its posterior: 30 and 60",
    ),
}
"""Results that mean something else, with the words of the refusal."""

READ_THE_DRAWS = ["loo", "log_likelihood", "predict", "ksd", "audit", "RunningMean"]
READ_SEVERAL = ["compare", "error_by_rows", "running_mean", "marginals"]
READ_STATS = ["report", "batch_sizes", "bright_rows", "noise", "accuracy_by_rows"]


@pytest.mark.parametrize(
    "change", ["nan", "interrupted", "other_labels", "fewer_levels", "objects"]
)
@pytest.mark.parametrize("name", READ_THE_DRAWS)
def test_refused_by_what_reads_the_draws(outcome, name, change):
    build, words = OTHER[change]
    found = outcome(name, build())
    assert isinstance(found, str)
    with pytest.raises(ValueError, match=words):
        raise ValueError(found)


@pytest.mark.parametrize("change", ["nan", "interrupted", "other_labels"])
@pytest.mark.parametrize("name", READ_SEVERAL[1:])
def test_refused_by_figures(outcome, name, change):
    build, words = OTHER[change]
    found = outcome(name, build())
    assert isinstance(found, str)
    with pytest.raises(ValueError, match=words):
        raise ValueError(found)


@pytest.mark.parametrize("name", READ_STATS)
def test_stats_of_other_draws_are_refused(outcome, name):
    build, words = OTHER["stats_of_other_draws"]
    with pytest.raises(ValueError, match=words):
        raise ValueError(outcome(name, build()))


def verdict(idata, **options):
    table = pmb.compare({"run": idata, "reference": REFERENCE}, "reference", **options)
    return table.verdict["run"]


def test_the_table_of_runs_tells():
    assert verdict(OTHER["nan"][0]()) == "not finite: u[c, one]"
    assert verdict(OTHER["interrupted"][0]()).startswith("interrupted: chain 1 stopped after 25")
    with pytest.raises(ValueError, match=r"other labels along g.*other variables in var_names"):
        verdict(OTHER["other_labels"][0]())
    verdict(OTHER["other_labels"][0](), var_names=["sigma"])


def test_labels_that_differ_in_the_same_places():
    """The same numbers at other labels are other draws."""
    moved = tree(lambda group: group.assign_coords(g=list("cab")), only=["posterior"])
    assert verdict(moved).startswith("differs: u[")


def test_a_report_tells():
    text = pmb.report(OTHER["interrupted"][0]())
    assert "The run was interrupted: chain 1 stopped after 25 of 60 draws" in text
    text = pmb.report(OTHER["nan"][0]())
    assert "draws that are not finite, in 1 element (u[c, one])" in text


@pytest.mark.parametrize("name", [*FUNCTIONS, *FIGURES])
def test_one_draw(outcome, tall, name):
    """Its own numbers, or words."""
    one = tree(lambda group: group.isel(chain=[1], draw=[7]))
    if name == "log_likelihood":
        expected = pmb.log_likelihood(tree(), [3, 5], data=tall).y[1, 7]
        np.testing.assert_allclose(outcome(name, one).ravel(), expected)
    elif name == "RunningMean":
        u, sigma = (one["posterior"][variable].values[0, 0] for variable in ("u", "sigma"))
        expected = np.exp(u[[0, 2, 2], [0, 0, 1]] * sigma)
        np.testing.assert_allclose(outcome(name, one), expected)
    elif name == "worst":
        assert np.isnan(outcome(name, one)).any()
    elif name == "compare":
        assert verdict(one).startswith("not compared: too few draws")
    elif name == "report":
        assert "1 draw of 1 chain cannot show convergence" in pmb.report(one)
    elif name in READ_STATS:
        found = outcome(name, one)
        assert name == "accuracy_by_rows" or np.isfinite(found).any()
    elif name in ("error_by_rows", "running_mean"):
        assert np.isfinite(outcome(name, one)).all()
    else:
        assert isinstance(outcome(name, one), str)


@pytest.mark.parametrize("name", READ_THE_DRAWS)
def test_results_of_bambi_need_its_model(outcome, name):
    shifted = tree(lambda group: group.assign_attrs(modeling_interface="bambi"))
    assert "result of Bambi, which moves the intercept" in outcome(name, shifted)


@pytest.mark.parametrize("function", [pmb.loo, pmb.log_likelihood, pmb.predict, pmb.ksd])
def test_a_stand_in_is_refused(model, function):
    bound = tree(lambda group: group.assign(stand_in=(SAMPLE, np.ones(SHAPE, dtype=bool))))
    with pytest.raises(ValueError, match="bound with data="):
        function(bound, model=model)


def test_thinned_by_hand_is_thinned_by_the_function(tall):
    by_hand = tree(lambda group: group.isel(draw=np.arange(0, 60, 3)))
    found = pmb.log_likelihood(by_hand, [3, 5], data=tall)
    xr.testing.assert_allclose(found, pmb.log_likelihood(tree(), [3, 5], data=tall, max_draws=60))


def test_what_thinning_left_out_was_read_as_well():
    """Rows of an effective draw are about the same whether draws are thinned or not."""
    whole = pmb.compare({"run": tree()}, "run").loc["run"]
    third = tree(lambda group: group.isel(draw=slice(None, None, 3)))
    thin = pmb.compare({"run": third}, "run").loc["run"]
    assert thin.rows_per_draw == pytest.approx(3 * whole.rows_per_draw, rel=0.1)


@pytest.mark.parametrize(
    "steps",
    [
        {"n_likelihood": [[5, 7]], "n_gradient": [[9, 2]], "expected": 9 + 7},
        {"n_likelihood": [[5]], "n_gradient": [[0, 40]], "expected": 5 + 40},
        {"n_gradient": [[30, 40]], "expected": 70},
    ],
)
def test_rows_of_several_steps_add_up(steps):
    expected = steps.pop("expected")
    n_steps = len(steps["n_gradient"][0])
    stats = {
        name: ((*SAMPLE, f"{name}_dim"), np.broadcast_to(values, (*SHAPE, len(values[0]))))
        for name, values in ({"n_rows": [[N_ROWS] * n_steps]} | steps).items()
    }
    groups = {"posterior": RUN["posterior"], "sample_stats": xr.Dataset(stats)}
    table = pmb.compare({"run": tree(groups=groups)}, "run")
    assert table.rows_per_draw["run"] == expected


def test_figures_show_each_of_several_steps(monkeypatch):
    sizes = np.broadcast_to([20.0, 1000.0], (*SHAPE, 2)) + np.arange(SHAPE[1])[:, None]
    stats = xr.Dataset({"batch_size": ((*SAMPLE, "step"), sizes)})
    both = tree(groups={"posterior": RUN["posterior"], "sample_stats": stats})
    drawn = drawn_by(monkeypatch, lambda: plots.batch_sizes(both, backend="none"))
    assert np.nanmax(drawn) > 1000


def test_labels_of_other_types(model):
    """Dates that a store turns into times, and numbers that it turns into strings."""
    import datetime

    days = [datetime.date(2026, 1, day) for day in (3, 1, 2)]
    group, _, y = rows()
    with pm.Model(coords={"day": days}) as dated:
        u = pm.Normal("u", 0, 5, dims="day")
        pm.Normal("y", u[pm.Data("group", group)], 1.0, observed=y)
    times = np.array(days, dtype="datetime64[ns]")
    values = np.random.default_rng(5).normal([-3.0, 0.0, 4.0], 0.1, (*SHAPE, 3))
    tall = pmb.TallModel(dated)
    found = [
        pmb.log_likelihood(
            xr.DataTree.from_dict(
                {"posterior": xr.Dataset({"u": ((*SAMPLE, "day"), values[..., order])}, coords)}
            ),
            [0, 1],
            data=tall,
        ).y.values
        for order, coords in [
            ([0, 1, 2], {"day": times}),
            ([1, 2, 0], {"day": times[[1, 2, 0]]}),
            ([2, 0, 1], {"day": [str(days[k]) for k in (2, 0, 1)]}),
            ([0, 1, 2], {}),
        ]
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_numbers_of_positions_are_no_labels():
    """Labels of the model are the same numbers in another order; a sampler has numbered levels."""
    group, _, y = rows()
    with pm.Model(coords={"g": [2, 0, 1]}) as numbered:
        u = pm.Normal("u", 0, 5, dims="g")
        pm.Normal("y", u[pm.Data("group", group)], 1.0, observed=y)
    values = np.random.default_rng(6).normal([-3.0, 0.0, 4.0], 0.1, (*SHAPE, 3))

    def result(dim, labels, order=slice(None)):
        draws = xr.Dataset({"u": ((*SAMPLE, dim), values[..., order])}, {dim: labels})
        return xr.DataTree.from_dict({"posterior": draws})

    runs = {
        "labels": result("g", [2, 0, 1]),
        "labels in another order": result("g", [0, 1, 2], [1, 2, 0]),
        "positions": result("u_dim_0", [0, 1, 2]),
        "positions in another order": result("u_dim_0", [1, 2, 0], [1, 2, 0]),
    }
    tall = pmb.TallModel(numbered)
    found = [pmb.log_likelihood(run, [0, 1], data=tall).y.values for run in runs.values()]
    assert (pmb.compare(runs, "labels").verdict.drop("labels") == "agrees").all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
