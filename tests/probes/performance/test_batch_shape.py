from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from mlflow_stability.probes.performance.flop_count import batch_shape, shape_key

TOKENS = torch.zeros(3, 7, dtype=torch.int64)
PICTURES = torch.zeros(5, 3, 8, 8)


@pytest.mark.parametrize(
    ("args", "kwargs", "samples", "tokens"),
    [
        ((TOKENS,), {}, 3, 21),
        ((TOKENS.int(),), {}, 3, 21),
        ((), {"input_ids": TOKENS, "attention_mask": torch.ones(3, 7)}, 3, 21),
        (({"input_ids": TOKENS},), {}, 3, 21),
        (([[TOKENS]],), {}, 3, 21),
        ((None, 0.5), {"x": PICTURES}, 5, None),
        ((PICTURES, TOKENS), {}, 5, None),
        ((torch.zeros(5, 4, dtype=torch.uint8),), {}, 5, None),
        ((torch.zeros(5, 4, dtype=torch.bool),), {}, 5, None),
        ((torch.zeros(9, dtype=torch.int64),), {}, 9, None),
        ((torch.tensor(3.0), PICTURES), {}, 5, None),
        ((torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),), {}, 2, None),
    ],
)
def test_rows_are_samples_and_whole_numbers_in_rows_are_tokens(
    args: tuple[Any, ...], kwargs: dict[str, Any], samples: int, tokens: int | None
) -> None:
    result = batch_shape(args, kwargs)
    assert result is not None
    assert (result.samples, result.tokens) == (samples, tokens)


@pytest.mark.parametrize("args", [(), (3, "words"), (torch.tensor(1.0),), (pack_sequence([torch.zeros(2, 4)]),)])
def test_arguments_without_a_clear_batch_have_no_shape(args: tuple[Any, ...]) -> None:
    assert batch_shape(args, {}) is None


def test_batches_are_of_one_key_when_all_shapes_are_the_same() -> None:
    labels = torch.zeros(3, 9)
    assert shape_key((TOKENS,), {}) == shape_key((TOKENS + 1,), {})
    assert shape_key((TOKENS,), {"labels": labels}) == shape_key((TOKENS, labels), {})
    assert shape_key((TOKENS,), {"labels": labels}) != shape_key((TOKENS,), {"labels": labels[:, 1:]})
