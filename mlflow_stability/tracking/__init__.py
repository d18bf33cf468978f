"""Write to MLflow runs and read them back; the only package that imports MLflow."""
