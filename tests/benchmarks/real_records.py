"""Recall, precision and false alarms of the diagnosis on real training records with labels.

A folder holds the records in `data/` and `index.csv` with the columns `file`, `source_repo` (the project), `label`
(healthy, nan, inf, divergence, spike, plateau, overfit; others are read and not scored), `label_steps` ("8,18;145-152",
empty where there is no place) and, if there are any, `set`, `loss` and `val_loss` (the names of the main curves).

Every record is diagnosed once; findings are kept until the rules or the record change. Halves are drawn by project,
many times: the gap between them is what chance alone makes of such records. Rules were fitted to the records they were
developed on if the gap between those and the others is wider. Misses are listed for the former alone.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks.table import Cell, Table, share, table_of

from mlflow_stability.analysis.cards import fingerprint_of_rules
from mlflow_stability.analysis.diagnose import diagnose_all
from mlflow_stability.reports.report import Failure
from mlflow_stability.vocabulary.result import Diagnosis, Severity

NAMED_BY = {
    "nan": ("nan_detected", "inf_detected"),
    "inf": ("nan_detected", "inf_detected"),
    "divergence": ("divergence",),
    "spike": ("loss_spike", "divergence"),
    "plateau": ("plateau",),
    "overfit": ("overfitting",),
}
"""The kinds of finding that say what a label says."""
WITH_A_PLACE = ("nan", "inf", "divergence", "spike")
HEALTHY = "healthy"
UNSURE = ("ambiguous", "other")


@dataclass(frozen=True, slots=True)
class FoundAt:
    """What is kept of an episode that is WARNING or CRITICAL."""

    kind: str
    critical: bool
    step: int


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled record and what was found in it."""

    file: str
    project: str
    label: str
    places: tuple[tuple[float, float], ...]
    read: bool
    findings: tuple[FoundAt, ...]
    judged: tuple[str, ...]
    """The losses that were judged, the main one first."""
    validations: tuple[str, ...]
    """And the validation losses."""
    main: str
    """The loss that should be the main one, if the index says so."""
    validation: str
    """And its validation loss."""

    @property
    def ill(self) -> bool:
        return self.label in NAMED_BY

    @property
    def named(self) -> bool:
        """Whether a finding says what the label says, near its place."""
        wanted = NAMED_BY.get(self.label, ())
        return any(finding.kind in wanted and self._near(finding.step) for finding in self.findings)

    @property
    def right(self) -> bool:
        return self.named if self.ill else not self.findings

    def _near(self, step: int) -> bool:
        if not self.places:
            return True
        last = max(high for _, high in self.places)
        slack = max(2.0, 0.02 * last, 10.0 if last > 200 else 0.0)
        return any(low - slack <= step <= high + slack for low, high in self.places)


def places_in(text: str) -> tuple[tuple[float, float], ...]:
    """The step ranges of a label; a number in brackets is a remark, and ordinals name no step."""
    if "ordinal" in text:
        return ()
    numbers = [
        [float(match) for match in re.findall(r"\d+", part)] for part in re.split("[;,]", text.partition("(")[0])
    ]
    return tuple((number[0], number[-1]) for number in numbers if number)


