"""A kernel is kept under the code that it reaches: all of it, and nothing else."""

import ast
import copy
import importlib
import math
import os
import pkgutil
import subprocess
import sys
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from numba import njit
from numba.core.compiler import CompilerBase
from numba.core.dispatcher import Dispatcher
from numba.extending import overload, register_jitable

import pymc_minibatch as pmb
from pymc_minibatch.jit import reached as module
from pymc_minibatch.jit.pointers import call_scalar
from pymc_minibatch.jit.reached import UnknownError, reached, source_of
from pymc_minibatch.jit.special import trigamma
from pymc_minibatch.jit.triangular import cholesky, multiply
from pymc_minibatch.kernels.metropolis import make_transitions
from pymc_minibatch.reference.taylor import beside


def made(source, **values):
    """Run source and return the function f in it."""
    values["__name__"] = "made_up"
    exec(source, values)
    return values["f"]


# --- What goes into it --------------------------------------------------------------------------

SOURCE = """
def f(x):
    return 2.0 * x
"""


@pytest.mark.parametrize(
    "same",
    [
        'def f(x):\n    """Double."""\n    # easy\n\n    return 2.0 * x',
        "def other(x):\n    return x\n\ndef f(x): return 2.0 * x",
    ],
    ids=["docstring and comment", "another function"],
)
def test_what_is_not_code_does_not_matter(same):
    assert reached(made(same)) == reached(made(SOURCE))


def test_a_docstring_that_is_also_a_value_matters():
    source = 'def f(x):\n    """a"""\n    return "a"'
    assert reached(made(source)) != reached(made(source.replace('"a"', '"b"')))


@pytest.mark.parametrize(
    ("before", "after"),
    [("2.0", "3.0"), ("2.0", "2"), ("*", "+"), ("(x)", "(x, y=1)"), ("return", "x += 1; return")],
)
def test_code_matters(before, after):
    assert reached(made(SOURCE.replace(before, after))) != reached(made(SOURCE))


class Pair(NamedTuple):
    first: float
    second: float


class Renamed(NamedTuple):
    second: float
    first: float


Renamed.__qualname__, Renamed.__module__ = Pair.__qualname__, Pair.__module__


def jitted(options, constant=1.0):
    return njit(**options)(made("def f(x): return x + c", c=constant))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1.0, 2.0),
        (1, True),
        (0.0, -0.0),
        (np.zeros(3), np.ones(3)),
        (np.zeros(3), np.zeros(3, np.float32)),
        ((1, 2), (2, 1)),
        (math.exp, math.log),
        (np.exp, np.log),
        (np.sum, np.prod),
        (Pair, Renamed),
        (jitted({}), jitted({"fastmath": True})),
        (jitted({}), jitted({"fastmath": {"reassoc"}})),
        (jitted({}), jitted({}, constant=2.0)),
    ],
)
def test_globals_matter(first, second):
    source = "def f(x): return x, g"
    assert reached(made(source, g=first)) != reached(made(source, g=second))
    assert reached(made(source, g=first)) == reached(made(source, g=first, h=second))


def closed_over(value):
    def f(x):
        return value(x)

    return f


def test_closures_matter():
    double, triple = made(SOURCE), made(SOURCE.replace("2", "3"))
    assert reached(closed_over(double)) == reached(closed_over(made(SOURCE)))
    assert reached(closed_over(double)) != reached(closed_over(triple))


def test_functions_that_call_each_other():
    def pair(constant):
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != constant and even(n - 1)

        return even

    assert reached(pair(0)) == reached(pair(0)) != reached(pair(1))


def test_what_a_function_is_replaced_with_matters():
    def with_options(constant, **options):
        target = made("def f(x): pass")

        @overload(target, **options)
        def of_target(x):
            return lambda x: x + constant

        return reached(target)

    assert with_options(1) == with_options(1) != with_options(2)
    assert with_options(1) != with_options(1, jit_options={"fastmath": True})
    assert with_options(1) != with_options(1, inline="always")
    whole = reached(register_jitable(made(SOURCE)))
    assert whole != reached(register_jitable(fastmath=True)(made(SOURCE)))


