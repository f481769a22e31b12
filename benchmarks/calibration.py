"""Simulation-based calibration of models with effects (Talts et al., 2018).

Parameters are drawn from the prior and data given them; if draws are from the posterior, the rank
of each true value among them is uniform. Each replication has a set-up of its own, on its own data;
all of them share what is compiled.

    python -m benchmarks.calibration --model nested --replications 1000
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table
from scipy.special import expit
from scipy.stats import chisquare

import pymc_minibatch as pmb
from pymc_minibatch.bounds.choose import recognised
from pymc_minibatch.bounds.rows import BoundedRows
from pymc_minibatch.latent.factors import find_factors
from pymc_minibatch.latent.firefly import bounded
from pymc_minibatch.latent.locate import LatentModel
from pymc_minibatch.latent.minibatch import MinibatchSampler
from pymc_minibatch.latent.recognition import find_field
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.latent.search import search
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.row_input import make_input

N_DRAWS = 15
THIN = 5
"""Rounds between two draws, some autocorrelation times."""

TUNE = 80


def nested() -> pm.Model:
    """Logistic regression, 40 classes in 10 schools."""
    rng = np.random.default_rng(1)
    class_ = rng.choice(40, 600, p=rng.dirichlet(np.full(40, 3.0)))
    x = rng.normal(size=600)
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 0, 1), pm.Normal("slope", 0, 1)
        school = pm.HalfNormal("sd_school", 0.7) * pm.Normal("z_school", shape=10)
        within = pm.HalfNormal("sd_class", 0.7) * pm.Normal("z_class", shape=40)
        log_odds = mu + slope * x + school[class_ // 4] + within[class_]
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.binomial(1, expit(x)))
    return model


def crossed() -> pm.Model:
    """Poisson regression, 20 groups crossed with 12."""
    rng = np.random.default_rng(2)
    first = rng.choice(20, 400, p=rng.dirichlet(np.full(20, 2.0)))
    second = rng.choice(12, 400, p=rng.dirichlet(np.full(12, 2.0)))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.5, 0.5)
        a = pm.Normal("a", 0, pm.HalfNormal("sd_a", 0.5), shape=20)
        b = pm.Normal("b", 0, pm.HalfNormal("sd_b", 0.5), shape=12)
        rate = pm.math.exp(mu + a[first] + b[second])
        pm.Poisson("y", rate, observed=rng.poisson(2.0, 400))
    return model


def noncentred() -> pm.Model:
    """Logistic regression, 20 groups from one row to a hundred, not centred."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(20), np.geomspace(1, 100, 20).astype(int))
    with pm.Model() as model:
        effect = pm.Normal("mu", 0, 1) + pm.HalfNormal("tau", 1) * pm.Normal("z", shape=20)
        pm.Bernoulli("y", logit_p=effect[group], observed=rng.integers(0, 2, group.size))
    return model


def shrunken() -> pm.Model:
    """Logistic regression, 12 coefficients with a scale each, and 8 groups."""
    rng = np.random.default_rng(4)
    x, group = rng.normal(size=(300, 12)), rng.integers(0, 8, 300)
    with pm.Model() as model:
        scale = pm.HalfNormal("tau", 0.5) * pm.HalfStudentT("own", nu=3, shape=12)
        effect = pm.Normal("mu", 0, 1) + 0.5 * pm.Normal("z", shape=8)
        log_odds = effect[group] + pm.math.dot(x, scale * pm.Normal("raw", shape=12))
        pm.Bernoulli("y", logit_p=log_odds, observed=rng.integers(0, 2, 300))
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    f.__name__: f for f in (nested, crossed, noncentred, shrunken)
}


