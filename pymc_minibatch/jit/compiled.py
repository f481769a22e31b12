"""Functions of a batch of rows, compiled by PyTensor to Numba.

A compiled PyTensor function carries its Numba dispatcher, which other jitted code can call. It also
has a key under which PyTensor keeps the machine code on disk. :func:`jit_kept` extends that cache
to our own kernels: a second process on the same model starts warm.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import signature
from threading import Lock
from typing import Any

import numpy as np
from numba import njit
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import in2out
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS, compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.tensor.rewriting.ofg import inline_symbolic_for_fusion

from pymc_minibatch.jit.branchless import (
    local_branchless,
    local_inlined,
    local_one_logarithm,
)
from pymc_minibatch.jit.cache import kernel_key
from pymc_minibatch.jit.entry import generator, graph_from_python, kernel_from_python
from pymc_minibatch.jit.held_locks import release_held_locks
from pymc_minibatch.jit.lean import (
    local_added_axes,
    local_added_up_apart,
    local_true_checks,
    local_unchecked,
)
from pymc_minibatch.jit.linking import compiled_by_linking, compiled_once
from pymc_minibatch.jit.matvec import local_matvec, local_small_matrices
from pymc_minibatch.jit.patches import PATCHED
from pymc_minibatch.jit.special import local_float_exponent

__all__ = [
    "NUMBA_MODE",
    "CompiledFunction",
    "compile_all",
    "compile_numba",
    "compile_python",
    "jit_kept",
]

FIRST, POSITION, FUSED = 0.5, 48.0, 49.5
"""Among PyTensor's rewrites: before all, so that what a check decides is simplified; after
specialisation, before operations are fused; and after that, before they work in place."""

REWRITES = [
    inline_symbolic_for_fusion,
    local_unchecked,
    local_matvec,
    local_small_matrices,
    local_added_axes,
    local_one_logarithm,
    local_branchless,
]
"""One after the other; the first, of PyTensor, shows what softmax and the like consist of."""

SCALARIZE = "scalarize"
"""PyTensor's rewrite that hands a number, such as the result of a check, to the loop over an array
by a function of its own: a call for each entry, which keeps the processor from computing several
at once. It makes the log-densities of rows 2 to 12 times slower."""

PYTENSORS: Mode = get_mode("NUMBA").register((in2out(local_float_exponent), POSITION - 1))

WITH_REWRITES: Mode = PYTENSORS.excluding(SCALARIZE).register(
    (in2out(local_true_checks), FIRST),
    *((in2out(rewrite), POSITION + i / 10) for i, rewrite in enumerate(REWRITES)),
    (in2out(local_inlined), FUSED),
    (in2out(local_added_up_apart), FUSED + 0.1),
)

NUMBA_MODE: Mode = WITH_REWRITES if PATCHED else PYTENSORS
"""PyTensor's Numba mode, with the rewrites of this package; only those without which results would
be wrong if the others are switched off."""

IN_PYTHON = Mode(linker="py", optimizer="minimum_compile")

INLINED, GENERATOR = "_inlined", "_generator"
"""What a function that is kept calls; no argument has these names."""


@dataclass(frozen=True)
class CompiledFunction:
    """A PyTensor graph as a Numba function.

    Attributes
    ----------
    jitted
        The Numba dispatcher; takes arrays and returns a tuple of arrays.
    cache_key
        Identifies the graph on disk; None if PyTensor cannot cache one of its operations.
    graph
        Inputs and outputs. A function is pickled as its graph, and compiled once in each process.
    """

    jitted: Callable[..., tuple[np.ndarray, ...]]
    cache_key: str | None
    graph: tuple[list[Variable], list[Variable]] = field(repr=False, compare=False)

    def __call__(self, *args: np.ndarray) -> np.ndarray:
        """Evaluate the first output."""
        return self.jitted(*args)[0]

    def outputs(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        """Evaluate all outputs."""
        return self.jitted(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graph."""
        return _restored, (pickle.dumps(self.graph),)