def test_modules_of_the_package_are_read_by_name():
    source = "def f(x): return g.double(x)"
    mine = ModuleType("made_up")
    mine.double, mine.other = made(SOURCE), made(SOURCE)
    before = reached(made(source, g=mine))
    mine.other = made(SOURCE.replace("2", "3"))
    assert reached(made(source, g=mine)) == before
    mine.double = mine.other
    assert reached(made(source, g=mine)) != before


@pytest.mark.parametrize("value", [object(), [object()], np.array([None]), type("A", (), {})])
def test_what_cannot_be_told_is_refused(value):
    with pytest.raises(UnknownError):
        reached(made("def f(x): return g", g=value))


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(UnknownError, match="missing"):
        reached(made("def f(x): return missing(x)"))


# --- All jitted functions of the package --------------------------------------------------------


@cache
def jitted_functions():
    """Return all that is jitted, or jitted where it is called, at the top of a module."""
    found = {}
    for each in pkgutil.walk_packages(pmb.__path__, "pymc_minibatch."):
        for value in vars(importlib.import_module(each.name)).values():
            function = plain(value)
            if function is not None and function.__module__.startswith("pymc_minibatch"):
                found[f"{function.__module__}.{function.__qualname__}"] = value
    return {name: found[name] for name in sorted(found) if "<" not in name}


def plain(value):
    """Return the function behind what is jitted."""
    if isinstance(value, Dispatcher):
        function = value.py_func
        inlined = function.__globals__.get("_inlined")
        return plain(inlined) if inlined else function
    if isinstance(value, FunctionType) and module._overloads(value):
        return value
    return None


@cache
def tree_of(name):
    with open(sys.modules[name].__file__) as file:
        return ast.parse(file.read())


@cache
def definition_of(function):
    return next(
        node
        for node in tree_of(function.__module__).body
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__
    )


def names_in(definition):
    """Return the names that a function reads and does not write."""
    nodes = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    written = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    written |= {argument.arg for argument in definition.args.args}
    return {node.id for node in nodes} - written


@cache
def read_by_name(name):
    """Return the names of the jitted functions that one reaches, as its source has them."""
    found, left = set(), [name]
    while left:
        function = plain(jitted_functions()[left.pop()])
        key = f"{function.__module__}.{function.__qualname__}"
        if key in found:
            continue
        found.add(key)
        for name in names_in(definition_of(function)):
            value = plain(function.__globals__.get(name))
            if value is not None:
                left.append(f"{value.__module__}.{value.__qualname__}")
    return found & set(jitted_functions())


def code_in(tree, name):
    [code] = [
        each
        for each in compile(ast.fix_missing_locations(tree), "made up", "exec").co_consts
        if isinstance(each, CodeType) and each.co_name == name
    ]
    return code


def mutated(function):
    """Return the code of a function with a statement more."""
    node = ast.parse(ast.unparse(definition_of(function))).body[0]
    node.decorator_list, node.body = [], [*ast.parse("mutant = 1.0").body, *node.body]
    return code_in(ast.Module([node], []), node.name)


def test_a_change_of_a_jitted_function_is_one_of_all_that_reach_it():
    functions = jitted_functions()
    assert len(functions) > 120
    before = {name: reached(value) for name, value in functions.items()}
    n_calls = 0
    for name, value in functions.items():
        callers = {each for each in functions if name in read_by_name(each)}
        n_calls += len(callers) - 1
        function = plain(value)
        kept = function.__code__
        function.__code__ = mutated(function)
        try:
            changed = {each for each in functions if reached(functions[each]) != before[each]}
        finally:
            function.__code__ = kept
        assert changed == callers
    assert n_calls > 50


