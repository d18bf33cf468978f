"""What `torch.compile` took away from Python is not watched; the rest is, and nothing is disturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm, watching
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

pytestmark = [  # of what torch itself does while it compiles
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_compiled_model_is_watched_like_any_other(watched: Watched) -> None:
    model = tiny_model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for batch in batches(4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(batch[0]), batch[1])
        loss.backward()
        norm = true_norm(model.parameters())
        clip_grad_norm_(model.parameters(), 0.25)
        truth.append(
            {
                "loss": loss.item(),
                "micro_batches": 1,
                "grad_norm": norm,
                "grad_norm_clipped": true_norm(model.parameters()),
                "learning_rate": 0.1,
            }
        )
        optimizer.step()
    watched.must_be(truth)


def whole_step_compiled() -> list[Tensor]:
    """Forward, backward, clipping, step and zeroing in one compiled function."""
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)

    @torch.compile(backend="aot_eager")
    def train_step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [train_step(*batch).detach() for batch in batches(5)]
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def step_compiled() -> list[Tensor]:
    """Only the optimizer's step."""
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, fullgraph=False, backend="aot_eager")
    for batch in batches(5):
        mse(model, batch).backward()
        step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("train", [whole_step_compiled, step_compiled])
def test_compiled_steps_train_as_they_do_without_us(train: object) -> None:
    bare = train()  # type: ignore[operator]
    torch._dynamo.reset()
    with watching() as watched:
        seen = train()  # type: ignore[operator]
        rows = watched.rows()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(seen, bare, strict=True))
    assert len(rows) in (0, 5), "a compiled step is seen whole or not at all"


@pytest.mark.slow
def test_a_compiled_forward_and_backward_leaves_the_norm_to_be_seen(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="aot_eager")
    def forward_and_backward(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    norms = []
    for batch in batches(4):
        forward_and_backward(*batch)
        norms.append(true_norm(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    assert [row["grad_norm"] for row in watched.rows()] == pytest.approx(norms, rel=1e-5)


def test_functions_that_were_compiled_before_still_run_when_watching_begins_and_ends() -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="aot_eager")

    def train() -> None:
        for batch in batches(2):
            nn.functional.mse_loss(compiled(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
    with watching() as watched:
        train()
        assert len(watched.rows()) == 2
    train()
