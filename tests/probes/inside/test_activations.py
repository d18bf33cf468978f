from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from probes.looked_into import Row, blocks_of, looked_into, unguarded
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.inside.activation_probe import MAX_SAMPLE, ActivationProbe
from mlflow_stability.probes.inside.activation_statistics import QUANTITIES, sample_of


def look(model: nn.Module, *args: Tensor) -> Row:
    return looked_into(ActivationProbe(unguarded), model, *args)[1]


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 16), nn.Tanh()
    )


def test_it_is_due_at_the_tenth_step_and_then_at_every_hundredth() -> None:
    probe = ActivationProbe(unguarded)
    assert [own_step for own_step in range(1, 301) if probe.due(own_step)] == [10, 100, 200, 300]


def test_the_numbers_of_a_module_are_those_of_its_output() -> None:
    model = convolutional()
    x = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    row = look(model, x)
    output = model[0](x).detach().double()
    z = (output - output.mean()) / output.std(correction=0)
    truth = {
        "mean": output.mean(),
        "std": output.std(correction=0),
        "min": output.min(),
        "max": output.max(),
        "rms": output.square().mean().sqrt(),
        "kurtosis": z.pow(4).mean(),
        "nonfinite": torch.tensor(0.0),
    }
    for name, value in truth.items():
        assert row[f"activation_{name}@0"] == pytest.approx(float(value), rel=1e-5, abs=1e-6), name


def test_an_output_is_seen_before_the_next_module_changes_it_in_place() -> None:
    row = look(convolutional(), torch.randn(32, 3, 8, 8))
    assert row["activation_min@0"] < 0 <= row["activation_min@1"]


@torch.no_grad()
def dead_channels(model: nn.Sequential, count: int) -> None:
    model[0].weight[:count] = 0.0
    model[0].bias[:count] = -1.0


def test_dead_channels_are_counted_as_a_share_of_all() -> None:
    model = convolutional()
    dead_channels(model, 3)
    row = look(model, torch.randn(32, 3, 8, 8))
    assert row["activation_dead@1"] == row["activation_dormant@1"] == 3 / 8
    assert row["activation_dead@2"] == 3 / 8  # the pool puts out what the rectifier did
    assert not any(name.startswith("activation_dead@") for name in row if name.endswith(("@0", "@4", "@5")))


def test_the_preceding_module_decides_whether_a_dimension_holds_channels_or_units() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
    with torch.no_grad():
        linear[0].weight[:9] = 0.0
        linear[0].bias[:9] = -1.0
    assert look(linear, torch.randn(4, 5, 7, 6))["activation_dead@1"] == 9 / 12


def test_a_dormant_unit_has_almost_no_activity() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(10))
        model[0].weight[0, 0], model[0].weight[1, 1] = 0.01, 0.0
        model[0].bias.zero_()
    row = look(model, torch.rand(64, 10) + 0.5)
    assert row["activation_dormant@1"] == pytest.approx(0.2)
    assert row["activation_dead@1"] == pytest.approx(0.1)


def test_a_layer_of_zeros_is_dead_and_dormant_all_over() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    row = look(model, torch.randn(32, 4))
    assert row["activation_dead@1"] == row["activation_dormant@1"] == 1.0


@pytest.mark.parametrize(
    ("activation", "share"), [(nn.Tanh(), 0.5), (nn.Sigmoid(), 0.5), (nn.Hardtanh(), 0.5), (nn.ReLU6(), 0.25)]
)
def test_pinned_values_are_a_share_of_all(activation: nn.Module, share: float) -> None:
    model = nn.Sequential(nn.Identity(), activation)
    x = torch.tensor([[-50.0, 0.1, 0.2, 50.0]]).repeat(32, 1)
    assert look(model, x)["activation_saturation@1"] == share


