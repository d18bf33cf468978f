"""What a report is made from, and what an output format is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlflow_stability.vocabulary.result import Comparison, Diagnosis, Finding, Severity

_STORED = frozenset({"recorded", "mlflow"})
_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")


def is_from_store(diagnosis: Diagnosis) -> bool:
    """Whether it is about a run of a tracking store; else it is about a file, or a folder that a run was copied to."""
    return diagnosis.format in _STORED and _RUN_ID.fullmatch(diagnosis.source) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    source: str  # the run id or path, as it was given
    message: str  # why, and what to do, in one sentence
    is_path: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    diagnoses: tuple[Diagnosis, ...]  # in the order of the question
    failures: tuple[Failure, ...] = ()

    def issues(self) -> Iterator[tuple[Diagnosis, Finding]]:
        for diagnosis in self.diagnoses:
            for finding in diagnosis.findings:
                yield diagnosis, finding

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for _, finding in self.issues())

    @property
    def worst(self) -> Severity:
        return max((diagnosis.severity for diagnosis in self.diagnoses), default=Severity.INFO)

    @property
    def files(self) -> int:
        """Number of files read; one file may hold several runs."""
        return len({diagnosis.source for diagnosis in self.diagnoses if not is_from_store(diagnosis)})

    @property
    def runs(self) -> int:
        """Number of runs read from a tracking store."""
        return sum(map(is_from_store, self.diagnoses))

    @property
    def asked_for_files(self) -> bool:
        return self.files > 0 or any(failure.is_path for failure in self.failures)

    @property
    def asked_for_runs(self) -> bool:
        return self.runs > 0 or any(not failure.is_path for failure in self.failures)


@dataclass(frozen=True, slots=True)
class ReportFormat:
    name: str  # as people type it
    run: Callable[[Report], str]  # writes what `diagnose` found in one or more runs
    comparison: Callable[[Comparison], str]  # writes what `compare` found in many
    endings: tuple[str, ...] = ()  # file name endings that select it
    order: int = 1000  # its position in help texts
