"""How often each finding is made of trainings in which nothing is wrong: the figures of the findings reference.

python tests/benchmarks/false_alarms.py KEPT                 print them
python tests/benchmarks/false_alarms.py KEPT --write         and put them into mlflow_stability/manual/false_alarms.json
python tests/benchmarks/false_alarms.py KEPT --records FOLDER    with real records, as real_records.py takes them

KEPT is a folder of recordings made by `healthy_trainings.py --keep KEPT`; they are judged anew by the detectors of
today. Drawn curves are those of `rule_recall.py --kind none`, up to 3,000 points. Only WARNING and CRITICAL count.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from real_records import HEALTHY, Findings, records_of, rows_of
from rule_recall import LONGEST_QUICK, How, judged_healthy
from zoo.healthy.catalog import HEALTHY as HEALTHY_TRAININGS
from zoo.judged import judged

from mlflow_stability.kinds.catalog import DETECTORS, RULES
from mlflow_stability.manual.false_alarms import FILE, Measured

DRAWN = 400


def in_trainings(folder: Path) -> Measured:
    """Of the recorded trainings: what is said live or of the record afterwards."""
    names = {each.__name__ for each in HEALTHY_TRAININGS}
    kept = [each for each in sorted(folder.glob("*.pickle")) if each.stem.rpartition("_")[0] in names]
    results = [judged(pickle.loads(each.read_bytes()), anew=True) for each in kept]
    healthy = [each for each in results if not each.failure]
    found = [{*each.kinds("live"), *each.kinds("recorded")} for each in healthy]
    kinds = len({each.stem.rpartition("_")[0] for each in kept})
    return _measured(f"healthy trainings of {kinds} kinds, watched by all detectors", found, loss_alone=False)


def in_drawn_curves() -> Measured:
    """Of drawn loss curves, half of them plain and half made to look ill."""
    runs = judged_healthy(range(DRAWN), How(longest=LONGEST_QUICK))
    return _measured("drawn healthy curves, half of them made to look ill", [set(each.serious) for each in runs])


def in_records(folder: Path) -> Measured:
    """Of real records that people found healthy."""
    with TemporaryDirectory() as kept:
        findings = Findings((folder / "data").resolve(), Path(kept) / "findings.json")
        records = records_of(rows_of(folder / "index.csv", ()), findings)
    healthy = [each for each in records if each.label == HEALTHY]
    return _measured("healthy logs of other people", [{one.kind for one in each.findings} for each in healthy])


def _measured(what: str, found: Iterable[set[str]], *, loss_alone: bool = True) -> Measured:
    sets = list(found)
    flagged = Counter(kind for each in sets for kind in each)
    kinds = sorted({finding_type.kind for finding_type in (*DETECTORS, *RULES)})
    return Measured(what, len(sets), kinds, dict(sorted(flagged.items())), loss_alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = [in_trainings(options.kept), in_drawn_curves()]
    if options.records:
        found.append(in_records(options.records))
    for each in found:
        print(f"{each.runs:6} {each.what}: {each.flagged or 'none flagged'}")
    if options.write:
        text = json.dumps([each.as_json() for each in found], indent=2, ensure_ascii=False)
        FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
