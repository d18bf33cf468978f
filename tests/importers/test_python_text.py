from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history

from mlflow_stability.importers.json_rows import parse_value

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc'\" :,{}[]()", max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "{'loss': 0.5, 'it': \"it's\", u'lr': 1e-05, 'none': None, 'yes': True}",
            {"loss": 0.5, "it": "it's", "lr": 1e-5},
        ),
        ("{'loss': [inf, -inf], 'tuple': (1, 2,), 'one': (1,)}", {"loss": [math.inf, -math.inf], "tuple": [1, 2]}),
        ("{'loss': np.float64(0.5), 'x': numpy.int32(3), 'y': float32(2.5)}", {"loss": 0.5, "x": 3, "y": 2.5}),
        ("{'loss': tensor(0.25, device='cuda:0', grad_fn=<NllLossBackward0>)}", {"loss": 0.25}),
        ("{'loss': <tf.Tensor: shape=(), dtype=float32, numpy=0.5>}", {"loss": 0.5}),
        ("{'loss': array([1., 0.5], dtype=float32), 'x': tensor([3.])}", {"loss": [1.0, 0.5], "x": [3.0]}),
        ("{0: {'loss': 2.0}, 1: {'loss': 1.0}}", {"0": {"loss": 2.0}, "1": {"loss": 1.0}}),
        ("defaultdict(<class 'list'>, {'loss': [2, 1]})", {"loss": [2, 1]}),
    ],
)
def test_what_python_prints_is_read(text: str, value: dict[str, object]) -> None:
    result = parse_value(text)
    assert isinstance(result, dict)
    assert {key: result[key] for key in value} == value


def test_not_a_number_is_a_number_and_not_a_word(tmp_path: Path) -> None:
    run = history(tmp_path, "{'loss': [2.0, nan, 1.0], 'val_loss': [3.0, 2.0, 2.5]}\n", "history.txt")
    assert [value for _, value in curve(run, "val_loss")] == [3.0, 2.0, 2.5]
    assert math.isnan(curve(run, "loss")[1][1])


def test_rows_of_a_list_and_of_lines_are_read(tmp_path: Path) -> None:
    rows = [{"epoch": n, "loss": 8 / (n + 1), "note": "it's"} for n in range(4)]
    assert curve(history(tmp_path, str(rows)), "loss") == [(0, 8.0), (1, 4.0), (2, pytest.approx(8 / 3)), (3, 2.0)]
    assert len(curve(history(tmp_path, "".join(f"{row}\n" for row in rows)), "loss")) == 4


@given(values)
def test_json_stays_what_it_is(value: object) -> None:
    assert parse_value(json.dumps(value)) == value


@given(st.dictionaries(st.text("abc_ /", min_size=1, max_size=6), st.lists(st.floats(allow_nan=False), max_size=4)))
def test_a_printed_history_gives_the_history(value: dict[str, list[float]]) -> None:
    assert parse_value(str(value)) == value


@given(st.text("{}[]()'\",: \\nainf0123.tesorpl", max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    parse_value(text)
    parse_value("{'" + text)
