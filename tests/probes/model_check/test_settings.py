from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import dropout
from torch.optim import SGD

from mlflow_stability.kinds.catalog import documentation
from mlflow_stability.probes.model_check.settings import model_lint
from mlflow_stability.vocabulary.result import Finding, Severity


def lint(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[Finding]:
    return model_lint([model], optimizers or [SGD(model.parameters(), lr=0.1)], step=10)


def test_a_usual_model_has_no_findings() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 8), nn.TransformerEncoder(layer, 2), nn.LayerNorm(8), nn.Linear(8, 10))
    assert lint(model) == []
    assert lint(model.bfloat16()) == []


@pytest.mark.parametrize(
    ("norm", "is_told"),
    [
        (nn.LayerNorm(8, eps=1e-7), False),
        (nn.LayerNorm(8, eps=1e-12), True),
        (nn.LayerNorm(8, eps=1e-7).half(), True),
        (nn.LayerNorm(8, eps=1e-6).half(), False),
        (nn.GroupNorm(2, 8, eps=1e-9), True),
        (nn.RMSNorm(8, eps=1e-7).bfloat16(), True),
        (nn.RMSNorm(8), False),
        (nn.BatchNorm1d(8, eps=1e-12), False),
    ],
)
def test_an_epsilon_is_odd_where_it_is_lost_in_the_precision(norm: nn.Module, is_told: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), norm)
    events = lint(model)
    assert [event.place for event in events] == (["1"] if is_told else [])


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_a_scripted_model_has_no_findings() -> None:
    assert lint(torch.jit.script(nn.Linear(4, 4))) == []


class WithDropout(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)


class Lasting(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x).flatten(1), 0.5)


class LastingByPath(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout2d(x)


class LastingByName(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, p=0.2)


class InTraining(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5, self.training)


class ByKeyword(WithDropout):
    def forward(self, x: Tensor, mode: bool) -> Tensor:
        return functional.dropout(x, p=0.5, training=mode)


class OnPurpose(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, 0.5, True)


class OwnLayer(WithDropout):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.dropout(x))


class WithProperty(WithDropout):
    @property
    def computed(self) -> Tensor:
        raise AssertionError("an attribute was computed")

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x + self.computed, 0.5)


@pytest.mark.parametrize(
    ("module", "is_found"),
    [
        *((made, True) for made in (Lasting, LastingByPath, LastingByName, WithProperty)),
        *((made, False) for made in (InTraining, ByKeyword, OnPurpose, OwnLayer)),
    ],
)
def test_dropout_that_stays_on_in_evaluation_is_found(module: type[WithDropout], is_found: bool) -> None:
    messages = [finding.message for finding in lint(nn.Sequential(nn.Linear(4, 4), module()))]
    expected = "1 module with a dropout function that is not given `training` (1): it stays on in evaluation."
    assert messages == ([expected] if is_found else [])


class Attention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.scale = scale


@pytest.mark.parametrize(
    ("optimizer", "betas", "is_told"),
    [
        (torch.optim.AdamW, (0.999, 0.9), True),
        (torch.optim.NAdam, (0.95, 0.9), True),
        (torch.optim.AdamW, (0.9, 0.999), False),
        (torch.optim.Adam, (0.0, 0.99), False),
        (torch.optim.AdamW, (0.95, 0.95), False),
    ],
)
def test_adam_with_its_first_beta_above_its_second_is_reported(
    optimizer: type[torch.optim.Adam], betas: tuple[float, float], is_told: bool
) -> None:
    model = nn.Linear(4, 4)
    events = lint(model, optimizer([{"params": [model.weight]}, {"params": [model.bias], "betas": betas}]))
    assert [event.metrics for event in events] == ([{"beta1": betas[0], "beta2": betas[1]}] if is_told else [])


def test_betas_with_another_meaning_are_not_reported() -> None:
    class NovoGrad(SGD):
        pass

    model = nn.Linear(4, 4)
    assert lint(model, NovoGrad([{"params": model.parameters(), "betas": (0.95, 0.25)}], lr=0.1)) == []


def test_attention_with_a_scale_near_zero_is_reported() -> None:
    (event,) = lint(nn.ModuleDict({"attn": Attention(1e-6), "other": Attention(0.125)}))
    assert event.place == "attn"
    assert event.metrics["scale"] == 1e-6


def test_a_scale_that_is_learned_or_not_of_attention_is_not_reported() -> None:
    class LayerScale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1e-6
            self.weight = nn.Parameter(torch.ones(2))

    class LearntAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1e-6))

    assert lint(nn.Sequential(LayerScale(), LearntAttention())) == []


def test_parameters_that_no_optimizer_has_are_named() -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    model["head"](model["body"](torch.ones(1, 2))).sum().backward()
    (event,) = lint(model, SGD(model["body"].parameters(), lr=0.1))
    assert "2 parameters are in no optimizer" in event.message
    assert "head.weight, head.bias" in event.message
    assert event.metrics == {"parameters": 2.0, "values": 3.0, "with_gradient": 2.0}
    assert event.severity == Severity.INFO
    assert event.step == 10


def test_all_that_is_odd_comes_as_one_event_each() -> None:
    model = nn.ModuleDict({f"layer{number}": nn.Linear(4, 4) for number in range(8)})
    model["layer7"].weight = model["layer0"].weight
    for number in range(1, 6):
        model[f"layer{number}"].requires_grad_(False)
    optimizers = SGD(model.parameters(), lr=0.1), SGD(model["layer6"].parameters(), lr=0.1)
    messages = [finding.message for finding in lint(model, *optimizers)]
    assert messages == [
        "1 parameter is shared under several names: layer0.weight = layer7.weight.",
        "10 parameters are frozen, 69% of all values: layer1.weight, layer1.bias, layer2.weight and 7 more.",
        "2 parameters are in more than one optimizer: layer6.weight, layer6.bias.",
    ]


def test_names_are_those_of_the_author_under_wrappers() -> None:
    model = nn.DataParallel(nn.Sequential(nn.LayerNorm(8, eps=1e-12)))
    assert [signal.place for signal in lint(model)] == ["0"]


def test_what_lint_says_is_explained() -> None:
    assert documentation("model_lint").sees
    assert documentation("configuration_changed").why
