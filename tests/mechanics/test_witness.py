"""The witness: moves agree with the model's own density, and wrong ones are found at run time."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError
from witnessed import STEPS, G, grouped, rows

import pymc_minibatch as pmb
from pymc_minibatch.kernels.by_size import SizeTable
from pymc_minibatch.latent import batch_decisions, exact, gathering, linear, surrogate, whole
from pymc_minibatch.latent import firefly as latent_firefly
from pymc_minibatch.latent.derivatives import Derivatives
from pymc_minibatch.latent.field import CenteredPoint
from pymc_minibatch.latent.hyper_coordinates import HyperCoordinates
from pymc_minibatch.latent.level_steps import LevelSteps
from pymc_minibatch.latent.moves import (
    by_surrogate,
    collapsed,
    few_followers,
    kernels,
    scan,
    trajectory,
)
from pymc_minibatch.latent.moves import levels as moves_of_levels
from pymc_minibatch.latent.moves.by_surrogate import BySurrogate
from pymc_minibatch.latent.moves.centered_trajectory import CenteredTrajectory
from pymc_minibatch.latent.moves.few_followers import FewFollowers
from pymc_minibatch.latent.moves.shifted import Shifted
from pymc_minibatch.latent.moves.slow_levels import SlowTuner
from pymc_minibatch.latent.moves.surrogate_data import WithSurrogateData
from pymc_minibatch.latent.own_rows import AboutPoint, OwnRows
from pymc_minibatch.latent.shifts import Shift
from pymc_minibatch.latent.skew_transform import SkewTransform
from pymc_minibatch.reference.decide import decide_control_variate
from pymc_minibatch.steps import batch_moves, minibatch_mh
from pymc_minibatch.tall.model_density import ModelDensity
from pymc_minibatch.witness import SurpriseError, Witness
from pymc_minibatch.witness.comparison import AGREES, Comparison
from pymc_minibatch.witness.witness import Look


@pytest.fixture(scope="module")
def made() -> Callable[[str], Any]:
    """Steps, each set up once, brought to the first draw after tuning."""
    known: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in known:
            step = known[name] = STEPS[name]()
            step.setup_chain(np.random.default_rng(1), 20, 0)
            point = step.tall.model.initial_point()
            for _ in range(20):
                point, _ = step.step(point)
            step.stop_tuning()
            point, _ = step.step(point)
            step.at = step.tall.layout.flatten(point)
        return known[name]

    return make


def look(step: Any, times: int = 6) -> None:
    """Look from the chain's point and from others about the mode."""
    state = step.rng.bit_generator.state
    for k in range(times):
        step.rng = np.random.default_rng(k)
        far = {n: v + 1e6 for n, v in step.tall.model.initial_point().items()}
        point = step.tall.layout.flatten(far | dict(step.near_mode(far))) if k else step.at
        step.witness.look(step.look(), point if np.abs(point).max() < 1e5 else step.at)
    step.rng = np.random.default_rng()
    step.rng.bit_generator.state = state


@pytest.mark.parametrize("name", STEPS)
def test_right_moves_agree(name: str, made: Callable[[str], Any]) -> None:
    step = made(name)
    step.witness.start_chain()
    look(step)
    assert step.witness.n_moves >= 6
    assert step.witness.error <= AGREES / 100


def test_kinds_of_moves_that_are_looked_at(made: Callable[[str], Any]) -> None:
    kinds = {}
    for name in ("all rows", "costly", "linear", "own scales"):
        step = made(name)
        step.witness.start_chain()
        look(step)
        kinds[name] = step.witness.kinds
    assert len(kinds["all rows"]) == 9
    assert len(kinds["costly"]) >= 4
    assert len(kinds["linear"]) == 3
    assert any(BySurrogate.words in str(kind) for kind in kinds["own scales"])


