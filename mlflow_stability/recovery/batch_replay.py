"""Runs the batch that broke through the model once more, to tell data and numerics from hardware.

In: a captured batch. Out: whether the forward pass is finite this time, which module was the first whose output is
not, and what that says. Promised: no gradient, parameter, buffer or random number of the training is touched: buffers
are cloned, random numbers are those of the first time and are put back after, and so are plain attributes of modules.
Hooks of the script run once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.replay import random_numbers_kept, run_again, unwrapped
from mlflow_stability.recovery.batch_capture import CapturedBatch, named_tensors


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of the second time."""

    conclusion: Literal["data or numerics", "weights", "hardware", "after the model", "cannot tell"]
    message: str
    """The conclusion in one sentence."""
    finite: bool | None
    """Whether all that came out of the model is finite this time; None: it could not be run."""
    first_broken: str = ""
    """The first module whose output is not finite this time."""


def replay_batch(batch: CapturedBatch) -> Replay:
    """Run the forward pass of a captured batch again. Weights should be those from before the broken step."""
    root = batch.root()
    if root is None or batch.was_changed:
        why = "the model is gone" if root is None else "the script changed it in place since"
        return Replay("cannot tell", f"The batch was not run again: {why}.", None)
    model = unwrapped(root)
    broken_weight = next((name for name, each in model.named_parameters() if not _finite(each)), None)
    if broken_weight is not None:
        return Replay("weights", f"The weights were broken already: {broken_weight} is not finite.", None)
    broken_input = next((name for name, each in named_tensors(batch.args, batch.kwargs) if not _finite(each)), None)
    with _first_dice(batch), _first_broken(model) as found:
        outputs = _run(model, batch)
    finite = all(map(_sound, outputs))
    was_finite = all(map(_sound, batch.outputs))
    if not finite:
        where = f"from {found[0]} on" if found else "in its output"
        what = f"Its input {broken_input} is not finite." if broken_input else "Its inputs are finite."
        message = f"The same batch is not finite again, {where}. {what}"
        return Replay("data or numerics", message, False, found[0] if found else "")
    if not was_finite:
        message = "The same batch with the same random numbers is finite this time: look at the hardware first."
        return Replay("hardware", message, True)
    if batch.all_outputs:
        message = (
            "The model's output was finite both times: look at the labels, the loss function and the backward pass."
        )
        return Replay("after the model", message, True)
    return Replay("cannot tell", "The output is finite now; what it was the first time was not kept.", True)


def _run(model: Module, batch: CapturedBatch) -> list[Tensor]:
    outputs = run_again(model, batch.args, batch.kwargs, batch.device.type, batch.autocast)
    return [each for _, each in named_tensors(outputs)]


@contextlib.contextmanager
def _first_dice(batch: CapturedBatch) -> Iterator[None]:
    """The random numbers of the first time inside, those of now after it."""
    host, device = batch.random
    with random_numbers_kept([batch.device]):
        torch.set_rng_state(host)
        if device is not None:
            torch.get_device_module(batch.device).set_rng_state(device, batch.device)
        yield


@contextlib.contextmanager
def _first_broken(model: Module) -> Iterator[list[str]]:
    """The names of the modules whose outputs are not finite, in the order in which they end."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def after(_module: Module, _args: Any, outputs: Any) -> None:
            if not found and not all(_sound(each) for _, each in named_tensors(outputs)):
                found.append(name)

        return after

    handles = [each.register_forward_hook(watch(name)) for name, each in model.named_modules() if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() and not tensor.is_complex():
        return True
    with torch.no_grad():
        return bool(torch.isfinite(tensor.detach()).all())


def _sound(output: Tensor) -> bool:
    """Whether an output can be meant: scores that are ruled out by minus infinity can, a loss of it cannot."""
    if output.numel() == 1 or not output.is_floating_point():
        return _finite(output)
    with torch.no_grad():
        return not bool((output.isnan() | output.isposinf()).any())
