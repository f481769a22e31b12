"""Steps that wait for a model: what step classes are, and a step made before its model is known."""

from abc import ABCMeta
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pymc.model import Model
from pymc.step_methods.compound import BlockedStep
from pytensor.configdefaults import config

from pymc_minibatch.jit.cores import one_blas_thread
from pymc_minibatch.jit.memory import give_back_memory
from pymc_minibatch.renamed import with_new_names

__all__ = ["StepKind", "WaitingStep"]


class WaitingStep(Sequence):
    """A step made without a model, which ``pm.sample`` makes from the model it samples.

    It stands for a list of one step, made when the list is read. So ``fit(step=...)`` of Bambi
    works, which builds its model first.
    """

    def __init__(self, kind: type[BlockedStep], args: Any, kwargs: Mapping[str, Any]) -> None:
        self._kind, self._args, self._kwargs = kind, args, kwargs

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        """Make the step once; a sequence would ask for a second one, to find its end."""
        yield self[0]

    def __getitem__(self, i: Any) -> Any:
        """Make the step."""
        kind = self._kind.__name__
        if Model.get_context(error_if_none=False) is None:
            raise TypeError(
                f"{kind} was made outside `with model:`, so it does not know the model= that "
                f"pm.sample got. Write step=pmb.{kind}(model=model)."
            )
        return [self._kind(*self._args, **self._kwargs)][i]

    def __repr__(self) -> str:
        return f"{self._kind.__name__}, which pm.sample makes for the model that it samples"

    def __getattr__(self, name: str) -> Any:
        """Say what to do where somebody takes it for the step itself."""
        if name.startswith("_"):  # of a copy that has no attributes yet, or asked by protocols
            raise AttributeError(name)
        kind = self._kind.__name__
        raise AttributeError(
            f"{kind} was made without a model, so it has no {name} before pm.sample makes it. Make "
            f"it inside `with model:`, or pass model= to {kind}."
        )


class StepKind(ABCMeta):
    """What step classes are: asked for its steps, as a list is, a class says how to make one."""

    renamed: ClassVar[Mapping[str, str]] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a step, from arguments under old names as well.

        Graphs that are made meanwhile do not note who made each of their nodes, which PyTensor
        takes a tenth of set-up for. Passes over rows have threads of their own; those of BLAS,
        which spin while they wait, make a factorization ten times slower beside another process.
        Far out, where a density is 0, numbers overflow, of which nobody need be told.
        """
        quietly = np.errstate(all="ignore")
        with config.change_flags(traceback__limit=0), one_blas_thread(), quietly:
            made = super().__call__(*args, **with_new_names(cls.__name__, cls.renamed, kwargs))
        give_back_memory()
        return made

    def __iter__(cls) -> Iterator[Any]:
        """Say that the class is to be called."""
        raise TypeError(f"{cls.__name__} is the class of a step. Write step=pmb.{cls.__name__}().")


Sequence.register(StepKind)
