"""`python -m mlflow_stability` is `mlflow-stability`."""

from __future__ import annotations

from mlflow_stability.cli.main import main

if __name__ == "__main__":
    main()
