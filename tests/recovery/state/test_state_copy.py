from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recovery.restorable import OPTIMIZERS, Training, bits
from torch import Tensor, nn

from mlflow_stability.recovery.checkpoints.state_file import read_state, write_state
from mlflow_stability.recovery.state.host_copy import is_finite
from mlflow_stability.recovery.state.restore import restore_state
from mlflow_stability.recovery.state.state_copy import TwinNorm, bytes_of_state, copy_state, rng_state, set_rng_state
from mlflow_stability.recovery.state.training_parts import TrainingParts

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


class Bag(nn.Module):
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, item in tensors.items():
            self.register_buffer(name, item)


def parts_of(model: nn.Module) -> TrainingParts:
    return TrainingParts((), (model,))


def raw(tensor: Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).numpy()) if tensor.numel() else b""


@pytest.mark.parametrize(
    ("before", "now", "is_lost"), [(1.0, math.nan, True), (1.0, 500.0, True), (1.0, 50.0, False), (0.0, 1.0, False)]
)
def test_a_twin_is_lost_where_it_was_sound_and_is_not_any_more(before: float, now: float, is_lost: bool) -> None:
    twin = nn.Linear(2, 2)
    nn.utils.vector_to_parameters(torch.full((6,), before), twin.parameters())
    norm = TwinNorm.of(twin)
    assert norm is not None
    nn.utils.vector_to_parameters(torch.full((6,), now), twin.parameters())
    assert (norm.lost() is twin) == is_lost


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits in any type: NaNs with a payload, negative zeros, views with gaps, turned and half of a storage."""
    kind = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape, dtype=np.int64))
    size = torch.empty((), dtype=kind).itemsize
    content = draw(st.binary(min_size=2 * count * size, max_size=2 * count * size))
    if kind is torch.bool:
        content = bytes(byte & 1 for byte in content)
    whole = torch.frombuffer(bytearray(content), dtype=kind) if content else torch.empty(0, dtype=kind)
    view = whole[::2] if draw(st.booleans()) else whole[:count]
    view = view.reshape(shape) if view.is_contiguous() else view.as_strided(shape, _strides(shape, 2))
    return view.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else view


def _strides(shape: list[int], last: int) -> list[int]:
    strides, step = [], last
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tensors(), min_size=1, max_size=4), st.booleans())
def test_any_bits_in_any_type_and_shape_come_back_equal(tmp_path: Path, given: list[Tensor], to_disk: bool) -> None:
    model = Bag({f"b{number}": item for number, item in enumerate(given)})
    before = [raw(item) for item in given]
    copy = copy_state(parts_of(model), 0)
    wide = [item.float() if item.itemsize == 1 else item for item in given]
    broken = {f"b{number}" for number, tensor in enumerate(wide) if not tensor.isfinite().all()}
    assert copy.not_finite() == broken
    if to_disk:
        file = tmp_path / "state.pt"
        file.unlink(missing_ok=True)
        write_state(copy, file)
        copy = read_state(file)
    for tensor in given:
        tensor.copy_(torch.ones(()).to(tensor.dtype))
    restore_state(copy, parts_of(model))
    assert [raw(item) for item in given] == before


def test_what_is_shared_is_copied_once_and_its_size_is_known() -> None:
    flat = torch.randn(100)
    model = nn.Module()
    model.one, model.two = nn.Parameter(flat[:60].view(6, 10)), nn.Parameter(flat[40:])
    model.tied = nn.Parameter(flat[:60].view(6, 10))
    model.register_buffer("whole", flat)
    assert copy_state(parts_of(model), 0).nbytes == 400
    small = nn.Module()
    small.corner = nn.Parameter(torch.randn(10_000)[5:10])
    small.other = nn.Parameter(torch.randn(3))
    copy = copy_state(parts_of(small), 0)
    assert copy.nbytes == bytes_of_state(parts_of(small)) == 32
    assert torch.equal(copy.tensors["corner"], small.corner)


def test_what_is_shared_is_in_the_file_once(tmp_path: Path) -> None:
    flat = torch.randn(10_000)
    model = nn.Module()
    model.one, model.two = nn.Parameter(flat[:9000]), nn.Parameter(flat[1000:])
    written = write_state(copy_state(parts_of(model), 0), tmp_path / "state.pt")
    assert written.size == (tmp_path / "state.pt").stat().st_size < 60_000  # 72,000 and more one by one
    read = read_state(tmp_path / "state.pt")
    assert torch.equal(read.tensors["two"], flat[1000:])


@pytest.mark.parametrize("name", ["adamw foreach", "lbfgs", "muon and adamw"])
def test_a_copy_draws_nothing_and_changes_nothing(name: str) -> None:
    training = Training.of(OPTIMIZERS[name])
    training.run(3)
    tensors = list(training.model.parameters())
    before = bits(training), [tensor._version for tensor in tensors], torch.get_rng_state(), random.getstate()
    copy_state(training.parts, 3)
    assert bits(training) == before[0]
    assert [tensor._version for tensor in tensors] == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert random.getstate() == before[3]


def test_a_copy_stays_unchanged_while_the_training_continues() -> None:
    training = Training.of(OPTIMIZERS["lbfgs"])
    training.run(3)
    copy, before = copy_state(training.parts, 3), bits(training)
    training.run(3)
    restore_state(copy, training.parts)
    assert bits(training) == before


def with_value(value: float, where: str) -> frozenset[str]:
    training = Training.of(OPTIMIZERS["adamw foreach"])
    training.run(2)
    (optimizer,) = training.optimizers
    with torch.no_grad():
        if where == "weight":
            training.model.head.weight[0, 2] = value
        elif where == "moment":
            optimizer.state[training.model.head.weight]["exp_avg_sq"][0, 1] = value
        else:
            training.model.norm.running_mean[1] = value
    copy = copy_state(training.parts, 2)
    return copy.not_finite() - copy.infinite_masks()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("where", "name"), [("weight", "head.weight"), ("moment", "optimizer_0/head.weight#2")])
def test_what_is_not_finite_is_named(value: float, where: str, name: str) -> None:
    assert with_value(value, where) == {name}


def test_a_nan_running_mean_is_named_and_a_mask_of_infinities_is_distinguished() -> None:
    assert with_value(float("nan"), "buffer") == {"norm.running_mean"}
    training = Training.of(OPTIMIZERS["sgd"])
    copy = copy_state(training.parts, 0)
    assert copy.not_finite() == copy.infinite_masks() == {"mask"}


def test_a_frozen_parameter_of_infinities_is_a_mask_and_a_trained_one_is_not() -> None:
    model = nn.Module()
    model.mask = nn.Parameter(torch.full((2, 2), -torch.inf), requires_grad=False)
    model.weight = nn.Parameter(torch.full((2, 2), -torch.inf))
    copy = copy_state(TrainingParts((), (model,)), 0)
    assert copy.not_finite() == {"mask", "weight"}
    assert copy.infinite_masks() == {"mask"}


@pytest.mark.parametrize(
    ("tensor", "finite"),
    [
        (torch.ones(3, dtype=torch.cfloat), True),
        (torch.full((3,), complex(1.0, math.nan), dtype=torch.cfloat), False),
        (torch.ones(3).to(torch.float8_e4m3fn), True),
        (torch.full((3,), math.nan).to(torch.float8_e4m3fn), False),
        (torch.full((3,), torch.finfo(torch.float32).max), True),
        (torch.tensor([math.inf, -math.inf]), False),
        (torch.tensor([1, 2]), True),
        (torch.empty(0), True),
    ],
)
def test_tensors_of_every_kind_are_asked_whether_they_are_finite(tensor: torch.Tensor, finite: bool) -> None:
    assert is_finite(tensor) == finite


def test_of_what_may_be_infinite_only_nan_is_not_finite() -> None:
    assert is_finite(torch.tensor([-math.inf, 1.0]), may_be_infinite=True)
    assert not is_finite(torch.tensor([-math.inf, math.nan]), may_be_infinite=True)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_so_large_that_their_norm_overflows_are_finite(kind: torch.dtype) -> None:
    model = Bag({"large": torch.full((1000,), torch.finfo(kind).max, dtype=kind)})
    assert copy_state(parts_of(model), 0).not_finite() == frozenset()


def test_generators_of_random_numbers_continue_from_the_copy() -> None:
    def draw() -> tuple[Any, ...]:
        return random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand(), torch.rand(3).tolist()

    draw()
    state = rng_state()
    first = draw()
    assert draw() != first
    set_rng_state(state)
    assert draw() == first


def foreign_thing() -> Any:
    return {1, 2, 3}


def test_what_only_its_library_knows_is_kept_in_memory_and_left_out_of_the_file(tmp_path: Path) -> None:
    training = Training.of(OPTIMIZERS["sgd momentum"])
    training.run(2)
    (optimizer,) = training.optimizers
    parameter = training.model.head.weight
    optimizer.state[parameter]["seen"] = foreign_thing()
    optimizer.state[parameter]["rate"] = np.float64(0.5)
    copy = copy_state(training.parts, 2)
    optimizer.state[parameter]["seen"].add(9)
    restore_state(copy, training.parts)
    assert optimizer.state[parameter]["seen"] == foreign_thing()
    write_state(copy, tmp_path / "state.pt")
    read = read_state(tmp_path / "state.pt").optimizers[0].state["head.weight"]
    assert set(read) == {"momentum_buffer", "rate"}
    assert read["rate"] == 0.5


SCHEDULES: dict[str, Any] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "steps": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 3, 3]),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "warm restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_every_schedule_is_in_the_file_and_continues_from_it(name: str, tmp_path: Path) -> None:
    training = Training.of(OPTIMIZERS["sgd momentum"])
    schedule = SCHEDULES[name](training.optimizers[0])
    for _ in range(4):
        schedule.step()
    copy = copy_state(TrainingParts(tuple(training.optimizers), (training.model,), (schedule,)), 4)
    write_state(copy, tmp_path / "state.pt")
    ((kind, state),) = read_state(tmp_path / "state.pt").later.schedulers
    assert kind == type(schedule).__name__
    rates = []
    for _ in range(6):
        schedule.step()
        rates.append(schedule.get_last_lr())
    fresh = Training.of(OPTIMIZERS["sgd momentum"])
    again = SCHEDULES[name](fresh.optimizers[0])
    again.load_state_dict(state)
    for group, saved in zip(fresh.optimizers[0].param_groups, copy.later.hyper_parameters[0], strict=True):
        group.update(saved)
    for rate in rates:
        again.step()
        assert again.get_last_lr() == rate
