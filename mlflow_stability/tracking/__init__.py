"""Remembers: what was measured, to and from an MLflow run."""
