"""Which parameters are associated with instability.

`instability_tree` is imported by itself, where a tree is wanted: it loads scikit-learn.
"""

from __future__ import annotations

from mlflow_stability.diagnosis.associations.association_tests import corrected, p_value_of
from mlflow_stability.diagnosis.associations.associations import AssociationResult, associations_of
from mlflow_stability.diagnosis.associations.confounding import rank_correlation

__all__ = ["AssociationResult", "associations_of", "corrected", "p_value_of", "rank_correlation"]
