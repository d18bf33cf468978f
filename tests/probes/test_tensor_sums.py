"""Many small tensors are measured together, with the same results as each alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlflow_stability.probes.gradient_norm import total_norm
from mlflow_stability.probes.tensor_sums import (
    HALVES,
    MAX_BATCHED_VALUES,
    MIN_BATCHED_TENSORS,
    Kernel,
    largest_of,
    nonzeros_of,
    norms_of,
    scalars,
)

SHAPES = [(8, 8), (8,), (), (1,), (3, 5, 7), (33, 17), (MAX_BATCHED_VALUES,), (MAX_BATCHED_VALUES + 1,), (40, 100)]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def crowd(dtype: torch.dtype, count: int = 3 * MIN_BATCHED_TENSORS) -> list[Tensor]:
    """Tensors of many shapes in turns, one of them alone in its shape, some of them zero and some strided."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(SHAPES[at % len(SHAPES)], generator=generator, dtype=dtype) for at in range(count)]
    tensors.append(torch.randn(11, 13, generator=generator, dtype=dtype))
    tensors[0].zero_()
    tensors[9] = tensors[9].t()
    tensors[18][0] = torch.nan
    tensors[27][0, 0] = torch.inf
    return tensors


@pytest.mark.parametrize("kernel", [norms_of, nonzeros_of, largest_of], ids=lambda letter: letter.__name__)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_crowd_has_to_the_last_bit_the_numbers_of_its_members(kernel: Kernel, dtype: torch.dtype) -> None:
    tensors = crowd(dtype)
    one_by_one = torch.cat([kernel([tensor]) for tensor in tensors])
    assert torch.equal(kernel(tensors).nan_to_num(-1.0), one_by_one.nan_to_num(-1.0))


def test_a_crowd_of_one_shape_is_measured_in_more_than_one_go() -> None:
    tensors = [torch.full((MAX_BATCHED_VALUES,), float(at)) for at in range(300)]
    assert largest_of(tensors).tolist() == list(range(300))


def test_tensors_that_are_not_there_count_as_zero_and_types_may_differ() -> None:
    tensors: list[Tensor | None] = [None, *crowd(torch.float32), None, *crowd(torch.float64), torch.ones(2)]
    row = scalars(tensors, nonzeros_of)
    assert row is not None
    assert row.tolist() == [0 if tensor is None else tensor.count_nonzero().item() for tensor in tensors]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_norm_of_few_values_is_the_norm_of_their_norms_and_half_precision_is_summed_in_single(
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [3e4 * torch.rand(shape, generator=generator).to(dtype) for shape in SHAPES[:6]]
    gradients[5] = gradients[5].t()
    norm = total_norm(gradients)
    assert norm is not None
    assert norm.dtype == (torch.float32 if dtype in HALVES else dtype)
    assert norm.item() == pytest.approx(torch.linalg.vector_norm(norms_of(gradients)).item(), rel=1e-5)
    assert norm.item() > 70_000


def test_a_gradient_that_is_not_finite_or_has_a_graph_is_seen_among_few_values() -> None:
    few = [torch.ones(3), torch.tensor([1.0, torch.nan])]
    norm = total_norm(few)
    assert norm is not None
    assert norm.isnan()
    with_graph = total_norm([torch.ones(3, requires_grad=True), torch.ones(1)])
    assert with_graph is not None
    assert with_graph.item() == 2.0
    assert not with_graph.requires_grad


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_norm_of_many_gradients_is_the_one_that_clipping_computes(dtype: torch.dtype) -> None:
    tensors = [torch.nan_to_num(item, 1.0, 1.0, 1.0) for item in crowd(dtype)] + [torch.empty(0, 3, dtype=dtype)]
    norm = total_norm(tensors)
    assert norm is not None
    whole = [tensor.float() if dtype in HALVES else tensor for tensor in tensors]
    assert torch.equal(norm, torch.nn.utils.get_total_norm(whole))
