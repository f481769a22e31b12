"""GPBoost: point estimates of mixed models."""

import numpy as np

from benchmarks.tall_posteriors.jobs import CannotError, Job, Run
from benchmarks.tall_posteriors.linear import Linear

TITLE = "GPBoost, point estimates"
SETTINGS = (
    "`GPModel(...).fit(y, X)` with its defaults: maximum of the marginal likelihood, without the "
    "priors; standard errors of coefficients."
)
EXACT = None
PACKAGES = ("gpboost",)
FAMILIES = {
    "bernoulli": "bernoulli_logit",
    "binomial": "binomial_logit",
    "normal": "gaussian",
    "student_t": "t",
}


def run(job: Job) -> Run:
    """Maximise the marginal likelihood."""
    import gpboost

    linear = job.linear()
    if not linear.groups:
        raise CannotError("cannot express: a model without effects of groups")
    names = list(linear.groups)
    options = {}
    if linear.slopes:
        options["group_rand_coef_data"] = np.column_stack(list(linear.slopes.values()))
        options["ind_effect_group_rand_coef"] = [1 + names.index(name) for name in linear.slopes]
    y = linear.y if linear.trials is None else linear.y / linear.trials
    fitted = gpboost.GPModel(
        group_data=np.column_stack(list(linear.groups.values())),
        likelihood=FAMILIES[linear.family],
        weights=linear.trials,
        **options,
    )
    job.clock.mark("model")
    fitted.fit(y=y.astype(float), X=np.column_stack([np.ones(len(y)), linear.X]))
    return Run(moments=_moments(linear, fitted))


def _moments(linear: Linear, fitted: object) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return estimates as means; standard errors are known of coefficients alone."""
    estimate, error = fitted.get_coef(std_err=True, format_pandas=False)  # type: ignore[attr-defined]
    moments = {"intercept": (estimate[:1], error[:1])}
    if linear.X.shape[1]:
        moments[linear.coefficients] = (estimate[1:], error[1:])
    variances = np.ravel(fitted.get_cov_pars(format_pandas=False))  # type: ignore[attr-defined]
    deviations = np.sqrt(variances)
    unknown = np.full(1, np.nan)
    if linear.family == "normal":
        moments["sigma"], deviations = (deviations[:1], unknown), deviations[1:]
    if linear.deviations is not None:
        moments[linear.deviations] = (deviations, np.full(len(deviations), np.nan))
    else:
        for name, value in zip(linear.groups, deviations, strict=True):
            moments[f"sd_{name}"] = (np.array([value]), unknown)
    return moments
