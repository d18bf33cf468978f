"""The state of one optimizer, apart from its hyper-parameters, under the names of its parameters.

In: an optimizer, and the names of its parameters. Out: its state as numbers, tensors and containers of them. Promised:
any optimizer that keeps its state where torch's optimizers do is copied whole, lists and nested containers included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.recovery.value_tree import replaced


@dataclass(frozen=True, slots=True)
class OptimizerCopy:
    """What an optimizer knows, by the names of its parameters."""

    kind: str
    """``AdamW``: the type's name."""
    members: tuple[tuple[str, ...], ...]
    """The parameters of each group."""
    state: dict[str, Any]
    """For each parameter that has one; what is kept under other keys stands under these keys as text."""
    shared: dict[str, Any]
    """State that belongs to no parameter."""
    on_host: dict[str, tuple[str, ...]]
    """For parameters on a device: which entries of their state lie on the host, as step counters do."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state, with a path to it."""
        for name, entry in (*self.state.items(), *self.shared.items()):
            found: list[Tensor] = []
            replaced(entry, found.append)
            for position, tensor in enumerate(found):
                yield f"{name}#{position}", tensor

    def with_tensors(self, copy_of: Callable[[Tensor], Tensor]) -> OptimizerCopy:
        """The same with copies in the place of tensors."""
        return dataclasses.replace(self, state=replaced(self.state, copy_of), shared=replaced(self.shared, copy_of))


def optimizer_state(optimizer: Optimizer, names: Mapping[int, str]) -> OptimizerCopy:
    """The optimizer's state as it lies in the training; `names` are by the identity of parameters."""
    state: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    on_host: dict[str, tuple[str, ...]] = {}
    for key, entry in cast("dict[Any, Any]", optimizer.state).items():
        if not isinstance(key, Tensor):
            if isinstance(key, str):
                shared[key] = entry
            continue
        name = names.get(id(key))
        if name is None:  # a parameter that was taken out of its group: no step will look at its state again
            continue
        state[name] = entry
        if not key.is_cpu and isinstance(entry, dict):
            on_host[name] = tuple(k for k, each in entry.items() if isinstance(each, Tensor) and each.is_cpu)
    return OptimizerCopy(
        kind=type(optimizer).__name__,
        members=tuple(tuple(names[id(each)] for each in group["params"]) for group in optimizer.param_groups),
        state=state,
        shared=shared,
        on_host=on_host,
    )


def groups_of(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    """The hyper-parameters of each group."""
    return tuple({key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups)
