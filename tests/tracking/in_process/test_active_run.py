"""The run of a Lightning trainer is found from within its training, and what the training holds is let go."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable

import lightning.pytorch  # noqa: F401 - without it no trainer is looked for
import pytest

from mlflow_stability.tracking.in_process import RunInProgress, lightning_run


class MLFlowLogger:
    run_id = "0" * 32


class Trainer:
    training = True
    loggers = (MLFlowLogger(),)


Trainer.__module__ = "lightning.pytorch.trainer.trainer"


class Batch:
    pass


def loop(self: object, inside: Callable[[], object]) -> tuple[object, bool]:
    """As loops of frameworks are: what a step is over with is let go before the next one."""
    batch = Batch()
    watched = weakref.ref(batch)
    result = inside()
    del batch
    return result, watched() is None


def within(module: str) -> Callable[[object, Callable[[], object]], tuple[object, bool]]:
    """The loop, as a function of that module."""
    return types.FunctionType(loop.__code__, {"__name__": module, "Batch": Batch, "weakref": weakref})


def test_the_trainer_is_found_by_its_own_methods() -> None:
    result, _ = within("lightning.pytorch.trainer.trainer")(Trainer(), lightning_run)
    assert result == RunInProgress("0" * 32)


@pytest.mark.parametrize("module", ["lightning.pytorch.loops.training_epoch_loop", "lightning.pytorch.core.module"])
def test_objects_of_loops_and_modules_are_released_with_them(module: str) -> None:
    assert within(module)(object(), lightning_run) == (None, True)
