"""Terms of which rows are taken before what they are taken from is computed, verified by values."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt

from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.tall.check import FAILURES, difference
from pymc_minibatch.tall.observed import ObservedTerm
from pymc_minibatch.tall.some_rows import taken_first

if TYPE_CHECKING:
    from pymc_minibatch.tall.splitting import Splitting

__all__ = ["rows_taken_first"]


def rows_taken_first(
    tall: "Splitting", as_written: Sequence[ObservedTerm]
) -> Sequence[ObservedTerm]:
    """Take rows before what they are taken from is computed, unless values change."""
    taken = taken_first([term.term for term in as_written])
    changed = [
        (own, term.term)
        for own, term in zip(taken, as_written, strict=True)
        if own is not term.term
    ]
    if not changed:
        return as_written
    graphs = [tall.bind(pt.cast(graph, "float64"), {}) for pair in changed for graph in pair]
    evaluate, rng = compile_all([tall.flat], graphs), np.random.default_rng(3)
    for spread in (0.0, 0.1, 0.3):
        jitter = spread * rng.normal(size=tall.start.size)
        point = tall.start + jitter * tall.layout.is_continuous
        with suppress(*FAILURES):
            found = evaluate(point)
            pairs = zip(found[::2], found[1::2], strict=True)
            if any(a.shape != b.shape or difference(a, b) is not None for a, b in pairs):
                return as_written
    return [
        term if own is term.term else replace(term, term=own)
        for term, own in zip(as_written, taken, strict=True)
    ]
