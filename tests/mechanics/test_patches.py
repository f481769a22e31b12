"""What changes how Numba compiles is off for a Numba that it was not tested with."""

import os
import subprocess
import sys

import numba
import pytest

from pymc_minibatch.jit import patches

PROGRAM = """
import numpy as np
import pytensor.tensor as pt
from numba.core import caching, cpu
from numba.core.codegen import JITCPUCodegen

before = caching.IndexDataCacheFile, cpu.CPUContext.get_executable, JITCPUCodegen._library_class
from pymc_minibatch.jit.compiled import compile_numba, jit_kept
from pymc_minibatch.jit.linking import linking
from pymc_minibatch.jit.pointers import address_of_graph

with linking():
    now = caching.IndexDataCacheFile, cpu.CPUContext.get_executable, JITCPUCodegen._library_class
print([a is b for a, b in zip(before, now)])
x = pt.dvector("x")
rows = compile_numba([x], [pt.exp(x)]).jitted
print(jit_kept(lambda x: rows(x)[0].sum(), [])(np.zeros(3)))
"""


@pytest.mark.parametrize("patched", [True, False])
def test_one_switch(patched):
    environment = os.environ | {
        patches.VARIABLE: str(int(patched)),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    same, total = run.stdout.splitlines()
    assert same == str([not patched] * 3)
    assert float(total) == 3.0


@pytest.mark.parametrize(
    ("asked", "version", "patched"),
    [
        (None, "0.68.0", True),
        (None, "0.68.1", True),
        (None, "0.69.0", False),
        (None, "0.6", False),
        ("0", "0.68.0", False),
        ("1", "0.99.0", True),
        ("maybe", "0.99.0", False),
    ],
)
def test_versions(asked, version, patched):
    assert patches.decide(asked, version) == patched


def test_the_numba_of_these_tests_is_known():
    assert patches.is_known(numba.__version__)
