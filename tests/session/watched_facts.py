"""A training whose facts are recorded, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler, TrainingPace
from mlflow_stability.probes.step.step_meter import StepMeter
from mlflow_stability.session.facts_probe import FactsProbe
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Fact, Opening


class Watched:
    """A training with a recording and no other probe."""

    def __init__(self, folder: Path) -> None:
        guard = PartGuard(strict=True, on_failure=lambda part, error: None)
        opening = Opening("here", os.getpid(), psutil.Process().create_time(), "here", time.time())
        self.said: list[str] = []
        self.recording = Recording(folder / "journal", opening, (), guard, lambda event: None, self.said.append)
        probe = FactsProbe(self.recording)
        pace = TrainingPace(guard, lambda: 0.0, None, [probe])
        probe.flops = pace.throughput.flops
        scheduler = ProbeScheduler(guard, Probes(by_step=[probe]), pace, 1)
        self._meter = StepMeter(
            guard,
            lambda optimizer: self.recording,
            lambda recording, reading: recording.record(reading),
            lambda recording: scheduler,
        )
        self._watch = TorchWatch(guard, self._meter)
        self._watch.install()

    def remove(self) -> None:
        self._watch.remove()
        self._meter.close()

    def facts(self) -> dict[str, str]:
        records = [item for item in read_journal(self.recording.folder / JOURNAL) if isinstance(item, Fact)]
        assert len({record.key for record in records}) == len(records)
        return {record.key: record.value for record in records}

    def events(self) -> list[Finding]:
        return [finding for finding in read_journal(self.recording.folder / JOURNAL) if isinstance(finding, Finding)]
