from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import curve, history

from mlflow_stability.importers.decimal_commas import with_points


@pytest.mark.parametrize(
    "line", ["step {n} loss 0,{n}482", "2026-01-01 12:00:0{n},123 INFO step={n}, loss=0,{n}482, acc=0,5"]
)
def test_a_decimal_comma_is_a_point(tmp_path: Path, line: str) -> None:
    run = history(tmp_path, "".join(line.format(n=n) + "\n" for n in range(1, 9)))
    assert curve(run, "loss") == [(n, float(f"0.{n}482")) for n in range(1, 9)]


@pytest.mark.parametrize(
    "line",
    ["step 1,00{n} loss 2.5", "step {n} tokens 12,34{n}", "[{n},25,3] 12:03:04,51{n}", "loss 0.5 at 0,5{n}82"],
)
def test_thousands_lists_and_clocks_stay_what_they_are(line: str) -> None:
    lines = [line.format(n=n) for n in range(1, 9)]
    assert list(with_points(lines)) == lines
