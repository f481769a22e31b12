"""Exceptions raised by handlers of signals: machine code is left in order, or not reached."""

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba import njit

from pymc_minibatch import SGFS, SGHMC, SGLD, SGNHT, FlyMC, MinibatchMH
from pymc_minibatch.jit import dropped
from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.dropped import keep_interrupts
from pymc_minibatch.jit.entry import answer_signals, away_from_signals, guard_graphs
from pymc_minibatch.jit.held_locks import locks_of_compilers, release_held_locks
from pymc_minibatch.steps.ascent import Ascent
from pymc_minibatch.tall.passes import in_order
from tests.models import grouped_model, logistic_model

CASES = [
    *((kind, logistic_model) for kind in (MinibatchMH, FlyMC, SGFS, SGLD, SGNHT)),
    *((kind, grouped_model) for kind in (MinibatchMH, FlyMC)),
]


class StopError(Exception):
    """What handlers raise here."""


@pytest.fixture
def alarm():
    """Set an alarm whose handler raises."""

    def handler(number, frame):
        raise StopError

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def walk(step, point, n):
    draws = []
    for _ in range(n):
        point, _ = step.step(point)
        draws.append(step.tall.layout.flatten(point))
    return np.array(draws)


# --- Entry ------------------------------------------------------------------------------------


def draw(rng, values):
    values[0] = rng.random()
    values[1] = rng.standard_normal()
    values[2] = rng.standard_exponential()
    return int(values[0] < 2.0)


def test_a_generator_by_address_draws_what_it_draws_in_python():
    kernel, values = jit_kept(draw), np.empty(3)
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(3):
        kernel(rng, values)
        expected = [same.random(), same.standard_normal(), same.standard_exponential()]
        np.testing.assert_array_equal(values, expected)
    assert rng.bit_generator.state == same.bit_generator.state


def test_jitted_code_passes_a_generator_on():
    kernel = jit_kept(draw)

    def twice(rng, values):
        return kernel(rng, values) + kernel(rng, values)

    rng, same = np.random.default_rng(2), np.random.default_rng(2)
    values, expected = np.empty(3), np.empty(3)
    assert jit_kept(twice)(rng, values) == 2
    for _ in range(2):
        kernel(same, expected)
    np.testing.assert_array_equal(values, expected)


def test_refuses_what_is_unpacked_by_python():
    def ignored(name):
        return 1

    with pytest.raises(TypeError, match="Machine code cannot take unicode_type from Python"):
        jit_kept(ignored)("name")


@pytest.mark.parametrize(("kind", "build"), CASES)
def test_no_python_runs_on_the_way_into_kernels(kind, build):
    """Numba and ctypes are not called while draws are made."""
    model, called = build(), set()
    step = kind(model=model, steps_per_draw=2)
    step.setup_chain(np.random.default_rng(3), 40, 10)
    point = model.initial_point()
    for _ in range(40):
        point, _ = step.step(point)
    step.stop_tuning()
    walk(step, point, 2)

    def note(frame, event, argument):
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        walk(step, point, 3)
    finally:
        sys.setprofile(None)
    assert called
    assert not [name for name in called if "/numba/" in name[0] or "/ctypes/" in name[0]]


def test_away_from_signals():
    where = away_from_signals(threading.current_thread)
    assert where is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        away_from_signals(lambda a, b: a / b, 1, 0)


@pytest.mark.parametrize("lock", locks_of_compilers())
def test_a_lock_that_an_interrupt_has_left_held_is_released(lock):
    """Another thread that compiles would wait for ever."""

    def is_free():
        found = lock.acquire(timeout=5)
        if found:
            lock.release()
        return found

    lock.acquire()
    try:
        assert away_from_signals(is_free)
        lock.acquire()
        assert list(in_order(lambda _: is_free(), range(4))) == [True] * 4
    finally:
        release_held_locks()


def call_until(alarm, seconds, function, *args):
    """Set an alarm, and call what it is to end; on a busy machine it may come before."""
    alarm(seconds)
    function(*args)


def call_forever(function, *args):
    while True:
        function(*args)


def test_an_interrupt_while_a_graph_packs_its_results_is_raised_as_it_is(alarm):
    """Numba runs Python there, after machine code in which the alarm arrives."""
    guard_graphs()
    x = pt.dvector("x")
    function = pytensor.function([x], [pt.sin(pt.exp(x)), pt.cos(x)], mode="NUMBA")
    values = np.linspace(0.0, 5.0, 1_000_000)
    expected = function(values)
    for seconds in (0.002, 0.003, 0.005, 0.008):
        for _ in range(5):
            with pytest.raises(StopError):
                call_until(alarm, seconds, call_forever, function, values)
    np.testing.assert_array_equal(function(values), expected)


