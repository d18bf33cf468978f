from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.open_log import read
from mlflow_stability.importers.wire_format import fields_of


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes | int | float) -> bytes:
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(message: bytes) -> bytes:
    return struct.pack("<Q", len(message)) + b"crc." + message + b"crc."


def event(step: int, *values: bytes) -> bytes:
    return record(field(1, 1.6e9 + step) + field(2, step) + field(5, b"".join(field(1, value) for value in values)))


def simple(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(tag: str, kind: int, content: bytes) -> bytes:
    return field(1, tag.encode()) + field(8, field(1, kind) + field(2, b"") + content)


VERSION = record(field(1, 1.6e9) + field(3, b"brain.Event:2"))


def test_scalars_of_the_first_tensorflow_and_of_pytorch_are_read(tmp_path: Path) -> None:
    file = tmp_path / "anything"
    file.write_bytes(VERSION + b"".join(event(n, simple("train/loss", 8.0 / n), simple("lr", 0.5)) for n in (1, 2, 4)))
    (run,) = read(file)
    assert run.format == "tensorboard"
    assert curve(run, "train/loss") == [(1, 8.0), (2, 4.0), (4, 2.0)]
    assert run.metrics[0].series.times.tolist() == [1.6e9 + n for n in (1, 2, 4)]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (1, field(4, struct.pack("<f", 2.5))),
        (1, varint(5 << 3 | 5) + struct.pack("<f", 2.5)),
        (1, field(5, struct.pack("<f", 2.5))),
        (2, field(4, struct.pack("<d", 2.5))),
        (2, varint(6 << 3 | 1) + struct.pack("<d", 2.5)),
        (19, field(13, int.from_bytes(struct.pack("<e", 2.5), "little"))),
        (14, field(13, int.from_bytes(struct.pack("<f", 2.5)[2:], "little"))),
    ],
)
def test_scalars_of_the_second_tensorflow_are_read_however_they_are_packed(
    tmp_path: Path, kind: int, content: bytes
) -> None:
    file = tmp_path / "events.out.tfevents.1.v2"
    file.write_bytes(VERSION + b"".join(event(n, tensor("epoch_loss", kind, content)) for n in range(3)))
    assert curve(read(file)[0], "epoch_loss") == [(0, 2.5), (1, 2.5), (2, 2.5)][:3]


def test_nan_is_kept_and_images_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "events"
    picture = field(1, b"image") + field(4, field(1, 4) + field(3, b"\x89PNG"))
    file.write_bytes(VERSION + b"".join(event(n, simple("loss", math.nan), picture) for n in (1, 2)))
    (run,) = read(file)
    assert [metric.name for metric in run.metrics] == ["loss"]
    assert all(math.isnan(value) for _, value in curve(run, "loss"))


def test_wherever_a_file_is_cut_off_what_is_whole_is_read(tmp_path: Path) -> None:
    whole = VERSION + b"".join(event(n, simple("loss", 8.0 / n)) for n in range(1, 6))
    file = tmp_path / "events"
    for length in range(len(VERSION) + 3 * (len(whole) - len(VERSION)) // 5, len(whole), 3):
        file.write_bytes(whole[:length])
        points = curve(read(file)[0], "loss")
        assert points == [(n, pytest.approx(8.0 / n)) for n in range(1, len(points) + 1)]
        assert len(points) >= 3


def test_the_files_of_one_folder_are_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "exp1"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1").write_bytes(VERSION + b"".join(event(n, simple("loss", 1.0)) for n in (1, 2)))
    (folder / "events.out.tfevents.2").write_bytes(VERSION + b"".join(event(n, simple("loss", 0.5)) for n in (3, 4)))
    (run,) = read(tmp_path)
    assert (run.source, [step for step, _ in curve(run, "loss")]) == (str(folder), [1, 2, 3, 4])


def test_what_a_run_wrote_of_training_and_validation_is_one_run(tmp_path: Path) -> None:
    for folder, first in (("train", 8.0), ("validation", 9.0)):
        (tmp_path / "logs" / "run1" / folder).mkdir(parents=True)
        values = (tensor("epoch_loss", 1, field(4, struct.pack("<f", first / (n + 1)))) for n in range(3))
        lr = (tensor("epoch_lr", 1, field(4, struct.pack("<f", 0.5))) for n in range(3))
        content = VERSION + b"".join(
            event(n, value, rate) for n, (value, rate) in enumerate(zip(values, lr, strict=True))
        )
        (tmp_path / "logs" / "run1" / folder / f"events.out.tfevents.{first}.v2").write_bytes(content)
    (run,) = read(tmp_path)
    assert run.source == str(tmp_path / "logs" / "run1")
    assert curve(run, "train/epoch_loss") == [(0, 8.0), (1, 4.0), (2, pytest.approx(8 / 3))]
    assert curve(run, "validation/epoch_loss") == [(0, 9.0), (1, 4.5), (2, 3.0)]
    assert {metric.meaning.quantity for metric in run.metrics} >= {"loss", "val_loss", "learning_rate"}
    assert all(metric.series.attempts.max() == 0 for metric in run.metrics)


def test_experiments_in_sibling_folders_are_separate_runs(tmp_path: Path) -> None:
    for folder in ("train_a", "train_b", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "events.out.tfevents.1").write_bytes(
            VERSION + b"".join(event(n, simple("loss", 1.0)) for n in (1, 2))
        )
    assert len(read(tmp_path)) == 3


def test_event_files_with_custom_names_are_separate_runs(tmp_path: Path) -> None:
    for name in ("first.tfevents", "second.tfevents"):
        (tmp_path / name).write_bytes(VERSION + b"".join(event(n, simple("loss", 1.0)) for n in (1, 2)))
    assert [Path(run.source).name for run in read(tmp_path)] == ["first.tfevents", "second.tfevents"]


def test_a_file_without_scalars_says_so(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_bytes(VERSION)
    with pytest.raises(UnreadableLogError, match="no metric"):
        read(file)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_fail(content: bytes) -> None:
    assert sum(1 for _ in fields_of(content)) <= len(content)


@given(st.binary(max_size=300))
def test_no_event_file_makes_reading_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("events") / "events"
    file.write_bytes(
        VERSION + event(1, simple("loss", 1.0)) + event(2, simple("loss", 1.0)) + record(content) + content
    )
    assert read(file)[0].points >= 1
