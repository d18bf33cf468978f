"""The probe of attention: what it says, and that the training does not notice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from probes.attention_by_hand import equal, looked, unguarded
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint
from zoo.tiny_gpt import TinyGPT, batch_of

from mlflow_stability.probes.forward.forward_passes import ForwardScheduler, ForwardWatch
from mlflow_stability.probes.inside import attention_probe as attention
from mlflow_stability.probes.inside.attention_probe import AttentionProbe, chosen
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap


class Heads(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        split = self.project(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        mixed = scaled_dot_product_attention(split, split, split, dropout_p=0.1 * self.training)
        return x + self.drop(mixed.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, layers: int = 2, heads: int = 2, around: Callable[[nn.Module, Tensor], Tensor] | None = None):
        super().__init__()
        self.layers = nn.ModuleList(Heads(heads) for _ in range(layers))
        self.around = around or (lambda layer, x: layer(x))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.around(layer, x)
        return x


class Training:
    """A training by hand, looked into or not."""

    def __init__(self, model: nn.Module, every: int = 0, *, compiled: bool = False) -> None:
        self.model = copy.deepcopy(model)
        if compiled:
            self.model.compile(backend="eager")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.maps: list[AttentionMap] = []
        self.probe = AttentionProbe(every, 64, unguarded, self.maps.append)
        self.turns = ForwardScheduler(unguarded, [self.probe] if every else [], 1)
        self.watch = ForwardWatch(unguarded, [self.turns])
        self.watch.before_step(self.optimizer)
        self.rows: list[dict[str, float]] = []
        self.layouts: set[int] = set()
        self.step = 0

    def train(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        self.watch.backward_began()
        loss.backward()
        self.watch.backward_ended()
        self.step += 1
        if self.turns.due(self.step):
            for block in self.turns.blocks(self.step):
                assert isinstance(block.values, Tensor)
                self.layouts.add(id(block.signals))
                self.rows.append(dict(zip(map(str, block.signals), block.values.tolist(), strict=True)))
        self.optimizer.step()
        return loss.detach()


def nothing_left() -> bool:
    return not (
        _get_current_function_mode_stack()
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks_with_kwargs
        or torch_module._global_forward_hooks_always_called
    )


def batches(count: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(4)
    return [torch.randn(3, 5, 8, generator=dice) for _ in range(count)]


def test_signals_are_named_by_module_and_head() -> None:
    result = looked(Stack(), batches(1)[0])
    assert set(result.entropy) == {"layers.0", "layers.1"}
    assert [len(value) for value in result.entropy.values()] == [2, 2]
    assert [(table.layer, table.layer_number, table.heads, table.tokens) for table in result.maps] == [
        ("layers.0", 0, (0, 1), (5, 5)),
        ("layers.1", 1, (0, 1), (5, 5)),
    ]
    assert [point.step for point in result.maps] == [7, 7]


def test_a_module_that_attends_several_times_has_numbers_behind_its_name() -> None:
    model = Stack(1, around=lambda layer, x: layer(layer(layer(x))))
    assert list(looked(model, batches(1)[0]).entropy) == ["layers.0", "layers.0.1", "layers.0.2"]


def test_collapsed_heads_are_counted() -> None:
    model = Stack(2)
    with torch.no_grad():
        model.layers[1].project.weight[:4] *= 100  # type: ignore[union-attr, index, operator]
    result = looked(model.eval(), batches(1)[0])
    assert result.entropy["layers.1"][0] < 0.05 < result.entropy["layers.1"][1]
    assert result.collapsed == pytest.approx(0.25)


def test_the_tenth_step_and_every_multiple_of_the_interval_are_measured() -> None:
    probe = AttentionProbe(25, 64, unguarded, lambda _: None)
    assert [own_step for own_step in range(1, 80) if probe.due(own_step)] == [10, 25, 50, 75]
    assert not any(AttentionProbe(0, 64, unguarded, lambda _: None).due(own_step) for own_step in range(60))


def reentrant(layer: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = checkpoint(layer, x, use_reentrant=True)
    return output


def not_reentrant(layer: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = checkpoint(layer, x, use_reentrant=False)
    return output


def in_autocast(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        output: Tensor = layer(x)
    return output


def on_a_device(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.device("meta"):
        output: Tensor = layer(x)
    with torch.device("cpu"):
        return output + torch.rand(())


def with_a_teacher(layer: nn.Module, x: Tensor) -> Tensor:
    training = layer.training
    with torch.no_grad():
        target = layer.eval()(x)
    output: Tensor = layer.train(training)(x)
    return output + target


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize(
    "around",
    [None, reentrant, not_reentrant, in_autocast, on_a_device, with_a_teacher],
    ids=["plain", "reentrant checkpoint", "checkpoint", "autocast", "devices", "teacher"],
)
def test_a_training_is_the_same_to_the_bit(around: Any) -> None:
    torch.manual_seed(0)
    model = Stack(around=around)
    trainings = Training(model), Training(model, every=3)
    losses = []
    for training in trainings:
        torch.manual_seed(1)
        losses.append([])
        for x in batches(12):
            x.requires_grad_()  # a reentrant checkpoint wants it
            losses[-1].append(training.train(x))
            training.model.eval()
            with torch.no_grad():
                losses[-1].append(training.model(x).sum())
            training.model.train()
            assert nothing_left()
    assert equal(losses[0], losses[1])
    assert equal(dict(trainings[0].model.named_parameters()), dict(trainings[1].model.named_parameters()))
    assert len(trainings[1].rows) == 5, "steps 3, 6, 9, 10 and 12"
    assert len(trainings[1].layouts) == 1, "the same signals each time"
    layers = {"layers.0", "layers.1"} if around is not with_a_teacher else {
        "layers.0", "layers.0.1", "layers.1", "layers.1.1"
    }  # fmt: skip
    assert {table.layer for table in trainings[1].maps} == layers


def test_a_default_device_does_no_harm() -> None:
    torch.set_default_device("cpu")
    try:
        before = _get_current_function_mode_stack()
        looked(Stack(), batches(1)[0])
        assert _get_current_function_mode_stack() == before
    finally:
        torch.set_default_device(None)
    assert nothing_left()


def test_a_device_context_left_open_by_the_script_stays_and_ours_goes() -> None:
    context = torch.device("cpu")

    def around(layer: nn.Module, x: Tensor) -> Tensor:
        context.__enter__()
        output: Tensor = layer(x)
        return output

    training = Training(Stack(1, around=around), every=1)
    training.train(batches(1)[0])
    assert len(_get_current_function_mode_stack()) == 1
    context.__exit__(None, None, None)
    assert nothing_left()


def test_a_mode_of_the_script_on_top_of_ours_stays() -> None:
    class Silent(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    mode = Silent()

    def around(layer: nn.Module, x: Tensor) -> Tensor:
        mode.__enter__()
        output: Tensor = layer(x)
        return output

    training = Training(Stack(1, around=around), every=1)
    training.train(batches(1)[0])
    assert _get_current_function_mode_stack() == [mode]
    mode.__exit__(None, None, None)
    assert list(training.rows[0])[:2] == ["attention_entropy@layers.0.head_0", "attention_entropy@layers.0.head_1"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_forward_pass_leaves_nothing_behind(error: type[BaseException]) -> None:
    raising = [False]

    def around(layer: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = layer(x)
        if raising[0]:
            raise error
        return output

    training = Training(Stack(around=around), every=1)
    x = batches(1)[0]
    training.train(x)
    raising[0] = True
    with pytest.raises(error):
        training.train(x)
    if error is KeyboardInterrupt:
        nn.Identity()(x)  # any module that is called next takes the mode off
        assert not _get_current_function_mode_stack()
    else:
        assert nothing_left()
    raising[0] = False
    training.train(x)
    assert nothing_left()
    assert len(training.rows) == 1, "a cycle is looked into once"
    training.train(x)
    assert len(training.rows) == 2
    assert len(training.maps) == 4, "of a pass that was not whole there are no maps"


def test_errors_in_our_code_do_not_reach_the_training() -> None:
    lines: list[str] = []

    def guard(part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            try:
                return body(*args)
            except RuntimeError:
                lines.append(part)
                return None

        return run

    class Broken(AttentionProbe):
        def measure(self, scores: Any, cross: bool) -> Any:
            raise RuntimeError("broken")

    probe = Broken(1, 64, guard, lambda _: None)
    model = Stack()
    probe.open(model, 1, lambda: True)
    model(batches(1)[0])
    probe.close(True)
    assert lines == ["attention"] * 2
    assert list(probe.blocks()) == []
    assert nothing_left()


def test_nothing_of_the_training_is_kept_alive() -> None:
    import weakref

    training = Training(Stack(1), every=1)
    seen: list[weakref.ref[Tensor]] = []
    training.model.around = lambda layer, x: seen.append(weakref.ref(x)) or layer(x)  # type: ignore[assignment, func-returns-value]
    training.train(torch.randn(2, 5, 8))
    assert seen[0]() is None


def test_the_number_of_layers_with_maps_and_of_heads_with_series_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(Stack(30), every=1)
    for x in batches(2):
        training.train(x)
    assert [item.layer_number for item in training.maps] == sorted(chosen(30)) * 2
    assert len(chosen(30)) == 12
    assert min(chosen(30)) == 0
    assert max(chosen(30)) == 29
    monkeypatch.setattr(attention, "MAX_HEADS", 20)
    training.train(batches(1)[0])
    layers = {name.partition("@")[2].partition(".head")[0] for name in training.rows[-1]} - {""}
    assert len(layers) == 10
    assert {"layers.0", "layers.29"} <= layers


def test_of_many_heads_some_are_drawn_and_all_are_in_the_mean() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scaled_dot_product_attention(x, x, x)

    (drawn,) = looked(Wide(), torch.randn(2, 40, 6, 4), tokens=4).maps
    assert drawn.heads == tuple(range(0, 40, 2))
    assert drawn.weights.shape == (20, 4, 4)
    assert drawn.average.shape == (4, 4)
    assert drawn.entropy.shape == drawn.max_logit.shape == (40,)
    assert drawn.tokens == (6, 6)
    assert drawn.weights.sum(-1).mean() < 0.9, "shares of all keys, not of those that are kept"


def test_two_models_in_one_training_get_different_names() -> None:
    models = [Stack(1), Stack(1)]
    probe = AttentionProbe(1, 64, unguarded, lambda _: None, lambda: models)
    for model in models:
        probe.open(model, 1, lambda: True)
        model(batches(1)[0])
        probe.close(True)
    (block,) = probe.blocks()
    places: Sequence[str] = [str(signal) for signal in block.signals]
    assert places[0].startswith("attention_entropy@Stack_0.layers.0.head_0")
    assert places[4].startswith("attention_entropy@Stack_1.layers.0.head_0")
    assert len(set(places)) == len(places) == 9


def test_a_language_model_is_measured_head_by_head() -> None:
    torch.manual_seed(0)
    model = TinyGPT(layers=2, width=32, heads=4, length=16)
    result = looked(model, *batch_of(2, 16))
    assert list(result.entropy) == ["blocks.0", "blocks.1"]
    assert all(0.5 < value < 1 for row in result.entropy.values() for value in row)
    assert all(item.causal for item in result.maps)


def test_a_compiled_model_is_measured_in_a_second_pass() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        model = Stack()
        bare, watched = Training(model, compiled=True), Training(model, every=2, compiled=True)
        losses: list[list[Tensor]] = []
        for item in (bare, watched):
            torch.manual_seed(1)
            losses.append([item.train(x) for x in batches(4)])
        assert equal(losses[0], losses[1])
        assert len(watched.rows) == 2
        assert [table.layer for table in watched.maps] == ["layers.0", "layers.1"] * 2
        assert nothing_left()
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def test_code_is_still_compiled_during_a_measured_pass() -> None:
    torch._dynamo.reset()
    attend = torch.compile(lambda x: scaled_dot_product_attention(x, x, x) + x.softmax(-1).sum(), backend="eager")

    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = attend(x)
            return output

    try:
        looked(Late(), torch.randn(2, 2, 5, 4))
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    assert nothing_left()
