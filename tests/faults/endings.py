"""Starts the tiny training as a process of its own and finds out what of it has arrived."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run
from waiting import wait_until

import mlflow_stability

ARRIVES_WITHIN = 10.0
# What Python itself needs to start is no part of what is promised, and these machines have two slow cores.
STARTS_WITHIN = 120.0


class Training:
    """A training in a process of its own."""

    def __init__(
        self,
        directory: Path,
        uri: str,
        *arguments: object,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        script: str = "train.py",
    ) -> None:
        self.directory, self.uri = directory, uri
        self.journal = directory / ".mlflow-stability"
        self.steps = 0
        self.process = subprocess.Popen(
            [*before, sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
            cwd=directory,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def reach(self, step: int) -> None:
        """Wait until this many steps are complete."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.steps = int(line)
            if self.steps >= step:
                return
        raise AssertionError(f"ended after {self.steps} steps: {self.process.communicate()[1]}")

    def end(self) -> str:
        """Wait for its end, and return what it wrote to stderr."""
        text, errors = self.process.communicate(timeout=STARTS_WITHIN)
        self.steps = max([self.steps, *map(int, text.split())])
        return errors

    def delivered(self, within: float = ARRIVES_WITHIN) -> Run:
        """The run, once everything has arrived and the journal is gone."""
        wait_until(lambda: not self.journal.exists(), within, self._left)
        return self.run()

    def run(self) -> Run:
        """Its run: there must be one and only one."""
        runs = MlflowClient(tracking_uri=self.uri).search_runs(["0"])
        assert len(runs) == 1
        return runs[0]

    def record(self) -> pd.DataFrame:
        """Its full record."""
        return mlflow_stability.load_run(self.run().info.run_id, tracking_uri=self.uri)

    def must_have_arrived_once(self) -> None:
        """Every step that was complete is in the record, once, and its last loss in the metric table, once."""
        assert self.steps > 0
        assert self.record()["step"].tolist() == list(range(1, self.steps + 1))
        client = MlflowClient(tracking_uri=self.uri)
        history = client.get_metric_history(self.run().info.run_id, "stability/loss")
        steps = [point.step for point in history]
        assert sorted(set(steps)) == sorted(steps)
        assert max(steps) == self.steps

    def _left(self) -> str:
        logs = [path.read_text() for path in self.journal.rglob("courier.log")]
        return f"left behind: {sorted(map(str, self.journal.rglob('*')))}; the courier said: {logs}"
