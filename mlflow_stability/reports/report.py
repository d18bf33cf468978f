"""What a report is made from: the conclusions about everything that was asked for, and what could not be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity

_STORED = frozenset({"recorded", "mlflow"})
_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")


def is_from_store(diagnosis: Diagnosis) -> bool:
    """Whether it is about a run of a tracking store; else it is about a file, or a folder that a run was copied to."""
    return diagnosis.format in _STORED and _RUN_ID.fullmatch(diagnosis.source) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """One input of which nothing could be read."""

    source: str
    """The run id or path, as it was given."""
    message: str
    """Why, and what to do, in one sentence."""
    is_path: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one call of `diagnose` has to say."""

    diagnoses: tuple[Diagnosis, ...]
    """In the order in which they were asked for."""
    failures: tuple[Failure, ...] = ()

    def issues(self) -> Iterator[tuple[Diagnosis, Finding]]:
        """Every episode of every run."""
        for diagnosis in self.diagnoses:
            for episode in diagnosis.findings:
                yield diagnosis, episode

    def count(self, severity: Severity) -> int:
        """How many episodes are just this bad."""
        return sum(episode.severity is severity for _, episode in self.issues())

    @property
    def worst(self) -> Severity:
        """The severity of the worst episode; INFO where there is none."""
        return max((each.severity for each in self.diagnoses), default=Severity.INFO)

    @property
    def files(self) -> int:
        """How many files were read, of which one may hold several runs."""
        return len({each.source for each in self.diagnoses if not is_from_store(each)})

    @property
    def runs(self) -> int:
        """How many runs of a tracking store were read."""
        return sum(is_from_store(each) for each in self.diagnoses)

    @property
    def asked_for_files(self) -> bool:
        """Whether any of the inputs was a path."""
        return self.files > 0 or any(failure.is_path for failure in self.failures)

    @property
    def asked_for_runs(self) -> bool:
        """Whether any of the inputs was a run id."""
        return self.runs > 0 or any(not failure.is_path for failure in self.failures)
