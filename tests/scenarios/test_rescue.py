"""A training that diverges is rolled back inside its own loop, eased back in, and ends near its healthy twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flying import QUICK, Flown, flying
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

import mlflow_stability
from mlflow_stability import Options, RollbackPolicy
from mlflow_stability.errors import SettingsError, StabilityError, TrainingDiverged
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Source
from mlflow_stability.vocabulary.run import Note, Opening, Reset

pytestmark = pytest.mark.scenario
HOPELESS = dataclasses.replace(QUICK, hold_learning_rate_above=None, easing_steps=5)
"""For a learning rate that stays too high, without a warm-up after the rollback."""


def task(seed: int = 0) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A small regression with noise, and its loss on the next batch."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    dice = torch.Generator().manual_seed(seed + 1)

    def loss() -> Tensor:
        inputs = torch.randn(32, 8, generator=dice)
        targets = inputs[:, :1].sin() + inputs[:, 1:2] + 0.1 * torch.randn(32, 1, generator=dice)
        return nn.functional.mse_loss(model(inputs), targets)

    return model, loss


def train(
    steps: int = 420, jump: tuple[int, int] = (200, 215), factor: float = 300.0
) -> tuple[list[float], list[float]]:
    """Losses, and the learning rates that the script saw before each step."""
    model, next_loss = task()
    optimizer = AdamW(model.parameters(), lr=0.01)
    schedule = LambdaLR(optimizer, lambda done: factor if jump[0] <= done < jump[1] else 0.999**done)
    losses, rates = [], []
    for step in range(steps):
        if step == 150:
            optimizer.param_groups[0]["betas"] = (0.8, 0.99)
        rates.append(optimizer.param_groups[0]["lr"])
        loss = next_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    return losses, rates


@pytest.fixture(scope="module")
def rescued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Flown, list[float], list[float]]:
    folder = tmp_path_factory.mktemp("rescue")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # what belongs to a single test is not set up yet: the courier would begin a store here
        with flying(folder, rollback=QUICK) as flown:
            losses, rates = train()
    return flown, losses, rates


def end_of(losses: list[float]) -> float:
    return sum(losses[-40:]) / 40


@pytest.mark.slow
def test_a_jump_of_the_learning_rate_is_survived(rescued: Any) -> None:
    flown, losses, _ = rescued
    healthy, _ = train(jump=(0, 0))
    bare, _ = train()
    assert flown.events("rollback")
    assert end_of(losses) < 1.3 * end_of(healthy)
    assert end_of(losses) < end_of(bare)


@pytest.mark.slow
def test_the_schedule_stays_where_the_script_has_it(rescued: Any) -> None:
    _, _, rates = rescued
    assert rates == train()[1]


def test_the_learning_rate_really_used_is_recorded_beside_that_of_the_script_while_it_is_lower(rescued: Any) -> None:
    flown, _, _ = rescued
    rates: dict[str, dict[int, float]] = {"learning_rate": {}, "learning_rate_used": {}}
    for reading in [record for record in flown.records if isinstance(record, StepReading)]:
        for signal, value in zip(reading.signals, reading.values, strict=True):
            rates.get(signal.quantity, {})[reading.step] = value
    used, script = rates["learning_rate_used"], rates["learning_rate"]
    back = [event.step for event in flown.events("rollback")]
    assert min(used) == back[0] + 1
    assert all(rate < script[step] for step, rate in used.items())
    first = flown.events("rollback")[0].metrics["learning_rate"]
    assert used[back[0] + 1] == pytest.approx(first)


def test_every_rollback_is_reported_with_its_target_and_marked_in_the_curves(rescued: Any) -> None:
    flown = rescued[0]
    returns = flown.events("rollback")
    resets = [record for record in flown.records if isinstance(record, Reset)]
    assert [reset.step for reset in resets] == [point.step + 1 for point in returns]
    assert [reset.attempt for reset in resets] == list(range(1, len(returns) + 1))
    for point in returns:
        assert point.metrics["steps_lost"] == point.step - point.metrics["target"] > 0
        assert point.metrics["seconds"] > 0
    last = [record for record in flown.records if isinstance(record, StepReading)][-1]
    assert last.attempt == len(returns)
    assert dict(zip(map(str, last.signals), last.values, strict=True))["rollbacks"] == len(returns)


def test_what_was_judged_live_is_found_again_in_the_journal(rescued: Any) -> None:
    flown = rescued[0]
    (opening,) = [record for record in flown.records if isinstance(record, Opening)]
    live = [event for event in flown.events() if event.source is Source.DETECTOR]
    assert live
    again = replay(flown.records, read_detectors(opening.detectors))
    assert [dataclasses.astuple(item) for item in again] == [dataclasses.astuple(item) for item in live]


@pytest.mark.slow
def test_nothing_of_us_is_in_the_way_of_a_healthy_training(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=QUICK) as flown:
        losses, _ = train(jump=(0, 0))
    assert losses == train(jump=(0, 0))[0]
    kinds = [event.kind for event in flown.events() if event.source is Source.REPORTED]
    assert kinds == ["configuration_changed"]  # this loop changes its betas itself


@pytest.mark.slow
def test_what_going_back_cannot_help_is_given_up(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=dataclasses.replace(HOPELESS, max_rollbacks=2, on_give_up="continue")) as flown:
        train(steps=900, jump=(200, 900))
    assert len(flown.events("rollback")) <= 2
    (final,) = [event for event in flown.events("give_up") if event.severity.name == "CRITICAL"]
    assert final.step > 200


@pytest.mark.slow
def test_what_going_back_cannot_help_goes_on_by_default_and_says_what_to_change(tmp_path: Path) -> None:
    policy = dataclasses.replace(HOPELESS, max_rollbacks=1)
    with flying(tmp_path, rollback=policy) as flown:
        losses, _ = train(steps=900, jump=(200, 900))
    assert len(losses) == 900
    (final,) = [event for event in flown.events("give_up") if event.severity.name == "CRITICAL"]
    assert "No further rollbacks; broken steps are still skipped." in final.message
    assert str(final.remedies[0]).startswith("Lower the learning rate")


@pytest.mark.slow
def test_a_training_can_be_ended_where_we_give_up(tmp_path: Path) -> None:
    policy = dataclasses.replace(HOPELESS, max_rollbacks=1, on_give_up="raise")
    with flying(tmp_path, rollback=policy), pytest.raises(TrainingDiverged, match="Training stopped at step"):
        train(steps=900, jump=(200, 900))


@pytest.mark.slow
def test_a_training_is_stopped_where_the_user_asked_and_leaves_its_last_good_state(tmp_path: Path) -> None:
    with (
        flying(tmp_path, stop_on=("loss>1000", "nonfinite")) as flown,
        pytest.raises(TrainingDiverged, match="loss>1000"),
    ):
        train()
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    model, _ = task()
    optimizer = AdamW(model.parameters(), lr=0.01)
    resumed = mlflow_stability.restore(model, optimizer, directory=directory)
    assert 0 < resumed.step < 200
    assert flown.events("rollback") == []
    assert [record.value for record in flown.records if isinstance(record, Note) and record.key == "checkpoints"] == [
        str(directory)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("keeps_the_first", [False, True])
def test_an_optimizer_that_takes_over_with_far_too_high_a_rate_loses_no_weights(
    tmp_path: Path, keeps_the_first: bool
) -> None:
    model, next_loss = task()
    optimizer, losses, taken_over = Adam(model.parameters(), lr=0.002), [], 230
    kept = [optimizer] if keeps_the_first else []
    # On a busy machine, copies of these few weights take more than their usual share of so short a training.
    with flying(tmp_path, rollback=RollbackPolicy(snapshot_share=1.0)) as flown:
        for step in range(500):
            if step == taken_over:
                optimizer = Adam(model.parameters(), lr=1.0)
            loss = next_loss()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert len(kept) == keeps_the_first
    assert [event.metrics["target"] for event in flown.events("rollback")][:1] == [taken_over]
    assert end_of(losses) < 2 * end_of(losses[:taken_over])


@pytest.mark.parametrize("share", [1e-9, 1.0])
def test_weights_are_copied_before_an_optimizer_that_joins_while_copies_keep_to_their_share(
    tmp_path: Path, share: float
) -> None:
    model, next_loss = task()
    optimizers = [Adam(model.parameters(), lr=0.002)]
    with flying(tmp_path, rollback=dataclasses.replace(QUICK, snapshot_share=share)) as flown:
        for step in range(60):
            if step == 45:
                optimizers.append(Adam(model.parameters(), lr=0.002))
            next_loss().backward()
            optimizers[-1].step()
            optimizers[-1].zero_grad()
        good = flown.session.good_steps
    assert (45 in good) == (share == 1.0)


@pytest.mark.slow
def test_the_halves_of_a_gan_are_rolled_back_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    maker, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    makes, judges = Adam(maker.parameters(), lr=0.002), Adam(critic.parameters(), lr=0.002)
    dice = torch.Generator().manual_seed(1)
    policy = dataclasses.replace(QUICK, rollback_on=("divergence", "loss_spike", "gradient_explosion", "nan_detected"))
    with flying(tmp_path, rollback=policy) as flown:
        for number in range(300):
            if number == 150:
                with torch.no_grad():
                    critic[2].weight.mul_(3000.0)
            real = torch.randn(32, 2, generator=dice) + 2
            fake = maker(torch.randn(32, 2, generator=dice))
            judges.zero_grad()
            loss = nn.functional.softplus(-critic(real)).mean() + nn.functional.softplus(critic(fake.detach())).mean()
            loss.backward()
            judges.step()
            makes.zero_grad()
            nn.functional.softplus(-critic(fake)).mean().backward()
            makes.step()
    assert flown.events("rollback")
    assert critic[2].weight.abs().max() < 100
    assert flown.session.parts_off == {}


@pytest.mark.slow
def test_checkpoints_and_returns_can_be_asked_for(tmp_path: Path) -> None:
    model, next_loss = task()
    optimizer = AdamW(model.parameters(), lr=0.01)
    with flying(tmp_path, rollback=QUICK) as flown:
        with pytest.raises(StabilityError, match="No step was recorded yet"):
            flown.session.skip_next()
        weights: dict[int, Tensor] = {}
        for number in range(1, 101):
            next_loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            weights[number] = model[0].weight.detach().clone()
        assert flown.session.checkpoint_now()
        assert flown.session.rollback()
        (target,) = [step for step in weights if torch.equal(weights[step], model[0].weight)]
        assert target in flown.session.good_steps
    (event,) = flown.events("rollback")
    assert event.metrics["target"] == target
    assert "The script called rollback()" in event.message
    assert len(list(tmp_path.glob("journals/checkpoints/*/rollback_ckpt-000100-*"))) <= 1


@pytest.mark.slow
def test_checkpoints_that_cannot_be_written_are_switched_off_and_training_goes_on(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    (journals / "checkpoints").write_text("not a folder")
    policy = dataclasses.replace(QUICK, rollback_checkpoint_interval=50)
    with flying(tmp_path, strict=False, rollback=policy) as flown:
        losses, _ = train(jump=(0, 0))
        assert flown.session.good_steps, "states in memory are kept on"
    assert losses == train(jump=(0, 0))[0]
    assert list(flown.session.parts_off) == ["checkpoints"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rollback": "yes"}, "rollback must be True, False or a RollbackPolicy"),
        ({"guard": "soon"}, "guard must be"),
        ({"stop_on": "lose>5"}, "stop_on can compare"),
        ({"max_checkpoints": 5}, r"RollbackPolicy: autolog\(rollback=RollbackPolicy\(max_checkpoints=5\)\)"),
        ({"rollback": True, "preset": "reckless"}, "preset must be .research., .production., .debugging. or None"),
        ({"rollback": True, "options": {"capture_batch": False}}, "options must be an Options object"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_it_is_asked(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        mlflow_stability.autolog(**settings)
    assert mlflow_stability.current_session() is None


def test_a_loop_watched_by_hand_cannot_be_flown() -> None:
    with (
        pytest.raises(SettingsError, match="cannot skip or roll back"),
        mlflow_stability.attach(nn.Linear(1, 1), rollback=True),
    ):
        pass


def test_the_autopilot_can_be_turned_on_and_off_on_the_way(tmp_path: Path) -> None:
    model, next_loss = task()
    optimizer = AdamW(model.parameters(), lr=0.01)

    def steps(count: int) -> None:
        for _ in range(count):
            next_loss().backward()
            optimizer.step()
            optimizer.zero_grad()

    with flying(tmp_path) as flown:
        steps(10)
        assert flown.session.good_steps == ()
        mlflow_stability.autolog(
            rollback=QUICK, offline=True, silent=True, strict=True, options=Options(journal_dir=tmp_path / "journals")
        )
        steps(60)
        assert flown.session.good_steps
        mlflow_stability.autolog(
            offline=True, silent=True, strict=True, options=Options(journal_dir=tmp_path / "journals")
        )
        steps(10)
    assert len([record for record in flown.records if isinstance(record, StepReading)]) == 80


def test_a_guard_that_never_waits_answers_a_broken_step_by_going_back(tmp_path: Path) -> None:
    model, next_loss = task()
    optimizer = AdamW(model.parameters(), lr=0.01)
    with flying(tmp_path, rollback=QUICK, guard="late") as flown:
        for number in range(1, 121):
            loss = next_loss()
            (loss * float("nan") if number == 100 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    (event,) = flown.events("rollback")
    assert event.step == 100
    assert 80 <= event.metrics["target"] < 100
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert flown.events("step_skipped") == []


@pytest.mark.slow
def test_adaptive_clipping_alone_tames_a_spike(tmp_path: Path) -> None:
    def worst(**settings: Any) -> float:
        model, next_loss = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        with flying(tmp_path / str(len(settings)), **settings) as flown:
            for number in range(200):
                loss = next_loss()
                (loss * (500.0 if number == 100 else 1.0)).backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            assert not settings or flown.session.good_steps == ()
        return max(losses[100:])

    assert worst(options=Options(adaptive_clip=True)) < 0.5 < worst()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["research", "production", "debugging"])
def test_a_preset_brings_its_own_idea_of_divergence(tmp_path: Path, preset: str) -> None:
    with flying(tmp_path, rollback=True, preset=preset) as flown:
        train(steps=160, jump=(0, 0))
    (opening,) = [record for record in flown.records if isinstance(record, Opening)]
    assert opening.detectors.count("DivergenceClassic") == 1 or "divergence:classic" in opening.detectors


@pytest.mark.slow
def test_what_was_kept_on_the_disk_goes_on_in_a_new_process(tmp_path: Path) -> None:
    policy = dataclasses.replace(QUICK, rollback_checkpoint_interval=100)
    with flying(tmp_path, rollback=policy):
        train(jump=(0, 0), steps=250)
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    model, next_loss = task()
    before = next_loss().item()
    resumed = mlflow_stability.restore(model, AdamW(model.parameters(), lr=0.01), directory=directory)
    assert resumed.step >= 100
    assert next_loss().item() < 0.5 * before
