"""Imports run down only, as the architecture page says."""

import ast
from pathlib import Path

import pytest

import pymc_minibatch

PACKAGE = Path(pymc_minibatch.__file__).parent

FLOORS = [
    {"jit"},
    {"tall"},
    {"reference"},
    {"acceptance", "proposals", "updates", "bounds"},
    {"kernels"},
    {"latent"},
    {"witness"},
    {"steps", "multilevel"},
    {"approximation"},
]
"""The rooms from the ground up; one may use those below and, on the third floor, none beside it."""

ANYWHERE = {"arguments", "messages", "renamed", "warn"}


def imported_rooms(path):
    """Rooms that a file imports when it is run; not those it names for type checkers."""
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.startswith("pymc_minibatch."):
                yield name.split(".")[1]


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_imports_run_down_only(floor):
    below = set().union(ANYWHERE, *FLOORS[:floor])
    for room in FLOORS[floor]:
        for path in (PACKAGE / room).rglob("*.py"):
            above = set(imported_rooms(path)) - below - {room}
            assert not above, f"{path.relative_to(PACKAGE)} imports {above}"


def test_every_room_has_its_floor():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set().union(*FLOORS)


def test_kernels_know_no_pymc():
    for path in (PACKAGE / "kernels").rglob("*.py"):
        assert "import pymc\n" not in path.read_text()
        assert "from pymc." not in path.read_text()
