"""Tells from the first steps on why the loss of a training has no level that measures progress.

In: the user's word, samples of policies, copies of the model, classes of libraries. Out: ``loss_without_level``, once,
when it is known, and again where more is known later. Guarantees: a training without copies and samples is looked at
in its first steps and rarely later; values are compared every 100 steps, only where there is a copy.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import MODULE_CALLS, WatchedCalls
from mlflow_stability.probes.loss_level.policy_samples import POLICY_SAMPLES
from mlflow_stability.probes.loss_level.target_copies import MOST_WATCHED, TargetCopy, target_copies
from mlflow_stability.probes.loss_level.trainer_classes import level_by_classes
from mlflow_stability.probes.objects import Kind, remembered
from mlflow_stability.probes.probe import BaseProbe, ProbeContext, ProbeFactory, StepView, next_multiple
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_said
from mlflow_stability.vocabulary.measured import Signal, SignalType

SIGNALS = (
    SignalType(
        "loss_without_level",
        "why the level of the loss does not measure progress; 1 adversarial training, 2 bootstrapped targets, 3 "
        "self-distillation, 4 policy, 5 preferences, 6 signed; 10 more where `autolog(loss=...)` says so, 10 alone for "
        "a loss that has a level",
        "loss_statistics",
        interval="every step",
    ),
)

FIRST_STEPS = 8
"""Number of first steps of each training in which calls of copies are watched, ..."""
LATER = (100, 1000)
"""... and the steps from which on as many are watched again: some targets are used after a warm-up only."""
NEEDED_STEPS = 3
"""Number of steps that must show the same before anything is concluded."""
EVERY = 100
"""Interval in steps at which values of copies are compared, and samples of policies are looked at."""
FROZEN_AFTER = 3000
"""Steps after which a copy that never changed is a frozen reference: DQN copies every 2,500 steps (Mnih et al.)."""
MOST_SEARCHES = 8
"""A script that makes an optimizer for every sample has no copy that could be followed."""
ENVIRONMENTS = ("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen", "brax")
"""Libraries of environments. With one of them loaded, a model that is called between steps only with smaller batches
than the one it is trained on chooses actions. A validation has batches as large; the lengths of sequences do not
count."""
ACTING_STEPS = 256
"""Number of first steps in which those modules are watched: several may follow each round of actions, as in PPO."""
ACTING_SHARE = 0.05
"""Least number of samples that were acted on, as a share of those trained on: with up to twenty epochs of each round.
A text that is generated now and then has fewer."""

_SIGNALS = (Signal(LOSS_LEVEL),)


class LossLevelProbe(BaseProbe):
    """What is known about the loss of one recording."""

    part = "level of the loss"

    def __init__(self, context: ProbeContext) -> None:
        self._guard = context.guard
        said = context.settings.loss
        self._said = None if said is None else level_said(said)
        self._told: LossLevel | None = None
        self._news: LossLevel | None = self._said
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._searches = 0
        self._copies: list[TargetCopy] = []
        self._looks: Counter[str] = Counter()
        """Number of steps looked at in the present window, by training, ..."""
        self._calls: Counter[str] = Counter()
        """... and in how many of them a copy was called."""
        self._in_use = False
        """Whether copies were seen to be called between most steps."""
        self._policy_steps = self._acting_steps = self._acted = self._trained = 0
        self._seen = POLICY_SAMPLES.with_gradient, POLICY_SAMPLES.later
        self._acting: list[WatchedCalls] = []
        self._sizes: dict[int, dict[tuple[int, int], int]] = {}
        """Dimensions and rows of the batches that each trained module was called with since the step before, and how
        many there were; the last one is the batch that it was trained on."""
        self._compared_at = -EVERY
        self._blocks: list[Block] = []

    def due(self, step: int) -> bool:
        """Whether to look at this step."""
        return not self._is_over and (self._watches(step) or bool(self._acting) or step % EVERY == 0)

    def next_due(self, step: int) -> int:
        """The next step that may be due."""
        return step + 1 if self._watches(step + 1) or self._acting else next_multiple(step, EVERY)

    def before_step(self, view: StepView) -> None:
        """Look at what was called and sampled since the step before."""
        if self._said is None:
            if view.optimizer not in self._optimizers:
                self._search(view)
            self._look(view)

    def blocks(self, _step: int) -> Sequence[Block]:
        """What is known now."""
        blocks, self._blocks = self._blocks, []
        if self._news is not None and self._news != self._told:
            self._told = self._news
            blocks.append(Block(_SIGNALS, (self._news.code,)))
            if self._is_over:
                self.close()
        self._news = None
        return blocks

    def close(self) -> None:
        """Watch no calls any more."""
        for each in self._copies:
            each.look_away()
        self._stop_acting()

    def _stop_acting(self) -> None:
        while self._acting:
            self._acting.pop().remove()

    @property
    def _is_over(self) -> bool:
        """Whether nothing that is still looked for could change what is known."""
        return self._told is not None and not (self._told.reason is NoLevel.BOOTSTRAPPED and self._copies)

    @staticmethod
    def _watches(step: int) -> bool:
        return step <= FIRST_STEPS or any(first <= step <= first + FIRST_STEPS for first in LATER)

    def _search(self, view: StepView) -> None:
        self._optimizers.add(view.optimizer)
        if self._searches >= MOST_SEARCHES:
            return
        self._searches += 1
        modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
        reason = level_by_classes(modules)
        if reason is not None:
            self._conclude(reason)
            return
        known = {id(each.module): each for each in self._copies}
        found = target_copies(modules, [*optimizers, view.optimizer])
        new = [each for each in found if id(each.module) not in known]
        self._copies += new
        if new:
            self._compared_at = -EVERY
        self._look_at_actions(modules, optimizers)

    def _look_at_actions(self, modules: Sequence[Module], optimizers: Sequence[Optimizer]) -> None:
        """Where an environment may act on them, watch the modules that are trained."""
        if self._acting or not any(name in sys.modules for name in ENVIRONMENTS):
            return
        trained = {id(one) for each in optimizers for group in each.param_groups for one in group["params"]}
        owners = [each for each in modules if any(id(one) in trained for one in each._parameters.values())]
        called = self._guard(self.part, self._called)
        self._acting = [MODULE_CALLS.watch(each, called) for each in owners[:MOST_WATCHED]]

    def _called(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].dim():
            sizes, size = self._sizes.setdefault(id(module), {}), (args[0].dim(), len(args[0]))
            sizes[size] = sizes.pop(size, 0) + 1

    def _look(self, view: StepView) -> None:
        watches = self._watches(view.step)
        self._look_at_samples()
        if self._acting:
            acted, trained = max(map(_samples, self._sizes.values()), default=(0, 0))
            self._sizes.clear()
            self._acting_steps += acted > 0
            self._acted, self._trained = self._acted + acted, self._trained + trained
            enough = self._acted >= ACTING_SHARE * self._trained
            if self._acting_steps >= NEEDED_STEPS and enough and not self._copies:
                self._conclude(NoLevel.POLICY)
            if view.step >= ACTING_STEPS:
                self._stop_acting()
        if self._copies and not self._in_use:
            self._look_at_calls(view, watches)
        if self._copies and (view.step - self._compared_at >= EVERY or view.step == FIRST_STEPS):
            self._compare(view.step)

    def _look_at_samples(self) -> None:
        seen = POLICY_SAMPLES.with_gradient, POLICY_SAMPLES.later
        if seen != self._seen:
            self._seen = seen
            self._policy_steps += 1
            if self._policy_steps >= NEEDED_STEPS and self._told is None:
                self._conclude(NoLevel.POLICY)

    def _look_at_calls(self, view: StepView, watches: bool) -> None:
        called = any(each.was_called for each in self._copies)
        for each in self._copies:
            each.was_called = False
            if watches:
                each.watch(self._guard)
            else:
                each.look_away()
        if not watches:
            self._looks.clear()
            self._calls.clear()
            return
        self._looks[view.place] += 1
        self._calls[view.place] += called
        if self._calls[view.place] >= max(NEEDED_STEPS, (self._looks[view.place] - 1) / 2):
            self._in_use = True
            for each in self._copies:
                each.look_away()
            self._judge(view.step)

    def _compare(self, step: int) -> None:
        self._compared_at = step
        for copy in self._copies:
            row = copy.comparison()
            if row is not None:

                def arrived(values: Sequence[float], copy: TargetCopy = copy) -> Sequence[float]:
                    copy.compared(values[0], values[1])
                    return ()

                self._blocks.append(Block((), row, arrived))
        self._judge(step)

    def _judge(self, step: int) -> None:
        """Conclude from what has arrived so far."""
        if not self._in_use:
            return
        changed = any(each.has_changed for each in self._copies)
        if changed or any(each.is_equal for each in self._copies):
            frozen = not changed and step >= FROZEN_AFTER
            self._conclude(NoLevel.PREFERENCE if frozen else NoLevel.BOOTSTRAPPED)
        if changed or step >= FROZEN_AFTER:
            self._copies = []

    def _conclude(self, reason: NoLevel) -> None:
        self._news = LossLevel(reason)


def _samples(sizes: dict[tuple[int, int], int]) -> tuple[int, int]:
    """Return how many samples a module acted on, and how many it was trained on.

    None were acted on where a batch was as large as the one that it was trained on.
    """
    *others, trained_on = sizes
    trained = trained_on[1] * sizes[trained_on]
    if not others or max(others) >= trained_on:
        return 0, trained
    return sum(rows * sizes[dimensions, rows] for dimensions, rows in others), trained


PROBES: tuple[ProbeFactory, ...] = (LossLevelProbe,)
