"""The posteriors and the programs, by name; each is a module of its own."""

import importlib
from typing import Any

__all__ = ["POSTERIORS", "PROGRAMS", "posterior_of", "program_of"]

POSTERIORS = (
    "flights_late",
    "military_officers",
    "doctor_visits",
    "diamond_prices",
    "lecture_ratings",
    "movie_ratings",
    "home_runs",
    "plane_slopes",
    "chemistry_scores",
    "airport_weather",
    "wages_spline",
    "drive_failures",
)

PROGRAMS = (
    "minibatch",
    "flymc",
    "nutpie",
    "numpyro_nuts",
    "pymhss",
    "hmcecs",
    "sgld",
    "sghmc",
    "approximate",
    "advi",
    "pathfinder",
    "laplace",
    "gpboost",
)


def posterior_of(name: str) -> Any:
    """Import a posterior: `TITLE`, `PACKAGES`, `table()` and `model(table, batch)`."""
    if name not in POSTERIORS:
        raise ValueError(f"No posterior is called {name!r}; there are {', '.join(POSTERIORS)}.")
    return importlib.import_module(f"benchmarks.tall_posteriors.posteriors.{name}")


def program_of(name: str) -> Any:
    """Import the module of a program: `TITLE`, `SETTINGS`, `EXACT` and `run(job)`."""
    if name not in PROGRAMS:
        raise ValueError(f"No program is called {name!r}; there are {', '.join(PROGRAMS)}.")
    return importlib.import_module(f"benchmarks.tall_posteriors.programs.{name}")
