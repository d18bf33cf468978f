"""Resolve a source that a user named: the path of a log, or a run.

What exists as a path is taken as one, even where its name looks like a run id, and a remark says so. A run may
be named by its id, the beginning of its id, or its name; only the last two need a search of the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.analysis.named_run import is_run_id, no_such, run_called
from mlflow_stability.errors import TrackingError, UnreadableLogError
from mlflow_stability.vocabulary.argument import Accepts


def _source_name(source: object) -> str:
    if source == "" or not isinstance(source, str | os.PathLike):
        raise TypeError
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError
    return text


_PATH_PREFIXES = (os.sep, f".{os.sep}", f"..{os.sep}", f"~{os.sep}")
"""What begins so is never the name of a run."""
_SOURCE = Accepts("the id of an MLflow run or the path of a log", _source_name)


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    source: str
    """As it was passed; the whole id of a run that was named by less."""
    path: Path | None
    """Where to read; None: `source` is the id of a run."""
    remark: str = ""
    """What to show the user, if it could have meant something else."""

    @property
    def is_path(self) -> bool:
        """Whether it is a file or a folder, rather than a run of a tracking store."""
        return self.path is not None


def source_text(source: object, argument: str = "run_id_or_path") -> str:
    """Return the text of an argument that names a run; raise ``SettingsError`` for what can name none."""
    text: str = _SOURCE.check(argument, source)
    return text


def source_texts(sources: object, argument: str) -> Iterator[str]:
    """Yield the texts of an argument that names one run or several."""
    several = sources if isinstance(sources, Iterable) and not isinstance(sources, str | bytes) else (sources,)
    return (source_text(source, argument) for source in several)


def resolve_source(
    source: str | os.PathLike[str], tracking_uri: str | None = None, argument: str = "run_id_or_path"
) -> ResolvedSource:
    """Return what this is.

    Raises ``UnreadableLogError`` for a text that is neither, ``RunNotFoundError`` for an ambiguous name.
    """
    text = source_text(source, argument)
    looks_like_a_run = isinstance(source, str) and is_run_id(text)
    if os.path.lexists(text):
        remark = f"{text} exists as a path, so it was not read as a run id." if looks_like_a_run else ""
        return ResolvedSource(text, Path(text), remark)
    if _is_run_in_file(text):
        return ResolvedSource(text, Path(text))
    if looks_like_a_run:
        return ResolvedSource(text, None)
    if not isinstance(source, str) or text.startswith(_PATH_PREFIXES):
        raise UnreadableLogError(f"No such file or folder: {text!r}.")
    # A run can be called `facebook/opt-125m`, too.
    is_like_a_path = "/" in text or os.sep in text or Path(text).suffix[1:].isalpha()
    try:
        run_id = run_called(text, tracking_uri)
        if run_id is None:
            what = "file or folder" if is_like_a_path else "file, folder, run id or run name"
            raise UnreadableLogError(no_such(text, what, tracking_uri))
    except TrackingError:
        if not is_like_a_path:
            raise
        raise UnreadableLogError(f"No such file or folder: {text!r}.") from None
    return ResolvedSource(run_id, None)


def names_a_source(text: str) -> bool:
    """Whether it is an existing path, or a whole run id: no store needs to be searched."""
    return os.path.lexists(text) or _is_run_in_file(text) or is_run_id(text)


def _is_run_in_file(text: str) -> bool:
    """Whether it is one of the runs in a file: `train.ipynb/cell 19`."""
    return os.path.isfile(os.path.dirname(text))  # noqa: PTH113, PTH120
