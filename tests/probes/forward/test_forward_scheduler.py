"""Probes of forward passes are open inside them and nowhere else."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from mlflow_stability.probes.forward.forward_passes import ForwardScheduler, ForwardWatch
from mlflow_stability.probes.probe import PassHooks
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result import Finding

PLACE = (Signal("seen"),)


class Looker:
    """A probe that notes what went by, with a hook and a mode."""

    part = "looking"

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.turns: list[int] = []
        self.steps: list[int] = []
        self.seen: list[Tensor] = []
        self.closed: list[bool] = []
        self.alive: Callable[[], bool] = lambda: False

    def due(self, own_step: int) -> bool:
        self.turns.append(own_step)
        return own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        return own_step + 1

    def open(self, root: nn.Module, step: int, alive: Callable[[], bool]) -> None:
        self.steps.append(step)
        self.alive = alive
        self.hooks = PassHooks(unguarded, "looker", alive)
        self.hooks.after(root, lambda _module, _args, output: self.seen.append(output))

    def close(self, whole: bool) -> None:
        self.closed.append(whole)
        self.hooks.remove()

    def blocks(self) -> list[Block]:
        result, self.seen = [Block(PLACE, (float(tensor.detach().sum()),)) for tensor in self.seen], []
        return result

    def finish(self) -> None:
        pass


class Loop:
    """A training by hand: what a survey would do, without one."""

    def __init__(self, model: nn.Module, probe: Looker, emit: Callable[[Finding], None] = lambda _: None) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.turns = ForwardScheduler(unguarded, [probe], 1, emit)
        self.watch = ForwardWatch(unguarded, [self.turns])
        self.watch.before_step(self.optimizer)
        self.step = 0
        self.blocks: list[Block] = []

    def train(self, inputs: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        output = self.model(inputs)
        output.square().mean().backward()
        self.step += 1
        if self.turns.due(self.step):
            self.blocks += self.turns.blocks(self.step)
        self.optimizer.step()
        return output.detach()


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_a_probe_measures_the_steps_for_which_it_is_due() -> None:
    probe = Looker(every=3)
    loop = Loop(nn.Linear(4, 2), probe)
    for _ in range(7):
        loop.train(torch.ones(3, 4))
    assert probe.turns == [1, 2, 3, 4, 5, 6, 7]
    assert probe.steps == [3, 6]
    assert probe.closed == [True, True]
    assert len(loop.blocks) == 2


def test_only_the_first_of_several_forward_passes_of_a_step_is_measured() -> None:
    probe = Looker()
    loop = Loop(nn.Linear(4, 2), probe)
    loop.model(torch.ones(3, 4)).sum().backward()
    loop.model(torch.ones(3, 4)).sum().backward()
    loop.train(torch.ones(3, 4))
    assert probe.steps == [1]
    assert len(loop.blocks) == 1


def test_evaluation_is_not_measured() -> None:
    probe = Looker()
    loop = Loop(nn.Linear(4, 2), probe)
    with torch.no_grad():
        loop.model(torch.ones(3, 4))
    loop.model.eval()
    loop.model(torch.ones(3, 4))
    assert probe.steps == []


def test_a_pass_that_raised_is_forgotten_and_nothing_is_left_on_the_model() -> None:
    probe = Looker()
    loop = Loop(nn.Linear(4, 2), probe)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        loop.model(torch.ones(3, 5))
    assert probe.closed == [False]
    assert not loop.turns.due(1)
    assert not probe.hooks.is_on()
    assert not loop.model._forward_hooks
    assert probe.closed == [False]


class Interrupted(nn.Linear):
    """Is interrupted once, as by Ctrl-C."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[0] == 1:
            raise KeyboardInterrupt
        return super().forward(inputs)


