"""MLflow inside the training process."""
