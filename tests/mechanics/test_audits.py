"""An audit is the witness with more moves, for all steps and paths."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from witnessed import STEPS, grouped

import pymc_minibatch as pmb
from pymc_minibatch.latent import linear
from pymc_minibatch.latent.field import CenteredPoint
from pymc_minibatch.witness.comparison import AGREES

PATHS = {
    "laplace": 3,
    "exact": 3,
    "sums": 4,
    "all rows": 4,
    "batches": 6,
    "linear": 3,
    "costly": 7,
    "flymc": 2,
    "flymc effects": 4,
    "sgfs": 1,
}
"""Steps, and of how many kinds their comparisons are at least."""


@pytest.fixture(scope="module")
def run() -> Callable[[str], Any]:
    """Steps with a short run each."""
    known: dict[str, Any] = {}

    def sampled(name: str) -> Any:
        if name not in known:
            step = STEPS[name]()
            options = {"chains": 1, "cores": 1, "progressbar": False, "random_seed": 1}
            with step.tall.model:
                known[name] = pm.sample(60, tune=60, step=step, **options), step
        return known[name]

    return sampled


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_right_runs_pass(name: str, run: Callable[[str], Any]) -> None:
    result = pmb.audit(*run(name), n_moves=20, n_repeats=64)
    assert result.right, result.verdict
    assert len(result.comparisons) >= 20
    assert result.comparisons["move"].nunique() >= PATHS[name]
    assert result.comparisons["error"].max() <= AGREES / 10
    assert "tuned anew" not in str(result)
    assert bool(len(result.moves)) == (name in ("laplace", "exact", "batches", "costly"))
    if name in ("batches", "costly"):
        assert result.moves["move"].nunique() >= 2


@pytest.mark.parametrize(
    ("name", "target", "attribute"),
    [("all rows", CenteredPoint, "log_jacobian"), ("linear", linear, "log_density")],
)
def test_wrong_moves_are_convicted(
    name: str,
    target: Any,
    attribute: str,
    run: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idata, step = run(name)
    monkeypatch.setattr(target, attribute, lambda *_, **__: 0.0)
    step.latent.moves.forget()
    result = pmb.audit(idata, step, n_moves=10, n_repeats=8)
    step.latent.moves.forget()
    assert not result.right
    assert "FAIL" in str(result)


def test_wrong_decisions_on_effects_are_convicted(
    run: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The penalty for the noise is left out."""
    idata, step = run("batches")
    tests = step.latent.moves.decisions.tests
    noisy = [(limits, (1.2,)) for limits, _ in tests.parameters]
    monkeypatch.setattr(tests, "parameters", noisy)
    result = pmb.audit(idata, step, n_moves=20, n_repeats=512)
    assert not result.right, result.verdict
    assert "WRONG" in str(result)
    assert result.comparisons["error"].max() <= AGREES


def test_a_step_without_draws_is_tuned_anew_and_left_as_it_was(run: Callable[[str], Any]) -> None:
    idata, _ = run("all rows")
    step = pmb.MinibatchMH(model=grouped("event", "not centred"))
    result = pmb.audit(idata, step, n_moves=10)
    assert "tuned anew" in str(result)
    assert result.right, result.verdict
    assert step.n_draws == 0


def test_draws_of_bambi_get_their_intercept_back() -> None:
    bmb = pytest.importorskip("bambi")
    import pandas as pd

    rng = np.random.default_rng(1)
    data = pd.DataFrame({"x": 3.0 + rng.normal(size=400)})
    data["y"] = rng.binomial(1, 1 / (1 + np.exp(3.0 - data["x"])))
    model = bmb.Model("y ~ x", data, family="bernoulli")
    model.build()
    with model.backend.model:
        step = pmb.MinibatchMH(acceptance="penalty")
    idata = model.fit(
        draws=60, tune=60, chains=1, cores=1, step=step, progressbar=False, random_seed=1
    )
    with pytest.raises(ValueError, match="result of Bambi, which moves the intercept"):
        pmb.audit(idata, step)
    result = pmb.audit(idata, step, model=model, n_moves=10, n_repeats=64)
    assert result.right, result.verdict
    # Moves from the right intercept are accepted often; without the shift they would be 3 sds off.
    assert result.moves["log_ratio"].abs().median() < 20
