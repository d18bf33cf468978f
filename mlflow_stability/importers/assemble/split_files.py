"""Joins the files of one training: `metrics_train.jsonl` and `metrics_val.jsonl` beside it.

In: the runs of the files of one folder. Out: the same, those that are parts of one training as one run. Guarantees:
files are joined only if their names differ in the word for the part of the data alone, if they count the same unit, and
if no metric is in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlflow_stability.importers.assemble.data_splits import measured_on
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text import HELD_OUT, TRAIN, metric_meanings, split_words


def join_split_files(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """The runs, in their order; a joined one stands where the file of the training data stood."""
    groups: dict[tuple[str, ...], list[RunHistory]] = {}
    for run in runs:
        groups.setdefault(_name_without_part(run), []).append(run)
    joined = {id(parts[0]): whole for parts in groups.values() if (whole := _joined(parts)) is not None}
    replaced = {id(part) for parts in groups.values() if id(parts[0]) in joined for part in parts}
    kept = []
    for run in runs:
        if id(run) in joined:
            kept.append(joined[id(run)])
        elif id(run) not in replaced:
            kept.append(run)
    return kept


def _name_without_part(run: RunHistory) -> tuple[str, ...]:
    """What files of one training have in common; the whole path where the name says no part of the data."""
    path = Path(run.source)
    words = [word.lower() for word in split_words(path.stem)]
    rest = [word for word in words if word not in TRAIN | HELD_OUT]
    return (str(path.parent), path.suffix, *rest) if len(rest) == len(words) - 1 else (run.source,)


def _part(run: RunHistory) -> str:
    words = (word.lower() for word in split_words(Path(run.source).stem))
    return next((word for word in words if word in TRAIN | HELD_OUT), "")


def _joined(parts: list[RunHistory]) -> RunHistory | None:
    """One run of these, the part that was trained on moved to the front; None where they are not of one training."""
    parts.sort(key=lambda part: _part(part) not in TRAIN)
    names = [_part(part) for part in parts]
    if len(parts) < 2 or len(set(names)) != len(names) or names[0] not in TRAIN or names[1] in TRAIN:
        return None
    named = {
        measured_on("" if word in TRAIN else word, metric.name): metric
        for word, part in zip(names, parts, strict=True)
        for metric in part.metrics
    }
    first = parts[0]
    units = {(part.step_unit, part.ordinal_steps) for part in parts}
    if len(units) > 1 or len(named) != sum(len(part.metrics) for part in parts) or not all(map(_is_a_log, parts)):
        return None
    meanings = metric_meanings(named)
    metrics = tuple(
        Metric(name, meanings[name], replace(metric.series, signal=meanings[name].signal))
        for name, metric in named.items()
    )
    points = sum(len(metric.series) for metric in metrics)
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return replace(
        first,
        name=" + ".join(part.name for part in parts),
        basis=f"{points:,} values of {len(metrics):,} metrics in {len(parts)} files",
        metrics=metrics,
        notes=tuple(notes),
        complete=all(part.complete for part in parts),
        reported=tuple(event for part in parts for event in part.reported),
    )


def _is_a_log(run: RunHistory) -> bool:
    return run.events is None and not run.gaps and Path(run.source).is_file()
