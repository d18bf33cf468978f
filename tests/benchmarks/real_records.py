"""Recall, precision and false alarms of the diagnosis on real training records with labels.

python tests/benchmarks/real_records.py FOLDER                     every labelled record of a folder
python tests/benchmarks/real_records.py FOLDER --sets b,c          of these sets alone
python tests/benchmarks/real_records.py FOLDER --index MINE.csv    of the records that another index names
python tests/benchmarks/real_records.py FOLDER --worked-on MINE.csv --misses
                                                                   those worked on beside all others; what was missed

FOLDER holds the records in `data/` and `index.csv` with the columns `file`, `source_repo` (the project), `label`
(healthy, nan, inf, divergence, spike, plateau, overfit; others are read and not scored), `label_steps` ("8,18;145-152",
empty where there is no place) and, if there are any, `set`, `loss` and `val_loss` (the names of the main curves).

Every record is diagnosed once; what was found is kept until the rules or the record change. Halves are drawn by
project, many times: the gap between them is what chance alone makes of such records. Rules were fitted to what they
were worked on if the gap between that and the others is wider. Misses are named of the records worked on alone.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mlflow_stability.analysis.cards.card_cache import fingerprint_of_rules
from mlflow_stability.analysis.diagnose import diagnose_all
from mlflow_stability.reports.report import Failure
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.severity import Severity

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
        return any(each.kind in wanted and self._near(each.step) for each in self.findings)

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
    numbers = [[float(each) for each in re.findall(r"\d+", part)] for part in re.split("[;,]", text.partition("(")[0])]
    return tuple((each[0], each[-1]) for each in numbers if each)


class Findings:
    """What was found in each record, diagnosed only once for each state of the rules."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data, self._kept = data, kept
        self._known: dict[str, dict[str, object]] = {}
        if kept.is_file():
            found = json.loads(kept.read_text())
            self._known = found["records"] if found["rules"] == fingerprint_of_rules() else {}

    def of(self, file: str) -> dict[str, object]:
        path = self._data / file
        stamp = _stamp(path)
        known = self._known.get(file)
        if known is None or known["stamp"] != stamp:
            known = self._known[file] = {"stamp": stamp, **_diagnosed(path)}
        return known

    def keep(self) -> None:
        self._kept.write_text(json.dumps({"rules": fingerprint_of_rules(), "records": self._known}))


def _stamp(path: Path) -> list[int]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [sum(each.stat().st_size for each in files), max((each.stat().st_mtime_ns for each in files), default=0)]


def _diagnosed(path: Path) -> dict[str, object]:
    found: list[Diagnosis | Failure] = list(diagnose_all([path]))
    read = [each for each in found if isinstance(each, Diagnosis)]
    serious = [one for each in read for one in each.findings if one.severity >= Severity.WARNING]
    findings = [asdict(FoundAt(one.kind, one.severity >= Severity.CRITICAL, int(one.start))) for one in serious]
    return {
        "read": len(read) == len(found),
        "findings": findings,
        "judged": [name for each in read for name in each.judged.losses],
        "validations": [name for each in read for name in each.judged.validations],
    }


def records_of(rows: Sequence[dict[str, str]], findings: Findings) -> list[Record]:
    found = []
    for row in rows:
        known = findings.of(row["file"])
        placed = row["label"] in WITH_A_PLACE
        found.append(
            Record(
                row["file"],
                row["source_repo"],
                row["label"],
                places_in(row["label_steps"]) if placed else (),
                bool(known["read"]),
                tuple(FoundAt(**each) for each in known["findings"]),  # type: ignore[attr-defined]
                tuple(known["judged"]),  # type: ignore[arg-type]
                tuple(known["validations"]),  # type: ignore[arg-type]
                row.get("loss") or "",
                row.get("val_loss") or "",
            )
        )
    findings.keep()
    return found


Measure = Callable[[Sequence[Record]], tuple[int, int]]
"""How many of how many."""


def recall_of(*labels: str) -> Measure:
    def measure(records: Sequence[Record]) -> tuple[int, int]:
        asked = [each for each in records if each.label in labels]
        return sum(each.named for each in asked), len(asked)

    return measure


def precision(records: Sequence[Record]) -> tuple[int, int]:
    """Of the kinds that were found in a record, those that its label names; a spike may be part of any trouble."""
    flagged = [(each, kind) for each in records for kind in {one.kind for one in each.findings}]
    flagged = [(each, kind) for each, kind in flagged if each.label not in UNSURE]
    return sum(kind in NAMED_BY.get(each.label, ()) for each, kind in flagged), len(flagged)


def quiet(critical_only: bool) -> Measure:
    def measure(records: Sequence[Record]) -> tuple[int, int]:
        asked = [each for each in records if each.label == HEALTHY]
        bad = [each for each in asked if any(one.critical or not critical_only for one in each.findings)]
        return len(asked) - len(bad), len(asked)

    return measure


def main_curve(records: Sequence[Record]) -> tuple[int, int]:
    asked = [each for each in records if each.main]
    return sum(each.judged[:1] == (each.main,) for each in asked), len(asked)