def test_unbounded_activations_have_no_saturation() -> None:
    assert not [name for name in look(convolutional(), torch.randn(32, 3, 8, 8)) if "saturation" in name][1:]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = Rectified(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(functional.relu(self.inner(x)))


class Rectified(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(super().forward(x))


def test_a_module_of_a_scripts_own_that_rectifies_is_known_by_its_values() -> None:
    torch.manual_seed(0)
    model = Own()
    with torch.no_grad():
        model.outer.bias[:4] = -100.0
    row = look(model, torch.randn(64, 8))
    assert row["activation_dead@outer"] == 4 / 16
    assert "activation_dead@inner" not in row


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_counted_and_left_out(broken: float) -> None:
    x = torch.randn(64, 16)
    x[3, 5] = x[7, 1] = broken
    row = look(nn.Sequential(nn.Identity(), nn.LeakyReLU(1.0)), x)
    finite = x[torch.isfinite(x)].double()
    assert row["activation_nonfinite@1"] == 2
    assert row["activation_mean@1"] == pytest.approx(float(finite.mean()), rel=1e-4)
    assert row["activation_rms@1"] == pytest.approx(float(finite.square().mean().sqrt()), rel=1e-4)


def test_one_nan_in_a_large_output_is_not_missed() -> None:
    x = torch.randn(2, 1000, 1000)
    x[1, 777, 333] = math.nan
    assert look(nn.Sequential(nn.Identity(), nn.LayerNorm(1)), x[..., None])["activation_nonfinite@1"] >= 1


def test_a_large_output_is_sampled_and_described_all_the_same() -> None:
    x = torch.randn(64, 300, 100, generator=torch.Generator().manual_seed(2)) * 3 + 1
    model = nn.Sequential(nn.Identity(), nn.LeakyReLU(1.0))
    row = look(model, x)
    assert row["activation_mean@1"] == pytest.approx(1.0, abs=0.05)
    assert row["activation_std@1"] == pytest.approx(3.0, rel=0.02)
    assert row["activation_kurtosis@1"] == pytest.approx(3.0, rel=0.05)
    assert row["activation_max@1"] == pytest.approx(float(x.max()))


def test_a_sample_is_bounded_and_meets_all_columns() -> None:
    from mlflow_stability.probes.inside.activation_statistics import OutputKind

    x = torch.arange(100.0).repeat(5000, 1)
    taken = sample_of(x, OutputKind(), None, MAX_SAMPLE).values
    assert len(taken) <= MAX_SAMPLE
    assert taken.unique().numel() == 100


def test_the_signals_are_the_same_object_every_time() -> None:
    model, probe = convolutional(), ActivationProbe(unguarded)
    layouts = [blocks_of(probe, model, torch.randn(32, 3, 8, 8))[1][0].signals for _ in range(3)]
    assert layouts[0] is layouts[1] is layouts[2]


def test_units_are_not_judged_by_few_examples() -> None:
    row = look(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(4, 4))
    assert "activation_mean@1" in row
    assert "activation_dead@1" not in row


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.lstm, self.attention = nn.ReLU(), nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.act(x)
        states, _ = self.lstm(first)
        mixed, _ = self.attention(states, states, states)
        return self.act(mixed * 100)


def test_of_several_outputs_and_calls_the_first_counts() -> None:
    x = torch.randn(4, 20, 8)
    row = look(Twice(), x)
    assert row["activation_max@act"] == pytest.approx(float(x.max()))
    assert abs(row["activation_max@lstm"]) < 1
    assert "activation_mean@attention" in row


def test_names_have_the_models_class_in_front_where_two_train() -> None:
    first, other = convolutional(), Own()
    probe = ActivationProbe(unguarded, models=lambda: [first, other])
    looked_into(probe, first, torch.randn(32, 3, 8, 8))
    _, row = looked_into(probe, other, torch.randn(64, 8))
    assert "activation_mean@Own.outer" in row
    _, row = looked_into(probe, first, torch.randn(32, 3, 8, 8))
    assert "activation_mean@Sequential.0" in row


def test_a_compiled_model_and_the_one_inside_of_it_are_one() -> None:
    model = convolutional()
    compiled = torch.compile(model)
    probe = ActivationProbe(unguarded, models=lambda: [compiled])
    _, row = looked_into(probe, model, torch.randn(32, 3, 8, 8))
    assert "activation_mean@0" in row


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


def test_an_exception_leaves_no_hook_and_no_measurement_behind() -> None:
    model, probe = nn.Sequential(nn.Linear(4, 8), Raises()), ActivationProbe(unguarded)
    with pytest.raises(KeyboardInterrupt):
        blocks_of(probe, model, torch.randn(32, 4))
    assert probe.blocks() == []
    assert not any(id(module) in MODULE_CALLS for module in model.modules())


def test_a_model_copied_or_saved_during_a_measurement_has_no_objects_of_ours() -> None:
    model, probe = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), ActivationProbe(unguarded)
    probe.open(model, 10, lambda: True)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    probe.close(True)
    assert twin(torch.randn(2, 4)).shape == (2, 8)
    assert b"mlflow_stability" not in pickle.dumps(twin)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(0.3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (plain, (16, 3, 8, 8)),
        (lambda: Checkpointed(reentrant=False), (16, 8)),
        (lambda: Checkpointed(reentrant=True), (16, 8)),
    ],
    ids=["convolutions", "checkpoint", "reentrant checkpoint"],
)
def test_a_measured_training_is_bit_identical(
    build: Callable[[], nn.Module], shape: tuple[int, ...], autocast: bool
) -> None:
    def train(probe: ActivationProbe | None) -> list[Tensor]:
        torch.manual_seed(3)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.randn(shape, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = model(x) if probe is None else looked_into(probe, model, x)[0]
            output.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.state_dict().values(), torch.rand(3)]

    looked, bare = train(ActivationProbe(unguarded)), train(None)
    assert all(torch.equal(first, other) for first, other in zip(looked, bare, strict=True))


def test_a_thousand_modules_share_the_room_for_samples() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(600)))
    row = look(model, torch.randn(32, 4))
    layers = {name.partition("@")[2] for name in row}
    assert 500 <= len(layers) <= 1024
    assert {name.partition("@")[0] for name in row} <= set(QUANTITIES)
