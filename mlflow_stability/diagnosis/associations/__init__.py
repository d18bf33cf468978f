"""Which parameters go with instability."""

from __future__ import annotations

from mlflow_stability.diagnosis.associations.association_tests import corrected, p_value_of
from mlflow_stability.diagnosis.associations.associations import Found, associations_of
from mlflow_stability.diagnosis.associations.confounding import rank_correlation
from mlflow_stability.diagnosis.associations.instability_tree import tree_of

__all__ = ["Found", "associations_of", "corrected", "p_value_of", "rank_correlation", "tree_of"]