class Calibration:
    """Replications of one model, which compile once.

    Parameters
    ----------
    model
        It has one observed variable, y, and its scales have log transforms.
    by_bright_rows
        Whether the bright rows of Firefly Monte Carlo decide, in place of minibatch tests.
    """

    def __init__(self, model: pm.Model, by_bright_rows: bool = False) -> None:
        self.model, self.tall = model, pmb.TallModel(model)
        structure = self.tall.structure
        assert structure is not None
        self.rows = RowFunctions(structure)
        self.factors = find_factors(self.rows, self.tall.data)
        entries = [factor.entries for factor in self.factors]
        self.field = find_field(self.tall, structure, entries)
        self.kernels: Any = None
        self.bounded_rows = None
        if by_bright_rows:
            self.bounded_rows = BoundedRows(self.tall, structure, *recognised(self.tall, "auto"))

    def put(self, y: np.ndarray) -> None:
        """Put other data in place."""
        old = self.tall.row_inputs["y"]
        values = y.astype(old.values.dtype)
        self.tall.row_inputs["y"] = make_input("y", old.leaf, old.axis, values)

    def latent_model(self) -> LatentModel:
        """Find the mode with the present data."""
        reference = search(self.tall, self.field, self.rows, self.factors)
        return LatentModel(self.rows, self.factors, reference)

    def fit(self, y: np.ndarray) -> LatentSampler:
        """Set up on other data."""
        self.put(y)
        latent_model = self.latent_model()
        if self.bounded_rows is not None:
            return bounded(self.tall, self.bounded_rows, latent_model)
        rows, factors, reference, _ = latent_model
        sampler = MinibatchSampler(
            self.tall, LatentModel(rows, factors, reference), None, 1.0, True
        )
        if self.kernels is None:
            self.kernels = sampler._kernels
        sampler._kernels = self.kernels
        return sampler

    def draws(self, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return draws on the unconstrained scale, shape (draws, D)."""
        sampler = self.fit(y)
        state = sampler.initial_state()
        point = sampler.near_mode(rng, self.tall.layout.flatten(self.model.initial_point()))
        sampler.draw(rng, point, TUNE, True, state)
        sampler.end_tuning(state)
        kept = []
        for _ in range(N_DRAWS):
            sampler.draw(rng, point, THIN, False, state)
            kept.append(point.copy())
        return np.array(kept)

    def truths(self, n: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield points from the prior, on the unconstrained scale, and data made with them."""
        prior = pm.sample_prior_predictive(n, self.model, random_seed=seed)
        for i in range(n):
            truth = {}
            for variable in self.model.free_RVs:
                value = prior.prior[variable.name].values[0, i]
                logs = self.model.rvs_to_transforms[variable] is not None
                name = self.model.rvs_to_values[variable].name
                truth[name] = np.log(value) if logs else value
            yield self.tall.layout.flatten(truth), prior.prior_predictive["y"].values[0, i]


def ranked(tall: TallModel, flat: np.ndarray) -> dict[str, float]:
    """Return what is ranked: scalars, one entry of each vector, and the log density."""
    entries = {name: flat[where.start] for name, where in tall.layout.slices.items()}
    return entries | {"log density": tall.logp(tall.layout.unflatten(flat))}


def ranks(
    model: pm.Model, n: int, by_bright_rows: bool = False, seed: int = 1
) -> dict[str, np.ndarray]:
    """Return the ranks of true values among draws, from 0 to the number of draws."""
    calibration, found = Calibration(model, by_bright_rows), []
    rng = np.random.default_rng(seed)
    for truth, y in calibration.truths(n, seed):
        drawn = [ranked(calibration.tall, draw) for draw in calibration.draws(y, rng)]
        right = ranked(calibration.tall, truth)
        found.append({name: sum(d[name] < right[name] for d in drawn) for name in right})
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def p_value(ranks_of_one: np.ndarray) -> float:
    """Test that ranks are uniform."""
    return float(chisquare(np.bincount(ranks_of_one, minlength=N_DRAWS + 1)).pvalue)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS], default="nested")
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--firefly", action="store_true", help="bright rows decide")
    options = parser.parse_args()
    model = MODELS[options.model]
    table = Table(title=f"{model.__doc__} {options.replications:,} replications")
    for column in ("ranked", "mean rank / draws", "p-value"):
        table.add_column(column, justify="right")
    for name, found in ranks(model(), options.replications, options.firefly).items():
        table.add_row(name, f"{found.mean() / N_DRAWS:.3f}", f"{p_value(found):.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
