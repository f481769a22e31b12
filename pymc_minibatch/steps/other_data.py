"""Data of the model that are set anew, or files that change, after a step was set up."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_minibatch.steps.display import listed
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.fingerprint import SharedValues
from pymc_minibatch.tall.model import split

__all__ = ["FollowsData", "split_for_step"]

_progress = logging.getLogger("pymc.minibatch")


class FollowsData:
    """A step that is set up again if the data of the model were set to other values."""

    tall: TallModel
    _shared_values: SharedValues

    made_with: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """What it was made with, by which it is set up again; None if it came from elsewhere."""

    @property
    def vars(self) -> list[Variable]:
        """The value variables that it moves.

        ``pm.sample`` asks for them before it samples; if data were set since the step was set up,
        it is set up again then.
        """
        self._follow_data()
        return self._vars

    @vars.setter
    def vars(self, variables: list[Variable]) -> None:
        self._vars = variables

    def _follow_data(self) -> None:
        """Set the step up again if the data of the model were set to other values."""
        if "setup_seconds" not in self.__dict__ or not (names := self._shared_values.changed()):
            return
        if self.made_with is None:
            raise RuntimeError(f"{self._of_other_data(names)} Make the step again.")
        _progress.info(f"{self._of_other_data(names)} It is set up again on the data as they are.")
        args, kwargs = self.made_with
        data = kwargs.get("data")
        if isinstance(data, TallModel):
            if data.is_bound:
                raise RuntimeError(
                    f"{self._of_other_data(names)} Split the model with its data again, and make "
                    "the step again."
                )
            kwargs = kwargs | {"data": None}
        before = self.__dict__.copy()
        kept = ("stats_dtypes", "stats_dtypes_shapes", "_BlockedStep__newargs", "made_with")
        model = self.tall.given_model
        self.__dict__.clear()
        self.__dict__.update({name: before[name] for name in kept if name in before})
        try:
            type(self).__init__(self, *args, **kwargs | {"model": model})
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _of_other_data(self, names: Sequence[str]) -> str:
        verb = "were" if len(names) > 1 else "was"
        return f"{listed(names)} {verb} set since {type(self).__name__} was set up."

    def refuse_other_data(self) -> None:
        """Refuse to go on where data or files are not those on which the step was set up.

        Raises
        ------
        RuntimeError
            Naming them.
        """
        if names := self._shared_values.changed():
            raise RuntimeError(
                f"{self._of_other_data(names)} Set the data of the run again, or sample first."
            )
        self.tall.check_sources()


def split_for_step(model: Model, data: Any, rows_in_memory: float) -> TallModel:
    """Split a model, or take the split that was handed over as its data.

    Raises
    ------
    ValueError
        If that is of another model.
    """
    tall = split(model, data, rows_in_memory=rows_in_memory)
    if tall is not data:
        return tall
    tall.check_sources()
    return tall.copied() if rows_in_memory == math.inf else tall
