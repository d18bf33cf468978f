"""Runs the batch that broke through the model once more, to tell data and numerics from hardware.

In: a captured batch. Out: whether it breaks again, and where the first number that is not finite was born: forward
first, and backward where the forward pass is sound. Promised: no gradient, parameter, buffer or random number of the
training is touched: weights and buffers have stand-ins, random numbers are those of the first time and are put back
after, and so are plain attributes of modules. Hooks of the script run once more.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import torch
from torch.optim import Optimizer

from mlflow_stability.probes.replay import attributes_kept, random_numbers_kept, unwrapped
from mlflow_stability.recovery.batch_capture import CapturedBatch, LossSeen
from mlflow_stability.recovery.batch_rerun import Replay, Rerun, sound
from mlflow_stability.recovery.nan_trace import is_finite
from mlflow_stability.recovery.shadow import unheard

MOST_REPLAYS = 4
"""So many passes of one step are run again at most, where none of them shows by itself that it broke."""


def replay_step(
    passes: Sequence[CapturedBatch], loss: LossSeen | None = None, optimizers: Sequence[Optimizer] = ()
) -> tuple[CapturedBatch, Replay]:
    """Run the pass of a step again that broke; where that cannot be seen, the last ones until one breaks.

    There must be a pass.
    """
    shown = next((each for each in passes if _shows(each)), None)
    tried = [shown] if shown is not None else list(reversed(passes))[:MOST_REPLAYS]
    first: tuple[CapturedBatch, Replay] | None = None
    for each in tried:
        found = replay_batch(each, loss if each is passes[-1] else None, optimizers)
        if found.birth is not None:
            return each, found
        first = first or (each, found)
    if first is None:
        raise ValueError("replay_step was given no passes.")
    return first


def replay_batch(batch: CapturedBatch, loss: LossSeen | None = None, optimizers: Sequence[Optimizer] = ()) -> Replay:
    """Run the passes of a captured batch again. Weights should be those from before the broken step.

    `loss` is what backward was called on, and `optimizers` those that may have written into the weights.
    """
    root = batch.root()
    if root is None or batch.was_changed:
        why = "the model is gone" if root is None else "the script changed it in place since"
        return Replay("cannot tell", f"The batch was not run again: {why}.", None)
    model = unwrapped(root)
    try:
        with _as_it_was(batch), unheard(model), attributes_kept(model):
            return Rerun(model, batch, loss, optimizers).replay()
    except Exception as error:  # the script's own code raised it, or there was no memory
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return Replay("cannot tell", f"The batch could not be run again ({why}).", None)


@contextlib.contextmanager
def _as_it_was(batch: CapturedBatch) -> Iterator[None]:
    """The random numbers of the first time inside, those of now after it; and no compiler."""
    host, device = batch.random
    with random_numbers_kept([batch.device]), contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
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
