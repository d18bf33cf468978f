from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from probes.measured import Measured, backward, by_layer, net
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Muon, Optimizer

from mlflow_stability.probes.parameters.layer_statistics import LayerSamples, LayerStatistics, sample_statistics
from mlflow_stability.vocabulary.measured.layer_arrays import LEVELS, LayerTable


def tables_of(probe: LayerStatistics, step: int, attempt: int = 0) -> dict[str, LayerTable]:
    return {table.what: table.read(table.values.tolist(), attempt) for table in probe.tables(step)}


def values_of(parameters: list[nn.Parameter], what: str) -> NDArray[np.float64]:
    tensors = [parameter.grad if what == "gradient" else parameter.detach() for parameter in parameters]
    return torch.cat([tensor.flatten().double() for tensor in tensors if tensor is not None]).numpy()


def must_describe(table: LayerTable, layer: str, values: NDArray[np.float64]) -> None:
    """All numbers of one layer, where the sample is everything there is."""
    row = table.layers.index(layer)
    right = [values.mean(), values.std(), np.abs(values).max(), (values == 0).mean()]
    assert table.statistics[row] == pytest.approx(right, rel=1e-5, abs=1e-7)
    if table.has_histograms:
        assert table.percentiles[row] == pytest.approx(np.quantile(values, LEVELS), rel=1e-5, abs=1e-7)
        assert table.counts[row].sum() == len(values)
        inner = np.searchsorted(np.sort(values), table.edges[row, 1:-1])
        assert np.abs(np.cumsum(table.counts[row])[:-1] - inner).max() <= 1  # an edge may be rounded to either side
        assert table.edges[row, 0] >= values.min() - 1e-6
        assert table.edges[row, -1] <= values.max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_layer_is_described_as_numpy_would(dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    optimizer = SGD(model.parameters(), lr=0.1)
    probe = LayerStatistics(1, 1)
    measured = Measured([optimizer], [probe])
    backward(model, 0)
    layers = by_layer(model)
    right = {(what, name): values_of(layers[name], what) for what in ("gradient", "weight") for name in layers}
    optimizer.step()
    tables = tables_of(probe, measured.step, attempt=2)
    assert {item: table.layers for item, table in tables.items()} == dict.fromkeys(tables, tuple(layers))
    assert {(table.step, table.attempt) for table in tables.values()} == {(0, 2)}
    for (what, name), values in right.items():
        must_describe(tables[what], name, values)


def test_histograms_come_more_rarely_than_the_rest() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    probe = LayerStatistics(2, 4)
    measured = Measured([optimizer], [probe])
    seen = []
    for step in range(6):
        optimizer.step()
        seen.append([table.has_histograms for table in tables_of(probe, step).values()])
        measured.end()
    assert seen == [[True], [], [False], [], [True], []]


def test_gradients_that_a_fused_scaler_left_scaled_are_described_unscaled() -> None:
    rows = []
    for scale in (512.0, 1.0):
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = GradScaler("cpu", init_scale=scale)
        probe = LayerStatistics(1, 1)
        Measured([optimizer], [probe])
        backward(model, 0, scale=scale)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        rows.append(tables_of(probe, 0)["gradient"])
    assert rows[0].statistics == pytest.approx(rows[1].statistics)
    assert rows[0].percentiles == pytest.approx(rows[1].percentiles)
    assert rows[0].edges == pytest.approx(rows[1].edges)
    assert (rows[0].counts == rows[1].counts).all()


def test_a_layer_shared_by_two_optimizers_is_reported_by_the_one_that_holds_more_of_it() -> None:
    model = net()
    optimizers: list[Optimizer] = [
        AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2]),
        Muon([parameter for parameter in model.parameters() if parameter.dim() == 2]),
    ]
    probe = LayerStatistics(1, 1)
    Measured(optimizers, [probe])
    backward(model, 0)
    weights = {name: values_of([max(some, key=Tensor.numel)], "weight") for name, some in by_layer(model).items()}
    weights["1"] = values_of(by_layer(model)["1"], "weight")  # a norm: AdamW has all of it
    for optimizer in optimizers:
        optimizer.step()
    table = tables_of(probe, 0)["weight"]
    assert table.layers == tuple(by_layer(model))
    for name, values in weights.items():
        must_describe(table, name, values)


