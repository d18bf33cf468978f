"""After a check, model, gradients, random numbers, hooks and modes are what they were, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios.flown_history import recorded
from scenarios.flying import flying
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from mlflow_stability import check

BATCH = (torch.randn(8, 12, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4)


class Careless(nn.Module):
    """Writes down whatever a script may write down in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 4)
        self.calls, self.seen, self.dice = 0, [], torch.Generator().manual_seed(3)
        self.register_buffer("average", torch.zeros(4))
        self.kept = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x.shape)
        self.kept += 1
        out: Tensor = self.inner(x) * (
            1 + random.random() + float(np.random.rand()) + torch.rand((), generator=self.dice)
        )
        self.average.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
        return out


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"not today: {self.norm(x).shape}")


PARTS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.RReLU(), nn.Linear(16, 4)),
    "spectral norm": lambda: nn.Sequential(spectral_norm(nn.Linear(12, 16)), nn.Tanh(), nn.Linear(16, 4)),
    "careless": Careless,
    "raises": Raises,
    "in place": lambda: nn.Sequential(nn.Linear(12, 4), nn.ReLU(inplace=True)),
}


def state_of(model: nn.Module, notes: list[Any]) -> list[Any]:
    """Everything that a check could change, copied."""
    items: list[Any] = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), list(notes)]
    items += [BATCH[0].clone(), BATCH[0].requires_grad, BATCH[0]._version, torch.is_grad_enabled()]
    for name, item in model.named_modules():
        hooks = [dict(vars(item)[table]) for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
        items += [name, item.training, hooks]
        if isinstance(item, Careless):
            items += [item.calls, list(item.seen), item.kept.clone(), item.dice.get_state()]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        items += [name, id(tensor), tensor.detach().clone(), tensor._version, tensor.requires_grad, id(tensor.grad)]
        items.append(None if tensor.grad is None else tensor.grad.clone())
    return items


def same(first: Any, other: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(other, Tensor) and torch.equal(first, other)
    return bool(first == other)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    part=st.sampled_from(sorted(PARTS)),
    modes=st.lists(st.booleans(), min_size=5, max_size=5),
    with_gradients=st.booleans(),
    frozen=st.booleans(),
    hooked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_check_with_a_batch_changes_not_a_bit(
    part: str, modes: list[bool], with_gradients: bool, frozen: bool, hooked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model, notes = PARTS[part](), []
    for item, training in zip(model.modules(), modes, strict=False):
        item.training = training
    parameters = list(model.parameters())
    if frozen:
        parameters[0].requires_grad_(False)
    if with_gradients:
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
    if hooked:
        next(model.children()).register_forward_hook(lambda *_: notes.append("called"))
        parameters[-1].register_hook(lambda gradient: notes.append("gradient") or gradient)
    before = state_of(model, notes)
    checked = check(model, BATCH, optimizer=torch.optim.AdamW(parameters))
    after = state_of(model, notes)
    assert all(map(same, before, after))
    assert checked.loss is not None or part == "raises" or checked.not_checked
    assert not any(part in group for group in checked.not_checked)


def test_a_model_that_cannot_be_restored_is_not_run_and_the_reason_is_reported() -> None:
    class Streams(Careless):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = (number for number in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * next(self.numbers)

    model = Streams()
    checked = check(model, BATCH)
    assert model.calls == 0
    why = "it might change the model: Streams.numbers is of type generator, whose state cannot be put back"
    assert f"Gradients of the batch: {why}." in checked.not_checked


@pytest.mark.parametrize("name", ["batch norm", "dropout"])
def test_a_recorded_training_with_checks_between_its_steps_is_recorded_as_without(name: str, tmp_path: Path) -> None:
    def record(folder: Path, checks: bool) -> dict[str, list[float]]:
        torch.manual_seed(5)
        model = PARTS[name]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with flying(folder) as flown:
            for step in range(25):
                if checks and step % 3 == 0:
                    check(model, BATCH, optimizer=optimizer)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(BATCH[0]), BATCH[1])
                loss.backward()
                optimizer.step()
        metrics = recorded(flown).metrics
        entries = [entry for entry in metrics if entry.name.startswith(("loss", "grad_norm", "micro", "activation"))]
        return {metric.name: metric.series.values.tolist() for metric in entries}

    bare, checked = record(tmp_path / "bare", False), record(tmp_path / "checked", True)
    assert len(bare["loss"]) == 25
    assert any(text.startswith("activation") for text in bare)
    assert repr(checked) == repr(bare)  # of NaN as well
