"""Writes to MLflow runs and reads them back."""