def test_a_layer_without_a_gradient_has_nothing_but_a_largest_value_of_zero() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    probe = LayerStatistics(1, 1)
    Measured([optimizer], [probe])
    backward(model, 0)
    model[3].weight.grad = None
    optimizer.step()
    table = tables_of(probe, 0)["gradient"]
    row = table.layers.index("3")
    assert [*map(math.isnan, table.statistics[row])] == [True, True, False, True]
    assert np.isnan(table.percentiles[row]).all()
    assert table.counts[row].sum() == 0


def test_values_that_are_no_numbers_spoil_no_other_layer() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
        model[0].weight[0, 1] = math.inf
    probe = LayerStatistics(1, 1)
    Measured([optimizer], [probe])
    optimizer.step()
    table = tables_of(probe, 0)["weight"]
    must_describe(table, "3", values_of(by_layer(model)["3"], "weight"))
    assert math.isnan(table.statistics[0, 2])
    assert table.percentiles[0, -1] == math.inf


SIZES = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=8)


@given(SIZES, st.integers(1, 200), st.integers(1, 400), st.integers(1, 3))
@settings(max_examples=60)
def test_a_sample_keeps_to_its_limits_and_takes_real_values_of_the_right_layer(
    shapes: list[tuple[int, int]], most: int, together: int, in_a_layer: int
) -> None:
    layers = [column // in_a_layer for column in range(len(shapes))]
    count = layers[-1] + 1
    samples = LayerSamples(shapes, layers, count, most, together)
    # Every value tells which layer it is of, and which of its values.
    numbered = zip(shapes, layers, strict=True)
    tensors = [torch.arange(tall * wide).view(tall, wide) + 10_000.0 * layer for (tall, wide), layer in numbered]
    matrices, again = (samples.take(tensors, torch.device("cpu")) for _ in range(2))
    assert all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in zip(matrices, again, strict=True))
    rows = [row for matrix in matrices for row in matrix]
    assert sorted(samples.order) == list(range(count))
    quota = max(min(most, together // count), 1)
    for layer, row in zip(samples.order, rows, strict=True):
        result = row[~row.isnan()]
        members = [column for column, value in enumerate(layers) if value == layer]
        size = sum(tensors[column].numel() for column in members)
        assert len(members) <= len(result) <= min(size, quota + len(members))
        assert all(int(value) // 10_000 == layer for value in result)
        if size <= quota and len(members) == 1:
            assert len(result) == size


def test_a_sample_meets_every_column_of_a_weight() -> None:
    samples = LayerSamples([(512, 64)], [0], 1, most=1024)
    columns = torch.arange(64.0).repeat(512, 1)
    (row,) = samples.take([columns], torch.device("cpu"))[0]
    counts = row[~row.isnan()].long().bincount(minlength=64)
    assert counts.min() >= 0.8 * counts.max()


def test_channels_last_weights_are_sampled_where_they_lie() -> None:
    weight = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
    (row,) = LayerSamples([weight.shape], [0], 1).take([weight], torch.device("cpu"))[0]
    assert torch.equal(row[~row.isnan()].sort().values, weight.flatten().sort().values)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200))
@settings(max_examples=80)
def test_percentiles_are_those_of_numpy_for_any_values(values: list[float]) -> None:
    width = 256
    row = torch.full((1, width), math.nan)
    row[0, : len(values)] = torch.tensor(values)
    result = sample_statistics(row, full=True)[0].tolist()
    largest = max(map(abs, values))
    assert result[2:10] == pytest.approx(
        np.quantile(np.array(values, np.float64), LEVELS), rel=1e-4, abs=1e-5 * largest
    )
    assert sum(result[12:]) == len(values)
    assert min(result[12:]) >= 0
