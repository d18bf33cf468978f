"""Find causes inside the model: attention, units, sparse codes, routers, and Adam's second moment.

The cause names the layer whose measurement changed most up to the start of the episode, or early in a plateau. For a
divergence, the first measurement after its start counts as well, as a possible cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.causes.weights import setting_check
from mlflow_stability.kinds.inside.activations import DeadUnits, RepresentationCollapse, SaturatedActivation
from mlflow_stability.kinds.inside.attention import AttentionCollapse, AttentionLogitGrowth
from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse, SdrTemperature
from mlflow_stability.kinds.optimizer.update_size import AdamRmsHigh
from mlflow_stability.vocabulary.result import (
    LOWER_BETA2,
    LOWER_RATE,
    LOWER_RATE_2_TO_5,
    RAISE_TEMPERATURE_2_TO_3,
    Action,
    Remedy,
)


@dataclass(frozen=True, slots=True)
class InsideLimits:
    same_weights: float = 0.1  # share up to which a weight norm counts as unchanged, so that codes collapsed first
    bits_used: float = 0.3  # share of bits that were ever on below which sparse codes have collapsed, ...
    bits_left: float = 0.5  # ... and share of its first value below which it must be
    adam_rms: float = 2.3  # AdamW RMS above which a loss spike follows in 1 to 8 steps (arXiv:2304.13013, figure 9)
    router_logit: float = 40.0  # router logit above which one expert is certain, ...
    router_floor: float = 20.0  # ... and above which it is if it has grown ten times
    router_entropy: float = 0.6  # share of the maximum entropy of experts' shares below which a router collapsed, ...
    router_left: float = 0.7  # ... and share of its first value below which it must be
    more_units: float = 0.2  # minimum rise of the share of dead or saturated units since the start
    always_dead: float = 0.95  # minimum share of units that are dead in all measurements for a layer to pass nothing on


LIMITS = InsideLimits()
HEADS, LOGITS, TEMPERATURE = AttentionCollapse(), AttentionLogitGrowth(), SdrTemperature()
WITHOUT_PROGRESS = ("plateau", "divergence", "gradient_vanishing")
"""Findings that heads which always attend to one position may cause; elsewhere they do so by design."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that can go wrong inside."""

    quantity: str
    cause: str
    statement: str  # takes `place`, `first` and `last`
    is_bad: Callable[[float, float], bool]  # decides from the first value and the last before the episode
    extent: Callable[[float, float], float]  # how far it changed, to name the worst layer
    certainty: str = "likely"
    before_only: bool = False  # whether a value at the first step of the episode is an effect of it and does not count
    needs_changed_weights: bool = False  # whether a divergence does this only through the weights; else it came later
    by_head: bool = False  # whether single heads do this by design, so that half of the heads of a layer must show it


def _has_grown(limit: float, floor: float) -> Callable[[float, float], bool]:
    """Return whether a logit has grown beyond a limit, or beyond a lower one by more times."""
    return lambda first, last: last > min(max(limit, LOGITS.more * first), max(floor, LOGITS.growth * first))


