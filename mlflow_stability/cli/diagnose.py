"""`python -m mlflow_stability.cli.diagnose` is `mlflow-stability diagnose`."""

from __future__ import annotations

import sys

from mlflow_stability.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["diagnose", *sys.argv[1:]]))
