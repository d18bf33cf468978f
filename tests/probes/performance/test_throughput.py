from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from probes.pacing import pacing
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.performance.throughput import Throughput
from mlflow_stability.probes.probe import StepView

WORDS, WIDTH = 11, 6
Told = dict[int, dict[str, float]]


class Reader(nn.Module):
    """Reads tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        self.calls = 0

    def forward(self, tokens: Tensor, extra: Tensor | None = None) -> Tensor:
        self.calls += 1
        output: Tensor = self.out(self.words(tokens))
        return output


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Whatever another test has compiled in this process."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def flops_of(tokens: int) -> int:
    return 2 * tokens * WIDTH * WORDS


def tokens(rows: int = 4, length: int = 5) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long)


class Drive:
    """Steps of half a second each, without a training around them."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.model = model
        self.optimizer: Optimizer = SGD(model.parameters(), lr=0.1)
        self.time = 0.0
        self.step = 0
        self.throughput = Throughput(now=lambda: self.time, **options)
        self.told: Told = {}

    def take(self, *micro_batches: Tensor, seen: bool = True, skipped: bool = False, extra: int = 0) -> None:
        probe = self.throughput
        for batch in micro_batches:
            for _ in range(1 + extra):
                if seen:
                    probe.forward_began(self.model, (batch,), {})
                    self.model(batch)
                    probe.forward_ended()
            probe.backward_began()
        self.step += 1
        self.time += 0.5
        if probe.due(self.step):
            probe.before_step(StepView(self.optimizer, self.step, Layers()))
            probe.after_step(StepView(self.optimizer, self.step, Layers(), skipped=skipped))
            for block in probe.blocks(self.step):
                assert isinstance(block.values, tuple)
                self.told[self.step] = dict(zip(map(str, block.signals), block.values, strict=True))


def test_tokens_and_samples_are_those_of_all_micro_batches() -> None:
    drive = Drive(Reader())
    drive.take(tokens(), seen=False)
    for _ in range(29):
        drive.take(tokens(4, 5), tokens(2, 5))
    assert list(drive.told) == [10, 20, 30]
    for step, values in drive.told.items():
        assert values["tokens_per_second"] == pytest.approx(30 / 0.5)
        assert values["samples_per_second"] == pytest.approx(6 / 0.5)
        assert values["tokens_processed"] == 30 * step  # the first step, which was not observed, counts as the second


def test_two_forward_passes_before_one_backward_are_one_batch_and_twice_the_work() -> None:
    drive = Drive(Reader())
    for _ in range(20):
        drive.take(tokens(4, 5), extra=1)
    assert drive.told[20]["tokens_per_second"] == pytest.approx(40)
    assert drive.told[20]["tflops"] == pytest.approx(2 * 3 * flops_of(20) / 0.5 / 1e12)


def test_models_that_are_called_in_turns_are_each_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = Drive(Reader())
    other, given = nn.Linear(WIDTH, 2), torch.zeros(8, WIDTH)

    def step() -> None:
        drive.throughput.forward_began(other, (given,), {})
        other(given)
        drive.throughput.forward_ended()
        drive.take(tokens())

    for _ in range(10):
        step()
    looked_up: list[nn.Module] = []
    look_up = drive.throughput.flops.forward_began

    def noted(root: nn.Module, *args: Any) -> float | None:
        looked_up.append(root)
        return look_up(root, *args)

    monkeypatch.setattr(drive.throughput.flops, "forward_began", noted)
    for _ in range(10):
        step()
    assert not looked_up
    both = 3 * (flops_of(20) + 2 * 8 * WIDTH * 2)
    assert drive.told[20]["tflops"] == pytest.approx(both / 0.5 / 1e12, rel=0.2)
    assert drive.told[20]["samples_per_second"] == pytest.approx(16)


def test_a_model_that_reads_no_tokens_has_samples_only() -> None:
    drive = Drive(nn.Linear(WIDTH, 2))
    for _ in range(10):
        drive.take(torch.zeros(8, WIDTH))
    assert "tokens_per_second" not in drive.told[10]
    assert "tokens_processed" not in drive.told[10]
    assert drive.told[10]["samples_per_second"] == pytest.approx(16)


def test_a_given_number_of_tokens_counts_even_for_unobserved_batches() -> None:
    drive = Drive(Reader(), tokens_per_step=1000)
    for number in range(20):
        drive.take(tokens(), seen=number > 2)
    assert drive.told[20]["tokens_per_second"] == pytest.approx(2000)
    assert drive.told[20]["tokens_processed"] == 20_000


def test_steps_alone_are_counted_where_no_forward_pass_is_seen() -> None:
    drive = Drive(Reader())
    for _ in range(20):
        drive.take(tokens(), seen=False)
    assert drive.told[20] == {"steps_per_second": pytest.approx(2.0), "steps_per_second_mean": pytest.approx(2.0)}


def test_means_are_of_the_last_hundred_steps() -> None:
    drive = Drive(Reader())
    for step in range(1, 251):
        drive.time += 9.5 if step in (100, 160) else 0.0  # once before these hundred steps, and once in them
        drive.take(tokens(4, 5))
    assert drive.told[250]["tokens_per_second"] == pytest.approx(40)
    assert drive.told[250]["steps_per_second_mean"] == pytest.approx(100 / 59.5)
    assert drive.told[250]["tokens_per_second_mean"] == pytest.approx(2000 / 59.5)
    assert drive.told[250]["samples_per_second_mean"] == pytest.approx(400 / 59.5)