@pytest.mark.parametrize("name", ["hamiltonian", "laplace"])
def test_shorter_moves_agree(
    name: str, made: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If moves that are often rejected are mixed with shorter ones, these are what is compared."""
    step = made(name)
    state = step.proposal_state
    longest = np.array([int(np.argmax(state.settings[:, 1]))])
    monkeypatch.setattr(
        step, "proposal_state", state._replace(shorter=np.array([0.5]), current=longest)
    )
    step.witness.start_chain()
    look(step, 20)
    assert step.witness.error <= AGREES / 100


# --- Mutants ---------------------------------------------------------------------------


def scaled(function: Callable[..., Any], by: float) -> Callable[..., Any]:
    return lambda *args, **kwargs: by * function(*args, **kwargs)


def constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def last_left_out(function: Callable[..., Any], i: int = 1) -> Callable[..., Any]:
    """Set one entry of what a function returns, a log ratio, to zero."""

    def mutant(*args: Any) -> Any:
        found = list(function(*args))
        found[i] = 0.0 * found[i]
        return tuple(found)

    return mutant


def replaced(target: Any, name: str, change: Callable[[Any], Any]) -> Callable[..., None]:
    """Change an attribute of a class or module."""

    def apply(step: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(target, name, change(getattr(target, name)))

    return apply


def without_proposal(step: Any, patch: pytest.MonkeyPatch) -> None:
    """The log ratio of proposal densities is left out."""
    make = step.one_transition

    def mutant(rng: np.random.Generator, point: np.ndarray) -> Any:
        move = make(rng, point)
        return move._replace(without_rows=move.without_rows - move.log_q)

    patch.setattr(step, "one_transition", mutant)


def without_prior(step: Any, patch: pytest.MonkeyPatch) -> None:
    """The prior is left out of the log ratio."""
    make, prior = step.one_transition, step.tall.compiled_prior_logp

    def mutant(rng: np.random.Generator, point: np.ndarray) -> Any:
        move = make(rng, point)
        change = float(prior(move.proposed) - prior(point))
        return move._replace(without_rows=move.without_rows - change)

    patch.setattr(step, "one_transition", mutant)


def change_constants(k: int) -> Callable[..., None]:
    """Scale one of the constants of an expansion: its gradient or curvature."""

    def apply(step: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setitem(step.__dict__, "density", step.density)
        step.density.constants[k][...] *= 0.9

        def undo() -> None:
            step.density.constants[k][...] /= 0.9

        step.undo = undo

    return apply


def change_expansion(name: str) -> Callable[..., None]:
    """Scale a part of the expansion of the rows of a model with effects."""

    def apply(step: Any, patch: pytest.MonkeyPatch) -> None:
        expansion = step.latent.reference.surrogate.expansion
        values = {"slope": expansion.slope, "blocks": expansion.curvature.blocks}[name]
        values *= 0.9

        def undo() -> None:
            values[...] /= 0.9

        step.undo = undo

    return apply


def stale_odds(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Odds of another point are kept."""
    n = step.brightness.n_bright[0]
    step.brightness.log_odds[:n] += 0.1

    def undo() -> None:
        step.brightness.log_odds[:n] -= 0.1

    step.undo = undo


def rows_never_drawn(step: Any, patch: pytest.MonkeyPatch) -> None:
    """A tenth of the rows have size 0."""
    drawn = np.ones(step.n_rows, dtype=bool)
    drawn[::10] = False
    patch.setattr(step, "_drawn", lambda here, there: drawn)


def no_row_is_read(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Bounds on third derivatives are taken for 0."""
    patch.setattr(step, "prepared", step.ball._replace(total=0.0))


def drawn_by(change: Callable[[Any], None]) -> Callable[..., None]:
    """Change the table by which rows are drawn."""

    def apply(step: Any, patch: pytest.MonkeyPatch) -> None:
        parts = [part.copy() for part in step.workspace.table]
        change(SizeTable(*parts))
        for part, kept in zip(parts, step.workspace.table, strict=True):
            part.setflags(write=kept.flags.writeable)  # kernels are compiled for either
        patch.setitem(step.__dict__, "workspace", step.workspace._replace(table=SizeTable(*parts)))

    return apply


def weights_off(table: Any) -> None:
    table.weights[...] *= 0.9


def weights_of_a_bin_off(table: Any) -> None:
    table.weights[usual_bin(table)] *= 0.9


def bin_never_drawn(table: Any) -> None:
    passed_on(table, usual_bin(table), 1.0)


def bin_half_as_often(table: Any) -> None:
    passed_on(table, usual_bin(table), 0.5)


def usual_bin(table: Any) -> int:
    """A range of sizes that has a tenth of the draws or so."""
    shares = np.diff(table.starts) / table.weights
    return int(np.argmin(np.abs(shares / shares.sum() - 0.1)))


def passed_on(table: Any, k: int, share: float) -> None:
    """Let draws of a bin go to another one."""
    other = (k + 1) % table.cut.size
    for j in range(table.cut.size):
        if table.alias[j] == k:
            table.alias[j] = other
    if share == 1.0:
        table.alias[k] = other
    table.cut[k] *= 1.0 - share


def rows_twice(table: Any) -> None:
    """One half of the rows is drawn in place of the other."""
    n = table.order.size // 2
    table.order[:n] = table.order[-n:]


def weighed(change: Callable[[Any], None]) -> Callable[..., None]:
    """Change how groups are weighed."""

    def mutant(function: Callable[..., Any]) -> Callable[..., Any]:
        def weigh(table: Any, *distances: np.ndarray) -> None:
            function(table, *distances)
            change(table)

        return weigh

    return replaced(batch_decisions, "weigh", mutant)


def factors_off(table: Any) -> None:
    table.factors[0] *= 1.1


def group_never_drawn(table: Any) -> None:
    table.shares[0] = 0.0


def first_groups_too_often(table: Any) -> None:
    table.shares[:-1] *= 1.0 + 0.2 * (1.0 - table.shares[:-1] / table.shares[-1])


def bounds_halved(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Half as many rows are drawn as bounds ask for."""
    *rest, ball = step.test_parameters
    patch.setattr(step, "test_parameters", (*rest, ball._replace(total=0.5 * ball.total)))


def decided_at_another_temperature(step: Any, patch: pytest.MonkeyPatch) -> None:
    """What decides has another temperature than the target."""
    limits, details = step.test_parameters
    off = limits._replace(temperature=1.1 * limits.temperature)
    patch.setattr(step, "test_parameters", (off, details))


def other_temperature(step: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step.model_density, "temperature", 1.1 * step.temperature)
    patch.delitem(step.model_density.__dict__, "_graph", raising=False)
    patch.delitem(step.model_density.__dict__, "_inputs", raising=False)
    patch.delitem(step.model_density.__dict__, "_total", raising=False)


def gaussian_priors(step: Any, patch: pytest.MonkeyPatch) -> None:
    """The prior of effects is claimed to be Gaussian."""
    field = step.latent.field
    patch.setattr(field, "levels", [replace(levels, prior=None) for levels in field.levels])


def expansions_off(step: Any, patch: pytest.MonkeyPatch) -> None:
    """What is stored of rows is another expansion than that which the surrogate sums."""
    patch.setattr(gathering, "expansions", scaled(gathering.expansions, 0.9))
    for name in ("decisions", "moves", "_gathering"):
        patch.delitem(step.latent.__dict__, name, raising=False)


def along_at_random(function: Callable[..., Any]) -> Callable[..., Any]:
    """Other hyperparameters go along by a random amount, another one on the way back."""
    rng = np.random.default_rng(1)
    return lambda scale, axis: function(scale, axis) * rng.uniform(0.5, 1.5)


def without_determinants(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Jacobian of followers is left out of each log ratio."""

    def steps(*args: Any) -> Any:
        made = function(*args)
        finite = np.where(np.isfinite(made.log_ratios), made.log_jacobians, 0.0)
        return made._replace(log_ratios=made.log_ratios - finite)

    return steps


def with_other_curvature(function: Callable[..., Any]) -> Callable[..., Any]:
    """The curvature by what followers change is off by 10 %."""
    return lambda steps, tables, *rest: function(
        steps, tables._replace(curvature=1.1 * tables.curvature), *rest
    )


def with_old_predictors(function: Callable[..., Any]) -> Callable[..., Any]:
    """What K makes of predictors is that at the center."""
    return lambda steps, tables, place, *rest: function(
        steps, tables, (*place[:2], 0.0 * place[2]), *rest
    )


def flat_prior_of_own_levels(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Levels step as if their prior were flat."""
    find = AboutPoint.__init__

    def mutant(self: Any, own: Any, point: np.ndarray, *values: Any) -> None:
        find(self, own, point, *values)
        self.state.slope[:] = self.maps.curvature[:] = 0.0

    patch.setattr(AboutPoint, "__init__", mutant)


class NoRows(exact.ExactDecisions):
    """Decides without rows, which have no slope then."""

    def slope(self, phi: np.ndarray) -> np.ndarray:
        return np.zeros(phi.size)


def no_row(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Sums are claimed to say everything of the rows."""
    patch.setitem(step.latent.moves.__dict__, "decisions", NoRows(step.latent.reference.surrogate))


def with_other_noise(function: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(self: Any, rng: Any, phi: Any) -> Any:
        data = function(self, rng, phi)
        return data._replace(noise=1.1 * data.noise)

    return mutant


def momenta_of(path: Any) -> float:
    """Leave out what the momentum says."""
    return 0.0


def scaled_prior(step: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Derivatives, "prior", scaled(Derivatives.prior, 0.9))


def without_levels(function: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(self: Any, given: Any, points: Any, predictors: Any, levels: Any) -> Any:
        return function(self, given, points, predictors, replace(levels, prior=None))

    return mutant


def property_of(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda _: property(function)


S, K, W, L = surrogate.Surrogate, kernels, whole.WholeDecisions, linear.LinearMoves
B, F = batch_decisions.MinibatchDecisions, latent_firefly.FireflyDecisions


def draws_anew_without_their_density(step: Any, patch: pytest.MonkeyPatch) -> None:
    """Levels are drawn from what was seen of them, and how likely that is does not count."""
    make = AboutPoint.step
    rng = np.random.default_rng(1)
    for tuner in step.proposal_state.tuners.values():
        if isinstance(tuner, SlowTuner):
            tuner.seen[:] = rng.normal(size=tuner.seen.shape)
            tuner.n_seen[0] = len(tuner.seen) + 1

    def mutant(self: Any, steps: LevelSteps, bars: np.ndarray) -> Any:
        before = self.state.levels.copy()
        found = make(self, steps, bars)
        return found - steps.log_q(before) + steps.log_q(before + steps.from_levels(before))

    patch.setattr(AboutPoint, "step", mutant)


MUTANTS: list[tuple[str, str, Callable[..., None]]] = [
    # plain moves
    ("gradient of an expansion off by 10 %", "laplace", change_constants(1)),
    ("curvature of an expansion off by 10 %", "laplace", change_constants(2)),
    ("gradient of an expansion off by 10 %", "hamiltonian", change_constants(1)),
    ("curvature of an expansion off by 10 %", "tempered", change_constants(2)),
    ("temperature off by 10 %", "tempered", other_temperature),
    ("proposal left out", "laplace", without_proposal),
    ("proposal left out", "hamiltonian", without_proposal),
    ("proposal left out", "exact", without_proposal),
    ("prior left out", "random walk", without_prior),
    ("prior left out", "exact", without_prior),
    ("rows that are never drawn", "laplace", rows_never_drawn),
    ("rows that are never drawn", "hamiltonian", rows_never_drawn),
    ("bounds of rows claimed to be 0", "exact", no_row_is_read),
    ("curvature of an expansion off by 10 %", "exact", change_constants(2)),
    # hyperparameters, effects following
    (
        "determinant left out",
        "all rows",
        replaced(surrogate.Conditional, "log_determinant", property_of(lambda self: 0.0)),
    ),
    (
        "slope of tails left out",
        "all rows",
        replaced(SkewTransform, "log_slope", lambda f: constant(0.0)),
    ),
    ("proposal of h left out", "all rows", replaced(K, "moved_together", last_left_out)),
    ("proposal of h left out", "batches", replaced(K, "moved_together", last_left_out)),
    ("proposal of h left out", "sums", replaced(K, "moved_together", last_left_out)),
    # hyperparameters, effects following surrogate data
    (
        "density of surrogate data left out",
        "all rows",
        replaced(WithSurrogateData, "log_density_ratio", lambda f: constant(0.0)),
    ),
    (
        "noise of surrogate data off by 10 %",
        "all rows",
        replaced(WithSurrogateData, "data", with_other_noise),
    ),
    # hyperparameters and effects, many times by the surrogate
    (
        "densities of the surrogate left out",
        "own scales",
        replaced(BySurrogate, "propose", lambda f: lambda *a: f(*a)._replace(log_kernel=0.0)),
    ),
    (
        "determinant of followers left out",
        "own scales",
        replaced(FewFollowers, "steps", without_determinants),
    ),
    (
        "curvature by followers off by 10 %",
        "own scales",
        replaced(few_followers, "follow_steps", with_other_curvature),
    ),
    (
        "what rows read not kept",
        "own scales",
        replaced(few_followers, "follow_steps", with_old_predictors),
    ),
    (
        "determinant of all effects left out",
        "own scales",
        replaced(surrogate.Conditional, "log_determinant", property_of(lambda self: 0.0)),
    ),
    (
        "steps without a way back",
        "own scales",
        replaced(by_surrogate, "along", along_at_random),
    ),
    # hyperparameters, predictors held
    (
        "Jacobian left out",
        "all rows",
        replaced(CenteredPoint, "log_jacobian", lambda f: constant(0.0)),
    ),
    ("prior off by 10 %", "all rows", scaled_prior),
    ("prior off by 10 %", "sums", scaled_prior),
    ("prior off by 10 %", "batches", scaled_prior),
    ("prior off by 10 %", "costly", scaled_prior),
    ("scalars left out", "sums", replaced(scan, "_of_scalars", lambda f: constant(0.0))),
    (
        "momenta left out",
        "covariance",
        lambda _, patch: patch.setattr(trajectory.Path, "log_kernel", property(momenta_of)),
    ),
    (
        "coordinates that depend on what moves",
        "covariance",
        replaced(CenteredTrajectory, "_start", lambda f: lambda self, point, scale: point),
    ),
    (
        "slope of coordinates left out",
        "covariance",
        replaced(HyperCoordinates, "log_slope", lambda f: constant(0.0)),
    ),
    # coefficients, levels the other way
    ("levels off by 10 %", "all rows", replaced(Shift, "direction", lambda f: scaled(f, 1.1))),
    (
        "proposal left out",
        "all rows",
        replaced(Shifted, "propose", lambda f: lambda *a: f(*a)._replace(log_kernel=0.0)),
    ),
    # hyperparameters, one factor following
    ("Jacobian left out", "costly", replaced(collapsed, "log_diagonal", lambda f: constant(0.0))),
    ("proposal left out", "costly", replaced(K, "moved_alone", last_left_out)),
    # coefficients
    ("proposal left out", "all rows", replaced(K, "rotated", last_left_out)),
    ("proposal left out", "batches", replaced(K, "rotated", last_left_out)),
    ("proposal left out", "flymc effects", replaced(K, "rotated", last_left_out)),
    # levels
    ("prior of levels left out", "heavy effects", replaced(S, "level_ratios", without_levels)),
    ("prior of levels claimed to be Gaussian", "heavy effects", gaussian_priors),
    ("ratios off by 10 %", "batches", replaced(S, "level_ratios", lambda f: scaled(f, 1.1))),
    (
        "choice of a walk left out",
        "all rows",
        replaced(moves_of_levels, "moved_levels", last_left_out),
    ),
    (
        "change of levels off by 10 %",
        "all rows",
        replaced(S, "change_of_levels", lambda f: scaled(f, 0.9)),
    ),
    (
        "momenta left out",
        "all rows",
        lambda _, patch: patch.setattr(trajectory.Path, "log_kernel", property(momenta_of)),
    ),
    # levels by their own density
    ("rows off by 10 %", "all rows", replaced(OwnRows, "of_rows", lambda f: scaled(f, 0.9))),
    ("prior left out", "all rows", flat_prior_of_own_levels),
    ("density of new values left out", "all rows", draws_anew_without_their_density),
    # rows of models with effects
    ("rows left out", "all rows", no_row),
    ("rows left out", "batches", no_row),
    ("rows claimed to be sums", "heavy effects", no_row),
    ("rows off by 10 %", "all rows", replaced(W, "of_all", lambda f: scaled(f, 0.9))),
    ("remainders off by 10 %", "batches", replaced(B, "_remainders", lambda f: scaled(f, 0.5))),
    ("gaps off by 10 %", "flymc effects", replaced(F, "_gaps", lambda f: scaled(f, 0.9))),
    ("slope of rows off by 10 %", "sums", change_expansion("slope")),
    ("curvature of rows off by 10 %", "sums", change_expansion("blocks")),
    ("curvature of rows off by 10 %", "batches", change_expansion("blocks")),
    # linear models
    (
        "density of levels off",
        "linear",
        replaced(L, "given_others", lambda f: lambda *a: _off(f(*a))),
    ),
    ("proposal left out", "linear", replaced(K, "moved_alone", last_left_out)),
    ("density off by 10 %", "linear", replaced(linear, "log_density", lambda f: scaled(f, 0.9))),
    (
        "proposal of the dense part left out",
        "linear",
        replaced(L, "weighed", lambda f: lambda *a: _unweighed(f(*a))),
    ),
    # Firefly Monte Carlo
    ("odds of another point", "flymc", stale_odds),
    (
        "bounds off by 10 %",
        "flymc",
        lambda step, patch: patch.setattr(
            step.target, "base", lambda p, c, f=step.target.base: (0.9 * f(p, c)[0], f(p, c)[1])
        ),
    ),
    (
        "gaps off by 10 %",
        "flymc",
        lambda step, patch: patch.setattr(
            step.target, "compiled_gap", scaled(step.target.compiled_gap, 0.9)
        ),
    ),
    (
        "bounds above their rows",
        "flymc",
        lambda step, patch: patch.setattr(
            step.target, "compiled_gap", lambda *a, f=step.target.compiled_gap: f(*a) - 0.1
        ),
    ),
    # batches
    ("weights of rows off by 10 %", "laplace", drawn_by(weights_off)),
    ("weights of rows off by 10 %", "exact", drawn_by(weights_off)),
    ("weights of some rows off by 10 %", "hamiltonian", drawn_by(weights_of_a_bin_off)),
    ("rows of a size that are never drawn", "laplace", drawn_by(bin_never_drawn)),
    ("rows of a size that are never drawn", "exact", drawn_by(bin_never_drawn)),
    ("rows of a size at half their rate", "laplace", drawn_by(bin_half_as_often)),
    ("rows of a size at half their rate", "exact", drawn_by(bin_half_as_often)),
    ("one half of the rows for the other", "hamiltonian", drawn_by(rows_twice)),
    ("bounds of rows halved", "exact", bounds_halved),
    ("temperature of decisions off by 10 %", "laplace", decided_at_another_temperature),
    ("weights of a group off by 10 %", "batches", weighed(factors_off)),
    ("a group that is never drawn", "batches", weighed(group_never_drawn)),
    ("groups drawn up to 20 % too often", "batches", weighed(first_groups_too_often)),
    ("stored expansions of rows off by 10 %", "batches", expansions_off),
    # gradients
    ("curvature of an expansion off by 10 %", "sgfs", change_constants(2)),
    ("gradient of an expansion off by 10 %", "sgfs", change_constants(1)),
]
"""What is wrong, the step in which it is, and how to make it so; each is found at run time."""


def _off(levels: Any) -> Any:
    return levels._replace(log_density=0.9 * levels.log_density)


def _unweighed(place: linear.LinearPlace) -> linear.LinearPlace:
    assert place.given is not None
    return linear.LinearPlace(place.state, place.given, place.frame, place.given.log_density)


@pytest.mark.parametrize(
    ("name", "kind", "mutate"), MUTANTS, ids=[f"{m[1]}: {m[0]}" for m in MUTANTS]
)
def test_mutants_are_found(
    name: str,
    kind: str,
    mutate: Callable[..., None],
    made: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = made(kind)
    step.undo = lambda: None
    mutate(step, monkeypatch)
    if step.__dict__.get("latent") is not None:
        step.latent.moves.forget()
    try:
        step.witness.start_chain()
        with pytest.raises(SurpriseError, match=r"model's own log-density|represent all rows"):
            look(step, times=100)
    finally:
        step.undo()
        monkeypatch.undo()
        if step.__dict__.get("latent") is not None:
            step.latent.moves.forget()


def test_hyperparameters_without_effects_step_alone() -> None:
    """The residual scale beside those of coefficients: the prior and all rows decide."""
    data, rng = rows(), np.random.default_rng(3)
    with pm.Model() as model:
        own = pm.HalfNormal("own", 1.0, shape=12) * pm.Normal("raw", shape=12)
        eta = pm.math.dot(rng.normal(size=(data.y.size, 12)), own)
        pm.Normal("y", eta, pm.HalfNormal("s"), observed=data.y)
    step = pmb.MinibatchMH(model=model)
    assert BySurrogate.name in step.latent.moves.by_name
    assert sorted(each.size for each in step.latent.model.followers) == [0, *[1] * 12]
    step.setup_chain(np.random.default_rng(1), 20, 0)
    point = model.initial_point()
    scales = []
    for _ in range(30):
        point, _ = step.step(point)
        scales.append(float(point["s_log__"]))
    assert np.ptp(scales) > 0.0


def test_steps_that_are_never_made_are_not_compared() -> None:
    """A scale that changes by a factor of e⁴⁰ changes densities by more than they have digits."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 10))
    with pm.Model() as model:
        width = pm.HalfCauchy("local", 1, shape=10) * pm.HalfCauchy("tau", 0.2)
        mean = pm.math.dot(X, pm.Normal("beta", shape=10) * width)
        pm.Normal("y", mean, 1.0, observed=X[:, 0] + rng.normal(size=200))
    step = pmb.MinibatchMH(model=model)
    step.setup_chain(np.random.default_rng(1), 0, 1)
    walks = step.look().settings.tuners[BySurrogate.name].walks
    walks.log_length[:] = np.log(40.0)
    step.witness.start_chain()
    for _ in range(60):
        point = step.tall.start + 0.5 * rng.normal(size=step.tall.start.size)
        step.witness.look(step.look(), point)


def test_levels_without_a_gaussian_are_not_looked_at(
    made: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far out the precision of a level may not be positive; then it does not step."""

    def fail(*args: Any) -> None:
        raise np.linalg.LinAlgError

    step = made("all rows")
    monkeypatch.setattr(OwnRows, "factor", fail)
    step.witness.start_chain()
    look(step)
    assert step.witness.n_moves >= 6
    words = "levels that seldom move", "levels that are not normal"
    assert not any(each in str(kind) for kind in step.witness.kinds for each in words)


def test_there_are_many_mutants() -> None:
    assert len(MUTANTS) >= 40


def test_a_chain_stops_and_its_draws_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that was right at first is found later, with the draws until then."""
    with grouped("event", "not centred") as model:
        step = pmb.MinibatchMH()
        draw, calls = type(step.latent).draw, [0]

        def spoilt(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == 150:
                monkeypatch.setattr(CenteredPoint, "log_jacobian", constant(0.0))
            return draw(self, *args, **kwargs)

        monkeypatch.setattr(type(step.latent), "draw", spoilt)
        with pytest.raises(SamplingError, match=r"predictors held.*draws\.npz") as error:
            pm.sample(
                draws=2000, tune=50, chains=1, cores=1, step=step, progressbar=False, random_seed=1
            )
    path = str(error.value).split(" in ")[-1].split("draws.npz")[0] + "draws.npz"
    with np.load(path) as saved:
        assert set(saved) == {value.name for value in model.value_vars}
        assert saved["z"].shape[1:] == (G,)
        assert len(saved["z"]) >= 90


def test_a_claim_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """At set-up rows are read where sums do not say everything of them."""
    right = pmb.MinibatchMH(model=grouped("heavy"))
    monkeypatch.setattr(exact.ExactDecisions, "of_rows", constant(0.5))
    step = pmb.MinibatchMH(model=grouped())
    assert "sums" in pmb.MinibatchMH(model=grouped(), witness=False).choice
    assert "sums" not in step.choice
    assert "sums" not in right.choice


def test_what_was_left_open_stays_open_where_effects_are_not_moved_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test of a set-up that was given up does not ask for an expansion in the next one."""
    orders: list[object] = []

    class Off(Look):
        def __init__(self, density: ModelDensity, *args: Any) -> None:
            self.density = density

        def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
            yield Comparison("all", ("z",), "nothing", 1.0, 0.0, 1e-9)

    def noted(tall: Any, reference: Any, order: Any, *args: Any, **options: Any) -> Any:
        orders.append(order)
        return decide_control_variate(tall, reference, order, *args, **options)

    monkeypatch.setattr(minibatch_mh, "moves_of", Off)
    monkeypatch.setattr(batch_moves, "decide_control_variate", noted)
    step = pmb.MinibatchMH(model=grouped())
    assert step.latent is None
    assert orders == ["auto"]


def test_without_a_witness_nothing_is_exact() -> None:
    with grouped():
        runs = [
            pm.sample(
                draws=20,
                tune=20,
                chains=1,
                cores=1,
                step=pmb.MinibatchMH(witness=witness),
                progressbar=False,
                random_seed=1,
            )
            for witness in (True, False)
        ]
    with_it, without = (run.sample_stats for run in runs)
    assert with_it.exact.all()
    assert not without.exact.any()
    assert (with_it.n_witnessed >= 4).all()
    assert with_it.witness_error.max() <= AGREES
    assert np.isnan(without.witness_error).all()
    for name in runs[0].posterior.data_vars:
        np.testing.assert_array_equal(runs[0].posterior[name], runs[1].posterior[name])


@pytest.mark.parametrize(("log_alpha", "is_noise"), [(20.0, True), (1.0, False)])
def test_digits_that_the_model_has_lost_are_no_violation(log_alpha: float, is_noise: bool) -> None:
    """Rows log Γ(y + α) − log Γ(α) with α = e²⁰ are known to 10⁻⁶ each, and to 10⁻¹⁵ with α = e."""
    with pm.Model() as model:
        alpha = pm.HalfCauchy("alpha", 10.0)
        pm.NegativeBinomial("y", 2.0, alpha, observed=np.arange(200) % 5)
    density = ModelDensity(pmb.TallModel(model))
    before, after = (density(np.array([log_alpha + step])) for step in (0.0, 0.01))
    off = Comparison("all", ("alpha",), "nothing", after - before + 1e-4, after - before, 1e-9)

    class Off(Look):
        def __init__(self) -> None:
            self.density = density

        def look(self, rng: np.random.Generator, point: np.ndarray) -> Iterator[Comparison]:
            yield off

    witness = Witness(density.tall.layout, 200)
    with nullcontext() if is_noise else pytest.raises(SurpriseError):
        witness.look(Off(), np.array([log_alpha]))
