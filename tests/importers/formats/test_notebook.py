from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, metric, steps
from importers.test_open_log import read_or_refused, refused

from mlflow_stability.importers.formats.notebook import MIN_POINTS
from mlflow_stability.importers.open_log import read
from mlflow_stability.vocabulary.run import RunHistory

Output = dict[str, object]


def printed(text: str) -> Output:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def shown(page: str = "", text: str = "<IPython.core.display.HTML object>") -> Output:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": [page], "text/plain": [text]}}


def cell(*outputs: Output) -> dict[str, object]:
    return {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": list(outputs), "source": ["x = 1"]}


def notebook(*cells: dict[str, object]) -> str:
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# loss: 0.5 step 3"]}
    return json.dumps({"cells": [text, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def runs(folder: Path, *cells: dict[str, object]) -> list[RunHistory]:
    (folder / "train.ipynb").write_text(notebook(*cells))
    return read(folder / "train.ipynb")


def keras(epochs: int, overwrite: str = "\r", batches: int = 5) -> str:
    """What Keras prints: a bar that is written over and over, and at the end of the epoch once more."""
    out = ""
    for epoch in range(1, epochs + 1):
        out += f"Epoch {epoch}/{epochs}\n"
        bars = [f"{n}/{batches} [==>...] - ETA: 3s - loss: {9 / epoch + n:.4f}" for n in range(1, batches + 1)]
        bars.append(f"{batches}/{batches} [=====] - 1s 20ms/step - loss: {8 / epoch:.4f} - val_loss: {9 / epoch:.4f}")
        out += overwrite.join(f"{bar}{chr(8) * 40 if overwrite == chr(13) else ''}" for bar in bars) + "\n"
    return out


@pytest.mark.parametrize("overwrite", ["\r", "\b" * 60, "\b" * 60 + "\r"])
def test_the_last_state_of_a_keras_progress_bar_in_each_epoch_counts(tmp_path: Path, overwrite: str) -> None:
    (run,) = runs(tmp_path, cell(printed("\x1b[1mModel\x1b[0m\n" + keras(10, overwrite))))
    assert run.format == "notebook"
    assert run.source == str(tmp_path / "train.ipynb")
    assert [value for _, value in curve(run, "loss")] == [round(8 / n, 4) for n in range(1, 11)]
    assert [value for _, value in curve(run, "val_loss")] == [round(9 / n, 4) for n in range(1, 11)]


def test_a_bar_that_is_the_whole_log_is_read_in_all_its_states(tmp_path: Path) -> None:
    text = "\r".join(f"step {n} loss {9 / n:.4f}" for n in range(1, 4 * MIN_POINTS))
    (run,) = runs(tmp_path, cell(printed(text)))
    assert steps(run, "loss") == list(range(1, 4 * MIN_POINTS))


def test_several_folds_in_one_cell_are_several_attempts(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, cell(printed("".join(f"Fold {fold}\n{keras(9)}" for fold in range(3)))))
    series = metric(run, "val_loss").series
    assert series.attempts.max() == 2
    assert len(series) == 27
    assert "decreases 2 times" in " ".join(run.notes)


def test_trainings_in_several_cells_are_several_runs_and_each_can_be_asked_for(tmp_path: Path) -> None:
    prose = cell(printed("Using 8 GPUs, 12 samples\n"), shown("<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"))
    first, second = runs(tmp_path, cell(printed(keras(9))), prose, cell(printed(keras(12))))
    assert [first.name, second.name] == ["train.ipynb, cell 2", "train.ipynb, cell 4"]
    assert [len(curve(item, "loss")) for item in (first, second)] == [9, 12]
    assert second.source == str(tmp_path / "train.ipynb" / "cell 4")
    (again,) = read(Path(second.source))
    assert again.name == second.name
    assert "has no cell 3 with training metrics" in refused(tmp_path / "train.ipynb" / "cell 3")


HUGGING_FACE = """
    <div><progress value='60' max='60' style='width:300px'></progress> [60/60 00:08, Epoch 3/3]</div>
    <table border="1" class="dataframe">
  <thead>
 <tr style="text-align: left;">
      <th>Step</th>
      <th>Training Loss</th>
      <th>Validation Loss</th>
      <th>F1 &amp; more</th>
    </tr>
  </thead>
  <tbody>{rows}
  </tbody>
</table><p>"""


def hugging_face(rows: int) -> str:
    cells = [(10 * n, "No log" if n == 1 else f"{4 / n:.6f}", f"{5 / n:.6f}", "0.5") for n in range(1, rows + 1)]
    return HUGGING_FACE.format(
        rows="".join("<tr>\n" + "".join(f"  <td>{value}</td>\n" for value in row) + "</tr>" for row in cells)
    )


def test_the_table_that_hugging_face_s_trainer_shows_is_read(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, cell(printed("Loading 3 files\n"), shown(hugging_face(4))))
    assert curve(run, "Training Loss") == [(20, 2.0), (30, pytest.approx(4 / 3)), (40, 1.0)]
    assert steps(run, "Validation Loss") == [10, 20, 30, 40]
    assert metric(run, "Validation Loss").meaning.quantity == "val_loss"
    assert "F1 & more" in {entry.name for entry in run.metrics}


def test_fastai_s_table_and_a_history_shown_as_a_frame_are_read(tmp_path: Path) -> None:
    names = "".join(f"<th>{name}</th>" for name in ("epoch", "train_loss", "valid_loss", "time"))
    rows = "".join(
        f"<tr><td>{n}</td><td>{3 / (n + 1)}</td><td>{4 / (n + 1)}</td><td>00:1{n}</td></tr>" for n in range(4)
    )
    (run,) = runs(tmp_path, cell(shown(f"<TABLE><TR>{names}</TR>{rows}</TABLE>")))
    assert curve(run, "valid_loss")[:2] == [(0, 4.0), (1, 2.0)]
    rows = "".join(f"<tr><th>{n}</th><td>{3 / (n + 1)}</td><td>nan</td></tr>" for n in range(4))
    (run,) = runs(tmp_path, cell(shown(f"<table><tr><th></th><th>loss</th><th>val_loss</th></tr>{rows}</table>")))
    assert [value for _, value in curve(run, "loss")] == [3.0, 1.5, 1.0, 0.75]
    assert all(math.isnan(value) for _, value in curve(run, "val_loss"))


@pytest.mark.parametrize("how", ["displayed", "printed"])
def test_a_history_that_was_printed_or_displayed_is_read(tmp_path: Path, how: str) -> None:
    text = "{'loss': [np.float64(2.0), 1.0, nan],\n 'val_loss': [3.0, 2.0, 1.5]}"
    (run,) = runs(tmp_path, cell(shown(text=text) if how == "displayed" else printed(f"{text}\n")))
    assert [value for _, value in curve(run, "val_loss")] == [3.0, 2.0, 1.5]
    assert math.isnan(curve(run, "loss")[2][1])


def test_an_exception_or_an_interruption_is_read_as_the_outcome(tmp_path: Path) -> None:
    def ended(name: str) -> Output:
        return {"output_type": "error", "ename": name, "evalue": "why", "traceback": ["\x1b[0;31m----"]}

    for name, outcome in (("KeyboardInterrupt", "interrupted"), ("ValueError", "crashed")):
        (run,) = runs(tmp_path, cell(printed(keras(9)), ended(name)))
        assert (run.outcome, run.outcome_detail) == (outcome, f"{name}: why")


def test_a_notebook_of_the_third_version_is_read(tmp_path: Path) -> None:
    old = {
        "nbformat": 3,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "code", "input": "", "outputs": [{"output_type": "stream", "text": keras(9)}]},
                    {"cell_type": "code", "input": "", "outputs": [{"output_type": "pyout", "text": ["'x'"]}]},
                ]
            }
        ],
    }
    (tmp_path / "old.ipynb").write_text(json.dumps(old))
    assert len(curve(read(tmp_path / "old.ipynb")[0], "loss")) == 9


