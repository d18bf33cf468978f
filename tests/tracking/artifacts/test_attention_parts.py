from __future__ import annotations

import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from figures.attention import attention, same
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.tracking.artifacts import (
    AttentionPart,
    attention_part,
    picture_of_layer,
    read_attention_part,
    write_attention_part,
)


def test_maps_are_read_back_unchanged_under_the_steps_of_the_run(tmp_path: Path) -> None:
    maps = [attention(number=number, layer=f"h.{number}", causal=True) for number in range(12)]
    write_attention_part(tmp_path / "part.npz", maps, 10_000)
    back = read_attention_part(tmp_path / "part.npz")
    assert all(same(first, replace(other, step=10_500)) for first, other in zip(back, maps, strict=True))


@given(st.builds(AttentionPart, st.integers(0, 10**4), st.integers(0, 10**5), st.integers(0, 10**14)))
def test_the_name_of_a_part_describes_its_content(part: AttentionPart) -> None:
    assert attention_part(part.name) == part


def test_other_files_are_no_parts() -> None:
    assert attention_part("part-000-000000000500.parquet") is None
    assert attention_part("part-000-0000-000000000500.npz.tmp") is None


def test_a_picture_is_named_by_step_and_layer_and_what_came_again_has_a_name_of_its_own() -> None:
    assert picture_of_layer(AttentionPart(0, 0, 500), 0) == "step_000500_layer0.png"
    assert picture_of_layer(AttentionPart(0, 2, 500), 11) == "step_000500_layer11_attempt2.png"
    assert picture_of_layer(AttentionPart(1, 0, 1_500_000), 3) == "step_1500000_layer3-2.png"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"<html>"])
def test_a_damaged_part_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "part.npz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"part\.npz holds no attention maps"):
        read_attention_part(file)
    write_attention_part(file, [attention()])
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"part\.npz"):
        read_attention_part(file)


def forged(member: bytes) -> bytes:
    """An archive whose member says something else than it holds, with a right checksum."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("0.head.npy", member)
    return packed.getvalue()


def an_array_of(shape: bytes) -> bytes:
    made = BytesIO()
    np.save(made, np.zeros(3))
    return made.getvalue().replace(b"(3,)", shape)


@pytest.mark.parametrize(
    "member", [b"no array", an_array_of(b"(99999999999999,)"), an_array_of(b"(3,"), an_array_of(b"(3")]
)
def test_a_part_with_a_forged_array_is_named(tmp_path: Path, member: bytes) -> None:
    file = tmp_path / "part.npz"
    file.write_bytes(forged(member))
    with pytest.raises(ValueError, match=r"part\.npz holds no attention maps"):
        read_attention_part(file)


def test_a_part_whose_compressed_bytes_are_damaged_is_named(tmp_path: Path) -> None:
    file = tmp_path / "part.npz"
    write_attention_part(file, [attention()])
    content = bytearray(file.read_bytes())
    start = 30 + len("0.head.npy") + content[28] + 1  # behind the header of the first member
    content[start : start + 40] = b"\xff" * 40
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"part\.npz holds no attention maps"):
        read_attention_part(file)
