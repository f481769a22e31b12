"""Many small groups, where the mode of the scale of the rows is far from its mean.

Rows and effects are normal, so that effects and mean can be integrated out in closed form, and
both scales by quadrature.
"""

import arviz as az
import numpy as np
import pymc as pm

import pymc_minibatch as pmb

N_GROUPS, N_ROWS = 4000, 3
"""Groups, and rows of each: at the mode of all effects log s is 19 standard deviations too low."""

DRAWS = 1000


def exact(y: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of mu, log sd and log s; y has a row for each group."""
    log_sd, log_s = np.linspace(-0.7, 0.0, 400)[:, None], np.linspace(-0.1, 0.1, 300)
    means, variance = y.mean(axis=1), np.exp(2 * log_sd) + np.exp(2 * log_s) / N_ROWS
    within = np.sum((y - means[:, None]) ** 2)
    between = np.sum((means - means.mean()) ** 2)
    of_mean = 1.0 + variance / N_GROUPS  # variance of the mean of all rows, with mu ~ N(0, 1)
    log_posterior = (
        -(N_ROWS - 1) * N_GROUPS * log_s
        - 0.5 * within * np.exp(-2 * log_s)
        - 0.5 * (N_GROUPS - 1) * np.log(variance)
        - 0.5 * between / variance
        - 0.5 * np.log(of_mean)
        - 0.5 * means.mean() ** 2 / of_mean
        + (log_sd - 0.5 * np.exp(2 * log_sd))  # both are HalfNormal(1)
        + (log_s - 0.5 * np.exp(2 * log_s))
    )
    share = np.exp(log_posterior - log_posterior.max())
    share /= share.sum()

    def moments(value: np.ndarray, spread: np.ndarray | float = 0.0) -> tuple[float, float]:
        mean = float(np.sum(share * value))
        return mean, float(np.sqrt(np.sum(share * ((value - mean) ** 2 + spread))))

    shrunk, left = means.mean() / of_mean, (of_mean - 1.0) / of_mean
    return {"mu": moments(shrunk, left), "sd": moments(log_sd), "s": moments(log_s)}


def test_scale_of_rows_in_many_small_groups() -> None:
    """It is right from the first draw on, since the expansion is about the mean of the field."""
    rng = np.random.default_rng(3)
    y = 1.0 + 0.7 * rng.normal(size=(N_GROUPS, 1)) + rng.normal(size=(N_GROUPS, N_ROWS))
    group = np.repeat(np.arange(N_GROUPS), N_ROWS)
    with pm.Model():
        mu, sd, s = pm.Normal("mu", 0, 1), pm.HalfNormal("sd", 1), pm.HalfNormal("s", 1)
        z = pm.Normal("z", shape=N_GROUPS)
        pm.Normal("y", mu + sd * z[group], s, observed=y.ravel())
        step = pmb.MinibatchMH()
        idata = pm.sample(
            DRAWS,
            tune=200,
            chains=2,
            cores=2,
            step=step,
            var_names=["mu", "sd", "s"],
            random_seed=4,
            progressbar=False,
        )
    for name, (mean, deviation) in exact(y).items():
        draws = idata.posterior[name].values
        draws = draws if name == "mu" else np.log(draws)
        assert float(az.ess(draws)) > 200, name
        error = float(az.mcse(draws, method="mean"))
        assert abs(draws.mean() - mean) < 4.5 * error, name
        error = float(az.mcse(draws, method="sd"))
        assert abs(draws.std() - deviation) < 5 * error, name
