"""The table of sample stats, and what is made from it."""

import re
from pathlib import Path

import pytest

import pymc_minibatch as pmb
from pymc_minibatch.steps.stats import ALL, STATS, stats_of, with_tables

PAGE = Path(__file__).parents[2] / "docs" / "stats.md"


@pytest.mark.parametrize("step", ALL)
def test_steps_declare_and_describe_the_stats_of_the_table(step):
    kind, names = getattr(pmb, step), [stat.name for stat in stats_of(step)]
    assert len(set(names)) == len(names)
    assert set(kind.stats_dtypes_shapes) - {"warning"} == set(names)
    assert re.findall(r"^ *- ``(\w+)``:", kind.__doc__, flags=re.MULTILINE) == names


def test_the_page_has_every_stat():
    page = with_tables(PAGE.read_text())
    assert "<!-- stats" not in page
    assert set(re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE)) == {s.name for s in STATS}
