"""A kernel can be compiled in a second process, which leaves it where this one finds it."""

import uuid

import numpy as np
import pymc as pm
import pytest
from numba import typeof

import pymc_minibatch as pmb
from pymc_minibatch.jit import ahead
from pymc_minibatch.jit.compiled import jit_cached
from pymc_minibatch.steps import minibatch_mh


def build(key):
    return jit_cached("def double(x): return 2.0 * x", "double", {}, [key])


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(ahead, "n_cores", lambda: 2)


@pytest.fixture
def key():
    return str(uuid.uuid4())


def test_the_kernel_is_on_disk_after_the_block(two_cores, key):
    assert not ahead._on_disk(build(key))
    with ahead.CompiledAhead(build, (key,), (1.0,)):
        pass
    found = build(key)
    assert ahead._on_disk(found)
    assert found(4.0) == 8.0
    assert sum(found.stats.cache_hits.values()) == 1


def test_an_error_in_the_block_stops_the_second_process(two_cores, key):
    started = ahead.CompiledAhead(build, (key,), (1.0,))
    with pytest.raises(KeyError), started:
        raise KeyError
    assert started.process.poll() not in (None, 0)
    assert not ahead._on_disk(build(key))


def test_what_is_on_disk_already_needs_no_process(two_cores, key):
    build(key)(1.0)
    with ahead.CompiledAhead(build, (key,), (1.0,)) as started:
        assert started.process is None


def test_one_core_has_nobody_to_do_it(monkeypatch, key):
    monkeypatch.setattr(ahead, "n_cores", lambda: 1)
    with ahead.CompiledAhead(build, (key,), (1.0,)) as started:
        assert started.process is None


def test_what_cannot_be_pickled_is_left_alone(two_cores, key):
    with ahead.CompiledAhead(lambda key: build(key), (key,), (1.0,)) as started:
        assert started.process is None


@pytest.mark.parametrize("proposal", [None, pmb.SurrogateHamiltonian()], ids=repr)
def test_what_a_step_compiles_ahead_is_the_kernel_that_it_calls(monkeypatch, proposal):
    asked = []

    class Noted(ahead.CompiledAhead):
        def __init__(self, build, options, arguments):
            asked.append((build(*options), tuple(typeof(argument) for argument in arguments)))
            self.process = None

    monkeypatch.setattr(minibatch_mh, "CompiledAhead", Noted)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 2))
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Bernoulli("y", logit_p=X @ beta, observed=rng.integers(0, 2, 2000))
        step = pmb.MinibatchMH(proposal=proposal)
    [(kernel, signature)] = asked
    assert step.control_variate == 2
    assert step._kernel.signatures == [signature]
    assert ahead._key(kernel) == ahead._key(step._kernel) is not None
