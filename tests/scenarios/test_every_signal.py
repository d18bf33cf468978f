"""Everything that is measured beside loss and gradient norm, read back from the run and compared with plain torch."""

from __future__ import annotations

import math
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import torch
import torch._dynamo
from architecture.repository import PACKAGE
from mlflow import MlflowClient
from scenarios.delivering import end, watch
from torch import Tensor, nn

import mlflow_stability
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.read.run_record import read_layer_part
from mlflow_stability.vocabulary.result import Finding, Severity

pytestmark = pytest.mark.scenario
SIGNALS = PACKAGE / "manual" / "signals.md"


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Whatever another test has compiled in this process: FLOPs are counted only where nothing is."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def record_of(store: MlflowClient) -> tuple[str, pd.DataFrame]:
    end()
    (run,) = store.search_runs(["0"])
    return run.info.run_id, mlflow_stability.load_run(run.info.run_id).set_index("step")


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 30))


def norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float((tensor.double() ** 2).sum()) for tensor in tensors))


@pytest.mark.slow
def test_a_run_of_a_plain_loop_knows_its_layers_its_updates_its_pace_and_itself(store: MlflowClient) -> None:
    watch(layers_every_n_steps=20)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    truth: dict[str, float] = {}
    for step in range(1, 61):
        ids = torch.randint(0, 30, (4, 6))
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        schedule.step()
        if step == 40:
            changes = [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]
            truth = {
                "param_norm": norm(before),
                "update_norm": norm(changes),
                "update_ratio": norm(changes) / norm(before),
                "grad_norm@2": norm(gradients[1:3]),
                "param_norm@4": norm(before[3:]),
                "update_ratio@0": norm(changes[:1]) / norm(before[:1]),
                "momentum_norm": norm([optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]),
                "grad_max": max(float(gradient.abs().max()) for gradient in gradients),
            }
    run_id, record = record_of(store)

    row = record.loc[40]
    for name, value in truth.items():
        assert row[name] == pytest.approx(value, rel=1e-5), name
    assert row["tokens_processed"] == 40 * 24
    assert row["samples_per_second"] == pytest.approx(row["tokens_per_second"] / 6)
    assert row["progress"] == pytest.approx(40 / 60, abs=0.02)
    parts = {"own_time", "forward_time", "backward_time", "optimizer_time"}
    assert parts | {"adam_rms", "tflops"} <= set(row.dropna().index)
    assert record["param_norm"].dropna().index.tolist() == [10, 20, 30, 40, 50, 60]
    assert record["grad_norm@0"].dropna().index.tolist() == [20, 40, 60]

    run = store.get_run(run_id)
    assert run.data.params["stability.learning_rate"] == "0.001"
    assert run.data.params["stability.optimizer"] == "AdamW"
    assert run.data.params["stability.scheduler"] == "CosineAnnealingLR"
    assert run.data.metrics["stability/update_ratio"] > 0
    assert not [key for key in run.data.metrics if "/layers/" in key]
    described = SIGNALS.read_text(encoding="utf-8")
    for quantity in {name.partition("@")[0] for name in record.columns} - {"recording", "attempt", "time"}:
        assert f"`{quantity}`" in described, quantity


@pytest.mark.slow
def test_pictures_and_tables_of_layers_are_in_the_run(store: MlflowClient, tmp_path: Path) -> None:
    watch(layers_every_n_steps=10)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        ids = torch.randint(0, 30, (4, 6))
        nn.functional.cross_entropy(model(ids), ids[:, 0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    run_id, _ = record_of(store)
    pictures = {artifact.path for artifact in store.list_artifacts(run_id, "stability")}
    assert "stability/dashboard.png" in pictures
    layers = {Path(artifact.path).name for artifact in store.list_artifacts(run_id, "stability/layers")}
    assert {"grad_norm.png", "update_ratio.png", "gradient_histogram.png"} <= layers
    parts = [artifact.path for artifact in store.list_artifacts(run_id, "stability/data/layers")]
    files = [Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=part)) for part in parts]
    tables = [table for file in files for table in read_layer_part(file)]
    assert {(point.step, point.what) for point in tables} >= {(100, "gradient"), (100, "weight")}
    assert any(item.has_histograms for item in tables)
    assert tables[0].layers == ("0", "2", "4")


@pytest.mark.slow
def test_both_halves_of_a_gan_are_measured_although_they_take_turns(store: MlflowClient) -> None:
    watch(layers_every_n_steps=20)
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for _ in range(20):
        for optimizer in optimizers:
            for item in optimizers:
                item.zero_grad()
            critic(generator(torch.randn(8, 4))).mean().backward()
            optimizer.step()
    _, record = record_of(store)
    assert len(record["update_ratio"].dropna()) == 5  # turns 1, 2, 4, 10 and 20
    assert len(record["update_ratio@track_1"].dropna()) == 5
    by_layer = [name for name in record.columns if name.startswith("update_ratio@Linear_")]
    assert len(by_layer) == 2


@pytest.mark.slow
def test_a_model_that_begins_at_zero_raises_no_alarm_about_nan(store: MlflowClient) -> None:
    watch(layers_every_n_steps=1)
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(20):
        (model(torch.ones(2, 4)) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run_id, record = record_of(store)
    assert "update_ratio" not in record.columns
    findings = [
        finding
        for _, finding in RunReader(run_id, mlflow.get_tracking_uri()).event_lines()
        if isinstance(finding, Finding)
    ]
    assert [finding for finding in findings if finding.severity >= Severity.WARNING] == []


@pytest.mark.slow
def test_where_a_gradient_breaks_the_layer_is_in_the_record(store: MlflowClient) -> None:
    watch(silent=True)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        ids = torch.randint(0, 30, (4, 6))
        nn.functional.cross_entropy(model(ids), ids[:, 0]).backward()
        if step == 9:
            model[2].weight.grad[0, :3] = math.inf  # type: ignore[index, union-attr]
        optimizer.step()
        optimizer.zero_grad()
    _, record = record_of(store)
    counted = record.loc[10].filter(like="grad_nonfinite_count").dropna()
    assert counted.to_dict() == {"grad_nonfinite_count@2": 3.0}
