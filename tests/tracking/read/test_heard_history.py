"""What was heard of the script's own metrics is seen once when a run is read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.curves.curves import start_by_attempt
from mlflow_stability.tracking.read.recorded_history import with_metrics_of_the_script
from mlflow_stability.vocabulary.measured.signal import Series, Signal
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings


def metric(name: str, meaning: Meaning, values: list[float]) -> Metric:
    steps = np.arange(1, len(values) + 1)
    zeros = np.zeros(len(values), np.int64)
    return Metric(name, meaning, Series(meaning.signal, steps, np.array(values), zeros, steps.astype(float)))


def recorded(**series: list[float]) -> RunHistory:
    signals = {name: Signal.parse(name.replace("__", "@")) for name in series}
    return RunHistory(
        "run",
        "run",
        "recorded",
        "the full record",
        tuple(
            metric(str(signal), Meaning(signal.quantity, signal.place, is_known=True), series[name])
            for name, signal in signals.items()
        ),
    )


def duplicates(history: RunHistory, **logged: list[float]) -> dict[str, str]:
    meanings = metric_meanings(logged)
    result = with_metrics_of_the_script(history, [metric(name, meanings[name], logged[name]) for name in logged])
    return {item.name: item.meaning.duplicate_of for item in result.metrics if item.name in logged}


def test_a_recorded_validation_loss_is_a_duplicate_of_the_logged_one() -> None:
    history = recorded(loss=[3.0, 2.0], val_loss=[0.5, 0.4])
    assert duplicates(history, val_loss=[0.5, 0.4], accuracy=[0.5, 0.4]) == {"val_loss": "val_loss", "accuracy": ""}


def test_a_metric_with_a_changed_name_is_recognized_by_its_values() -> None:
    history = recorded(loss=[3.0, 2.0], val_loss=[0.6, float("nan")])
    logged = {"val_loss_books": [0.9, 0.6, float("nan")], "val_loss_web": [0.7]}
    assert duplicates(history, **logged) == {"val_loss_books": "val_loss", "val_loss_web": ""}


def test_a_validation_loss_that_was_not_recorded_is_no_duplicate() -> None:
    assert duplicates(recorded(loss=[3.0, 2.0]), val_loss=[0.5]) == {"val_loss": ""}


def rolled_back() -> RunHistory:
    """Recorded at each second, rolled back after the fourth."""
    loss = metric("loss", Meaning("loss", is_known=True), [3.0, 2.0, 8.0, 9.0, 2.5, 2.0])
    return replace(
        recorded(),
        metrics=(replace(loss, series=replace(loss.series, attempts=np.array([0, 0, 0, 0, 1, 1]))),),
    )


def test_what_the_script_logged_is_parted_where_the_training_was_rolled_back() -> None:
    theirs = metric("my/error", metric_meanings(["my/error"])["my/error"], [5.0, 4.0, 9.0, 9.5, 4.0, 3.0])
    late = replace(theirs.series, times=theirs.series.times + 0.5)  # logged when the step was over
    history = with_metrics_of_the_script(rolled_back(), [replace(theirs, series=late)])
    assert history.metrics[-1].series.attempts.tolist() == [0, 0, 0, 0, 1, 1]
    assert start_by_attempt(history) == {0: 0, 1: 0}, "a rollback is no restart"


def test_what_the_script_logged_stays_whole_where_no_time_says_when() -> None:
    history = rolled_back()
    (loss,) = history.metrics
    untimed = replace(history, metrics=(replace(loss, series=replace(loss.series, times=np.zeros(6))),))
    theirs = metric("my/error", metric_meanings(["my/error"])["my/error"], [5.0, 4.0, 9.0])
    result = with_metrics_of_the_script(untimed, [theirs])
    assert result.metrics[-1].series.attempts.tolist() == [0, 0, 0]


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=6), st.lists(st.floats(0.1, 9.0), max_size=3))
def test_values_logged_before_the_first_step_do_not_prevent_recognition(
    heard: list[float], before: list[float]
) -> None:
    history = recorded(val_loss__old=heard)
    assert duplicates(history, val_loss=[*before, *heard]) == {"val_loss": "val_loss@old"}
