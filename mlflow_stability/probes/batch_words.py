"""Says what a batch looks like, without keeping any of it.

In: the arguments of a model's forward pass. Out: a few words, of types and shapes alone: ``int64[8, 128], int64[8]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from mlflow_stability.probes.batch_shape import tensors_in

MOST_TENSORS = 8


def batch_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Types and shapes of the tensors, in their order; of many only the first."""
    tensors = list(islice(tensors_in(args, kwargs), MOST_TENSORS + 1))
    words = [_word(each) for each in tensors[:MOST_TENSORS]]
    return ", ".join([*words, "…"] if len(tensors) > MOST_TENSORS else words)


def _word(tensor: Tensor) -> str:
    # The lengths in a nested tensor differ from row to row, and are asked of it in another way.
    shape = f"{tensor.size(0)} rows" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"
