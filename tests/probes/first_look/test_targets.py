"""What is measured of the targets of a loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.probes.first_look.targets import Batches, Targets, saved

CLASSES = torch.tensor([3, 1, 1, 2, 1, 1, 1, 2, 2, -100, -100, -100])


def outputs(*shape: int) -> Tensor:
    return torch.zeros(*shape, requires_grad=True)


def measured(*losses: Tensor) -> dict[str, float]:
    targets = Targets()
    for loss in losses:
        targets.note(loss)
    blocks = targets.blocks()
    assert targets.blocks() == []
    return {
        signal.quantity: float(value)
        for block in blocks
        for signal, value in zip(block.signals, block.values, strict=True)
    }


def test_classes_and_ignored_targets_of_cross_entropy_are_measured() -> None:
    loss = functional.cross_entropy(outputs(12, 5), CLASSES)
    assert measured(loss) == {"class_low": 1, "class_high": 3, "targets_ignored": 0.25}


def test_micro_batches_of_a_step_are_measured_together() -> None:
    losses = [functional.cross_entropy(outputs(6, 5), labels) / 2 for labels in CLASSES.split(6)]
    assert measured(*losses) == {"class_low": 1, "class_high": 3, "targets_ignored": 0.25}


def test_a_given_ignore_index_counts() -> None:
    losses = [functional.cross_entropy(outputs(6, 5), CLASSES[:6], ignore_index=1) for _ in range(4)]
    assert measured(*losses) == {"class_low": 2, "class_high": 3, "targets_ignored": pytest.approx(4 / 6)}


def test_a_few_targets_are_not_reported() -> None:
    assert measured(functional.cross_entropy(outputs(2, 5), CLASSES[:2])) == {}


def test_of_a_few_targets_that_are_not_ignored_no_class_is_reported() -> None:
    for used, highest in ((8, 1), (7, -1)):
        targets = torch.where(torch.arange(100) < used, 1, -100)
        assert measured(functional.cross_entropy(outputs(100, 5), targets))["class_high"] == highest


def test_labels_of_a_binary_cross_entropy_are_measured() -> None:
    loss = functional.binary_cross_entropy_with_logits(outputs(3), torch.tensor([-1.0, 0.0, 1.0]))
    assert measured(loss) == {"label_low": -1, "label_high": 1}


def test_the_variance_of_targets_is_measured_for_a_mean_squared_error_alone() -> None:
    target = torch.arange(8.0)[:, None]
    loss = functional.mse_loss(outputs(8, 1), target)
    assert measured(loss) == {"target_variance": 5.25}
    assert measured(loss, loss) == {"target_variance": 10.5}
    assert measured(loss / 4) == {"target_variance": 5.25 / 4}, "of a micro-batch"
    assert measured(loss + outputs(1).sum()) == {}
    assert measured(functional.mse_loss(outputs(8, 1), target, reduction="sum")) == {}
    assert measured(functional.mse_loss(target, outputs(8, 1))) == {"target_variance": 5.25}, "in the other order"
    assert measured(functional.mse_loss(outputs(8, 1), outputs(8, 1))) == {}, "two predictions"


def test_of_sorted_targets_the_variance_is_that_around_their_first_mean() -> None:
    targets, measured_variances = Targets(), []
    for mean in (0.0, 0.5, 8.0):
        targets.note(functional.mse_loss(outputs(8, 1), torch.arange(8.0)[:, None] + mean))
        (block,) = targets.blocks()
        measured_variances.append(float(block.values))
    assert measured_variances == [5.25, 5.25, 5.25 + 64], "a small difference of two means is chance"


def test_targets_that_a_hook_packed_are_not_measured() -> None:
    unpacked: list[object] = []

    def unpack(packed: Tensor) -> Tensor:
        unpacked.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = functional.cross_entropy(outputs(12, 5), CLASSES)
    assert saved(loss.grad_fn, "target") is None
    assert measured(loss) == {}
    assert unpacked == []


def test_gradients_are_the_same_after_a_look() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    loss = functional.cross_entropy(model(torch.randn(12, 4)), CLASSES)
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    measured(loss)
    assert all(map(torch.equal, torch.autograd.grad(loss, list(model.parameters())), expected))


@pytest.mark.parametrize(
    ("activation", "share"),
    [(nn.Sigmoid(), 0.75), (nn.Tanh(), 0.5), (nn.ReLU(), 0.5), (nn.Identity(), None), (nn.GELU(), None)],
    ids=["sigmoid", "tanh", "ReLU", "none", "GELU"],
)
def test_targets_that_the_last_activation_cannot_give_are_counted(activation: nn.Module, share: float | None) -> None:
    target = torch.tensor([-3.0, -1.0, 1.0, 3.0]).repeat(2)[:, None]
    for function in (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss):
        row = measured(function(activation(outputs(8, 1)), target))
        assert row.get("targets_unreachable") == share


def test_targets_of_an_error_that_is_written_out_are_compared_with_the_last_activation() -> None:
    output, target = outputs(8, 1), torch.tensor([-2.0, -1.0, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0])
    relu, sigmoid = output.relu().squeeze(1), output.sigmoid().squeeze(1)
    losses = {
        functional.l1_loss(relu, target): 0.25,
        (target - relu).abs().mean() / 2: 0.25,
        ((sigmoid - target) ** 2).mean(): 0.5,
        ((target - sigmoid) ** 2).mean(): 0.5,
    }
    assert [measured(loss)["targets_unreachable"] for loss in losses] == pytest.approx(list(losses.values()))
    others = (
        functional.l1_loss(output.squeeze(1), target),
        (output.relu() - target).abs().mean(),  # all pairs
        (relu - 2 * output.squeeze(1)).abs().mean(),
        (relu - 0.5).abs().sum(),
    )
    assert [measured(loss) for loss in others] == [{}] * len(others)


def test_rows_of_probabilities_that_add_up_to_more_than_one_are_counted() -> None:
    several, once = torch.ones(8, 3), torch.full((8, 3), 1 / 3)
    assert measured(functional.cross_entropy(outputs(8, 3), several))["targets_above_one"] == 1
    assert measured(functional.cross_entropy(outputs(8, 3), several) / 2)["targets_above_one"] == 1
    assert measured(functional.cross_entropy(outputs(8, 3), once, label_smoothing=0.1))["targets_above_one"] == 0
    others = (
        functional.cross_entropy(outputs(8, 3), several, weight=torch.ones(3)),
        functional.cross_entropy(outputs(8, 8), torch.ones(8, 8)),  # similarities of pairs
        -(outputs(8, 3).log_softmax(1) * several).sum(1).mean(),  # a multinomial distribution
        -(outputs(8, 3).log_softmax(1) * several).sum() / 8,
    )
    assert ["targets_above_one" in measured(loss) for loss in others] == [False] * 4


LAYERS: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
    "linear": (nn.Linear(6, 3), lambda: torch.randn(8, 6)),
    "without a bias": (nn.Linear(6, 3, bias=False), lambda: torch.randn(8, 6)),
    "sequences": (nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.Linear(12, 3)), lambda: torch.randn(8, 4, 6)),
    "images": (nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()), lambda: torch.randn(8, 1, 2, 2)),
    "tokens": (nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 3)), lambda: torch.randint(0, 9, (8, 4))),
}


def repeated(make: Callable[[int], Tensor], *steps: int) -> list[float | None]:
    batches, values = Batches(), []
    for step in steps:
        batches.note(make(step), step)
        blocks = batches.blocks()
        values.append(float(blocks[0].values[0]) if blocks else None)
    return values


@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_is_compared_with_that_of_the_step_before(name: str) -> None:
    layer, draw = LAYERS[name]
    inputs, labels = [draw(), draw()], [torch.arange(8) % 3, torch.arange(1, 9) % 3]

    def loss(step: int, *, moves: bool = False, relabelled: bool = False) -> Tensor:
        x, y = inputs[step % 2 if moves else 0].clone(), labels[step % 2 if relabelled else 0].clone()
        return functional.cross_entropy(layer(x), y)

    assert repeated(loss, 1, 2, 3) == [None, 1.0, 1.0]
    assert repeated(partial(loss, moves=True), 1, 2, 3) == [None, 0.0, 0.0]
    assert repeated(partial(loss, relabelled=True), 1, 2, 3) == [None, 0.0, 0.0]
    assert repeated(loss, 1, 3, 3) == [None, None, None]
    assert repeated(lambda step: functional.mse_loss(layer(inputs[0]), torch.ones(8, 3)), 1, 2) == [None, 1.0]


def test_a_model_of_many_inputs_is_compared_by_the_first_ones() -> None:
    tables, tokens = [nn.Embedding(9, 3) for _ in range(7)], torch.randint(0, 9, (8,))
    labels = torch.arange(8) % 3

    def loss(_step: int) -> Tensor:
        return functional.cross_entropy(torch.stack([table(tokens.clone()) for table in tables]).sum(0), labels)

    assert repeated(loss, 1, 2) == [None, 1.0]


def test_losses_without_inputs_or_targets_that_can_be_seen_are_not_compared() -> None:
    weight = torch.randn(3, requires_grad=True)
    assert repeated(lambda step: functional.mse_loss(weight, torch.ones(3)), 1, 2) == [None, None]
    assert repeated(lambda step: nn.Linear(3, 1)(torch.ones(4, 3)).mean(), 1, 2) == [None, None]