# --- Within kernels ---------------------------------------------------------------------------


def forever(rng, values):
    while values[0] < 2.0:
        answer_signals()
        values[0] = rng.random()
    return 1


@pytest.mark.parametrize("nested", [False, True])
def test_a_handler_ends_a_kernel_that_never_returns(alarm, nested):
    inner = njit(forever)

    def around(rng, values):
        return inner(rng, values) + 1

    kernel, values = jit_kept(around if nested else forever), np.zeros(1)
    ends = np.full(1, 3.0)
    kernel(np.random.default_rng(4), ends)  # compiles
    for _ in range(3):
        with pytest.raises(StopError):
            call_until(alarm, 0.05, kernel, np.random.default_rng(4), values)
    kernel(np.random.default_rng(4), ends)


def test_other_threads_run_while_a_kernel_does():
    """One of them may be what sends the signal."""
    values = np.zeros(1)

    def waiting(rng, values, flag):
        while flag[0] == 0.0:
            answer_signals()
        return 1

    flag = np.zeros(1)
    kernel = jit_kept(waiting)
    kernel(np.random.default_rng(5), values, np.ones(1))
    timer = threading.Timer(0.05, flag.fill, [1.0])
    timer.start()
    kernel(np.random.default_rng(5), values, flag)
    timer.join()


def test_a_long_draw_is_interrupted_and_leaves_no_trace(alarm):
    """All rows decide in each transition; what is left of the batch is forgotten."""
    model = logistic_model()
    step, same = (
        MinibatchMH(model=model, control_variate=0, batch_size=300, steps_per_draw=1000)
        for _ in range(2)
    )
    for one in (step, same):
        one.setup_chain(np.random.default_rng(6), 4, 4)
    point = model.initial_point()
    np.testing.assert_array_equal(walk(step, point, 2), walk(same, point, 2))
    step.steps_per_draw = 10**9
    for _ in range(3):
        with pytest.raises(StopError):
            call_until(alarm, 0.02, step.step, point)
    step.steps_per_draw = 1000
    assert not step.workspace.seen.any()
    np.testing.assert_array_equal(walk(step, point, 3), walk(same, point, 3))


def test_an_interrupted_start_is_looked_for_again(monkeypatch):
    model = logistic_model()
    step, same = SGHMC(model=model), SGHMC(model=model)
    for one in (step, same):
        one.setup_chain(np.random.default_rng(7), 10, 0)
    climbed, far = Ascent.climbed, {"beta": np.array([4.0, -4.0])}

    def interrupt(self, rng, start):
        climbed(self, rng, start)
        raise StopError

    with monkeypatch.context() as patched:
        patched.setattr(Ascent, "climbed", interrupt)
        with pytest.raises(StopError):
            step.step(far)
    np.testing.assert_array_equal(walk(step, far, 5), walk(same, far, 5))


# --- At random moments ------------------------------------------------------------------------

INTERRUPTED = """
import signal, sys
import numpy as np
from pymc_minibatch import *
from tests.models import grouped_model, logistic_model

def handler(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
when = np.random.default_rng(8)

def start(step, model):
    step.setup_chain(np.random.default_rng(9), 10, 10)
    point, found = model.initial_point(), []
    for i in range(15):
        if i == 10:
            step.stop_tuning()
        point, _ = step.step(point)
        found.append(step.tall.layout.flatten(point))
    return np.array(found)

for kind in (MinibatchMH, FlyMC, SGFS, SGLD, SGNHT):
    for model in (logistic_model(), grouped_model())[: 2 if kind in (MinibatchMH, FlyMC) else 1]:
        step, fresh = kind(model=model), kind(model=model)
        start(step, model)
        point = model.initial_point()
        for tune in (10, 0):
            step.setup_chain(np.random.default_rng(10), tune, 10)
            for _ in range(15):
                try:
                    signal.setitimer(signal.ITIMER_REAL, np.exp(when.uniform(-10, -5)))
                    while True:
                        point, _ = step.step(point)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            for _ in range(15 if tune else 0):  # on a slow machine no interrupt leaves it tuned
                point, _ = step.step(point)
        assert np.array_equal(start(step, model), start(fresh, model)), (kind, model)
print("usable")
"""