SIGNS = (
    Sign(
        "attention_max_logit",
        "attention_logit_growth",
        "The attention logits of {place} grew from {first} to {last}: the softmax saturates and has no gradient.",
        _has_grown(LOGITS.limit, LOGITS.floor),
        lambda first, last: last / max(first, 1e-9),
    ),
    Sign(
        "attention_entropy",
        "attention_collapse",
        "The attention of {place} collapsed: its entropy fell from {first} to {last} of its maximum.",
        lambda first, last: last < HEADS.lowest and first > HEADS.min_start,
        lambda first, last: first - last,
        by_head=True,
    ),
    Sign(
        "sdr_unique_ratio",
        "sdr_collapse",
        "The sparse codes of {place} collapsed: {last} of them were unique, {first} at the start.",
        lambda _, last: last < SdrCollapse().unique,
        lambda _, last: 1 - last,
        needs_changed_weights=True,
    ),
    Sign(
        "sdr_bit_usage",
        "sdr_collapse",
        "The sparse codes of {place} collapsed: {last} of their bits were ever on, {first} at the start.",
        lambda first, last: last < min(LIMITS.bits_used, LIMITS.bits_left * first),
        lambda first, last: first - last,
    ),
    Sign(
        "adam_rms",
        "optimizer_lag",
        "Adam's second moment of {place} was too small: its AdamW RMS rose from {first} to {last}, so steps were too "
        "large.",
        lambda first, last: last > LIMITS.adam_rms and last > AdamRmsHigh().smallest_rise * first,
        lambda first, last: last / max(first, 1e-9),
        "possible",
        before_only=True,
    ),
    Sign(
        "router_max_logit",
        "router_logit_growth",
        "The logits of router {place} grew from {first} to {last}: it sends each token to one expert with certainty, "
        "and small changes send it elsewhere.",
        _has_grown(LIMITS.router_logit, LIMITS.router_floor),
        lambda first, last: last / max(first, 1e-9),
        "possible",
    ),
    Sign(
        "router_load_entropy",
        "router_collapse",
        "Router {place} collapsed to few experts: the entropy of their shares fell from {first} to {last} of its "
        "maximum.",
        lambda first, last: last < LIMITS.router_entropy and last < LIMITS.router_left * first,
        lambda first, last: first - last,
        "possible",
    ),
    Sign(
        "activation_dead",
        "dead_units",
        "Units of {place} died: a share of {last} is never active, {first} at the start.",
        lambda first, last: last > DeadUnits().share and last > first + LIMITS.more_units,
        lambda first, last: last - first,
        "possible",
    ),
    Sign(
        "activation_saturation",
        "saturated_activation",
        "Units of {place} were saturated: a share of {last}, {first} at the start.",
        lambda first, last: last > SaturatedActivation().share and last > first + LIMITS.more_units,
        lambda first, last: last - first,
        "possible",
    ),
    Sign(
        "effective_rank",
        "representation_collapse",
        "The outputs of {place} collapsed: their effective rank fell from {first} to {last}.",
        lambda first, last: last < RepresentationCollapse().share * first,
        lambda first, last: first / max(last, 1e-9),
        "possible",
    ),
)


def inside_check(context: EpisodeContext) -> CheckResult:
    """Check what had changed inside the model before the episode."""
    measured = False
    for sign in SIGNS:
        curves = _curves(context, sign.quantity)
        ends = [_ends(curve, context.latest - sign.before_only) for curve in curves]
        result, count = _worst_place(context, sign, curves, ends)
        if result is not None:
            return result
        measured = measured or count > 0
    result = None
    if context.episode.kind in WITHOUT_PROGRESS:
        result = _always_collapsed_check(context)
    if result is None and context.episode.kind == "divergence" and setting_check(context).cause is None:
        result = _changed_right_after_check(context)
    if result is not None:
        return result
    if not measured:
        return not_checked("attention and activations: not measured")
    return ruled_out("attention, activations and sparse codes: as before")


def dead_from_start_check(context: EpisodeContext) -> CheckResult:
    """Check whether a loss that never fell has a layer whose units are dead in all measurements."""
    for curve in context.curves("activation_dead") if context.is_early else ():
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        if curve.place and len(values) > 1 and float(values.min()) >= LIMITS.always_dead:
            return cause_found(
                "dead_units",
                f"{values.min():.0%} of the units of {_layer(curve)} were zero for the whole batch in each "
                "measurement, from the first on.",
                since=int(steps[0]),
                place=curve.place,
                remedies=(Remedy(Action.CHECK_INITIALISATION), Remedy(Action.USE_LEAKY_ACTIVATION)),
            )
    return CheckResult()


