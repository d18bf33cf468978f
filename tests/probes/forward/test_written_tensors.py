from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mlflow_stability.probes.forward.forward_rerun import NotRunAgain, TrackedWrites, WrittenTensors


def add(tensor: Tensor) -> None:
    tensor.add_(1)


def through_a_view(tensor: Tensor) -> None:
    tensor.t()[0, 1:] = 7


def behind_the_graph(tensor: Tensor) -> None:
    tensor.data.mul_(3)


def as_output(tensor: Tensor) -> None:
    torch.add(tensor, tensor, out=tensor)


def running_statistics(tensor: Tensor) -> None:
    nn.functional.batch_norm(torch.randn(5, 3), tensor[0], tensor[1], training=True)


def many_at_once(tensor: Tensor) -> None:
    torch._foreach_add_([tensor, tensor], 1.0)


def with_a_gradient(tensor: Tensor) -> None:
    tensor.add_(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    "write", [add, through_a_view, behind_the_graph, as_output, running_statistics, many_at_once, with_a_gradient]
)
def test_any_write_to_a_tensor_is_reversed(write: Callable[[Tensor], None]) -> None:
    tensor = torch.ones(2, 3)
    tensor[0] = 3
    before, version, written = tensor.clone(), tensor._version, WrittenTensors()
    with TrackedWrites(written):
        write(tensor)
    assert not torch.equal(tensor, before)
    written.restore()
    assert torch.equal(tensor, before)
    assert (tensor._version, tensor.requires_grad, tensor.is_leaf) == (version, False, True)
    assert written.moved


def test_what_the_run_has_made_itself_is_neither_copied_nor_a_change() -> None:
    written = WrittenTensors(max_bytes=0)
    with TrackedWrites(written):
        torch.zeros(1000).add_(1).t().mul_(2)
    assert not written.moved


def test_a_generator_of_the_scripts_own_draws_the_same_numbers_again() -> None:
    dice, written = torch.Generator().manual_seed(3), WrittenTensors()
    with TrackedWrites(written):
        first = torch.rand(4, generator=dice)
    written.restore()
    assert torch.equal(torch.rand(4, generator=dice), first)


@pytest.mark.parametrize("write", [lambda tensor: tensor.resize_(9), lambda tensor: tensor.set_(torch.ones(2))])
def test_a_write_that_cannot_be_reversed_is_not_made(write: Callable[[Tensor], None]) -> None:
    tensor = torch.ones(2)
    with pytest.raises(NotRunAgain, match="replaces the memory"), TrackedWrites(WrittenTensors()):
        write(tensor)
    assert tensor.tolist() == [1, 1]


def test_a_view_that_was_there_before_is_not_made_a_part_of_a_graph() -> None:
    view = torch.zeros(2, 3)[0]
    with pytest.raises(NotRunAgain, match="to an autograd graph"), TrackedWrites(WrittenTensors()):
        view.add_(torch.ones(3, requires_grad=True))
    assert (view.requires_grad, view.tolist()) == (False, [0, 0, 0])


def test_more_than_fits_is_not_written_to() -> None:
    tensor = torch.zeros(1000)
    with pytest.raises(NotRunAgain, match="too large"), TrackedWrites(WrittenTensors(max_bytes=100)):
        tensor.add_(1)
    assert not tensor.any()


def test_a_run_ends_after_its_time() -> None:
    with pytest.raises(NotRunAgain, match="more than"), TrackedWrites(WrittenTensors(max_seconds=0.0)):
        torch.ones(2)
