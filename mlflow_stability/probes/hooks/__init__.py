"""Installs and removes everything in torch."""

from __future__ import annotations

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.hook_handles import HookHandles, uncompiled
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.hooks.thread_state import ThreadState, noted, raised_by_script, restore_thread_state

# `torch_hooks` is imported from its own module: it uses all probes, and a resumed script needs none.
__all__ = [
    "MODULE_CALLS",
    "HookHandles",
    "ThreadState",
    "noted",
    "raised_by_script",
    "restore_thread_state",
    "torch_api",
    "uncompiled",
]
