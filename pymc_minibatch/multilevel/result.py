"""The result of a multilevel estimate."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["MultilevelResult"]


@dataclass(frozen=True)
class MultilevelResult:
    """Estimated expectations under the posterior, with their errors and their cost.

    Attributes
    ----------
    estimate : float, ndarray or xarray.Dataset
        Estimate, in the shape of f; if variables were named, a Dataset with a dimension
        ``moment`` of length 2, mean and variance.
    standard_error : float, ndarray or xarray.Dataset
        Standard error of the estimate, in the same form.
    bias : float, ndarray or xarray.Dataset
        Estimated bound on the remaining bias of the step size, in the same form.
    summary : pandas.DataFrame
        For each element: ``estimate``, ``standard_error``, ``bias``, ``rmse`` (the two combined)
        and ``target``, the RMSE to be reached.
    levels : pandas.DataFrame
        For each level: ``step`` (h, in units of time in which the Gaussian approximation of the
        posterior relaxes as e^(−t/2)), ``length`` of the paths, ``mean`` and ``variance`` of the
        difference between fine and coarse for the element `decisive`, ``samples``, ``cost`` of one
        of these in row evaluations, and ``total``.
    decisive : str
        The element that needs most samples.
    n_gradient : int
        Gradients of rows evaluated, pilot runs included; with ``taylor`` those at the mode, and
        their changes by the Hessian, count too.
    epochs : float
        `n_gradient` divided by the number of rows.
    reference_passes : float
        Passes over all rows for finding the mode, which `n_gradient` does not count.
    converged : bool
        Whether the estimated RMSE meets the target.
    message : str
        The reason for stopping.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1.0, observed=np.arange(1000.0) / 1000)
    ...     result = pmb.multilevel_sgld("mu", rtol=0.2, random_seed=1)
    >>> result.converged, list(result.summary.index)
    (True, ['mean of mu', 'variance of mu'])
    >>> bool((result.summary["rmse"] <= result.summary["target"]).all())
    True
    """

    estimate: Any
    standard_error: Any
    bias: Any
    summary: pd.DataFrame
    levels: pd.DataFrame
    decisive: str
    n_gradient: int
    epochs: float
    reference_passes: float
    converged: bool
    message: str

    def __str__(self) -> str:
        numbers = {"float_format": lambda value: f"{value:.4g}"}
        return "\n".join(
            [
                self.summary.to_string(**numbers),
                "",
                f"Differences between levels, of {self.decisive}:",
                self.levels.to_string(**numbers),
                "",
                f"{self.n_gradient:,} row evaluations, {self.epochs:,.4g} epochs; "
                f"{self.reference_passes:.3g} passes for the mode",
                self.message,
            ]
        )

    __repr__ = __str__

    def plot(self) -> Any:
        """Draw variance and mean of the differences, and the cost, by level.

        Dashed lines fall like h and h² from level 1.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            If matplotlib is not there; the extra ``plots`` brings it.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(
                "Figures need Matplotlib: install this package with its extra [plots]."
            ) from error
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        variance, mean, cost = figure.subplots(1, 3)
        differences = self.levels.iloc[1:]
        steps = differences["step"] / differences["step"].iloc[0]
        for axes, column in ((variance, "variance"), (mean, "mean")):
            values = np.abs(differences[column])
            axes.semilogy(differences.index, values, "o-", label="difference")
            axes.semilogy([0], np.abs(self.levels[column].iloc[:1]), "s", label="level 0")
            for power in (1, 2):
                line, color = values.iloc[0] * steps**power, str(0.8 - 0.3 * power)
                label = "like h" if power == 1 else "like h²"
                axes.semilogy(differences.index, line, "--", color=color, lw=1, label=label)
            axes.set(ylabel=f"{column} of {self.decisive}")
        variance.legend(frameon=False)
        cost.semilogy(self.levels.index, self.levels["total"], "o-")
        cost.set(ylabel="row evaluations")
        for axes in (variance, mean, cost):
            axes.set(xlabel="level", xticks=self.levels.index)
        return figure
