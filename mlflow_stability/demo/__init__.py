"""Shows: a training script such as a user has, for `mlflow-stability demo` to run."""
