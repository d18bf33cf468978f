from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recovery.guarded_training import differences, guarding, picture
from recovery.optimizer_zoo import OPTIMIZERS, Muon
from torch import Tensor, nn
from torch.amp import GradScaler

from mlflow_stability.recovery.skipping import step_guard

NAN = float("nan")
INF = float("inf")


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def batch(number: int) -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def nan_loss(model: nn.Module, inputs: Tensor) -> Tensor:
    return loss_of(model, inputs) + NAN  # its gradients are finite


def inf_gradient(model: nn.Module, inputs: Tensor) -> Tensor:
    last = model[-1].bias  # type: ignore[index]
    return loss_of(model, inputs) + (last - last.detach()).abs().sqrt().sum()  # finite; its derivative is not


def nan_input(model: nn.Module, inputs: Tensor) -> Tensor:
    return loss_of(model, inputs.index_fill(1, torch.tensor(2), NAN))


BREAKS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "nan loss": nan_loss,
    "inf gradient": inf_gradient,
    "nan input": nan_input,
}


CASES = [
    (name, broken, scaled)
    for number, name in enumerate(OPTIMIZERS)
    for place, broken in enumerate(BREAKS)
    for scaled in (False, True)
    if name in ("adam", "adamw fused") or (number + place) % 3 == scaled
]
"""All for two optimizers; two for each of the others, one of them with a scaler."""


@pytest.mark.parametrize(("name", "broken", "scaled"), CASES)
def test_a_broken_step_changes_nothing_and_training_continues_without_it(name: str, broken: str, scaled: bool) -> None:
    def train(plan: list[Callable[[nn.Module, Tensor], Tensor]]) -> list[object]:
        model = model_of()
        optimizer = OPTIMIZERS[name](model.parameters())
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=10_000, backoff_factor=0.999, enabled=scaled)
        with guarding(model):
            number = 0
            for loss_with in plan:
                before = picture(model, optimizer)
                optimizer.zero_grad()
                scaler.scale(loss_with(model, batch(number))).backward()
                scaler.step(optimizer)
                scaler.update(8.0 if scaled else None)
                if loss_with is loss_of:
                    number += 1
                    assert differences(before, picture(model, optimizer))
                else:
                    assert differences(before, picture(model, optimizer)) == []
        return picture(model, optimizer)

    straight = train([loss_of] * 6)
    detour = train(
        [loss_of, loss_of, BREAKS[broken], BREAKS[broken], loss_of, loss_of, BREAKS[broken], loss_of, loss_of]
    )
    assert differences(straight, detour) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=4)
@given(seed=st.integers(0, 10_000))
def test_a_sound_training_is_bit_identical_with_and_without_the_guard(name: str, seed: int) -> None:
    def train(model: nn.Module) -> list[object]:
        optimizer = OPTIMIZERS[name](model.parameters())
        for number in range(5):
            optimizer.zero_grad()
            loss_of(model, batch(number)).backward()
            optimizer.step()
        return picture(model, optimizer)

    bare = train(model_of(seed))
    guarded = model_of(seed)
    with guarding(guarded) as meter:
        assert differences(bare, train(guarded)) == []
    assert [verdict.broken for verdict in meter.verdicts] == [False] * 5


@pytest.mark.parametrize("name", ["adam", "zeros for none", "unchecked", "lookahead"])
def test_the_script_finds_its_gradients_again_after_a_skipped_step(name: str) -> None:
    model = model_of()
    optimizer = OPTIMIZERS[name](model.parameters())
    with guarding(model):
        nan_input(model, batch(0)).backward()
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
    assert all(now.grad is then for now, then in zip(model.parameters(), before, strict=True))
    assert any(not then.isfinite().all() for then in before if then is not None)


def test_where_an_optimizer_cannot_be_copied_its_gradients_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(step_guard, "copy_everything", out_of_memory)
    model = model_of()
    optimizer = OPTIMIZERS["counting"](model.parameters())
    with guarding(model):
        nan_input(model, batch(0)).backward()
        before = picture(model, optimizer)[1], [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
        after = picture(model, optimizer)[1], [parameter.detach().clone() for parameter in model.parameters()]
    assert differences(before, after) == []


def test_an_ordinary_step_of_an_unknown_optimizer_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: object) -> None:
        raise AssertionError

    for name in ("copy_everything", "copy_weights", "copy_bookkeeping"):
        monkeypatch.setattr(step_guard, name, forbidden)
    model = model_of()
    optimizer = OPTIMIZERS["lookahead"](model.parameters())
    with guarding(model) as meter:
        for number in range(3):
            optimizer.zero_grad()
            loss_of(model, batch(number)).backward()
            optimizer.step()
    assert [verdict.broken for verdict in meter.verdicts] == [False] * 3


