"""Skipping neither harms a training that is sound nor claims what it has not done, in trainings of unusual form."""

from __future__ import annotations

import math
from pathlib import Path
from threading import Thread

import pytest
import torch
from recovery.guarded_training import differences, picture
from recovery.optimizer_zoo import OPTIMIZERS, SAM
from scenarios.flying import QUICK, flying
from torch import Tensor, nn

from mlflow_stability.vocabulary.result import Finding

pytestmark = pytest.mark.scenario


def test_a_training_whose_reward_is_mostly_zero_takes_every_step_that_has_one(tmp_path: Path) -> None:
    rewarded = set(range(70, 190, 20))
    changed: list[int] = []
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with flying(tmp_path, guard=True) as flown:
        for step in range(1, 201):
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            loss = float(step in rewarded) * (model(torch.randn(8, 4)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            if not torch.equal(before, model.weight):
                changed.append(step)
    assert set(changed) == rewarded
    assert flown.events("step_skipped") == []


@pytest.mark.parametrize("name", ["zeros for none", "unchecked", "lookahead"])
def test_a_skipped_step_of_an_optimizer_of_its_own_kind_changes_nothing(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False)
    optimizer = OPTIMIZERS[name](model.parameters())
    moved: list[bool] = []
    with flying(tmp_path, guard=True) as flown:
        for step in range(1, 31):
            inputs = torch.randn(8, 4) * (math.nan if step == 20 else 1.0)
            optimizer.zero_grad()
            (model(inputs) - 1).square().mean().backward()
            before = picture(model, optimizer)
            optimizer.step()
            moved.append(bool(differences(before, picture(model, optimizer))))
            if step == 20:
                assert model.weight.grad is not None
                assert model.weight.grad.isnan().any()
    assert moved == [step != 20 for step in range(1, 31)]
    (skipped,) = flown.events("step_skipped")
    assert skipped.step == 20


def test_a_skipped_step_of_sam_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = SAM(model.parameters())
    moved: list[bool] = []
    with flying(tmp_path, guard=True):
        for step in range(1, 31):
            inputs = torch.randn(8, 4) * (math.nan if step == 20 else 1.0)

            def closure(inputs: Tensor = inputs) -> Tensor:
                loss = (model(inputs) - 1).square().mean()
                loss.backward()
                return loss

            before = picture(model, optimizer.base)
            closure()
            optimizer.step(closure)
            optimizer.zero_grad()
            moved.append(bool(differences(before, picture(model, optimizer.base))))
    assert moved == [step != 20 for step in range(1, 31)]


class Averaging(nn.Module):
    """A batch norm, and an average of activations: written in place, or assigned again."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.register_buffer("average", torch.zeros(()))
        self.assigns = assigns

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        if self.assigns:
            self.average = 0.9 * self.average + 0.1 * hidden.detach().abs().mean()
        else:
            self.average.mul_(0.9).add_(0.1 * hidden.detach().abs().mean())
        return self.last(hidden)  # type: ignore[no-any-return]


def averaged(model: nn.Module, folder: Path, broken_at: tuple[int, ...], steps: int = 30) -> list[Finding]:
    """Trains, and looks whether skipped steps change anything."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    with flying(folder, guard=True) as flown:
        for step in range(1, steps + 1):
            inputs = torch.randn(8, 4, generator=generator) * (math.nan if step in broken_at else 1.0)
            before = picture(model, optimizer)
            loss = (model(inputs) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step > 1:
                assert bool(differences(before, picture(model, optimizer))) is (step not in broken_at)
    return flown.events("step_skipped")


@pytest.mark.parametrize("assigns", [False, True], ids=["in place", "assigned"])
def test_a_skipped_step_leaves_buffers_as_they_were_however_forward_writes_them(tmp_path: Path, assigns: bool) -> None:
    (skipped,) = averaged(Averaging(assigns), tmp_path, broken_at=(20,))
    assert "Buffers" not in skipped.message


def test_a_broken_first_batch_says_that_buffers_were_not_restored(tmp_path: Path) -> None:
    (skipped,) = averaged(Averaging(False), tmp_path, broken_at=(1,))
    assert "were not restored" in skipped.message


class Annealed(nn.Module):
    """Buffers that the script writes after each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(1)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("replaced", torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.layer(inputs)) * self.temperature * self.replaced  # type: ignore[no-any-return]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_what_the_script_writes_into_buffers_outlasts_skipped_steps(tmp_path: Path, micro_batches: int) -> None:
    model = Annealed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with flying(tmp_path, guard=True) as flown:
        for step in range(1, 31):
            for _ in range(micro_batches):
                inputs = torch.randn(8, 4) * (math.nan if step in (10, 11, 20) else 1.0)
                (model(inputs) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.seen += 1
            model.temperature.mul_(0.9)
            model.replaced = model.replaced * 0.9
    assert flown.events("step_skipped")
    assert model.seen == 30
    assert model.temperature.item() == pytest.approx(0.9**30)
    assert model.replaced.item() == pytest.approx(0.9**30)
    assert model.norm.num_batches_tracked == 27 * micro_batches
    assert model.norm.running_mean.isfinite().all()


def test_a_skipped_step_right_after_a_rollback_leaves_the_buffers_that_it_has_restored(tmp_path: Path) -> None:
    model = Averaging(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with flying(tmp_path, rollback=QUICK) as flown:
        for step in range(1, 82):
            (model(torch.randn(8, 4) * (math.nan if step == 81 else 1.0)) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 80:
                assert flown.session.rollback()
                before = picture(model)
    assert differences(before, picture(model)) == []
    assert before[0]["norm.num_batches_tracked"] < 80


def test_forward_passes_in_threads_of_their_own_are_not_skipped_after_a_rollback(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    moved: list[bool] = []
    with flying(tmp_path, rollback=QUICK) as flown:
        for step in range(1, 121):
            output: list[Tensor] = []
            forward = Thread(target=lambda into=output: into.append(model(torch.randn(8, 4))))
            forward.start()
            forward.join()
            optimizer.zero_grad()
            (output[0] - 1).square().mean().backward()
            before = model.weight.detach().clone()
            optimizer.step()
            moved.append(not torch.equal(before, model.weight))
            if step == 80:
                assert flown.session.rollback()
    assert all(moved)
