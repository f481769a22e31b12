"""Names are words of the literature: those of a private vocabulary that they replaced stay away."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymc_minibatch

PACKAGE = Path(pymc_minibatch.__file__).parent

WORDS = {
    "Reading": "predictors, PredictorState",
    "Reads": "terms of the design",
    "LatentMap": "Projector",
    "Joined": "CurvatureProduct",
    "Held": "CenteredPoint",
    "Located": "LatentModel",
    "Deciding": "tests of decisions",
    "Settled": "DecisionTests",
    "Place": "ProposalContext",
    "Here": "ChainState",
    "Usual": "FactorBank",
    "Turns": "StepSizes",
    "Arms": "StepSizes",
    "ANGLES": "PCN_ANGLES",
    "Parts": "RandomBlocks, BorderAndBlocks",
    "Overlooked": "WeightCheck",
    "Lookout": "WeightCheck",
    "Tails": "SkewTransform",
    "onto": "projector",
    "bent": "curved",
    "is_bent": "is_curved",
    "bent_row": "curved_row",
    "bend": "curvature, second derivative",
    "locals": "predictors",
    "local_inputs": "predictors",
    "n_locals": "n_predictors",
    "held": "centered, fixed",
    "tilt": "mean correction",
    "unlit": "dark rows",
    "relight": "update of the brightness",
    "flies": "bright rows",
    "unusual": "atypical",
    "usual": "what it is typical of",
    "carried": "collapsed",
    "loose": "pinned",
    "move_hyper": "Noncentered",
    "move_held": "Centered",
    "move_carried": "Collapsed",
    "rounds": "scans",
    "n_rounds": "n_scans",
    "rounds_of_draw": "scans_of_draw",
}
"""What no class, function, argument or variable is called, and what it is called instead."""


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Return the names that a file gives, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def replaced(source: str) -> list[str]:
    """Return the names of a file that have another word, with their lines."""
    return [
        f"line {line}: {name}; say {WORDS[name.lstrip('_')]}"
        for name, line in names(ast.parse(source))
        if name.lstrip("_") in WORDS
    ]


def test_names_are_words_of_the_literature() -> None:
    files = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {str(path): names for path, text in files.items() if (names := replaced(text))}
    assert not found


@pytest.mark.parametrize(
    "source", ["class Turns: ...", "def move_held(self): ...", "def f(n_rounds): ...", "_bent = 1"]
)
def test_other_names_are_found(source: str) -> None:
    assert len(replaced(source)) == 1
