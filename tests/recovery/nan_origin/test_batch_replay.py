from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from probes.own_state import NOT_RUN_AGAIN, RESTORED, SnapshotManager, made
from recovery.guarded_training import differences, picture
from recovery.listening import listening
from torch import Tensor, nn

from mlflow_stability.recovery.nan_origin.batch_replay import Replay, replay_batch


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
        output: Tensor = self.last(self.log(self.drop(self.norm(self.first(x)))))
        return output


class Log(nn.Module):
    """Breaks at a zero."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.abs() + 1e-3).log()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def replayed(
    root: nn.Module, inputs: Tensor, after: Callable[[], None] = lambda: None, flipped: bool = False
) -> Replay:
    """`flipped`: the device has put out another number the first time."""
    capture, watch = listening(root)
    root(inputs)
    after()
    batch = capture.passes(0)[-1]
    if flipped:
        batch.outputs = tuple(None if output is None else output * float("nan") for output in batch.outputs)
    try:
        return replay_batch(batch)
    finally:
        watch.remove()


def test_a_batch_with_a_nan_is_data_or_numerics_and_the_first_module_is_named(net: Net) -> None:
    inputs = torch.randn(6, 4)
    inputs[2, 1] = float("nan")
    findings = replayed(net, inputs)
    assert (findings.conclusion, findings.first_broken) == ("data or numerics", "first")
    assert "input args[0] is non-finite" in findings.message


def test_an_overflow_inside_is_found_where_it_begins(net: Net) -> None:
    with torch.no_grad():
        net.last.weight.fill_(3e38)
    findings = replayed(net, torch.randn(6, 4))
    assert (findings.conclusion, findings.first_broken) == ("data or numerics", "last")
    assert "inputs are finite" in findings.message


def test_a_batch_that_broke_once_and_not_again_points_at_the_hardware(net: Net) -> None:
    assert replayed(net, torch.randn(6, 4), flipped=True).conclusion == "hardware"


def test_hardware_is_not_blamed_if_state_or_random_numbers_may_have_differed() -> None:
    for kind in RESTORED:
        findings = replayed(made(kind), torch.ones(2, 6), flipped=True)
        assert findings.conclusion == "cannot tell", kind
        assert "keeps state between calls" in findings.message

    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(np.random.rand())

    assert replayed(Drawing(4, 2), torch.ones(2, 4), flipped=True).conclusion == "cannot tell"


@pytest.mark.parametrize("kind", RESTORED)
def test_a_model_with_its_own_state_trains_identically_with_and_without_a_replay(kind: type[SnapshotManager]) -> None:
    def trained(looked: bool) -> list[Tensor]:
        model = made(kind)
        capture, watch = listening(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        outputs = []
        for step in range(5):
            inputs = torch.full((2, 6), float("nan") if step == 2 else 1.0)
            output = model(inputs)
            if step == 2 and looked:
                result = replay_batch(capture.passes(0)[-1])
                assert result.conclusion == "data or numerics"
            if step != 2:
                output.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            outputs.append(output.detach().clone())
        watch.remove()
        return [*outputs, *(parameter.detach() for parameter in model.parameters())]

    assert differences(trained(looked=False), trained(looked=True)) == []


@pytest.mark.parametrize("kind", NOT_RUN_AGAIN)
def test_a_model_that_cannot_be_restored_is_not_run_again_and_the_reason_is_given(kind: type[SnapshotManager]) -> None:
    findings = replayed(made(kind), torch.full((2, 6), float("nan")))
    assert findings.conclusion == "cannot tell"
    assert findings.message == f"The batch was not run again: {NOT_RUN_AGAIN[kind]}."


def test_a_replay_ends_after_its_time(net: Net) -> None:
    capture, _ = listening(net)
    net(torch.randn(6, 4))
    before = picture(net)
    result = replay_batch(capture.passes(0)[-1], seconds=0.0)
    assert result.message == "The batch was not run again: it takes more than 0 s."
    assert differences(before, picture(net)) == []


def test_a_model_that_warns_warns_once() -> None:
    class Warner(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            warnings.warn("so it is", stacklevel=1)
            return super().forward(x)

    with pytest.warns(UserWarning, match="so it is") as seen:
        assert replayed(Warner(4, 3), torch.full((2, 4), float("nan"))).conclusion == "data or numerics"
    assert len(seen) == 1


def test_a_non_finite_complex_number_is_found_at_its_origin() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))
            self.out = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            outcome = x.to(torch.complex64) @ self.weight
            result: Tensor = self.out(torch.view_as_real(outcome / (outcome * 0)).flatten(1))
            return result

    origin = replayed(Complex(), torch.ones(2, 4)).origin
    assert origin is not None
    assert (origin.operation, origin.module) == ("div", "")


def test_an_output_that_was_finite_both_times_points_behind_the_model(net: Net) -> None:
    assert replayed(net, torch.randn(6, 4)).conclusion == "after the model"


def test_broken_weights_are_named_before_anything_is_run(net: Net) -> None:
    def spoil() -> None:
        with torch.no_grad():
            net.last.bias[0] = float("inf")

    findings = replayed(net, torch.randn(6, 4), spoil)
    assert findings.conclusion == "weights"
    assert "last.bias" in findings.message


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

    class Compare:
        def __init__(self) -> None:
            self.outputs: list[Tensor] = []

        def __call__(self, _module: nn.Module, _args: object, output: Tensor) -> None:
            assert not self.outputs or torch.equal(output, self.outputs[0])
            self.outputs.append(output.detach())

    hook = Compare()
    net.register_forward_hook(hook)
    assert replayed(net, torch.randn(6, 4)).conclusion == "after the model"
    assert len(hook.outputs) == 1, "what the second run adds is taken out"


def test_nothing_of_the_training_is_touched(net: Net) -> None:
    inputs = torch.randn(6, 4)
    capture, _ = listening(net)
    net(inputs).sum().backward()
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in net.parameters()]
    before = picture(net)
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    versions = [parameter._version for parameter in (*net.parameters(), *net.buffers())]
    hooks = [len(module._forward_hooks) for module in net.modules()]
    (batch,) = capture.passes(0)
    replay_batch(batch)
    assert capture.passes(0) == (batch,)
    assert differences(before, picture(net)) == []
    assert differences(gradients, [parameter.grad for parameter in net.parameters()]) == []
    assert differences(list(dice), [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]) == []
    assert versions == [parameter._version for parameter in (*net.parameters(), *net.buffers())]
    assert hooks == [len(module._forward_hooks) for module in net.modules()]


def test_a_pass_in_half_precision_is_replayed_in_half_precision(net: Net) -> None:
    class InHalf(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x)
            assert output.dtype is torch.bfloat16
            return output

    net.first = InHalf(4, 8)
    capture, _ = listening(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.randn(6, 4))
    assert replay_batch(capture.passes(0)[-1]).conclusion == "after the model"


def test_a_wrapper_is_taken_off_before_it_runs_again(net: Net) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            output: Tensor = self.module(x)
            return output

    wrapped = Wrapper()
    assert replayed(wrapped, torch.randn(6, 4)).conclusion == "after the model"
    assert wrapped.calls == 1
