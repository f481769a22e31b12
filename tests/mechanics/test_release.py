"""The check that a release has real addresses, and the tag of its version."""

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = {"version": "0.1.0", "urls": {"Homepage": "https://example.org/pymc-minibatch"}}


def complaints(project, tag):
    return list(runpy.run_path(str(ROOT / ".ci" / "check_release"))["complaints"](project, tag))


def test_a_release_that_is_right():
    assert complaints(PROJECT, "v0.1.0") == []


def test_placeholders_and_other_tags_are_refused():
    assert (
        "placeholder"
        in complaints(PROJECT | {"urls": {"Docs": "https://a.invalid/b"}}, "v0.1.0")[0]
    )
    assert "Tag v0.1.0" in complaints(PROJECT, "v0.2.0")[0]
    assert "no [project.urls]" in complaints({"version": "0.1.0"}, "v0.1.0")[0]
    assert "dev version" in complaints(PROJECT | {"version": "0.1.0.dev0"}, "v0.1.0.dev0")[0]


def test_placeholders_are_in_one_place():
    own = [path for path in ROOT.glob("*.*") if path.suffix != ".png"]  # which the demo draws
    pages = [*own, *(ROOT / "docs").rglob("*.md"), *(ROOT / "conda").glob("*")]
    text = {
        path.name for path in pages if path.is_file() and "repository.invalid" in path.read_text()
    }
    assert text <= {"pyproject.toml"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]


def test_actions_are_pinned_by_hash():
    used = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", action), action
