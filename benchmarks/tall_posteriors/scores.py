"""Effective draws, errors against a reference, and the reference itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Reference", "combined", "effective", "errors", "kept_elements", "read", "write"]

Reference = dict[str, Any]

MOST_ELEMENTS = 100
"""Elements of a variable that a reference keeps, evenly spaced."""

QUANTILES = (0.05, 0.5, 0.95)

FOLDER = Path(__file__).parent / "references"


def _stats() -> Any:
    from arviz_stats.base import array_stats

    return array_stats


def _flat(draws: np.ndarray) -> np.ndarray:
    return np.asarray(draws, dtype=float).reshape(*draws.shape[:2], -1)


def kept_elements(size: int) -> np.ndarray:
    """Return which elements of a variable of that size are compared."""
    return np.unique(np.linspace(0, size - 1, min(size, MOST_ELEMENTS)).round().astype(int))


def effective(draws: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """Return the effective draws of the worst parameter (bulk, all elements), and its name."""
    found = {
        name: float(np.min(_stats().ess(_flat(v), chain_axis=0, draw_axis=1, method="bulk")))
        for name, v in draws.items()
    }
    worst = min(found, key=lambda name: found[name])
    return found[worst], worst


def _summaries(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a reference keeps of a variable: each with its Monte Carlo error."""
    x, stats = _flat(draws), _stats()
    x = x[:, :, kept_elements(x.shape[2])]
    found = {"mean": x.mean((0, 1)), "sd": x.std((0, 1))}
    for name in ("mean", "sd"):
        found[f"{name}_error"] = stats.mcse(x, chain_axis=0, draw_axis=1, method=name)
    for q in QUANTILES:
        name = f"q{100 * q:02.0f}"
        found[name] = np.quantile(x, q, axis=(0, 1))
        found[f"{name}_error"] = stats.mcse(x, chain_axis=0, draw_axis=1, method="quantile", prob=q)
    return {name: np.asarray(v, dtype=float) for name, v in found.items()}


def combined(
    runs: Mapping[str, Mapping[str, np.ndarray]], leave_out: tuple[str, ...] = ()
) -> Reference:
    """Pool the runs of two samplers, weighted by their Monte Carlo errors, and note their distance.

    Parameters
    ----------
    runs
        Draws by variable, by name of the sampler.
    leave_out
        Variables that samplers define differently.
    """
    names = sorted(set.intersection(*[set(draws) for draws in runs.values()]) - set(leave_out))
    variables: dict[str, Any] = {}
    furthest, compared = 0.0, 0
    for name in names:
        parts = [_summaries(draws[name]) for draws in runs.values()]
        pooled: dict[str, np.ndarray] = {}
        for key in [k for k in parts[0] if not k.endswith("_error")]:
            error = np.array([part[f"{key}_error"] for part in parts])
            weight = 1 / np.maximum(error, 1e-300) ** 2
            pooled[key] = (weight * [part[key] for part in parts]).sum(0) / weight.sum(0)
            pooled[f"{key}_error"] = 1 / np.sqrt(weight.sum(0))
            if len(parts) == 2:
                z = np.abs(parts[0][key] - parts[1][key]) / np.hypot(*error)
                furthest, compared = max(furthest, float(z.max())), compared + z.size
        shape = next(iter(runs.values()))[name].shape[2:]
        kept = kept_elements(int(np.prod(shape, dtype=int)))
        variables[name] = {"shape": list(shape), "elements": kept.tolist()} | {
            key: [float(f"{x:.6g}") for x in v] for key, v in pooled.items()
        }
    return {
        "samplers": {name: {"effective": round(effective(d)[0])} for name, d in runs.items()},
        "furthest_apart": round(furthest, 2) if len(runs) > 1 else None,
        "compared": compared,
        "variables": variables,
    }


def read(posterior: str, folder: Path = FOLDER) -> Reference | None:
    """Return the reference of a posterior; None if there is none."""
    path = folder / f"{posterior}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write(posterior: str, reference: Reference, folder: Path = FOLDER) -> None:
    """Write a reference, a variable on each line."""
    head = {key: v for key, v in reference.items() if key != "variables"}
    lines = [f"  {json.dumps(key)}: {json.dumps(v)}," for key, v in head.items()]
    inner = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in reference["variables"].items()]
    text = "{\n" + "\n".join(lines) + '\n  "variables": {\n' + ",\n".join(inner) + "\n  }\n}\n"
    folder.mkdir(exist_ok=True)
    (folder / f"{posterior}.json").write_text(text)


def errors(
    draws: Mapping[str, np.ndarray],
    moments: Mapping[str, tuple[np.ndarray, np.ndarray]],
    reference: Reference,
) -> dict[str, Any]:
    """Compare means and standard deviations with the reference.

    Returns
    -------
    dict
        `worst_z`, the largest difference in Monte Carlo errors, those of the run and those of the
        reference; `worst_mean_error`, the largest of a mean in posterior standard deviations;
        `worst_sd_error`, the largest of a standard deviation, as a share of it; how many numbers
        were `compared`; and the variable in which z is largest.
    """
    worst: dict[str, Any] = {
        "worst_z": 0.0,
        "worst_z_of": None,
        "worst_mean_error": 0.0,
        "worst_sd_error": 0.0,
        "compared": 0,
    }
    for name, known in reference["variables"].items():
        if name in draws:
            mine = _summaries(draws[name])
        elif name in moments:
            kept = kept_elements(np.size(moments[name][0]))
            mean, sd = (np.ravel(np.asarray(v, dtype=float))[kept] for v in moments[name])
            mine = {"mean": mean, "sd": sd}
        else:
            continue
        sd = np.array(known["sd"])
        for key in ("mean", "sd"):
            off = np.abs(mine[key] - known[key])
            if not np.isfinite(off).any():
                continue
            error = np.hypot(mine.get(f"{key}_error", 0.0), known[f"{key}_error"])
            z = float(np.nanmax(off / np.maximum(error, 1e-12 * sd)))
            worst["compared"] += off.size
            worst[f"worst_{key}_error"] = max(
                worst[f"worst_{key}_error"], float(np.nanmax(off / sd))
            )
            if z > worst["worst_z"]:
                worst |= {"worst_z": z, "worst_z_of": f"{key} of {name}"}
    return worst if worst["compared"] else dict.fromkeys(worst)
