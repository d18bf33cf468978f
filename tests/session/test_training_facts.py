"""What is recorded of a training in its run, and what is recorded when that changes."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

from mlflow_stability.session.facts_probe import MAX_REPORTS, SettingChanges
from mlflow_stability.session.training_facts import MOST_FACTS, TrainingFacts, TrainingView
from mlflow_stability.vocabulary.result import Finding, Severity


def view(lr: float = 0.1) -> TrainingView:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return TrainingView([AdamW(model.parameters(), lr=lr)], [model], micro_batches=2)


def changes_of(watch: SettingChanges, seen: TrainingView, *steps: int) -> list[Finding]:
    return [event for step in steps for event in watch.look(step, seen) if event.kind == "configuration_changed"]


def test_two_trainings_that_differ_in_one_number_differ_in_one_fact() -> None:
    first, two = ({point.key: point.value for point in TrainingFacts().collect(view(lr))} for lr in (0.1, 0.2))
    assert {key for key in first | two if first.get(key) != two.get(key)} == {"learning_rate"}


def test_every_known_fact_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "train", "--lr", "0.1", "--token", "hidden"])
    facts, seen = TrainingFacts(world_size=4), view()
    by_key = {point.key: point.value for point in facts.collect(seen)}
    assert by_key["optimizer"] == "AdamW"
    assert by_key["model"] == "Sequential"
    assert by_key["parameters_total"] == "49"
    assert by_key["accumulation"] == "2"
    assert by_key["world_size"] == "4"
    assert by_key["argv"] == "-m train --lr 0.1 --token '***'"
    assert by_key["python"] == sys.version.split()[0]
    assert all(by_key.values())
    assert facts.collect(seen) == ()


def test_a_program_in_the_call_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "login('hidden')", "x"])
    monkeypatch.setattr(sys, "argv", ["-c", "x"])
    by_key = {point.key: point.value for point in TrainingFacts().collect(view())}
    assert "hidden" not in by_key["argv"]


def test_later_facts_are_reported_later_and_none_is_repeated() -> None:
    facts, seen = TrainingFacts(), view()
    first = {item.key for item in facts.collect(seen)}
    second = replace(
        seen,
        optimizers=[*seen.optimizers, SGD(nn.Linear(2, 2).parameters(), lr=0.5)],
        batch="float32[8, 4]",
        autocast="cpu bfloat16",
    )
    later = {point.key: point.value for point in facts.collect(second)}
    assert not first & later.keys()
    assert (later["batch"], later["autocast"]) == ("float32[8, 4]", "cpu bfloat16")
    assert (later["optimizer_1"], later["optimizer_1.learning_rate"]) == ("SGD", "0.5")


def test_there_are_never_more_facts_than_a_run_can_bear() -> None:
    facts, count = TrainingFacts(), 0
    for number in range(40):
        optimizers = [AdamW(nn.Linear(2, 2).parameters(), lr=0.1 + value) for value in range(16)]
        for optimizer in optimizers:
            for name in range(60):
                optimizer.param_groups[0][f"own_{number}_{name}"] = name
        count += len(facts.collect(TrainingView(optimizers)))
    assert count == MOST_FACTS


def test_a_changed_setting_is_reported_once_with_both_values() -> None:
    watch, seen = SettingChanges(), view()
    assert changes_of(watch, seen, 10, 20) == []
    seen.optimizers[0].param_groups[0]["weight_decay"] = 0.5
    (event,) = changes_of(watch, seen, 30, 40, 50)
    assert event.message == "weight_decay of AdamW changed from 0.01 to 0.5, seen at step 30."
    assert (event.step, event.severity) == (30, Severity.INFO)
    assert event.metrics == {"before": 0.01, "after": 0.5}


def test_the_small_batch_at_the_end_of_an_epoch_is_no_change() -> None:
    watch, seen = SettingChanges(), replace(view(), batch="float32[8, 4]")
    last = replace(seen, batch="float32[3, 4]", micro_batches=1)
    assert [changes_of(watch, item, step * 10) for step, item in enumerate([seen, last, seen, seen, last, seen])] == [
        []
    ] * 6
    (shape,) = changes_of(watch, replace(seen, batch="float32[16, 4]"), 100, 110)
    assert "from float32[8, 4] to float32[16, 4]" in shape.message
    (count,) = changes_of(watch, replace(seen, batch="float32[16, 4]", micro_batches=8), 120, 130)
    assert "micro-batches in a step changed from 2 to 8" in count.message


def test_newly_frozen_parameters_and_a_new_group_are_reported() -> None:
    watch, seen = SettingChanges(), view()
    changes_of(watch, seen, 10)
    seen.models[0][0].requires_grad_(False)
    (event,) = changes_of(watch, seen, 20, 30)
    assert event.message == "The number of trained parameters changed from 4 of 4 to 2 of 4, seen at step 20."
    seen.optimizers[0].add_param_group({"params": nn.Linear(2, 2).parameters(), "weight_decay": 0.0})
    messages = [finding.message for finding in changes_of(watch, seen, 40, 50)]
    assert [message.split(" changed")[0] for message in messages] == [
        "The number of parameter groups of AdamW",
        "The number of trained parameters",
    ]


def test_settings_that_a_schedule_changes_at_every_step_are_not_reported() -> None:
    watch, seen = SettingChanges(), view()
    scheduler = lr_scheduler.OneCycleLR(seen.optimizers[0], max_lr=1.0, total_steps=200)
    events = []
    for step in range(1, 200):
        seen.optimizers[0].step()
        scheduler.step()
        if watch.due(step):
            events += changes_of(watch, seen, step)
    assert events == []


def test_a_setting_that_keeps_changing_is_reported_a_few_times() -> None:
    watch, seen = SettingChanges(), view()
    events = []
    for look in range(100):
        seen.optimizers[0].param_groups[0]["eps"] = 10.0 ** -(5 + look // 2 % 5)
        events += changes_of(watch, seen, 10 * look)
    assert len(events) == MAX_REPORTS
    assert events[-1].message.endswith("further changes are not reported.")


def test_a_model_is_looked_over_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, eps=1e-12))
    seen = TrainingView([SGD(model.parameters(), lr=0.1)], [model])
    watch = SettingChanges()
    assert [finding.kind for finding in watch.look(10, seen)] == ["model_lint"]
    assert watch.look(20, seen) == []


def test_evaluation_mode_is_reported_once_after_two_consecutive_checks() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizers = [SGD(model.parameters(), lr=0.1)]
    seen = TrainingView(optimizers, [model], stepping=optimizers)
    watch = SettingChanges()
    modes = {10: True, 20: False, 30: True, 40: False, 50: False, 60: False, 70: True, 80: False, 90: False}
    told_at = {}
    for step, mode in modes.items():
        model.train(mode)
        for event in watch.look(step, seen):
            told_at[step] = (event.kind, event.step)
    assert told_at == {50: ("evaluation_mode", 40)}


def test_looking_draws_nothing_and_leaves_gradients_alone() -> None:
    seen = view()
    seen.models[0](torch.ones(2, 4)).sum().backward()
    before = [parameter.grad.clone() for parameter in seen.models[0].parameters()]
    state = torch.random.get_rng_state()
    TrainingFacts().collect(seen)
    SettingChanges().look(10, seen)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b.grad) for a, b in zip(before, seen.models[0].parameters(), strict=True))
