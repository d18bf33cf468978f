"""How tables, documents, pickles and databases hold their values."""

from __future__ import annotations

from mlflow_stability.importers.files.mlflow_files import meta_of, name_in_tags

__all__ = ["meta_of", "name_in_tags"]
