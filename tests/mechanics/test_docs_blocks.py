"""Every Python block of the documentation and of the README runs as a reader would paste it.

The blocks of a page run in order, in one namespace. What a block takes for granted (data, a model,
files) is in an HTML comment before it that starts with ``set-up``: readers do not see it. A set-up
may call ``limit`` to shorten the runs of the next block. A block with a part under ``# before`` and
one under ``# after`` shows a model that is refused and what to write instead: each part is put into
a model of its own, and must be refused or accepted.

The tutorial's pages are notebooks, which ``make docs`` runs.
"""

import re
import textwrap
import tomllib
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"^ *<!-- set-up\n(?P<setup>.*?)^ *-->$|^ *```python\n(?P<block>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
HIGHEST_RHAT = 1.05


class Run:
    """What is hidden from the reader of a page: short chains in one process, which must agree."""

    def __init__(self, monkeypatch):
        self.limits = {}
        self.sample = pm.sample
        monkeypatch.setattr(pm, "sample", self.checked_sample)

    def limit(self, rhat=HIGHEST_RHAT, **limits):
        """Shorten the runs of the next block; ``rhat=None`` where chains need not agree."""
        self.limits = {"rhat": rhat, **limits}

    def checked_sample(self, draws=1000, **kwargs):
        limits = dict(self.limits)
        rhat = limits.pop("rhat", HIGHEST_RHAT)
        kwargs = {"cores": 1, "chains": 2, "progressbar": False, "random_seed": 1} | kwargs
        kwargs |= {"draws": draws} | limits
        idata = self.sample(**kwargs)
        if rhat is not None:
            worst = max(float(value.max()) for value in az.rhat(idata).dataset.values())
            assert worst < rhat, f"R-hat {worst:.3f}"
        return idata


def parts(page):
    """Return the blocks of a page, with their lines and set-ups."""
    text = page.read_text()
    found, setup = [], ""
    for match in FENCE.finditer(text):
        if match["block"] is None:
            setup += textwrap.dedent(match["setup"])
            continue
        line = text.count("\n", 0, match.start()) + 2
        found.append((line, setup, textwrap.dedent(match["block"])))
        setup = ""
    assert not setup, f"{page.name} ends with a set-up without a block"
    return found


def execute(code, namespace, page, line):
    # Empty lines put the numbers of the page's lines into tracebacks.
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def check_refusal(setup, block, namespace, page, line):
    """The part before is refused, the part after is accepted."""
    before, after = re.split(r"^# after.*$", block, flags=re.MULTILINE)
    for code, refused in ((before, True), (after, False)):
        with pm.Model() as model:
            execute(setup, namespace, page, line)
            execute(code, namespace, page, line)
            if refused:
                with pytest.raises(pmb.NotTallError):
                    pmb.TallModel(model)
            else:
                assert pmb.TallModel(model).n_rows > 0


WITH_BLOCKS = [page for page in PAGES if parts(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem)
def test_blocks(page, tmp_path, monkeypatch):
    if page.stem == "resume":
        zarr = pytest.importorskip("zarr", reason="ZarrTrace needs zarr")
        if int(zarr.__version__.split(".")[0]) >= 3:
            pytest.skip("PyMC's ZarrTrace needs zarr 2")
        import numcodecs.pickles

        # The states on disk are pickles, which this test trusts.
        name = "ALLOW_UNSAFE_PICKLE_DECODE"
        monkeypatch.setattr(numcodecs.pickles, name, True, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    run = Run(monkeypatch)
    namespace = {"__name__": "__main__", "limit": run.limit, "np": np, "pm": pm, "pmb": pmb}
    for line, setup, block in parts(page):
        run.limits = {}
        if block.startswith("# before\n"):
            check_refusal(setup, block, namespace, page, line)
        else:
            execute(setup, namespace, page, line)
            execute(block, namespace, page, line)


def test_every_fence_is_found():
    for page in PAGES:
        assert len(parts(page)) == len(re.findall(r"^ *```py", page.read_text(), re.MULTILINE))


def test_links_of_the_readme_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).is_file(), target


def test_a_package_index_shows_no_link_that_leads_nowhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text()
    hooks = project["tool"]["hatch"]["metadata"]["hooks"]
    for change in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links)