def test_ctrl_c_closes_a_probe_at_once() -> None:
    probe = Looker()
    loop = Loop(Interrupted(4, 2), probe)
    with pytest.raises(KeyboardInterrupt):
        loop.model(torch.ones(1, 4))
    assert not probe.alive()
    assert probe.closed == [False]
    assert not probe.hooks.is_on()
    loop.train(torch.ones(3, 4))
    loop.train(torch.ones(3, 4))
    assert probe.closed == [False, True]


def test_inside_its_pass_a_probe_knows_that_it_is_going_on() -> None:
    answers = []

    class Asking(Looker):
        def open(self, root: nn.Module, step: int, alive: Callable[[], bool]) -> None:
            super().open(root, step, alive)
            self.hooks.after(root[0], lambda *_: answers.append(alive()))  # type: ignore[operator,index]

    probe = Asking()
    loop = Loop(nn.Sequential(nn.Linear(4, 2)), probe)
    loop.train(torch.ones(3, 4))
    assert answers == [True]
    assert not probe.alive()


def test_each_model_counts_its_own_steps() -> None:
    probe = Looker(every=2)
    first, two = nn.Linear(4, 2), nn.Linear(4, 2)
    loop = Loop(first, probe)
    other = torch.optim.SGD(two.parameters(), lr=0.01)
    loop.watch.before_step(other)
    for step in range(1, 9):
        model = first if step % 2 else two
        model(torch.ones(3, 4)).sum().backward()
        loop.turns.due(step)
        loop.turns.blocks(step)
    assert len(probe.steps) == 4
    assert {step % 2 for step in probe.steps} == {0, 1}


@pytest.mark.slow
def test_a_compiled_model_is_measured_in_a_second_pass_and_trains_identically() -> None:
    def trained(every: int) -> tuple[list[Tensor], Looker, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        compiled = torch.compile(model, backend="aot_eager")
        probe = Looker(every)
        loop = Loop(compiled, probe)
        outputs = [loop.train(torch.randn(5, 6)) for _ in range(6)]
        frames = int(torch._dynamo.utils.counters["frames"]["total"])
        return [*outputs, *(tensor.detach().clone() for tensor in model.state_dict().values())], probe, frames

    bare, _, frames = trained(1000)
    watched, probe, frames_watched = trained(2)
    assert len(probe.steps) == 3
    assert frames_watched == frames
    assert all(torch.equal(first, other) for first, other in zip(bare, watched, strict=True))


def test_the_reason_why_a_model_is_not_measured_is_reported_once() -> None:
    findings: list[Finding] = []
    model = nn.Linear(4, 2)
    model.compile(backend="eager")
    model.lines = iter("abc")  # type: ignore[assignment]
    probe = Looker()
    loop = Loop(model, probe, findings.append)
    for _ in range(3):
        loop.train(torch.ones(3, 4))
    (event,) = findings
    assert (event.kind, event.step, probe.steps) == ("not_measured", 1, [])
    assert event.message.startswith("Activations, attention and representations of Linear are not measured: ")


def test_nothing_of_a_pass_is_kept_when_it_is_over() -> None:
    inputs = torch.ones(3, 4)
    loop = Loop(nn.Linear(4, 2), Looker())
    loop.train(inputs)
    gone = weakref.ref(inputs)
    loop.blocks.clear()
    del inputs
    assert gone() is None


def test_no_mode_is_left_behind_by_a_probe_that_fails_half_way() -> None:
    class Failing(Looker):
        def open(self, root: nn.Module, step: int, alive: Callable[[], bool]) -> None:
            super().open(root, step, alive)
            self.mode = TorchFunctionMode()
            self.mode.__enter__()
            raise ValueError("half-way")

        def close(self, whole: bool) -> None:
            super().close(whole)
            if _get_current_function_mode_stack():
                self.mode.__exit__(None, None, None)

    probe = Failing()
    loop = Loop(nn.Linear(4, 2), probe)
    with pytest.raises(ValueError, match="half-way"):
        loop.train(torch.ones(3, 4))
    assert _get_current_function_mode_stack() == []
    assert probe.closed == [False]
