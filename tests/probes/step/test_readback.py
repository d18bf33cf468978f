from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.watching import batches, mse, tiny_model, watching
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import mlflow_stability
from mlflow_stability.probes.step.readback import Readback

PACKAGE = str(Path(mlflow_stability.__file__).parent)
TO_THE_HOST = (
    "item",
    "cpu",
    "tolist",
    "numpy",
    "nonzero",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__array__",
    "__contains__",
)


@contextmanager
def counting_ways_to_the_host() -> Iterator[dict[tuple[str, str], int]]:
    """Every call of a synchronising method of a tensor from a frame of this package, by file."""
    seen: dict[tuple[str, str], int] = {}

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            file = sys._getframe(1).f_code.co_filename
            if file.startswith(PACKAGE):
                key = (Path(file).name, name)
                seen[key] = seen.get(key, 0) + 1
            return original(self, *args, **kwargs)

        return call

    own = {name: vars(Tensor).get(name) for name in TO_THE_HOST}
    for name in TO_THE_HOST:
        setattr(Tensor, name, counted(name, getattr(Tensor, name)))
    try:
        yield seen
    finally:
        for name, original in own.items():
            if original is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, original)


def train_with_everything(device: str = "cpu") -> None:
    """Scaling, clipping, accumulation and a tensor for a learning rate."""
    model = tiny_model().to(device)
    optimizer = AdamW(model.parameters(), lr=0.01, foreach=True)
    scaler = GradScaler(device, init_scale=256.0, enabled=device == "cpu")
    for inputs, targets in batches(10):
        for _ in range(2):
            scaler.scale(mse(model, (inputs.to(device, non_blocking=True), targets.to(device)))).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_the_counter_sees_a_call_from_this_package() -> None:
    with counting_ways_to_the_host() as seen:
        Readback().fetch([torch.tensor(1.5)], lambda values, rows: None)
    assert seen == {("readback.py", "item"): 1}


def test_in_a_step_only_readback_brings_anything_to_the_host() -> None:
    with watching() as watched, counting_ways_to_the_host() as seen:
        train_with_everything()
    assert len(watched.readings) >= 9
    assert {file for file, _ in seen} == {"readback.py"}


def test_no_other_file_of_probes_names_a_way_to_the_host() -> None:
    ways = re.compile(r"\.(item|cpu|tolist|numpy)\(|\bfloat\((?!order|rate)")
    files = [path for path in Path(PACKAGE, "probes").rglob("*.py") if path.name != "readback.py"]
    by_name = {path.name: ways.findall(path.read_text()) for path in files}
    assert {name for name, calls in by_name.items() if any(calls)} <= {"reading.py"}  # its numbers are on the host


def test_values_come_back_in_the_order_in_which_they_were_given() -> None:
    result: list[float] = []
    Readback().fetch(
        [1.5, torch.tensor(2.0), torch.tensor(3, dtype=torch.int64), 4.0], lambda values, rows: result.extend(values)
    )
    assert result == [1.5, 2.0, 3.0, 4.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_waits_for_nothing() -> None:
    with watching() as watched:
        train_with_everything("cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            model = torch.nn.Linear(64, 64, device="cuda")
            optimizer = AdamW(model.parameters(), fused=True)
            inputs = torch.ones(8, 64, device="cuda")
            for _ in range(20):
                model(inputs).square().mean().backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(watched.rows()) == 30


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_readings_of_a_gpu_come_in_order_and_all_of_them_at_the_end() -> None:
    readback, result = Readback(), []
    for number in range(100):
        readback.fetch([torch.tensor(float(number), device="cuda"), 7.0], lambda values, rows: result.append(values))
    readback.drain()
    assert result == [[float(number), 7.0] for number in range(100)]