def test_interrupts_at_random_moments_leave_steps_usable():
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", INTERRUPTED]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.endswith("usable\n")


# --- In callbacks -----------------------------------------------------------------------------


class Let:
    """What takes its time to be let go."""

    def __init__(self, kind):
        self.kind = kind
        if kind == "weak reference":
            weakref.finalize(self, wait)

    def __del__(self):
        if self.kind == "destructor":
            wait()


def wait(seconds=0.3):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def let_go(things, *_):
    """Drop the last reference to something, and go on for some time."""
    things.clear()
    gc.collect()
    wait(5)


@pytest.mark.parametrize("kind", ["weak reference", "destructor", "collector"])
def test_an_interrupt_in_a_callback_is_not_lost(alarm, kind):
    """Python drops exceptions there."""
    keep_interrupts()
    hook = sys.unraisablehook
    keep_interrupts()
    assert sys.unraisablehook is hook
    thing = Let(kind)
    callbacks = [lambda phase, info: wait()] if kind == "collector" else []
    gc.callbacks.extend(callbacks)
    try:
        with pytest.raises(StopError):
            call_until(alarm, 0.05, let_go, [thing], thing := None)
    finally:
        for callback in callbacks:
            gc.callbacks.remove(callback)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_so_are_those_of_other_signals(number):
    """Whatever the handler is: Python's own, or an object that ends the process."""

    class End:
        def __call__(self, number, frame):
            sys.exit(3)

    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else End())
    try:
        keep_interrupts()
        thing = Let("destructor")
        timer = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, number])
        timer.start()
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            let_go([thing], thing := None)
        timer.join()
    finally:
        signal.signal(number, before)


def test_what_else_is_dropped_is_told_as_before(monkeypatch):
    told = []
    keep_interrupts()
    monkeypatch.setattr(dropped, "_before", told.append)

    class Wrong:
        def __del__(self):
            raise ZeroDivisionError

    Wrong()
    assert [what.exc_type for what in told] == [ZeroDivisionError]


# --- In PyMC ----------------------------------------------------------------------------------


def interrupted_run(step, at, chains=1, draws=20, **others):
    """Interrupt a run at a draw of its first chain, or of all its processes."""

    def interrupt(trace, draw):
        if draw.draw_idx >= at and draw.chain == 0:
            raise KeyboardInterrupt

    options = {"progressbar": False, "compute_convergence_checks": False} | others
    return pm.sample(
        draws, tune=10, chains=chains, cores=1, step=step, callback=interrupt, **options
    )


def test_a_run_that_is_interrupted_while_it_tunes():
    """KeyboardInterrupt if there are no draws, as when it is interrupted before; else its draws."""
    with logistic_model():
        step = MinibatchMH()
        for at in (0, 9):
            with pytest.raises(KeyboardInterrupt):
                interrupted_run(step, at)
        assert interrupted_run(step, 12).posterior.sizes["draw"] == 3
        assert interrupted_run(step, 5, chains=2).posterior.sizes["draw"] == 20
        with pytest.raises(ValueError, match="Not enough samples"):
            interrupted_run(pm.Metropolis(), 5)
        with pytest.raises(ValueError, match="Not enough samples"):  # nobody interrupts it
            interrupted_run(step, 50, draws=0)
        with pytest.raises(ValueError, match="Not enough samples"):  # nor this one
            interrupted_run(step, 50, var_names=[])


def test_a_run_that_is_interrupted_while_it_records_keeps_its_draws(alarm):
    """Computing what it records takes nearly all of the time of this run."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with logistic_model() as model:
            many = pt.sin(pt.exp(model["beta"][0] / (1.0 + pt.arange(2_500_000.0))))
            pm.Deterministic("total", many.sum())
            step = MinibatchMH()

            def soon(trace, draw):
                if draw.draw_idx == 12:
                    alarm(0.02)

            options = {"progressbar": False, "compute_convergence_checks": False}
            options |= {"tune": 10, "chains": 1, "cores": 1, "random_seed": 11}
            run = pm.sample(200, step=step, callback=soon, **options)
            again, fresh = (pm.sample(5, step=each, **options) for each in (step, MinibatchMH()))
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(again.posterior["beta"], fresh.posterior["beta"])
    assert 3 <= run.posterior.sizes["draw"] < 20
