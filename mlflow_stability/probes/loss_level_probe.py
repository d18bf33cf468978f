"""Detects trainings whose loss has no level that measures progress: adversarial, bootstrapped, policies, preferences.

Evidence is what the user says, samples of policies, copies of the model, and classes of libraries. A copy has
parameters of the same names and shapes as a trained module, and no optimizer changes them. It computes a target if the
training calls it between most steps: an average of the weights that is only evaluated is not, and a frozen teacher has
other values than its student. Guarantees: a training without copies and samples is examined in its first steps and
rarely later; values are compared every 100 steps, only where there is a copy; no library is imported.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import is_split
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.model_discovery import Kind, living, outermost, places_of, remembered
from mlflow_stability.probes.policy_samples import POLICY_SAMPLES
from mlflow_stability.probes.probe import Probe, ProbeContext, ProbeFactory, StepView, next_multiple
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_from_word
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType

# Names of TRL's trainers. Those for supervised fine-tuning, rewards and distillation have a level.
TRAINERS: tuple[tuple[re.Pattern[str], NoLevel], ...] = (
    (re.compile(r"Online|Nash|XPO|GRPO|PPO|RLOO|Reinforce"), NoLevel.POLICY),
    (re.compile(r"DPO|KTO|ORPO|CPO|BCO"), NoLevel.PREFERENCE),
)
# Where classes of modules that train without a level are defined.
TRAINED_MODULES: tuple[tuple[re.Pattern[str], NoLevel], ...] = (
    (re.compile(r"(?:stable_baselines3|sb3_contrib)\.(?:dqn|qrdqn|sac|td3|tqc|crossq|ddpg)\b"), NoLevel.BOOTSTRAPPED),
    (re.compile(r"(?:stable_baselines3|sb3_contrib)\.common\.(?:\w+\.)*policies"), NoLevel.POLICY),
    (re.compile(r"torchrl\.objectives\.(?:ppo|a2c|reinforce|grpo|llm)"), NoLevel.POLICY),
    (re.compile(r"torchrl\.objectives\.(?:dqn|sac|ddpg|td3|redq|iql|cql|crossq|dreamer)"), NoLevel.BOOTSTRAPPED),
    (
        re.compile(r"lightly\.loss\.(?:dino|ibot|koleo)|solo\.methods\.(?:byol|dino|mocov|nnbyol)"),
        NoLevel.SELF_DISTILLATION,
    ),
)
LIBRARIES = ("trl", "stable_baselines3", "torchrl", "lightly", "solo")


def level_by_classes(modules: Iterable[Module]) -> NoLevel | None:
    """Return why the loss of a training with these modules has no level, by their classes, or None."""
    if not any(name in sys.modules for name in LIBRARIES):
        return None
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if "trl" in sys.modules and isinstance(trainer, type):
        for instance in living(trainer)[0]:
            bases = [base.__name__ for base in type(instance).__mro__ if base.__module__.startswith("trl")]
            reason = _reason(TRAINERS, bases)
            if reason is not None:
                return reason
    kinds = {type(module) for module in modules}
    return _reason(TRAINED_MODULES, sorted({base.__module__ for kind in kinds for base in kind.__mro__}))


def _reason(reasons: Iterable[tuple[re.Pattern[str], NoLevel]], names: Iterable[str]) -> NoLevel | None:
    names = list(names)
    return next((reason for pattern, reason in reasons if any(pattern.search(name) for name in names)), None)


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

WINDOW_STEPS = 8  # in which calls of copies are watched: the first ones of each training,
LATER_WINDOWS = (100, 1000)  # and those from these steps on, for targets that are used after a warm-up only
MIN_STEPS = 3  # that must show the same
EVERY_STEPS = 100  # values of copies are compared
FROZEN_AFTER_STEPS = 3000  # without a change a copy is a reference: DQN copies every 2,500 (Mnih et al.)
MAX_SEARCHES = 8  # more optimizers than that are made for single samples
# Libraries of environments. With one of them loaded, a model that is called between steps only with smaller batches
# than the one it is trained on chooses actions. A validation has batches as large; the lengths of sequences do not
# count.
ENVIRONMENTS = ("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen", "brax")
ACTING_STEPS = 256  # in which those modules are watched: several follow each round of actions, as in PPO
# Least number of samples that were acted on, as a share of those trained on: with up to twenty epochs of each round.
# A text that is generated now and then has fewer.
ACTING_SHARE = 0.05
# Least number of steps on one row after each episode of actions on one row, for a policy that is trained on one action
# at a time: accumulation and sequences call the model as often in each step.
STEPS_BETWEEN = 3
MIN_ACTIONS = 3  # calls before the first step of such an episode, that of the step included; samples before a step

_SIGNALS = (Signal(LOSS_LEVEL),)


class LossLevelProbe(Probe):
    part = "level of the loss"

    def __init__(self, context: ProbeContext) -> None:
        self._guard = context.guard
        word = context.settings.loss
        self._by_user = None if word is None else level_from_word(word)
        self._reported: LossLevel | None = None
        self._news: LossLevel | None = self._by_user
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._searches = 0
        self._copies: list[TargetCopy] = []
        self._looks: Counter[str] = Counter()  # steps in the present window, by training
        self._calls: Counter[str] = Counter()  # steps of these in which a copy was called
        self._in_use = False  # copies are called between most steps
        self._policy_steps = self._acting_steps = self._acted = self._trained = 0
        # Steps on one row: those with other calls of one row before, and those without.
        self._acting_alone = self._trained_alone = 0
        self._evaluated = False  # a module was called in evaluation mode since the last step
        self._seen = POLICY_SAMPLES.with_gradient, POLICY_SAMPLES.later
        self._of_model = POLICY_SAMPLES.of_model
        self._acting: list[Callable[[], None]] = []
        # By trained module: dimensions and rows of its batches since the last step, and their number; the last one is
        # the batch that it was trained on.
        self._sizes: dict[int, dict[tuple[int, int], int]] = {}
        self._compared_at = -EVERY_STEPS
        self._blocks: list[Block] = []

    def due(self, step: int) -> bool:
        return not self._is_over and (self._watches(step) or bool(self._acting) or step % EVERY_STEPS == 0)

    def next_due(self, step: int) -> int:
        return step + 1 if self._watches(step + 1) or self._acting else next_multiple(step, EVERY_STEPS)

    def before_step(self, view: StepView) -> None:
        if self._by_user is None:
            if view.optimizer not in self._optimizers:
                self._search(view)
            self._look(view)

    def blocks(self, _step: int) -> Sequence[Block]:
        blocks, self._blocks = self._blocks, []
        if self._news is not None and self._news != self._reported:
            self._reported = self._news
            blocks.append(Block(_SIGNALS, (self._news.code,)))
            if self._is_over:
                self.close()
        self._news = None
        return blocks

    def close(self) -> None:
        for copy in self._copies:
            copy.look_away()
        self._stop_acting()

    def _stop_acting(self) -> None:
        while self._acting:
            self._acting.pop()()

    @property
    def _is_over(self) -> bool:
        return self._reported is not None and not (self._reported.reason is NoLevel.BOOTSTRAPPED and self._copies)

    @staticmethod
    def _watches(step: int) -> bool:
        return step <= WINDOW_STEPS or any(first <= step <= first + WINDOW_STEPS for first in LATER_WINDOWS)

    def _search(self, view: StepView) -> None:
        self._optimizers.add(view.optimizer)
        if self._searches >= MAX_SEARCHES:
            return
        self._searches += 1
        modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
        reason = level_by_classes(modules)
        if reason is not None:
            self._conclude(reason)
            return
        followed = {id(copy.module): copy for copy in self._copies}
        copies = target_copies(modules, [*optimizers, view.optimizer])
        new = [copy for copy in copies if id(copy.module) not in followed]
        self._copies += new
        if new:
            self._compared_at = -EVERY_STEPS
        if self._acting or not _has_environments():
            return
        trained = set(places_of(optimizers))
        owners = [
            module for module in modules if any(id(parameter) in trained for parameter in module._parameters.values())
        ]
        called = self._guard(self.part, self._called)
        self._acting = [MODULE_CALLS.watch(owner, called) for owner in owners[:MAX_WATCHED_MODULES]]

    def _called(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].dim():
            self._evaluated = self._evaluated or not module.training
            sizes, size = self._sizes.setdefault(id(module), {}), (args[0].dim(), len(args[0]))
            sizes[size] = sizes.pop(size, 0) + 1

    def _look(self, view: StepView) -> None:
        watches = self._watches(view.step)
        seen = POLICY_SAMPLES.with_gradient, POLICY_SAMPLES.later
        drawn, self._of_model = POLICY_SAMPLES.of_model - self._of_model, POLICY_SAMPLES.of_model
        if seen != self._seen or (drawn >= MIN_ACTIONS and _has_environments()):
            self._seen = seen
            self._policy_steps += 1
            if self._policy_steps >= MIN_STEPS and self._reported is None:
                self._conclude(NoLevel.POLICY)
        if self._acting:
            acted, trained = max(map(_samples, self._sizes.values()), default=(0, 0))
            alone = max(map(_calls_of_one_row, self._sizes.values()), default=0)
            self._acting_alone += alone >= MIN_ACTIONS and not self._evaluated
            self._trained_alone += alone == 1
            self._sizes.clear()
            self._evaluated = False
            self._acting_steps += acted > 0
            self._acted, self._trained = self._acted + acted, self._trained + trained
            enough = self._acted >= ACTING_SHARE * self._trained
            in_turns = MIN_STEPS <= self._acting_alone * STEPS_BETWEEN < self._trained_alone
            if ((self._acting_steps >= MIN_STEPS and enough) or in_turns) and not self._copies:
                self._conclude(NoLevel.POLICY)
            if view.step >= ACTING_STEPS:
                self._stop_acting()
        if self._copies and not self._in_use:
            self._look_at_calls(view, watches)
        if self._copies and (view.step - self._compared_at >= EVERY_STEPS or view.step == WINDOW_STEPS):
            self._compare(view.step)

    def _look_at_calls(self, view: StepView, watches: bool) -> None:
        called = any(copy.was_called for copy in self._copies)
        for copy in self._copies:
            copy.was_called = False
            if watches:
                copy.watch(self._guard)
            else:
                copy.look_away()
        if not watches:
            self._looks.clear()
            self._calls.clear()
            return
        self._looks[view.place] += 1
        self._calls[view.place] += called
        if self._calls[view.place] >= max(MIN_STEPS, (self._looks[view.place] - 1) / 2):
            self._in_use = True
            for copy in self._copies:
                copy.look_away()
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
        if not self._in_use:
            return
        if self._reported is None and any(copy.has_changed or copy.is_equal for copy in self._copies):
            # The optimizer of a seeming copy may be made late: Pyro makes one for each parameter, at its first step.
            trained = set(places_of(remembered(Kind.OPTIMIZER)[0]))
            self._copies = [copy for copy in self._copies if not copy.is_trained(trained)]
        changed = any(copy.has_changed for copy in self._copies)
        if changed or any(copy.is_equal for copy in self._copies):
            frozen = not changed and step >= FROZEN_AFTER_STEPS
            self._conclude(NoLevel.PREFERENCE if frozen else NoLevel.BOOTSTRAPPED)
        if changed or step >= FROZEN_AFTER_STEPS:
            self._copies = []

    def _conclude(self, reason: NoLevel) -> None:
        self._news = LossLevel(reason)


def _has_environments() -> bool:
    return any(name in sys.modules for name in ENVIRONMENTS)


def _samples(sizes: dict[tuple[int, int], int]) -> tuple[int, int]:
    """Return the number of samples that a module acted on, and on which it was trained.

    It acted on none if another batch was as large as the one on which it was trained.
    """
    *others, trained_on = sizes
    trained = trained_on[1] * sizes[trained_on]
    if not others or max(others) >= trained_on:
        return 0, trained
    return sum(rows * sizes[dimensions, rows] for dimensions, rows in others), trained


def _calls_of_one_row(sizes: dict[tuple[int, int], int]) -> int:
    """Return how often a module was called, if each call had one row; else 0."""
    return sum(sizes.values()) if all(rows == 1 for _, rows in sizes) else 0


PROBES: tuple[ProbeFactory, ...] = (LossLevelProbe,)


MAX_COPIES = 8
MAX_WATCHED_MODULES = 64  # of one copy: a script may call a method that calls its parts
MAX_MODULES = 4096  # searching more for copies would take a second
MAX_DIFFERENCE = 1e-3  # of the values of a copy, as a share of their size: averaging rounds
COMPARED_PARAMETERS = 3  # of a copy


class TargetCopy:
    def __init__(self, copy: Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._copy = weakref.ref(copy)
        self._pairs = [(weakref.ref(own), weakref.ref(trained)) for own, trained in pairs]
        self._watched: list[Callable[[], None]] = []
        self.was_called = False  # since this was last set to False
        self.is_equal = False  # it had the values of the trained module when it was found
        self.has_changed = False
        self._checksum: float | None = None

    @property
    def module(self) -> Module | None:
        """The copy, or None once the script has dropped it."""
        return self._copy()

    def is_trained(self, trained: set[int]) -> bool:
        """Return whether any of its parameters is among these, by identity."""
        return any((own := reference()) is not None and _is_trained(own, trained) for reference, _ in self._pairs)

    def watch(self, guard: Callable[..., Callable[..., object]]) -> None:
        copy = self._copy()
        if copy is not None and not self._watched:
            called = guard("target copies", self._called)
            owners = [module for module in Module.modules(copy) if module is copy or len(module._parameters)]
            self._watched = [MODULE_CALLS.watch(owner, called) for owner in owners[:MAX_WATCHED_MODULES]]

    def look_away(self) -> None:
        while self._watched:
            self._watched.pop()()

    def comparison(self) -> Tensor | None:
        """Return on the device a checksum of the values and their distance from those of the trained module."""
        pairs = [(own(), trained()) for own, trained in self._pairs]
        there = [(own.detach(), trained.detach()) for own, trained in pairs if own is not None and trained is not None]
        # Not on two devices, and not where values are split over processes.
        if not there or not all(
            own.device == trained.device and not own.is_meta and not is_split(own) and not is_split(trained)
            for own, trained in there
        ):
            return None
        with torch.no_grad():
            first = there[0][0]
            wide = torch.float32 if first.device.type == "mps" else torch.float64
            total = torch.stack([own.to(wide).sum() for own, _ in there]).sum()
            apart = torch.stack([(own.to(wide) - trained).abs().sum() for own, trained in there]).sum()
            size = torch.stack([trained.to(wide).abs().sum() for _, trained in there]).sum()
            return torch.stack([total, apart / size])

    def compared(self, checksum: float, distance: float) -> None:
        if self._checksum is None:
            self.is_equal = distance <= MAX_DIFFERENCE
        elif checksum != self._checksum:
            self.has_changed = True
        self._checksum = checksum

    def _called(self, _module: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self.was_called = True


def target_copies(modules: Sequence[Module], optimizers: Iterable[Optimizer]) -> list[TargetCopy]:
    trained = set(places_of(optimizers))
    roots = outermost(modules)
    if not trained or len(modules) > MAX_MODULES:
        return []
    resting = [module for root in roots for module in _resting(root, trained)]
    if not resting:
        return []
    training = [
        module
        for root in roots
        for module in Module.modules(root)
        if any(_is_trained(parameter, trained) for parameter in Module.parameters(module))
    ]
    twins = [dict(Module.named_parameters(module)) for module in training]
    copies = []
    for copy in resting[: 4 * MAX_COPIES]:
        names = dict(Module.named_parameters(copy))
        twin = next((module for module in twins if _has(module, names)), None)
        if twin is not None:
            pairs = sorted(((own, twin[name]) for name, own in names.items()), key=_comparison_order)
            trains = [pair for pair in pairs if id(pair[1]) in trained and pair[0].is_floating_point()]
            if trains:
                copies.append(TargetCopy(copy, trains[:COMPARED_PARAMETERS]))
    return copies[:MAX_COPIES]


# Weights first: they are drawn at random, and biases are often constant.
def _comparison_order(pair: tuple[Tensor, Tensor]) -> tuple[bool, int]:
    return pair[0].dim() < 2, pair[0].numel()


def _has(twin: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> bool:
    if len(twin) < len(names):
        return False
    return all((other := twin.get(name)) is not None and other.shape == own.shape for name, own in names.items())


def _is_trained(parameter: Tensor, trained: set[int]) -> bool:
    return parameter.requires_grad and id(parameter) in trained


# The largest modules none of whose parameters is trained.
def _resting(module: Module, trained: set[int]) -> Iterator[Module]:
    parameters = list(Module.parameters(module))
    if not parameters:
        return
    if not any(_is_trained(parameter, trained) for parameter in parameters):
        if any(parameter.dim() >= 2 for parameter in parameters):
            yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from _resting(child, trained)
