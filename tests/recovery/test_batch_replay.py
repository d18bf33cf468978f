from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from recovery.guarded_training import differences, picture
from recovery.listening import listening
from torch import Tensor, nn

from mlflow_stability.recovery.batch_replay import replay_batch
from mlflow_stability.recovery.batch_rerun import Replay


class Net(nn.Module):
    """Dropout, running means and a logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.log = Log()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.log(self.drop(self.norm(self.first(x)))))
        return found


class Log(nn.Module):
    """Breaks at a zero, and on the first call if it is told to."""

    flips = False

    def forward(self, x: Tensor) -> Tensor:
        if self.flips:
            self.flips = False
            return x * float("nan")
        return (x.abs() + 1e-3).log()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def replayed(root: nn.Module, inputs: Tensor, after: Callable[[], None] = lambda: None) -> Replay:
    capture, watch = listening(root)
    root(inputs)
    after()
    try:
        return replay_batch(capture.passes(0)[-1])
    finally:
        watch.remove()


def test_a_batch_with_a_nan_is_data_or_numerics_and_the_first_module_is_named(net: Net) -> None:
    inputs = torch.randn(6, 4)
    inputs[2, 1] = float("nan")
    found = replayed(net, inputs)
    assert (found.conclusion, found.finite, found.first_broken) == ("data or numerics", False, "first")
    assert "input args[0] is not finite" in found.message


def test_an_overflow_inside_is_found_where_it_begins(net: Net) -> None:
    with torch.no_grad():
        net.last.weight.fill_(3e38)
    found = replayed(net, torch.randn(6, 4))
    assert (found.conclusion, found.first_broken) == ("data or numerics", "last")
    assert "inputs are finite" in found.message


def test_a_batch_that_broke_once_and_not_again_points_at_the_hardware(net: Net) -> None:
    net.log.flips = True
    assert replayed(net, torch.randn(6, 4)).conclusion == "hardware"


def test_an_output_that_was_finite_both_times_points_behind_the_model(net: Net) -> None:
    assert replayed(net, torch.randn(6, 4)).conclusion == "after the model"


def test_broken_weights_are_named_before_anything_is_run(net: Net) -> None:
    def spoil() -> None:
        with torch.no_grad():
            net.last.bias[0] = float("inf")

    found = replayed(net, torch.randn(6, 4), spoil)
    assert found.conclusion == "weights"
    assert "last.bias" in found.message


def test_a_batch_that_was_changed_since_is_not_judged(net: Net) -> None:
    inputs = torch.randn(6, 4)

    def change() -> None:
        inputs.zero_()

    assert replayed(net, inputs, change).conclusion == "cannot tell"


def test_scores_ruled_out_by_minus_infinity_are_no_break() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).index_fill(1, torch.tensor(0), -float("inf"))

    assert replayed(Masked(4, 3), torch.randn(2, 4)).conclusion == "after the model"


def test_the_second_time_draws_the_random_numbers_of_the_first(net: Net) -> None:
    net.norm = nn.BatchNorm1d(8, track_running_stats=False)
    outputs: list[Tensor] = []
    handle = net.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
    replayed(net, torch.randn(6, 4))
    handle.remove()
    assert torch.equal(*outputs)


def test_nothing_of_the_training_is_touched(net: Net) -> None:
    inputs = torch.randn(6, 4)
    capture, _ = listening(net)
    net(inputs).sum().backward()
    gradients = [None if each.grad is None else each.grad.clone() for each in net.parameters()]
    before = picture(net)
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    versions = [each._version for each in (*net.parameters(), *net.buffers())]
    hooks = [len(each._forward_hooks) for each in net.modules()]
    (batch,) = capture.passes(0)
    replay_batch(batch)
    assert capture.passes(0) == (batch,)
    assert differences(before, picture(net)) == []
    assert differences(gradients, [each.grad for each in net.parameters()]) == []
    assert differences(list(dice), [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]) == []
    assert versions == [each._version for each in (*net.parameters(), *net.buffers())]
    assert hooks == [len(each._forward_hooks) for each in net.modules()]


def test_half_precision_is_run_again_as_it_was(net: Net) -> None:
    seen: list[torch.dtype] = []
    net.first.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    capture, _ = listening(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.randn(6, 4))
    replay_batch(capture.passes(0)[-1])
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_a_wrapper_is_taken_off_before_it_runs_again(net: Net) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            found: Tensor = self.module(x)
            return found

    wrapped = Wrapper()
    assert replayed(wrapped, torch.randn(6, 4)).conclusion == "after the model"
    assert wrapped.calls == 1
