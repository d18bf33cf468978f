from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts
from mlflow_stability.recovery.nan_origin.batch_capture import facts_of_tensor
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin, Source
from mlflow_stability.recovery.nan_origin.origin_checks import loss_operations, origin_event, overflowed, suspects
from mlflow_stability.vocabulary.result import Action, Remedy

SMALL, ZERO = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.0, 0.0])
HUGE, HALF = torch.tensor([-3e38, 1.0, 2e38]), torch.tensor([-300.0, 1.0, 4e4]).half()


def born(name: str, do: Callable[..., Tensor], *given: Tensor, source: Source = "forward") -> NanOrigin:
    """The birth in a real operation."""
    output = facts_of_tensor("output", do(*given))
    assert output.nan + output.inf
    return NanOrigin(
        source, operation=name, inputs=tuple(facts_of_tensor("input", item) for item in given), output=output
    )


@pytest.mark.parametrize(
    ("name", "do", "given"),
    [
        ("log", torch.log, (SMALL,)),
        ("log", torch.log, (-HUGE,)),
        ("log1p", torch.log1p, (-SMALL,)),
        ("div", torch.div, (SMALL + 1, SMALL)),
        ("div", torch.div, (HUGE, SMALL)),
        ("div", torch.div, (ZERO, ZERO)),
        ("reciprocal", torch.reciprocal, (SMALL,)),
        ("rsqrt", torch.rsqrt, (SMALL,)),
        ("pow", lambda x: x**-0.5, (SMALL,)),
        ("pow", lambda x: x**-1, (SMALL.half(),)),
        ("atanh", torch.atanh, (SMALL / 2,)),
        ("logit", torch.logit, (SMALL / 2,)),
        ("sqrt", torch.sqrt, (-SMALL,)),
        ("softmax", lambda x: x.softmax(-1), (torch.full((2, 3), -math.inf),)),
        ("softmax", lambda x: x.softmax(-1), (torch.full((2, 3), -math.inf).half(),)),
    ],
)
def test_where_an_operation_is_not_defined_nothing_overflowed(
    name: str, do: Callable[..., Tensor], given: tuple[Tensor, ...]
) -> None:
    origin = born(name, do, *given)
    assert not overflowed(origin)
    event = origin_event(7, origin, "head")
    assert isinstance(event.facts, NanOriginFacts)
    assert (event.facts.overflowed, event.facts.operations) == (False, (name,))
    assert "the largest" not in event.message
    assert not any("bf16" in str(remedy) for remedy in event.remedies)


@pytest.mark.parametrize(
    ("name", "do", "given", "limit"),
    [
        ("mul", torch.mul, (HUGE, HUGE), "the largest float32 is 3.4e38"),
        ("mul", torch.mul, (HALF, HALF), "the largest float16 is 65504"),
        ("sum", torch.sum, (HALF.expand(8, 3),), "the largest float16 is 65504"),
        ("to_copy", torch.Tensor.half, (torch.tensor([1.0, 1e6]),), "the largest float16 is 65504"),
        ("exp", torch.exp, (SMALL * 50,), "the largest float32 is 3.4e38"),
        ("pow", lambda x: x**2, (HUGE,), "the largest float32 is 3.4e38"),
        ("div", torch.div, (HUGE, SMALL + 1e-4), "the largest float32 is 3.4e38"),
        ("linalg_vector_norm", torch.linalg.vector_norm, (HUGE,), "the largest float32 is 3.4e38"),
        (
            "matmul",
            torch.matmul,
            (torch.stack([HUGE, -HUGE]), torch.stack([HUGE, HUGE], 1)),
            "the largest float32 is 3.4e38",
        ),
    ],
)
def test_where_large_numbers_exceed_what_the_type_can_hold_it_is_an_overflow(
    name: str, do: Callable[..., Tensor], given: tuple[Tensor, ...], limit: str
) -> None:
    origin = born(name, do, *given)
    assert overflowed(origin)
    assert origin_event(7, origin, "head").message.endswith(f"; {limit}.")


@pytest.mark.parametrize(
    ("name", "do", "given", "expected"),
    [
        ("log", torch.log, (SMALL,), "Keep the input of the logarithm above zero"),
        ("sqrt", torch.sqrt, (-SMALL,), "Keep the input of the root above zero"),
        ("div", torch.div, (ZERO, ZERO), "Keep the divisor away from zero"),
        ("exp", torch.exp, (SMALL * 50,), "Subtract the maximum before the exponential"),
        ("softmax", lambda x: x.softmax(-1), (torch.full((2, 3), -math.inf),), "Do not mask a whole row"),
        ("to_copy", torch.Tensor.half, (torch.tensor([1.0, 1e6]),), "Train in bf16 instead of fp16."),
        ("mul", torch.mul, (HUGE, HUGE), "Normalise or scale down the inputs of this operation"),
        ("lgamma", torch.lgamma, (ZERO,), "Keep the inputs of this operation in its valid range"),
    ],
)
def test_the_advice_depends_on_the_operation(
    name: str, do: Callable[..., Tensor], given: tuple[Tensor, ...], expected: str
) -> None:
    assert str(origin_event(7, born(name, do, *given), "head").remedies[0]).startswith(expected)


def test_gradients_that_overflow_in_half_precision_ask_for_a_lower_loss_scale() -> None:
    origin = born("mm", torch.mul, HALF, HALF, source="backward")
    assert origin_event(7, origin, "head").remedies == (
        Remedy(Action.LOWER_LOSS_SCALE),
        Remedy(Action.TRAIN_IN_BF16),
    )


def test_of_a_loss_function_each_operation_that_can_do_it_is_named() -> None:
    event = origin_event(7, NanOrigin("loss", operation="log, div", name="loss"), "")
    assert isinstance(event.facts, NanOriginFacts)
    assert event.facts.operations == ("log", "div")
    assert [remedy.action for remedy in event.remedies] == [
        Action.KEEP_LOGARITHM_ABOVE_ZERO,
        Action.USE_LOG_SOFTMAX,
        Action.KEEP_DIVISOR_FROM_ZERO,
    ]


def suspects_of(do: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
    output = torch.ones(3, requires_grad=True) * 2
    node = output.grad_fn
    assert node is not None
    return suspects(loss_operations(do(output).grad_fn, [(node.name(), node._sequence_nr())]))


def test_a_square_does_not_break_a_loss_and_a_root_may() -> None:
    assert suspects_of(lambda output: ((output - 1) ** 2 / torch.zeros(3)).mean()) == ("div",)
    assert suspects_of(lambda output: ((output - 1) ** 0.5).mean()) == ("pow",)
    assert suspects_of(lambda output: ((output - 1) ** -2).mean()) == ("pow",)


def test_what_only_large_numbers_break_is_named_last() -> None:
    assert suspects_of(lambda output: (1 - torch.exp(-output)).log().mean()) == ("log", "exp")


def test_a_quotient_with_a_clamped_divisor_does_not_break_a_loss() -> None:
    assert suspects_of(lambda output: functional.normalize(output, dim=0).acos().mean()) == (
        "acos",
        "linalg_vector_norm",
    )
    assert suspects_of(lambda output: (output / output.sum().clamp(min=1e-6)).sqrt().mean()) == ("sqrt",)
    assert suspects_of(lambda output: (output / output.sum().clamp(min=0.0)).sqrt().mean()) == ("div", "sqrt")
    assert suspects_of(lambda output: (output / output.sum()).sqrt().mean()) == ("div", "sqrt")
