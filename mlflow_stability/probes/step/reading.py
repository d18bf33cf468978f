"""Make the reading of a capture from the scalars that were copied from the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, isfinite
from typing import NamedTuple

from torch import Tensor

from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.parameters.per_optimizer import root_of_squares
from mlflow_stability.probes.step.step_capture import StepCapture
from mlflow_stability.vocabulary.measured.signal import LAYOUTS, UNCLIPPED, Signal, shared_layout
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signal_types, signals

SIGNALS = signals(
    SignalType(
        "loss",
        "sum of what was passed to `backward` in the step, before a `GradScaler` scales it",
        topic="loss_statistics",
        exported="llm_training_loss",
    ),
    SignalType("micro_batches", "calls of `backward` for the step", topic="optimizer", exported="llm_micro_batches"),
    SignalType(
        "graph_replays",
        "replays of CUDA graphs in the step: what they compute runs no hook, its losses are not recorded",
        topic="timing",
        left_out="zero",
    ),
    SignalType(
        "grad_norm",
        "L2 norm of all gradients, before clipping; after clipping where the recording notes so",
        topic="gradients",
        exported="llm_gradient_norm",
        by_layer=True,
        combined="norm",
    ),
    SignalType(
        "grad_norm_clipped",
        "L2 norm of all gradients, after clipping; only where the script clips",
        topic="gradients",
        exported="llm_gradient_norm_clipped",
    ),
    SignalType(
        "learning_rate",
        "learning rate of the first parameter group, as the script set it; steps that are reduced after a rollback "
        "have `learning_rate_used` beside it; further groups are `learning_rate@group_1`, …",
        topic="optimizer",
        exported="llm_learning_rate",
    ),
    SignalType("loss_scale", "scale of the `GradScaler`", topic="optimizer", exported="llm_loss_scale"),
    SignalType(
        "skipped_steps",
        "steps that were skipped so far",
        topic="optimizer",
        unit="{step}",
        exported="llm_skipped_steps_total",
        counter=True,
    ),
    SignalType("step_time", "time from the end of one step to the end of the next", topic="timing", unit="s"),
    interval="every step",
)

COPIED = "as the optimizer was given it: clipping by an engine, or of copies of the gradients, is not detected"


class ProbeReading(NamedTuple):
    """The signals of one capture and their values, in the order of their detection."""

    signals: tuple[Signal, ...]
    """The same tuple object as long as the same signals are measured."""
    values: tuple[float, ...]
    time: float
    norm_basis: str
    """``before clipping``, ``after clipping``, `UNCLIPPED` or `COPIED`; empty without a gradient norm."""
    tables: tuple[tuple[Table, Sequence[float]], ...] = ()
    """Distributions of gradients and weights in each layer, where measured, and their numbers."""
    discarded: tuple[float, ...] = ()
    """Non-finite losses whose gradients the script discarded; they belong to no step."""
    begins_step: bool = True
    """Whether this capture begins a step; else it belongs to the step before, as a GAN's second half."""


named = lru_cache(maxsize=4096)(Signal)
_TYPES = signal_types().values()
_OF_STEPS_TAKEN = frozenset(signal.quantity for signal in _TYPES if signal.of_steps_taken)
_UNLESS_ZERO = frozenset(signal.quantity for signal in _TYPES if signal.left_out == "zero")
# Weights that are all zero have no update ratio, and the output of a pooling layer has no shape: NaN means "not
# applicable" here.
_UNLESS_NAN = frozenset(signal.quantity for signal in _TYPES if signal.left_out == "nan")


def scalars_of(capture: StepCapture) -> list[Tensor | float]:
    """Return the scalars to copy to the host, in the order of `reading_of`."""
    scalars: list[Tensor | float] = [*capture.losses, *capture.discarded_losses, *capture.norms]
    for clip in capture.clips:
        scalars += (clip.norm, 1.0 if clip.scale is None else clip.scale)
    scalars += capture.learning_rates.values()
    scalars += capture.found_inf
    if capture.loss_scale is not None:
        scalars.append(capture.loss_scale)
    return scalars


def rows_of(capture: StepCapture) -> list[Tensor]:
    """Return the rows that probes left on the device, in the order of `reading_of`."""
    rows = [block.values for block in capture.blocks if isinstance(block.values, Tensor)]
    return rows + [table.values for table in capture.tables]


