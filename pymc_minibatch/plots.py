"""Figures of what a minibatch run read, how exact it was, and how it compares.

All are drawn by arviz-plots, with any of its backends (``pip install 'pymc-minibatch[plots]'``), in
the colours of Okabe and Ito, which colour-blind readers can tell apart. Each function returns the
:class:`arviz_plots.PlotCollection`, whose ``savefig`` writes a file.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr

from pymc_minibatch.compare import aligned_runs, labels, rows_of_data, shared_variables
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

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), Color Universal Design."""

LEAST_DRAWS = 10
"""With fewer draws a curve would show its bandwidth alone."""

MOST_POINTS = 2000
"""A curve with more would only be slower to draw."""

type Run = xr.DataTree
type Runs = Mapping[str, xr.DataTree]


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
    """
    plots = _arviz_plots()
    results = named_results(_named(runs))
    first = next(iter(results))
    names = shared_variables(results, first, var_names)
    aligned = aligned_runs(results, first, names)
    posteriors = {name: drawable(results[name], arrays) for name, arrays in aligned.items()}
    n_panels = sum(len(labels(posteriors[first][name])) for name in names)
    columns = min(n_panels, 4)
    collection = plots.plot_dist(
        {name: xr.DataTree.from_dict({"posterior": part}) for name, part in posteriors.items()},
        var_names=names,
        kind="kde",
        backend=backend,
        aes={"color": ["model"], "linestyle": ["model"]},
        color=list(COLORS),
        col_wrap=columns,
        figure_kwargs=_figure(columns, -(-n_panels // columns), backend),
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
    """
    curves = _curves(runs, "batch_size")
    sizes = {name: values[values > 0] for name, values in curves.items()}
    if empty := [name for name, values in sizes.items() if not values.size]:
        raise ValueError(f"{empty[0]!r} has no draw with a batch. Leave it out.")
    low = min(values.min() for values in sizes.values())
    high = max(values.max() for values in sizes.values())
    edges = np.geomspace(0.9 * low, 1.1 * high, n_bins + 1)
    panel = Panels(sizes, ["batch sizes"], backend, dashes=False)
    # A logarithmic axis has no zero: bins stand on half a decision of the longest run.
    floor = 0.5 / max(values.size for values in sizes.values())
    for name, values in sizes.items():
        share = np.histogram(values, edges)[0] / values.size
        panel.line(name, *outline(edges, share, floor), width=1.8)
    panel.label("rows for a decision", "share of draws", log="xy")
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
        The run whose means and standard deviations are taken for the truth. It is not drawn.
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
    """
    results = named_results(runs, baseline)
    matrices = _matrices(results, baseline, var_names)
    truth = matrices[baseline]
    mean, sd = truth.mean((0, 1)), truth.std((0, 1))
    varies = sd > 0
    if not varies.any():
        raise ValueError(f"Nothing varies in the draws of {baseline!r}. Take more of them.")

    def error(drawn: np.ndarray) -> np.ndarray:
        running = _running_mean(drawn[:, :, varies])
        return np.sqrt((((running - mean[varies]) / sd[varies]) ** 2).mean(axis=(0, 2)))

    curves = {name: error(drawn) for name, drawn in matrices.items() if name != baseline}
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
    """
    results = named_results(runs)
    curves = {}
    for name, run in results.items():
        if name not in accuracy:
            raise ValueError(f"accuracy has nothing for the run {name!r}.")
        numbers = np.atleast_2d(np.asarray(accuracy[name], dtype=np.float64))
        if numbers.shape != (run.n_chains, run.n_draws):
            raise ValueError(
                f"accuracy of the run {name!r} has shape {numbers.shape}; it needs a number for "
                f"each of {run.n_chains} chains and {run.n_draws} draws."
            )
        if not np.isfinite(numbers).all():
            raise ValueError(f"accuracy of the run {name!r} has numbers that are not finite.")
        curves[name] = numbers.mean(axis=0)
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
    """
    curves = _curves(runs, "n_bright")
    panel = Panels(curves, ["bright rows"], backend, dashes=False)
    for name, chains in curves.items():
        for chain in chains:
            panel.line(name, *_over_draws(chain), alpha=0.7, width=0.8)
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
    """
    stats = ("log_ratio_var", "test_error")
    noises = {stat: _curves(runs, stat) for stat in stats}
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
                draw, values = _over_draws(chain)
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
    """
    results = named_results(runs, baseline)
    names = shared_variables(results, baseline, var_names)
    titles = [label for name in names for label in labels(results[baseline].posterior[name])]
    matrices = _matrices(results, baseline, names)
    truth = matrices[baseline].mean((0, 1))
    panels = Panels(results, titles, backend)
    for name, drawn in matrices.items():
        if name == baseline:
            continue
        for chain in _running_mean(drawn):
            for k, values in enumerate(chain.T):
                panels.line(name, *_over_draws(values), panel=k, alpha=0.8)
    n_draws = max(run.n_draws for run in results.values())
    for k, title in enumerate(titles):
        panels.line(baseline, np.array([1, n_draws]), np.full(2, truth[k]), panel=k)
        panels.label("draw", f"running mean of {title}", log="x", panel=k)
    return panels.finish()


class Panels:
    """Panels side by side, with one colour and line style for each run in all of them."""

    def __init__(
        self,
        runs: Mapping[str, Any],
        titles: Sequence[str],
        backend: str | None,
        dashes: bool = True,
    ) -> None:
        plots = _arviz_plots()
        self.runs, self.titles = list(runs), list(titles)
        self.aes = ("color", "linestyle") if dashes else ("color",)
        data = xr.Dataset(
            {title: ("run", np.zeros(len(runs))) for title in titles}, {"run": self.runs}
        )
        columns = min(len(titles), 3)
        rows = -(-len(titles) // columns)
        self.collection = plots.PlotCollection.wrap(
            data,
            cols=["__variable__"],
            col_wrap=columns,
            backend=backend,
            aes={aes: ["run"] for aes in self.aes},
            color=list(COLORS),
            figure_kwargs=_figure(columns, rows, backend),
        )
        self.backend = import_module(f"arviz_plots.backend.{self.collection.backend}")

    def _draw(
        self, draw: Callable[..., Any], aes: Sequence[str], run: str, panel: int, **style: Any
    ) -> None:
        title, here = self.titles[panel], {"run": run}
        mapped = self.collection.get_aes_kwargs(list(aes), title, here)
        draw(target=self.collection.get_target(title, here), **mapped, **style)

    def line(
        self, run: str, x: Any, y: Any, panel: int = 0, alpha: float = 1.0, width: float = 1.5
    ) -> None:
        self._draw(self.backend.line, self.aes, run, panel, x=x, y=y, alpha=alpha, width=width)

    def scatter(self, run: str, x: Any, y: Any, panel: int) -> None:
        self._draw(self.backend.scatter, ["color"], run, panel, x=x, y=y, alpha=0.4, size=8)

    def label(self, x: str, y: str, log: str = "", panel: int = 0) -> None:
        target = self.collection.get_target(self.titles[panel], {"run": self.runs[0]})
        self.backend.xlabel(x, target)
        self.backend.ylabel(y, target)
        if "x" in log:
            self.backend.xscale(target, "log")
        if "y" in log:
            self.backend.yscale(target, "log")
        if len(self.titles) > 1:
            self.backend.title(self.titles[panel], target)

    def finish(self) -> Any:
        if len(self.runs) > 1:
            self.collection.add_legend("run")
        return self.collection


def _figure(columns: int, rows: int, backend: str | None) -> dict[str, Any]:
    """Return the size of a figure; Matplotlib does not make room for the legend by default."""
    backend = import_module("arviz_base").rcParams["plot.backend"] if backend is None else backend
    size = {"figsize": (450 * columns + 200, 380 * rows), "figsize_units": "dots"}
    return size | ({"layout": "constrained"} if backend == "matplotlib" else {})


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
        read = runs[name].rows_read(count)
        if read is None:
            raise ValueError(
                f"The run {name!r} does not record how many rows it read: it has neither "
                "n_likelihood nor n_gradient, nor n_steps with a known number of rows. Pass "
                "n_rows, or leave the run out."
            )
        rows = np.cumsum(read.mean(axis=0))
        panel.line(name, *_thinned(rows, curve))
    panel.label("rows evaluated in a chain", label, log=log)
    return panel.finish()


def _arviz_plots() -> Any:
    try:
        return import_module("arviz_plots")
    except ImportError as error:
        raise ImportError(
            "The figures need arviz-plots and one of its backends: "
            "pip install 'pymc-minibatch[plots]'."
        ) from error


def _named(runs: Run | Runs) -> Any:
    is_one = isinstance(runs, xr.DataTree) or not isinstance(runs, Mapping)
    return {"run": runs} if is_one else runs


def _curves(runs: Run | Runs, stat: str) -> dict[str, np.ndarray]:
    """Read a sample stat of each run, shape (chains, draws), and of each of its steps.

    Draws that were not made are nan.
    """
    curves = {}
    for name, run in named_results(_named(runs)).items():
        values = run.stat(stat)
        if values is None:
            raise ValueError(
                f"The run {name!r} has no sample stat {stat}. Leave it out, or draw another figure."
            )
        values = np.where(run.is_made[:, :, None], values, np.nan)
        for k in range(values.shape[2]):
            title = name if values.shape[2] == 1 else f"{name}, step {k + 1}"
            curves[title] = values[:, :, k]
    return curves


def _matrices(
    runs: Mapping[str, Result], reference: str, var_names: Sequence[str] | None
) -> dict[str, np.ndarray]:
    """Return all elements of the variables of each run, in the order of the reference's.

    Their shapes are (chains, draws, K).
    """
    names = shared_variables(runs, reference, var_names)
    matrices = {}
    for name, arrays in aligned_runs(runs, reference, names).items():
        for variable, values in arrays.items():
            runs[name].check_finite(variable, values)
        parts = [values.values.reshape(*values.shape[:2], -1) for values in arrays.values()]
        matrices[name] = np.concatenate(parts, axis=2)
    return matrices


def drawable(run: Result, arrays: Mapping[str, xr.DataArray]) -> xr.Dataset:
    """Return draws of which a density can be drawn."""
    for name, values in arrays.items():
        run.check_finite(name, values)
    if run.n_chains * run.n_draws < LEAST_DRAWS:
        raise ValueError(
            f"{run.what} has {run.n_chains * run.n_draws} draws: a density needs {LEAST_DRAWS}."
        )
    return xr.Dataset(dict(arrays))


def outline(edges: np.ndarray, share: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw round each block of bins that are not empty, with gaps (nan) in between."""
    filled = np.concatenate([[False], share > 0, [False]])
    base, gap = np.array([floor]), np.array([np.nan])
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    for first, last in np.flatnonzero(np.diff(filled)).reshape(-1, 2):
        x += [np.repeat(edges[first : last + 1], 2), gap]
        y += [base, np.repeat(share[first:last], 2), base, gap]
    return np.concatenate(x)[:-1], np.concatenate(y)[:-1]


def _running_mean(draws: np.ndarray) -> np.ndarray:
    counts = np.arange(1, draws.shape[1] + 1)
    return np.cumsum(draws, axis=1) / counts[None, :, None]


def _over_draws(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a chain with the numbers of its draws."""
    return _thinned(np.arange(values.size) + 1, values)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most `MOST_POINTS` points, the last among them."""
    step = -(-x.size // MOST_POINTS)
    return x[::-1][::step][::-1], y[::-1][::step][::-1]
