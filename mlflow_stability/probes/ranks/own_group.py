"""Makes process groups of our own, apart from the script's.

In: ranks. Out: a gloo group of them, on the host. Guarantees: a job that torchrun has started again makes it anew:
torchrun may keep the store of the attempt before, and gloo would wait for processes that are gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from mlflow_stability.probes.hooks import torch_api


def attempt() -> str:
    """How often torchrun has started this job again: ranks agree by keys that have it in their names."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def gloo_group(timeout: timedelta, ranks: Sequence[int] | None = None) -> Any:
    """A group of these ranks, none of the others need to come here; or of all ranks, where all must come."""
    with _keys_of_this_attempt():
        return torch.distributed.new_group(
            None if ranks is None else list(ranks),
            backend="gloo",
            timeout=timeout,
            use_local_synchronization=ranks is not None,
        )


@contextmanager
def _keys_of_this_attempt() -> Iterator[None]:
    """Inside it, torch makes groups with keys that no attempt before has written."""
    if attempt() == "0":
        yield
        return
    torch_distributed: Any = torch.distributed  # it does not list this store among what it exports
    known: Any = torch_api.process_groups.pg_map
    world = torch_distributed.group.WORLD
    backend, store = before = known[world]
    known[world] = backend, torch_distributed.PrefixStore(f"mlflow_stability/attempt_{attempt()}", store)
    try:
        yield
    finally:
        known[world] = before
