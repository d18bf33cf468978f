"""Wires, beside training: everything in a journal directory becomes part of an MLflow run."""
