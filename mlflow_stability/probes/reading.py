"""Makes the reading of a cycle out of the scalars that came back from the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from mlflow_stability.probes import activation_statistics, attention, representation_spectrum, sparse_codes
from mlflow_stability.probes.cycle import Cycle
from mlflow_stability.probes.layer_statistics import Table
from mlflow_stability.vocabulary.one_layout import one_layout
from mlflow_stability.vocabulary.signal import Signal

UNCLIPPED = "no clipping seen"
COPIED = "as the optimizer was given it: clipping by an engine, or of copies of the gradients, cannot be seen"


@dataclass(frozen=True, slots=True)
class CycleReading:
    """The signals of one cycle and their values, in the order in which they are judged."""

    signals: tuple[Signal, ...]
    """One and the same tuple as long as the same is measured."""
    values: tuple[float, ...]
    time: float
    norm_basis: str
    """What ``grad_norm`` stands for: ``before clipping``, ``after clipping``, `UNCLIPPED` or `COPIED`; empty: none."""
    tables: tuple[tuple[Table, Sequence[float]], ...] = ()
    """How gradients and weights were spread in each layer, where that was measured, and the numbers of each."""
    discarded: tuple[float, ...] = ()
    """Losses that were not finite and belong to no step: the script discarded their gradients."""
    begins_step: bool = True
    """Whether a step begins with this cycle; else it belongs to the step of the one before, as a GAN's second half."""


@dataclass(slots=True)
class Skips:
    """How many steps were thrown away so far, by track."""

    count: dict[int, int]

    def add(self, track: int, skipped: bool) -> int:
        """Count one more step."""
        self.count[track] = self.count.get(track, 0) + skipped
        return self.count[track]


named = lru_cache(maxsize=4096)(Signal)
_OF_STEPS_TAKEN = frozenset({"update_norm", "update_ratio", "adam_rms"})
_WHERE_THERE_ARE_ANY = frozenset({"grad_nonfinite_count"})
_WHERE_IT_CAN_BE_TOLD = frozenset({"grad_param_ratio", "lr_ratio", "update_ratio"}).union(
    activation_statistics.QUANTITIES, sparse_codes.QUANTITIES, representation_spectrum.QUANTITIES, attention.QUANTITIES
)
"""Beside weights that are all zero there is no ratio, and no shape of what a pooling layer puts out: that is no NaN of
the training."""


def scalars_of(cycle: Cycle) -> list[Tensor | float]:
    """All that must come to the host, in the order in which `reading_of` takes it."""
    scalars: list[Tensor | float] = [*cycle.losses, *cycle.discarded_losses, *cycle.norms]
    for clip in cycle.clips:
        scalars += (clip.norm, 1.0 if clip.scale is None else clip.scale)
    scalars += cycle.learning_rates.values()
    scalars += cycle.found_inf
    if cycle.loss_scale is not None:
        scalars.append(cycle.loss_scale)
    return scalars


def rows_of(cycle: Cycle) -> list[Tensor]:
    """What the probes left on the device, in the order in which `reading_of` takes it."""
    rows = [each.values for each in cycle.blocks if isinstance(each.values, Tensor)]
    return rows + [each.values for each in cycle.tables]


def reading_of(
    cycle: Cycle,
    values: Sequence[float],
    rows: Sequence[Sequence[float]],
    place: str,
    step_time: float | None,
    when: float,
    skips: Skips,
) -> CycleReading:
    """The reading, from the values of `scalars_of` and `rows_of`."""
    numbers = iter(values)
    losses = _take(numbers, len(cycle.losses))
    discarded = [each for each in _take(numbers, len(cycle.discarded_losses)) if not math.isfinite(each)]
    norms = _take(numbers, len(cycle.norms))
    clips = [(next(numbers), next(numbers)) for _ in cycle.clips]
    learning_rates = _take(numbers, len(cycle.learning_rates))
    found_inf = _take(numbers, len(cycle.found_inf))
    signals: list[Signal] = []
    found: list[float] = []

    def add(quantity: str, value: float, where: str = place) -> None:
        signals.append(named(quantity, where))
        found.append(value)

    # Skips come first: detectors must know that a scaler threw the step away before they see its infinite gradient.
    not_taken = any(flag > 0 for flag in found_inf)
    skipped = skips.add(cycle.track, not_taken)
    if cycle.loss_scale is not None or skipped:
        add("skipped_steps", float(skipped))
    micro_batches = cycle.micro_batches
    # What NaN leaves behind is NaN: where gradients are finite, such a loss is not behind them.
    if cycle.unsure and norms and all(map(math.isfinite, norms)):
        strange = [each for each in losses[: cycle.unsure] if not math.isfinite(each)]
        losses = [each for each in losses[: cycle.unsure] if math.isfinite(each)] + losses[cycle.unsure :]
        micro_batches -= len(strange)
        discarded += strange
    if losses:
        add("loss", math.fsum(losses) if all(map(math.isfinite, losses)) else sum(losses))
        add("micro_batches", float(micro_batches))
    basis = ""
    if norms:
        at_gate = _root_of_squares(norms)
        before = _before_clipping(cycle, clips)
        unclipped = COPIED if cycle.copied else UNCLIPPED
        basis = unclipped if not clips else "after clipping" if before is None else "before clipping"
        add("grad_norm", at_gate if before is None else before)
        if clips:
            add("grad_norm_clipped", at_gate)
    for where, rate in zip(cycle.learning_rates, learning_rates, strict=True):
        add("learning_rate", rate, where)
    if cycle.loss_scale is not None:
        add("loss_scale", next(numbers))
    if step_time is not None:
        add("step_time", step_time)
    if cycle.blocks:
        _add_blocks(cycle, rows, not_taken, signals, found)
    behind = len(rows) - len(cycle.tables)
    tables = tuple(zip(cycle.tables, rows[behind:], strict=True))
    return CycleReading(
        one_layout(signals), tuple(found), when, basis, tables, tuple(discarded), begins_step=cycle.begins_step
    )


def _add_blocks(
    cycle: Cycle, rows: Sequence[Sequence[float]], not_taken: bool, signals: list[Signal], found: list[float]
) -> None:
    """What the probes measured, but for what a step that was not taken does not say."""
    arrived = iter(rows)
    for block in cycle.blocks:
        values = next(arrived) if isinstance(block.values, Tensor) else block.values
        for signal, value in zip(block.signals, values, strict=True):
            quantity = signal.quantity
            left_out = (
                (not_taken and quantity in _OF_STEPS_TAKEN)
                or (value == 0 and quantity in _WHERE_THERE_ARE_ANY)
                or (value != value and quantity in _WHERE_IT_CAN_BE_TOLD)
            )
            if not left_out:
                signals.append(signal)
                found.append(value)


def _take(numbers: Iterator[float], count: int) -> list[float]:
    return [next(numbers) for _ in range(count)]


def _root_of_squares(norms: Sequence[float]) -> float:
    return norms[0] if len(norms) == 1 else math.hypot(*norms) if not any(map(math.isnan, norms)) else math.nan


def _before_clipping(cycle: Cycle, clips: Sequence[tuple[float, float]]) -> float | None:
    """The script's own norms together, where they are of order 2 and cover everything that the optimizers got."""
    covered: set[int] = set()
    parts = []
    for clip, (norm, scale) in zip(cycle.clips, clips, strict=True):
        if clip.order == 2.0 and covered.isdisjoint(clip.gradients):
            covered |= clip.gradients
            parts.append(norm / scale)
    return _root_of_squares(parts) if parts and covered >= cycle.gradients else None
