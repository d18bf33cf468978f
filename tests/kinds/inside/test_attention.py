"""Collapsed heads and scores out of bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

Values = Sequence[float]


def judged(quantity: str, heads: Mapping[str, Values], falls: float = 0.0) -> list[Finding]:
    """As live: a loss at every step, heads every hundred."""
    kind = {"attention_entropy": "attention_collapse", "attention_max_logit": "attention_logit_growth"}[quantity]
    rounds = len(next(iter(heads.values())))
    records = []
    for step in range(100, 100 * rounds + 102):
        row = (
            {f"{quantity}@{name}": values[step // 100 - 1] for name, values in heads.items()}
            if step % 100 == 0 and step // 100 <= rounds
            else {}
        )
        signals = (Signal("loss"), *(Signal.parse(name) for name in row))
        records.append(StepReading(step, signals, (2.0 - falls * step, *map(float, row.values()))))
    return replay(records, detectors_named([kind]))


def collapse(**heads: Values) -> list[Finding]:
    return judged("attention_entropy", {name.replace("__", "."): values for name, values in heads.items()})


def growth(**heads: Values) -> list[Finding]:
    return judged("attention_max_logit", {name.replace("__", "."): values for name, values in heads.items()})


WIDE = [0.95] * 6
NARROW = [0.95, 0.6, 0.02, 0.01, 0.01, 0.01]


def test_a_layer_with_half_of_its_heads_collapsed_is_reported_once() -> None:
    (event,) = collapse(a__head_0=WIDE, a__head_1=NARROW, a__head_2=NARROW, a__head_3=WIDE, b__head_0=WIDE)
    assert (event.step, event.kind, event.place) == (400, "attention_collapse", "a")
    assert "in 2 of 4 heads (heads 1 and 2)" in event.message
    assert event.metrics == {"attention_entropy": 0.01, "start": 0.95, "heads": 2.0, "layers": 1.0}


def test_one_narrow_head_of_many_is_healthy() -> None:
    assert collapse(a__head_0=WIDE, a__head_1=NARROW, a__head_2=WIDE) == []


def test_one_narrow_measurement_is_not_enough() -> None:
    assert collapse(a__head_0=[0.95, 0.01, 0.95, 0.01, 0.95, 0.01]) == []


def test_heads_that_began_narrow_are_left_out() -> None:
    assert collapse(a__head_0=[0.08] + [0.01] * 5, a__head_1=[0.02] * 6) == []


def test_a_layer_whose_heads_all_collapsed_from_the_start_is_named_if_the_loss_is_flat() -> None:
    never = {"a.head_0": [1e-10, 0, 1e-9, 0, 0, 0], "a.head_1": [0.0] * 6, "b.head_0": WIDE, "b.head_1": [0.0] * 6}
    (event,) = judged("attention_entropy", never)
    assert (event.step, event.place) == (300, "a")
    assert "in 2 of 2 heads" in event.message
    assert judged("attention_entropy", never, falls=1e-3) == []


def test_a_tenth_of_the_start_is_narrow_too() -> None:
    (event,) = collapse(a__head_0=[0.9, 0.085, 0.085, 0.085, 0.085, 0.085])
    assert event.step == 300


def test_layers_that_collapse_together_are_one_finding_and_later_ones_another() -> None:
    late = [0.95, 0.95, 0.95, 0.95, 0.01, 0.01]
    events = collapse(a__head_0=NARROW, b__head_0=[0.95, 0.5, 0.01, 0.001, 0.001, 0.001], c__head_0=late)
    assert [(event.step, event.place, event.metrics["layers"]) for event in events] == [
        (400, "b", 2.0),
        (600, "c", 1.0),
    ]
    assert "The same in 1 more layer." in events[0].message


def test_a_layer_that_recovers_and_collapses_again_is_named_again() -> None:
    course = [0.9, 0.01, 0.01, 0.9, 0.9, 0.01, 0.01]
    assert [point.step for point in collapse(a__head_0=course)] == [300, 700]


def test_broken_values_are_not_narrow() -> None:
    assert collapse(a__head_0=[0.9, float("nan"), float("nan"), float("nan"), float("nan"), float("nan")]) == []


def test_scores_above_a_hundred_are_out_of_bounds() -> None:
    (event,) = growth(a__head_0=[40, 60, 101, 120, 150, 160], a__head_1=[2, 2, 2, 2, 2, 2])
    assert (event.step, event.kind, event.place) == (400, "attention_logit_growth", "a")
    assert "largest attention logit of a, head 0: 120 at step 400 (threshold 100; first value 40)." in event.message


def test_scores_that_were_large_from_the_start_are_healthy() -> None:
    assert growth(a__head_0=[150, 160, 170, 180, 190, 200]) == []


def test_tenfold_growth_counts_above_the_floor() -> None:
    assert growth(a__head_0=[0.1, 1, 10, 20, 30, 45]) == []
    (event,) = growth(a__head_0=[0.1, 1, 10, 30, 51, 55])
    assert event.step == 600


def test_scores_that_began_below_zero_have_a_start_of_nothing() -> None:
    (event,) = growth(a__head_0=[-3, 1, 60, 70, 80, 90])
    assert event.step == 400


def test_severities_are_those_of_the_class() -> None:
    (event,) = growth(a__head_0=[1, 200, 200])
    assert event.severity is Severity.WARNING


def test_heads_that_learn_where_to_look_while_the_loss_falls_are_healthy() -> None:
    heads = {f"a.head_{number}": [0.95, 0.9, 0.8, 0.6, 0.02, 0.01] for number in range(2)}
    assert judged("attention_entropy", heads, falls=0.0) != []
    assert judged("attention_entropy", heads, falls=0.0028) == []
