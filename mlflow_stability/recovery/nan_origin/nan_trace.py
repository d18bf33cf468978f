"""Find the operation that made the first non-finite value, in a second run of a broken step.

Guarantees: no operation is changed, and tensors it writes to are saved first. Every result is read from the device, so
this is only for reruns.

An infinity alone is no error: masks are made of it. So each non-finite tensor carries its origin with it. A NaN made of
intended infinities originates in that operation; one made of infinities from an overflow originates in the overflow.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from mlflow_stability.kinds.reported.broken_steps import TensorFacts
from mlflow_stability.probes.forward.forward_rerun import WrittenTensors, storage_of
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.recovery.nan_origin.batch_capture import facts_of_tensor, tensors_in
from mlflow_stability.recovery.state.host_copy import is_finite


class ModulePath:
    """The modules that are running, innermost last."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @property
    def name(self) -> str:
        """Name of the innermost one; empty: the model itself."""
        return self._names[-1] if self._names else ""

    @contextmanager
    def of(self, model: Module) -> Iterator[None]:
        handles: list[RemovableHandle] = []
        try:
            for name, module in Module.named_modules(model):
                if name:
                    handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
                    handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._names.clear()

    def _enter(self, name: str, _module: Module, _args: Any) -> None:
        self._names.append(name)

    def _leave(self, _module: Module, _args: Any, _outputs: Any) -> None:
        if self._names:
            self._names.pop()


