"""Tells whether somebody asked for a path or for a run.

In: what was typed or passed. Out: the path, or the run id. Guarantees: something that exists here is taken as a path,
even where its name looks like a run id, and that is said. A run's name and the beginning of its id are as good as its
id; only for those a store is searched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.analysis.named_run import is_run_id, no_such, run_called
from mlflow_stability.errors import TrackingError, UnreadableLogError
from mlflow_stability.vocabulary.argument import Accepts


def _named(given: object) -> str:
    if given == "" or not isinstance(given, str | os.PathLike):
        raise TypeError
    text = os.fspath(given)
    if not isinstance(text, str):
        raise TypeError
    return text


_SURELY_PATHS = (os.sep, f".{os.sep}", f"..{os.sep}", f"~{os.sep}")
"""What begins so names no run: no store is asked for it."""
_SOURCE = Accepts("the id of an MLflow run or the path of a log", _named)


@dataclass(frozen=True, slots=True)
class AskedFor:
    """One thing to diagnose."""

    source: str
    """As it was given; the whole id, where a run was given by its name or by the beginning of its id."""
    path: Path | None
    """Where to read; None: `source` is the id of a run."""
    remark: str = ""
    """What to tell the person who asked: it could have meant something else."""

    @property
    def is_path(self) -> bool:
        """Whether it is a file or a folder, rather than a run of a tracking store."""
        return self.path is not None


def source_text(given: object, argument: str = "run_id_or_path") -> str:
    """What was given for an argument that names a run; ``SettingsError`` for what can name none."""
    text: str = _SOURCE.check(argument, given)
    return text


def source_texts(given: object, argument: str) -> Iterator[str]:
    """What was given for an argument that names one run or several."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    for each in several:
        yield source_text(each, argument)


def asked_for(
    source: str | os.PathLike[str], tracking_uri: str | None = None, argument: str = "run_id_or_path"
) -> AskedFor:
    """What this is; ``UnreadableLogError`` for what is neither, ``RunNotFoundError`` for what may be several runs."""
    text = source_text(source, argument)
    looks_like_a_run = isinstance(source, str) and is_run_id(text)
    if os.path.lexists(text):
        remark = f"{text} exists as a path, so it was not read as a run id." if looks_like_a_run else ""
        return AskedFor(text, Path(text), remark)
    if os.path.isfile(os.path.dirname(text)):  # noqa: PTH113, PTH120 one of the runs in a file: `train.ipynb/cell 19`
        return AskedFor(text, Path(text))
    if looks_like_a_run:
        return AskedFor(text, None)
    if not isinstance(source, str) or text.startswith(_SURELY_PATHS):
        raise UnreadableLogError(f"No such file or folder: {text!r}.")
    is_like_a_path = _looks_like_a_path(text)
    try:
        run_id = run_called(text, tracking_uri)
        if run_id is None:
            what = "file or folder" if is_like_a_path else "file, folder, run id or run name"
            raise UnreadableLogError(no_such(text, what, tracking_uri))
    except TrackingError:
        if not is_like_a_path:
            raise
        raise UnreadableLogError(f"No such file or folder: {text!r}.") from None
    return AskedFor(run_id, None)


def names_a_source(text: str) -> bool:
    """Whether it is a path that is here, or a whole run id: no store needs to be asked what it is."""
    return os.path.lexists(text) or os.path.isfile(os.path.dirname(text)) or is_run_id(text)  # noqa: PTH113, PTH120


def _looks_like_a_path(text: str) -> bool:
    """Whether it was most likely meant as a file or folder; a run can be called `facebook/opt-125m`, too."""
    return any(each in text for each in ("/", os.sep)) or Path(text).suffix[1:].isalpha()
