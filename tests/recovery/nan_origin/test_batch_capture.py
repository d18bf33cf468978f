from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery.guarded_training import differences, picture
from recovery.listening import listening
from torch import Tensor, nn

from mlflow_stability.kinds.reported.broken_steps import TensorFacts
from mlflow_stability.recovery.nan_origin.batch_capture import (
    BatchCapture,
    CapturedBatch,
    facts_of,
    save_batch,
    tensors_in,
)
from mlflow_stability.recovery.nan_origin.batch_replay import replay_batch

NAN, INF = float("nan"), float("inf")


class Reader(nn.Module):
    """A model that takes tokens, options and pictures, as people call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, inputs: dict[str, Tensor], *, picture: Tensor | None = None, scale: float = 1.0) -> Tensor:
        output: Tensor = self.out(self.words(inputs["ids"])).sum() * scale
        return output if picture is None else output + picture.sum()


def captured(*args: Any, **kwargs: Any) -> tuple[BatchCapture, CapturedBatch]:
    model = Reader()
    capture, _ = listening(model)
    model(*args, **kwargs).backward()
    alive.append(model)
    return capture, capture.passes(0)[-1]


alive: list[nn.Module] = []


def facts(**tensors: Tensor) -> dict[str, TensorFacts]:
    _, batch = captured({"ids": torch.zeros(1, 3, dtype=torch.long), **tensors})
    return {fact.name: fact for fact in facts_of(batch)}


def test_inputs_are_held_by_reference_and_named_by_the_way_to_them() -> None:
    ids, image = torch.tensor([[1, 2]]), torch.rand(2, 3)
    _, batch = captured({"ids": ids}, picture=image, scale=2.0)
    assert batch.args[0]["ids"] is ids
    assert [fact.name for fact in facts_of(batch)] == ["args[0]['ids']", "kwargs['picture']"]


def test_evaluation_does_not_replace_the_captured_training_batch() -> None:
    model = Reader()
    capture, _ = listening(model)
    first = {"ids": torch.tensor([[1]])}
    model(first)
    model.eval()
    model({"ids": torch.tensor([[2]])})
    model.train()
    with torch.no_grad():
        model({"ids": torch.tensor([[3]])})
    (batch,) = capture.passes(0)
    assert batch.args[0] is first


def test_a_batch_is_let_go_when_the_next_step_begins_and_when_watching_ends() -> None:
    model = Reader()
    capture, _ = listening(model)
    gone = []
    for step in range(2):
        ids = torch.tensor([[1, 2]])
        gone.append(weakref.ref(ids))
        model({"ids": ids})
        capture.step = step + 1
    del ids
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is not None
    capture.stop()
    gc.collect()
    assert gone[1]() is None
    model({"ids": torch.tensor([[1]])})
    assert capture.passes(2) == ()


def test_a_step_is_remembered_one_step_longer_where_a_device_is_asked_late() -> None:
    model = Reader()
    capture, _ = listening(model)
    capture.steps_kept = 2
    for step in range(4):
        model({"ids": torch.tensor([[step]])})
        capture.step = step + 1
    assert [len(capture.passes(step)) for step in range(4)] == [0, 0, 1, 1]


def test_all_passes_of_a_step_are_held_while_they_are_small() -> None:
    model = Reader()
    capture, _ = listening(model, BatchCapture(most_earlier_bytes=100))
    for _ in range(3):
        model({"ids": torch.zeros(1, 2, dtype=torch.long)})
    assert len(capture.passes(0)) == 3
    for _ in range(3):
        model({"ids": torch.zeros(1, 10, dtype=torch.long)})
    assert [item.args[0]["ids"].shape[1] for item in capture.passes(0)] == [10, 10]


def test_a_batch_that_is_too_large_is_not_held() -> None:
    model = Reader()
    capture, _ = listening(model, BatchCapture(most_bytes=100))
    model({"ids": torch.zeros(1, 50, dtype=torch.long)})
    assert capture.passes(0) == ()
    model({"ids": torch.zeros(1, 5, dtype=torch.long)})
    assert len(capture.passes(0)) == 1


def test_a_pass_within_a_function_transform_is_not_held() -> None:
    model = nn.Linear(3, 2)
    capture, _ = listening(model)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, weights, (row,)).square().sum()
        return output

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(4, 3))
    torch.func.grad(loss)(weights, torch.randn(3))
    assert capture.passes(0) == ()
    model(torch.randn(4, 3))
    assert len(capture.passes(0)) == 1


def test_a_pass_that_raised_is_not_held() -> None:
    model = Reader()
    capture, _ = listening(model)
    with pytest.raises(IndexError):
        model({"ids": torch.tensor([[99]])})
    assert capture.passes(0) == ()


def test_the_gradient_that_comes_back_to_an_output_is_known() -> None:
    model = Reader()
    capture, _ = listening(model)
    loss = model({"ids": torch.tensor([[1]])}) * 3
    assert hooks_of(loss.grad_fn) == []
    capture.gradients_begin()
    loss.backward()
    capture.gradients_end()
    (batch,) = capture.passes(0)
    assert batch.gradients == {0: [torch.tensor(3.0)]}
    assert hooks_of(loss.grad_fn) == []


def hooks_of(node: Any) -> list[Any]:
    """Hooks of ours in a graph of gradients."""
    result, waiting = [], [node]
    while waiting:
        node = waiting.pop()
        waiting += [value for value, _ in node.next_functions if value is not None]
        result += [hook for table in gc.get_referents(node) if isinstance(table, dict) for hook in table.values()]
    return result


def test_gradients_of_two_passes_are_known_where_the_script_keeps_the_outputs() -> None:
    model = Reader()
    capture, _ = listening(model)
    first, two = (model({"ids": torch.tensor([[at]])}) for at in (1, 2))
    capture.gradients_begin()
    (first * 3 + two * 2).backward()
    capture.gradients_end()
    assert [item.gradients for item in capture.passes(0)] == [{0: [torch.tensor(3.0)]}, {0: [torch.tensor(2.0)]}]


def test_the_graph_of_an_output_that_the_script_dropped_is_held_until_the_next_pass_and_no_longer() -> None:
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = kept = Kept()
            alive.add(kept)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient

    class Kept:
        """Lives as long as the graph."""

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Saves.apply(super().forward(x))  # type: ignore[no-any-return,no-untyped-call]

    alive: weakref.WeakSet[Kept] = weakref.WeakSet()
    model = Model(2, 2)
    listening(model)
    for _ in range(3):
        model(torch.ones(1, 2))
        gc.collect()
        assert len(alive) == 1


def test_an_output_that_the_script_saves_is_saved_without_a_warning(tmp_path: Path) -> None:
    model = Reader()
    _, _ = listening(model)
    output = model({"ids": torch.tensor([[1]])})
    torch.save(output, tmp_path / "output.pt")
    assert torch.equal(torch.load(tmp_path / "output.pt", weights_only=True), output)


def test_a_batch_that_the_script_changes_in_place_is_known_to_be_changed() -> None:
    ids = torch.tensor([[1, 2]])
    _, batch = captured({"ids": ids})
    assert not batch.was_changed
    ids.zero_()
    assert batch.was_changed


def test_training_is_bit_identical_with_and_without_it() -> None:
    def train(watched: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 1))
        if watched:
            listening(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        return [*picture(model, optimizer), torch.get_rng_state()]

    assert differences(train(False), train(True)) == []


def test_facts_count_what_is_not_finite_and_give_the_range_of_the_rest() -> None:
    fact = facts(x=torch.tensor([[1.0, NAN, -3.0], [INF, 2.0, -INF]]))["args[0]['x']"]
    assert (fact.shape, fact.dtype, fact.nan, fact.inf) == ((2, 3), "float32", 1, 2)
    assert (fact.least, fact.greatest, fact.mean) == (-3.0, 2.0, 0.0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((3,), NAN),
        torch.empty(0),
        torch.empty(0, dtype=torch.long),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.rand(3, dtype=torch.complex64),
        torch.rand(3).to(torch.float16) * 60000,
        torch.eye(3).to_sparse(),
        torch.tensor([2**62, 2**62]),
    ],
    ids=["nan", "empty", "no whole numbers", "scalar", "yes and no", "complex", "half", "sparse", "huge"],
)
def test_facts_take_tensors_of_every_kind(tensor: Tensor) -> None:
    fact = facts(x=tensor)["args[0]['x']"]
    assert fact.shape == tuple(tensor.shape)
    assert fact.mean is None or abs(fact.mean) < 2**63


def test_facts_of_tokens_show_padding_repetition_and_repeated_rows() -> None:
    ids = torch.tensor([[1, 2, 0, 0], [5, 5, 5, 5], [1, 2, 0, 0], [0, 8, -1, 9]])
    tokens = facts(more=ids)["args[0]['more']"].tokens
    assert tokens is not None
    assert (tokens.different, tokens.most_frequent, tokens.its_share) == (7, 0, 5 / 16)
    assert (tokens.longest_run, tokens.repeated_rows, tokens.negative) == (4, 1, 1)


def test_saved_tensors_load_with_weights_only_and_nothing_unfinished_is_left(tmp_path: Path) -> None:
    ids = torch.tensor([[3, 1], [2, 9]])[:, :1]
    _, batch = captured({"ids": ids})
    path = save_batch([batch], tmp_path / "batches" / "batch-000007.pt")
    loaded = torch.load(path, weights_only=True)
    assert list(loaded) == ["args[0]['ids']"]
    assert torch.equal(loaded["args[0]['ids']"], ids)
    assert [entry.name for entry in path.parent.iterdir()] == ["batch-000007.pt"]


def test_a_loss_is_known_until_the_next_forward_pass() -> None:
    model = Reader()
    capture, _ = listening(model)
    loss = model({"ids": torch.tensor([[1]])}) * 2
    capture.backward_began([loss])
    assert capture.loss is not None
    assert torch.equal(capture.loss.value, loss)
    model({"ids": torch.tensor([[1]])})
    assert capture.loss is None


def test_tensors_of_inference_mode_are_held_and_run_again_like_any_other() -> None:
    class Cloning(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.clone())

    with torch.inference_mode():
        inputs = torch.full((2, 3), NAN)
    model = Cloning(3, 1)
    capture, _ = listening(model)
    model(inputs).sum().backward()
    (batch,) = capture.passes(0)
    assert not batch.was_changed
    values = replay_batch(batch)
    assert values.conclusion == "data or numerics"


def test_what_has_no_truth_value_is_looked_through_like_anything_else() -> None:
    class Batch(dict[str, Tensor]):  # as a `TensorDict`
        def __bool__(self) -> bool:
            raise RuntimeError("Converting a tensordict to boolean value is not permitted")

    first, second = torch.ones(1), torch.zeros(2)
    assert tensors_in(Batch(first=first), np.ones(3), (), {}, None, [second]) == [first, second]
