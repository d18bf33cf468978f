"""What a log says in words is an event at its line and of its attempt; only its last words are its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import history

from mlflow_stability.kinds.reported.endings import LogLineFacts
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.finding import Finding


def lines(first: int, last: int) -> str:
    return "".join(f"step {n} loss {4 / n:.4f}\n" for n in range(first, last + 1))


def reported(path: Path, text: str) -> list[Finding]:
    return list(history(path, text).reported)


def line_of(event: Finding) -> LogLineFacts:
    assert isinstance(event.facts, LogLineFacts)
    return event.facts


def test_an_end_after_which_training_went_on_is_an_event_at_its_line_and_no_outcome(tmp_path: Path) -> None:
    run = history(tmp_path, lines(1, 5) + "RuntimeError: CUDA out of memory. Tried to allocate\n" + lines(6, 9))
    assert run.outcome == ""
    (event,) = run.reported
    assert (event.kind, event.step, event.severity, event.attempt) == ("out_of_memory", 5, Severity.INFO, 0)
    assert "Line 6 of the log: RuntimeError: CUDA out of memory" in event.message
    assert event.message in run.notes


def test_an_event_in_the_log_belongs_to_the_attempt_in_which_it_was_logged(tmp_path: Path) -> None:
    text = lines(1, 9) + "Killed\n" + lines(1, 9) + "OVERFLOW! Skipping step\n" + lines(10, 12) + "KeyboardInterrupt\n"
    run = history(tmp_path, text)
    assert [(finding.kind, finding.attempt, finding.step) for finding in run.reported] == [
        ("killed", 0, 9),
        ("step_skipped", 1, 9),
    ]
    assert run.outcome == "interrupted"


def test_lines_without_a_step_like_those_before_it_tell_that_training_went_on(tmp_path: Path) -> None:
    epochs = [f"loss: {4 / n:.3f} acc: 0.{n}\n" for n in range(1, 10)]
    run = history(tmp_path, "".join(epochs[:5]) + "ValueError: bad batch\n" + "".join(epochs[5:]))
    assert (run.outcome, [finding.kind for finding in run.reported]) == ("", ["crashed"])
    run = history(tmp_path, "".join(epochs) + "Killed\nfinal score: 0.5 files: 7\n")
    assert run.outcome == "killed"


def test_the_step_that_words_name_is_their_step_and_other_ranks_say_the_same(tmp_path: Path) -> None:
    guard = "[rank{}] nonfinite_guard:skip planned_step:{} grad_norms:[inf,inf]\n"
    text = lines(1, 10) + "".join(guard.format(rank, step) for step in (12, 13) for rank in range(4))
    facts = [(point.step, line_of(point)) for point in reported(tmp_path, text)]
    assert [(step, line.names_not_finite, line.names_nan) for step, line in facts] == [
        (12, True, False),
        (13, True, False),
    ]


@pytest.mark.parametrize("setting", ["nonfinite_guard:True max_skips:8", "nonfinite_guard=1", "stop_on_nan: true"])
def test_a_setting_is_not_taken_for_what_happened(tmp_path: Path, setting: str) -> None:
    assert reported(tmp_path, f"{setting}\n{lines(1, 9)}{setting}\n") == []


@pytest.mark.parametrize(
    "words",
    [
        "Loss is nan, stopping training",
        "Batch 12: Invalid loss, terminating training",
        "FloatingPointError: Minimum loss scale reached (0.0001).",
        "nonfinite_guard:abort consecutive_skips:8 planned_step:9",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "ValueError: The loss returned in `training_step` is nan.",
    ],
)
def test_a_log_that_says_that_it_stopped_for_a_number_is_believed_where_nothing_follows(
    tmp_path: Path, words: str
) -> None:
    items = [item for item in reported(tmp_path, lines(1, 9) + words + "\n") if line_of(item).is_end]
    assert [(finding.kind in ("nan_detected", "inf_detected"), finding.step) for finding in items] == [(True, 9)]
    items = reported(tmp_path, lines(1, 9) + words + "\n" + lines(10, 12))
    assert not any(line_of(item).is_end for item in items)
    assert any(line_of(item).went_on for item in items)


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        ("EMERGENCY STOP", "stopped"),
        ("STOP TRAINING: loss diverged", "stopped"),
        ("Crashed at step 9", "crashed"),
        ("Stopping training: the best score is known", ""),
    ],
)
def test_words_for_the_end_are_an_end_only_where_nothing_follows(tmp_path: Path, words: str, outcome: str) -> None:
    assert history(tmp_path, f"{lines(1, 9)}{words}\n").outcome == outcome
    assert history(tmp_path, f"{lines(1, 9)}{words}\n{lines(10, 12)}").outcome == ""


def test_the_numbers_of_a_sentence_are_no_curve(tmp_path: Path) -> None:
    warning = "WARNING: Divergence warning ({}/3): Loss=8.2340 > 2.0x avg\n"
    run = history(tmp_path, lines(1, 40) + warning.format(1) + lines(41, 80) + warning.format(2) + lines(81, 99))
    assert {metric.name: len(metric.series) for metric in run.metrics} == {"loss": 99}
    assert {(event.kind, event.step) for event in run.reported} >= {("divergence", 40), ("divergence", 80)}


@pytest.mark.parametrize(
    ("after", "went_on"),
    [("", False), ("saving the model\n", False), ("step 10 loss 0.5\n", True)],
)
def test_training_continued_after_a_finding_if_values_follow(tmp_path: Path, after: str, went_on: bool) -> None:
    run = history(tmp_path, lines(1, 9) + "NaN detected in gradients\n" + after)
    (line,) = [line_of(event) for event in run.reported]
    assert line.went_on is went_on


def test_early_stopping_is_no_problem(tmp_path: Path) -> None:
    words = "Early stopping: val_loss did not improve for 5 epochs, stopping training\n"
    assert reported(tmp_path, lines(1, 9) + words) == []


def test_of_very_many_skipped_steps_the_last_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    text = "".join(f"step {n} loss 1.{n % 7}\nOVERFLOW! Skipping step\n" for n in range(1, 3001))
    run = history(tmp_path, text)
    assert (len(run.reported), run.reported[-1].step) == (1000, 3000)
    assert "The log reports 3,000 times that a step was skipped, between steps 1 and 3,000." in run.notes


def test_an_end_after_which_lines_of_a_new_form_come_again_and_again_was_none(tmp_path: Path) -> None:
    epochs = "".join(f"[B] epoch {n}/9 | loss {4 / n:.4f}\n" for n in range(1, 10))
    run = history(tmp_path, "SIGTERM is ignored: use another signal\n" + epochs)
    assert run.outcome == ""


def test_a_summary_behind_the_end_does_not_undo_it(tmp_path: Path) -> None:
    epochs = "".join(f"[B] epoch {n}/9 | loss {4 / n:.4f}\n" for n in range(1, 10))
    assert history(tmp_path, epochs + "Killed\nbest accuracy: 0.5\n").outcome == "killed"


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: out of memory",
        "Module.lua:271: cuda runtime error (2) : out of memory at THCStorage.cu:40",
        "RuntimeError: MPS backend out of memory (MPS allocated: 9 GB)",
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,512]",
    ],
)
def test_memory_that_ran_out_is_known_in_the_words_of_several_libraries(tmp_path: Path, message: str) -> None:
    assert history(tmp_path, lines(1, 9) + message + "\n").outcome == "out_of_memory"


def test_a_loss_scale_in_powers_of_ten_is_read(tmp_path: Path) -> None:
    overflow = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.52587890625e-05\n"
    (event,) = reported(tmp_path, lines(1, 5) + overflow + lines(6, 9))
    assert event.metrics["loss_scale"] == 1.52587890625e-05
