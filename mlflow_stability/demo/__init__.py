"""Shows: trainings such as users have, for `mlflow-stability demo` and `mlflow-stability simulate` to run."""