@pytest.mark.parametrize("bad", range(4))
def test_an_accumulated_step_is_skipped_whichever_micro_batch_is_broken(bad: int) -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    with guarding(model) as meter:
        for capture in range(3):
            before = picture(model, optimizer)
            for micro in range(4):
                (nan_loss if capture == 1 and micro == bad else loss_of)(model, batch(micro)).backward()
            optimizer.step()
            optimizer.zero_grad()
            changed = differences(before, picture(model, optimizer))
            assert bool(changed) is (capture != 1)
    assert [verdict.broken for verdict in meter.verdicts] == [False, True, False]


@pytest.mark.parametrize("muon_first", [True, False])
@pytest.mark.parametrize("where", ["0.weight", "1.bias", "3.weight"])
def test_a_nan_in_the_half_of_one_optimizer_stops_the_other_half_as_well(muon_first: bool, where: str) -> None:
    model = model_of()
    muon = Muon(model, muon_first)
    with guarding(model):
        for number in range(5):
            before = picture(model, *muon.optimizers)
            muon.zero_grad()
            loss_of(model, batch(number)).backward()
            if number == 3:
                broken = model.get_parameter(where).grad
                assert broken is not None
                broken.view(-1)[0] = NAN
            muon.step()
            assert bool(differences(before, picture(model, *muon.optimizers))) is (number != 3)


def test_gradients_that_one_half_of_a_gan_left_behind_do_not_stop_the_other() -> None:
    first, other = model_of(1), model_of(2)
    optimizers = [torch.optim.Adam(first.parameters()), torch.optim.Adam(other.parameters())]
    moved = []
    with guarding(first, other) as meter:
        for number in range(8):
            model, optimizer = (first, other)[number % 2], optimizers[number % 2]
            before = picture(model, optimizer)
            optimizer.zero_grad()
            (nan_input if number == 4 else loss_of)(model, batch(number)).backward()
            optimizer.step()
            moved.append(bool(differences(before, picture(model, optimizer))))
    assert moved == [number != 4 for number in range(8)]
    assert [verdict.broken for verdict in meter.verdicts] == [number == 4 for number in range(8)]


def test_in_the_first_step_a_new_optimizer_is_checked_by_itself() -> None:
    model = model_of()
    muon = Muon(model, muon_first=True)
    bias = muon.optimizers[1]
    with guarding(model):
        loss_of(model, batch(0)).backward()
        model.get_parameter("1.bias").grad.fill_(INF)  # type: ignore[union-attr]
        before = picture(bias)
        muon.step()
        assert differences(before, picture(bias)) == []
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_step_that_the_loss_scaler_skips_is_skipped_by_the_other_optimizers_too(
    order: tuple[int, int],
) -> None:
    model = model_of()
    parts = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[3].parameters(), lr=0.1)]  # type: ignore[index]
    scaler = GradScaler("cpu", init_scale=4.0)
    with guarding(model) as meter:
        for capture in range(3):
            before = picture(model, *parts)
            for part in parts:
                part.zero_grad()
            scaler.scale(loss_of(model, batch(capture))).backward()
            if capture == 1:
                model[0].weight.grad.fill_(INF)  # type: ignore[index, union-attr]
            for number in order:
                scaler.step(parts[number])
            scaler.update()
            after = picture(model, *parts)
            weights = [
                difference
                for difference in differences(before, after)
                if "weight" in difference or "bias" in difference
            ]
            assert bool(weights) is (capture != 1)
        assert scaler.get_scale() == 2.0  # its own backoff was left to work
    assert meter.verdicts[1].broken


