"""A Gaussian process of counts beside numerical integration, where NUTS takes very long.

Given its scale and its length the process is nearly Gaussian with so many rows, and is integrated
out by Laplace's method, the means to third order. Scale and length are integrated on a grid. This
reads all rows at each of its points and knows nothing of the sampler, but how wide the grid is.

    python -m benchmarks.quadrature --rows 50000
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy import stats

from benchmarks.effects import N_BASIS, Run, by_minibatch, counts, smooth
from benchmarks.report import machine, table, versions

GRID = np.linspace(-4.5, 5.5, 27)
"""Places on each axis, in standard deviations."""

NAMES = ["scale", "length", "f_hsgp_coeffs", "mu"]


class Integrated(NamedTuple):
    """The field given scale and length: log integral, means and variances, and its mode."""

    log_integral: float
    mean: np.ndarray
    variance: np.ndarray
    mode: np.ndarray


class Process:
    """Coefficients of the process and the level of all counts, with their prior and the rows."""

    def __init__(self, n_rows: int) -> None:
        x, self.exposure, self.y = counts(n_rows)
        scale, length = pt.dscalars("scale", "length")
        with pm.Model():
            covariance = scale**2 * pm.gp.cov.ExpQuad(1, ls=length)
            process = pm.gp.HSGP(m=[N_BASIS], c=1.5, cov_func=covariance)
            basis, spread = process.prior_linearized(X=x[:, None])
        self.columns = np.column_stack([basis.eval(), np.ones(n_rows)])
        self.spread: Callable[..., np.ndarray] = pytensor.function([scale, length], spread)

    def integrate(self, scale: float, length: float, start: np.ndarray) -> Integrated:
        """Search the mode by Newton's method, and integrate about it."""
        A, z = self.columns * np.append(self.spread(scale, length), 1.0), start

        def log_density(z: np.ndarray) -> float:
            eta = A @ z
            return float(self.y @ eta - self.exposure @ np.exp(eta) - z @ z / 2)

        decrement = np.inf
        while decrement > 1e-12:
            rate = self.exposure * np.exp(A @ z)
            gradient = A.T @ (self.y - rate) - z
            precision = (A * rate[:, None]).T @ A + np.eye(z.size)
            step = np.linalg.solve(precision, gradient)
            decrement = step @ gradient
            while log_density(z + step) < log_density(z) - 1e-6:
                step /= 2
            z = z + step
        covariance = np.linalg.inv(precision)
        bend = A.T @ (rate * np.einsum("ij,jk,ik->i", A, covariance, A))
        log_integral = log_density(z) - np.linalg.slogdet(precision)[1] / 2
        return Integrated(log_integral, z - covariance @ bend / 2, np.diag(covariance), z)


def log_prior(scale: float, length: float) -> float:
    """Evaluate the prior of the logarithms."""
    return float(
        stats.halfnorm.logpdf(scale)
        + stats.invgamma.logpdf(length, 3, scale=2)
        + np.log(scale * length)
    )


def integrate(n_rows: int, log_hyper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, on a grid about draws of log scale and log length."""
    process, center = Process(n_rows), log_hyper.mean(axis=0)
    axes = np.linalg.cholesky(np.cov(log_hyper.T))
    start = np.append(np.zeros(N_BASIS), np.log(process.y.sum() / process.exposure.sum()))
    weights, points, fields = [], [], []
    for place in np.stack(np.meshgrid(GRID, GRID, indexing="ij"), axis=-1).reshape(-1, 2):
        scale, length = np.exp(center + axes @ place)
        found = process.integrate(scale, length, start)
        start = found.mode
        weights.append(found.log_integral + log_prior(scale, length))
        points.append([scale, length])
        fields.append([found.mean, found.variance])
    weight = np.exp(weights - np.max(weights))
    weight /= weight.sum()
    hyper, field = np.array(points), np.array(fields)
    each = np.column_stack([hyper, field[:, 0]])
    within = np.column_stack([np.zeros_like(hyper), field[:, 1]])
    mean = weight @ each
    return mean, np.sqrt(weight @ ((each - mean) ** 2 + within))


def measure(n_rows: int, draws: int) -> list[list[str]]:
    """Compare each parameter."""
    run = Run(draws, tune=500, var_names=NAMES)
    posterior: xr.Dataset = by_minibatch(smooth(n_rows), run)[0].posterior
    chains = np.concatenate([np.atleast_3d(posterior[name].values) for name in NAMES], axis=2)
    mean, sd = integrate(n_rows, np.log(chains[:, :, :2].reshape(-1, 2)))
    lines = []
    for i, values in enumerate(np.moveaxis(chains, 2, 0)):
        of_mean, of_sd = (float(az.mcse(values, method=method)) for method in ("mean", "sd"))
        name = ([*NAMES[:2], *[f"coefficient {k}" for k in range(N_BASIS)], NAMES[3]])[i]
        ratio, ess = values.std() / sd[i], float(az.ess(values))
        z = (values.mean() - mean[i]) / of_mean, (values.std() - sd[i]) / of_sd
        lines.append([name, f"{ess:,.0f}", *(f"{v:.1f}" for v in z), f"{ratio - 1:.1%}"])
    return lines


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quadrature", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=10_000, help="of each of two chains")
    options = parser.parse_args()
    titles = ["parameter", "ESS", "mean, z", "sd, z", "sd, difference"]
    print(table(titles, measure(options.rows, options.draws)))
    print(f"\n{machine()}; {versions()}")


if __name__ == "__main__":
    main()
