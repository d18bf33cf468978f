"""What of this package can be reached from objects of a script."""

from __future__ import annotations

import gc
import types
from collections import deque
from typing import Any

from torch import Tensor

OURS = "mlflow_stability"
MOST_OBJECTS = 300_000


def reachable_from(*roots: Any) -> list[str]:
    """Types of this package's objects that are reachable from these objects.

    The walk does not enter modules, classes, frames, code and the globals of functions: through them everything that is
    imported can be reached. A function is looked at by its defaults, closure and attributes. The graph of gradients
    has no references that Python's collector knows, and is followed by its own.
    """
    lines: list[str] = []
    seen: set[int] = set()
    kept: list[Any] = []  # else an identity could be met twice
    waiting = deque(roots)
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, types.ModuleType | type | types.FrameType | types.CodeType):
            continue
        seen.add(id(value))
        kept.append(value)
        if _is_ours(value):
            lines.append(f"{type(value).__module__}.{type(value).__qualname__}: {value!r:.80}")
            continue
        waiting.extend(_within(value))
    assert len(seen) < MOST_OBJECTS
    return lines


def _is_ours(value: Any) -> bool:
    names = [type(value).__module__]
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinMethodType):
        names.append(str(value.__module__))
    return any(str(name).partition(".")[0] == OURS for name in names)


def _within(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [value.__defaults__, value.__kwdefaults__, vars(value), *cells]
    inside = list(gc.get_referents(value))
    if isinstance(value, Tensor):
        inside += [value.grad_fn, value._backward_hooks]
    inside += [node for node, _ in getattr(value, "next_functions", ())]
    return inside


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
