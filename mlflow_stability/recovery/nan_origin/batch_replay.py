"""Run the batch of a broken step again, to tell data and numerics from hardware.

Guarantees: weights and buffers have stand-ins; random numbers are those of the first run and restored afterwards, as is
all state that the model and its hooks lead to; where that cannot be restored, nothing is run. Limited in time. Hardware
is blamed only where this run changed no state, as a model that keeps state between calls does.
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

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import raised_by_script
from mlflow_stability.probes.module_names import unwrapped
from mlflow_stability.probes.rerun.forward_rerun import kept, mode_of_script, random_numbers_kept
from mlflow_stability.probes.rerun.writable_state import WritableState
from mlflow_stability.probes.rerun.written_tensors import MAX_SECONDS, NotRunAgain, WrittenTensors
from mlflow_stability.recovery.nan_origin.batch_capture import CapturedBatch, CapturedLoss
from mlflow_stability.recovery.nan_origin.batch_rerun import Replay, Rerun, may_be_intended, mute_observers
from mlflow_stability.recovery.nan_origin.nan_trace import is_finite

MOST_REPLAYS = 4
"""Limit of passes run again where none is known to have broken."""
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
    """Run the pass of a step again that broke; if unknown, the last ones until one breaks, for at most `seconds`."""
    until = time.perf_counter() + seconds
    shown = next((batch for batch in passes if _is_known_broken(batch)), None)
    tried = [shown] if shown is not None else list(reversed(passes))[:MOST_REPLAYS]
    first: tuple[CapturedBatch, Replay] | None = None
    for batch in tried:
        if first is not None and time.perf_counter() > until:
            break
        replay = replay_batch(batch, loss if batch is passes[-1] else None, optimizers, until - time.perf_counter())
        if replay.origin is not None:
            return batch, replay
        first = first or (batch, replay)
    if first is None:
        raise ValueError("replay_step needs at least one forward pass, got none.")
    return first


def replay_batch(
    batch: CapturedBatch,
    loss: CapturedLoss | None = None,
    optimizers: Sequence[Optimizer] = (),
    seconds: float = MAX_SECONDS,
) -> Replay:
    """Run one pass again; the weights should be those from before the broken step.

    `loss`: what backward was called on. `optimizers`: those that may have written into the weights.
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
        with _as_it_was(batch, model), mute_observers(model), kept(state, written):
            states = _random_states()
            replay = Rerun(model, batch, loss, optimizers, written).replay()
            drawn = states != _random_states()
    except NotRunAgain as given_up:
        return _not_run(str(given_up))
    except Exception as error:  # raised by the script's own code, or out of memory
        script_error = raised_by_script(error, before)
        if script_error is not None:
            raise script_error from None
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return Replay("cannot tell", f"The batch could not be run again ({why}).", None)
    if replay.conclusion != "hardware":
        return replay
    # A compiled function in it may not be known yet.
    eager = NOT_COMPILED if compiled(root) != "no" or torch_api.has_compiled() else ""
    doubt = MOVED_ON if drawn or written.moved else eager
    if not doubt:
        return replay
    message = f"The same batch with the same random numbers is finite this time, {doubt}."
    return replace(replay, conclusion="cannot tell", message=message)


def _not_run(why: str) -> Replay:
    return Replay("cannot tell", f"The batch was not run again: {why}.", None)


def _random_states() -> tuple[Any, ...]:
    """Return the state of Python's and numpy's shared generators; that of the first run is unknown."""
    numpy: Any = sys.modules.get("numpy.random")
    state = () if numpy is None else numpy.get_state()
    return random.getstate(), *(part.tobytes() if hasattr(part, "tobytes") else part for part in state)


@contextlib.contextmanager
def _as_it_was(batch: CapturedBatch, model: Module) -> Iterator[None]:
    """Inside, random numbers are those of the first run; no compiler, no warnings."""
    host, device = batch.random
    devices = [batch.device, *(tensor.device for tensor in (*Module.parameters(model), *Module.buffers(model)))]
    with warnings.catch_warnings(), random_numbers_kept(devices), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")  # they were shown in the first run
        if torch_api.is_dynamo_loaded():
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.set_rng_state(host)
        if device is not None:
            torch.get_device_module(batch.device).set_rng_state(device, batch.device)
        yield


def _is_known_broken(batch: CapturedBatch) -> bool:
    """Whether a pass is known to have broken, without running it again."""
    if not all(may_be_intended(output) for output in batch.outputs if output is not None):
        return True
    return not all(is_finite(gradient) for several in batch.gradients.values() for gradient in several)
