"""Panels side by side, on arviz-plots, and curves that can be drawn in them."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr

__all__ = [
    "Panels",
    "arviz_plots",
    "columns_of",
    "figure_options",
    "outline",
    "over_draws",
    "thinned",
]

FEW_PANELS = 6
"""Up to this many panels stand in two columns, so that their numbers can be read on a page."""

PANEL, LEGEND = (450, 340), 200
"""Width and height of a panel, and width of the legend, in dots."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), Color Universal Design."""

MOST_POINTS = 2000
"""A curve with more would only be slower to draw."""


class Panels:
    """Panels side by side, with one colour and line style for each run in all of them."""

    def __init__(
        self,
        runs: Mapping[str, Any],
        titles: Sequence[str],
        backend: str | None,
        dashes: bool = True,
    ) -> None:
        plots = arviz_plots()
        self.runs, self.titles = list(runs), list(titles)
        self.aes = ("color", "linestyle") if dashes else ("color",)
        data = xr.Dataset(
            {title: ("run", np.zeros(len(runs))) for title in titles}, {"run": self.runs}
        )
        columns = columns_of(len(titles))
        rows = -(-len(titles) // columns)
        self.collection = plots.PlotCollection.wrap(
            data,
            cols=["__variable__"],
            col_wrap=columns,
            backend=backend,
            aes={aes: ["run"] for aes in self.aes},
            color=list(COLORS),
            figure_kwargs=figure_options(columns, rows, backend),
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
        """Draw a line of a run."""
        self._draw(self.backend.line, self.aes, run, panel, x=x, y=y, alpha=alpha, width=width)

    def scatter(self, run: str, x: Any, y: Any, panel: int) -> None:
        """Draw points of a run."""
        self._draw(self.backend.scatter, ["color"], run, panel, x=x, y=y, alpha=0.4, size=8)

    def label(self, x: str, y: str, log: str = "", panel: int = 0) -> None:
        """Label the axes of a panel; `log` names those that are logarithmic."""
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
        """Add the legend; return the collection."""
        if len(self.runs) > 1:
            self.collection.add_legend("run")
        return self.collection


def columns_of(n_panels: int) -> int:
    """Return in how many columns panels stand."""
    return min(n_panels, 2 if n_panels <= FEW_PANELS else 3)


def figure_options(columns: int, rows: int, backend: str | None) -> dict[str, Any]:
    """Return the size of a figure; Matplotlib does not make room for the legend by default."""
    backend = import_module("arviz_base").rcParams["plot.backend"] if backend is None else backend
    width, height = PANEL
    shown = {"figsize": (width * columns + LEGEND, height * rows), "figsize_units": "dots"}
    return shown | ({"layout": "constrained"} if backend == "matplotlib" else {})


def arviz_plots() -> Any:
    """Import arviz-plots, or say how to install it."""
    try:
        return import_module("arviz_plots")
    except ImportError as error:
        raise ImportError(
            "Figures need arviz-plots and one of its backends: install this package with its "
            "extra [plots]."
        ) from error


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


def over_draws(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a chain with the numbers of its draws."""
    return thinned(np.arange(values.size) + 1, values)


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most `MOST_POINTS` points, the last among them."""
    step = -(-x.size // MOST_POINTS)
    return x[::-1][::step][::-1], y[::-1][::step][::-1]
