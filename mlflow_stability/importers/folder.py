"""Reads a folder of logs: MLflow runs, event files and single logs, at any depth that people use.

In: a folder, and how a single file is read. Out: a `RunHistory` for each log. Guarantees: what belongs to one run stays
together; hidden folders and runs that were deleted are left out, unless they were asked for; what looks like a log and
cannot be read is noted, what is none is passed over, and so are reports of ours.

Tells a report of ours, which may lie beside the logs that it is about, from a log.

In: the first bytes of a file. Out: whether it is a JSON or CSV that `diagnose` or `compare` wrote. Guarantees: a log
with a column called `source` or `rank` is not taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.assemble.split_files import join_split_files
from mlflow_stability.importers.decode import head_of, reason_of, shown_path
from mlflow_stability.importers.files.mlflow_files import is_deleted, is_mlflow_run, read_mlflow_run
from mlflow_stability.importers.formats.event_file import (
    is_event_file,
    read_event_files,
    read_split_event_files,
)
from mlflow_stability.importers.log_format import formats
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text import HELD_OUT, TRAIN, split_words

_JSON = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"summary":')
_CSV = (b"source,name,outcome,step,issue_type,severity,", b"rank,source,name,outcome,severity,verdict,")


def is_own_report(head: bytes) -> bool:
    """Whether a file that begins like this is a report."""
    return head.startswith(_CSV) or _JSON.match(head) is not None


DEEPEST = 8
MOST_FILES = 20_000
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
_NEVER = {"artifacts", "node_modules", "__pycache__", "site-packages"}

Reader = Callable[[Path], list[RunHistory]]


def read_folder(folder: Path, read_file: Reader) -> list[RunHistory]:
    """Every run in a folder."""
    if is_mlflow_run(folder):
        return [read_mlflow_run(folder)]
    if folder.name in ("metrics", "params", "tags") and is_mlflow_run(folder.parent):
        return [replace(read_mlflow_run(folder.parent), source=str(folder))]
    walk = _FolderWalk(read_file)
    found = join_split_files(list(walk.runs(folder)))
    if not found:
        found = [run for each in walk.deleted for run in walk.tried(_mlflow_run, each)]
        walk.deleted.clear()
    if not found:
        why = f" {walk.trouble[0]}" if walk.trouble else ""
        raise UnreadableLogError(
            f"No training log in {shown_path(folder)!r}{walk.searched}.{why} "
            "Give the file itself if its name is unusual."
        )
    notes = tuple(walk.notes())
    return [replace(each, notes=(*each.notes, *notes)) if notes else each for each in found]


class _FolderWalk:
    """One walk through folders."""

    def __init__(self, read_file: Reader) -> None:
        self.trouble: list[str] = []
        self.deleted: list[Path] = []
        self._read_file = read_file
        self._left = MOST_FILES
        self._folders = 0

    @property
    def searched(self) -> str:
        """Where else than in the folder itself was looked, as the rest of a sentence."""
        below = self._folders - 1
        if below < 1:
            return ""
        return " or in the folder below it" if below == 1 else f" or in the {below:,} folders below it"

    def runs(self, folder: Path, depth: int = 0) -> Iterator[RunHistory]:
        """The runs in a folder and below, in the order of their paths."""
        self._folders += 1
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self.trouble.append(f"{shown_path(folder)} could not be listed: {reason_of(error)}.")
            return
        events = _events_among(entries)
        parts = _parts_of_a_run(entries)
        if parts:
            yield from self.tried(lambda source: [read_split_event_files(source, {"": events, **parts})], folder)
        elif len(events) > 1:
            yield from self.tried(lambda source: [read_event_files(source, events)], folder)
        read_already = events if parts or len(events) > 1 else []
        said_already = set(parts)
        for each in sorted(entries, key=lambda entry: not _copies(entry)):  # what a run's file says, its folders repeat
            if each.is_dir():
                if each.name not in said_already:
                    yield from self._below(each, depth)
            elif _copies(each) and self._left:
                self._left -= 1
                runs = list(self.tried(self._read_file, each))
                said_already.update(_copies(each) if runs else ())
                yield from runs
            elif each not in read_already and _may_be_a_log(each) and self._left:
                self._left -= 1
                yield from self.tried(self._read_file, each)

    def _below(self, folder: Path, depth: int) -> Iterator[RunHistory]:
        if folder.is_symlink() or folder.name.startswith(".") or folder.name in _NEVER or depth >= DEEPEST:
            return
        if not is_mlflow_run(folder):
            yield from self.runs(folder, depth + 1)
        elif is_deleted(folder):
            self.deleted.append(folder)
        else:
            yield from self.tried(_mlflow_run, folder)

    def tried(self, reader: Reader, path: Path) -> Iterator[RunHistory]:
        """What a reader gives; what the system would not let it read is noted, what is no log is not."""
        try:
            yield from reader(path)
        except UnreadableLogError as error:
            if isinstance(error.__cause__ or error.__context__, OSError):
                self.trouble.append(str(error))
        except OSError as error:
            self.trouble.append(f"{shown_path(Path(error.filename or path))} could not be read: {reason_of(error)}.")
        except Exception as error:  # a file that a reader was not written for must not take the others with it
            self.trouble.append(
                f"{shown_path(path)} could not be read: unexpected {type(error).__name__}, {reason_of(error)}."
            )

    def notes(self) -> Iterator[str]:
        """What was left out."""
        if self.trouble:
            others = "Another log" if len(self.trouble) == 1 else f"{len(self.trouble)} other logs"
            yield f"{others} beside it could not be read: {self.trouble[0]}"
        if self.deleted:
            runs = "A deleted run was" if len(self.deleted) == 1 else f"{len(self.deleted)} deleted runs were"
            yield f"{runs} left out; {shown_path(self.deleted[0])} is read if asked for by name."
        if not self._left:
            yield f"Only the first {MOST_FILES:,} files were looked at."


def _mlflow_run(folder: Path) -> list[RunHistory]:
    return [read_mlflow_run(folder)]


def _copies(entry: Path) -> frozenset[str]:
    """The folders beside a file that hold nothing but what it says too."""
    found = (each.copies for each in formats() if each.copies and entry.suffix.lower() in each.endings)
    return next(found, frozenset()) if not entry.is_dir() else frozenset()


def _may_be_a_log(file: Path) -> bool:
    """Whether a file is worth opening."""
    if file.name.startswith(".") or file.name in _NO_LOGS or not file.is_file():
        return False
    ending = file.suffix.lower()
    worth = "tfevents" in file.name or any(ending in each.endings for each in formats())
    return worth and not _is_report(file)


def _is_report(file: Path) -> bool:
    try:
        return is_own_report(head_of(file))
    except UnreadableLogError:
        return False  # its reader says why


def _events_among(entries: Iterable[Path]) -> list[Path]:
    return [each for each in entries if each.name.startswith(_EVENTS) and _is_event_file(each)]


def _parts_of_a_run(entries: Sequence[Path]) -> dict[str, list[Path]]:
    """The event files of each folder among these, where they are the parts of one run: `train` and `validation`."""
    found = {}
    for each in entries:
        words = {word.lower() for word in split_words(each.name)}
        if words & (TRAIN | HELD_OUT) and each.is_dir() and not each.is_symlink():
            found[each.name] = (_events_among(_listed(each)), bool(words & TRAIN))
    parts = {name: events for name, (events, _) in found.items() if events}
    return parts if len({found[name][1] for name in parts}) == 2 else {}


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []  # whoever goes into it says why


def _is_event_file(path: Path) -> bool:
    try:
        return path.is_file() and is_event_file(head_of(path))
    except UnreadableLogError:
        return False
