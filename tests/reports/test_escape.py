from __future__ import annotations

import re

import pytest
from hypothesis import given
from reports.hostile import TEXTS

from mlflow_stability.reports.escape import csv_cell, markdown, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train/loss", "train/loss"),
        ("Verlust für Köln, 損失", "Verlust für Köln, 損失"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("12\u00a0000", "12 000"),
        ("\udcff", "\\udcff"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_long_name_is_shortened_on_request() -> None:
    assert plain("x" * 1000, 20) == "x" * 19 + "…"
    assert plain("x" * 20, 20) == "x" * 20


@given(TEXTS)
def test_plain_text_never_has_unprintable_characters(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "＝1"])
def test_a_cell_is_never_a_formula(text: str) -> None:
    assert csv_cell(text)[0] in "'\\"


def test_an_ordinary_cell_stays_as_it_is() -> None:
    assert csv_cell("loss_spike at 3; a-b") == "loss_spike at 3; a-b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss_spike at step 3.5 (-12%)", "loss_spike at step 3.5 (-12%)"),
        ("a|b", "a\\|b"),
        ("# heading", "&#35; heading"),
        ("- item", "&#45; item"),
        ("1. first", "&#49;. first"),
        ("4.46 -> 1.78", "4.46 -> 1.78"),
        ("> quote", "\\> quote"),
        ("    code", "code"),
        ("**bold** _it_", "\\*\\*bold\\*\\* \\_it\\_"),
        ("http://x", "http:/&#47;x"),
        ("<b>", "\\<b>"),
        ("", ""),
    ],
)
def test_markdown_shows_the_text_and_does_nothing(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(TEXTS)
def test_markdown_never_opens_anything(text: str) -> None:
    shown = markdown(text)
    assert "\n" not in shown
    unescaped = re.sub(r"\\\\|\\[`*_\[\]<>|~&$]", "", shown)
    assert not re.search(r"[`*\[\]<|~$]|://|www\.", unescaped)
    assert not re.match(r"\s*(#{1,6}(\s|$)|[-+]\s|\d+[.)](\s|$)|>|={2,}|-{2,})", shown)
