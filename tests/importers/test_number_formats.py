from __future__ import annotations

import math
from pathlib import Path

import pytest
from importers.reading import curve, history

from mlflow_stability.importers.log_text import with_points

NAN = ["-nan(ind)", "nan(ind)", "-nan(snan)", "1.#QNAN", "1.#QNAN0", "-1.#IND", "-1.#IND00", "1.#R", "nan"]


@pytest.mark.parametrize("written", NAN)
def test_what_c_libraries_write_for_not_a_number_is_that(tmp_path: Path, written: str) -> None:
    table = "step,loss\n" + "".join(f"{n},{written if n == 2 else 1 / n}\n" for n in range(1, 6))
    lines = "".join(f"step {n} loss {written if n == 2 else 1 / n}\n" for n in range(1, 6))
    for text in (table, lines):
        result = curve(history(tmp_path, text), "loss")
        assert len(result) == 5
        assert math.isnan(result[1][1])


@pytest.mark.parametrize(("written", "value"), [("1.#INF", math.inf), ("-1.#INF00", -math.inf), ("1.#J", math.inf)])
def test_infinities_are_infinite(tmp_path: Path, written: str, value: float) -> None:
    lines = "".join(f"step {n} loss: {written if n == 2 else 1.5}\n" for n in range(1, 6))
    assert curve(history(tmp_path, lines), "loss")[1] == (2, value)


def test_a_printed_tensor_is_its_number(tmp_path: Path) -> None:
    cells = ["tensor(0.5)", "tensor(0.25, device='cuda:0')", "tensor(0.125, grad_fn=<MseLossBackward0>)"]
    table = "step,loss\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells))
    lines = "".join(f"step: {n}, loss: {cell}\n" for n, cell in enumerate(cells))
    for text in (table, lines):
        assert curve(history(tmp_path, text), "loss") == [(0, 0.5), (1, 0.25), (2, 0.125)]


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
