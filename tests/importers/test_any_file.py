"""Files of every format: each is read, or refused in one sentence, and no other suffers. `tests/fuzz` damages them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from importers.formats.test_event_file import VERSION, event, simple
from importers.formats.test_notebook import cell, hugging_face, keras, notebook, printed, shown
from importers.wandb_writer import SAMPLE

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.log_format import formats
from mlflow_stability.importers.open_log import read
from mlflow_stability.vocabulary.run import RunHistory

N = range(1, 9)
SAMPLES = {
    "table.csv": "epoch,step,loss,val_loss\n" + "".join(f'{n},{n * 10},{9 / n},"{10 / n}"\n' for n in N),
    "rows.jsonl": "".join(json.dumps({"step": n, "loss": 9 / n, "nested": {"a": [1]}}) + "\n" for n in N),
    "trainer_state.json": json.dumps({"log_history": [{"step": n, "loss": 9 / n, "epoch": n / 3} for n in N]}),
    "history.json": json.dumps({"loss": [9 / n for n in N], "val_loss": [10 / n for n in N]}, indent=1),
    "history.txt": str({"loss": [9 / n for n in N], "val_loss": [float("nan"), *(10 / n for n in N)][:8]}),
    "history.pkl": pickle.dumps({"loss": [np.float32(9 / n) for n in N], "acc": np.arange(8.0), "n": 3}),
    "run.wandb": SAMPLE.read_bytes(),
    "events.out.tfevents.1": VERSION + b"".join(event(n, simple("loss", 9 / n)) for n in N),
    "train.ipynb": notebook(cell(printed(keras(9))), cell(shown(hugging_face(4)))),
    "keras.log": keras(9),
    "train.log": "".join(f"\x1b[1mstep {n}/9\x1b[0m | loss: {9 / n:.3f} | lr=1e-3 tensor(0.5)\n" for n in N),
    "chinese.log": "".join(f"第{n}轮，训练损失：{9 / n:.4f}\n" for n in N).encode("gb18030"),
    "wide.log": "".join(f"step {n} loss {9 / n:.4f}\n" for n in N).encode("utf-16"),
    "tables.log": "| epoch | loss |\n|---|---|\n" + "".join(f"| {n} | {9 / n} |\n" for n in N),
}
BYTES = {name: text.encode() if isinstance(text, str) else text for name, text in SAMPLES.items()}


def read_or_refused(path: Path) -> list[RunHistory]:
    try:
        return read(path)
    except UnreadableLogError as refusal:
        message = str(refusal)
        assert message.isprintable()
        assert message.endswith(".")
        assert "Please report it" not in message
        return []


@pytest.mark.parametrize("name", BYTES)
def test_every_sample_is_read_whatever_its_file_is_called(tmp_path: Path, name: str) -> None:
    for called in (name, "data"):
        (tmp_path / called).write_bytes(BYTES[name])
        assert max(len(metric.series) for metric in read(tmp_path / called)[0].metrics) >= len(N)


def test_unreadable_files_cost_the_others_nothing(tmp_path: Path) -> None:
    for name, content in BYTES.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"cut {name}").write_bytes(content[: len(content) // 9])
        (tmp_path / f"odd {name}").write_bytes(bytes(reversed(content)))
    whole = {Path(item.source).relative_to(tmp_path).parts[0] for item in read(tmp_path)}
    assert whole >= set(BYTES)


def test_every_format_says_what_it_is_and_how_its_files_end() -> None:
    names = [entry.name for entry in formats()]
    assert len(names) == len(set(names)) == 7
    endings = [ending for item in formats() for ending in item.endings]
    assert len(endings) == len(set(endings))


@pytest.mark.parametrize(
    "text",
    [
        "{'" + "\\'" * 500_000,
        "{" + "array([" * 100_000,
        "<table" * 100_000,
        "a  " * 300_000,
        "[" * 1_000_000,
        "\b" * 10**6,
    ],
    ids=["quotes", "arrays", "tables", "columns", "brackets", "backspaces"],
)
def test_a_megabyte_of_anything_takes_seconds(tmp_path: Path, text: str) -> None:
    begin = process_time()
    for name, content in (("a.txt", text), ("a.ipynb", notebook(cell(printed(text)), cell(shown(f"<table>{text}"))))):
        (tmp_path / name).write_text(content)
        assert read_or_refused(tmp_path / name) == []
    assert process_time() - begin < 20
