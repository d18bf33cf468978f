"""Knows how many processes each train the same model on a batch of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.module_names import WRAPPERS


def data_parallel_size(root: Module) -> int:
    """The processes that the outermost wrapper of a model shares its gradients with; 1 where none is known to.

    DDP and FSDP say with whom. A script that averages gradients by itself is taken for one process.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    module: Any = root
    while module is not None:
        if isinstance(module, DistributedDataParallel) or type(module).__name__ == "FullyShardedDataParallel":
            return int(module.process_group.size())
        parameter = next(Module.parameters(module), None)
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            return int(mesh.size())
        module = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
    return 1
