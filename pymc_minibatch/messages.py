"""What each warning and error of this package means, by the id that it ends with.

An id is never used again for another message. ``python docs/messages.py`` writes docs/messages.md
from these entries; a test compares the two, and finds ids that are used and not listed here.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

__all__ = ["MESSAGES", "IdentifiedError", "Message", "with_id"]


class Message(NamedTuple):
    """An entry of the page of messages."""

    title: str
    """The fact, in a few words."""
    cause: str
    remedy: str


MESSAGES = {
    "PMB001": Message(
        "An argument has a new name",
        "Old names of arguments are understood for one release.",
        "Write the new name, which the warning gives.",
    ),
    "PMB101": Message(
        "Deterministics have one value per row",
        "PyMC computes and stores Deterministics at every draw. One with a value per row costs a "
        "pass over the data and memory for each draw. `OrderedLogistic` and `OrderedProbit` add "
        "one unless you write `compute_p=False`.",
        "Pass `var_names` with the variables to keep, and compute the others afterwards with "
        "`pm.compute_deterministics`. Bambi's `fit` leaves them out by itself.",
    ),
    "PMB102": Message(
        "A few rows dominate the acceptance decision",
        "Some rows, such as those of a rare class, hold most of the information. Uniform batches "
        "usually miss them.",
        "Leave out `row_sampling='uniform'` and `batch_size`, or use the batch size in the "
        "warning.",
    ),
    "PMB103": Message(
        "The Taylor expansion about the mode fits the posterior poorly",
        "The posterior is far from normal, for example because few rows inform a parameter. "
        "Decisions read most rows.",
        "Check R-hat and the effective sample size. The warning names the variables and the "
        "cause; [Multilevel models](effects.md) shows which parameterizations help.",
    ),
    "PMB104": Message(
        "No control variate, since no mode was found",
        "The search for the posterior mode failed, for example because of separation with a flat "
        "prior, or of effects that are multiplied. Chains of five variables and more then go by "
        "NUTS on all rows, if these are not too many.",
        "Check R-hat and the effective sample size. If chains are slow, use a proper prior, or "
        "start the search elsewhere: `reference=pmb.find_reference(start=...)`.",
    ),
    "PMB105": Message(
        "No control variate, since rows depend on discrete variables",
        "A Taylor expansion is valid for one value of a discrete variable only.",
        "Marginalize the discrete variables if you can. `control_variate=0` silences the warning.",
    ),
    "PMB106": Message(
        "The posterior seems to have several modes",
        "The search found another mode, far from the reference point. Chains explore one of them.",
        "Make the model identified, for example by a constraint on a sign. Or start chains "
        "elsewhere with `find_reference(start=...)`.",
    ),
    "PMB107": Message(
        "The posterior has several modes, and chains jump between them",
        "Mixtures and factor models have modes that differ by labels or signs.",
        "If R-hat is too high, make one mode improbable by a prior or a constraint.",
    ),
    "PMB108": Message(
        "Temperatures of steps differ",
        "`MinibatchMH(temperature=...)` shares the model with a step that samples at another "
        "temperature, so no posterior has both as its conditionals.",
        "Let one step update all variables, or give all steps the same temperature.",
    ),
    "PMB109": Message(
        "FlyMC makes passes over all rows, since other steps update variables",
        "The bounds of all rows are summed again whenever one of these variables has changed.",
        "Let `FlyMC` update these variables too, or use `MinibatchMH`.",
    ),
    "PMB110": Message(
        "The posterior is much wider than the bounds of its rows",
        "An outcome is rare, or nearly certain, in many rows. FlyMC moves by the width of the "
        "bounds.",
        "Look at the effective sample size, or use `MinibatchMH`.",
    ),
    "PMB111": Message(
        "The default step size is much shorter than for a normal posterior",
        "Curvature or gradient noise varies strongly around the mode.",
        "Check R-hat and `pmb.ksd`, or use `MinibatchMH`.",
    ),
    "PMB112": Message(
        "The step size of SGLD is too long",
        "With this step size the draws spread too far, or without bound.",
        "Leave `step_size` out for the default, or make it smaller.",
    ),
    "PMB201": Message(
        "The run was interrupted or stopped",
        "You interrupted it, or memory became short.",
        "The result has the draws so far. `pmb.resume` continues a run that was given `store=`.",
    ),
    "PMB202": Message(
        "Decisions read far more rows than expected",
        "The chain is far from the posterior mode, where the Taylor approximation is poor.",
        "Look at R-hat and the effective sample size, and increase `tune`.",
    ),
    "PMB203": Message(
        "No proposal of many draws was accepted",
        "Proposals do not fit the posterior where the chain is, for example near a hard "
        "constraint, or if kinks of the prior couple many parameters.",
        "Do not use these draws. Raise `tune`, so that the chain can continue with NUTS on all "
        "rows (`fallback='nuts'`). If kinks are the cause, make the prior smooth.",
    ),
    "PMB204": Message(
        "A level has moved to a value that its own rows contradict",
        "A batch missed the rows that inform this level.",
        "Draws of it are wrong. Please report the model, and set a larger `batch_size` meanwhile.",
    ),
    "PMB205": Message(
        "A running mean left out draws",
        "The function of `pmb.RunningMean` is not finite at these draws.",
        "Look at `n_left_out`, and at the function.",
    ),
    "PMB206": Message(
        "Multilevel estimates have not converged",
        "The budget ended before the error met its target, or an event was too rare to be seen.",
        "Look at the `levels` of the result, and allow more time.",
    ),
    "PMB301": Message(
        "A decision needs more rows than are in memory",
        "Rows stay on a cluster or in files, and only some of them are in memory. Far from the "
        "mode a decision may need more of them.",
        "Set `rows_in_memory` to more bytes, or to `np.inf`, which copies all rows to this "
        "machine.",
    ),
    "PMB302": Message(
        "A row violates the bound on its third derivative",
        "The function given as `Exact(third=...)` is below the true derivative somewhere.",
        "Correct it, or use `CorrectedBarker()`.",
    ),
    "PMB303": Message(
        "A row is impossible at a point of the chain",
        "The support of the likelihood depends on a parameter, and batches can miss its end.",
        "Raise `tune`: with 150 tuning draws left, chains continue with NUTS on all rows. This "
        'requires `fallback="nuts"` and the defaults of `acceptance`, `proposal` and '
        "`batch_size`.",
    ),
    "PMB304": Message(
        "A move disagrees with the model's own log-density",
        "The sampler used a property that your model does not have, and "
        "[noticed](accuracy.md#what-every-run-verifies).",
        "Do not use the draws. Please report the model. Another `acceptance` or `proposal` may "
        "work.",
    ),
    "PMB305": Message(
        "A bound lies above the likelihood of a row",
        "A `Bound` of your own, or that of a family, does not hold for this row.",
        "Correct the bound, or use `MinibatchMH`.",
    ),
    "PMB306": Message(
        "A chain of gradient steps diverges",
        "Its steps are too long for the posterior.",
        "Make `step_size` smaller, or leave it out for the default.",
    ),
    "PMB307": Message(
        "SGFS moves out of the support",
        "The posterior is cut off by a hard constraint or the end of a prior.",
        "Use a prior without an edge, or `MinibatchMH`.",
    ),
    "PMB308": Message(
        "The Fisher information is singular, or there was no tuning",
        "`SGFS` learns the Fisher information while it tunes, from rows that must identify all "
        "parameters.",
        "Pass a larger `tune`, or use `control_variate=2`.",
    ),
    "PMB309": Message(
        "A step with momentum had no tuning",
        "`SGHMC` and `SGNHT` find their start and their scale while they tune.",
        "Pass `tune=` to `pm.sample`.",
    ),
    "PMB310": Message(
        "The run was interrupted before the first draw",
        "No chain had made a draw after tuning.",
        "There is no result. `pmb.resume` continues a run that was given `store=`.",
    ),
    "PMB401": Message(
        "The partitions have other values than the run read",
        "Checksums of the partitions differ, perhaps by rounding.",
        "Pass the data that were sampled.",
    ),
    "PMB402": Message(
        "The model has changed since the run",
        "The likelihood or the prior of the model that you pass is not that of the result.",
        "Pass the model that was sampled, or sample again.",
    ),
    "PMB403": Message(
        "Compared runs are of different models",
        "`pmb.compare` reads from the results that data or parts of the model differ.",
        "Compare runs of the same model and data.",
    ),
    "PMB404": Message(
        "Some rows have a large Pareto k",
        "Leaving one of these rows out changes the posterior too much for importance sampling.",
        "Use more draws, or fit again without these rows.",
    ),
    "PMB405": Message(
        "The subsampling error of LOO is large",
        "Too few rows were sampled, compared with the standard error of `elpd_loo`.",
        "Pass more `rows`.",
    ),
    "PMB406": Message(
        "The standard error of a Stein discrepancy means nothing",
        "Chains are stuck, so draws do not vary.",
        "Look at the chains first.",
    ),
    "PMB407": Message(
        "A result of Bambi is of other rows than its model",
        "The outcomes of the model that you pass are not those of the result. Functions of a whole "
        "column, such as `scale(x)`, use the rows of the model.",
        "Pass the model that was fitted, and the rows to predict as `new_rows`.",
    ),
    "PMB501": Message(
        "Rows are copied to this machine",
        "The step reads any row at any time, and the data are in partitions.",
        "Make sure that there is space, or choose the settings in the message, which make no copy.",
    ),
    "PMB502": Message(
        "The compile cache cannot be read or written",
        "The disk is full, or the folder cannot be written.",
        "Look at the free space and the permissions of the folder. Nothing is lost but time.",
    ),
    "PMB503": Message(
        "The run is not stored",
        "`store=` is for minibatches, and `pmb.sample` has chosen NUTS.",
        "Leave `store` out, or pass `fallback='error'`.",
    ),
    "PMB504": Message(
        "Draws of all variables do not fit into memory",
        "Deterministics with one value per row are left out of the result.",
        "Compute them afterwards from some of the draws with `pm.compute_deterministics`, or set "
        "`var_names`.",
    ),
    "PMB505": Message(
        "Memory may become short before the last draw",
        "Draws of the variables that are kept take more memory than is free.",
        "Take fewer draws or chains, or name in `var_names` what to keep.",
    ),
    "PMB506": Message(
        "groups_as_codes does nothing",
        "It replaces code of the package formulae, and does not know this version of it.",
        "Install a version that the message names, or do without: the result is the same, but "
        "needs more memory.",
    ),
    "PMB601": Message(
        "NotTallError: the model is not supported",
        "Its rows are not independent given the parameters, or cannot be told apart.",
        "The message says why. [Rewrite a refused model](rewrite.md) shows each case in code.",
    ),
    "PMB602": Message(
        "NoReferenceError: no posterior mode",
        "The search for the mode failed; the message says how.",
        "Use proper priors, or start the search elsewhere with `find_reference(start=...)`.",
    ),
    "PMB603": Message(
        "NoBoundError: no lower bound of the likelihood is known",
        "`FlyMC` needs a bound of each row.",
        "Pass a `Bound` of your own, or use `MinibatchMH`.",
    ),
    "PMB604": Message(
        "BoundError: a bound is wrong",
        "It lies above the likelihood, or its sum over rows does not collapse.",
        "The message says where: correct the bound.",
    ),
    "PMB605": Message(
        "NoPredictorError: rows depend on more than one linear predictor",
        "`acceptance='exact'` needs rows that depend on the parameters through one affine "
        "predictor.",
        "Leave `acceptance` out.",
    ),
    "PMB606": Message(
        "NoPredictionError: an observed variable cannot be predicted",
        "It cannot be drawn, or not batch by batch.",
        "The message says why, and what to use instead.",
    ),
    "PMB607": Message(
        "PartError: a part of the rows cannot be read",
        "A partition or a file is missing or broken, or a worker of the cluster failed.",
        "See [A billion rows](billion_rows.md#if-a-partition-fails).",
    ),
    "PMB608": Message(
        "NotEnoughMemoryError: the work would not fit into memory",
        "It is raised before the work begins. The limit is the smallest of what the machine, its "
        "container, `ulimit -v` and the environment variable `PYMC_MINIBATCH_MEMORY` leave.",
        "Do what the message says, or raise the limit.",
    ),
    "PMB609": Message(
        "Levels of a group that the model has not seen",
        "The new data of `pmb.predict` have levels that were not in the data of the fit.",
        "Pass `sample_new_groups=True` to draw their effects from the prior, or leave these rows "
        "out.",
    ),
    "PMB610": Message(
        "A chain, or transitions of an approximation, failed in a process",
        "The process ended, or raised an error that cannot be passed on.",
        "Run with `cores=1` to see the error itself.",
    ),
}
"""Messages by id."""


def with_id(identifier: str, message: str) -> str:
    """Put the id at the end of a message."""
    assert identifier in MESSAGES, identifier
    return f"{message} [{identifier}]"


class IdentifiedError:
    """An error of this package, with its id on a line below the message; beside an exception.

    The id is a note and not part of the message, since reasons are quoted in other messages.
    """

    # No exception itself: beside one, MemoryError would not be the base whose __new__ is called.
    id: ClassVar[str]
    add_note: Callable[[str], None]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"[{self.id}]")
