"""Finds the operation that made the first non-finite value, in a second run of a broken step.

In: the operations of a forward and a backward pass. Out: for a non-finite tensor, the origin of its first non-finite
value. Guarantees: no operation is changed, and tensors it writes to are saved first. Every result is read, so that
this is only for reruns of broken steps.

An infinity alone is not an error: masks are made of it. So each non-finite tensor carries its origin with it. A NaN
made of infinities that were written on purpose originates in that operation; one made of infinities from an overflow
originates in the overflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from mlflow_stability.kinds.reported.nan_origin import TensorFacts
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.rerun import WrittenTensors, storage_of
from mlflow_stability.recovery.nan_origin.batch_facts import facts_of_tensor
from mlflow_stability.recovery.nan_origin.code_location import ModulePath, user_line
from mlflow_stability.recovery.nan_origin.nested_tensors import tensors_in

Source: TypeAlias = Literal["input", "weight", "buffer", "optimizer", "forward", "backward", "loss", "elsewhere"]
"""Where it comes from: it was in the batch, in a weight, in a buffer; the optimizer wrote it into a weight; an
operation of the forward or the backward pass made it; the script's own loss function; a tensor of the script's."""


@dataclass(frozen=True, slots=True)
class NanOrigin:
    """A number that is not finite, where all before it were."""

    source: Source
    module: str = ""
    """The innermost module that was being run; the one that owns the weight. Empty: the model itself."""
    operation: str = ""
    """``log``; in the backward pass that of the forward pass whose gradient it is."""
    line: str = ""
    """The user's own line: ``model.py:41 in Block.forward``."""
    name: str = ""
    """Of the input, the weight or the buffer."""
    inputs: tuple[TensorFacts, ...] = ()
    """What went into the operation."""
    output: TensorFacts | None = None
    """What came out."""
    meant: bool = False
    """An infinity that was written there on purpose, as masks are."""
    nan_by: str = ""
    """Which later operation made a NaN of it, where it was an infinity at first."""
    number: int = 0
    """The how manieth it was."""

    @property
    def is_nan(self) -> bool:
        """Whether it was a NaN at birth, or has become one."""
        return bool(self.nan_by) or (self.output is not None and self.output.nan > 0)

    def turned_nan(self, operation: str) -> NanOrigin:
        """The same, once an operation made a NaN of the infinity."""
        return self if self.nan_by or self.output is None or self.output.nan else replace(self, nan_by=operation)


UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"})
"""What these give is anything, until it is written to."""
MOST_INPUTS = 4
"""So many inputs of an operation are described."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the forward pass an operation was."""

    module: str
    line: str