def test_operations_are_those_of_the_formula_and_mfu_is_their_share_of_the_peak() -> None:
    asked: list[Any] = []

    def peak(device: torch.device, dtype: torch.dtype) -> float:
        asked.append((device.type, dtype))
        return 80_000.0

    drive = Drive(Reader(), peak=peak)
    for _ in range(20):
        drive.take(tokens(4, 5))
    rate = 3 * flops_of(20) / 0.5
    for values in drive.told.values():  # also of the steps before the first count
        assert values["tflops"] == pytest.approx(rate / 1e12)
        assert values["mfu"] == pytest.approx(rate / 80_000)
    assert set(asked) == {("cpu", torch.float32)}
    assert drive.model.calls == 20  # nothing is run a second time


def test_a_cpu_has_no_peak_and_so_no_mfu() -> None:
    drive = Drive(Reader())
    for _ in range(10):
        drive.take(tokens())
    assert "tflops" in drive.told[10]
    assert "mfu" not in drive.told[10]


def test_weights_that_are_not_trained_take_no_gradients_of_their_own() -> None:
    model = Reader()
    model.words.requires_grad_(False)
    drive = Drive(model)
    for _ in range(10):
        drive.take(tokens(4, 5))
    share = (WIDTH * WORDS + WORDS) / (2 * WIDTH * WORDS + WORDS)
    assert drive.told[10]["tflops"] == pytest.approx((2 + share) * flops_of(20) / 0.5 / 1e12)


def test_batches_of_new_lengths_are_counted_a_few_times_and_then_taken_in_proportion() -> None:
    model = Reader()
    drive = Drive(model)
    lengths = [5, 5, 5, 5, *range(5, 41)]
    for length in lengths:
        drive.take(tokens(4, length))
    assert len(drive.throughput.flops._counted) == 4
    by_step = {step: result["tflops"] for step, result in drive.told.items()}
    assert sorted(by_step) == [10, 20, 30, 40]
    for step, rate in by_step.items():  # this model's work is in proportion to its tokens, so that nothing is off
        seen = sum(flops_of(4 * value) for value in lengths[max(1, step - 10) : step])
        assert rate == pytest.approx(3 * seen / (0.5 * min(step - 1, 10)) / 1e12)


@pytest.mark.parametrize(
    "sign",
    [
        lambda item: item.backward_began(),
        lambda item: item.due(2),
        lambda item: item.evaluated(),
        lambda item: item.forward_failed(),
        lambda item: item.pass_over(),
    ],
)
def test_a_forward_pass_that_was_interrupted_leaves_nothing_behind(sign: Callable[[Throughput], object]) -> None:
    throughput, model = Throughput(), Reader()
    for _ in range(6):
        throughput.due(1)
    throughput.forward_began(model, (tokens(),), {})
    assert _get_current_dispatch_mode() is not None
    sign(throughput)  # the end of that pass was never seen
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (nn.Embedding(WORDS, 2), tokens(), "known FLOP formula"),
        (torch.compile(nn.Linear(4, 3), backend="eager"), torch.zeros(2, 4), "compiled"),
    ],
)
def test_where_operations_cannot_be_counted_the_reason_is_known(model: nn.Module, batch: Tensor, words: str) -> None:
    drive = Drive(model)
    for _ in range(20):
        drive.take(batch)
    assert "tflops" not in drive.told[20]
    assert "samples_per_second" in drive.told[20]
    assert words in drive.throughput.flops.reason


class Noisy(nn.Module):
    """Everything that a second run could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.dice, self.numbers = torch.Generator(), np.random.default_rng(1)
        self.shadow = {"mean": torch.zeros(16)}
        self.seen: Counter[str] = Counter()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= 0.99
        hidden = self.norm(self.first(x)).tanh()
        if not torch.compiler.is_compiling():
            self.seen["calls"] += 1
            hidden = hidden * torch.rand(16, generator=self.dice) * float(self.numbers.random())
            self.shadow["mean"].lerp_(hidden.detach().mean(0), 0.1)
            with torch.no_grad():
                self.last.weight.mul_(0.99)
        output: Tensor = self.last(self.drop(hidden)) * self.scale
        return output


def train(compiled: bool, bf16: bool, steps: int = 15) -> list[Tensor]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = Noisy()
    called: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(8, 6)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = called(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    state = [value for reading in optimizer.state.values() for value in reading.values()]
    parts = [
        *losses,
        model.shadow["mean"],
        torch.tensor(model.seen["calls"]),
        *model.state_dict().values(),
        *state,
        torch.tensor(model.scale),
        torch.get_rng_state(),
    ]
    return [part.clone() for part in parts]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("compiled", "bf16"), [(False, False), (False, True), pytest.param(True, False, marks=pytest.mark.slow)]
)
def test_counting_operations_in_mid_training_changes_no_bit_of_it(compiled: bool, bf16: bool) -> None:
    bare = train(compiled, bf16)
    with pacing() as paced:
        watched = train(compiled, bf16)
        values = paced.told("tflops")
    assert bool(values) is not compiled, paced.pace.throughput.flops.reason
    assert len(bare) == len(watched)
    assert all(map(torch.equal, bare, watched))


def test_the_throughput_of_a_real_training_is_reported_correctly() -> None:
    model = Reader()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pacing() as paced:
        for _ in range(20):
            for rows in (4, 2):
                model(tokens(rows, 5)).logsumexp(-1).mean().backward()
            optimizer.step()
            model.eval()(tokens(100, 5))
            model.train()
        values = paced.told()
    assert [value for _, value in values["tokens_processed"]] == [300, 600]
    assert model.calls == 60
    for (_, rate), (_, samples) in zip(values["tokens_per_second"], values["samples_per_second"], strict=True):
        assert rate == pytest.approx(5 * samples)
    for (_, rate), (_, operations) in zip(values["tokens_per_second"], values["tflops"], strict=True):
        assert operations * 1e12 == pytest.approx(3 * flops_of(1) * rate)
