"""Take the README's picture of MLflow: the page of the demo's run with rollback.

python tests/manual/draw_mlflow_page.py      makes mlflow_stability/manual/mlflow_run.png, in about two minutes
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

import mlflow
from architecture.repository import PACKAGE
from browser.chromium import Chromium, find_chromium

WIDTH, HEIGHT = 1280, 700
"""Size of the picture in pixels."""
SECONDS_TO_DRAW = 5.0
"""The page loads its pictures after its text."""


def take_picture(folder: Path, url: str, file: Path) -> None:
    client = mlflow.MlflowClient(url)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    run = max(runs, key=lambda run: int(run.data.tags.get("stability.rollbacks", 0)))
    program = find_chromium()
    assert program, "no Chromium here: apt-get install chromium"
    address = f"{url}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"
    with Chromium(program, folder / "profile") as browser:
        browser.visit(address, WIDTH, "Training stability:")
        time.sleep(SECONDS_TO_DRAW)
        for label in ("Close", "Expand description"):
            browser.ask(f"document.querySelector('[aria-label=\"{label}\"]')?.click()")
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False
        )
        time.sleep(SECONDS_TO_DRAW)
        browser.picture(file)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    store = f"sqlite:///{folder}/mlflow.db"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store}
    subprocess.run(["mlflow-stability", "demo"], cwd=folder, env=environment, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = ["mlflow", "server", "--backend-store-uri", store, "--port", str(port), "--workers", "1"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=2).close()
                    break
                except OSError:
                    time.sleep(0.5)
            take_picture(folder, url, PACKAGE / "manual" / "mlflow_run.png")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
