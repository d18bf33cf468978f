from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from findings import at_step
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.alerts.router import BURST_SECONDS, COOLDOWNS, DEFAULT_COOLDOWN, AlertRouter
from mlflow_stability.kinds.catalog import KINDS
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import LOWER_RATE, Finding, Severity

KIND = st.sampled_from(["nan_detected", "loss_spike", "plateau", "stall"])
EVENTS = st.lists(
    st.tuples(KIND, st.sampled_from(list(Severity)), st.floats(0, 200)), max_size=60
)  # type, severity, seconds since the one before


def event(step: int, kind: str = "loss_spike", severity: Severity = Severity.WARNING) -> Finding:
    return at_step(step, kind, severity, f"{kind} at {step}", evidence={"loss": float("inf")}, time=float(step))


def test_a_burst_is_one_message_that_counts_it() -> None:
    router = AlertRouter((), Severity.WARNING)
    for step in range(400, 601, 200 // 13):
        router.take(event(step), 10.0)
    assert router.due(10.0 + BURST_SECONDS[Severity.WARNING] - 0.1) == []
    (message,) = router.due(10.0 + BURST_SECONDS[Severity.WARNING])
    assert message.count == 14
    assert message.what == "14 loss spikes in 195 steps (400 to 595)"
    assert router.due(1e9) == []


def test_the_second_message_of_a_type_waits_for_its_cooldown_and_other_types_do_not() -> None:
    router = AlertRouter((), Severity.WARNING)
    router.take(event(1), 0.0)
    assert [item.count for item in router.due(5.0)] == [1]
    router.take(event(2), 6.0)
    router.take(event(2, "plateau"), 6.0)
    router.take(event(3), 100.0)
    assert [finding.kind for finding in router.due(100.0)] == ["plateau"]
    assert router.due(5.0 + DEFAULT_COOLDOWN - 1) == []
    (late,) = router.due(5.0 + DEFAULT_COOLDOWN)
    assert (late.count, late.first_step, late.last_step) == (2, 2, 3)


def test_a_rise_in_severity_does_not_wait() -> None:
    router = AlertRouter((), Severity.WARNING)
    router.take(event(1), 0.0)
    router.due(5.0)
    router.take(event(2), 6.0)
    router.take(event(3, severity=Severity.CRITICAL), 7.0)
    (message,) = router.due(8.0)
    assert (message.severity, message.count, message.message) == (Severity.CRITICAL, 2, "loss_spike at 3")


def test_what_waits_is_sent_when_the_training_is_over() -> None:
    router = AlertRouter((), Severity.WARNING)
    router.take(event(1), 0.0)
    assert len(router.due(0.0, over=True)) == 1


def test_the_cooldown_of_a_channel_replaces_the_table() -> None:
    router = AlertRouter((), Severity.INFO, cooldown=7.0)
    router.take(event(1, "plateau"), 0.0)
    router.due(5.0)
    router.take(event(2, "plateau"), 5.0)
    assert len(router.due(12.0)) == 1


@pytest.mark.parametrize(
    ("rules", "floor", "wanted"),
    [
        ((), Severity.WARNING, ["loss_spike", "divergence"]),
        ((), Severity.CRITICAL, ["divergence"]),
        ((), Severity.INFO, ["rollback", "loss_spike", "divergence"]),
        (("loss_spike",), Severity.WARNING, ["loss_spike"]),
        (("loss_spike",), Severity.CRITICAL, []),
        (("grad_norm>10",), Severity.INFO, []),
        (("grad_norm>10", "divergence"), Severity.INFO, ["divergence"]),
    ],
)
def test_rules_and_the_floor_choose_events(rules: tuple[str, ...], floor: Severity, wanted: list[str]) -> None:
    router = AlertRouter(rules, floor)
    router.take(event(1, "rollback", Severity.INFO), 0.0)
    router.take(event(2, "loss_spike", Severity.WARNING), 0.0)
    router.take(event(3, "divergence", Severity.CRITICAL), 0.0)
    assert [finding.kind for finding in router.due(0.0, over=True)] == wanted


def test_a_condition_on_a_signal_is_sent_whatever_the_floor_is() -> None:
    router = AlertRouter(("grad_norm>10", "loss<0.5"), Severity.CRITICAL)
    assert router.needs_readings
    signals = (Signal("loss"), Signal("grad_norm"), Signal("grad_norm", "block.0"))
    for step, norm in enumerate([1.0, 11.0, 12.0, float("nan")], 1):
        router.step(StepReading(step, signals, (1.0, norm, 99.0), 0, float(step)), float(step))
    (message,) = router.due(100.0)
    assert (message.kind, message.count, message.first_step, message.last_step) == ("grad_norm>10", 2, 2, 3)
    assert message.message == "grad_norm is 11 at step 2 (condition grad_norm>10)."
    assert message.what == "grad_norm>10 (2 times) in 1 step (2 to 3)"


@given(EVENTS)
def test_each_wanted_event_is_counted_once_and_cooldowns_are_kept(events: list[tuple[str, Severity, float]]) -> None:
    router, now = AlertRouter((), Severity.WARNING), 0.0
    sent: list[tuple[float, str, Severity, int]] = []
    for step, (kind, severity, pause) in enumerate(events, 1):
        for moment in (now + pause / 2, now + pause):
            sent += [(moment, finding.kind, finding.severity, finding.count) for finding in router.due(moment)]
        now += pause
        router.take(event(step, kind, severity), now)
    last = [(now, finding.kind, finding.severity, finding.count) for finding in router.due(now, over=True)]
    wanted = [kind for kind, severity, _ in events if severity >= Severity.WARNING]
    for kind in KINDS:
        assert sum(count for _, value, _, count in sent + last if value == kind) == wanted.count(kind)
        of_kind = [row for row in sent if row[1] == kind]
        for before, after in pairwise(of_kind):
            cooldown = COOLDOWNS.get(kind, DEFAULT_COOLDOWN)
            assert after[0] - before[0] >= cooldown - 1e-6 or after[2] > before[2]


@given(EVENTS, st.integers(0, 60))
def test_a_router_that_was_saved_goes_on_as_if_nothing_had_happened(
    events: list[tuple[str, Severity, float]], cut: int
) -> None:
    first, two, now = AlertRouter((), Severity.INFO), AlertRouter((), Severity.INFO), 0.0
    for step, (kind, severity, pause) in enumerate(events, 1):
        now += pause
        if step == cut:
            saved = json.loads(json.dumps(two.saved()))
            two = AlertRouter((), Severity.INFO)
            two.resume(saved)
        first.take(event(step, kind, severity), now)
        two.take(event(step, kind, severity), now)
        assert first.due(now) == two.due(now)
    assert first.due(now, over=True) == two.due(now, over=True)


def test_messages_are_read_back_as_they_were_written() -> None:
    router = AlertRouter((), Severity.INFO)
    router.take(replace(event(3), remedies=(LOWER_RATE,)), 0.0)
    (message,) = router.due(0.0, over=True)
    assert type(message).from_plain(json.loads(json.dumps(message.plain()))) == message


def test_every_type_of_the_cooldown_table_exists() -> None:
    assert set(COOLDOWNS) <= set(KINDS)
