"""The process that runs a job for a chain; see :func:`pymc_minibatch.tall.cluster.elsewhere`."""

import sys
from pathlib import Path

from pymc_minibatch.tall.cluster import help_with

if __name__ == "__main__":
    help_with(Path(sys.argv[1]), Path(sys.argv[2]))
