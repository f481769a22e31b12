"""The two tiers of the tests, and which of them one worker runs.

The first tier is what every commit runs. In the second are sampling to compare posteriors with
(``tests/statistics``), what is marked ``slow``, and what ``slow.txt`` lists: test functions that
took longer than :data:`SLOW` seconds when durations were recorded
(``python -m pytest --record-slow tests/mechanics``, on an idle machine). So a new test is in the
tier of its folder, and nobody has to do anything for it.
"""

import gc
import os
import time
from collections import defaultdict
from pathlib import Path

import pytensor
import pytest

TESTS = Path(__file__).parent
LISTED = TESTS / "slow.txt"
SECOND = TESTS / "statistics"

SLOW = 8.0
"""Seconds in all calls of a test function, without fixtures, which others may share."""

END = float(os.environ.get("TESTS_END", "inf"))
"""Seconds since 1970 after which no test begins, so that a run ends in time on a slow machine."""

spent: defaultdict[str, float] = defaultdict(float)

# Graphs are not traced to the lines that wrote them: a tenth of what set-up takes.
pytensor.config.traceback__limit = 0


def pytest_addoption(parser):
    parser.addoption("--record-slow", action="store_true", help=f"write {LISTED.name} anew")


def listed():
    """Return the functions that are recorded as slow, with their seconds."""
    lines = [line.split() for line in LISTED.read_text().splitlines() if line[:1] != "#"]
    return {name: float(seconds) for seconds, name in lines}


def function_of(nodeid):
    """Return the name of a test without its parameters."""
    return nodeid.split("[")[0].removeprefix("tests/")


def pytest_collection_modifyitems(items):
    slow = listed()
    for item in items:
        if SECOND in item.path.parents or function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    if time.time() > END:
        pytest.skip("the time of this run is over (TESTS_END); `make test-all` has no end")


def pytest_collection_finish():
    """Look for garbage less often: many graphs stay, and each search walks through them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_logreport(report):
    if report.when == "call":
        spent[function_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    config = session.config
    if not config.getoption("record_slow") or hasattr(config, "workerinput"):
        return
    known = {name: seconds for name, seconds in listed().items() if name not in spent}
    slow = known | {name: s for name, s in spent.items() if s > SLOW and "mechanics" in name}
    comment = LISTED.read_text().splitlines()[0]
    lines = [f"{slow[name]:.0f} {name}" for name in sorted(slow)]
    LISTED.write_text("\n".join([comment, *lines]) + "\n")
