"""The courier process: `python -m mlflow_stability.courier SESSION_FOLDER`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

if __name__ == "__main__":
    # MLflow and what it loads are some hundred thousand objects that all stay; to look through them for garbage again
    # and again while they are made is a sixth of what the start of this process costs.
    gc.disable()

    from mlflow_stability.courier.deliver import main

    sys.exit(main(Path(sys.argv[1]).absolute()))
