"""Gives every tensor of a training a name that holds in the next process too.

In: the parts of a training. Out: the parameters and buffers of its models, averaged copies and optimizers, by name.
Guarantees: a tensor has one name, however often it is tied; names do not depend on wrappers (DDP, ``torch.compile``,
FSDP, activation checkpoints), nor on the order of parameter groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from mlflow_stability.probes.objects import plain_name
from mlflow_stability.recovery.state.training_parts import TrainingParts


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A parameter or buffer under its name."""

    name: str
    tensor: Tensor
    is_buffer: bool = False
    is_cache: bool = False
    """A buffer that is not part of the model's own ``state_dict``: masks, tables of positions."""
    is_average: bool = False
    """It belongs to an averaged copy."""

    @property
    def is_trained(self) -> bool:
        """Whether it is a parameter that is not frozen."""
        return not self.is_buffer and self.tensor.requires_grad


def named_tensors(parts: TrainingParts) -> list[NamedTensor]:
    """Every parameter and buffer of the training, each once."""
    found: dict[int, NamedTensor] = {}
    for averaged, models in ((False, parts.models), (True, parts.averaged)):
        for number, model in enumerate(models):
            before = f"average_{number}/" if averaged else "" if len(models) == 1 else f"model_{number}/"
            for each in tensors_of_model(model):
                named = dataclasses.replace(each, name=before + each.name, is_average=averaged)
                found.setdefault(id(each.tensor), named)
    for number, optimizer in enumerate(parts.optimizers):
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        for position, parameter in enumerate(parameters):
            name = f"optimizer_{number}/parameter_{position}"
            found.setdefault(id(parameter), NamedTensor(name, parameter))
    return list(found.values())


def tensors_of_model(model: Module) -> list[NamedTensor]:
    """The parameters and buffers of one model under plain names; under their own where two would be called alike."""
    raw = [each for each in _raw_tensors(model) if not is_lazy(each.tensor)]
    plain = [plain_name(each.name) for each in raw]
    if len(set(plain)) < len(plain):
        return raw
    return [dataclasses.replace(each, name=name) for name, each in zip(plain, raw, strict=True)]


def _raw_tensors(model: Module) -> Iterator[NamedTensor]:
    for name, parameter in Module.named_parameters(model):
        yield NamedTensor(name, parameter)
    seen: set[int] = set()
    for path, module in Module.named_modules(model):
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                full = f"{path}.{name}" if path else name
                yield NamedTensor(full, buffer, True, name in module._non_persistent_buffers_set)
