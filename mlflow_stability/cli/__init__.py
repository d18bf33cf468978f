"""The command `mlflow-stability`."""
