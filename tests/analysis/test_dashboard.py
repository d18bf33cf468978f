from __future__ import annotations

from pathlib import Path

import pytest
from architecture.repository import ROOT
from figures.drawings import cut_off, texts

from mlflow_stability.analysis.diagnose import diagnose, history_of
from mlflow_stability.analysis.pictures import board_of, dashboard
from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.measured.signal import Series, Signal
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

RECORDED = ROOT / "mlruns_fixtures" / "0"


@pytest.mark.parametrize("name", ["healthy", "divergence", "nan_bad_batch", "overfitting"])
def test_a_recorded_run_is_drawn_with_what_its_diagnosis_says(name: str) -> None:
    figure, diagnosis = dashboard(RECORDED / name), diagnose(RECORDED / name)
    written = texts(figure)
    assert diagnosis.verdict in [text.replace("\n", " ") for text in written]
    assert {episode.kind.replace("_", " ") for episode in diagnosis.findings} <= set(written)
    assert cut_off(figure) == []


def test_a_log_written_by_another_tool_is_drawn_too(tmp_path: Path) -> None:
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss,lr\n" + "".join(f"{step},{3 / (step + 1)},0.001\n" for step in range(50)))
    figure = dashboard(log)
    assert "metrics.csv" in texts(figure)
    assert texts(figure).count("not measured") == 2


def test_an_empty_log_raises_an_unreadable_log_error(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UnreadableLogError):
        dashboard(tmp_path / "empty.csv")


def metric_of(quantity: str, place: str = "", duplicate_of: str = "") -> Metric:
    values = history_of(RECORDED / "healthy").of("loss")[0].series
    signal = Signal(quantity, place)
    series = Series(signal, values.steps, values.values, values.attempts, values.times)
    return Metric(str(signal), Meaning(quantity, place, is_known=True, duplicate_of=duplicate_of), series)


def test_layers_and_duplicates_are_left_to_other_pictures_and_groups_are_counted() -> None:
    metrics = (
        metric_of("loss"),
        metric_of("loss", duplicate_of="loss"),
        metric_of("grad_norm"),
        metric_of("grad_norm", "blocks.0.attn"),
        *(metric_of("learning_rate", f"group_{number}") for number in range(1, 9)),
    )
    history = RunHistory("x", "x", "recorded", "", metrics)
    board = board_of(history, Diagnosis("x", "x", "recorded", "", "healthy", "Healthy."))
    assert [len(board.of(name)) for name in ("loss", "grad_norm", "learning_rate")] == [1, 1, 5]
    assert board.left_out["learning_rate"] == 3


def test_rollbacks_are_marked_with_the_step_they_led_back_to() -> None:
    event = Finding.at(RollbackFacts("back", 60, 80, 30, 0.1, 1), 90, Severity.INFO)
    history = RunHistory("x", "x", "recorded", "", (metric_of("loss"),), (event,))
    (mark,) = board_of(history, Diagnosis("x", "x", "recorded", "", "healthy", "Healthy.")).marks
    assert (mark.kind, mark.start, mark.target) == ("rollback", 90, 60)
