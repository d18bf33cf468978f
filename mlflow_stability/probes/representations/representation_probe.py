"""Measures representations: of the modules that were named, and of those that put out sparse binary codes.

In: the forward pass of a probe step. Out: for codes the quantities of `sparse_codes`, the share of inputs that differ
and the temperature; for other outputs ranks and cosine similarity. Guarantees: codes are looked for among the outputs
of all modules in the first two looks at a model, and of those that were named in every one; nothing is waited for: on
an accelerator what was found out in one look is acted upon in the next.

The outermost module itself is not looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.pass_hooks import PassHooks
from mlflow_stability.probes.hooks.untracked_ops import untracked
from mlflow_stability.probes.objects.watched_modules import WatchedModules
from mlflow_stability.probes.probe import Guard, ProbeContext, ProbeFactory, next_sampled_step
from mlflow_stability.probes.representations.representation_pass import RepresentationPass
from mlflow_stability.probes.step.readback import Readback
from mlflow_stability.vocabulary.measured import Signal

LOOKS = 2
"""In so many looks at a model codes are looked for everywhere."""
FIRST_LOOK = 10
MOST_NAMED = 12
"""Of a model's modules, where one that was asked for is not among them."""
MOST_FOUND = 16
"""Modules with codes that are measured without having been named."""


class RepresentationProbe:
    """The representations of one training."""

    part = "representations"

    def __init__(
        self,
        guard: Guard,
        names: Sequence[str] = (),
        every: int = 100,
        models: Callable[[], Sequence[Module]] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.names = tuple(names)
        """The modules that were asked for."""
        self.every = every
        """Every how many captures of a model; and once at the tenth."""
        self.met: set[str] = set()
        """Those of the names that some model had a module for."""
        self._say = say
        self._had: dict[str, None] = {}
        """The outermost modules of the models that were looked at."""
        self._guard = guard
        self._places = WatchedModules(models)
        self._readback = Readback()
        self._looks: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._codes: dict[str, bool] = {}
        """What was found out of a module: whether it puts out codes."""
        self._hooks: PassHooks | None = None
        self._alive: Callable[[], bool] = _over
        """Knows the frame of the call, and by it all that was called: not to be kept beyond it."""
        self._pass: RepresentationPass | None = None
        self._ended: list[RepresentationPass] = []
        """Passes of this capture that are over."""
        self._layouts: dict[tuple[str, tuple[str, ...]], tuple[Signal, ...]] = {}

    def due(self, own_step: int) -> bool:
        """Whether to look."""
        return own_step == FIRST_LOOK or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        """The next turn that is due."""
        return next_sampled_step(own_step, FIRST_LOOK, self.every)

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        """Put hooks on the modules that are measured and on what they stand in; in the first looks on all."""
        self._readback.deliver()
        looks = self._looks[root] = self._looks.get(root, 0) + 1
        places = dict(self._places.inside(root))
        named = self._named(places)
        if self.names:
            self._had |= dict.fromkeys(each for each in places if "." not in each)
        self._hooks, self._alive = PassHooks(), alive
        self._pass = RepresentationPass(places, named, self._codes, looks <= LOOKS, alive)
        take = self._guard(self.part, self._pass.take)
        for module in self._pass.wanted():
            self._hooks.after(module, take)

    def close(self, whole: bool) -> None:
        """Stop watching."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks, self._alive = None, _over
        if self._pass is not None:
            self._pass.over()
            if whole:
                self._ended.append(self._pass)
        self._pass = None
        if whole and max(self._looks.values(), default=0) >= LOOKS:  # by now every model was met
            self._emit_missing()

    def blocks(self) -> Sequence[Block]:
        """What was measured, a block for each module."""
        ended, self._ended = self._ended, []
        with untracked():
            for each in ended:
                self._learn(each)
            return [self._block(name, *numbers) for each in ended for name, numbers in each.numbers()]

    def finish(self) -> None:
        """Say which of the names no model had, where that was not said before; let go of what nobody has asked for."""
        self._ended.clear()
        self._emit_missing()

    def _emit_missing(self) -> None:
        missing, self.names = (
            [each for each in self.names if each not in self.met],
            tuple(each for each in self.names if each in self.met),
        )
        if missing and self._had:
            self._say(
                f"representations: no trained module is called {' or '.join(map(repr, missing))}, so it is "
                f"not measured. Module names: {', '.join(list(self._had)[:MOST_NAMED])}; nested modules may "
                "be named too."
            )

    def _named(self, places: Mapping[str, Module]) -> set[str]:
        """The modules that were asked for: of that very name, else the outermost ones whose name ends with it."""
        found: set[str] = set()
        for name in self.names:
            ends = [each for each in places if each == name or each.endswith(f".{name}")]
            highest = min((each.count(".") for each in ends), default=0)
            found |= {name} if name in places else {each for each in ends if each.count(".") == highest}
            self.met |= {name} if ends else set()
        return found

    def _learn(self, ended: RepresentationPass) -> None:
        names = tuple(ended.flags)
        self._note(ended.learnt)
        if names:
            flags = [ended.flags[name] for name in names]
            self._readback.fetch(flags, lambda values, _: self._note(dict(zip(names, map(bool, values), strict=True))))

    def _note(self, learnt: Mapping[str, bool]) -> None:
        for name, codes in learnt.items():
            if not codes or sum(self._codes.values()) < MOST_FOUND + len(self.names):
                self._codes[name] = codes

    def _block(self, name: str, quantities: tuple[str, ...], row: Tensor) -> Block:
        key = name, quantities
        if key not in self._layouts:
            self._layouts[key] = tuple(Signal(quantity, name) for quantity in quantities)
        return Block(self._layouts[key], row)


def _over() -> bool:
    """No pass is going on."""
    return False


def _probe(context: ProbeContext) -> RepresentationProbe | None:
    asked = context.settings
    if not asked.sdr_check_interval:
        return None
    return RepresentationProbe(
        context.guard, asked.representations, asked.sdr_check_interval, context.models, context.say
    )


PROBES: tuple[ProbeFactory, ...] = (_probe,)
