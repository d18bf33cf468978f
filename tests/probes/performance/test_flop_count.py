"""

Models whose operations cannot be counted in passing are left alone, with a reason.

Tensors of a script's own class are made in a pass whose operations are counted as they are in any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

from mlflow_stability.probes.performance.flop_count import FlopCounter, refusal

BATCH, LENGTH, WIDTH, HEADS, LAYERS, WORDS = 2, 16, 32, 4, 3, 50


def counted(forward: Callable[[], Any]) -> FlopCounter:
    counter = FlopCounter()
    assert counter.enter()
    try:
        forward()
    finally:
        counter.leave()
    return counter


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.norms[0](x)).view(*x.shape[:2], 3 * HEADS, -1).transpose(1, 2).chunk(3, dim=1)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        output: Tensor = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return output


def gpt() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS))


def gpt_by_hand(batch: int, length: int) -> int:
    """Each multiplication and each addition of the matrix products, layer by layer."""
    tokens = batch * length
    weights = LAYERS * (3 + 1 + 4 + 4) * WIDTH * WIDTH + WIDTH * WORDS
    scores_and_values = LAYERS * 2 * batch * length * length * WIDTH
    return 2 * tokens * weights + 2 * scores_and_values


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_gpt_takes_what_a_hand_count_says(with_gradients: bool) -> None:
    model, tokens = gpt(), torch.zeros(BATCH, LENGTH, dtype=torch.long)
    with torch.set_grad_enabled(with_gradients):
        count = counted(lambda: model(tokens))
    assert count.flops == gpt_by_hand(BATCH, LENGTH)
    assert tuple(count.unknown) == ()


def test_grouped_queries_are_counted_for_every_query() -> None:
    query, key = torch.ones(2, 8, 5, 4), torch.ones(2, 2, 7, 4)
    with torch.no_grad():
        count = counted(lambda: scaled_dot_product_attention(query, key, key, enable_gqa=True))
    assert count.flops == 2 * 2 * (2 * 8) * 5 * 7 * 4


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_meet_every_weight_once_a_step(kind: type[nn.RNNBase], gates: int) -> None:
    steps, batch, inputs, hidden = 6, 3, 5, 7
    model = kind(inputs, hidden, num_layers=2)
    with torch.no_grad():
        count = counted(lambda: model(torch.ones(steps, batch, inputs)))
    assert count.flops == 2 * steps * batch * gates * hidden * (inputs + hidden + hidden + hidden)


def test_a_convolution_is_counted_for_every_place_of_its_output() -> None:
    with torch.no_grad():
        count = counted(lambda: nn.Conv2d(3, 5, 3)(torch.ones(2, 3, 8, 9)))
    assert count.flops == 2 * (2 * 6 * 7) * 5 * (3 * 3 * 3)


def test_custom_kernels_are_named() -> None:
    @torch.library.custom_op("stability_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    with torch.no_grad():
        count = counted(lambda: double(nn.Linear(3, 5)(torch.ones(2, 3))))
    assert count.flops == 2 * 2 * 3 * 5
    assert tuple(count.unknown) == ("stability_test.double",)


def test_a_forward_pass_that_communicates_with_other_processes_still_does(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    value = torch.ones(2)
    try:
        count = counted(lambda: torch.distributed.all_reduce(value.mul_(3)))
    finally:
        torch.distributed.destroy_process_group()
    assert value.tolist() == [3.0, 3.0]
    assert not count.unknown


def test_nothing_is_counted_if_another_flop_counter_is_active() -> None:
    with FlopCounterMode(display=False) as theirs:
        assert not FlopCounter().enter()
        nn.Linear(3, 5)(torch.ones(2, 3))
    assert theirs.get_total_flops() == 2 * 2 * 3 * 5


def test_a_mode_of_the_script_that_outlives_the_forward_pass_stays_active() -> None:
    counter, theirs = FlopCounter(), FlopCounterMode(display=False)
    assert counter.enter()
    theirs.__enter__()
    counter.leave()
    nn.Linear(3, 5)(torch.ones(2, 3))
    theirs.__exit__(None, None, None)
    assert theirs.get_total_flops() == 2 * 2 * 3 * 5
    assert counter.flops == 0
    counter.leave()


def trace_of_a_function() -> Any:
    return torch.jit.trace(lambda x: x.sin() + 1, torch.ones(2))(torch.ones(2))


def trace_of_a_module() -> Any:
    return torch.jit.trace(nn.Linear(2, 2), torch.ones(3, 2))(torch.ones(3, 2))


def compiled_whole() -> Any:
    return torch.compile(lambda x: x.sin() + 1, backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("begin", [trace_of_a_function, trace_of_a_module, compiled_whole])
def test_counting_ends_before_anything_is_traced_or_compiled(begin: Callable[[], Any]) -> None:
    before = torch.compile, torch._C._create_function_from_trace, torch.jit._trace.make_module
    counter = FlopCounter()
    assert counter.enter()
    with torch.no_grad():
        nn.Linear(2, 2)(torch.ones(1, 2))
        assert begin().isfinite().all()
    assert counter.given_up
    assert _get_current_dispatch_mode() is None
    counter.leave()
    after = torch.compile, torch._C._create_function_from_trace, torch.jit._trace.make_module
    assert all(mine is theirs for mine, theirs in zip(before, after, strict=True))


def test_a_plain_model_is_counted() -> None:
    assert refusal(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Embedding(3, 3, max_norm=1.0))) == ""


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.DataParallel(nn.Linear(2, 2)), "over devices"),
        (nn.Sequential(nn.LazyLinear(3)), "uninitialised"),
        (torch.compile(nn.Linear(2, 2), backend="eager"), "compiled"),
        (nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager")), "compiled"),  # type: ignore[arg-type]
    ],
)
def test_a_model_that_cannot_be_seen_through_is_not(model: nn.Module, words: str) -> None:
    assert words in refusal(model)


def test_a_module_that_is_compiled_in_place_is_known_before_it_ran() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager", fullgraph=True)
    assert refusal(model).startswith("a part of it is compiled")


def test_a_model_nested_to_the_limit_is_not_counted(usual_recursion_limit: int) -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(200):
        model = nn.Sequential(model)
    assert "nested" in refusal(model)


def inherited() -> Any:
    return type("Inherited", (torch.Tensor,), {})


def calls_it() -> Any:
    class Calls(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return super().__new__(cls, numbers)

    return Calls


def below() -> Any:
    return type("Below", (calls_it(),), {})


def goes_round_it() -> Any:
    class GoesRound(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return torch.tensor(numbers).as_subclass(cls)

    return GoesRound


KINDS = [inherited, calls_it, below, goes_round_it]


@pytest.mark.parametrize("kind_of", KINDS)
@pytest.mark.parametrize("in_the_middle", [False, True])
def test_its_objects_are_made_and_what_is_done_with_them_is_counted(
    kind_of: Callable[[], Any], in_the_middle: bool
) -> None:
    kind, counter = kind_of(), FlopCounter()
    own = dict(vars(kind))
    hooks = dict(vars(Tensor))
    assert counter.enter()
    try:
        if in_the_middle:
            kind = kind_of()
        made = kind([1.0, 2.0])
        assert _get_current_dispatch_mode() is counter
        product = made.as_subclass(torch.Tensor)[None] @ torch.ones(2, 3)
    finally:
        counter.leave()
    assert type(made) is kind
    assert made.tolist() == [1.0, 2.0]
    assert product.tolist() == [[3.0] * 3]
    assert counter.flops == 2 * 2 * 3
    assert type(kind([3.0])) is kind
    assert dict(vars(Tensor)) == hooks
    if not in_the_middle:
        assert dict(vars(kind)) == own


def test_a_mode_of_the_script_on_top_of_ours_sees_what_it_always_sees() -> None:
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    kind, counter = inherited(), FlopCounter()
    assert counter.enter()
    try:
        with Seeing(), pytest.raises(RuntimeError, match="Creating a new Tensor subclass"):  # type: ignore[no-untyped-call]
            kind([1.0])
    finally:
        counter.leave()
    assert seen == ["aten.lift_fresh.default"]