def temperature_check(context: EpisodeContext) -> CheckResult:
    """Check whether the temperature of sparse codes left its range in the last measurement before, or the next one."""
    curves = [curve for curve in context.curves(TEMPERATURE.kind) if len(curve.steps) > 1]
    for curve in curves:
        at = _left_range(curve, context.latest)
        if at is None:
            continue
        (before, after), (then, now) = curve.values[at - 1 : at + 1].tolist(), curve.steps[at - 1 : at + 1].tolist()
        earlier = curve.values[:at][np.isfinite(curve.values[:at])]
        constant = float(earlier.max()) == float(earlier.min())  # one that is learned changes with each step
        place, unit = f" of {curve.place}" if curve.place else "", context.unit
        return cause_found(
            "sdr_temperature",
            f"The temperature of the sparse codes{place} went from {before:.3g} to {after:.3g} between {unit} {then} "
            f"and {unit} {now}.",
            f"it was the same in {len(earlier)} measurements before" if constant else "",
            since=then if now > context.latest else now,
            certainty="likely" if constant or now <= context.latest else "possible",
            place=curve.place,
        )
    return ruled_out("temperature of sparse codes: in range") if curves else CheckResult()


def _left_range(curve: Curve, latest: int) -> int | None:
    """Return the index of the first value out of range whose predecessor is no later than `latest`, or None."""
    first, values = float(curve.values[0]), curve.values
    low, high = TEMPERATURE.lowest, TEMPERATURE.highest
    if first > 0:
        low, high = max(low, first / TEMPERATURE.drift), min(high, first * TEMPERATURE.drift)
    outside = np.isfinite(values) & ((values < low) | (values > high))
    begins = np.flatnonzero(outside[1:] & ~outside[:-1]) + 1
    begins = begins[curve.steps[begins - 1] <= latest]
    if not len(begins):
        return None
    at, last = int(begins[-1]), min(int(np.searchsorted(curve.steps, latest, side="left")), len(values) - 1)
    return at if outside[at : last + 1].all() else None


def _curves(context: EpisodeContext, quantity: str) -> Sequence[Curve]:
    """Return the curves of a quantity; the share of unique codes relative to the share of different inputs."""
    curves = context.curves(quantity)
    if quantity != "sdr_unique_ratio":
        return curves
    inputs = {
        curve.place: dict(zip(curve.steps.tolist(), curve.values, strict=True))
        for curve in context.curves("sdr_input_ratio")
    }
    relative = []
    for curve in curves:
        shares = np.array([inputs.get(curve.place, {}).get(step, 1.0) for step in curve.steps.tolist()])
        positive = np.where(shares > 0, shares, 1.0)
        values = np.where(shares > 0, np.minimum(curve.values / positive, 1.0), curve.values)
        relative.append(replace(curve, values=values))
    return relative


def _always_collapsed_check(context: EpisodeContext) -> CheckResult | None:
    """Check for a layer all of whose heads attended to one position in every measurement."""
    layers: dict[str, list[float]] = {}
    for curve in context.curves("attention_entropy"):
        values = curve.values[(curve.steps <= context.latest) & curve.finite]
        if len(values) >= 2:
            layers.setdefault(curve.place.rpartition(".head_")[0], []).append(float(values.max()))
    collapsed = {layer: max(heads) for layer, heads in layers.items() if layer and max(heads) < HEADS.nothing}
    if not collapsed:
        return None
    place = min(collapsed, key=collapsed.__getitem__)
    return cause_found(
        "attention_collapse",
        f"The attention of {place} was collapsed from its first measurement on: the entropy of all its heads "
        f"({len(layers[place])}) stayed at or below {collapsed[place]:.3g} of its maximum.",
        f"{len(collapsed)} of {len(layers)} measured layers show it" if len(layers) > 1 else "",
        since=context.span.first,
        certainty="possible",
        place=place,
    )


def _changed_right_after_check(context: EpisodeContext) -> CheckResult | None:
    """Check for a sign in the first measurement after the start, if it is nearer than that before: a possible cause."""
    for sign in SIGNS:
        if sign.before_only:
            continue
        curves = _curves(context, sign.quantity)
        nearest = [_measurement_after(context, sign, curve) for curve in curves]
        ends = [None if step is None else _ends(curve, step) for curve, step in zip(curves, nearest, strict=True)]
        result, _ = _worst_place(context, sign, curves, ends, late=True)
        if result is not None:
            return result
    return None


