"""Blocks of coupled paths of one model, in threads."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from pymc_minibatch.jit.compiled import jit_kept
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.multilevel import Coupling, make_paths
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.density import make_density
from pymc_minibatch.reference.gradient import GradientTarget
from pymc_minibatch.tall import TallModel

__all__ = ["DivergedError", "Paths", "identity"]

BLOCK, BLOCKS = 32, 8
"""Most paths in a call of the kernel, which cannot be interrupted; and calls at least, if there are
so many paths, so that no core is left without work."""


class DivergedError(Exception):
    """A path whose steps are too long."""


class Paths:
    """Blocks of coupled paths, in threads."""

    def __init__(
        self,
        tall: TallModel,
        reference: Reference,
        target: GradientTarget,
        rng: np.random.Generator,
        cores: int,
    ) -> None:
        self.mode = reference.center
        self.factor = np.linalg.cholesky(np.linalg.inv(reference.precision_at(1.0)))
        self._rng, self._cores = rng, cores
        self._point = tall.layout.empty()
        self._keep = target  # addresses are good as long as the functions live
        self._density = make_density(tall, target)
        ndims = [values.ndim for values in tall.data]
        self._kernel = cast(Any, jit_kept(make_paths(ndims), [repr(ndims)]))
        self._kernel.targetoptions["nogil"] = True

    def address(self, function: Callable[..., np.ndarray]) -> int:
        """Return the address under which the kernel calls a function of the point."""
        return address_of(function, self._point)

    def run(
        self, coupling: Coupling, n: int, function: int, n_values: int, apart: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return values of fine and coarse paths, shape (n, k).

        Paths start from the Gaussian approximation; with `apart`, a coarse path that starts at once
        is independent of the fine one there.

        Raises
        ------
        DivergedError
            If the steps are too long.
        """
        length = min(BLOCK, math.ceil(n / BLOCKS))
        sizes = [min(length, n - first) for first in range(0, n, length)]
        dim, stop = self.mode.size, np.zeros(1, np.int64)

        def block(size: int, rng: np.random.Generator) -> tuple[bool, np.ndarray, np.ndarray]:
            starts = rng.standard_normal((size, 2, dim))
            if not apart:
                starts[:, 1] = starts[:, 0]
            fine, coarse = np.zeros((2, size, n_values))
            diverged = self._kernel(
                rng,
                starts,
                self.mode,
                self.factor,
                self._density,
                function,
                coupling,
                fine,
                coarse,
                stop,
            )
            return diverged, fine, coarse

        with ThreadPoolExecutor(self._cores) as pool:
            try:
                waiting = [
                    pool.submit(block, *job)
                    for job in zip(sizes, self._rng.spawn(len(sizes)), strict=True)
                ]
                done = [job.result() for job in waiting]
            except BaseException:
                stop[0] = 1
                pool.shutdown(cancel_futures=True)
                raise
        if any(diverged for diverged, *_ in done):
            raise DivergedError
        return np.concatenate([d[1] for d in done]), np.concatenate([d[2] for d in done])


def identity() -> Callable[[np.ndarray], np.ndarray]:
    """Compile the function that returns the point."""
    return jit_kept(lambda point: point.copy(), [])
