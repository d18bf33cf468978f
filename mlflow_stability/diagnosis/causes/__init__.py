"""Why a finding came about."""

from __future__ import annotations

from mlflow_stability.diagnosis.causes.catalog import CauseDocumentation, cause_phrase

# `causes` of the catalog has the name of a module here: both are imported from where they are.
__all__ = ["CauseDocumentation", "cause_phrase"]
