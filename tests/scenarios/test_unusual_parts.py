"""Models with unusual parts, and parts that join a training later, are rolled back as a whole."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scenarios.flying import QUICK, flying
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

pytestmark = pytest.mark.scenario
AFTER_FIVE = dataclasses.replace(QUICK, snapshot_every=10, healthy_after=5, rewind=5, rollback_after_skips=5)
"""A rollback after five skipped steps."""


class Unusual(nn.Module):
    """With parameters that are complex, of one byte, or a mask of infinities."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.spectrum: nn.Parameter | None = None
        if kind == "complex":
            self.spectrum = nn.Parameter(0.1 * torch.randn(5, dtype=torch.cfloat))
        elif kind == "fp8":
            self.scales = nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
        elif kind == "frozen mask":
            self.mask = nn.Parameter(torch.full((4, 4), -torch.inf).triu(1), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inner(inputs)
        if self.spectrum is not None:
            hidden = hidden + torch.fft.irfft(torch.fft.rfft(hidden) * self.spectrum, n=8)
        return self.head(hidden)


@pytest.mark.parametrize("kind", ["plain", "complex", "fp8", "frozen mask"])
def test_parameters_of_every_kind_are_rolled_back(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = Unusual(kind)
        optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3
        )
        for step in range(1, 100):
            inputs = torch.randn(8, 8) * (float("nan") if step == 60 or 80 <= step < 85 else 1.0)
            optimizer.zero_grad()
            (model(inputs) - 1).square().mean().backward()
            optimizer.step()
    assert [event.metrics["target"] for event in flown.events("rollback")] == [71]
    assert flown.events("give_up") == []
    assert flown.session.parts_off == {}


def regression(*modules: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """Steps, and the loss of the modules in a row at each."""
    dice = torch.Generator().manual_seed(3)
    for step in range(1, 1000):
        hidden = torch.randn(8, 4, generator=dice)
        for module in modules:
            hidden = module(hidden)
        yield step, (hidden - 1).square().mean()


def take_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def largest(model: nn.Module) -> float:
    return max(parameter.abs().max().item() for parameter in model.parameters())


@pytest.mark.parametrize("begins", [30, 119])
def test_an_average_that_is_begun_later_is_rolled_back_with_the_weights(tmp_path: Path, begins: int) -> None:
    """At 30 good states know it; at 119 none does, and it begins again with the weights, as when it was made."""
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        average: AveragedModel | None = None
        for step, loss in regression(model):
            if step == begins:
                average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
            take_step(optimizer, loss)
            if step == 121:
                with torch.no_grad():
                    model[0].weight.fill_(1e3)
            if average is not None:
                average.update_parameters(model)
            if step == 122:
                break
        assert average is not None
        assert largest(average) > 50
        assert flown.session.rollback()
        assert largest(model) < 2
        assert largest(average) < 2
        if begins == 119:
            assert int(average.n_averaged) == 0
            assert torch.equal(average.module[0].weight, model[0].weight)
    assert flown.session.parts_off == {}


def test_a_frozen_copy_that_no_state_knows_is_left_as_it_is_and_the_event_says_so(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, loss in regression(model):
            take_step(optimizer, loss)
            if step == 60:
                break
        teacher = net().requires_grad_(False)
        before = [parameter.clone() for parameter in teacher.parameters()]
        assert flown.session.rollback()
        assert all(map(torch.equal, teacher.parameters(), before))
    (event,) = flown.events("rollback")
    assert "Not restored: frozen copies of the model made after step 51 (1)." in event.message


def test_an_average_by_hand_that_became_nan_restarts_and_other_copies_are_left_alone(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model, earlier = net(), net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        average, best = copy.deepcopy(model), copy.deepcopy(model)
        nn.init.constant_(earlier[0].weight, torch.nan)  # of a training before this one
        for step, loss in regression(model):
            take_step(optimizer, loss)
            with torch.no_grad():
                if step == 58:
                    model[0].weight[0] = torch.nan
                for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(weight, 0.1)
            if step == 57:
                best.load_state_dict(model.state_dict())
                kept = copy.deepcopy(best)
            if step == 70:
                break
        assert all(weight.isfinite().all() for weight in average.parameters())
        assert all(map(torch.equal, best.parameters(), kept.parameters()))
        assert earlier[0].weight.isnan().all()
    assert len(flown.events("rollback")) == 1
    assert flown.session.parts_off == {}


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("kind", ["plain", "nested"])
def test_a_scripted_model_is_rolled_back_with_its_buffers(tmp_path: Path, kind: str) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = torch.jit.script(net() if kind == "plain" else nn.Sequential(net()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, loss in regression(model):
            take_step(optimizer, loss * (torch.nan if 60 <= step < 65 else 1.0))
            if step == 80:
                break
        before = copy.deepcopy(model.state_dict())
        for _, buffer in model.named_buffers():
            buffer.fill_(777)
        assert flown.session.rollback()
        after = model.state_dict()
        assert max(float(after[name].abs().max()) for name in after if "running" in name) < 10
        assert before.keys() == after.keys()
    assert len(flown.events("rollback")) == 2
    assert flown.session.parts_off == {}


def test_a_module_that_joins_later_is_rolled_back_with_its_buffers(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        body, joined, head = net()[0], nn.BatchNorm1d(8), nn.Linear(8, 1)
        optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
        for step, loss in regression(body, joined, head):
            if step == 50:
                optimizer.add_param_group({"params": list(joined.parameters())})
            take_step(optimizer, loss)
            if step == 49:
                assert flown.session.good_steps[-1] > 0
            if step == 50:
                assert flown.session.good_steps == ()
            if step == 100:
                break
        joined.running_mean.fill_(777.0)
        assert flown.session.rollback()
        assert joined.running_mean.abs().max() < 10
    assert flown.session.parts_off == {}


def test_states_of_before_are_kept_where_layers_of_a_model_are_unfrozen(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = net()
        optimizer = torch.optim.AdamW(model[2].parameters(), lr=1e-3)
        for step, loss in regression(model):
            if step == 50:
                optimizer.add_param_group({"params": list(model[0].parameters())})
            take_step(optimizer, loss)
            if step == 50:
                break
        assert flown.session.good_steps[-1] == 41
        assert flown.session.rollback()
        assert not optimizer.state[model[0].weight]


@pytest.mark.slow
def test_an_optimizer_for_each_layer_is_rolled_back_with_all_others(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(40)))
        optimizers = [torch.optim.AdamW([parameter], lr=1e-3) for parameter in model.parameters()]
        for step, loss in regression(model):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            if step == 1:
                assert flown.session.good_steps == (0,)
            if step == 60:
                break
        assert flown.session.rollback()
        steps = {int(entry["step"]) for optimizer in optimizers for entry in optimizer.state.values()}
    assert steps == {51}
    assert flown.session.parts_off == {}


@pytest.mark.slow
def test_a_rollback_soon_after_a_growth_is_given_up_and_later_ones_are_made(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=AFTER_FIVE) as flown:
        body, head, joined = net()[0], nn.Linear(8, 1), nn.Linear(1, 1)
        optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
        for step, loss in regression(body, head, joined):
            if step == 105:
                optimizer.add_param_group({"params": list(joined.parameters())})
            broken = 107 <= step < 112 or 180 <= step < 185
            take_step(optimizer, loss * float("nan") if broken else loss)
            if step == 190:
                break
    assert [event.metrics["target"] for event in flown.events("rollback")] == [172]
    (given_up,) = flown.events("give_up")
    assert given_up.step == 111
    assert flown.session.parts_off == {}


def test_where_a_state_does_not_fit_the_next_older_one_is_restored(tmp_path: Path) -> None:
    """A parameter that comes and goes within a group is not reported."""
    policy = dataclasses.replace(AFTER_FIVE, snapshots=10)
    with flying(tmp_path, rollback=policy) as flown:
        model, loose = net(), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        group = optimizer.param_groups[0]["params"]
        for step, loss in regression(model):
            if step == 55:
                group.append(loose)
            take_step(optimizer, loss + (loose.sum() if 55 <= step < 85 else 0))
            if step == 85:
                del group[-1]
                break
        assert flown.session.good_steps[-3:] == (51, 61, 71)
        assert flown.session.rollback()
        assert flown.session.good_steps[-1] == 51
        group.append(torch.zeros(2, requires_grad=True))
        assert not flown.session.rollback()
        assert flown.session.good_steps == (0,)  # before the first step: no state for trouble that comes later
    assert [event.metrics["target"] for event in flown.events("rollback")] == [51]
    (given_up,) = flown.events("give_up")
    assert "No good state fits the training as it is now (The state of step" in given_up.message
    assert "No further rollbacks" not in given_up.message
    assert flown.session.parts_off == {}
