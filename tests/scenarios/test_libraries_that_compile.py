"""Libraries that compile functions, or define classes of tensors, when they are imported take nothing away."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
import torch
import torch._dynamo
from scenarios.delivering import end, watch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import mlflow_stability
from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = [pytest.mark.usefixtures("blank_pictures"), pytest.mark.scenario, pytest.mark.slow]
STEPS = 21
LIBRARY = """
import torch

@torch.compile(dynamic=True)
def quantized(x):
    return (x * 127).round()

@torch.compile(fullgraph=True, backend="eager")
def used(x):
    return x + 1

class Packed(torch.Tensor):
    pass

USED = used(torch.ones(2))
"""


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 30)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(ids)).view(*ids.shape, 12, 4).transpose(1, 2).chunk(3, 1)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


@pytest.fixture
def library(tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_library_that_compiles.py").write_text(LIBRARY, encoding="utf-8")
    importlib.import_module("a_library_that_compiles")
    yield
    mlflow_stability.autolog(disable=True)
    del sys.modules["a_library_that_compiles"]
    torch._dynamo.reset()
    gc.collect()  # its class of tensors


def trained() -> list[Tensor]:
    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        ids = torch.randint(0, 30, (4, 8))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.usefixtures("library")
def test_attention_activations_and_flops_are_recorded_all_the_same() -> None:
    bare = trained()
    watch(attention_every_n_steps=20, layers_every_n_steps=20)
    watched = trained()
    end()
    assert all(torch.equal(first, other) for first, other in zip(bare, watched, strict=True))
    (run,) = mlflow.search_runs(output_format="list")
    params = read_run_history(run.info.run_id).params
    assert params["stability.model.compiled"] == "no"
    assert "stability.flops.reason" not in params
    record = mlflow_stability.load_run(run.info.run_id).set_index("step")
    row = set(record.loc[20].dropna().index)
    assert {"activation_mean@out", "attention_entropy@Attending.head_0", "tflops"} <= row
