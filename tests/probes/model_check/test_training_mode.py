"""Batch normalisations and dropout of a model that is trained, and the mode it is in."""

from __future__ import annotations

import pytest
from torch import nn
from torch.optim import SGD

from mlflow_stability.probes.model_check.settings import evaluation_mode, few_rows
from mlflow_stability.vocabulary.result import Finding, Severity


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))


def mode_of(model: nn.Module) -> Finding | None:
    return evaluation_mode([model], [SGD(model.parameters(), lr=0.1)], step=10)


def test_a_model_whose_norms_do_not_learn_their_statistics_is_a_warning() -> None:
    event = mode_of(network().eval())
    assert event is not None
    assert (event.kind, event.severity, event.step) == ("evaluation_mode", Severity.WARNING, 10)
    assert event.message == (
        "The model is trained in evaluation mode, seen at step 10: 1 batch normalisation is not updating the running "
        "statistics, 1 dropout layer is off (1)."
    )
    assert event.metrics == {"norms": 1.0, "dropouts": 1.0}


def test_dropout_alone_that_is_off_is_for_information() -> None:
    event = mode_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).eval())
    assert event is not None
    assert event.severity is Severity.INFO


@pytest.mark.parametrize(
    "model",
    [
        network(),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0)).eval(),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval(),
    ],
)
def test_a_mode_without_effect_is_not_reported(model: nn.Module) -> None:
    assert mode_of(model) is None


def test_a_frozen_backbone_in_evaluation_mode_is_intended() -> None:
    within = nn.Sequential(network().eval(), nn.Linear(2, 2))
    within.training = True
    assert mode_of(within) is None
    whole = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    whole[1].requires_grad_(False)
    assert evaluation_mode([whole], [SGD(whole[2].parameters(), lr=0.1)], step=10) is None


@pytest.mark.parametrize(("rows", "is_told"), [(0, False), (1, True), (3, True), (4, False), (64, False)])
def test_a_batch_normalisation_needs_some_rows(rows: int, is_told: bool) -> None:
    event = few_rows([network()], rows, step=10)
    assert (event is not None) == is_told
    if event is not None:
        assert f"over batches of {rows} row" in event.message
        assert event.metrics == {"rows": float(rows), "modules": 1.0}
    assert few_rows([network().eval()], 2, step=10) is None
    assert few_rows([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))], 2, step=10) is None
