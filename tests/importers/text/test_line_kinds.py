"""Lines of several kinds with the same names, each kind with its own level, are no curve of one quantity."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import history, metric

TURNS = "ABBABABAABABBABABBABAABABABAABBABABA"


def log(first: str, second: str, higher: float, name: str = "loss") -> str:
    texts = {"A": first, "B": second}
    values = ((kind, 3 - n / 20 + (higher if kind == "B" else 0)) for n, kind in enumerate(TURNS))
    return "".join(f"[{n:05d}/50000] {texts[kind]} | {name} {value:.3f}\n" for n, (kind, value) in enumerate(values, 1))


def test_data_sets_in_turn_with_levels_of_their_own_are_not_judged_as_one_curve(tmp_path: Path) -> None:
    run = history(tmp_path, log("ROADS", "FACES", 2.0))
    assert not metric(run, "loss").meaning.is_known
    assert run.notes == (
        "Not judged: loss, because lines that begin with 'FACES loss' and with 'ROADS loss' have different levels.",
    )


@pytest.mark.parametrize(
    "text",
    [
        log("ROADS", "FACES", 0.0),
        log("ROADS", "FACES", 2.0)[: 40 * 10],  # too few lines
    ],
    ids=["one level", "few lines"],
)
def test_lines_of_one_kind_or_of_one_level_are_a_curve(tmp_path: Path, text: str) -> None:
    run = history(tmp_path, text)
    assert metric(run, "loss").meaning.quantity == "loss"
    assert not [note for note in run.notes if note.startswith("Not judged")]