class Findings:
    """What was found in each record, diagnosed only once for each state of the rules."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data, self._kept = data, kept
        self._known: dict[str, dict[str, object]] = {}
        if kept.is_file():
            document = json.loads(kept.read_text())
            self._known = document["records"] if document["rules"] == fingerprint_of_rules() else {}

    def of(self, file: str) -> dict[str, object]:
        path = self._data / file
        stamp = _stamp(path)
        values = self._known.get(file)
        if values is None or values["stamp"] != stamp:
            values = self._known[file] = {"stamp": stamp, **_diagnosed(path)}
        return values

    def keep(self) -> None:
        self._kept.write_text(json.dumps({"rules": fingerprint_of_rules(), "records": self._known}))


def _stamp(path: Path) -> list[int]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [sum(file.stat().st_size for file in files), max((file.stat().st_mtime_ns for file in files), default=0)]


def _diagnosed(path: Path) -> dict[str, object]:
    diagnosis: list[Diagnosis | Failure] = list(diagnose_all([path]))
    read = [item for item in diagnosis if isinstance(item, Diagnosis)]
    serious = [finding for item in read for finding in item.findings if finding.severity >= Severity.WARNING]
    findings = [asdict(FoundAt(first.kind, first.severity >= Severity.CRITICAL, int(first.start))) for first in serious]
    return {
        "read": len(read) == len(diagnosis),
        "findings": findings,
        "judged": [name for item in read for name in item.judged.losses],
        "validations": [name for item in read for name in item.judged.validations],
    }


def records_of(rows: Sequence[dict[str, str]], findings: Findings) -> list[Record]:
    result = []
    for row in rows:
        values = findings.of(row["file"])
        placed = row["label"] in WITH_A_PLACE
        result.append(
            Record(
                row["file"],
                row["source_repo"],
                row["label"],
                places_in(row["label_steps"]) if placed else (),
                bool(values["read"]),
                tuple(FoundAt(**finding) for finding in values["findings"]),  # type: ignore[attr-defined]
                tuple(values["judged"]),  # type: ignore[arg-type]
                tuple(values["validations"]),  # type: ignore[arg-type]
                row.get("loss") or "",
                row.get("val_loss") or "",
            )
        )
    findings.keep()
    return result


Measure = Callable[[Sequence[Record]], tuple[int, int]]
"""How many of how many."""


def recall_of(*labels: str) -> Measure:
    def measure(records: Sequence[Record]) -> tuple[int, int]:
        asked = [record for record in records if record.label in labels]
        return sum(item.named for item in asked), len(asked)

    return measure


def precision(records: Sequence[Record]) -> tuple[int, int]:
    """Of the kinds that were found in a record, those that its label names; a spike may be part of any trouble."""
    flagged = [(record, kind) for record in records for kind in {finding.kind for finding in record.findings}]
    flagged = [(item, kind) for item, kind in flagged if item.label not in UNSURE]
    return sum(kind in NAMED_BY.get(item.label, ()) for item, kind in flagged), len(flagged)


def quiet(critical_only: bool) -> Measure:
    def measure(records: Sequence[Record]) -> tuple[int, int]:
        asked = [record for record in records if record.label == HEALTHY]
        bad = [item for item in asked if any(finding.critical or not critical_only for finding in item.findings)]
        return len(asked) - len(bad), len(asked)

    return measure


def main_curve(records: Sequence[Record]) -> tuple[int, int]:
    asked = [record for record in records if record.main]
    return sum(item.judged[:1] == (item.main,) for item in asked), len(asked)


def validation_curve(records: Sequence[Record]) -> tuple[int, int]:
    asked = [record for record in records if record.validation]
    return sum(item.validations[:1] == (item.validation,) for item in asked), len(asked)


def read_at_all(records: Sequence[Record]) -> tuple[int, int]:
    return sum(record.read for record in records), len(records)


MEASURES: dict[str, Measure] = {
    "files read": read_at_all,
    "main curve": main_curve,
    "its validation": validation_curve,
    "recall: nan, inf": recall_of("nan", "inf"),
    **{f"recall: {label}": recall_of(label) for label in ("divergence", "spike", "plateau", "overfit")},
    "recall: all ill": recall_of(*NAMED_BY),
    "precision": precision,
    "healthy without CRITICAL": quiet(critical_only=True),
    "healthy without WARNING": quiet(critical_only=False),
}


def gaps(records: Sequence[Record], splits: int, seed: int = 0) -> dict[str, list[float]]:
    """Of each measure the difference between two halves, for many splits by project."""
    rng = np.random.default_rng(seed)
    projects = sorted({record.project for record in records})
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(splits):
        one_half = set(rng.permutation(projects)[: len(projects) // 2].tolist())
        halves = [[e for e in records if e.project in one_half], [e for e in records if e.project not in one_half]]
        for name, measure in MEASURES.items():
            (a, of_a), (b, of_b) = map(measure, halves)
            if of_a and of_b:
                values[name].append(a / of_a - b / of_b)
    return values


def measures_of(parts: dict[str, Sequence[Record]], by_chance: dict[str, list[float]]) -> Iterator[dict[str, Cell]]:
    for name, measure in MEASURES.items():
        cells = {f"{part} ({len(records)})": measure(records) for part, records in parts.items()}
        if any(whole for _, whole in cells.values()):
            gaps_by_chance = np.abs(by_chance[name])
            usual = ""
            if len(gaps_by_chance):
                usual = f"mean {gaps_by_chance.mean():.1%}, 95 % below {np.quantile(gaps_by_chance, 0.95):.1%}"
            columns = {part: share(*cell) for part, cell in cells.items()}
            yield {"measure": name, **columns, "gap of random halves": usual}


def pooled_gap(worked_on: Sequence[Record], others: Sequence[Record]) -> str:
    """Return how far apart both are over all kinds, of which single ones have few records."""
    recall = recall_of(*NAMED_BY)
    (right, whole), (right_others, whole_others) = recall(worked_on), recall(others)
    if not whole or not whole_others:
        return "Recall of all kinds together: no records"
    gap = 100 * (right_others / whole_others - right / whole)
    return f"Recall of all kinds together: {gap:+.1f} points on records the rules were not developed on"


def flagged(records: Sequence[Record]) -> Table:
    """Share of the healthy records that have a finding, by kind."""
    healthy = [record for record in records if record.label == HEALTHY]
    kinds = Counter(kind for record in healthy for kind in {finding.kind for finding in record.findings})
    rows = [{"kind": kind, "flagged": share(count, len(healthy))} for kind, count in kinds.most_common()]
    return table_of("Healthy records flagged, by kind", rows, [] if rows else [f"none of {len(healthy)}"])


def missed(records: Sequence[Record]) -> Iterator[dict[str, Cell]]:
    for record in records:
        if record.label not in UNSURE and not (record.right and record.read):
            kinds = sorted({(it.kind, "CRITICAL" if it.critical else "WARNING", it.step) for it in record.findings})
            yield {
                "label": record.label,
                "file": record.file,
                "places": str(list(record.places)),
                "findings": str(kinds[:6]) if record.read else "not read",
            }


def rows_of(index: Path, sets: Collection[str]) -> list[dict[str, str]]:
    with index.open(newline="") as file:
        return [row for row in csv.DictReader(file) if not sets or row.get("set", "") in sets]


def real_records(
    folder: Path,
    index: Path | None = None,
    sets: tuple[str, ...] = (),
    worked_on: Path | None = None,
    misses: bool = False,
    splits: int = 300,
    kept: Path | None = None,
) -> Iterator[Table]:
    """Diagnose the records of a folder (`--set folder=FOLDER`) and compare with their labels.

    `sets` takes these sets alone; `index` the records that another index names; `worked_on` is an index of the records
    that the rules were developed on, which `misses` lists where they are wrong; `kept` is the file of the findings.
    """
    data = (folder / "data").resolve()
    name = hashlib.sha256(f"{data}".encode()).hexdigest()[:16]
    kept = kept or Path(tempfile.gettempdir()) / f"real_records_{name}_{fingerprint_of_rules()[:16]}.json"
    records = records_of(rows_of(index or folder / "index.csv", sets), Findings(data, kept))
    parts: dict[str, Sequence[Record]] = {"all": records}
    notes = [f"{len(records)} records of {len({record.project for record in records})} projects"]
    if worked_on:
        own = {row["file"] for row in rows_of(worked_on, ())}
        parts["worked on"] = [record for record in records if record.file in own]
        parts["others"] = [record for record in records if record.file not in own]
        notes.append(pooled_gap(parts["worked on"], parts["others"]))
    yield table_of("", measures_of(parts, gaps(records, splits)), notes)
    yield flagged(records)
    if misses:
        yield table_of("Wrong, of the records worked on", missed(parts.get("worked on", ())))