def validation_curve(records: Sequence[Record]) -> tuple[int, int]:
    asked = [each for each in records if each.validation]
    return sum(each.validations[:1] == (each.validation,) for each in asked), len(asked)


def read_at_all(records: Sequence[Record]) -> tuple[int, int]:
    return sum(each.read for each in records), len(records)


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


def shown(good: int, all_: int) -> str:
    return f"{good:3d}/{all_:<3d} {good / all_:6.1%}" if all_ else f"{'-':>14}"


def gaps(records: Sequence[Record], splits: int, seed: int = 0) -> dict[str, list[float]]:
    """Of each measure the difference between two halves, for many splits by project."""
    rng = np.random.default_rng(seed)
    projects = sorted({each.project for each in records})
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(splits):
        one_half = set(rng.permutation(projects)[: len(projects) // 2].tolist())
        halves = [[e for e in records if e.project in one_half], [e for e in records if e.project not in one_half]]
        for name, measure in MEASURES.items():
            (a, of_a), (b, of_b) = map(measure, halves)
            if of_a and of_b:
                found[name].append(a / of_a - b / of_b)
    return found


def table(parts: dict[str, Sequence[Record]], by_chance: dict[str, list[float]]) -> None:
    print(f"{'':26}" + "".join(f"{f'{name} ({len(of)})':>20}" for name, of in parts.items()), end="")
    print(f"{'gap of random halves':>26}")
    for name, measure in MEASURES.items():
        cells = [measure(of) for of in parts.values()]
        if not any(all_ for _, all_ in cells):
            continue
        line = f"{name:26}" + "".join(f"{shown(*cell):>20}" for cell in cells)
        usual = np.abs(by_chance[name])
        if len(usual):
            line += f"{f'mean {usual.mean():.1%}, 95 % below {np.quantile(usual, 0.95):.1%}':>36}"
        print(line)


def pooled_gap(worked_on: Sequence[Record], others: Sequence[Record]) -> None:
    """How far apart the halves are over all kinds, of which single ones have few records."""
    recall = recall_of(*NAMED_BY)
    (seen, of_seen), (unseen, of_unseen) = recall(worked_on), recall(others)
    if of_seen and of_unseen:
        gap = 100 * (unseen / of_unseen - seen / of_seen)
        print(f"\nRecall of all kinds together: {gap:+.1f} points where nobody looked")


def flagged(records: Sequence[Record]) -> None:
    """Which share of the healthy has a finding of which kind."""
    healthy = [each for each in records if each.label == HEALTHY]
    found = Counter(kind for each in healthy for kind in {one.kind for one in each.findings})
    print("\nHealthy records flagged, by kind")
    for kind, count in found.most_common():
        print(f"  {kind:24} {shown(count, len(healthy))}")
    if not found:
        print(f"  none of {len(healthy)}")


def misses(records: Sequence[Record]) -> None:
    print("\nWrong, of the records worked on")
    for each in records:
        if each.label not in UNSURE and not (each.right and each.read):
            got = sorted({(one.kind, "CRITICAL" if one.critical else "WARNING", one.step) for one in each.findings})
            print(f"  {each.label:10} {each.file} {list(each.places)}: {got[:6]}{'' if each.read else ', not read'}")


def rows_of(index: Path, sets: Collection[str]) -> list[dict[str, str]]:
    with index.open(newline="") as file:
        return [row for row in csv.DictReader(file) if not sets or row.get("set", "") in sets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=Path, help="instead of FOLDER/index.csv")
    parser.add_argument("--data", type=Path, help="instead of FOLDER/data")
    parser.add_argument("--sets", default="")
    parser.add_argument("--worked-on", type=Path, metavar="CSV", help="an index of the records that were looked at")
    parser.add_argument("--misses", action="store_true", help="name what is wrong among the records worked on")
    parser.add_argument("--splits", type=int, default=300)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="where findings are kept  [a temporary folder]")
    options = parser.parse_args()
    began = time.perf_counter()
    data = (options.data or options.folder / "data").resolve()
    name = hashlib.sha256(f"{data}".encode()).hexdigest()[:16]
    kept = options.kept or Path(tempfile.gettempdir()) / f"real_records_{name}_{fingerprint_of_rules()[:16]}.json"
    rows = rows_of(options.index or options.folder / "index.csv", {each for each in options.sets.split(",") if each})
    records = records_of(rows, Findings(data, kept))
    parts: dict[str, Sequence[Record]] = {"all": records}
    seen: Sequence[Record] = ()
    if options.worked_on:
        own = {row["file"] for row in rows_of(options.worked_on, ())}
        seen = [each for each in records if each.file in own]
        parts = {**parts, "worked on": seen, "others": [each for each in records if each.file not in own]}
    table(parts, gaps(records, options.splits))
    if options.worked_on:
        pooled_gap(parts["worked on"], parts["others"])
    flagged(records)
    if options.misses:
        misses(seen)
    print(
        f"\n{len(records)} records of {len({e.project for e in records})} projects, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
