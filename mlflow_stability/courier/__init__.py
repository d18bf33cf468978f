"""Deliver a journal directory into an MLflow run, in a process of its own."""
