from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from mlflow_stability.recovery.skipping.broken_step import broken_flag, takes_found_inf


@pytest.mark.parametrize(
    ("loss", "norm", "largest", "broken"),
    [
        (1.0, 2.0, 3.0, False),
        (1.0, 3.0, 3.0, False),
        (1.0, 4.0, 3.0, True),
        (9.0, 2.0, 3.0, False),
        (1.0, 4.0, None, False),
        (0.0, 2.0, 3.0, False),
        (math.nan, 2.0, 3.0, True),
        (math.inf, 2.0, None, True),
        (1.0, math.inf, None, True),
    ],
)
@pytest.mark.parametrize("as_tensor", [True, False])
def test_a_step_is_broken_by_values_that_are_not_finite_and_by_a_norm_above_the_largest(
    loss: float, norm: float, largest: float | None, broken: bool, as_tensor: bool
) -> None:
    limit: float | Tensor | None = torch.tensor(largest) if as_tensor and largest is not None else largest
    flag = broken_flag([torch.tensor(loss) if as_tensor else loss], torch.tensor(norm), [], limit)
    assert flag is not None
    assert flag.item() == float(broken)


def test_a_loss_that_is_a_number_too_large_for_float32_is_finite() -> None:
    flag = broken_flag([1e39], torch.tensor(2.0), [])
    assert flag is not None
    assert flag.item() == 0.0


def test_without_anything_to_check_there_is_no_flag() -> None:
    assert broken_flag([], None, []) is None


@pytest.mark.parametrize(("momentum", "in_first_step"), [(0.9, False), (0.0, True)])
def test_fused_sgd_reads_the_flag_once_it_has_the_buffers_of_its_momentum(momentum: float, in_first_step: bool) -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=momentum, fused=True)
    model(torch.ones(2, 3)).sum().backward()
    assert takes_found_inf(optimizer) is in_first_step
    optimizer.step()
    assert takes_found_inf(optimizer)


def test_an_optimizer_that_is_not_fused_does_not_read_the_flag() -> None:
    model = nn.Linear(3, 1)
    optimizer = AdamW(model.parameters(), fused=False)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not takes_found_inf(optimizer)


class Borrowed(AdamW):
    """An optimizer of another library that inherits what says that it reads the flag."""


def test_an_optimizer_of_another_library_is_not_trusted_to_read_the_flag() -> None:
    for kind, reads in ((AdamW, True), (Borrowed, False)):
        model = nn.Linear(3, 1)
        optimizer = kind(model.parameters(), fused=True)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert takes_found_inf(optimizer) is reads
