"""Failures that `mlflow-stability simulate` trains beside their healthy twins."""
