from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.errors import SettingsError, TrainingDiverged
from mlflow_stability.recovery.stop_conditions import check_stop, stop_conditions
from mlflow_stability.vocabulary.measured.observation import StepReading
from mlflow_stability.vocabulary.measured.signal import Signal

NAN, INF = float("nan"), float("inf")


def reading(place: str = "", **values: float) -> StepReading:
    return StepReading(7, tuple(Signal(each, place) for each in values), tuple(values.values()))


@pytest.mark.parametrize(
    ("text", "values", "stops"),
    [
        ("loss>50", {"loss": 50.1}, True),
        ("loss>50", {"loss": 50.0}, False),
        ("loss >= 50", {"loss": 50.0}, True),
        ("loss>50", {"loss": NAN}, False),
        ("loss>50", {"loss": INF}, True),
        ("grad_norm>1e2", {"loss": 500.0, "grad_norm": 99.0}, False),
        ("loss_scale<1", {"loss_scale": 0.5}, True),
        ("nonfinite", {"loss": 1.0, "grad_norm": NAN}, True),
        ("nonfinite", {"loss": INF}, True),
        ("nonfinite", {"loss": 1e38, "learning_rate": NAN}, False),
    ],
)
def test_a_training_is_stopped_where_its_condition_is_met(text: str, values: dict[str, float], stops: bool) -> None:
    conditions = stop_conditions((text,))
    if not stops:
        check_stop(conditions, reading(**values))
        return
    with pytest.raises(TrainingDiverged, match=rf"after step 7: .*\(stop_on={re.escape(text)}\)"):
        check_stop(conditions, reading(**values))


def test_a_condition_looks_at_every_place() -> None:
    with pytest.raises(TrainingDiverged, match="grad_norm@track_1 is 200"):
        check_stop(stop_conditions("grad_norm>100"), reading("track_1", grad_norm=200.0))


def test_a_step_that_a_loss_scaler_threw_away_is_no_reason_to_stop() -> None:
    check_stop(stop_conditions(["nonfinite"]), reading(grad_norm=INF), skipped=True)


@pytest.mark.parametrize(
    "text", ["", "los>50", "loss>", "loss>nan", "loss>inf", "loss=5", "loss>5 or more", ">5", "nonfinit", "loss>>5"]
)
def test_text_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="stop_on"):
        stop_conditions((text,))


@given(st.text(max_size=20))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        stop_conditions((text,))
    except SettingsError:
        return
    assert text.strip() == "nonfinite" or any(each in text for each in "<>")
