"""The examples in the docstrings of all that is public."""

import doctest
import re

import pytest

import pymc_minibatch

PUBLIC = [name for name in pymc_minibatch.__all__ if name != "plots"]
PUBLIC += [f"plots.{name}" for name in pymc_minibatch.plots.__all__]

SAMPLES = re.compile(r"\b(pm|pmb)\.(sample|sample_on|approximate|multilevel_sgld)\(")
REFUSES = re.compile(r"^\s*except ", re.MULTILINE)

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
"""Long lines of output are broken, and "..." stands for what differs between machines."""


def examples_of(name):
    """Return the examples of a public object and its methods, by docstring."""
    found = pymc_minibatch
    for part in name.split("."):
        found = getattr(found, part)
    return [test for test in doctest.DocTestFinder().find(found, name, globs={}) if test.examples]


def having(pattern, names):
    """Return the objects of which some example has a pattern in its code."""
    code = {
        name: "".join(example.source for test in examples_of(name) for example in test.examples)
        for name in names
    }
    return [name for name in names if pattern.search(code[name])]


SAMPLED = having(SAMPLES, PUBLIC)
REFUSED = having(REFUSES, PUBLIC)


def run(name):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in examples_of(name):
        runner.run(test)
    results = runner.summarize(verbose=False)
    assert results.failed == 0
    assert results.attempted > 0


@pytest.mark.parametrize("name", PUBLIC)
def test_each_has_an_example_with_output(name):
    examples = [example for test in examples_of(name) for example in test.examples]
    assert any(example.want for example in examples)
    assert not any(example.options.get(doctest.SKIP) for example in examples)


@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in SAMPLED + REFUSED])
def test_examples(name):
    run(name)


@pytest.mark.parametrize("name", REFUSED)
def test_examples_of_errors(name):
    run(name)


@pytest.mark.parametrize("name", SAMPLED)
def test_examples_that_sample(name):
    run(name)
