"""Lines that are read in blocks give what they give one by one, and several times faster."""

from __future__ import annotations

import io
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.decode import blocks_of, lines_of
from mlflow_stability.importers.formats import text_log
from mlflow_stability.importers.formats.text_log import TextLog

NUMBERS = [
    "2.5",
    "0.001",
    "3e-4",
    "-1.5E+3",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1,234.5",
    "12",
    ".5",
    "7.",
    "-",
    "e5",
    "1-2",
]
FORMS = [
    "step {step} loss {a} lr {b}",
    "step {step}/9999 | loss: {a} | grad_norm: {b}",
    "Epoch {epoch}, step {step}: loss={a}, lr={b}",
    "step {step} val_loss {a}",
    "Step {step}\tloss {a}\tgrad_norm {b}",
    "step {step} loss {a}it/s lr {b}",
    "[{epoch}, {step}] loss: {a}",
    "epoch {epoch} acc {a}",
    "loss {a} norm {b}",
    "step {step} loss {a}, grad_norm {b}, overflow 3",
    "step {step}  loss  {a} lr {b}  ",
    "iter {step}: loss {a}, time {b}ms",
]
OTHERS = [
    "",
    "Saving checkpoint",
    "NaN loss detected at step 12! Skipping",
    "Batch 7: ROLLBACK TRIGGERED",
    "OVERFLOW! Skipping step",
    "RuntimeError: CUDA out of memory",
    "Test Error:",
    "进度 步 5",
    "\x1b[31mstep 5 loss 2.5 lr 0.1\x1b[0m",
    '{"step": 5, "loss": 2.5}',
    "x" * 30_000,
    "step 5 loss tensor(2.5) lr 0.1",
    "step 5 loss -nan(ind) lr 0.1",
    "progress\rstep 5 loss 2.5 lr 0.1",
]


def some_log(seed: int) -> str:
    """Stretches of lines of few forms, with other lines between them; each form comes first, so that it is known."""
    random = Random(seed)
    usual = random.random() < 0.5
    lines = [form.format(step=n, epoch=0, a=2.5, b=0.1) for form in FORMS for n in (1, 2)] if usual else []
    step = 2
    for _ in range(random.randint(1, 12)):
        forms = random.sample(FORMS, random.randint(1, 3))
        values = NUMBERS[: random.choice([4, 4, len(NUMBERS)])]
        for _ in range(random.randint(1, 60)):
            step += random.choice([1, 1, 1, 10, -5] if random.random() < 0.2 else [1])
            a, b = random.choice(values), random.choice(values)
            lines.append(random.choice(forms).format(step=abs(step), epoch=abs(step) // 7, a=a, b=b))
        lines += random.choices(OTHERS, k=random.choice([0, 0, 1, 2]))
    return "\n".join(lines) + random.choice(["\n", ""])


def held(log: TextLog) -> object:
    content, form = log.finish()
    columns = {
        name: [getattr(column, each).tobytes() for each in column.__slots__] for name, column in content.columns.items()
    }
    told = [(each.event, each.row, each.own_step) for each in content.reported]
    return list(columns.items()), told, content.totals(), content.outcome, content.notes, content.size, form


def one_by_one(text: str) -> object:
    log = TextLog()
    for line in lines_of(io.StringIO(text, newline=None)):
        log.take(line)
    return held(log)


def in_blocks(text: str, size: int) -> object:
    log = TextLog()
    for block in blocks_of(io.StringIO(text, newline=None), size):
        log.take_block(block)
    return held(log)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([50, 700, 5000, 1 << 18]), st.sampled_from([2, 24]))
def test_blocks_give_what_single_lines_give(seed: int, size: int, worth: int) -> None:
    text = some_log(seed)
    with mock.patch.object(text_log, "_WORTH_A_BLOCK", worth):
        assert in_blocks(text, size) == one_by_one(text)


def test_a_log_that_is_thinned_is_thinned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("assemble.log_content", "formats.text_log"):
        monkeypatch.setattr(f"mlflow_stability.importers.{room}.MOST_VALUES", 3000)
    monkeypatch.setattr("mlflow_stability.importers.assemble.log_content._WORTH_THINNING", 100)
    text = "".join(f"step {n} loss {2 + n % 7 / 10} lr {1 / (n + 1):.6f}\n" for n in range(5000))
    assert in_blocks(text, 4000) == one_by_one(text)


def test_totals_are_counted_alike_however_many_there_are() -> None:
    text = "".join(f"step {n}/{n % 6007 + 9000} loss {2 + n % 7 / 10}\n" for n in range(13_000))
    assert in_blocks(text, 1 << 16) == one_by_one(text)


def test_counting_many_totals_is_counting_each() -> None:
    one, many = LogContent(), LogContent()
    totals = np.array([5.0, 3.0, 5.0, 9.0, 3.0, 7.0])
    for total in totals.tolist():
        one.count_of(total)
    many.count_all_of(totals)
    assert one.totals() == many.totals() == [5, 3, 9, 7]