class NanTrace(torch_api.TorchDispatchMode):  # type: ignore[misc]
    """Follows numbers that are not finite from operation to operation."""

    supports_higher_order_operators = True

    def __init__(self, path: ModulePath, written: WrittenTensors) -> None:
        super().__init__()
        self._path = path
        self._written = written
        self._bad: dict[int, NanOrigin] = {}
        """By storage; a storage that is used anew is written to by an operation that is seen."""
        self._places: dict[int, _Place] = {}
        """By the number of the node in the graph of gradients that the operation made."""
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this is on, and to load the compiler for that would take seconds."""
        return False

    def begins_with(self, origins: Sequence[tuple[Tensor, NanOrigin]]) -> None:
        """These tensors are not finite before anything is run."""
        for tensor, origin in origins:
            key = storage_of(tensor)
            if key is not None:
                self._bad[key] = origin

    def origin_of(self, tensor: Tensor) -> NanOrigin | None:
        """Where the trouble in this tensor was born; None where it is not known."""
        key = storage_of(tensor)
        return None if key is None else self._bad.get(key)

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a part of the replay under this watch."""
        with self:
            return call()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation and look at what comes out."""
        kwargs = kwargs or {}
        inputs = tensors_in(args, kwargs)
        before = _facts(inputs) if _writes(func) else None  # they are not what they were once it is run
        node = torch_api.current_autograd_node()
        self._note_place()
        result = self._written.run(func, args, kwargs)
        name = func.__name__.partition(".")[0]
        if name in UNWRITTEN:
            return result
        known = {key for each in inputs if (key := storage_of(each)) is not None}
        for each in tensors_in(result):
            key = storage_of(each)
            if key is None or not _has_numbers(each):
                continue
            if is_finite(each):
                if key not in known or _is_whole(each):
                    self._bad.pop(key, None)
            else:
                self._bad[key] = self._origin(name, inputs, before, each, node, (args, kwargs))
        return result

    def _origin(
        self,
        name: str,
        inputs: Sequence[Tensor],
        before: tuple[TensorFacts, ...] | None,
        output: Tensor,
        node: Any,
        called_with: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> NanOrigin:
        """What is wrong with this output: born here, or with an input of the operation that was wrong already."""
        floating = [each for each in inputs if _has_numbers(each)]
        if before is None:  # once something is NaN nearly all that follows is: it is not looked at any closer
            for tensor in floating:
                known = self.origin_of(tensor)
                if known is not None and known.is_nan and not known.meant and not is_finite(tensor):
                    return known
        facts = facts_of_tensor("output", output)
        entered = _facts(inputs) if before is None else before
        place = self._place(node)
        here = NanOrigin(
            source="forward" if node is None else "backward",
            module=place.module,
            operation=word_of(name if node is None else node.name()),
            line=place.line,
            inputs=(_saved(node) or entered)[:MOST_INPUTS],
            output=facts,
        )
        parents = [
            (seen, self.origin_of(tensor) or replace(here, source="elsewhere", meant=not seen.nan))
            for tensor, seen in zip(floating, entered, strict=True)
            if seen.nan or seen.inf
        ]
        made_nan = bool(facts.nan) and not any(seen.nan for seen, _ in parents)
        accidents = [origin for _, origin in parents if not origin.meant]
        if accidents:
            origin = next((origin for seen, origin in parents if seen.nan and not origin.meant), accidents[0])
            return origin.turned_nan(here.operation) if made_nan else origin
        if parents and not made_nan:
            return parents[0][1]
        self._count += 1
        return replace(here, meant=not facts.nan and (not floating or _has_infinity(called_with)), number=self._count)

    def _note_place(self) -> None:
        """The operation that runs now belongs to the node that was made last."""
        number = torch_api.get_sequence_nr() - 1
        if number not in self._places:
            self._places[number] = _Place(self._path.name, user_line(NanTrace.run.__code__))

    def _place(self, node: Any) -> _Place:
        """Where the operation is: in the backward pass, that of the forward pass which it is the gradient of."""
        line = user_line(NanTrace.run.__code__)
        if node is None:
            return _Place(self._path.name, line)
        there = self._places.get(node._sequence_nr(), _Place("", ""))
        return _Place(there.module, line or there.line)  # a backward pass that the user has written has a line itself


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers in a tensor are; reads it from its device."""
    with torch.no_grad():
        tensor = tensor.detach() if tensor.element_size() > 1 else tensor.detach().float()
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
        # A sum is finite only where all its terms are; that it is not may be its own overflow.
        return bool(torch.isfinite(tensor.sum(dtype=wide))) or bool(torch.isfinite(tensor).all())


def word_of(name: str) -> str:
    """How an operation, or the node of one in the graph of gradients, is called: ``log`` for ``LogBackward0``."""
    node = re.fullmatch(r"(\w+?)Backward(\d*)", name.rpartition(":")[2])
    if node is not None and not node[2]:
        return node[1]  # a function that the user has written has the name of its class
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower() if node is not None else name
    return word.strip("_").removeprefix("native_")


def _facts(tensors: Sequence[Tensor]) -> tuple[TensorFacts, ...]:
    return tuple([facts_of_tensor("input", each) for each in tensors if _has_numbers(each)])


def _saved(node: Any) -> tuple[TensorFacts, ...]:
    """What a node of the graph of gradients has kept of the forward pass."""
    found: list[TensorFacts] = []
    for name in dir(node) if node is not None else ():
        if name.startswith("_saved_") and name != "_saved_tensors":
            try:
                value = getattr(node, name)
            except RuntimeError:  # it was let go already
                continue
            if isinstance(value, Tensor) and _has_numbers(value):
                found.append(facts_of_tensor(name.removeprefix("_saved_"), value))
    return tuple(found)


def _has_numbers(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0 and storage_of(tensor) is not None


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()


def _writes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _has_infinity(called_with: tuple[Sequence[Any], Mapping[str, Any]]) -> bool:
    args, kwargs = called_with
    return any(isinstance(each, float) and math.isinf(each) for each in (*args, *kwargs.values()))
