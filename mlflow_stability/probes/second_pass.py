"""Runs the forward pass of a compiled model once more without the compiler, for those who want to look into it.

In: a model and what it is about to be called with. Out: the model inside, and a call that runs it. Promised: nothing of
the training changes by it and nothing is compiled again: random numbers, buffers, plain attributes and the inputs are
those from before; hooks of the script do not run. Where that cannot be promised nothing is run, and `reason` says why.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map

from mlflow_stability.probes.replay import hooks_muted, random_numbers_kept, run_again, unwrapped
from mlflow_stability.probes.roots import parameters_in

MOST_BYTES = 256 * 2**20
"""Inputs larger than this are not copied, and so not run again."""


class SecondPass:
    """Second passes of the models of one training."""

    def __init__(self) -> None:
        self.reason = ""
        """Why the last one was not run; empty: it was."""

    @contextlib.contextmanager
    def of(
        self, root: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Module | None, Callable[[], Any]]]:
        """The model inside, None where it cannot be run again; and what runs it."""
        model = unwrapped(root)
        self.reason = _refusal(args, kwargs)
        if self.reason:
            yield None, lambda: None
            return
        parameters = parameters_in(model)
        device = parameters[0].device if parameters else torch.device("cpu")
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

        def run() -> Any:
            copies, named = tree_map(_copied, (args, dict(kwargs)))
            return run_again(model, copies, named, device.type, autocast)

        # What torch says of eager calls is not for the script, and would end one that takes warnings for errors.
        # Compiled code is not thrown away by this: what it was compiled for is again as it was when it runs next.
        with (
            warnings.catch_warnings(),
            random_numbers_kept([device]),
            hooks_muted(model),
            torch.compiler.set_stance("force_eager"),
        ):
            warnings.simplefilter("ignore")
            yield model, run


def _refusal(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        return "other processes would have to run it, too"
    sizes: list[int] = []
    tree_map(lambda each: sizes.append(each.nbytes) if isinstance(each, Tensor) else None, (args, dict(kwargs)))
    if sum(sizes) > MOST_BYTES:
        return f"its inputs have {sum(sizes):,} bytes"
    return ""


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
