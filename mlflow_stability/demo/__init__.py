"""Trainings that `mlflow-stability demo` and `mlflow-stability simulate` run."""
