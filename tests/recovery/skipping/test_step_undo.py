from __future__ import annotations

import pytest
import torch
from recovery.guarded_training import differences, picture
from torch import nn

from mlflow_stability.recovery.skipping.step_undo import BufferUndo


class Odd(nn.Module):
    """Buffers of every kind: a mask that is no state, half precision, none, a scalar, one that is strided."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.register_buffer("mask", torch.ones(4, 4), persistent=False)
        self.register_buffer("brief", torch.arange(5, dtype=torch.bfloat16))
        self.register_buffer("nothing", None)
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("turned", torch.arange(12.0).view(3, 4).t())
        self.register_buffer("flags", torch.tensor([True, False]))


def spoil(module: nn.Module) -> None:
    for buffer in module.buffers():
        if buffer.numel():
            buffer.copy_(torch.full_like(buffer, float("nan")) if buffer.is_floating_point() else buffer.new_zeros(()))


def test_buffers_of_every_kind_come_back_bit_identical() -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    before, addresses = picture(module), [buffer.data_ptr() for buffer in module.buffers()]
    spoil(module)
    assert differences(before, picture(module))
    assert undo.undo()
    assert differences(before, picture(module)) == []
    assert addresses == [buffer.data_ptr() for buffer in module.buffers()]


def test_a_buffer_that_is_no_part_of_the_state_is_left_alone() -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    module.mask.zero_()
    undo.undo()
    assert module.mask.sum() == 0


@pytest.mark.parametrize("broken", [True, False])
def test_a_flag_on_the_device_decides_by_itself(broken: bool) -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    before = picture(module)
    module.norm(torch.randn(2, 3, 4, 4))
    after = picture(module)
    undo.settle(torch.tensor(float(broken)))
    assert differences(before if broken else after, picture(module)) == []
    module.norm(torch.randn(2, 3, 4, 4))
    undo.settle(torch.tensor(1.0))
    assert differences(before if broken else after, picture(module)) == []


def test_nothing_is_restored_without_a_copy() -> None:
    module = Odd()
    undo = BufferUndo([module])
    before = picture(module)
    assert not undo.has_copy
    assert not undo.undo()
    undo.settle(torch.tensor(1.0))
    assert differences(before, picture(module)) == []


def test_a_buffer_that_the_script_exchanged_is_not_filled_with_the_old_one() -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    module.brief = torch.ones(7)
    assert not undo.undo()
    undo.keep()
    module.brief.zero_()
    assert undo.undo()
    assert module.brief.tolist() == [1.0] * 7


def bytes_copied(undo: BufferUndo) -> int:
    return sum(bucket.copy.nbytes for bucket in undo._buckets)


def test_what_does_not_fit_into_the_budget_is_not_copied() -> None:
    module = nn.Sequential(Odd())
    module[0].register_buffer("large", torch.zeros(1000))
    undo = BufferUndo([module], budget=1000)
    assert 0 < bytes_copied(undo) <= 1000
    undo.keep()
    assert not undo.undo()


def test_shared_buffers_and_modules_are_copied_once() -> None:
    norm = nn.BatchNorm1d(8)
    alone = bytes_copied(BufferUndo([norm]))
    assert bytes_copied(BufferUndo([norm, nn.Sequential(norm, norm)])) == alone


def test_the_buffers_of_a_compiled_model_are_kept_though_it_has_no_length() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

    module = Normed()
    undo = BufferUndo([torch.compile(module, backend="eager")])  # type: ignore[list-item]
    undo.keep()
    before = picture(module)
    spoil(module)
    assert undo.undo()
    assert differences(before, picture(module)) == []


@pytest.mark.parametrize("heard", [True, False], ids=["forward heard", "forward not heard"])
def test_buffers_are_restored_even_if_forward_assigns_a_new_tensor_to_one_of_them(heard: bool) -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    module.brief = module.brief + 1  # of a sound capture
    undo.keep()
    before, held = picture(module), module.brief
    if heard:
        undo.forward_began()
    module.brief = module.brief * float("nan")
    module.norm.running_mean.fill_(float("nan"))
    assert undo.has_broken()
    assert undo.undo()
    assert differences(before, picture(module)) == []
    assert module.brief is held
    assert not undo.has_broken()


def test_if_one_buffer_changes_its_size_the_others_are_restored() -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    module.brief = torch.ones(7)
    module.norm.running_mean.fill_(float("nan"))
    assert not undo.undo()
    assert module.norm.running_mean.tolist() == [0.0] * 3
    assert module.brief.tolist() == [1.0] * 7


def test_what_the_script_writes_before_a_forward_pass_is_kept_and_what_forward_writes_is_not() -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    for number in range(1, 4):
        module.brief.fill_(number)
        module.turned = module.turned + 1
        before, held = picture(module), module.turned
        undo.forward_began()
        spoil(module)
        module.turned = module.turned * float("nan")
        assert undo.undo()
        assert differences(before, picture(module)) == []
        assert module.turned is held


def test_a_forward_pass_before_which_nothing_was_written_costs_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Odd()
    undo = BufferUndo([module])
    undo.keep()
    module.norm(torch.randn(2, 3, 4, 4))
    undo.keep()
    spoil(module)
    undo.undo()
    monkeypatch.setattr(undo, "_copy", lambda: pytest.fail("copied"))
    undo.forward_began()
    module.flags[0] = False
    with pytest.raises(pytest.fail.Exception, match="copied"):
        undo.forward_began()


def test_a_buffer_that_is_replaced_at_each_step_is_followed_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Odd()
    undo = BufferUndo([module])
    monkeypatch.setattr(undo, "_gather", lambda: pytest.fail("searched"))
    undo.keep()
    for _ in range(3):
        module.brief = module.brief + 1
        undo.keep()
    spoil(module)
    undo.undo()
    assert module.brief.tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_negative_infinity_in_a_mask_is_no_broken_buffer() -> None:
    module = nn.Module()
    module.register_buffer("mask", torch.full((3, 3), float("-inf")))
    module.register_buffer("count", torch.zeros((), dtype=torch.long))
    undo = BufferUndo([module], budget=8)
    assert not undo.has_broken()
    module.mask[0, 0] = float("inf")
    assert undo.has_broken()
    assert BufferUndo([nn.Linear(2, 2)]).undo()
