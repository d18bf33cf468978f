"""Quiet mistakes that the first steps of a watched training show."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scenarios.flying import flying
from torch import Tensor, nn

from mlflow_stability.vocabulary.result import Severity


def train(*last: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), *last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(torch.randn(16, 8)), torch.randint(0, 4, (16,))).backward()
        optimizer.step()


@pytest.mark.parametrize("last", [(nn.Softmax(1),), ()])
def test_a_model_that_ends_in_a_softmax_before_cross_entropy_is_found_at_once(
    tmp_path: Path, last: tuple[nn.Module, ...]
) -> None:
    with flying(tmp_path) as flown:
        train(*last)
    events = [(event.step, event.severity, event.message) for event in flown.events("loss_input")]
    message = "Module 3 is a softmax, and its output goes into cross_entropy, which expects logits."
    assert events == ([(2, Severity.WARNING, message)] if last else [])


class Body(nn.Module):
    """A body in a list or not, an optional second part, and a head."""

    def __init__(self, *, listed: bool, detached: bool) -> None:
        super().__init__()
        blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.blocks = blocks if listed else nn.ModuleList(blocks)
        self.detached, self.head = detached, nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        out: Tensor = self.head(x.detach() if self.detached else x)
        return out


MISTAKES = {
    "unregistered_module": "blocks.0 to blocks.1 are in a Python list: 4 tensors with a gradient not in "
    "model.parameters(), never updated.",
    "not_optimized": "2 parameters of head (6% of the values) have a gradient and are in no optimizer: no step "
    "changes them.",
    "no_gradient": "4 parameters of blocks.0, blocks.1 (94% of the values) are in the optimizer and had no gradient "
    "in 100 steps.",
    "weight_decay_strong": "Weight decay 5 at learning rate 0.01 removes 5% of each weight per step: without "
    "gradients, weights halve in 14 steps.",
    "loss_broadcast": "The prediction has shape (16, 1) and the target (16,): the loss compares all 16 x 16 pairs, not "
    "each prediction with its own target.",
    "optimizer_recreated": "Each of 5 steps that were looked at, up to step 20, has another AdamW of the same "
    "parameters: its averages of gradients begin again at zero each time.",
    "not_frozen": "blocks.requires_grad = False freezes nothing: PyTorch reads requires_grad of parameters alone. 4 "
    "parameters of it are trained.",
    "schedule_unused": "LambdaLR changes an optimizer that took no step up to step 20; another one trains the same "
    "parameters, at 0.01 in place of 0.1: the schedule has no effect.",
    "group_rate_zero": "Parameter group 0 (94% of the values of its optimizer) has gradients and a learning rate of 0 "
    "up to step 100; other groups have up to 0.01. No step changes it.",
}


def train_body(mistake: str) -> None:
    torch.manual_seed(0)
    model = Body(listed=mistake == "unregistered_module", detached=mistake == "no_gradient")
    trained = model.blocks if mistake == "not_optimized" else model
    assert isinstance(trained, nn.Module)
    decay = 5.0 if mistake == "weight_decay_strong" else 0.01
    groups = [{"params": list(trained.parameters())}]
    if mistake == "group_rate_zero":
        held = [model.blocks, model.head]
        groups = [{"params": list(part.parameters()), "lr": rate} for part, rate in zip(held, (0.0, 0.01), strict=True)]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=decay)
    schedule = None
    if mistake == "schedule_unused":
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 if step else 1.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    if mistake == "not_frozen":
        model.blocks.requires_grad = False
    for _ in range(105):
        if mistake == "optimizer_recreated":
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
        x = torch.randn(16, 8)
        target = x[:, 0] if mistake == "loss_broadcast" else x[:, :1]
        optimizer.zero_grad()
        ((model(x) - target) ** 2).mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("mistake", [*MISTAKES, ""])
def test_each_mistake_in_the_set_up_of_a_training_is_a_finding_of_its_own(tmp_path: Path, mistake: str) -> None:
    with flying(tmp_path) as flown:
        train_body(mistake)
    by_kind = {kind: event for kind in MISTAKES for event in flown.events(kind)}
    severity = Severity.INFO if mistake == "group_rate_zero" else Severity.WARNING
    assert {kind: (event.severity, event.message) for kind, event in by_kind.items()} == (
        {mistake: (severity, MISTAKES[mistake])} if mistake else {}
    )


class Language(nn.Module):
    """A language model whose output layer is tied to its embedding, or began as a copy of it."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        weight = self.embedding.weight
        self.head.weight = weight if tied else nn.Parameter(weight.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(tokens))
        return out


