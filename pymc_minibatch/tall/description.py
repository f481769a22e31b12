"""A split in words: what are rows, what they read, and what is prior."""

from typing import TYPE_CHECKING

from pymc.util import get_var_name

if TYPE_CHECKING:
    from pymc_minibatch.tall.model import TallModel

__all__ = ["described"]


def described(tall: "TallModel") -> str:
    """Describe in words which part of a model is rows, and which is prior."""
    lines = [*_rows(tall), _prior_part(tall), *_structure(tall)]
    lines += [
        f"warning: Deterministic {name} has one value per row, and pm.sample evaluates it at "
        "every draw; leave it out with var_names."
        for name in tall.deterministics_of_rows()
    ]
    return "\n".join(lines)


def _rows(tall: "TallModel") -> list[str]:
    row_bytes = tall.row_bytes
    return [
        f"{tall.n_rows:,} rows of {' + '.join(tall.row_names)}",
        *(
            f"  {row_input.name}: {row_input.values.dtype} {row_input.values.shape}"
            + (f", rows along axis {row_input.axis}" if row_input.axis else "")
            for row_input in tall.row_inputs.values()
        ),
        f"  {row_bytes:,} bytes per row, {row_bytes * tall.n_rows / 1e6:,.1f} MB in all",
    ]


def _prior_part(tall: "TallModel") -> str:
    prior = [get_var_name(rv) for rv in tall.model.free_RVs]
    prior += [
        f"observed {get_var_name(rv)}"
        for rv in tall.model.observed_RVs
        if rv.name not in tall.row_names
    ]
    prior += [f"potential {get_var_name(potential)}" for potential in tall.prior_potentials]
    return f"prior part: {', '.join(prior)} ({tall.layout.size} unconstrained parameters)"


def _structure(tall: "TallModel") -> list[str]:
    structure = tall.structure
    if structure is None:
        return [f"linear predictors: none were found ({tall.structure_refusal})"]
    k = len(structure.predictors)
    title = f"linear predictors, affine in effects and coefficients: {k}"
    return [title, *structure.describe(list(tall.row_inputs))]