_HERE = str(Path(__file__).absolute().parents[2]) + os.sep
_TORCH = str(Path(torch.__file__).absolute().parent) + os.sep
_LIBRARY = str(Path(os.__file__).absolute().parent) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def user_line(outermost: CodeType | None = None) -> str:
    """Return the user's innermost line, such as ``model.py:41 in Block.forward``; empty without one.

    Frames of torch, of Python's library and of this package are skipped, and those outside of `outermost`.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        file = frame.f_code.co_filename
        if file.startswith(_HERE):
            is_users = file.startswith(_HERE + "demo" + os.sep)  # the demo's model counts as user code
        else:
            is_library = file.startswith(_LIBRARY) and _PACKAGES not in file
            is_users = not is_library and not file.startswith((_TORCH, "<"))
        if is_users:
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # Python 3.10 knows no qualified name
            return f"{Path(file).name}:{frame.f_lineno} in {name.replace('<locals>.', '')}"
        frame = frame.f_back
    return ""


Source: TypeAlias = Literal["input", "weight", "buffer", "optimizer", "forward", "backward", "loss", "elsewhere"]


@dataclass(frozen=True, slots=True)
class NanOrigin:
    source: Source
    module: str = ""  # innermost running module, or owner of the weight; empty: the model itself
    operation: str = ""  # such as ``log``; in the backward pass, the operation whose gradient it is
    line: str = ""  # the user's line: ``model.py:41 in Block.forward``
    name: str = ""  # name of the input, weight or buffer
    inputs: tuple[TensorFacts, ...] = ()
    output: TensorFacts | None = None
    meant: bool = False  # an intended infinity, as in masks
    nan_by: str = ""  # the later operation that turned an infinity into NaN
    number: int = 0  # its number in order of appearance

    @property
    def is_nan(self) -> bool:
        return bool(self.nan_by) or (self.output is not None and self.output.nan > 0)


UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"})
"""Results of these are arbitrary until written to."""
MOST_INPUTS = 4  # inputs of an operation that are described


class NanTrace(torch_api.TorchDispatchMode):  # type: ignore[misc]
    supports_higher_order_operators = True

    def __init__(self, path: ModulePath, written: WrittenTensors) -> None:
        super().__init__()
        self._path = path
        self._written = written
        self._bad: dict[int, NanOrigin] = {}
        """By storage; a storage that is reused is written to by an operation that we see."""
        self._places: dict[int, tuple[str, str]] = {}
        """Module and line of an operation in the forward pass, by sequence number of the autograd node that it made."""
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled meanwhile, and loading the compiler takes seconds."""
        return False

    def register(self, origins: Sequence[tuple[Tensor, NanOrigin]]) -> None:
        for tensor, origin in origins:
            key = storage_of(tensor)
            if key is not None:
                self._bad[key] = origin

    def origin_of(self, tensor: Tensor) -> NanOrigin | None:
        """Return the origin of this tensor's non-finite values, if known."""
        key = storage_of(tensor)
        return None if key is None else self._bad.get(key)

    def run(self, call: Callable[[], Any]) -> Any:
        with self:
            return call()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in(args, kwargs)
        before = _facts(inputs) if _writes(func) else None  # described before the operation overwrites them
        node = torch_api.current_autograd_node()
        number = torch_api.get_sequence_nr() - 1  # of the newest autograd node
        if number not in self._places:
            self._places[number] = self._path.name, user_line(NanTrace.run.__code__)
        result = self._written.run(func, args, kwargs)
        name = func.__name__.partition(".")[0]
        if name in UNWRITTEN:
            return result
        input_storages = {key for tensor in inputs if (key := storage_of(tensor)) is not None}
        for output in tensors_in(result):
            key = storage_of(output)
            if key is None or not has_numbers(output):
                continue
            if is_finite(output):
                if key not in input_storages or _is_whole(output):
                    self._bad.pop(key, None)
            else:
                self._bad[key] = self._origin(name, inputs, before, output, node, (args, kwargs))
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
        """Return the origin of this output: this operation, or that of a non-finite input."""
        floating = [tensor for tensor in inputs if has_numbers(tensor)]
        if before is None:  # after the first NaN nearly everything is NaN: no need to inspect it
            for tensor in floating:
                earlier = self.origin_of(tensor)
                if earlier is not None and earlier.is_nan and not earlier.meant and not is_finite(tensor):
                    return earlier
        facts = facts_of_tensor("output", output)
        entered = _facts(inputs) if before is None else before
        module, line = self._path.name, user_line(NanTrace.run.__code__)
        if node is not None:  # in the backward pass: those of the forward operation
            module, forward_line = self._places.get(node._sequence_nr(), ("", ""))
            line = line or forward_line  # a user-defined backward has a line of its own
        here = NanOrigin(
            source="forward" if node is None else "backward",
            module=module,
            operation=word_of(name if node is None else node.name()),
            line=line,
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
            if made_nan and origin.output is not None and not origin.is_nan:
                return replace(origin, nan_by=here.operation)
            return origin
        if parents and not made_nan:
            return parents[0][1]
        self._count += 1
        numbers = [value for value in (*called_with[0], *called_with[1].values()) if isinstance(value, float)]
        meant = not facts.nan and (not floating or any(map(math.isinf, numbers)))
        return replace(here, meant=meant, number=self._count)


def word_of(name: str) -> str:
    """Return the plain name of an operation or autograd node: ``log`` for ``LogBackward0``."""
    node = re.fullmatch(r"(\w+?)Backward(\d*)", name.rpartition(":")[2])
    if node is not None and not node[2]:
        return node[1]  # a user-defined function is named after its class
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower() if node is not None else name
    return word.strip("_").removeprefix("native_")


def _facts(tensors: Sequence[Tensor]) -> tuple[TensorFacts, ...]:
    return tuple([facts_of_tensor("input", tensor) for tensor in tensors if has_numbers(tensor)])


def _saved(node: Any) -> tuple[TensorFacts, ...]:
    facts: list[TensorFacts] = []
    for name in dir(node) if node is not None else ():
        if name.startswith("_saved_") and name != "_saved_tensors":
            try:
                value = getattr(node, name)
            except RuntimeError:  # already freed
                continue
            if isinstance(value, Tensor) and has_numbers(value):
                facts.append(facts_of_tensor(name.removeprefix("_saved_"), value))
    return tuple(facts)


def has_numbers(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0 and storage_of(tensor) is not None


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()


def _writes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
