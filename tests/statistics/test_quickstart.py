"""The demo runs from beginning to end."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.mark.slow
def test_quickstart(tmp_path):
    figure = tmp_path / "marginals.png"
    command = [sys.executable, str(SCRIPT), "--draws", "50", "--figure", str(figure)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "beta[lncoins]" in run.stdout
    assert "of 20,190 rows per decision" in run.stdout
    assert figure.stat().st_size > 10_000
