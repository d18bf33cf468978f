"""Deliver a journal into an MLflow run, from a process of its own."""