@pytest.mark.parametrize("name", ["adamw fused", "sgd fused"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaler"])
def test_fused_optimizers_are_stopped_by_a_flag_on_the_device(name: str, scaled: bool) -> None:
    def train(breaks: set[int]) -> tuple[list[object], list[bool | None]]:
        model = model_of()
        optimizer = OPTIMIZERS[name](model.parameters())
        scaler = GradScaler("cpu", init_scale=8.0, enabled=scaled)
        number = 0
        with guarding(model, on_device=True) as meter:
            for step in range(6 + len(breaks)):
                before = picture(model, optimizer)
                optimizer.zero_grad()
                scaler.scale((nan_input if step in breaks else loss_of)(model, batch(number))).backward()
                scaler.step(optimizer)
                scaler.update(8.0 if scaled else None)
                assert not hasattr(optimizer, "found_inf")
                assert bool(differences(before, picture(model, optimizer))) is (step not in breaks)
                number += step not in breaks
        return picture(model, optimizer), [verdict.broken for verdict in meter.verdicts]

    straight, _ = train(set())
    detour, values = train({2, 3, 6})
    assert differences(straight, detour) == []
    # The first step is asked for on the host: fused SGD makes buffers in it that it fills only if it does something.
    assert values == [False] + [None] * 8


def test_a_flag_on_the_device_needs_no_module_whose_buffers_are_known() -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with guarding(on_device=True) as meter:
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, batch(number)).backward()
            optimizer.step()
    assert [verdict.broken for verdict in meter.verdicts] == [False, None]


def test_a_broken_first_step_of_fused_sgd_leaves_no_buffer_unfilled() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    with guarding(model, on_device=True) as meter:
        nan_loss(model, batch(0)).backward()
        optimizer.step()
    assert optimizer.state_dict()["state"] == {}
    assert meter.verdicts[0].broken is True


def test_other_ranks_are_asked_before_every_step_and_their_broken_steps_count() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sent: list[float] = []

    def vote(flag: Tensor) -> Tensor:
        sent.append(flag.item())
        return torch.ones(()) if len(sent) == 3 else flag

    moved = []
    with guarding(model, vote=vote):
        for step in range(5):
            before = picture(model)
            optimizer.zero_grad()
            (nan_loss if step == 1 else loss_of)(model, batch(step)).backward()
            optimizer.step()
            moved.append(bool(differences(before, picture(model))))
    assert sent == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert moved == [True, False, False, True, True]


def test_skip_next_skips_one_healthy_step() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    moved = []
    with guarding(model) as meter:
        for step in range(4):
            if step == 2:
                meter.guard.skip_next()
            before = picture(model, optimizer)
            optimizer.zero_grad()
            loss_of(model, batch(step)).backward()
            optimizer.step()
            moved.append(bool(differences(before, picture(model, optimizer))))
    assert moved == [True, True, False, True]
    assert [verdict.asked_for for verdict in meter.verdicts] == [False, False, True, False]


class Failing(torch.optim.SGD):
    """Fails in its second step."""

    steps = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        if self.steps == 2:
            raise KeyboardInterrupt
        super().step()


def test_a_step_that_is_interrupted_leaves_nothing_of_ours_behind() -> None:
    model = model_of()
    optimizer = Failing(model.parameters(), lr=0.1)
    moved = []
    with guarding(model):
        for step in range(4):
            before = picture(model)
            optimizer.zero_grad()
            (nan_loss if step == 1 else loss_of)(model, batch(step)).backward()
            try:
                optimizer.step()
            except KeyboardInterrupt:
                assert step == 1
            moved.append(bool(differences(before, picture(model))))
    assert moved[2:] == [True, True]


def test_a_skipped_step_counts_up_no_version_of_autograd() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    with guarding(model):
        for step in range(3):
            optimizer.zero_grad()
            (nan_input if step == 2 else loss_of)(model, batch(step)).backward()
            versions = [parameter._version for parameter in model.parameters()]
            mean = model.get_buffer("1.running_mean")._version
            optimizer.step()
            assert (versions == [parameter._version for parameter in model.parameters()]) is (step == 2)
            assert mean == model.get_buffer("1.running_mean")._version


def test_a_gradient_whose_square_fits_no_float_counts_as_broken() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    with guarding(model) as meter:
        loss_of(model, batch(0)).backward()
        model.get_parameter("0.weight").grad.fill_(1e30)  # type: ignore[union-attr]
        before = picture(model, optimizer)
        optimizer.step()
        assert differences(before, picture(model, optimizer)) == []
    assert meter.verdicts[0].broken
