"""Each example runs from beginning to end in its quick mode, and reads the rows that it should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_mixture(tmp_path):
    """Rows for a decision: few for the corrected Barker test, far more for the two others."""
    figure = tmp_path / "mixture.png"
    command = [sys.executable, str(EXAMPLES / "mixture.py"), "--quick", "--figure", str(figure)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    rows = {
        name: float(
            re.search(rf"^{re.escape(name)} +([\d,]+)", run.stdout, re.M)[1].replace(",", "")
        )
        for name in ("MinibatchMH", "AustereMH(c)", "MHSubLhd")
    }
    assert rows["MinibatchMH"] < 230
    assert rows["AustereMH(c)"] > 5 * rows["MinibatchMH"]
    assert rows["MHSubLhd"] > rows["AustereMH(c)"]
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_multilevel(tmp_path):
    """The cost of an error grows with the rows for MALA, and hardly for multilevel SGLD."""
    command = [sys.executable, str(EXAMPLES / "multilevel.py"), "--quick", "--figures", tmp_path]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    power = {
        name: float(re.search(rf"^{name} +(-?[\d.]+)$", run.stdout, re.M)[1])
        for name in ("multilevel SGLD", "MALA")
    }
    assert power["multilevel SGLD"] < 0.5 < power["MALA"]
    for figure in ("multilevel_coupling.png", "multilevel_cost.png"):
        assert (tmp_path / figure).stat().st_size > 10_000
