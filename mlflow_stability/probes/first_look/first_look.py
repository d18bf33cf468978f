"""Examines a training in its first steps and now and then later: losses, parameters, settings, and mixed up dimensions.

Dimensions: what layers take for the batch, what attention is normalised over, equal output rows. Of trainings one after
the other in one recording, each is examined. Guarantees: no device is waited for, nothing of the training is kept
alive, no hook for saved tensors runs, of inputs only the shape is read, and a step that is not examined costs nothing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.kinds.first_look.dimensions import BatchAsSequence, BatchAsSequenceFacts
from mlflow_stability.kinds.first_look.not_trained import OF_OWN_STATE, NothingLoadedFacts
from mlflow_stability.kinds.first_look.settings import (
    LateClipping,
    LateClippingFacts,
    ScaledClipping,
    ScaledClippingFacts,
)
from mlflow_stability.probes.first_look.graph_shapes import GraphShapes, loss_over_pairs
from mlflow_stability.probes.first_look.left_out import LeftOut, not_frozen
from mlflow_stability.probes.first_look.loaded_states import LOADED_STATES
from mlflow_stability.probes.first_look.loss_graph import (
    COMBINING,
    PER_CLASS,
    PER_EXAMPLE,
    Chance,
    chance_of,
    loss_input,
    loss_sum,
    node_name,
    nodes_of,
    saved,
    shape_of,
    undivided,
)
from mlflow_stability.probes.first_look.module_settings import (
    Accumulation,
    Precision,
    Recreated,
    SameLoss,
    Schedules,
    SharedParameters,
    ZeroGroups,
    strong_decay,
    strong_dropout,
)
from mlflow_stability.probes.first_look.targets import Batches, Targets
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.hooks.thread_state import is_measurable, untracked
from mlflow_stability.probes.model_discovery import Kind, models_of, names_of_modules, remembered
from mlflow_stability.probes.probe import Probe, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal import SIDE_BY_SIDE_STEPS, Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType
from mlflow_stability.vocabulary.result import Finding, Severity

SPREAD = (Signal("output_spread", ""),)
MIN_ROWS = 8
MAX_VALUES = 2**22  # of larger outputs the first rows are compared
MAX_LAYERS = 64
SEQUENCE_STEPS = BatchAsSequence().steps


class SequenceLayout:
    """Calls of layers with `batch_first=False`, beside the rows of the loss."""

    def __init__(self) -> None:
        self._watched: list[Callable[[], None]] = []
        self._shapes: dict[tuple[int, int], int] = {}  # sequence and batch, as the layers take them, by identity
        self._names: dict[int, str] = {}
        self._steps = 0  # in a row
        self._step = 0

    def watch(self, models: Sequence[Module]) -> None:
        """Begin to watch recurrent and attention layers that expect the sequence first."""
        modules = (module for model in models for module in Module.modules(model))
        layers = [module for module in modules if isinstance(module, nn.RNNBase | nn.MultiheadAttention)]
        layers = list({id(layer): layer for layer in layers if not layer.batch_first}.values())
        if 0 < len(layers) <= MAX_LAYERS:
            self._names = names_of_modules(models)
            self._watched = [MODULE_CALLS.watch(layer, self._called) for layer in layers]

    def close(self) -> None:
        while self._watched:
            self._watched.pop()()

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Look at a loss; return a finding after enough steps, and watch no longer once it is known."""
        if not self._watched:
            return None
        shapes, self._shapes = self._shapes, {}
        rows = _rows_of(loss)
        if not shapes or rows is None:
            return None
        if any(length != rows or batch in (1, rows) for length, batch in shapes):
            self.close()
            return None
        self._steps += step != self._step
        self._step = step
        if self._steps < SEQUENCE_STEPS:
            return None
        self.close()
        (_, batch), layer = next(iter(shapes.items()))
        facts = BatchAsSequenceFacts(self._names.get(layer, ""), rows, batch)
        return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=BatchAsSequence.remedies)

    def _called(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or given.dim() != 3 or not torch.is_grad_enabled():
            return
        key = args[1] if isinstance(module, nn.MultiheadAttention) and len(args) > 1 else given
        if isinstance(key, Tensor) and key.shape[:2] == given.shape[:2]:  # attention to another sequence is left out
            self._shapes.setdefault((given.size(0), given.size(1)), id(module))


def _rows_of(loss: Tensor) -> int | None:
    """Return the number of rows of all loss functions, if each has one value or one set of classes for each row."""
    rows = set()
    for _, name, inputs in nodes_of(loss.grad_fn, COMBINING):
        if name in PER_EXAMPLE:
            shape = shape_of(next((source for source in inputs if source is not None), None))
            if name in PER_CLASS:  # similarities of all pairs have rows for more than one input
                is_flat = len(shape) == 2 and shape[1] not in (shape[0], shape[0] - 1)
            else:
                is_flat = shape[1:] in ((), (1,))
            rows.add(shape[0] if shape and is_flat else 0)
    return rows.pop() or None if len(rows) == 1 else None


class OutputRows:
    """What loss functions get: the largest difference between its rows."""

    def __init__(self) -> None:
        self._spreads: list[Tensor | None] = []

    def clear(self) -> None:
        self._spreads = []

    def note(self, loss: Tensor) -> None:
        output = _output_of(loss)
        if output is None or output.dim() == 0 or len(output) < MIN_ROWS:
            self._spreads.append(None)
            return
        with untracked():
            output = output.detach()
            if output.numel() > MAX_VALUES:
                output = output[: max(MIN_ROWS, len(output) * MAX_VALUES // output.numel())]
            self._spreads.append((output.amax(0) - output.amin(0)).amax().reshape(1).float())

    def blocks(self) -> list[Block]:
        spreads, self._spreads = self._spreads, []
        measured = [spread for spread in spreads if spread is not None]
        if not measured or len(measured) < len(spreads) or len({spread.device for spread in measured}) > 1:
            return []
        with untracked():
            return [Block(SPREAD, torch.stack(measured).amax(0))]


def _output_of(loss: Tensor) -> Tensor | None:
    """Return what the loss function gets, if the loss is one loss function alone."""
    node, _ = undivided(loss)
    if node_name(node) not in PER_EXAMPLE:
        return None
    is_target = node.next_functions[0][0] is None  # the script has exchanged prediction and target
    output = saved(node, "target" if is_target else "self")
    return output if output is not None and output.is_floating_point() else None


EQUAL_WEIGHTS = (Signal("weights_equal", ""),)
MAX_MATRICES = 8
MIN_MATRICES = 2


def equal_weights(optimizer: Optimizer) -> list[Block]:
    """Return the share of weight matrices with one value only; nothing for fewer than two matrices."""
    matrices = [
        tensor
        for tensor in parameters_of(optimizer)
        if is_measurable(tensor) and tensor.is_floating_point() and tensor.dim() > 1 and min(tensor.shape[:2]) > 1
    ][:MAX_MATRICES]
    if len(matrices) < MIN_MATRICES or len({tensor.device for tensor in matrices}) > 1:
        return []
    with untracked():
        ends = [torch.stack(torch.aminmax(tensor)).float() for tensor in matrices]
        low, high = torch.stack(ends).unbind(1)
        return [Block(EQUAL_WEIGHTS, (low == high).float().mean(0, keepdim=True))]


SIGNALS = (
    SignalType(
        "output_spread",
        "largest difference between rows of what the loss function gets; 0: all rows are the same; first steps",
        "loss_statistics",
    ),
    SignalType(
        "weights_equal", "share of weight matrices whose values are all equal, of the first ones; step 1", "optimizer"
    ),
    SignalType(
        "chance_loss",
        "loss of a model that gives each class the same probability; first steps, for cross entropy alone",
        "loss_statistics",
    ),
    SignalType(
        "copied_embedding",
        "1 where a linear layer has the values of an embedding of the same shape, in a tensor of its own; step 1",
        "optimizer",
    ),
)
CHANCE = (Signal("chance_loss", ""),)
WHOLE_MEAN = 0.01  # maximum distance of the shares of micro-batches from one mean
FIRST_STEPS = 10  # whose losses are examined; later, losses of the step after one of `STEPS`
MAX_LOSSES = 32  # of a step
STEPS = (1, 2, 3, 10, 20, 100, 1000)  # before which parameters and settings are examined
_DUE = tuple(sorted({*range(1, FIRST_STEPS + 1), *STEPS, *(step + 1 for step in STEPS)}))
LATE_CLIPPING, SCALED_CLIPPING = LateClipping(), ScaledClipping()
SETTLED_STEP = 10  # by then all optimizers have stepped, and a warm-up has begun
ZERO_LOOKS = 3  # from `SETTLED_STEP` on
NO_GRADIENT_STEP = 100  # by then a parameter without a gradient never gets one


class FirstLook(Probe):
    part = "first look"
    is_periodic = True

    def __init__(
        self,
        emit: Callable[[Finding], None],
        models: Callable[[], Sequence[Module]],
        step: Callable[[], int],
        look: Callable[[bool], None],
    ) -> None:
        self._report, self._models, self._step = emit, models, step
        self._switch = look  # switches `at_loss` on or off
        self._reported: set[str] = set()
        self._trained: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()  # parameters of all trainings
        self._begin(step() - 1, "")
        LOADED_STATES.listen(self)

    def _begin(self, before: int, place: str) -> None:
        """Examine the training that begins after a step; its signals have this place."""
        self._before, self._place = before, place
        self._looks = 0
        self._until = FIRST_STEPS  # last step of the training whose losses are examined
        self._targets, self._batches, self._precision = Targets(), Batches(), Precision()
        self._weights: list[Block] = []  # of the first step
        self._accumulation, self._same_loss, self._shared = Accumulation(), SameLoss(), SharedParameters()
        self._recreated, self._zero_groups, self._schedules = Recreated(), ZeroGroups(), Schedules()
        self._left_out = LeftOut(self._trained)
        self._layout, self._shapes, self._outputs = SequenceLayout(), GraphShapes(), OutputRows()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._looked_at = 0
        self._chances: list[Chance | None] = []  # of the losses of one step
        self._loss_step = 0  # step of the last losses

    def training_began(self, step: int, place: str) -> None:
        if step - self._before > SIDE_BY_SIDE_STEPS:
            self.close()
            self._begin(step - 1, place)
            self._switch(True)

    def at_loss(self, tensors: Any) -> None:
        step = self._step()
        if step - self._before > self._until:
            self._switch(False)
            self._layout.close()
            return
        if step != self._loss_step:
            self._chances, self._looks, self._loss_step = [], 0, step
            self._targets.clear()
            self._outputs.clear()
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        for loss in losses:
            if isinstance(loss, Tensor) and self._left_out.may_be_known:
                self._left_out.note_loss(loss)
            if isinstance(loss, Tensor) and loss.grad_fn is not None:
                self._looks += 1
                if self._looks > MAX_LOSSES:
                    self._chances.append(None)
                    return
                self._emit(loss_input(loss, self._models(), step))
                self._emit(loss_over_pairs(loss, step))
                self._emit(loss_sum(loss, step))
                self._chances.append(chance_of(loss))
                self._targets.note(loss)
                self._outputs.note(loss)
                if step - self._before <= FIRST_STEPS:
                    self._batches.note(loss, step)
                self._emit(self._layout.note(loss, step))
                for finding in self._shapes.note(loss, step):
                    self._emit(finding)
                self._emit(self._accumulation.note(loss, step))
                self._emit(self._same_loss.note(loss, step))

    def next_step(self) -> int:
        return self._step()

    def own_state_loaded(self, module: Module, *, is_again: bool) -> None:
        if is_again or any(tensor in self._trained for tensor in Module.parameters(module)):
            facts = NothingLoadedFacts(type(module).__name__, has_own=True)
            self._emit(Finding.at(facts, self._step(), Severity.WARNING, place=facts.module, remedies=OF_OWN_STATE))

    def due(self, step: int) -> bool:
        return step - self._before in _DUE

    def next_due(self, step: int) -> int:
        return next((self._before + due for due in _DUE if self._before + due > step), 1 << 62)

    def before_step(self, view: StepView) -> None:
        steps = view.step - self._before  # of this training
        self._emit(self._accumulation.discarded(view))
        if steps not in STEPS:
            return
        if steps > self._until:
            self._until = steps + 1
            self._switch(True)
        if steps == 1 and not self._optimizers:
            self._weights = [*equal_weights(view.optimizer), *copied_embeddings(models_of([view.optimizer]))]
            self._layout.watch(self._models())
            LOADED_STATES.training_begins()
        seen: list[Optimizer] = [held for reference in self._optimizers if (held := reference()) is not None]
        clips = view.clips
        if max(clips.late, clips.empty) >= LATE_CLIPPING.least:
            facts = LateClippingFacts(max(clips.late, clips.empty), had_gradients=not clips.empty)
            self._emit(Finding.at(facts, view.step, Severity.INFO, remedies=LATE_CLIPPING.remedies))
        limit = min(view.limits.values(), default=math.inf)
        if clips.scaled >= SCALED_CLIPPING.least and limit < SCALED_CLIPPING.highest:
            scaled = ScaledClippingFacts(clips.scaled, limit)
            self._emit(Finding.at(scaled, view.step, Severity.WARNING, remedies=SCALED_CLIPPING.remedies))
        self._emit(self._recreated.look(view.optimizer, view.step))
        if steps >= SETTLED_STEP:
            self._emit(self._zero_groups.look(view.optimizer, view.step, ZERO_LOOKS))
            self._emit(self._schedules.look(seen, view.step))
            self._emit(strong_decay(view.optimizer, view.step))
            self._emit(self._shared.look(view.optimizer, view.step))
            if self._looked_at != view.step:
                step, models, several = view.step, self._models(), self._looks > 1
                for finding in self._left_out.look(models, seen, step, lambda: remembered(Kind.OPTIMIZER)[0], several):
                    self._emit(finding)
                if SETTLED_STEP < steps < NO_GRADIENT_STEP:
                    self._left_out.watch_calls(models)
                only_all = steps < NO_GRADIENT_STEP
                if not only_all or self._left_out.is_known:
                    self._emit(self._left_out.without_gradient(models, seen, step, steps, only_all=only_all))
                if not only_all:
                    self._left_out.close()
                self._precision.before_step(view)
                self._emit(strong_dropout(models, step))
                self._emit(LOADED_STATES.finding(step))
                self._emit(not_frozen(models, [*seen, view.optimizer], step))
        if all(held is not view.optimizer for held in seen):
            self._optimizers.append(weakref.ref(view.optimizer))
        self._left_out.note_gradients(view.optimizer)
        self._looked_at = view.step

    def after_step(self, view: StepView) -> None:
        self._precision.after_step(view)

    def forget(self) -> None:
        self._chances = []
        self._targets.clear()
        self._outputs.clear()
        self._batches.blocks()
        self._precision.forget()

    def close(self) -> None:
        self._layout.close()
        self._left_out.close()

    def blocks(self, _step: int) -> Sequence[Block]:
        losses, self._chances = self._chances, []
        chances = [chance for chance in losses if chance is not None]
        # All micro-batches together are one mean over the same classes.
        is_mean = len(chances) == len(losses) and abs(sum(chance.share for chance in chances) - 1) < WHOLE_MEAN
        is_one = is_mean and len({chance.classes for chance in chances}) == 1
        chance = [Block(CHANCE, (math.log(chances[0].classes),))] if is_one else []
        weights, self._weights = self._weights, []
        parts = (self._targets, self._batches, self._outputs, self._precision)
        blocks = [*chance, *weights, *(block for part in parts for block in part.blocks())]
        return [self._at_place(block) for block in blocks] if self._place else blocks

    def _at_place(self, block: Block) -> Block:
        placed = (
            signal if signal.place else signals_at((signal.quantity,), self._place)[0] for signal in block.signals
        )
        return replace(block, signals=tuple(placed))

    def _emit(self, finding: Finding | None) -> None:
        if finding is not None and finding.kind not in self._reported:
            self._reported.add(finding.kind)
            self._report(finding)


MAX_PAIRS = 4
MAX_ROWS = 64  # a copy of a large table would take its memory again


def copied_embeddings(models: Sequence[Module]) -> list[Block]:
    """Return a value for each trained linear layer with the shape of an embedding in a tensor of its own."""
    names = names_of_modules(models)
    modules = [module for model in models for module in Module.modules(model)]
    tables = [weight for _, weight in _trained_weights(modules, nn.Embedding)]
    held = {id(table) for table in tables}
    pairs = [
        (names[id(module)], weight, table)
        for module, weight in _trained_weights(modules, nn.Linear)
        if id(weight) not in held
        for table in tables
        if table.shape == weight.shape and table.device == weight.device
    ][:MAX_PAIRS]
    blocks = []
    with untracked():
        for name, weight, table in pairs:
            rows, values = weight[:MAX_ROWS], table[:MAX_ROWS]
            # Values that all are one number may be equal by chance.
            same = (rows == values).all() & (rows != rows[0, 0]).any()
            blocks.append(Block((Signal("copied_embedding", name),), same.to(torch.float32).reshape(1)))
    return blocks


def _trained_weights(modules: Sequence[Module], kind: type[Module]) -> list[tuple[Module, Tensor]]:
    """Return weights that are parameters: one that is computed, as by `spectral_norm`, changes buffers when read."""
    weights = [(module, module._parameters.get("weight")) for module in modules if isinstance(module, kind)]
    return [(module, weight) for module, weight in weights if weight is not None and _is_trained(weight)]


def _is_trained(weight: Tensor) -> bool:
    return is_measurable(weight) and weight.requires_grad and weight.is_floating_point() and weight.numel() > 0
