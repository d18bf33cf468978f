"""Targets: what a training records: journals, files of arrays, events, parts of the record, attention maps."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa
from fuzz.logs import FIXTURES
from fuzz.mutations import damaged, damaged_json
from fuzz.target import Drawn, Target, promised, written

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.array_files import (
    read_attention_map,
    read_layer_table,
    write_attention_map,
    write_layer_table,
)
from mlflow_stability.journal.journal import (
    JOURNAL,
    JournalFollower,
    encode,
    encode_layout,
    encode_step,
    frame,
    opening_if_readable,
    read_journal,
)
from mlflow_stability.tracking.artifacts import line_of, lines_in, read_attention_part, read_line
from mlflow_stability.tracking.read.run_record import read_layer_part, read_part
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Opening, Reset, Returned

UNREADABLE = (pa.ArrowException, ValueError, KeyError, TypeError)
"""What readers of parts may raise: their callers leave the part out."""


def recording_targets(place: Path) -> dict[str, Target]:
    """Return the targets."""
    events = {file: file.read_bytes() for file in sorted(FIXTURES.rglob("recording-*.jsonl"))}
    lines = [line for content in events.values() for line in content.decode().splitlines()]
    journal = _journal(lines)
    arrays = _array_files(place)
    parts = {
        "record.parquet": [file.read_bytes() for file in sorted(FIXTURES.rglob("record/part-*.parquet"))],
        "layers.parquet": [file.read_bytes() for file in sorted(FIXTURES.rglob("layers/part-*.parquet"))],
        "maps.npz": [file.read_bytes() for file in sorted(FIXTURES.rglob("maps/part-*.npz"))],
    }

    def draw_journal(rng: Random) -> Drawn:
        start = rng.randrange(len(journal))
        chosen = [*journal[:4], *journal[start : start + 12]]
        for at in range(len(chosen)):
            if rng.random() < 0.3:
                chosen[at] = _damaged_line(chosen[at], rng)
        content = b"".join(chosen)
        return Drawn(JOURNAL, damaged(content, [content], rng) if rng.random() < 0.5 else content)

    def draw_arrays(rng: Random) -> Drawn:
        name, content = rng.choice(arrays)
        header, _, values = content[9:].partition(b"\n")
        match rng.randrange(3):
            case 0:
                return Drawn(name, damaged(content, [content], rng))
            case 1:
                header = _dumped(damaged_json(json.loads(header), rng))
            case _:
                values = damaged(values, [values], rng)
        inside = header + b"\n" + values
        return Drawn(name, b"%08x " % crc32(inside) + inside)

    def draw_events(rng: Random) -> Drawn:
        chosen = []
        for line in rng.choices(lines, k=6):
            value = json.loads(line)
            chosen.append(_dumped(damaged_json(value, rng)) if rng.random() < 0.6 else line.encode())
        content = b"\n".join(chosen) + b"\n"
        return Drawn("recording-000.jsonl", damaged(content, [content], rng) if rng.random() < 0.4 else content)

    def draw_part(rng: Random) -> Drawn:
        name = rng.choice(list(parts))
        content = rng.choice(parts[name])
        if name.endswith(".npz") and rng.random() < 0.6:
            return Drawn(name, _repacked(content, rng))
        return Drawn(name, damaged(content, parts[name], rng))

    return {
        "journals": Target(150, draw_journal, _follow),
        "array_files": Target(50, draw_arrays, _read_arrays),
        "events": Target(120, draw_events, _read_events),
        "parts": Target(50, draw_part, _read_part),
    }


def _journal(lines: list[str]) -> list[bytes]:
    """Return the lines of a journal with every kind of record."""
    signals = (Signal("loss"), Signal("grad_norm"), Signal("learning_rate"), Signal("grad_norm", "layer.0"))
    read = [read_line(line) for line in lines]
    findings = [finding for finding in read if isinstance(finding, Finding)]
    others = [
        *(
            Note("a", "b", 3, 1.0),
            Fact("lr", "0.1"),
            Reset(3, 1, "loss above threshold"),
            Gap(3, 9, "the disk was full"),
        ),
        *(Returned("finished"), Closing("crashed", "ValueError: x", 9, 2.0)),
    ]
    steps = [
        encode_step(
            StepReading(n, signals, (9.0 / n, float("nan") if n % 7 == 0 else 1.0, 1e-3, 0.5), n // 20, 1e9 + n), 0
        )
        for n in range(1, 40)
    ]
    opening = Opening("0f", 1, 2.0, "host", 3.0, tags={"a": "b"}, earlier=["x"])
    return [encode(opening), encode_layout(0, signals), *steps, *map(encode, findings), *map(encode, others)]


def _damaged_line(line: bytes, rng: Random) -> bytes:
    """Return a line of the journal with other content and a right checksum, or a wrong one."""
    if rng.random() < 0.3:
        return damaged(line, [line], rng)
    return frame(_dumped(damaged_json(orjson.loads(line[9:-1]), rng)))


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _follow(drawn: Drawn, folder: Path) -> bool:
    """Read a journal at once, and while it grows: both must give the same."""
    file = written(drawn, folder)
    opening_if_readable(folder)
    try:
        whole = read_journal(file)
    except JournalError:
        return False
    file.write_bytes(b"")
    follower, grown = JournalFollower(file), []
    cuts = sorted(Random(len(drawn.content)).sample(range(len(drawn.content) + 1), min(4, len(drawn.content))))
    for end in (*cuts, len(drawn.content)):
        file.write_bytes(drawn.content[:end])
        while entries := follower.read(3):
            grown += [entry.record for entry in entries]
    promised(repr(grown) == repr(whole), "a growing journal is read differently")
    for record in whole:
        if isinstance(record, StepReading):
            promised(isinstance(record.step, int) and len(record.values) == len(record.signals), f"{record!r}")
    return bool(whole)


def _array_files(place: Path) -> list[tuple[str, bytes]]:
    """Return a table of layers and an attention map, as a training writes them beside its journal."""
    tables = [table for file in sorted(FIXTURES.rglob("layers/part-*.parquet"))[:2] for table in read_layer_part(file)]
    maps = [item for file in sorted(FIXTURES.rglob("maps/part-*.npz"))[:2] for item in read_attention_part(file)]
    files = [write_layer_table(place, table) for table in tables[:4]] + [
        write_attention_map(place, item) for item in maps[:2]
    ]
    return [
        ("map.arrays" if file.parent.name == "attention" else "table.arrays", file.read_bytes())
        for file in files
        if file
    ]


def _read_arrays(drawn: Drawn, folder: Path) -> bool:
    read: Callable[[Path], object] = read_attention_map if drawn.name.startswith("map") else read_layer_table
    try:
        read(written(drawn, folder))
    except JournalError:
        return False
    return True


def _read_events(drawn: Drawn, _folder: Path) -> bool:
    """Read events line by line; what was read is written and read again as the same."""
    read = 0
    for text in lines_in(drawn.content.decode("utf-8", "replace")):
        try:
            record = read_line(text)
        except ValueError:
            continue
        read += record is not None
        # An opening has lists and mappings, which may be nested deeper than anything is written.
        if record is not None and not isinstance(record, Opening):
            promised(repr(read_line(line_of(record))) == repr(record), f"{record!r} changes when it is written")
    return read > 0


def _read_part(drawn: Drawn, folder: Path) -> bool:
    file = written(drawn, folder)
    if drawn.name == "maps.npz":
        try:
            read_attention_part(file)
        except ValueError:
            return False
        return True
    try:
        (read_part if drawn.name == "record.parquet" else read_layer_part)(file)
    except UNREADABLE:
        return False
    return True


def _repacked(content: bytes, rng: Random) -> bytes:
    """Return an archive of arrays whose members are damaged inside, with right checksums."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            inside = old.read(name)
            if rng.random() < 0.3:
                inside = _forged_array(rng) if rng.random() < 0.3 else damaged(inside, [inside], rng)
            new.writestr(zipfile.ZipInfo(name), inside)
    return packed.getvalue()


def _forged_array(rng: Random) -> bytes:
    """Return an array of objects, or one of a shape that no memory holds."""
    made = BytesIO()
    np.save(made, np.zeros(3))
    old, new = rng.choice(
        (
            (b"'<f8'", b"'|O' "),
            (b"(3,)", b"(9999999999,)"),
            (b"(3,)", b"(2, 2)"),
            (b"'<f8'", b"'|S9'"),
            (b"(3,)", b"(-3,)"),
        )
    )
    return made.getvalue().replace(old, new)