@cache
def documented_otherwise(name):
    """Compile a module with other docstrings, further down in its file; return its code."""
    tree = copy.deepcopy(tree_of(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0].value.value = "Edited."
    ast.increment_lineno(tree, 7)
    return tree


def test_docstrings_and_comments_of_the_package_do_not_matter():
    for value in jitted_functions().values():
        function = plain(value)
        code = code_in(documented_otherwise(function.__module__), function.__name__)
        assert module.told(code).text == module.told(function.__code__).text


@cache
def kernel(test=pmb.Penalty, proposal=pmb.RandomWalk):
    return make_transitions([1, 2], test().build, *proposal().build())


@pytest.mark.parametrize(
    "name",
    [
        "kernels.rows.put",
        "kernels.rows.subtract",
        "kernels.rows.draw_from_none",
        "acceptance.penalty.accept",
        "acceptance.decision.rejected",
        "proposals.random_walk.propose",
        "jit.triangular.add_noise",
    ],
)
def test_parts_that_a_kernel_is_closed_over(name):
    function = plain(jitted_functions()[f"pymc_minibatch.{name}"])
    before, code = reached(kernel()), function.__code__
    function.__code__ = mutated(function)
    try:
        assert reached(kernel()) != before
    finally:
        function.__code__ = code
    assert reached(kernel()) == before


def test_kernels_of_other_parts_have_other_keys():
    kernels = [kernel(), kernel(pmb.CorrectedBarker), kernel(proposal=pmb.SurrogateHamiltonian)]
    assert len({reached(each) for each in kernels}) == 3


def test_code_that_is_generated_matters(monkeypatch):
    before = reached(call_scalar)
    generate = call_scalar._defn
    monkeypatch.setattr(generate, "__code__", mutated_inside(generate.__code__))
    assert reached(call_scalar) != before


def mutated_inside(code):
    """Replace the constants of the functions that a function holds."""
    inner = [
        each.replace(co_consts=(*each.co_consts[:-1], "mutant"))
        if isinstance(each, CodeType)
        else each
        for each in code.co_consts
    ]
    return code.replace(co_consts=tuple(inner))


def test_all_that_numba_compiles_is_reached():
    compiled = set()
    as_usual = CompilerBase.compile_extra

    def noted(self, function):
        if function.__module__.startswith("pymc_minibatch"):
            compiled.add(function.__qualname__)
        return as_usual(self, function)

    @njit
    def whole(matrix, lower):
        if cholesky(matrix, lower) == -1:
            multiply(lower, matrix[0])
        return trigamma(lower[0, 0]) + beside(matrix[0], lower[0])[0, 1]

    with patch.object(CompilerBase, "compile_extra", noted):
        # Types that no other test compiles in this process: it would not be compiled again.
        whole(np.eye(4, dtype=np.float32)[::2, ::2], np.zeros((4, 4), np.float32)[::2, ::2])
    walk = module.Walk()
    walk.add(whole)
    assert compiled == {"cholesky", "multiply", "trigamma", "beside"}
    for name in compiled:
        assert any(f".{name} [" in each for each in walk.written)


def test_keys_are_the_same_in_all_processes():
    source = (
        "import pymc_minibatch as pmb\n"
        "from pymc_minibatch.jit.reached import reached\n"
        "from pymc_minibatch.kernels.metropolis import make_transitions\n"
        "k = make_transitions([1, 2], pmb.Penalty().build, *pmb.RandomWalk().build())\n"
        "print(reached(k))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "17", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", source],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == reached(kernel())


# --- Files --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "files", lambda name: tmp_path)
    return tmp_path / "a.py"


def test_files_without_docstrings_and_comments(file):
    def told(source):
        source_of.cache_clear()
        file.write_text(source)
        return source_of("a.py")

    try:
        before = told("A = 1\n\ndef f():\n    return A")
        assert told('"""A."""\nA = 1\n"""B."""\ndef f():\n    """C."""\n    return A  #') == before
        assert told("A = 2\n\ndef f():\n    return A") != before
    finally:
        source_of.cache_clear()
