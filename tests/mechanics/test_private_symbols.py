"""Every part of another library that is used and not public, so that an upgrade can be judged.

If a test here fails after a change of the package, use something public instead, or add the symbol
with where it comes from. If it fails after an upgrade, the symbol is gone or has moved.
"""

import ast
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import pymc_minibatch

PACKAGE = Path(pymc_minibatch.__file__).parent
ROOT = PACKAGE.parent

INTERNALS = ("pytensor.link", "numba.core", "numba.extending", "numba.np", "pymc.logprob.utils")
"""Modules whose names are not part of what their library promises."""

IMPORTED = {
    "numba.core": {"caching", "cgutils", "cpu", "typing"},
    "numba.core.codegen": {"JITCPUCodegen", "JITCodeLibrary"},
    "numba.core.compiler_lock": {"global_compiler_lock"},
    "numba.core.dispatcher": {"Dispatcher"},
    "numba.core.environment": {"lookup_environment"},
    "numba.core.imputils": {"impl_ret_new_ref"},
    "numba.core.pythonapi": {"_boxers"},
    "numba.core.registry": {"CPUDispatcher"},
    "numba.core.types": {"Type"},
    "numba.core.typing.templates": {"builtin_registry"},
    "numba.core.typing.typeof": {"typeof"},
    "numba.extending": {"intrinsic", "overload", "register_jitable"},
    "numba.np.numpy_support": {"as_dtype"},
    "pymc.logprob.utils": {"CheckParameterValue", "ParameterValueError"},
    "pytensor.link.numba.cache": {
        "CACHED_SRC_FUNCTIONS",
        "NUMBA_CACHE_PATH",
        "compile_numba_function_src",
    },
    "pytensor.link.numba.dispatch.basic": {
        "numba_njit",
        "register_funcify_and_cache_key",
        "register_funcify_default_op_cache_key",
    },
    "pytensor.link.numba.dispatch.scalar": {"numba_funcify_Composite", "scalar_op_cache_key"},
    "pytensor.link.numba.linker": {"NumbaLinker"},
}

READ = {
    "_asdict": "named tuples: a part of their interface",
    "_backend": "pymc.progress_bar: what shows the progress",
    "_clean_results": "bambi.Model.backend: what fit makes of draws",
    "_extract_stats": "pymc.progress_bar: the stats that are shown",
    "_show_progress": "pymc.progress_bar: whether anything is shown",
    "_tune_total": "pymc.progress_bar: draws of tuning",
    "_codegen": "numba.core.codegen: what generated the code of a library",
    "_data": "xarray.Variable: what a lazy array is read from",
    "_defn": "numba.extending: what an intrinsic is made by",
    "_dynfunc": "numba.core.cpu: makes what Python calls",
    "_engine": "numba.core.codegen: where machine code is loaded",
    "_ensure_finalized": "numba.core.codegen: nothing is added to the code any more",
    "_finalize_dynamic_globals": "numba.core.codegen: addresses in the code",
    "_array": "xarray's backend for zarr: the array that is read",
    "_cache_path": "numba.core.caching: where a function is kept",
    "_field_defaults": "named tuples: a part of their interface",
    "_fields": "named tuples: a part of their interface",
    "_get_function": "numba.core.pythonapi: declares a function of Numba's runtime",
    "_getvalue": "numba.core.cgutils: the value of a structure",
    "_in_memory": "xarray.Variable: whether a lazy array has been read",
    "_index_path": "numba.core.caching: where a function is kept",
    "_inline": "numba.core.typing.templates: whether an overload is inlined",
    "_is_owned": "threading.RLock: whether this thread holds it",
    "_jit_options": "numba.core.typing.templates: how an overload is compiled",
    "_lock": "llvmlite.binding.ffi.lib and numba.core.compiler_lock: locks of compilers",
    "_mmap": "numpy.memmap: the map behind an array",
    "_overload_func": "numba.core.typing.templates: what returns an implementation",
    "_print_name": "PyMC's distributions: the name for people",
    "_props": "pytensor.graph.op.Op: by which operations are equal",
    "_re_center_intercept": "bambi.Model: undoes what Bambi does to the intercept",
    "_replace": "named tuples: a part of their interface",
}
"""Attributes with an underscore that belong to objects of others."""

OVERRIDDEN = {"_make_progressbar_update_functions", "_progressbar_config", "_state_class"}
"""What PyMC asks of a step, under private names."""


@cache
def all_nodes():
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    return [node for tree in trees for node in ast.walk(tree)]


def nodes(*kinds):
    return [node for node in all_nodes() if isinstance(node, kinds)]


def own_names():
    names = {node.name for node in nodes(ast.FunctionDef, ast.ClassDef)}
    names |= {node.attr for node in nodes(ast.Attribute) if isinstance(node.ctx, ast.Store)}
    return names | {node.id for node in nodes(ast.Name) if isinstance(node.ctx, ast.Store)}


def test_imports_from_internal_modules():
    found = {}
    for node in nodes(ast.ImportFrom):
        hidden = any(part.startswith("_") for part in node.module.split("."))
        if node.module.startswith(INTERNALS) or hidden:
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    assert found == IMPORTED


def test_no_private_name_is_imported():
    from_others = [n for n in nodes(ast.ImportFrom) if not n.module.startswith("pymc_minibatch")]
    names = {alias.name for node in from_others for alias in node.names}
    assert {name for name in names if name.startswith("_")} == {"__version__", "_boxers"}


def test_private_attributes_of_others():
    own = own_names()
    read = {node.attr for node in nodes(ast.Attribute)} - own
    for call in nodes(ast.Call):
        if getattr(call.func, "id", "") in ("getattr", "hasattr"):
            read |= {arg.value for arg in call.args[1:2] if isinstance(arg, ast.Constant)}
    assert {name for name in read if re.match("_[a-z]", str(name))} == set(READ)


@pytest.mark.parametrize("module", IMPORTED)
def test_they_are_there(module):
    for name in IMPORTED[module]:
        assert hasattr(import_module(module), name)


def private_reads(tree):
    """Return the names with an underscore that a file reads of objects other than its own."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr, re.IGNORECASE)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_tests_read_what_is_public():
    paths = (ROOT / "tests").rglob("*.py")
    private = own_names() - {"_overloads", "_repr_html_"}  # of Numba; a protocol of Jupyter
    found = {path.name: private_reads(ast.parse(path.read_text())) & private for path in paths}
    assert not {name: read for name, read in found.items() if read}


def test_private_reads_are_found():
    assert private_reads(ast.parse("step._draw(point); self._own = step.public")) == {"_draw"}


def test_steps_override_what_pymc_has():
    from pymc.step_methods.compound import BlockedStep
    from pymc.step_methods.metropolis import Metropolis

    for name in OVERRIDDEN:
        assert hasattr(BlockedStep, name) or hasattr(Metropolis, name)
        assert hasattr(pymc_minibatch.MinibatchMH, name)


def test_versions_are_bounded_above():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for library in ("numba", "pytensor", "pymc", "arviz"):
        [needed] = [text for text in project["dependencies"] if re.match(rf"{library}\b", text)]
        assert "<" in needed


def test_the_recipe_needs_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("\ntests:")[0]
    listed = {line.strip(" -").replace(" ", "") for line in run.splitlines() if line.strip()}
    assert listed == {*project["dependencies"], f"python{project['requires-python']}"}
    for text in (recipe, (ROOT / "CITATION.cff").read_text()):
        assert project["version"] in text


def test_types_travel_with_the_package():
    assert (PACKAGE / "py.typed").exists()