def test_a_notebook_that_is_cut_off_gives_the_cells_before(tmp_path: Path) -> None:
    whole = notebook(cell(printed(keras(9))), cell(printed("the end\n" * 50)))
    (tmp_path / "train.ipynb").write_text(whole[: len(whole) - 400])
    (run,) = read(tmp_path / "train.ipynb")
    assert len(curve(run, "loss")) == 9
    assert "truncated" in run.notes[-1]


def test_a_notebook_without_a_training_is_refused_and_costs_a_folder_nothing(tmp_path: Path) -> None:
    for cells in ((), (cell(),), (cell(printed("accuracy 0.9\n")),), (cell(printed("price 3\nprice 4\nrows 3\n")),)):
        (tmp_path / "empty.ipynb").write_text(notebook(*cells))
        assert "without training output" in refused(tmp_path / "empty.ipynb")
    (tmp_path / "train.ipynb").write_text(notebook(cell(printed(keras(9)))))
    assert [run.name for run in read(tmp_path)] == ["train.ipynb"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.sampled_from([keras(2), hugging_face(2)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cells", "outputs", "data", "text", "text/html", "text/plain", "html", "ename", "worksheets"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values, st.integers(0, 60))
def test_any_notebook_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, cells: object, cut: int) -> None:
    file = tmp_path_factory.mktemp("notebook") / "any.ipynb"
    for document in ({"cells": cells, "nbformat": 4}, {"cells": [{"outputs": cells}]}, {"worksheets": cells}):
        text = json.dumps(document)
        file.write_text(text[: len(text) - cut])
        try:
            records = read(file)
        except Exception:
            assert read_or_refused(file) is None
        else:
            assert all(run.points > 1 for run in records)


@given(st.text(alphabet=st.sampled_from(list("<>/tabledrh 01loss&;\"'=-!")), max_size=200))
def test_any_page_is_read_or_skipped(tmp_path_factory: pytest.TempPathFactory, page: str) -> None:
    file = tmp_path_factory.mktemp("page") / "any.ipynb"
    file.write_text(notebook(cell(shown(f"<table>{page}")), cell(printed(keras(9)))))
    assert read(file)
