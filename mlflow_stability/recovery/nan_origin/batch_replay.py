"""Runs the batch that broke through the model once more, to tell data and numerics from hardware.

In: a captured batch. Out: whether it breaks again, and where the first number that is not finite was born: forward
first, and backward where the forward pass is sound. Guarantees: weights and buffers have stand-ins, random numbers are
those of the first time and are put back after, and so is whatever the attributes of the model and of its hooks lead to;
where that cannot be put back, nothing is run. It ends after a time. The hooks run once more. That it was the device is
said only where this run changed nothing, as a model does that keeps state between calls.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.forward import compiled
from mlflow_stability.probes.hooks import raised_by_script, torch_api
from mlflow_stability.probes.objects import unwrapped
from mlflow_stability.probes.rerun import (
    MAX_SECONDS,
    NotRunAgain,
    WritableState,
    WrittenTensors,
    kept,
    mode_of_script,
    random_numbers_kept,
)
from mlflow_stability.recovery.nan_origin.batch_capture import CapturedBatch, CapturedLoss
from mlflow_stability.recovery.nan_origin.batch_rerun import Replay, Rerun, sound
from mlflow_stability.recovery.nan_origin.nan_trace import is_finite
from mlflow_stability.recovery.nan_origin.stand_in_weights import observers_muted

MOST_REPLAYS = 4
"""So many passes of one step are run again at most, where none of them shows by itself that it broke."""
MOVED_ON = (
    "but the model keeps state between calls or draws its own random numbers, which may have differed the first time"
)
NOT_COMPILED = "but it ran uncompiled, whose numbers differ slightly"


def replay_step(
    passes: Sequence[CapturedBatch],
    loss: CapturedLoss | None = None,
    optimizers: Sequence[Optimizer] = (),
    seconds: float = MAX_SECONDS,
) -> tuple[CapturedBatch, Replay]:
    """Run the pass of a step again that broke; where that cannot be seen, the last ones until one breaks.

    There must be a pass. They are given up after so many `seconds`.
    """
    until = time.perf_counter() + seconds
    shown = next((each for each in passes if _shows(each)), None)
    tried = [shown] if shown is not None else list(reversed(passes))[:MOST_REPLAYS]
    first: tuple[CapturedBatch, Replay] | None = None
    for each in tried:
        if first is not None and time.perf_counter() > until:
            break
        found = replay_batch(each, loss if each is passes[-1] else None, optimizers, until - time.perf_counter())
        if found.origin is not None:
            return each, found
        first = first or (each, found)
    if first is None:
        raise ValueError("replay_step needs at least one forward pass, got none.")
    return first


def replay_batch(
    batch: CapturedBatch,
    loss: CapturedLoss | None = None,
    optimizers: Sequence[Optimizer] = (),
    seconds: float = MAX_SECONDS,
) -> Replay:
    """Run the passes of a captured batch again. Weights should be those from before the broken step.

    `loss` is what backward was called on, and `optimizers` those that may have written into the weights.
    """
    root = batch.root()
    if root is None or batch.was_changed:
        return _not_run("the model is gone" if root is None else "the script changed it in place")
    model, before = unwrapped(root), sys.exc_info()[1]
    state = WritableState(model, batch.args, batch.kwargs, with_hooks=True)
    mode = mode_of_script()
    if state.refusal or mode:
        return _not_run(state.refusal or f"{mode} is active and would see it run twice")
    written = WrittenTensors(seconds)
    try:
        with _as_it_was(batch, model), observers_muted(model), kept(state, written):
            states = _random_states()
            found = Rerun(model, batch, loss, optimizers, written).replay()
            drawn = states != _random_states()
    except NotRunAgain as given_up:
        return _not_run(str(given_up))
    except Exception as error:  # the script's own code raised it, or there was no memory
        theirs = raised_by_script(error, before)
        if theirs is not None:
            raise theirs from None
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return Replay("cannot tell", f"The batch could not be run again ({why}).", None)
    if found.conclusion != "hardware":
        return found
    eager = NOT_COMPILED if compiled(root) != "no" else ""
    doubt = MOVED_ON if drawn or written.moved else eager
    return found if not doubt else _other_numbers(found, doubt)


def _not_run(why: str) -> Replay:
    return Replay("cannot tell", f"The batch was not run again: {why}.", None)


def _other_numbers(found: Replay, doubt: str) -> Replay:
    """The same, where it may be that the batch did not meet the same model."""
    message = f"The same batch with the same random numbers is finite this time, {doubt}."
    return replace(found, conclusion="cannot tell", message=message)


def _random_states() -> tuple[Any, ...]:
    """Where the generators stand that Python and numpy share with everybody: the first time's are not known."""
    numpy: Any = sys.modules.get("numpy.random")
    state = () if numpy is None else numpy.get_state()
    return random.getstate(), *(each.tobytes() if hasattr(each, "tobytes") else each for each in state)


@contextlib.contextmanager
def _as_it_was(batch: CapturedBatch, model: Module) -> Iterator[None]:
    """The random numbers of the first time inside, those of now after it; no compiler, and no warnings."""
    host, device = batch.random
    devices = [batch.device, *(each.device for each in (*Module.parameters(model), *Module.buffers(model)))]
    with warnings.catch_warnings(), random_numbers_kept(devices), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")  # they were given the first time
        if torch_api.is_dynamo_loaded():
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.set_rng_state(host)
        if device is not None:
            torch.get_device_module(batch.device).set_rng_state(device, batch.device)
        yield


def _shows(batch: CapturedBatch) -> bool:
    """Whether a pass is seen to have broken, without running it again."""
    if not all(sound(each) for each in batch.outputs if each is not None):
        return True
    return not all(is_finite(each) for several in batch.gradients.values() for each in several)
