"""Names and formats of this package's files among a run's artifacts: folders, events, attention maps, pictures.

What people open is in `stability/`: report, dashboard, pictures, checkpoints. What programs read is in
`stability/data/`. In runs of version 0.1 the record and the events were beside the pictures; they are read from
either place. Tables as Parquet files are in `read.run_record`, which loads pyarrow.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.kinds.finding_records import as_record, from_record
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap, attention_arrays, attention_map_from
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Opening, Reset

FOLDER = "stability"
DATA_FOLDER = f"{FOLDER}/data"
RECORD_FOLDER = f"{DATA_FOLDER}/record"
EVENTS_FOLDER = f"{DATA_FOLDER}/events"
LAYER_TABLES_FOLDER = f"{DATA_FOLDER}/layers"
MAPS_FOLDER = f"{DATA_FOLDER}/attention"
ATTENTION_FOLDER = f"{FOLDER}/attention"  # pictures
RECORD_FOLDERS = (f"{FOLDER}/record", RECORD_FOLDER)
EVENTS_FOLDERS = (f"{FOLDER}/events", EVENTS_FOLDER)
LAYER_TABLES_FOLDERS = (f"{FOLDER}/layers", LAYER_TABLES_FOLDER)
MAPS_FOLDERS = (f"{ATTENTION_FOLDER}/maps", MAPS_FOLDER)
README = """\
What mlflow-stability recorded, for programs. Read it with `mlflow_stability.load_run(RUN_ID)`.

| file | what is in it |
| --- | --- |
| `record/*.parquet` | every value of every step |
| `events/*.jsonl` | findings, settings, gaps, how the recording began and ended |
| `layers/*.parquet` | statistics and histograms of the layers |
| `attention/*.npz` | attention maps |
| `environment.json` | settings and versions, complete |
| `recording-000.json` | how it was delivered |
"""
"""The file `stability/data/README.md`."""

LINES_PER_FILE = 10_000
LATER_VERSION = "written by a later version of mlflow-stability"
"""Why a line is left out for which `read_line` returns None."""
EventLine: TypeAlias = Finding | Opening | Note | Fact | Reset | Gap | Closing  # what one line of an events file holds
_RECORDS: dict[str, type[Any]] = {
    "opening": Opening,
    "event": Finding,
    "note": Note,
    "fact": Fact,
    "reset": Reset,
    "gap": Gap,
    "closing": Closing,
}
_RECORD_NAMES = {record: name for name, record in _RECORDS.items()}
_EVENTS_FILE = re.compile(r"recording-(\d{3,})(?:-(\d+))?\.jsonl")
_MAPS_FILE = re.compile(r"part-(\d{3,})-(\d{4,})-(\d{12,})\.npz")


def events_name(recording: int, number: int = 0) -> str:
    """Return the name of a recording's events file; each holds `LINES_PER_FILE`."""
    return f"recording-{recording:03d}.jsonl" if number == 0 else f"recording-{recording:03d}-{number + 1}.jsonl"


def bookkeeping_name(recording: int) -> str:
    """Return the name of the file with a recording's own state."""
    return f"recording-{recording:03d}.json"


def events_order(name: str) -> tuple[int, int] | None:
    """Return recording and number of an events file, to sort by; None for other files."""
    match = _EVENTS_FILE.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match else None


def line_of(record: EventLine) -> str:
    """Return one line of JSON with its newline.

    Numbers that JSON lacks are the strings "nan", "inf" and "-inf". `read_line` returns an equal record.
    """
    values = as_record(record) if isinstance(record, Finding) else asdict(record)
    plain = {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return json.dumps({"record": _RECORD_NAMES[type(record)], **plain}, ensure_ascii=False, allow_nan=False) + "\n"


def lines_in(text: str) -> list[str]:
    """Return the lines of an events file, without their newlines.

    Messages may hold characters at which `str.splitlines` would split (U+0085, U+2028, U+2029).
    """
    return text.removesuffix("\n").split("\n") if text else []


_CONSTANTS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}  # numbers that JSON lacks, as `line_of` writes them


def read_line(line: str) -> EventLine | None:
    """Return the record of a line; None if a later version wrote it. Raises ValueError for anything else."""
    try:
        values: dict[str, Any] = json.loads(line, parse_constant=_CONSTANTS.get)
        record_type = _RECORDS.get(values.pop("record", ""))
        if record_type is None:
            return None
        if record_type is Finding:
            return from_record(values)
        types = {field.name: str(field.type) for field in fields(record_type)}
        record: EventLine = record_type(**{n: _typed(types[n], value) for n, value in values.items() if n in types})
        return record
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"Not an event line: {error!r}") from error


def read_events(text: str, where: str, leave_out: Callable[[str, Exception | None], None]) -> list[EventLine]:
    """Return the records of an events file; `leave_out` gets the place of each line that cannot be read, and why."""
    records = []
    for number, line in enumerate(lines_in(text), start=1):
        try:
            record = read_line(line)
        except ValueError as error:  # the last line of a run that is still being written
            leave_out(f"line {number} of {where}", error)
            continue
        if record is None:
            leave_out(f"line {number} of {where} ({LATER_VERSION})", None)
        else:
            records.append(record)
    return records


