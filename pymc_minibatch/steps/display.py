"""How a step describes itself: in words, as a table, in the progress bar."""

from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar

import numpy as np
from rich.progress import ProgressColumn, TextColumn
from rich.table import Column

from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.tall import TallModel

__all__ = ["Display", "expansion", "listed", "mean_rows"]

MOST_NAMES = 8
"""Names in a list that people read."""


class Display:
    """A step that describes itself.

    Attributes
    ----------
    shown
        The stats in the progress bar: for each the header of its column and its format.
    """

    shown: ClassVar[dict[str, tuple[str, str]]]
    tall: TallModel
    n_rows: int
    setup_seconds: float
    var_names: list[str]
    _active: np.ndarray

    def _facts(self) -> dict[str, str]:
        """Say in a few words how the algorithm is set; nothing is computed for it."""
        return {}

    def _described(self) -> tuple[str, dict[str, str]]:
        """Return a title and what there is to know, by topic."""
        if "setup_seconds" not in self.__dict__:
            return f"{type(self).__name__}, not ready", {}
        source = "bound by data" if self.tall.is_bound else "of the model"
        inputs = [f"{i.name} {i.values.dtype}" for i in self.tall.row_inputs.values()]
        facts = {
            "parameters": f"{self._active.size:,} in {listed(self.var_names)}",
            "data": f"{listed(inputs)}, {source}",
            **self._facts(),
            "set-up": f"{self.setup_seconds:,.1f} s",
        }
        rows = f"{self.n_rows:,} rows of {' + '.join(self.tall.row_names)}"
        return f"{type(self).__name__} on {rows}", facts

    def __repr__(self) -> str:
        title, facts = self._described()
        width = max(map(len, facts), default=0)
        return "\n".join([title, *(f"  {name:{width}}  {fact}" for name, fact in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = self._described()
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(fact)}</td></tr>"
            for name, fact in facts.items()
        )
        return f"<table><caption>{escape(title)}</caption>{rows}</table>"

    @classmethod
    def _progressbar_config(
        cls, n_chains: int = 1
    ) -> tuple[list[ProgressColumn], dict[str, list[Any]]]:
        columns: list[ProgressColumn] = [
            TextColumn(f"{{task.fields[{stat}]:{spec}}}", table_column=Column(header, ratio=1))
            for stat, (header, spec) in cls.shown.items()
        ]
        return columns, {stat: [0.0] * n_chains for stat in cls.shown}

    @classmethod
    def _make_progressbar_update_functions(cls) -> Any:
        def update_stats(step_stats: dict[str, Any]) -> dict[str, Any]:
            return {stat: step_stats[stat] for stat in cls.shown}

        return (update_stats,)


def mean_rows(mean: float) -> str:
    """Return a mean number of rows in words: as a number, one below 1 is hard to read."""
    if mean == 0:
        return "no row"
    if mean < 1:
        return "fewer than one row"
    return f"about {mean:.3g} rows" if mean < 100 else f"about {mean:,.0f} rows"


def listed(names: Sequence[str]) -> str:
    """Join names, of many only the first."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def expansion(control: ControlVariate | None) -> str:
    """Say what is subtracted from the rows."""
    if control is None or not control.order:
        return "none"
    passes = f"found in {control.whole.passes:.1f} passes"
    if control.pinned is None:
        return f"order {control.order}, about a mode {passes}"
    n = control.pinned.rows.size
    return f"order {control.order}, of all but {n} row{'s' * (n > 1)}, from a mode {passes}"