def _measurement_after(context: EpisodeContext, sign: Sign, curve: Curve) -> int | None:
    """Return the step of the first measurement after the start, if it is nearer or the weights were still the same."""
    start = context.episode.start
    at = int(np.searchsorted(curve.steps, start, side="right"))
    if not 0 < at < len(curve.steps):
        return None
    earlier, later = curve.steps[at - 1 : at + 1].tolist()
    if later - start < start - earlier:
        return int(later)
    norms = context.model_curve("param_norm")
    if not sign.needs_changed_weights or norms is None:
        return None
    before = int(np.searchsorted(norms.steps, earlier, side="right")) - 1
    after = int(np.searchsorted(norms.steps, later, side="left"))
    if before < 0 or after >= len(norms.steps):
        return None
    norm, next_norm = float(norms.values[before]), float(norms.values[after])
    return int(later) if abs(next_norm - norm) < LIMITS.same_weights * norm else None


@dataclass(frozen=True, slots=True)
class Ends:
    """The usual value at the start, and the last one with its step and the step of the one before."""

    first: float
    last: float
    step: int
    step_before: int


def _ends(curve: Curve, until: int) -> Ends | None:
    usable = (curve.steps <= until) & np.isfinite(curve.values)
    values, steps = curve.values[usable], curve.steps[usable]
    if len(values) < 2:
        return None
    usual = float(np.median(values[: max(1, len(values) // 4)]))
    return Ends(usual, float(values[-1]), int(steps[-1]), int(steps[-2]))


def _worst_place(
    context: EpisodeContext, sign: Sign, curves: Sequence[Curve], ends: Sequence[Ends | None], *, late: bool = False
) -> tuple[CheckResult | None, int]:
    """Return where a sign is worst, if any shows it, and the number of places; ``late``: measured in the episode."""
    measured = [(curve, pair) for curve, pair in zip(curves, ends, strict=True) if pair is not None]
    bad = [(curve, pair) for curve, pair in measured if sign.is_bad(pair.first, pair.last)]
    if sign.by_head:
        heads, bad_heads = (Counter(_layer(curve) for curve, _ in places) for places in (measured, bad))
        bad = [place for place in bad if bad_heads[_layer(place[0])] >= HEADS.heads * heads[_layer(place[0])]]
    if not bad:
        return None, len(measured)
    curve, worst = max(bad, key=lambda place: sign.extent(place[1].first, place[1].last))
    unit, order = context.unit, ""
    if late:
        order = (
            f"normal at {unit} {worst.step_before}, changed at {unit} {worst.step}; the loss rose from {unit} "
            f"{context.episode.start} on"
        )
    result = cause_found(
        sign.cause,
        sign.statement.format(place=curve.place or "the model", first=f"{worst.first:.3g}", last=f"{worst.last:.3g}"),
        f"{len(bad)} of {len(measured)} measured places show it" if len(measured) > 1 else "",
        order,
        since=worst.step_before if late else worst.step,
        certainty="possible" if late else sign.certainty,
        place=curve.place,
    )
    return result, len(measured)


def _layer(curve: Curve) -> str:
    return curve.place.partition(".head_")[0]


CAUSES = (
    CauseType(
        "optimizer_lag",
        "Adam's second moment was too small for the gradients, so steps were too large.",
        "The AdamW RMS of a layer rose above {LIMITS.adam_rms} and to twice its earlier value. Never named with other "
        "optimizers.",
        "A bad batch raises it as well, but only in its own step, which is not counted.",
        (LOWER_BETA2, Remedy(Action.CLIP_UPDATES_OR_USE_SPAM)),
        excluded_by=lambda used: "Adam's second moment: another optimizer is used" if used.adam is False else "",
        phrase="Adam second moment too small",
    ),
    CauseType(
        "attention_logit_growth",
        "Attention logits grew so large that the softmax saturated.",
        "The largest logit of a layer rose above {LOGITS.limit} and to twice its first value, or above {LOGITS.floor} "
        "and to ten times it.",
        "A learning rate that is too high makes logits grow as well; it is checked first.",
        (Remedy(Action.NORMALISE_OR_CLIP_QUERIES_AND_KEYS), LOWER_RATE_2_TO_5),
    ),
    CauseType(
        "attention_collapse",
        "The attention of a layer collapsed to a single position.",
        "In at least half of its heads, the entropy fell from above {HEADS.min_start:percent} to below "
        "{HEADS.lowest:percent} of its maximum.",
        "Layers whose heads attend to one position by design.",
        (Remedy(Action.NORMALISE_OR_CLIP_QUERIES_AND_KEYS), LOWER_RATE_2_TO_5),
    ),
    CauseType(
        "router_collapse",
        "The router of a mixture of experts sent nearly all tokens to few experts.",
        "The entropy of the experts' shares fell below {LIMITS.router_entropy:percent} of its maximum and by "
        "{LIMITS.router_left:fall} of its earlier value.",
        "Routers that were trained before, and batches of one kind of token.",
        (Remedy(Action.ADD_BALANCING_LOSS), LOWER_RATE_2_TO_5),
    ),
    CauseType(
        "router_logit_growth",
        "The logits of a router grew until it chose experts with certainty.",
        "The largest logit, without the mean of its token, rose above {LIMITS.router_logit} and to twice its first "
        "value, or above {LIMITS.router_floor} and to ten times it.",
        "A learning rate that is too high makes logits grow as well; it is checked first.",
        (Remedy(Action.ADD_ROUTER_Z_LOSS), Remedy(Action.COMPUTE_ROUTER_IN_SINGLE), LOWER_RATE),
    ),
    CauseType(
        "sdr_collapse",
        "Sparse codes became nearly identical.",
        "Fewer than {LIMITS.bits_used:percent} of the codes were unique, or of the bits ever on, before the loss "
        "rose. Codes that were alike only in the next measurement are a possible cause, if the weight norm changed by "
        "less than {LIMITS.same_weights:percent} meanwhile.",
        "Few different inputs.",
        (RAISE_TEMPERATURE_2_TO_3, Remedy(Action.SEPARATE_TOKENS), Remedy(Action.USE_MORE_BITS)),
        phrase="collapse of sparse codes",
    ),
    CauseType(
        "saturated_activation",
        "Units were saturated.",
        "More than half of a layer's units were saturated, {LIMITS.more_units:percent} more than at the start.",
        "Units that are meant to be closed.",
        (LOWER_RATE, Remedy(Action.NORMALISE_BEFORE_ACTIVATION)),
    ),
    CauseType(
        "representation_collapse",
        "The outputs of a layer collapsed to few directions.",
        "Their effective rank fell to 10 % of its earlier value.",
        "A task with few classes needs few directions.",
        (LOWER_RATE, Remedy(Action.CHECK_LOSS_OF_CONSTANT)),
    ),
    CauseType(
        "dead_units",
        "Units died.",
        "More than half of a layer's units were never active, {LIMITS.more_units:percent} more than at the start. Or "
        "{LIMITS.always_dead:percent} were not from the first measurement on, and the loss never fell.",
        "Sparse activations by design.",
        (LOWER_RATE, Remedy(Action.USE_LEAKY_ACTIVATION)),
    ),
    CauseType(
        "sdr_temperature",
        "The temperature of sparse codes left its range.",
        "It was below {TEMPERATURE.lowest} or above {TEMPERATURE.highest}, or {TEMPERATURE.drift} times from its first "
        "value, in the last measurement before or in the next one. In the next one it is likely only if it was "
        "constant before.",
        "A temperature that is learned follows a training that diverges for another reason.",
        TEMPERATURE.remedies,
        phrase="temperature of sparse codes",
    ),
)
CHECKS = (
    Check(dead_from_start_check, {Symptom.STUCK: 32}, frozenset({"dead_units"})),
    Check(
        inside_check,
        {
            Symptom.NON_FINITE: 80,
            Symptom.RISING: 60,
            Symptom.STUCK: 50,
            Symptom.VANISHING: 40,
            Symptom.DEAD_LAYER: 20,
            Symptom.REPEATED_DATA: 30,
            Symptom.INSIDE: 20,
        },
    ),
    Check(temperature_check, {Symptom.RISING: 7, Symptom.NON_FINITE: 55}, frozenset({"sdr_temperature"})),
)