@pytest.mark.parametrize("tied", [False, True])
def test_an_output_layer_that_is_a_copy_of_the_embedding_is_found_at_once(tmp_path: Path, tied: bool) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model = Language(tied=tied)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            tokens = torch.randint(0, 12, (16,))
            nn.CrossEntropyLoss()(model(tokens), tokens.roll(1)).backward()
            optimizer.step()
    events = [(event.step, event.severity, event.message) for event in flown.events("untied_weights")]
    message = (
        "Weight of module head has the values of an embedding at step 1, but is another tensor: they are not tied."
    )
    assert events == ([] if tied else [(1, Severity.WARNING, message)])


@pytest.mark.parametrize(
    ("when", "limit", "is_found"),
    [
        *(("after", 1.0, True), ("after", math.inf, False), ("too early", 1.0, True)),
        *(("before", 1.0, False), ("both", 1.0, False)),
    ],
)
def test_gradients_that_are_clipped_when_they_have_been_used_are_information(
    tmp_path: Path, when: str, limit: float, is_found: bool
) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(12):
            optimizer.zero_grad()
            if when == "too early":
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            (model(torch.randn(16, 8)) - torch.randn(16, 1)).pow(2).mean().backward()
            if when in ("before", "both"):
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            if when in ("after", "both"):
                nn.utils.clip_grad_norm_(model.parameters(), limit)
    events = [(event.step, event.severity, event.message) for event in flown.events("clipping_late")]
    step, message = 10, "Gradients were clipped after the optimizer had used them, in 9 steps in a row."
    if when == "too early":
        step = 3
        message = (
            "Gradients are never clipped: clip_grad_norm_ got none, in 3 steps in a row. It runs before backward(), "
            "or its generator of parameters was used up."
        )
    assert events == ([(step, Severity.INFO, message)] if is_found else [])


@pytest.mark.parametrize("how", ["scaled", "unscaled", "by hand", "scaled limit", "no scaler"])
def test_clipping_of_scaled_gradients_is_found(tmp_path: Path, how: str) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model, scaler = nn.Linear(8, 1), torch.amp.GradScaler("cpu", enabled=how != "no scaler")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale((model(torch.randn(16, 8)) - torch.randn(16, 1)).pow(2).mean()).backward()
            if how == "unscaled":
                scaler.unscale_(optimizer)
            if how == "by hand":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= scaler.get_scale()
            limit = 0.5 * scaler.get_scale() if how == "scaled limit" else 0.5
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            if how == "by hand":
                optimizer.step()
                continue
            scaler.step(optimizer)
            scaler.update()
    events = [(event.step, event.severity, event.message) for event in flown.events("clipping_scaled")]
    message = (
        "Gradients are clipped at 0.5 while the loss scaler has them scaled, 10 times in a row up to step 10: the real "
        "limit is that, divided by the loss scale."
    )
    assert events == ([(10, Severity.WARNING, message)] if how == "scaled" else [])


def test_clipping_in_the_closure_of_an_optimizer_is_not_late(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(torch.ones(4, 8)) - torch.arange(4.0)[:, None]).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return loss

        for _ in range(12):
            optimizer.step(closure)
    assert flown.events("clipping_late") == []


@pytest.mark.parametrize("several", [True, False])
def test_several_classes_at_once_in_cross_entropy_are_found(tmp_path: Path, several: bool) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model = nn.Linear(8, 5)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(12):
            x = torch.randn(16, 8)
            labels = torch.ones(16, 5) - nn.functional.one_hot(x[:, :5].argmax(1), 5)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels if several else labels / 4).backward()
            optimizer.step()
    events = [(event.step, event.severity) for event in flown.events("target_sum")]
    assert events == ([(6, Severity.WARNING)] if several else [])


@pytest.mark.parametrize("ignored", [0, -100])
def test_a_loss_that_counts_padding_is_found(tmp_path: Path, ignored: int) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 12))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(12):
            tokens = torch.randint(1, 12, (16, 20))
            tokens[:, 5:] = 0
            logits = model(tokens[:, :-1]).transpose(1, 2)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, tokens[:, 1:], ignore_index=ignored).backward()
            optimizer.step()
    events = [(event.step, event.severity) for event in flown.events("padding_in_loss")]
    assert events == ([] if ignored == 0 else [(6, Severity.WARNING)])
