"""Pages of the documentation: their length, and warnings that can be filtered together."""

import re
import warnings
from pathlib import Path

import pytest

import pymc_minibatch as pmb
from pymc_minibatch.warn import warn

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 1_800
FOR_DEVELOPERS = "Developer"
LOOKED_UP = {"messages"}
"""Pages that nobody reads from top to bottom."""


def pages_for_users():
    """Return the pages of the index that are not for developers."""
    found, caption = [], ""
    for line in (DOCS / "index.md").read_text().splitlines():
        if line.startswith(":caption:"):
            caption = line.removeprefix(":caption:").strip()
        page = DOCS / f"{line.strip()}.md"
        for_users = caption and caption != FOR_DEVELOPERS and page.stem not in LOOKED_UP
        if for_users and line.strip() and page.exists():
            found.append(page)
    return found


def words(page):
    """Count the words of a page, without comments."""
    return len(re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL).split())


@pytest.mark.parametrize("page", pages_for_users(), ids=lambda page: page.stem)
def test_pages_for_users_are_short(page):
    assert words(page) <= MOST_WORDS


def test_most_pages_are_found():
    assert len(pages_for_users()) > 15


def test_warnings_are_of_one_kind():
    with pytest.warns(pmb.MinibatchWarning, match="something"):
        warn("PMB106", "something")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmb.MinibatchWarning)
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", category=pmb.MinibatchWarning)
        warn("PMB106", "something")


def seconds_of_readme():
    """Return the seconds of the README's table, by rows and run."""
    found = {}
    for line in (DOCS.parent / "README.md").read_text().splitlines():
        cells = [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"[\d,]+", cells[0]):
            pairs = [cell.split(" / ") for cell in cells[1:]]
            found[cells[0], "second run"] = [pair[0] for pair in pairs]
            found[cells[0], "first run"] = [pair[1] for pair in pairs]
    return found


def seconds_of_page():
    """Return those of the page of benchmarks for users."""
    found = {}
    for line in (DOCS / "speed.md").read_text().splitlines():
        cells = [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[1] in ("second run", "first run"):
            found[cells[0], cells[1]] = [cell or "–" for cell in cells[2:]]
    return found


def test_the_readme_has_the_seconds_of_the_page_of_benchmarks():
    assert len(seconds_of_readme()) == 6
    assert seconds_of_readme() == seconds_of_page()
