"""How many draws a second pm.sample takes from a step that does nothing.

    python -m benchmarks.ceiling

The effective samples per second of any sampler stay below this. A chain that decides by Barker's
test is accepted at most every other time, and has no more effective samples than draws.
"""

import argparse
import time

import numpy as np
import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.step_methods.compound import BlockedStep

from benchmarks.outcome import N_CHAINS
from benchmarks.report import machine, versions


class IdleStep(BlockedStep):
    """A step that stays where it is, and says when."""

    name = "idle"
    default_blocked = True
    stats_dtypes_shapes = {"clock": (np.float64, [])}  # noqa: RUF012 - as PyMC declares it

    def __init__(self, model: pm.Model) -> None:
        self.vars, self.tune = model.value_vars, True

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Return the point."""
        return point, [{"clock": time.perf_counter()}]

    @classmethod
    def _progressbar_config(cls, n_chains: int = 1) -> tuple[list, dict]:
        return [], {}

    @classmethod
    def _make_progressbar_update_functions(cls) -> tuple:
        return ()


def main() -> None:
    """Print draws per second and chain, for chains side by side and one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    print(machine(), versions(), sep="\n")
    with pm.Model() as model:
        pm.Normal("beta", shape=20)
        for cores in (N_CHAINS, 1):
            idata = pm.sample(
                draws,
                tune=100,
                step=IdleStep(model),
                chains=N_CHAINS,
                cores=cores,
                progressbar=False,
                compute_convergence_checks=False,
            )
            clock = idata["sample_stats"]["clock"].values
            rate = (draws - 1) / (clock[:, -1] - clock[:, 0]).max()
            print(f"{N_CHAINS} chains, cores={cores}: {rate:,.0f} draws per second and chain")


if __name__ == "__main__":
    main()
