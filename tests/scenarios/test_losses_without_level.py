"""Trainings whose loss has no level are recognised in their first steps, and supervised look-alikes are not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import QUICK, Flown, flying
from scenarios.levelless_trainings import WITH_LEVEL, WITHOUT_LEVEL, Training, classifier_with_average, dqn
from torch import Tensor
from torch.distributions import Categorical, Normal

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.probes.loss_level_probe import ENVIRONMENTS
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_from_code
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Severity

POLICIES = ("actor_critic", "parallel_q_learning", "ppo", "reinforce_continuous", "reinforce_one_by_one")
RECOGNISED_BY = 8
LATER = {"parallel_q_learning": 49, "reinforce_one_by_one": 80}
"""Where several steps follow each round of actions, three rounds must have been seen."""
"""Steps after which each is recognised: detectors compare with a baseline from the 33rd on."""


def facts(flown: Flown) -> dict[int, LossLevel | None]:
    """What was recorded about the level of the loss, by step."""
    readings = (record for record in flown.records if isinstance(record, StepReading))
    return {
        reading.step: level_from_code(value)
        for reading in readings
        for signal, value in zip(reading.signals, reading.values, strict=True)
        if signal.quantity == LOSS_LEVEL
    }


def warnings_of(flown: Flown) -> list[str]:
    return [event.message for event in flown.events() if event.severity >= Severity.WARNING]


def patched() -> list[object]:
    """What is changed in torch to see calls and samples."""
    return [Normal.sample, Normal.log_prob, Categorical.sample, torch.nn.Module.__call__.__code__]


def is_same(first: object, other: object) -> bool:
    assert isinstance(first, Sequence)
    assert isinstance(other, Sequence)
    assert all(isinstance(tensor, Tensor) for tensor in (*first, *other))
    return len(first) == len(other) and all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_LEVEL)
def test_a_training_without_a_level_is_recognised_judged_by_other_signs_and_left_alone(
    tmp_path: Path, name: str
) -> None:
    train = WITHOUT_LEVEL[name]
    bare = train(80)
    with flying(tmp_path, rollback=QUICK) as flown:
        watched = train(80)
    ((step, fact),) = facts(flown).items()
    assert step <= LATER.get(name, RECOGNISED_BY)
    assert fact == LossLevel(NoLevel.POLICY if name in POLICIES else NoLevel.BOOTSTRAPPED)
    assert warnings_of(flown) == []
    assert is_same(bare, watched)
    diagnosis = diagnosis_of(recorded(flown))
    assert diagnosis.outcome == "healthy"
    assert "The level of loss was not judged: " in diagnosis.verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_LEVEL)
def test_a_supervised_training_that_looks_alike_keeps_its_level(tmp_path: Path, name: str) -> None:
    with flying(tmp_path) as flown:
        WITH_LEVEL[name](120)
    assert facts(flown) == {}
    assert "was not judged" not in diagnosis_of(recorded(flown)).verdict


def test_the_user_may_say_that_a_loss_has_a_level_or_has_none(tmp_path: Path) -> None:
    rows: list[tuple[Training, str, NoLevel | None]] = [
        (dqn, "supervised", None),
        (classifier_with_average, "bootstrapped", NoLevel.BOOTSTRAPPED),
    ]
    for train, word, reason in rows:
        with flying(tmp_path / word, loss=word) as flown:
            train(20)
        assert facts(flown) == {1: LossLevel(reason, by_user=True)}
        verdict = diagnosis_of(recorded(flown)).verdict
        assert (f'loss="{word}" was set' in verdict) is (reason is not None)


def test_nothing_is_left_in_torch_and_in_the_models_afterwards(tmp_path: Path) -> None:
    before = patched()
    with flying(tmp_path):
        WITHOUT_LEVEL["td3"](2)
        assert all(now is not then for now, then in zip(patched()[:3], before[:3], strict=True))
    assert all(now is then for now, then in zip(patched(), before, strict=True))


def test_compiled_code_that_scores_actions_is_the_same_graph(tmp_path: Path) -> None:
    counts = []
    for watched in (False, True):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model = torch.nn.Linear(4, 2)

        def score(inputs: Tensor, actions: Tensor, model: torch.nn.Module = model) -> Tensor:
            return Normal(model(inputs), 1.0).log_prob(actions).sum()

        compiled = torch.compile(score, fullgraph=True, backend="eager")
        with flying(tmp_path) if watched else nullcontext():
            compiled(torch.randn(3, 4), torch.randn(3, 2)).backward()
            compiled(torch.randn(3, 4), torch.randn(3, 2)).backward()
        counts.append(dict(torch._dynamo.utils.counters["stats"]))
    assert counts[0] == counts[1]
    assert counts[0]["unique_graphs"] == 1


@pytest.mark.parametrize(("has_environments", "actions"), [(True, 3), (True, 2), (False, 3)])
def test_a_policy_that_scores_its_actions_without_log_prob_is_recognised_by_its_samples_beside_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_environments: bool, actions: int
) -> None:
    for name in ENVIRONMENTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    if has_environments:
        monkeypatch.setitem(sys.modules, "gymnasium", ModuleType("gymnasium"))
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(0))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with flying(tmp_path) as flown:
        for _ in range(RECOGNISED_BY):
            optimizer.zero_grad()
            for _ in range(actions):
                chances = policy(torch.randn(3))
                (-chances[Categorical(chances).sample()].log() * torch.rand(())).backward()
            optimizer.step()
    expected = [LossLevel(NoLevel.POLICY)] if has_environments and actions == 3 else []
    assert list(facts(flown).values()) == expected


def test_a_policy_that_scores_its_samples_with_a_gradient_is_recognised_in_the_first_round(tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy, states, advantages = torch.nn.Linear(3, 2), torch.randn(16, 3), torch.randn(16)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with flying(tmp_path) as flown:
        choice = Categorical(logits=policy(states))
        actions = choice.sample()
        old = choice.log_prob(actions)
        for _ in range(RECOGNISED_BY):
            now = Categorical(logits=policy(states)).log_prob(actions)
            loss = -((now - old.detach()).exp() * advantages).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ((step, fact),) = facts(flown).items()
    assert step <= RECOGNISED_BY
    assert fact == LossLevel(NoLevel.POLICY)
