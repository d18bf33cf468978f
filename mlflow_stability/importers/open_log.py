"""Read any file or folder of a known format, recognised by its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.field_names import with_split
from mlflow_stability.importers.formats.event_file import is_event_file, read_event_files
from mlflow_stability.importers.log_format import LogFile, formats
from mlflow_stability.importers.log_text import encoding_of, error_reason, head_of, printable, printable_path
from mlflow_stability.importers.mlflow_files import is_deleted, is_mlflow_run, read_mlflow_run
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import HELD_OUT, TRAIN, metric_meanings, split_words


def read(path: Path) -> list[RunHistory]:
    """Return the runs at a path, at least one; for a folder all in it and below, in the order of their paths.

    Raises:
        UnreadableLogError: With the reason and the remedy.
    """
    try:
        if path.is_dir():
            return read_folder(path, read_file)
        if not path.parent.is_file():
            return read_file(path)
        # One of the runs in a file, named as its `source` has it: `train.ipynb/cell 19`.
        runs = [run for run in read_file(path.parent) if run.source == str(path)]
        if not runs:
            raise UnreadableLogError(
                f"{printable_path(path.parent)} has no {printable(path.name)} with training metrics. "
                "Give the file alone to see all."
            )
        return runs
    except (OSError, ValueError) as error:  # a folder above it that may not be entered; a name that no system takes
        raise UnreadableLogError(f"{printable_path(path)} could not be read: {error_reason(error)}.") from error
    except UnreadableLogError:
        raise
    except Exception as error:  # a log that a reader was not written for must not take others with it
        reason = f"unexpected {type(error).__name__}, {error_reason(error)}"
        raise UnreadableLogError(f"{printable_path(path)} could not be read: {reason}. Please report it.") from error


def read_file(path: Path) -> list[RunHistory]:
    """Return the runs in a file: one, unless it is a notebook or a chart with several trainings."""
    if path.exists() and not path.is_file():
        raise UnreadableLogError(f"{printable_path(path)} is not a file or folder; give the path of a log.")
    head = head_of(path)
    if not head.strip():
        raise UnreadableLogError(f"{printable_path(path)} is empty.")
    log_file = LogFile(path, head, encoding_of(head))
    for log_format in formats():
        runs = log_format.read(log_file)
        if runs is not None:
            return runs
    if head.startswith(_SQLITE):
        store = f"sqlite:///{printable(path.as_posix())}"
        raise UnreadableLogError(
            f"{printable_path(path)} is an SQLite database. If it is an MLflow store, give a run's id and "
            f"--tracking-uri {store}; --last instead of an id is the newest run."
        )
    names = ", ".join(log_format.name for log_format in formats())
    raise UnreadableLogError(
        f"{printable_path(path)} is a binary file of unknown format. {names} "
        "and MLflow folders can be read; checkpoints have no curves."
    )


_SQLITE = b"SQLite format 3\x00"
MAX_DEPTH = 8
MAX_FILES = 20_000
_REPORT_JSON = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"summary":')
_REPORT_CSV = (b"source,name,outcome,step,issue_type,severity,", b"rank,source,name,outcome,severity,verdict,")
_NO_LOGS = {
    "config.json",
    "args.json",
    "hparams.json",
    "package.json",
    "tokenizer.json",
    "vocab.json",
    "requirements.txt",
}
_EVENTS = "events.out.tfevents"  # TensorBoard's own name for them: all in one folder are one run
_SKIPPED_FOLDERS = {"artifacts", "node_modules", "__pycache__", "site-packages"}

Reader = Callable[[Path], list[RunHistory]]


def read_folder(folder: Path, read_file: Reader) -> list[RunHistory]:
    """Return every run in a folder, at any depth; `read_file` reads a single log.

    Files of one run stay together. Hidden folders, deleted runs and our own reports are left out; a log that cannot be
    read becomes a note.
    """
    if is_mlflow_run(folder):
        return read_mlflow_run(folder)
    if folder.name in ("metrics", "params", "tags") and is_mlflow_run(folder.parent):
        return [replace(run, source=str(folder)) for run in read_mlflow_run(folder.parent)]
    walk = _FolderWalk(read_file)
    runs = join_split_files(list(walk.runs(folder)))
    if not runs:  # deleted runs are better than none
        runs = [run for deleted in walk.deleted for run in walk.attempt(read_mlflow_run, deleted)]
        walk.deleted.clear()
    if not runs:
        below = {1: "", 2: " or in the folder below it"}
        searched = below.get(walk.folders, f" or in the {walk.folders - 1:,} folders below it")
        reason = f" {walk.failures[0]}" if walk.failures else ""
        raise UnreadableLogError(
            f"No training log in {printable_path(folder)!r}{searched}.{reason} "
            "Give the file itself if its name is unusual."
        )
    notes = tuple(walk.notes())
    return [replace(run, notes=(*run.notes, *notes)) if notes else run for run in runs]


class _FolderWalk:
    def __init__(self, read_file: Reader) -> None:
        self.failures: list[str] = []
        self.deleted: list[Path] = []
        self._read_file = read_file
        self._files_left = MAX_FILES
        self.folders = 0

    def runs(self, folder: Path, depth: int = 0) -> Iterator[RunHistory]:
        """Yield the runs in a folder and below, in the order of their paths."""
        self.folders += 1
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self.failures.append(f"{printable_path(folder)} could not be listed: {error_reason(error)}.")
            return
        events = _events_among(entries)
        splits = _event_splits(entries)
        read_files = events if splits or len(events) > 1 else []
        if read_files or splits:
            yield from self.attempt(lambda source: read_event_files(source, {"": events, **splits}), folder)
        read_folders = set(splits)
        for entry in sorted(entries, key=lambda entry: not _copies(entry)):  # the run's file before its copies
            if entry.is_dir():
                if entry.name not in read_folders:
                    yield from self._subfolder(entry, depth)
            elif self._files_left and (_copies(entry) or (entry not in read_files and _may_be_a_log(entry))):
                self._files_left -= 1
                runs = list(self.attempt(self._read_file, entry))
                read_folders.update(_copies(entry) if runs else ())
                yield from runs

    def _subfolder(self, folder: Path, depth: int) -> Iterator[RunHistory]:
        skipped = folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS
        if folder.is_symlink() or skipped or depth >= MAX_DEPTH:
            return
        if not is_mlflow_run(folder):
            yield from self.runs(folder, depth + 1)
        elif is_deleted(folder):
            self.deleted.append(folder)
        else:
            yield from self.attempt(read_mlflow_run, folder)

    def attempt(self, reader: Reader, path: Path) -> Iterator[RunHistory]:
        """Yield what a reader gives; note what the system refuses, pass over what is no log."""
        try:
            yield from reader(path)
        except UnreadableLogError as error:
            if isinstance(error.__cause__ or error.__context__, OSError):
                self.failures.append(str(error))
        except OSError as error:
            name = printable_path(Path(error.filename or path))
            self.failures.append(f"{name} could not be read: {error_reason(error)}.")
        except Exception as error:  # a file that a reader was not written for must not take the others with it
            reason = f"unexpected {type(error).__name__}, {error_reason(error)}"
            self.failures.append(f"{printable_path(path)} could not be read: {reason}.")

    def notes(self) -> Iterator[str]:
        if self.failures:
            others = "Another log" if len(self.failures) == 1 else f"{len(self.failures)} other logs"
            yield f"{others} beside it could not be read: {self.failures[0]}"
        if self.deleted:
            runs = "A deleted run was" if len(self.deleted) == 1 else f"{len(self.deleted)} deleted runs were"
            yield f"{runs} left out; {printable_path(self.deleted[0])} is read if asked for by name."
        if not self._files_left:
            yield f"Only the first {MAX_FILES:,} files were looked at."


def _copies(entry: Path) -> frozenset[str]:
    """Return the folders beside a file that hold the same data."""
    if entry.is_dir():
        return frozenset()
    ending = entry.suffix.lower()
    return next((form.copies for form in formats() if form.copies and ending in form.endings), frozenset())


def _may_be_a_log(file: Path) -> bool:
    if file.name.startswith(".") or file.name in _NO_LOGS or not file.is_file():
        return False
    ending = file.suffix.lower()
    if "tfevents" not in file.name and not any(ending in form.endings for form in formats()):
        return False
    try:
        return not is_own_report(head_of(file))
    except UnreadableLogError:
        return True  # its reader says why


def is_own_report(head: bytes) -> bool:
    """Whether a file that begins like this is a JSON or CSV that `diagnose` or `compare` wrote."""
    return head.startswith(_REPORT_CSV) or _REPORT_JSON.match(head) is not None


def _events_among(entries: Iterable[Path]) -> list[Path]:
    events = []
    for entry in entries:
        with suppress(UnreadableLogError):
            if entry.name.startswith(_EVENTS) and entry.is_file() and is_event_file(head_of(entry)):
                events.append(entry)
    return events


def _event_splits(entries: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the event files of each of these folders that are the splits of one run: `train` and `validation`."""
    splits: dict[str, list[Path]] = {}
    trained = set()
    for entry in entries:
        words = {word.lower() for word in split_words(entry.name)}
        if words & (TRAIN | HELD_OUT) and entry.is_dir() and not entry.is_symlink():
            try:
                events = _events_among(sorted(entry.iterdir()))
            except OSError:
                continue  # the walk into the folder notes why
            if events:
                splits[entry.name] = events
                trained.add(bool(words & TRAIN))
    return splits if len(trained) == 2 else {}


