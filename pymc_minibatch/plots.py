"""Figures of what a minibatch run read, how exact it was, and how it compares.

All are drawn by arviz-plots, with any of its backends (the extra ``plots`` installs it), in the
colours of Okabe and Ito, which colour-blind readers can tell apart. Each function returns the
:class:`arviz_plots.PlotCollection`, whose ``savefig`` writes a file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_minibatch.compare import aligned_runs, labels, rows_of_data, shared_variables
from pymc_minibatch.curves import (
    Run,
    Runs,
    curves_of_stat,
    drawable,
    matrices_of,
    mean_over_chains,
    named,
    outlines_of_sizes,
    rows_read_by,
    running_means,
)
from pymc_minibatch.panels import (
    COLORS,
    Panels,
    arviz_plots,
    columns_of,
    figure_options,
    over_draws,
    thinned,
)
from pymc_minibatch.renamed import renamed
from pymc_minibatch.results import Result, named_results

__all__ = [
    "accuracy_by_rows",
    "audit",
    "batch_sizes",
    "bright_rows",
    "error_by_rows",
    "marginals",
    "noise",
    "running_mean",
]


def marginals(
    runs: Runs, *, var_names: Sequence[str] | None = None, backend: str | None = None
) -> Any:
    """Overlay the marginal posteriors of several runs.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Results of ``pm.sample`` for the same model, by name.
    var_names : sequence of str, optional
        The variables to draw; all that the runs share if not given.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
    ------
    ValueError
        If runs have other labels than the first, draws that are not finite, or too few of them.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> runs = {
    ...     name: az.from_dict({"posterior": {"mu": rng.normal(size=(2, 200))}})
    ...     for name in ("MinibatchMH", "NUTS")
    ... }
    >>> figure = pmb.plots.marginals(runs, backend="none")
    >>> list(figure.viz["plot"])
    ['mu']
    """
    plots = arviz_plots()
    results = named_results(named(runs))
    first = next(iter(results))
    names = shared_variables(results, first, var_names)
    aligned = aligned_runs(results, first, names)
    posteriors = {name: drawable(results[name], arrays) for name, arrays in aligned.items()}
    n_panels = sum(len(labels(posteriors[first][name])) for name in names)
    columns = columns_of(n_panels)
    collection = plots.plot_dist(
        {name: xr.DataTree.from_dict({"posterior": part}) for name, part in posteriors.items()},
        var_names=names,
        kind="kde",
        backend=backend,
        aes={"color": ["model"], "linestyle": ["model"]},
        color=list(COLORS),
        col_wrap=columns,
        figure_kwargs=figure_options(columns, -(-n_panels // columns), backend),
        visuals={"point_estimate_text": False, "credible_interval": False, "point_estimate": False},
    )
    if len(results) == 1:
        return collection
    collection.add_legend("model", title="run")
    return collection


def batch_sizes(runs: Run | Runs, *, n_bins: int = 40, backend: str | None = None) -> Any:
    """Draw the histogram of batch sizes, both axes logarithmic.

    With ``steps_per_draw=1`` these are the rows of each decision, as in figures 2, 4 and 5 of Seita
    et al. (2017); otherwise they are means over the decisions of a draw.

    Parameters
    ----------
    runs : DataTree, or mapping of str to DataTree
        Runs of :class:`MinibatchMH`, which record ``batch_size``.
    n_bins : int, default 40
        Bins, of equal width in the logarithm. Empty ones are left out.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
    ------
    ValueError
        If a run has no such stat.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> idata = az.from_dict({
    ...     "posterior": {"mu": rng.normal(size=(2, 200))},
    ...     "sample_stats": {"batch_size": rng.poisson(100, (2, 200))},
    ... })
    >>> figure = pmb.plots.batch_sizes({"MinibatchMH": idata}, backend="none")
    >>> list(figure.viz["plot"])
    ['batch sizes']
    """
    curves = outlines_of_sizes(curves_of_stat(runs, "batch_size"), n_bins)
    panel = Panels(curves, ["batch sizes"], backend, dashes=False)
    for name, corners in curves.items():
        panel.line(name, *corners, width=1.8)
    panel.label("rows per decision", "share of draws", log="xy")
    return panel.finish()


@renamed(reference="baseline")
def error_by_rows(
    runs: Runs,
    baseline: str,
    *,
    var_names: Sequence[str] | None = None,
    n_rows: int | None = None,
    backend: str | None = None,
) -> Any:
    """Draw the error of the posterior mean against the rows that were read.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Runs of the same model, by name. Those of NUTS are counted by their ``n_steps``.
    baseline : str
        The run whose means and standard deviations are treated as the truth. It is not drawn.
    var_names : sequence of str, optional
        The variables whose means are compared; all of the baseline's if not given.
    n_rows : int, optional
        Rows of the data, if the runs do not record them; as in :func:`compare`.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection
        One curve per run: the error of the running mean of a chain, in posterior standard
        deviations, as root mean square over parameters and chains, against the rows that a chain
        has evaluated since tuning ended.

    Raises
    ------
    ValueError
        If the baseline is not among the runs, or a run does not record its rows.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> runs = {
    ...     name: az.from_dict({
    ...         "posterior": {"mu": rng.normal(size=(2, 200))},
    ...         "sample_stats": {"n_likelihood": np.full((2, 200), rows)},
    ...     })
    ...     for name, rows in {"MinibatchMH": 500, "long run": 10_000}.items()
    ... }
    >>> figure = pmb.plots.error_by_rows(runs, "long run", n_rows=10_000, backend="none")
    >>> list(figure.viz["plot"])
    ['by rows']
    """
    results = named_results(runs, baseline)
    drawn = matrices_of(results, baseline, var_names)
    truth = drawn[baseline]
    mean, sd = truth.mean((0, 1)), truth.std((0, 1))
    varies = sd > 0
    if not varies.any():
        raise ValueError(f"Nothing varies in the draws of {baseline!r}. Take more of them.")

    def error(draws: np.ndarray) -> np.ndarray:
        running = running_means(draws[:, :, varies])
        return np.sqrt((((running - mean[varies]) / sd[varies]) ** 2).mean(axis=(0, 2)))

    curves = {name: error(draws) for name, draws in drawn.items() if name != baseline}
    return _by_rows(results, curves, n_rows, "error of the mean (posterior sd)", "xy", backend)


def accuracy_by_rows(
    runs: Runs,
    accuracy: Mapping[str, Any],
    *,
    label: str = "accuracy",
    n_rows: int | None = None,
    backend: str | None = None,
) -> Any:
    """Draw a number that each draw has, such as the accuracy of its predictions, against rows read.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Runs, by name.
    accuracy : mapping of str to array_like, shape (chains, draws)
        The number per draw of each run.
    label : str, default "accuracy"
        Name of the number, with its unit.
    n_rows : int, optional
        Rows of the data, if the runs do not record them; as in :func:`compare`.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection
        One curve per run: the mean over chains against the rows that a chain has evaluated
        since tuning ended.

    Raises
    ------
    ValueError
        If a run does not record its rows.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> idata = az.from_dict({
    ...     "posterior": {"mu": rng.normal(size=(2, 200))},
    ...     "sample_stats": {"n_likelihood": np.full((2, 200), 500)},
    ... })
    >>> right = rng.uniform(0.9, 0.95, size=(2, 200))  # share of test rows, at each draw
    >>> figure = pmb.plots.accuracy_by_rows(
    ...     {"SGHMC": idata}, {"SGHMC": right}, n_rows=10_000, backend="none"
    ... )
    >>> list(figure.viz["plot"])
    ['by rows']
    """
    results = named_results(runs)
    curves = {name: mean_over_chains(run, name, accuracy) for name, run in results.items()}
    return _by_rows(results, curves, n_rows, label, "x", backend)


def bright_rows(runs: Run | Runs, *, backend: str | None = None) -> Any:
    """Draw the number of bright rows of Firefly Monte Carlo over time, one line per chain.

    Parameters
    ----------
    runs : DataTree, or mapping of str to DataTree
        Runs that record ``n_bright``.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
    ------
    ValueError
        If a run has no such stat.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> idata = az.from_dict({
    ...     "posterior": {"mu": rng.normal(size=(2, 200))},
    ...     "sample_stats": {"n_bright": rng.poisson(50, (2, 200))},
    ... })
    >>> figure = pmb.plots.bright_rows({"FlyMC": idata}, backend="none")
    >>> list(figure.viz["plot"])
    ['bright rows']
    """
    curves = curves_of_stat(runs, "n_bright")
    panel = Panels(curves, ["bright rows"], backend, dashes=False)
    for name, chains in curves.items():
        for chain in chains:
            panel.line(name, *over_draws(chain), alpha=0.7, width=0.8)
    panel.label("draw", "bright rows")
    return panel.finish()


def noise(runs: Run | Runs, *, backend: str | None = None) -> Any:
    """Draw s² and the bound on the error of the acceptance test at each draw.

    Parameters
    ----------
    runs : DataTree, or mapping of str to DataTree
        Runs of :class:`MinibatchMH`, which record ``log_ratio_var`` and ``test_error``.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection
        Two panels, with logarithmic axes. Draws that read all rows have no noise and are left out.

    Raises
    ------
    ValueError
        If a run has no such stats, or none of the runs has noise, as runs of :class:`Exact`.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> idata = az.from_dict({
    ...     "posterior": {"mu": rng.normal(size=(2, 200))},
    ...     "sample_stats": {
    ...         "log_ratio_var": rng.uniform(0.0, 1.0, (2, 200)),
    ...         "test_error": rng.uniform(0.0, 1e-3, (2, 200)),
    ...     },
    ... })
    >>> figure = pmb.plots.noise({"MinibatchMH": idata}, backend="none")
    >>> list(figure.viz["plot"])
    ['noise of the log ratio', 'error of the test']
    """
    stats = ("log_ratio_var", "test_error")
    noises = {stat: curves_of_stat(runs, stat) for stat in stats}
    if not any((values > 0).any() for values in noises["log_ratio_var"].values()):
        raise ValueError(
            "There is no noise to draw: every decision of "
            f"{', '.join(map(repr, noises['log_ratio_var']))} was exact. "
            "plots.batch_sizes shows the rows that they took."
        )
    titles = ["noise of the log ratio", "error of the test"]
    panels = Panels(noises["log_ratio_var"], titles, backend, dashes=False)
    labels = ("s² (nats²)", "bound on the probability's error")
    for k, (stat, label) in enumerate(zip(stats, labels, strict=True)):
        for name, chains in noises[stat].items():
            for chain in chains:
                draw, values = over_draws(chain)
                panels.scatter(name, draw[values > 0], values[values > 0], k)
        panels.label("draw", label, log="y", panel=k)
    return panels.finish()


def audit(result: Any, *, backend: str | None = None) -> Any:
    """Plot the result of an audit.

    Parameters
    ----------
    result : Audit
        Result of :func:`pymc_minibatch.audit`.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection
        For each move the error of the acceptance probability in standard errors, over the log
        ratio; for a right test these are standard normal, and the band holds 95 % of them.

    Raises
    ------
    ValueError
        If no batch decides.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=20_000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=1.0, observed=data)
    ...     step = pmb.MinibatchMH()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, cores=1, random_seed=1,
    ...         progressbar=False,
    ...     )
    >>> figure = pmb.plots.audit(pmb.audit(idata, step), backend="none")
    >>> list(figure.viz["plot"])
    ['audit']
    """
    if not len(result.moves):
        raise ValueError(
            "No batch decides on the moves of this audit, so there is nothing to draw."
        )
    title, band = "decisions", "95 % of a right test"
    panels = Panels({title: None, band: None}, ["audit"], backend)
    ratios = result.moves["log_ratio"].to_numpy()
    panels.scatter(title, ratios, result.moves["z"].to_numpy(), 0)
    for level in (-1.96, 1.96):
        panels.line(band, np.array([ratios.min(), ratios.max()]), np.full(2, level))
    panels.label("log ratio of the move", "error / standard error")
    return panels.finish()


@renamed(reference="baseline")
def running_mean(
    runs: Runs,
    baseline: str,
    *,
    var_names: Sequence[str] | None = None,
    backend: str | None = None,
) -> Any:
    """Draw running means of every chain against the mean of a baseline.

    Parameters
    ----------
    runs : mapping of str to DataTree
        Runs of the same model, by name.
    baseline : str
        The run whose mean over all draws is the horizontal line; its own chains are not drawn.
    var_names : sequence of str, optional
        The variables to draw, one panel per element; all if not given.
    backend : {"matplotlib", "plotly", "bokeh"}, optional
        Default: that of arviz-plots.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
    ------
    ValueError
        If the baseline is not among the runs.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> runs = {
    ...     name: az.from_dict({"posterior": {"mu": rng.normal(size=(2, 200))}})
    ...     for name in ("MinibatchMH", "NUTS")
    ... }
    >>> figure = pmb.plots.running_mean(runs, "NUTS", backend="none")
    >>> list(figure.viz["plot"])
    ['mu']
    """
    results = named_results(runs, baseline)
    names = shared_variables(results, baseline, var_names)
    titles = [label for name in names for label in labels(results[baseline].posterior[name])]
    matrices = matrices_of(results, baseline, names)
    truth = matrices[baseline].mean((0, 1))
    panels = Panels(results, titles, backend)
    for name, drawn in matrices.items():
        if name == baseline:
            continue
        for chain in running_means(drawn):
            for k, values in enumerate(chain.T):
                panels.line(name, *over_draws(values), panel=k, alpha=0.8)
    n_draws = max(run.n_draws for run in results.values())
    for k, title in enumerate(titles):
        panels.line(baseline, np.array([1, n_draws]), np.full(2, truth[k]), panel=k)
        panels.label("draw", f"running mean of {title}", log="x", panel=k)
    return panels.finish()


def _by_rows(
    runs: Mapping[str, Result],
    curves: Mapping[str, np.ndarray],
    n_rows: int | None,
    label: str,
    log: str,
    backend: str | None,
) -> Any:
    """Draw a curve of some of the runs against the rows that they read."""
    count = rows_of_data(runs.values()) if n_rows is None else n_rows
    panel = Panels({name: runs[name] for name in curves}, ["by rows"], backend)
    for name, curve in curves.items():
        panel.line(name, *thinned(rows_read_by(runs[name], name, count), curve))
    panel.label("rows evaluated in a chain", label, log=log)
    return panel.finish()
