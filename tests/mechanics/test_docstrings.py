"""The examples in the docstrings of the public classes."""

import doctest

import pytest

import pymc_minibatch

CLASSES = [name for name in pymc_minibatch.__all__ if not name.endswith("Error")]


@pytest.mark.parametrize("name", CLASSES)
def test_examples(name):
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(getattr(pymc_minibatch, name), name, globs={}):
        runner.run(test)
    results = runner.summarize(verbose=False)
    assert results.failed == 0
    assert results.attempted > 0
