"""Dimensions that are mixed up, in the graphs of losses and in watched trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flying import flying
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.probes.first_look.first_look import OutputRows
from mlflow_stability.vocabulary.result import Severity

ROWS, LENGTH, FEATURES, CLASSES = 24, 12, 6, 3


class Recurrent(nn.Module):
    """Classifies sequences of (batch, sequence, features) by the last output of a recurrent layer."""

    def __init__(self, *, batch_first: bool, transposes: bool) -> None:
        super().__init__()
        self.body = nn.GRU(FEATURES, 8, batch_first=batch_first)
        self.transposes, self.head = transposes, nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states = self.body(x.transpose(0, 1))[0].transpose(0, 1) if self.transposes else self.body(x)[0]
        out: Tensor = self.head(states[:, -1])
        return out


class Attending(nn.Module):
    """Classifies sequences by the mean of what a transformer gives."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, batch_first=batch_first)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean(1))
        return out


class Tagging(nn.Module):
    """Gives each position of (sequence, batch, features) a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(FEATURES, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0])
        return out


def train(model: nn.Module, rows: int = ROWS, *, tags: bool = False) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(12):
        x = torch.randn(rows, LENGTH, FEATURES)
        output = model(x)
        labels = torch.randint(0, CLASSES, (rows,))
        loss = functional.mse_loss(output, x[..., :1]) if tags else functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("model", "module"),
    [
        (lambda: Recurrent(batch_first=False, transposes=False), "body"),
        (lambda: Attending(batch_first=False), "body.layers.0.self_attn"),
    ],
)
def test_a_batch_that_is_taken_for_a_sequence_is_found(
    tmp_path: Path, model: Callable[[], nn.Module], module: str
) -> None:
    with flying(tmp_path) as flown:
        train(model())
    (event,) = flown.events("batch_as_sequence")
    assert (event.step, event.severity) == (6, Severity.WARNING)
    assert event.message == (
        f"Module {module} has batch_first=False and takes its input for 12 sequences of 24 positions, but the loss has "
        "24 rows: the sequences run over the batch."
    )


@pytest.mark.parametrize(
    ("model", "rows", "tags"),
    [
        (lambda: Recurrent(batch_first=True, transposes=False), ROWS, False),
        (lambda: Recurrent(batch_first=False, transposes=True), ROWS, False),
        (lambda: Recurrent(batch_first=False, transposes=True), LENGTH, False),
        (lambda: Attending(batch_first=True), ROWS, False),
        (Tagging, ROWS, True),
    ],
    ids=["batch first", "transposed", "as many rows as positions", "attention", "each position"],
)
def test_layers_that_get_what_they_expect_are_not_reported(
    tmp_path: Path, model: Callable[[], nn.Module], rows: int, tags: bool
) -> None:
    with flying(tmp_path) as flown:
        train(model(), rows, tags=tags)
    assert [event.kind for event in flown.events("batch_as_sequence")] == []


def tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def spread(*losses: Tensor) -> float | None:
    outputs = OutputRows()
    for loss in losses:
        outputs.note(loss)
    values = [float(block.values[0]) for block in outputs.blocks()]
    assert outputs.blocks() == []
    return values[0] if values else None


def test_the_spread_of_outputs_is_zero_where_all_rows_are_the_same() -> None:
    same, other = tensor(1, 4).expand(8, 4), torch.arange(8.0)[:, None] * tensor(1, 4)
    labels, numbers = torch.arange(8) % 4, torch.randn(8, 4)
    for output, is_same in ((same, True), (other, False)):
        losses = [
            functional.cross_entropy(output, labels),
            functional.binary_cross_entropy_with_logits(output, numbers.sigmoid()),
            functional.mse_loss(output, numbers) / 2,
            functional.mse_loss(numbers, output),
            functional.smooth_l1_loss(output, numbers),
        ]
        assert [spread(loss) == 0 for loss in losses] == [is_same] * len(losses)
    assert spread(functional.mse_loss(same, numbers), functional.mse_loss(other, numbers)) != 0
    assert spread(functional.mse_loss(same[:4], numbers[:4])) is None
    assert spread(functional.mse_loss(same, numbers) + same.mean()) is None


def train_rows(*, pooled: bool, zero: bool) -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
    if zero:
        nn.init.zeros_(head.weight)
    model = nn.Sequential(body, nn.Tanh(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(24):
        hidden = body(torch.randn(16, FEATURES)).tanh()
        hidden = hidden.mean(0, keepdim=True).expand(16, -1) if pooled else hidden
        optimizer.zero_grad()
        functional.cross_entropy(head(hidden), torch.randint(0, CLASSES, (16,))).backward()
        optimizer.step()


@pytest.mark.parametrize(("pooled", "zero"), [(True, False), (False, True), (False, False)])
def test_an_output_that_is_the_same_for_each_row_is_found(tmp_path: Path, pooled: bool, zero: bool) -> None:
    with flying(tmp_path) as flown:
        train_rows(pooled=pooled, zero=zero)
    events = [(event.step, event.severity, event.message) for event in flown.events("same_output")]
    message = (
        "The loss function gets the same output for each row of the batch, in 10 steps that were looked at, up to step "
        "21: the output does not depend on the data."
    )
    assert events == ([(21, Severity.WARNING, message)] if pooled else [])
