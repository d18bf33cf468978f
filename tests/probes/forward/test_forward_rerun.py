from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

from mlflow_stability.probes.forward.forward_rerun import (
    WrittenTensors,
    hooks_muted,
    kept,
    random_numbers_kept,
    run_again,
    unwrapped,
)
from mlflow_stability.probes.forward.writable_state import WritableState


class Keeper(nn.Module):
    """Keeps everything for itself that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0
        self.losses: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.seen: set[int] = set()
        self.recent: deque[float] = deque(maxlen=2)
        self.plain = torch.zeros(2)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.losses.append(x.sum())
        self.cache["x"] = x
        self.seen.add(self.calls)
        self.recent.append(0.5 * self.calls)
        self.plain += 1
        self.last = x
        if self.calls == 2:
            self.late = x
        output: Tensor = self.norm(self.linear(x))
        return output + random.random() + np.random.rand() + torch.rand(())


def picture(model: Keeper) -> list[Any]:
    kept = [model.calls, [id(loss) for loss in model.losses], {key: id(value) for key, value in model.cache.items()}]
    kept += [set(model.seen), list(model.recent), model.plain.tolist(), id(model.last), hasattr(model, "late")]
    kept += [(parameter.tolist(), parameter._version) for parameter in (*model.parameters(), *model.buffers())]
    return kept


def test_a_second_run_leaves_buffers_attributes_and_random_numbers_unchanged() -> None:
    model = Keeper()
    model(torch.randn(4, 3)).sum().backward()
    before = picture(model)
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    with random_numbers_kept([torch.device("cpu")]):
        outputs = run_again(model, (inputs,), {})
    assert not outputs.requires_grad
    assert picture(model) == before
    assert torch.equal(dice[0], torch.get_rng_state())
    assert dice[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    for mine, parameter in zip(gradients, model.parameters(), strict=True):
        assert mine is not None
        assert parameter.grad is not None
        assert torch.equal(mine, parameter.grad)


def test_everything_is_restored_when_the_run_fails() -> None:
    model = Keeper()
    before = picture(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run_again(model, (torch.ones(4, 5),), {})
    assert picture(model) == before


def test_contents_that_were_changed_in_place_are_restored_in_the_same_container() -> None:
    model = Keeper()
    model.losses.append(torch.ones(()))
    losses, cache = model.losses, model.cache
    with kept(WritableState(model, (), {}, with_hooks=True), WrittenTensors()):
        model.losses[0] = torch.zeros(())
        model.cache.update(x=torch.zeros(()))
        model.losses = []
        del model.calls
    assert model.losses is losses
    assert [loss.item() for loss in losses] == [1.0]
    assert model.cache is cache
    assert not cache
    assert model.calls == 0


def test_hooks_of_the_script_are_silent_and_those_of_torch_work() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(3, 3)), nn.ReLU())
    noted: list[str] = []
    model[0].register_forward_hook(lambda *_: noted.append("first"))
    handle = model[1].register_forward_pre_hook(lambda *_: noted.append("second"))
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: noted.append("everywhere"))
    inputs = torch.ones(1, 3)
    expected = model.eval()(inputs)
    noted.clear()
    with hooks_muted(model):
        assert torch.equal(model(inputs), expected)
        assert noted == []
    everywhere.remove()
    model(inputs)
    assert noted == ["first", "second"]
    handle.remove()
    model(inputs)
    assert noted == ["first", "second", "first"]


def test_wrappers_are_taken_off_however_many_there_are() -> None:
    model = Keeper()
    assert unwrapped(nn.DataParallel(torch.compile(model))) is model  # type: ignore[arg-type]