_restoring = Lock()
"""PyTensor compiles in one thread at a time."""


def _restored(graph: bytes) -> CompiledFunction:
    with _restoring:
        return _compiled_once(graph)


@lru_cache(maxsize=64)
def _compiled_once(graph: bytes) -> CompiledFunction:
    return compile_numba(*pickle.loads(graph))


def compile_numba(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> CompiledFunction:
    """Compile a graph with PyMC's rewrites, so that a parameter out of range gives -inf.

    Raises
    ------
    ValueError
        If the graph reads a shared variable that is not among the inputs.
    """
    release_held_locks()
    function = pymc_compile(list(inputs), list(outputs), mode=NUMBA_MODE, on_unused_input="ignore")
    if shared := function.get_shared():
        raise ValueError(f"The graph reads shared variables that were not bound: {shared}.")
    jitted = graph_from_python(compiled_once(compiled_by_linking(function.vm.jit_fn)))
    jitted.targetoptions["nogil"] = True  # so that passes over all rows can use all cores
    key = CACHED_SRC_FUNCTIONS.get(jitted.py_func)
    return CompiledFunction(jitted, key, (list(inputs), list(outputs)))


def compile_python(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> Callable[..., np.ndarray]:
    """Build a function that runs operation by operation in Python, with all of its checks."""
    return pymc_compile(list(inputs), outputs[0], mode=IN_PYTHON, on_unused_input="ignore")


def compile_all(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> Callable[..., list[np.ndarray]]:
    """Do the same for several outputs."""
    return pymc_compile(list(inputs), list(outputs), mode=IN_PYTHON, on_unused_input="ignore")


def jit_kept(
    function: Callable[..., Any], keys: Sequence[str | None] = (), nogil: bool = False
) -> Callable[..., Any]:
    """Compile a function, or one that is jitted already, and keep its machine code on disk.

    It should return plain numbers or arrays: Numba would call Python to return a named tuple, and
    crashes where Ctrl-C has arrived in the meantime. If an argument is called ``rng``, Python
    passes a ``numpy.random.Generator``, which has to stay alive meanwhile.

    Parameters
    ----------
    function
        The function, which may refer to jitted functions.
    keys
        Whatever tells the code behind it from that of others made by the same code of this package:
        keys of graphs, options. If any is None the function is compiled but not kept.
    nogil
        Whether other threads run meanwhile.
    """
    function = getattr(function, "py_func", function)
    # Numba finds what a function on disk refers to by the name of its module, and does not find
    # again what is kept with a closure; inlined, the closure is compiled no more often than once.
    names = list(signature(function).parameters)
    passed = [f"{GENERATOR}({name})" if name == "rng" else name for name in names]
    source = f"def kept({', '.join(names)}): return {INLINED}({', '.join(passed)})"
    inlined = njit(inline="always")(function)
    module = {"__name__": __name__, INLINED: inlined, GENERATOR: generator}
    kept = compile_numba_function_src(source, "kept", module)
    jitted = numba_njit(kept, final_function=True, nogil=nogil)
    key = partial(kernel_key, jitted, function.__module__, function.__qualname__, *keys)
    return kernel_from_python(compiled_by_linking(kept_on_disk(jitted, key)))


def kept_on_disk[F: Callable[..., Any]](dispatcher: F, make_key: Callable[[], str | None]) -> F:
    """Have a jitted function kept on disk once it is compiled, when all that it calls is there."""
    compile_as_usual = dispatcher.compile  # type: ignore[attr-defined]

    def compile_and_keep(signature: Any) -> Any:
        dispatcher.compile = compile_as_usual  # type: ignore[attr-defined]
        key = make_key()
        if key is not None:
            CACHED_SRC_FUNCTIONS[dispatcher.py_func] = key  # type: ignore[attr-defined]
            dispatcher.enable_caching()  # type: ignore[attr-defined]
        return compile_as_usual(signature)

    dispatcher.compile = compile_and_keep  # type: ignore[attr-defined]
    return dispatcher
