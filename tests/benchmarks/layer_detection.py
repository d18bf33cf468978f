"""False alarms and recall of the judgements about layers, updates, weights and speed, on real trainings.

python tests/benchmarks/layer_detection.py [--quick] [--seeds 3] [--workers 2] [--keep FOLDER]

Healthy are 26 trainings of many kinds and the 13 healthy twins of the zoo; ill are trainings in which something is
wrong with layers, and the failures of the zoo. All is measured in plain torch, without us, and judged afterwards as it
would be live: with the schedules of a recording (the whole model every 10 steps, layers every 100), and with layers and
the RMS of Adam measured ten and a hundred times as often. `--quick` is one seed. `--keep` keeps what was measured, so
that a rule can be tried again without training again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ill_layers import ILL
from benchmarks.layer_collection import Subject, collected, healthy_subjects, ill_subjects
from benchmarks.layer_meter import Table

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.layer_values import is_wanted
from mlflow_stability.kinds.catalog import DETECTORS
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary import Finding, Signal

Schedule = tuple[int, int, int]
SCHEDULES: dict[str, Schedule] = {"whole 10, layers 100": (10, 100, 100), "whole 10, layers 10, RMS 1": (10, 10, 1)}
ABOUT = {"loss_spike": "loss", "divergence": "loss", "throughput_drop": "samples_per_second"}
"""What those are about whose last quantity it is not."""
OF_THE_MACHINE = {"step_time_increase", "throughput_drop"}
"""What says nothing about a training, but about what else runs beside it."""
NOT_HERE = {"loss_scale", "skipped_steps", "val_loss", "memory_share", "mfu"}
"""What these trainings do not have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    with tempfile.TemporaryDirectory() as elsewhere:
        folder = options.keep or Path(elsewhere)
        healthy = collected(healthy_subjects(seeds), folder, options.workers)
        ill = collected(ill_subjects(seeds), folder, options.workers)
    for title, schedule in SCHEDULES.items():
        false_alarms(title, schedule, healthy)
    for title, schedule in SCHEDULES.items():
        recall(title, schedule, ill)


def judged(tables: Sequence[Table], schedule: Schedule, points: Counter[Signal] | None = None) -> list[Finding]:
    """What is said of one training; each of its optimizers is a part of it."""
    panel, events = Panel(), []
    for table in tables:
        for reading in table.readings(*schedule):
            events += panel.judge(reading)
            if points is not None:
                points.update(reading.signals)
    return events


def false_alarms(title: str, schedule: Schedule, healthy: dict[Subject, list[Table]]) -> None:
    points: Counter[Signal] = Counter()
    said = {subject: judged(tables, schedule, points) for subject, tables in healthy.items()}
    print(f"\nFalse alarms on {len(said)} healthy trainings, {title}\n{'-' * 78}")
    print(f"{'':28}{'points':>10}{'events':>8}{'per 1000':>10}{'trainings':>11}  worst")
    rules = [each for each in DETECTORS if set(each.quantities) - NOT_HERE]
    for kind in dict.fromkeys(each.kind for each in rules):
        looked = sum(seen_by([each for each in rules if each.kind == kind], points))
        alarms = {subject: sum(each.kind == kind for each in events) for subject, events in said.items()}
        total, ill = sum(alarms.values()), Counter(s.name for s, count in alarms.items() for _ in range(count))
        rate = f"{1000 * total / looked:.4f}" if looked else "-"
        worst = ", ".join(f"{name} {count}" for name, count in ill.most_common(2))
        print(f"{kind:28}{looked:>10,}{total:>8}{rate:>10}{sum(map(bool, alarms.values())):>11}  {worst}")


def seen_by(rules: Sequence[type[Detector]], points: Counter[Signal]) -> list[int]:
    """How many points these rules judge: those of the quantity that they are about."""
    about = {(ABOUT.get(each.kind, each.quantities[-1]), each.places) for each in rules}
    return [
        count
        for signal, count in points.items()
        if any(signal.quantity == quantity and is_wanted(places, signal) for quantity, places in about)
    ]


def recall(title: str, schedule: Schedule, ill: dict[Subject, list[Table]]) -> None:
    wanted = {each.__name__: kinds for each, kinds in ILL}
    print(f"\nWhat is said of ill trainings, {title}\n{'-' * 78}")
    found = 0
    for name in dict.fromkeys(subject.name for subject in ill):
        events = {subject: judged(tables, schedule) for subject, tables in ill.items() if subject.name == name}
        firsts = Counter(kind for each in events.values() for kind in {event.kind for event in each})
        hits = sum(
            bool(each) and (name not in wanted or any(e.kind in wanted[name] for e in each)) for each in events.values()
        )
        found += hits
        kinds = ", ".join(f"{kind} {count}" if count < len(events) else kind for kind, count in firsts.most_common())
        print(f"{name:26}{hits:>3} of {len(events)}  {kinds or 'nothing'}")
    print(f"found: {found} of {len(ill)}")


if __name__ == "__main__":
    main()
