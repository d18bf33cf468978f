"""Delivers a journal directory into an MLflow run, from a process of its own."""