def _typed(type_name: str, value: Any) -> Any:
    if type_name == "float":
        return float(value)
    if type_name == "int" and not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    if type_name == "str" and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


@dataclass(frozen=True, slots=True, order=True)
class AttentionPart:
    """Which attention maps a file holds; sorted by time of measurement."""

    recording: int
    attempt: int
    step: int  # as the run counts it

    @property
    def name(self) -> str:
        return f"part-{self.recording:03d}-{self.attempt:04d}-{self.step:012d}.npz"


def attention_part(name: str) -> AttentionPart | None:
    """Return what a file of this name holds; None if it holds no maps."""
    match = _MAPS_FILE.fullmatch(name)
    return AttentionPart(*map(int, match.groups())) if match else None


def write_attention_part(file: Path, maps: Sequence[AttentionMap], offset: int = 0) -> None:
    """Write maps as arrays `<n>.weights` and so on; `offset` is what the run adds to their steps."""
    arrays: dict[str, NDArray[Any]] = {}
    for number, attention in enumerate(maps):
        moved = attention_arrays(replace(attention, step=attention.step + offset))
        arrays |= {f"{number}.{name}": array for name, array in moved.items()}
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_attention_part(file: Path) -> list[AttentionMap]:
    """Return the maps of a part in the order in which they were written. Raises ValueError if it is damaged."""
    arrays: dict[int, dict[str, NDArray[Any]]] = {}
    content = file.read_bytes()
    try:
        if not zipfile.is_zipfile(BytesIO(content)):  # of which NumPy says that it may be loaded as a pickle
            raise ValueError("it is not an archive of arrays")
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            for name in archive.files:
                number, _, array = name.partition(".")
                arrays.setdefault(int(number), {})[array] = archive[name]
        return [attention_map_from(arrays[number]) for number in sorted(arrays)]
    except Exception as error:  # zlib, zipfile and NumPy raise almost anything, MemoryError for a forged shape among it
        raise ValueError(f"{file.name} holds no attention maps: {error}") from error


@dataclass(frozen=True, slots=True)
class StoredAttention:
    name: str  # what people call the run
    parts: tuple[AttentionPart, ...]  # oldest first
    fetch: Callable[[AttentionPart], list[AttentionMap]]

    @property
    def steps(self) -> list[int]:
        return sorted({part.step for part in self.parts})

    def maps(self, step: int) -> list[AttentionMap]:
        """Fetch the maps of a step by layer; of a step that was repeated, the later ones."""
        return self.fetch(max(part for part in self.parts if part.step == step))


def attention_of_run(run_id: str, tracking_uri: str | None = None) -> StoredAttention:
    from mlflow_stability.tracking.read.run_reader import RunReader

    reader = RunReader(run_id, tracking_uri)
    folder_of = {name: folder for folder in MAPS_FOLDERS for name in reader.file_names(folder)}
    return StoredAttention(
        reader.name,
        _parts(f"Run {reader.run_id}", folder_of),
        lambda part: reader.fetched(f"{folder_of[part.name]}/{part.name}", _read),
    )


def attention_of_folder(folder: Path, maps: Path) -> StoredAttention:
    """Return the maps in a folder of parts, for a run that is kept as files."""
    names = [file.name for file in maps.iterdir()] if maps.is_dir() else []
    return StoredAttention(folder.name, _parts(str(folder), names), lambda part: _read(maps / part.name))


def _parts(source: str, names: Iterable[str]) -> tuple[AttentionPart, ...]:
    parts = sorted(part for name in names if (part := attention_part(name)) is not None)
    if not parts:
        raise RunNotFoundError(
            f"{source} has no attention maps in {MAPS_FOLDER}. autolog() records them every "
            "attention_every_n_steps in models with attention. `mlflow-stability sync` delivers what was "
            "left behind."
        )
    return tuple(parts)


def _read(file: Path) -> list[AttentionMap]:
    try:
        return read_attention_part(file)
    except (OSError, ValueError) as error:
        raise RunNotFoundError(f"The attention maps cannot be read: {error}") from error


def picture_of_layer(part: AttentionPart, layer: int) -> str:
    """Return the file name of a layer's picture: `step_000500_layer0.png`; each attempt and recording has its own."""
    attempt = f"_attempt{part.attempt}" if part.attempt else ""
    recording = f"-{part.recording + 1}" if part.recording else ""
    return f"step_{part.step:06d}_layer{layer}{attempt}{recording}.png"


def picture_name(name: str, recording: int) -> str:
    """Return the file name of a picture: `dashboard.png`; of a second recording `dashboard-2.png`."""
    return f"{name}.png" if recording == 0 else f"{name}-{recording + 1}.png"
