"""Many runs, summarised."""

from __future__ import annotations

from mlflow_stability.diagnosis.cohort.cohort import cohort_of
from mlflow_stability.diagnosis.cohort.seed_groups import same_but_the_seed
from mlflow_stability.diagnosis.cohort.separating_checks import separating_checks
from mlflow_stability.diagnosis.cohort.spike_rate import chance_of_more, spike_rate_of
from mlflow_stability.diagnosis.cohort.stability_order import in_order_of_stability

__all__ = [
    "chance_of_more",
    "cohort_of",
    "in_order_of_stability",
    "same_but_the_seed",
    "separating_checks",
    "spike_rate_of",
]
