"""Looks into forward passes of a model with forward probes, as a recording does on a probe step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mlflow_stability.probes.probe import ForwardProbe
from mlflow_stability.probes.step.readback import Block

Row = dict[str, float]


class Unguarded:
    """Errors of ours are to be seen."""

    off: Mapping[str, str] = {}

    def __call__(self, _part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        return body

    def contain(self, part: str, failure: BaseException, forget: Callable[[], None] | None = None) -> None:
        raise


unguarded = Unguarded()


def looked_into(probe: ForwardProbe, model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Row]:
    """One forward pass: what came out, and what was measured in it."""
    output, blocks = blocks_of(probe, model, *args, **kwargs)
    return output, row_of(blocks)


def blocks_of(probe: ForwardProbe, model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Sequence[Block]]:
    going = True
    probe.open(model, 10, lambda: going)
    whole = False
    try:
        output = model(*args, **kwargs)
        whole = True
    finally:
        going = whole
        probe.close(whole)
    return output, probe.blocks()


def row_of(blocks: Sequence[Block]) -> Row:
    row: Row = {}
    for block in blocks:
        values = block.values.tolist() if isinstance(block.values, Tensor) else list(block.values)
        named = {str(signal): value for signal, value in zip(block.signals, values, strict=True)}
        assert not named.keys() & row.keys(), "nothing is measured twice"
        row |= named
    return row
