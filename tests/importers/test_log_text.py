from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history, metric, steps

from mlflow_stability.importers.log_text import all_states, clean_line, encoding_of, last_states

CHINESE = "".join(f"第{n}轮，训练损失：{9 / n:.4f}，验证损失：{10 / n:.4f}，准确率：{n}％\n" for n in range(1, 9))
MIXED = "".join(f"[训练] epoch：{n}，loss：{9 / n:.4f}，val_loss：{10 / n:.4f}\n" for n in range(1, 9))
WIDE = "".join(f"Ｅｐｏｃｈ：{n}　ｌｏｓｓ：{9 / n:.4f}　ｖａｌ＿ｌｏｓｓ：{10 / n:.4f}\n" for n in range(1, 9))
WIDE_DIGITS = str.maketrans("0123456789.", "０１２３４５６７８９．")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
@pytest.mark.parametrize("text", [CHINESE, MIXED, WIDE, WIDE.translate(WIDE_DIGITS)])
def test_full_width_marks_and_chinese_names_are_read_in_every_encoding(
    tmp_path: Path, text: str, encoding: str
) -> None:
    run = history(tmp_path, text.encode(encoding))
    by_quantity = {item.meaning.quantity: item.name for item in run.metrics}
    assert curve(run, by_quantity["loss"]) == [(n, round(9 / n, 4)) for n in range(1, 9)]
    assert curve(run, by_quantity["val_loss"]) == [(n, round(10 / n, 4)) for n in range(1, 9)]


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_is_distinguished_from_a_binary_file(tmp_path: Path, order: str) -> None:
    text = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 9))
    assert steps(history(tmp_path, text.encode(order)), "loss") == list(range(1, 9))
    assert encoding_of(b"\x00\x01\x00\x02" * 50) is None
    assert encoding_of(b"\x93NUMPY\x01\x00v\x00" + bytes(80)) is None


def test_a_table_in_chinese_is_read(tmp_path: Path) -> None:
    rows = "".join(f"{n},{9 / n},{10 / n}\n" for n in range(1, 9))
    run = history(tmp_path, f"轮次,训练损失,验证损失\n{rows}".encode("gb18030"))
    assert steps(run, "训练损失") == list(range(1, 9))


@pytest.mark.parametrize("word", ["Époque", "précision élevée", "Größe", "Übergröße", "niño", "façade", "naïve ÀÉ"])
def test_accents_are_no_chinese(word: str) -> None:
    assert encoding_of(f"{word}: loss: 0.5\n".encode("latin-1") * 3) == "latin-1"


def test_colours_links_and_erased_ends_of_lines_are_no_part_of_a_line(tmp_path: Path) -> None:
    run = history(
        tmp_path,
        "".join(
            f"\x1b[32m2024-01-01\x1b[0m | \x1b[1mEpoch \x1b[33m{n}\x1b[0m/20 \x1b[38;5;208mloss\x1b[0m="
            f"\x1b[1;31m{9 / n:.4f}\x1b[0m\x1b[K \x1b]8;;http://x\x07val_loss\x1b]8;;\x07: {10 / n:.4f}\n"
            for n in range(1, 9)
        ),
    )
    assert curve(run, "loss") == [(n, round(9 / n, 4)) for n in range(1, 9)]
    assert metric(run, "val_loss").meaning.quantity == "val_loss"


def test_of_a_line_written_over_with_backspaces_the_end_counts(tmp_path: Path) -> None:
    back = "\b" * 40
    log = "".join(f"Epoch {n}/8\n1/2 - loss: 7.5{back}2/2 - loss: {9 / n:.4f}{back}\n" for n in range(1, 9))
    assert [value for _, value in curve(history(tmp_path, log), "loss")] == [round(9 / n, 4) for n in range(1, 9)]


def test_a_line_written_above_a_progress_bar_is_no_part_of_the_bar(tmp_path: Path) -> None:
    bar = "Validation: |          | 0/? [00:00<?, ?it/s]\x1b[A"
    log = "".join(f"{bar}Epoch {n}: v_loss {8 / n:.4f}  loss {9 / n:.4f}\x1b[A\x1b[0m\n" for n in range(1, 9))
    run = history(tmp_path, log)
    assert curve(run, "loss") == [(n, round(9 / n, 4)) for n in range(1, 9)]
    assert metric(run, "v_loss").meaning.quantity == "val_loss"


@pytest.mark.slow
@given(st.text(st.sampled_from(list("ab1\r\b\n \x1b[m")), max_size=60))
def test_the_last_state_of_a_line_is_one_of_its_states(text: str) -> None:
    assert set(last_states(text)) <= {"", *all_states(text)}
    assert "\b" not in clean_line(text)


@given(st.binary(max_size=200))
def test_any_bytes_have_an_encoding_or_are_no_text(head: bytes) -> None:
    encoding = encoding_of(head)
    assert encoding is None or isinstance(head.decode(encoding, "replace"), str)


def test_a_log_that_was_emptied_while_it_was_written_is_read_behind_its_zeros(tmp_path: Path) -> None:
    text = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 9))
    assert steps(history(tmp_path, bytes(11_363) + text.encode()), "loss") == list(range(1, 9))
    assert encoding_of(bytes(500)) is None or not bytes(500).strip(b"\0")
