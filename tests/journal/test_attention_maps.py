from __future__ import annotations

import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from figures.attention import attention, same
from hypothesis import given, settings
from hypothesis import strategies as st
from journal.test_full_disk import in_a_child, limit

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.array_files import attention_map_files, read_attention_map, write_attention_map


def test_a_map_is_read_back_unchanged(tmp_path: Path) -> None:
    broken = replace(attention(), weights=np.full((4, 8, 8), np.nan, np.float16))
    for item in (attention(32, 64, 64, causal=True, tokens=(512, 512)), broken):
        file = write_attention_map(tmp_path, item)
        assert file is not None
        assert same(read_attention_map(file), item)


@settings(max_examples=30)
@given(
    st.text(), st.integers(0, 10**13), st.integers(0, 10**5), st.integers(1, 4), st.integers(0, 5), st.integers(0, 5)
)
def test_any_name_step_and_shape_is_read_back(
    layer: str, step: int, number: int, heads: int, queries: int, keys: int
) -> None:
    weights = np.full((heads, queries, keys), 0.5, np.float16)
    changed = replace(
        attention(heads),
        layer=layer,
        step=step,
        layer_number=number,
        weights=weights,
        average=weights[0].astype(np.float32),
    )
    with tempfile.TemporaryDirectory() as room:
        file = write_attention_map(Path(room), changed)
        assert file is not None
        assert same(read_attention_map(file), changed)
        assert [(point.step, point.layer_number) for point in attention_map_files(Path(room))] == [(step, number)]


def test_the_files_are_found_in_the_order_of_measuring_and_nothing_else_is(tmp_path: Path) -> None:
    assert attention_map_files(tmp_path) == []
    for step, attempt, number in ((1000, 0, 1), (500, 1, 0), (1000, 0, 0), (500, 0, 0)):
        write_attention_map(tmp_path, attention(step=step, attempt=attempt, number=number))
    (tmp_path / "attention" / "notes.arrays").write_bytes(b"")
    files = [(file.attempt, file.step, file.layer_number) for file in attention_map_files(tmp_path)]
    assert files == [(0, 500, 0), (0, 1000, 0), (0, 1000, 1), (1, 500, 0)]


def test_the_first_layers_of_two_models_do_not_replace_each_other(tmp_path: Path) -> None:
    write_attention_map(tmp_path, attention(layer="encoder.0"))
    write_attention_map(tmp_path, attention(layer="decoder.0"))
    assert len(attention_map_files(tmp_path)) == 2


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    file = write_attention_map(tmp_path, attention())
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_full_disk_leaves_no_partial_file_and_raises_nothing(tmp_path: Path) -> None:
    def training() -> None:
        limit(100)
        assert write_attention_map(tmp_path, attention()) is None

    in_a_child(training)
    assert list((tmp_path / "attention").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"0a1b2c3d torn", b"not at all"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = write_attention_map(tmp_path, attention())
    assert file is not None
    whole = file.read_bytes()
    file.write_bytes(content)
    with pytest.raises(JournalError, match=r"0000-000000000500-0000-[0-9a-f]+\.arrays"):
        read_attention_map(file)
    file.write_bytes(whole[:-100])
    with pytest.raises(JournalError):
        read_attention_map(file)


def test_arrays_that_do_not_fit_together_are_no_map(tmp_path: Path) -> None:
    odd = replace(attention(), average=np.zeros((3, 3), np.float32))
    file = write_attention_map(tmp_path, odd)
    assert file is not None
    with pytest.raises(JournalError, match="do not form a map"):
        read_attention_map(file)
