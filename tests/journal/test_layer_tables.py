from __future__ import annotations

import json
import stat
import tempfile
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from figures.layers import gpt_layers, normal, not_finite, table
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.test_full_disk import in_a_child, limit

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.array_files import layer_table_files, read_layer_table, write_layer_table
from mlflow_stability.vocabulary.measured.layer_arrays import LayerTable, layer_table_from


def equal(first: LayerTable, other: LayerTable) -> bool:
    arrays = ("statistics", "percentiles", "edges", "counts")
    plain = ("step", "attempt", "what", "layers")
    return all(getattr(first, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(getattr(first, name), getattr(other, name), equal_nan=name != "counts")
        and getattr(first, name).dtype == getattr(other, name).dtype
        and getattr(first, name).shape == getattr(other, name).shape
        for name in arrays
    )


def bare(step: int, what: str = "gradient") -> LayerTable:
    return layer_table_from(step, 2, what, ["a", "b.c"], [0.0, 1.0, np.inf, 0.5, np.nan, 1.0, 2.0, 0.0])


def test_a_table_is_read_back_unchanged(tmp_path: Path) -> None:
    for item in (bare(7), table(1000, gpt_layers(12), [not_finite, normal()], "weight")):
        file = write_layer_table(tmp_path, item)
        assert file is not None
        assert equal(read_layer_table(file), item)


@settings(max_examples=30)
@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(0, 10**13), st.integers(0, 2**40))
def test_any_name_step_and_count_is_read_back(names: list[str], step: int, count: int) -> None:
    values = np.zeros((len(names), 78))
    values[:, -1] = count
    results = layer_table_from(step, 0, "gradient", names, values.reshape(-1).tolist())
    with tempfile.TemporaryDirectory() as room:
        file = write_layer_table(Path(room), results)
        assert file is not None
        assert equal(read_layer_table(file), results)


def test_the_files_are_found_in_the_order_of_steps_and_nothing_else_is(tmp_path: Path) -> None:
    assert layer_table_files(tmp_path) == []
    for step, what in ((20_000, "gradient"), (300, "weight"), (300, "gradient")):
        write_layer_table(tmp_path, bare(step, what))
    write_layer_table(tmp_path, table(1000, ["a"], [normal()]))
    (tmp_path / "layers" / "notes.arrays").write_bytes(b"")
    files = [(file.step, file.what, file.has_histograms) for file in layer_table_files(tmp_path)]
    assert files == [
        (300, "gradient", False),
        (300, "weight", False),
        (1000, "gradient", True),
        (20_000, "gradient", False),
    ]


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    file = write_layer_table(tmp_path, bare(1))
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_full_disk_leaves_no_partial_file_and_raises_nothing(tmp_path: Path) -> None:
    def training() -> None:
        limit(100)
        assert write_layer_table(tmp_path, bare(1)) is None

    in_a_child(training)
    assert list((tmp_path / "layers").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"0a1b2c3d torn", b"not at all"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = write_layer_table(tmp_path, bare(1))
    assert file is not None
    file.write_bytes(content)
    with pytest.raises(JournalError, match=r"000000000001-gradient\.arrays"):
        read_layer_table(file)
    content = json.dumps([["steps", "<f8", ["9", 10**6]]]).encode() + b"\n"
    file.write_bytes(b"%08x " % crc32(content) + content)
    with pytest.raises(JournalError, match="the array steps has no shape"):
        read_layer_table(file)
    whole = write_layer_table(tmp_path, bare(1))
    assert whole is not None
    file.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(JournalError):
        read_layer_table(file)


@pytest.mark.parametrize(
    "header", [[["head", "<f8", [2**70]]], [["head", "<f8", 3]], [[[], "<f8", [0]]], [7], {"a": 1}]
)
def test_a_file_with_a_forged_header_is_named(tmp_path: Path, header: object) -> None:
    file = tmp_path / "table.arrays"
    content = json.dumps(header).encode() + b"\n" + bytes(24)
    file.write_bytes(b"%08x " % crc32(content) + content)
    with pytest.raises(JournalError, match=r"table\.arrays"):
        read_layer_table(file)
