"""Messages have ids, and the page of messages has an entry for each."""

import ast
import pickle
import re
import runpy
import traceback
from pathlib import Path
from typing import Any

import pytest

import pymc_minibatch as pmb
from pymc_minibatch.bambi_effects import NewLevelsError
from pymc_minibatch.messages import MESSAGES, IdentifiedError, with_id
from pymc_minibatch.processes import ProcessError
from pymc_minibatch.warn import warn

PACKAGE = Path(pmb.__file__).parent
DOCS = PACKAGE.parent / "docs"
PUBLIC = [getattr(pmb, name) for name in pmb.__all__ if name.endswith("Error")]
ID = re.compile(r"PMB\d{3}")


def ids_in_use() -> set[str]:
    """Return the ids in the code of the package, beside the table of messages."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "messages.py":
            found.update(ID.findall(path.read_text()))
    return found


def first_arguments(function: str) -> list[str | None]:
    """Return the first arguments of calls of a function, None if it is no string."""
    found: list[str | None] = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
                first = node.args[0]
                found.append(first.value if isinstance(first, ast.Constant) else None)
    return found


def test_the_page_is_that_of_the_code() -> None:
    written = runpy.run_path(str(DOCS / "messages.py"))["page"]()
    assert (DOCS / "messages.md").read_text() == written, "run python docs/messages.py"


def test_every_id_is_listed_and_used() -> None:
    assert ids_in_use() == set(MESSAGES)


def test_every_warning_has_an_id() -> None:
    calls = first_arguments("warn")
    assert len(calls) > 25
    assert all(isinstance(first, str) and first in MESSAGES for first in calls)


@pytest.mark.parametrize("kind", [*PUBLIC, NewLevelsError, ProcessError])
def test_exceptions_show_their_id_below_the_message(kind: type[IdentifiedError]) -> None:
    copied = pickle.loads(pickle.dumps(kind("Some words.")))
    assert str(copied) == "Some words."
    assert "".join(traceback.format_exception_only(copied)).endswith(f"words.\n[{kind.id}]\n")


def test_warnings_end_with_their_id() -> None:
    with pytest.warns(pmb.MinibatchWarning, match=r"^Some words\. \[PMB101\]$"):
        warn("PMB101", "Some words.")


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(AssertionError):
        with_id("PMB999", "Some words.")


@pytest.mark.parametrize("library", ["pymc", "bambi"])
def test_warnings_point_to_the_line_of_the_user(library: str) -> None:
    """A step that waits is made within ``pm.sample``, whose lines say nothing to the user."""
    path = Path(str(pytest.importorskip(library).__file__)).parent / "sampling" / "mcmc.py"
    made: dict[str, Any] = {"warn": warn}
    exec(compile("def sample():\n    warn('PMB106', 'Something.')", str(path), "exec"), made)
    with pytest.warns(pmb.MinibatchWarning) as caught:
        made["sample"]()
    assert [warning.filename for warning in caught] == [__file__]
