from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.errors import SettingsError
from mlflow_stability.probes.step.capture import Clip, StepCapture
from mlflow_stability.recovery.stop_conditions import Stop, StopRules, stop_conditions, values_before_step
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

NAN, INF = float("nan"), float("inf")


def reading(place: str = "", **values: float) -> StepReading:
    return StepReading(7, tuple(Signal(value, place) for value in values), tuple(values.values()))


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
    stop = StopRules(stop_conditions((text,))).after_step(reading(**values))
    assert (stop is not None) is stops
    if stop is not None:
        assert re.search(rf"after step 7: .*\(stop_on={re.escape(text)}\)", str(stop.error))


def test_a_condition_looks_at_every_place() -> None:
    stop = StopRules(stop_conditions("grad_norm>100")).after_step(reading("track_1", grad_norm=200.0))
    assert stop is not None
    assert "grad_norm@track_1 is 200" in stop.reason


def test_a_step_that_a_loss_scaler_threw_away_is_no_reason_to_stop() -> None:
    assert StopRules(stop_conditions(["nonfinite"])).after_step(reading(grad_norm=INF), skipped=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "los>50",
        "loss>",
        "loss>nan",
        "loss>inf",
        "loss=5",
        "loss>5 or more",
        ">5",
        "nonfinit",
        "loss>>5",
        "val_loss plateau",
        "val_loss plateau 0",
        "vall_loss plateau 5",
        "loss-100%",
        "loss+0%",
        "loss-",
        "loss>%",
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="stop_on"):
        stop_conditions((text,))


@given(st.text(max_size=20))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        stop_conditions((text,))
    except SettingsError:
        return
    assert text.strip() == "nonfinite" or any(value in text for value in ("<", ">", "%", "plateau"))


def first_stop(text: str, quantity: str, values: list[float]) -> tuple[int, Stop] | None:
    """The value at which a training is stopped, and the reason that is reported."""
    rules = StopRules(stop_conditions(text))
    for number, value in enumerate(values):
        stop = rules.after_step(StepReading(number, (Signal(quantity),), (value,)))
        if stop is not None:
            return number, stop
    return None


@pytest.mark.parametrize(
    ("text", "quantity", "values", "at"),
    [
        ("val_loss plateau 3", "val_loss", [3.0, 2.0, 2.0, 2.1, 1.9, 1.9, 1.9, 1.95], 7),
        ("val_loss plateau 3", "val_loss", [3.0, 2.0, NAN, NAN, NAN], 4),
        ("val_loss plateau 3", "val_loss", [5.0, 4.0, 3.0, 2.0, 1.0], None),
        ("val_loss+10%", "val_loss", [3.0, 2.0, 2.19, 2.2], 3),
        ("val_loss+10%", "val_loss", [-2.0, -1.9, -1.8], 2),
        ("val_loss>5", "val_loss", [1.0, 5.1], 1),
        ("throughput-80%", "samples_per_second", [100.0] * 30 + [19.0] * 4 + [100.0] + [19.0] * 5, 39),
        ("throughput-80%", "tokens_per_second", [100.0] * 30 + [21.0] * 50, None),
        ("throughput-80%", "samples_per_second", [100.0] * 10 + [1.0] * 9, None),
        ("throughput-80%", "samples_per_second", [0.01] * 60, None),
        ("memory>90%", "memory_share", [0.89, 0.91], 1),
        ("loss>100x", "loss", [4.0, 2.0, 2.0, 199.0, 301.0], 4),
        ("loss>100x", "loss", [4.0, 2.0, 2.0, INF], 3),
        ("loss>100x", "loss", [4.0, 2.0, NAN, 2.0, 100.0], None),
        ("grad_norm > 2.5x", "grad_norm", [1.0, 1.0, 2.4, 2.6], 3),
    ],
)
def test_a_course_of_values_is_a_reason_to_stop(text: str, quantity: str, values: list[float], at: int | None) -> None:
    result = first_stop(text, quantity, values)
    assert (None if result is None else result[0]) == at
    assert result is None or f"stop_on={text}" in str(result[1].error)


def test_before_a_step_only_what_is_known_then_is_judged() -> None:
    rules = StopRules(stop_conditions(("nonfinite", "loss>50", "step_time>9", "val_loss>1")))
    assert rules.looks_before == ("loss", "grad_norm")
    assert StopRules(stop_conditions(("loss>100x", "loss plateau 5"))).looks_before == ()
    stop = rules.before_step(8, {"loss": 60.0}, is_guarded=False)
    assert stop is not None
    assert str(stop.error).startswith("Training stopped before step 8 was taken: loss is 60 (stop_on=loss>50). The ")
    assert "weights are from before step 8" in str(stop.error)
    assert rules.before_step(8, {"loss": 5.0, "grad_norm": 1.0}, is_guarded=False) is None
    assert rules.before_step(8, {"loss": NAN}, is_guarded=False) is not None
    assert rules.before_step(8, {"loss": NAN}, is_guarded=True) is None


def test_before_a_step_a_capture_says_what_is_wanted_and_known() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (0.1, 0.3)]
    optimizer, norm, capture = torch.optim.SGD(groups), torch.tensor(2.0), StepCapture()
    wanted = ("loss", "grad_norm", "learning_rate", "loss_scale")
    assert values_before_step(optimizer, capture, None, wanted) == {"learning_rate": 0.3}
    capture.losses, capture.loss_scale = [torch.tensor(1.5), 2.0], torch.tensor(8.0)
    values = {"loss": 3.5, "grad_norm": 2.0, "learning_rate": 0.3, "loss_scale": 8.0}
    assert values_before_step(optimizer, capture, norm, wanted) == values
    assert values_before_step(optimizer, capture, norm, ()) == {}
    capture.losses = [INF, 2.0]
    assert values_before_step(optimizer, capture, norm, ("loss",)) == {"loss": INF}


def test_before_a_step_the_gradient_norm_is_that_from_before_clipping() -> None:
    optimizer, capture = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), StepCapture()
    capture.gradients = {1, 2}
    capture.clips = [Clip(torch.tensor(40.0), 2.0, frozenset({1, 2}), torch.tensor(8.0))]
    assert values_before_step(optimizer, capture, torch.tensor(1.0), ("grad_norm",)) == {"grad_norm": 5.0}