def reading_of(
    capture: StepCapture,
    values: Sequence[float],
    rows: Sequence[Sequence[float]],
    place: str,
    step_time: float | None,
    when: float,
    skips: dict[int, int],
) -> ProbeReading:
    """Return the reading, from the values of `scalars_of` and `rows_of`; `skips`: skipped steps by track, updated."""
    at = len(capture.losses)
    losses, discarded = values[:at], list[float]()
    if capture.discarded_losses:
        end = at + len(capture.discarded_losses)
        discarded, at = [loss for loss in values[at:end] if not isfinite(loss)], end
    end = at + len(capture.norms)
    norms, at = values[at:end], end
    end = at + 2 * len(capture.clips)
    clips, at = values[at:end], end
    end = at + len(capture.learning_rates)
    learning_rates, at = values[at:end], end
    end = at + len(capture.found_inf)
    found_inf = values[at:end]
    signals: list[Signal] = []
    readings: list[float] = []
    if not norms and capture.norm_of_all is not None:
        norms = (capture.norm_of_all,)
    elif not norms and len(clips) == 2 and capture.gradients:  # in a split model only the script took a norm
        norms = (_after_clipping(clips[0] / clips[1], capture.limits.get("max_norm")),)

    # Skips come first: detectors must know that a scaler skipped the step before they see its infinite gradient.
    not_taken = bool(found_inf) and any(flag > 0 for flag in found_inf)
    skipped = skips.get(capture.track, 0) + not_taken
    skips[capture.track] = skipped
    if capture.loss_scale is not None or skipped:
        signals.append(named("skipped_steps", place))
        readings.append(float(skipped))
    micro_batches = capture.micro_batches
    # A NaN loss gives NaN gradients: where gradients are finite, they are not its own.
    if capture.unsure and norms and all(map(isfinite, norms)):
        nonfinite = [loss for loss in losses[: capture.unsure] if not isfinite(loss)]
        losses = [loss for loss in losses[: capture.unsure] if isfinite(loss)] + list(losses[capture.unsure :])
        micro_batches -= len(nonfinite)
        discarded += nonfinite
    if losses:
        signals += (named("loss", place), named("micro_batches", place))
        readings.append(losses[0] if len(losses) == 1 else fsum(losses) if all(map(isfinite, losses)) else sum(losses))
        readings.append(float(micro_batches))
    if capture.replays:
        signals.append(named("graph_replays", place))
        readings.append(float(capture.replays))
    basis = ""
    if norms:
        before_step = norms[0] if len(norms) == 1 else root_of_squares(norms)
        signals.append(named("grad_norm", place))
        if clips:
            clip = capture.clips[0]
            if len(clips) == 2:  # a single clip, as usual
                before = clips[0] / clips[1] if clip.order == 2.0 and clip.gradients >= capture.gradients else None
            else:
                before = norm_before_clipping(capture, clips)
            basis = "after clipping" if before is None else "before clipping"
            signals.append(named("grad_norm_clipped", place))
            readings += (before_step if before is None else before, before_step)
        else:
            basis = COPIED if capture.copied else "before clipping" if capture.clipped_by_stage else UNCLIPPED
            readings.append(before_step)
    for where in capture.learning_rates:
        signals.append(named("learning_rate", where))
    readings += learning_rates
    if capture.loss_scale is not None:
        signals.append(named("loss_scale", place))
        readings.append(values[end])
    if step_time is not None:
        signals.append(named("step_time", place))
        readings.append(step_time)
    if capture.blocks:
        _add_blocks(capture, rows, not_taken, signals, readings)
    tables = tuple(zip(capture.tables, rows[len(rows) - len(capture.tables) :], strict=True)) if capture.tables else ()
    layout = LAYOUTS.get(tuple(map(id, signals))) or shared_layout(signals)
    return ProbeReading(layout, tuple(readings), when, basis, tables, tuple(discarded), capture.begins_step)


def _add_blocks(
    capture: StepCapture, rows: Sequence[Sequence[float]], not_taken: bool, signals: list[Signal], readings: list[float]
) -> None:
    """Add the measurements of probes, without those that a skipped step does not have."""
    arrived = iter(rows)
    for block in capture.blocks:
        values: Sequence[float] = next(arrived) if isinstance(block.values, Tensor) else block.values
        if block.on_host is not None:
            values = block.on_host(values)
        for signal, value in zip(block.signals, values, strict=True):
            quantity = signal.quantity
            left_out = (
                (not_taken and quantity in _OF_STEPS_TAKEN)
                or (value == 0 and quantity in _UNLESS_ZERO)
                or (value != value and quantity in _UNLESS_NAN)
            )
            if not left_out:
                signals.append(signal)
                readings.append(value)


def _after_clipping(norm: float, limit: float | None) -> float:
    """The norm after `clip_grad_norm_`."""
    return norm if limit is None else norm * min(1.0, limit / (norm + 1e-6))


def norm_before_clipping(capture: StepCapture, numbers: Sequence[float]) -> float | None:
    """Return the script's own norms combined, or None unless they are of order 2 and cover all gradients of the step.

    `numbers` are for each clip the norm, and the loss scale at that time.
    """
    covered: set[int] = set()
    parts = []
    for at, clip in enumerate(capture.clips):
        if clip.order == 2.0 and covered.isdisjoint(clip.gradients):
            covered |= clip.gradients
            parts.append(numbers[2 * at] / numbers[2 * at + 1])
    return root_of_squares(parts) if parts and covered >= capture.gradients else None
