"""How tables, documents, pickles and databases hold their values."""

from __future__ import annotations

from mlflow_stability.importers.files.mlflow_files import meta_of

__all__ = ["meta_of"]
