"""The table that compares runs: its numbers, its verdicts, and what it cannot know."""

import re

import arviz as az
import numpy as np
import pytest
from models import normal_model
from scipy.signal import lfilter

import pymc_minibatch as pmb

BURN_IN = 100


def chains(seed, correlation=0.3, shape=(4, 1000, 20), shift=0.0, scale=1.0):
    """Autoregressive chains with mean `shift` and standard deviation `scale`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(shape[0], shape[1] + BURN_IN, *shape[2:]))
    noise *= np.sqrt(1 - correlation**2)
    return shift + scale * lfilter([1], [1, -correlation], noise, axis=1)[:, BURN_IN:]


def run(beta, stats=None, seconds=None, observed=None):
    groups = {"posterior": {"beta": beta}, "sample_stats": stats or {}}
    if observed is not None:
        groups["observed_data"] = {"y": observed}
    result = az.from_dict({name: group for name, group in groups.items() if group})
    if seconds is not None:
        result.posterior.attrs["sampling_time"] = seconds
    return result


REFERENCE = run(chains(1, 0.1), {"n_steps": np.full((4, 1000), 7)}, 20.0, np.zeros(500))
FAST = run(
    chains(2),
    {
        "n_likelihood": np.full((4, 1000), 60),
        "n_gradient": np.full((4, 1000), 80),
        "n_scanned": np.full((4, 1000), 5),
        "n_rows": np.full((4, 1000), 500),
        "setup_seconds": np.full((4, 1000), 3.0),
    },
    2.0,
)


def test_costs():
    table = pmb.compare({"fast": FAST, "NUTS": REFERENCE}, "NUTS")
    fast, nuts = table.loc["fast"], table.loc["NUTS"]
    assert list(table.index) == ["fast", "NUTS"]
    assert (fast.chains, fast.draws) == (4, 1000)
    assert (fast.setup_seconds, fast.sampling_seconds) == (3.0, 2.0)
    assert np.isnan(nuts.setup_seconds)
    assert (fast.rows_per_draw, nuts.rows_per_draw) == (85, 7 * 500)
    assert fast.rows_per_ess == pytest.approx(85 * 4000 / fast.min_ess_bulk)
    assert fast.ess_per_million_rows == pytest.approx(1e6 / fast.rows_per_ess)
    assert fast.ess_per_second == pytest.approx(fast.min_ess_bulk / 5.0)
    assert nuts.ess_per_second == pytest.approx(nuts.min_ess_bulk / 20.0)
    assert fast.speed_up == pytest.approx(fast.ess_per_second / nuts.ess_per_second)
    assert nuts.speed_up == 1.0


def test_numbers_are_those_of_arviz():
    table = pmb.compare({"fast": FAST, "NUTS": REFERENCE}, "NUTS")
    fast, b, a = table.loc["fast"], FAST.posterior.beta, REFERENCE.posterior.beta
    ess = [az.ess(b.values[..., k]) for k in range(20)]
    assert fast.min_ess_bulk == min(ess)
    assert fast.median_ess_bulk == np.median(ess)
    assert fast.min_ess_tail == az.ess(FAST, method="tail").beta.values.min()
    assert fast.max_r_hat == max(az.rhat(b.values[..., k]) for k in range(20))
    mean = [abs(b.values[..., k].mean() - a.values[..., k].mean()) for k in range(20)]
    sd = a.values.std(axis=(0, 1), ddof=1)
    mcse = [
        np.hypot(az.mcse(b.values[..., k]), az.mcse(a.values[..., k])).item() for k in range(20)
    ]
    assert fast.mean_difference_sd == pytest.approx(np.max(mean / sd), rel=1e-10)
    assert fast.mean_difference_mcse == pytest.approx(np.max(np.divide(mean, mcse)), rel=1e-10)
    ratio = b.values.std(axis=(0, 1), ddof=1) / sd
    assert fast.sd_ratio_min == pytest.approx(ratio.min(), rel=1e-10)
    assert fast.sd_ratio_max == pytest.approx(ratio.max(), rel=1e-10)
    probs = [0.05, 0.25, 0.5, 0.75, 0.95]
    shift = np.quantile(b, probs, axis=(0, 1)) - np.quantile(a, probs, axis=(0, 1))
    assert fast.quantile_difference_sd == pytest.approx(np.max(abs(shift) / sd), rel=1e-10)


def test_a_good_run_passes():
    """In one of a thousand comparisons the largest of 140 differences is beyond the limit."""
    runs = {str(seed): run(chains(seed, 0.5)) for seed in range(10, 16)}
    table = pmb.compare(runs | {"reference": REFERENCE}, "reference")
    assert (table.verdict.drop("reference") == "agrees").all()
    assert table.verdict["reference"] == "baseline"


def biased(what):
    beta = chains(3)
    if what == "mean":
        beta[..., 3] += 0.2
    elif what == "sd":
        beta[..., 3] *= 1.15
    else:  # mean and standard deviation of a normal, with lighter tails
        beta[..., 3] = np.sqrt(12) * (np.random.default_rng(4).random(beta.shape[:2]) - 0.5)
    return beta


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("mean", r"differs: beta\[3\] by [\d.]+ MCSE \(0\.2\d? sd\)"),
        ("sd", r"differs: sd of beta\[3\] by [\d.]+ MCSE"),
        ("tails", r"differs: (5|25|75|95)% quantile of beta\[3\] by [\d.]+ MCSE"),
    ],
)
def test_a_biased_run_is_flagged(what, words):
    table = pmb.compare({"biased": run(biased(what)), "reference": REFERENCE}, "reference")
    assert re.match(words, table.verdict["biased"]), table.verdict["biased"]


def test_chains_that_disagree():
    beta = chains(5)
    beta[0, :, 7] += 3.0
    stuck = run(beta)
    table = pmb.compare({"stuck": stuck, "reference": REFERENCE}, "reference")
    assert table.verdict["stuck"].startswith("not converged: R-hat 1.")
    assert table.verdict["stuck"].endswith("of beta[7]")
    table = pmb.compare({"good": FAST, "stuck": stuck}, "stuck")
    assert table.verdict["stuck"].startswith("baseline, but not converged: R-hat 1.")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_draws_that_are_not_finite(value):
    beta = chains(5)
    beta[1, 500, 7] = value
    broken = run(beta)
    table = pmb.compare({"broken": broken, "reference": REFERENCE}, "reference")
    assert table.verdict["broken"] == "not finite: beta[7]"
    table = pmb.compare({"good": FAST, "broken": broken}, "broken")
    assert table.verdict["broken"] == "baseline, but not finite: beta[7]"
    assert table.verdict["good"].startswith("not compared")


def test_a_chain_that_never_moved():
    beta = chains(5)
    beta[..., 7] = 0.1
    table = pmb.compare({"stuck": run(beta), "reference": REFERENCE}, "reference")
    assert re.match(r"differs: .*beta\[7\] by", table.verdict["stuck"])
    assert table.sd_ratio_min["stuck"] == 0.0


def test_one_chain_and_few_draws():
    table = pmb.compare({"one": run(chains(5)[:1]), "reference": REFERENCE}, "reference")
    assert table.verdict["one"] == "agrees"
    assert np.isnan(table.max_r_hat["one"])
    table = pmb.compare({"few": run(chains(5)[:, :3]), "reference": REFERENCE}, "reference")
    assert table.verdict["few"].startswith("not compared: too few draws")


def test_variables_of_any_shape_that_are_in_all_runs():
    rng = np.random.default_rng(6)

    def result(**more):
        shapes = {"scalar": (), "vector": (3,), "matrix": (2, 2)}
        draws = {name: rng.normal(size=(4, 500, *shape)) for name, shape in shapes.items()}
        draws["count"] = rng.integers(0, 2, (4, 500))
        return az.from_dict({"posterior": draws | more})

    other = rng.normal(size=(4, 500))
    runs = {"a": result(only_here=other), "b": result(only_there=other)}
    runs["c"] = result(matrix=runs["a"].posterior.matrix.values + np.array([[0, 0], [1, 0]]))
    table = pmb.compare(runs, "a")
    assert table.verdict["b"] == "agrees"
    assert table.verdict["c"].startswith("differs:")
    assert "matrix[1, 0] by" in table.verdict["c"]


@pytest.mark.parametrize("name", ["n_steps", "tree_size", "num_steps"])
def test_gradients_under_the_names_of_other_samplers(name):
    stats = {name: np.full((4, 1000), 15)}
    table = pmb.compare({"NUTS": run(chains(6), stats)}, "NUTS", n_rows=100)
    assert table.rows_per_draw["NUTS"] == 1500


def test_set_up_of_several_steps_adds_up():
    seconds = np.broadcast_to([1.0, 2.5], (4, 1000, 2))
    table = pmb.compare({"two": run(chains(6), {"setup_seconds": seconds}, 10.0)}, "two")
    assert table.setup_seconds["two"] == 3.5


def test_what_is_not_recorded_is_missing():
    bare = run(chains(6))
    table = pmb.compare({"bare": bare, "NUTS": REFERENCE}, "bare")
    missing = ["setup_seconds", "sampling_seconds", "rows_per_draw", "ess_per_second", "speed_up"]
    assert table.loc["bare", missing].isna().all()
    unknown = run(chains(6), {"n_steps": np.full((4, 1000), 3)})
    assert np.isnan(pmb.compare({"u": unknown}, "u").rows_per_draw["u"])
    assert pmb.compare({"u": unknown}, "u", n_rows=50).rows_per_draw["u"] == 150


def test_constant_elements_are_left_out():
    """0.1 has no exact binary form: its mean may differ from it in the last digit."""
    beta = chains(7)
    beta[..., 0] = 0.1
    other = chains(8)[:, :777]
    other[..., 0] = 0.1
    table = pmb.compare({"a": run(beta), "b": run(other)}, "b")
    assert table.verdict["a"] == "agrees"
    assert np.isfinite(table.sd_ratio_max["a"])
    other[..., 0] = 0.2
    table = pmb.compare({"a": run(beta), "b": run(other)}, "b")
    assert table.verdict["a"].startswith("differs: beta[0] by")


def test_elements_are_named_by_their_coordinates():
    beta = chains(9, shape=(4, 1000, 2))
    labelled = [
        az.from_dict({"posterior": {"b": b}}, coords={"who": ["he", "she"]}, dims={"b": ["who"]})
        for b in (beta, beta + np.array([0.0, 1.0]))
    ]
    table = pmb.compare({"a": labelled[0], "b": labelled[1]}, "a")
    assert table.verdict["b"].startswith("differs: b[she] by")


def test_errors():
    with pytest.raises(ValueError, match="not among the runs"):
        pmb.compare({"a": FAST}, "NUTS")
    with pytest.raises(ValueError, match="only \\[\\] are in the posterior"):
        pmb.compare({"a": FAST, "b": run(chains(1, shape=(4, 1000, 3)))}, "a")
    with pytest.raises(ValueError, match="only \\['beta'\\]"):
        pmb.compare({"a": FAST}, "a", var_names=["beta", "gamma"])


def test_a_step_records_what_the_table_reads():
    model = normal_model()
    step = pmb.MinibatchMH(model=model, control_variate=0)
    _, [stats] = step.step(model.initial_point())
    assert stats["n_rows"] == 600
    assert stats["setup_seconds"] == step.setup_seconds > 0


def indicators(seed, n=800):
    """Indicators as numbers, products with them, and rounded draws, all of which have atoms."""
    rng = np.random.default_rng(seed)
    share = np.array([0.0, 0.002, 0.02, 0.05, 0.5, 0.95, 0.98, 0.998, 1.0])
    z = (rng.random((4, n, share.size)) < share).astype(float)
    b = chains(seed, 0.5, (4, n, share.size))
    return az.from_dict({"posterior": {"z": z, "bz": b * z, "rounded": np.round(b, 1)}})


def test_atoms_are_no_difference():
    """A quantile that lies at a jump has no Monte Carlo error of its own."""
    runs = {str(seed): indicators(seed) for seed in range(12)}
    table = pmb.compare(runs, "0")
    assert (table.verdict.drop("0") == "agrees").all()


def test_indicators_that_differ():
    other = indicators(20)
    other.posterior["z"][..., 3] = (np.random.default_rng(21).random((4, 800)) < 0.09).astype(float)
    verdict = pmb.compare({"a": indicators(22), "b": other}, "a").verdict["b"]
    assert re.match(r"differs: .*z\[3\] by [\d.]+ MCSE", verdict)


def test_tails_of_hundreds_of_slow_effects():
    """Errors of quantiles in the tails are themselves known from few draws only."""
    a, b = (run(chains(seed, 0.85, (4, 600, 200))) for seed in (30, 31))
    for one in (a, b):
        one.posterior["beta"] = one.posterior["beta"] - one.posterior["beta"].mean("draw")
    verdict = pmb.compare({"a": a, "b": b}, "a").verdict["b"]
    assert not verdict.startswith("differs")


def test_a_run_that_was_interrupted():
    beta = chains(40)
    beta[2, 700:] = np.nan
    table = pmb.compare({"stopped": run(beta), "reference": REFERENCE}, "reference")
    assert table.verdict["stopped"] == "interrupted: chain 2 stopped after 700 of 1000 draws"