def join_split_files(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Join files of one training: `metrics_train.jsonl` and `metrics_val.jsonl`.

    Files are joined only if their names differ in the word for the split alone, if they count the same unit, and if no
    metric is in both. The joined run takes the place of the training data's file.
    """
    groups: dict[tuple[str, ...], list[RunHistory]] = {}
    for run in runs:
        groups.setdefault(_split(run)[1], []).append(run)
    joined = {id(parts[0]): whole for parts in groups.values() if (whole := _joined(parts)) is not None}
    replaced = {id(part) for parts in groups.values() if id(parts[0]) in joined for part in parts[1:]}
    return [joined.get(id(run), run) for run in runs if id(run) not in replaced]


def _split(run: RunHistory) -> tuple[str, tuple[str, ...]]:
    """Return the split that a file's name names, and what files of one training have in common."""
    path = Path(run.source)
    words = [word.lower() for word in split_words(path.stem)]
    rest = [word for word in words if word not in TRAIN | HELD_OUT]
    if len(rest) != len(words) - 1:
        return "", (run.source,)
    return next(word for word in words if word in TRAIN | HELD_OUT), (str(path.parent), path.suffix, *rest)


def _joined(parts: list[RunHistory]) -> RunHistory | None:
    """Join these runs, the training split moved to the front; None where they are not of one training."""
    parts.sort(key=lambda part: _split(part)[0] not in TRAIN)
    splits = [_split(part)[0] for part in parts]
    if len(parts) < 2 or len(set(splits)) != len(splits) or splits[0] not in TRAIN or splits[1] in TRAIN:
        return None
    if any(part.events is not None or part.gaps or not Path(part.source).is_file() for part in parts):
        return None
    named = {
        with_split("" if split in TRAIN else split, metric.name): metric
        for split, part in zip(splits, parts, strict=True)
        for metric in part.metrics
    }
    units = {(part.step_unit, part.ordinal_steps) for part in parts}
    if len(units) > 1 or len(named) != sum(len(part.metrics) for part in parts):
        return None
    meanings = metric_meanings(named)
    metrics = tuple(
        Metric(name, meanings[name], replace(metric.series, signal=meanings[name].signal))
        for name, metric in named.items()
    )
    points = sum(len(metric.series) for metric in metrics)
    return replace(
        parts[0],
        name=" + ".join(part.name for part in parts),
        basis=f"{points:,} values of {len(metrics):,} metrics in {len(parts)} files",
        metrics=metrics,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        complete=all(part.complete for part in parts),
        reported=tuple(event for part in parts for event in part.reported),
    )
