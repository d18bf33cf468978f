"""Say once that a training is not recorded because no hook sees its steps.

At 200 backward passes, at the end of the script's MLflow run, or of the process, whichever comes first. Not for a
process that made no graph, whose steps were seen, that computed no gradients, or that an error has ended.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

import torch

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.torch_hooks import BACKWARDS_WITHOUT_STEP, Counts
from mlflow_stability.tracking.in_process import RunEndWatch

FEWEST_BACKWARDS = 2  # a single backward pass may be a picture of gradients, or a training that has just begun
WARM_UP = 16  # most steps before a whole step is captured in a CUDA graph; torch's manual says 3
FEWEST_NODES = 1000  # graph nodes that are a sign of training where gradients were computed without a backward pass
GRAPHS = (
    "not recorded where they train: what a CUDA graph computes runs no hooks. Capture the forward and backward pass "
    "alone and call optimizer.step() after the replay, or use `with mlflow_stability.attach(model, optimizer) as "
    "session: ... session.step(loss)`."
)
STEP_MISSING = "Does the script call step() of its optimizer? "
OWN_OPTIMIZER = (
    "An optimizer of your own that is not a torch.optim.Optimizer, and torch.func, run no hooks. Use `with "
    "mlflow_stability.attach(model, optimizer) as session: ... session.step(loss)`."
)


class UnseenTraining:
    def __init__(
        self,
        warn: Callable[[str], None],
        signs_seen: Callable[[], None] = lambda: None,
        failed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`signs_seen`: runs at the first signs of a training; `failed`: whether an error ends the process."""
        self.counts = Counts()
        self._warn = warn
        self._signs_seen = signs_seen
        self._failed = failed
        self._said = self._installed = False
        self._recorded = False  # any step was recorded: later gradients may not be those of a training
        self._pid = os.getpid()
        self._nodes = torch_api.get_sequence_nr()
        self._gradients = 0  # number of gradient computations in this process at the last count
        self._run_end = RunEndWatch(self._run_ends)

    def install(self) -> None:
        if not self._installed:
            self._installed = True
            atexit.register(self.process_ends)

    def remove(self) -> None:
        """End watching, and report what was not seen."""
        if self._installed:
            self._installed = False
            atexit.unregister(self.process_ends)
            self._say_at_end()
            self._run_end.remove()
            self._restart()

    def look(self) -> None:
        """Runs at the first signs of a training, and when a step is overdue after many backward passes."""
        self._run_end.install()
        self._signs_seen()
        if self.counts.backwards >= BACKWARDS_WITHOUT_STEP:
            self._say(f"autolog() saw {self.counts.backwards} backward passes")
        # Captured in a CUDA graph after a few warm-up steps, a training has no further steps to be seen.
        counts = self.counts
        trains = counts.optimizers or counts.backwards or counts.steps
        if counts.replays >= BACKWARDS_WITHOUT_STEP and trains and counts.steps <= WARM_UP and not self._said:
            self._said = True
            since = f"since step {counts.steps} " if counts.steps else ""
            self._warn(f"autolog() saw {counts.replays} replays of CUDA graphs {since}and no optimizer step: {GRAPHS}")

    def recorded_by_hand(self) -> None:
        self._said = self._recorded = True

    def process_ends(self) -> None:
        if os.getpid() == self._pid:
            self._say_at_end()

    def _run_ends(self) -> None:
        self._say_at_end()
        self._restart()

    def _restart(self) -> None:
        self._recorded = self._recorded or self.counts.steps > 0
        self.counts.clear()
        self._nodes, self._said = torch_api.get_sequence_nr(), False

    def _say_at_end(self) -> None:
        if sys.exc_info()[1] is None and getattr(sys, "last_value", None) is None and not self._failed():
            self._say(self._signs())

    def _say(self, signs: str) -> None:
        if signs and not self._said and not self.counts.steps:
            self._said = True
            missing = STEP_MISSING if self.counts.optimizers else ""
            self._warn(f"{signs} and no optimizer step, so nothing is recorded. {missing}{OWN_OPTIMIZER}")

    def _signs(self) -> str:
        """Return the signs of a training; empty where there are too few."""
        counts, nodes = self.counts, torch_api.get_sequence_nr() - self._nodes
        if counts.backwards >= FEWEST_BACKWARDS and not self._recorded:
            return f"autolog() saw {counts.backwards} backward passes"
        if counts.optimizers and torch_api.has_compiled():
            return "autolog() saw a new optimizer, compiled code"
        if nodes < FEWEST_NODES or self._recorded:
            return ""
        before, self._gradients = self._gradients, _gradients_computed()
        return "autolog() saw forward passes with gradients" if self._gradients - before > FEWEST_BACKWARDS else ""


def _gradients_computed() -> int:
    """Return how often autograd has computed gradients in this process; 0 where torch does not tell.

    The number of a computation is known only inside one: here that of a scalar.
    """
    computations: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones((), device="cpu", requires_grad=True)
        product = leaf * 1
        product.register_hook(  # type: ignore[no-untyped-call]
            lambda _: computations.append(torch_api.current_graph_task_id())
        )
        torch.autograd.grad(product, leaf)
    return computations[0] + 1 if computations else 0
