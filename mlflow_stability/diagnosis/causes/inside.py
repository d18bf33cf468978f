"""Looks for the cause in layers: attention, units, sparse codes, routers, and an optimizer that lags.

Names the layer in which a measurement changed most, up to the beginning or early in a plateau; of a divergence also
what changed in the first measurement after it, as a possible cause. Asked after learning rate and data, which mostly
cause it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.weights import setting_check
from mlflow_stability.kinds.inside.attention_collapse import AttentionCollapse
from mlflow_stability.kinds.inside.attention_logit_growth import AttentionLogitGrowth
from mlflow_stability.kinds.inside.dead_units import DeadUnits
from mlflow_stability.kinds.inside.representation_collapse import RepresentationCollapse
from mlflow_stability.kinds.inside.saturated_activation import SaturatedActivation
from mlflow_stability.kinds.inside.sdr_collapse import SdrCollapse
from mlflow_stability.kinds.optimizer.adam_rms_high import AdamRmsHigh
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
    """Thresholds of the causes inside that no detector has."""

    same_weights: float = 0.1
    """Share by which the weight norm may change for the weights to be the same: codes that became alike did so
    first."""
    bits_used: float = 0.3
    """Share of bits that were ever on below which sparse codes have collapsed, ..."""
    bits_left: float = 0.5
    """... and share of its first value below which it must be."""
    adam_rms: float = 2.3
    """AdamW RMS above which a loss spike follows in 1 to 8 steps (arXiv:2304.13013, figure 9)."""
    router_logit: float = 40.0
    """Router logit above which one expert is certain; from `router_floor` on if it has grown much."""
    router_floor: float = 20.0
    """Minimum router logit."""
    router_entropy: float = 0.6
    """Share of the maximum entropy of the experts' shares below which a router has collapsed, ..."""
    router_left: float = 0.7
    """... and share of its first value below which it must be."""
    more_units: float = 0.2
    """Minimum rise of the share of dead or saturated units since the start."""
    born_dead: float = 0.95
    """Share of dead units in the first measurement from which on a layer lets nothing through."""


LIMITS = InsideLimits()
HEADS, LOGITS = AttentionCollapse(), AttentionLogitGrowth()
STANDS_STILL = ("plateau", "divergence", "gradient_vanishing")
"""... in all heads of a layer, and where nothing is learned, that is no habit of theirs."""
OF_INPUTS = "sdr_input_ratio"
"""The share of inputs that differ."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that can go wrong inside."""

    quantity: str
    name: str
    """Of the cause."""
    what: str
    """The sentence; takes `place`, `first` and `last`."""
    ill: Callable[[float, float], bool]
    """Whether it is, from the first value and the last before the trouble."""
    far: Callable[[float, float], float]
    """How far it went, so that the worst layer is named."""
    certainty: str = "likely"
    strictly: bool = False
    """Whether it counts only from before the step of the trouble: in that very step it comes of the trouble itself."""
    through_weights: bool = False
    """Whether a divergence does this through the weights only, so that where these are as before it came first."""
    of_heads: bool = False
    """Whether single heads do this by design, so that it counts in half of the heads of a layer."""


SIGNS = (
    Sign(
        "attention_max_logit",
        "attention_logit_growth",
        "The attention logits of {place} grew from {first} to {last}: the softmax saturates and has no gradient.",
        lambda first, last: (
            last > min(max(LOGITS.limit, LOGITS.more * first), max(LOGITS.floor, LOGITS.growth * first))
        ),
        lambda first, last: last / max(first, 1e-9),
    ),
    Sign(
        "attention_entropy",
        "attention_collapse",
        "The attention of {place} collapsed: its entropy fell from {first} to {last} of its maximum.",
        lambda first, last: last < HEADS.lowest and first > HEADS.born,
        lambda first, last: first - last,
        of_heads=True,
    ),
    Sign(
        "sdr_unique_ratio",
        "sdr_collapse",
        "The sparse codes of {place} collapsed: {last} of them were unique, {first} at the start.",
        lambda _, last: last < SdrCollapse().unique,
        lambda _, last: 1 - last,
        through_weights=True,
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
        strictly=True,
    ),
    Sign(
        "router_max_logit",
        "router_logit_growth",
        "The logits of router {place} grew from {first} to {last}: it sends each token to one expert with certainty, "
        "and small changes send it elsewhere.",
        lambda first, last: (
            last > min(max(LIMITS.router_logit, LOGITS.more * first), max(LIMITS.router_floor, LOGITS.growth * first))
        ),
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


def inside_check(around: EpisodeContext) -> CheckResult:
    """What had gone wrong inside the model before it showed."""
    episode, seen = around.episode, False
    for sign in SIGNS:
        curves = _curves(around, sign.quantity)
        limits = [around.latest - sign.strictly for _ in curves]
        ends = [_ends(curve, until) for curve, until in zip(curves, limits, strict=True)]
        found, known = _worst(around, sign, ends, curves)
        seen = seen or known > 0
        if found is not None:
            return found
    never = _never_looked(around) if episode.kind in STANDS_STILL else None
    if never is not None:
        return never
    meanwhile = _right_after(around) if episode.kind == "divergence" and setting_check(around).cause is None else None
    if meanwhile is not None:
        return meanwhile
    return (
        is_not("attention, activations and sparse codes: as before")
        if seen
        else not_seen("attention and activations: not measured")
    )


def born_dead_check(around: EpisodeContext) -> CheckResult:
    """Whether a layer lets nothing through since the first measurement, where the loss never fell."""
    if not around.is_early:
        return CheckResult()
    for curve in around.of("activation_dead"):
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        if curve.place and len(values) > 1 and float(values.min()) >= LIMITS.born_dead:
            place, share = _layer(curve), f"{float(values.min()):.0%}"
            said = (
                f"{share} of the units of {place} were zero for the whole batch in each measurement, from the first on."
            )
            remedies = (Remedy(Action.CHECK_INITIALISATION), Remedy(Action.USE_LEAKY_ACTIVATION))
            return is_it("dead_units", said, since=int(steps[0]), place=curve.place, remedies=remedies)
    return CheckResult()


def _curves(around: EpisodeContext, quantity: str) -> Sequence[Curve]:
    """What was measured of a quantity, by place; of unique codes the share that different inputs could have had."""
    curves = around.of(quantity)
    if quantity != "sdr_unique_ratio":
        return curves
    inputs = {each.place: dict(zip(each.steps.tolist(), each.values, strict=True)) for each in around.of(OF_INPUTS)}
    found = []
    for curve in curves:
        shares = np.array([inputs.get(curve.place, {}).get(step, 1.0) for step in curve.steps.tolist()])
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(
                replace(curve, values=np.where(shares > 0, np.minimum(curve.values / shares, 1.0), curve.values))
            )
    return found


def _never_looked(around: EpisodeContext) -> CheckResult | None:
    """A layer all of whose heads looked at one place in every measurement so far."""
    layers: dict[str, list[float]] = {}
    for curve in around.of("attention_entropy"):
        values = curve.values[(curve.steps <= around.latest) & curve.finite]
        if len(values) >= 2:
            layers.setdefault(curve.place.rpartition(".head_")[0], []).append(float(values.max()))
    still = {layer: highest for layer, highest in layers.items() if layer and max(highest) < HEADS.nothing}
    if not still:
        return None
    place = min(still, key=lambda each: max(still[each]))
    return is_it(
        "attention_collapse",
        f"The attention of {place} was collapsed from its first measurement on: the entropy of all its heads "
        f"({len(still[place])}) stayed at or below {shown(max(still[place]))} of its maximum.",
        f"{len(still)} of {len(layers)} measured layers show it" if len(layers) > 1 else "",
        since=around.span.first,
        certainty="possible",
        place=place,
    )


def _right_after(around: EpisodeContext) -> CheckResult | None:
    """What was as before in the last measurement before, and ill in the next, which lies nearer to the beginning.

    It went wrong somewhere between the two, so that it may have begun before the trouble did: possible, and no more.
    """
    start = around.episode.start
    for sign in (each for each in SIGNS if not each.strictly):
        curves = _curves(around, sign.quantity)
        nearest = [_next_if_nearer(curve, start) or _next_of_same_weights(sign, curve, around) for curve in curves]
        ends = [None if at is None else _ends(curve, at) for curve, at in zip(curves, nearest, strict=True)]
        found, _ = _worst(around, sign, ends, curves, late=True)
        if found is not None:
            return found
    return None


def _next_of_same_weights(sign: Sign, curve: Curve, around: EpisodeContext) -> int | None:
    """The step of the next measurement, where the norm of all weights was then what it had been before."""
    norms = around.whole("param_norm")
    at = int(np.searchsorted(curve.steps, around.episode.start, side="right"))
    if not sign.through_weights or norms is None or not 0 < at < len(curve.steps):
        return None
    before = int(np.searchsorted(norms.steps, curve.steps[at - 1], side="right")) - 1
    after = int(np.searchsorted(norms.steps, curve.steps[at], side="left"))
    if before < 0 or after >= len(norms.steps):
        return None
    then, now = float(norms.values[before]), float(norms.values[after])
    return int(curve.steps[at]) if abs(now - then) < LIMITS.same_weights * then else None


@dataclass(frozen=True, slots=True)
class Ends:
    """The usual value at the start, and the last one before the trouble with its step and that of the one before."""

    first: float
    last: float
    step: int
    step_before: int


def _worst(
    around: EpisodeContext, sign: Sign, ends: Sequence[Ends | None], curves: Sequence[Curve], *, late: bool = False
) -> tuple[CheckResult | None, int]:
    """The place where it is worst, if it is anywhere, and of how many places it is known.

    ``late``: measured when the episode had begun.
    """
    known = [(curve, pair) for curve, pair in zip(curves, ends, strict=True) if pair is not None]
    ill = [(curve, pair) for curve, pair in known if sign.ill(pair.first, pair.last)]
    if sign.of_heads:
        heads, together = (Counter(_layer(curve) for curve, _ in each) for each in (known, ill))
        ill = [each for each in ill if together[_layer(each[0])] >= HEADS.heads * heads[_layer(each[0])]]
    if not ill:
        return None, len(known)
    curve, worst = max(ill, key=lambda each: sign.far(each[1].first, each[1].last))
    unit, order = around.unit, ""
    if late:
        order = f"normal at {unit} {worst.step_before}, changed at {unit} {worst.step}; "
        order += f"the loss rose from {unit} {around.episode.start} on"
    look = is_it(
        sign.name,
        sign.what.format(place=curve.place or "the model", first=shown(worst.first), last=shown(worst.last)),
        f"{len(ill)} of {len(known)} measured places show it" if len(known) > 1 else "",
        order,
        since=worst.step_before if late else worst.step,
        certainty="possible" if late else sign.certainty,
        place=curve.place,
    )
    return look, len(known)


def _layer(curve: Curve) -> str:
    return curve.place.partition(".head_")[0]


def _next_if_nearer(curve: Curve, start: int) -> int | None:
    at = int(np.searchsorted(curve.steps, start, side="right"))
    if not 0 < at < len(curve.steps):
        return None
    before, after = int(curve.steps[at - 1]), int(curve.steps[at])
    return after if after - start < start - before else None


def _ends(curve: Curve, until: int) -> Ends | None:
    usable = (curve.steps <= until) & np.isfinite(curve.values)
    values, steps = curve.values[usable], curve.steps[usable]
    if len(values) < 2:
        return None
    usual = float(np.median(values[: max(1, len(values) // 4)]))
    return Ends(usual, float(values[-1]), int(steps[-1]), int(steps[-2]))


CAUSES = (
    CauseDocumentation(
        "optimizer_lag",
        "Adam's second moment was too small for the gradients, so steps were too large.",
        "The AdamW RMS of a layer rose above {LIMITS.adam_rms} and to twice its earlier value. Never named with other "
        "optimizers.",
        "A bad batch raises it as well, but only in its own step, which is not counted.",
        (LOWER_BETA2, Remedy(Action.CLIP_UPDATES_OR_USE_SPAM)),
        excluded_by=lambda known: "Adam's second moment: another optimizer is used" if known.adam is False else "",
        phrase="Adam second moment too small",
    ),
    CauseDocumentation(
        "attention_logit_growth",
        "Attention logits grew so large that the softmax saturated.",
        "The largest logit of a layer rose above {LOGITS.limit} and to twice its first value, or above {LOGITS.floor} "
        "and to ten times it.",
        "A learning rate that is too high makes logits grow as well; it is checked first.",
        (Remedy(Action.NORMALISE_OR_CLIP_QUERIES_AND_KEYS), LOWER_RATE_2_TO_5),
    ),
    CauseDocumentation(
        "attention_collapse",
        "The attention of a layer collapsed to a single position.",
        "In at least half of its heads, the entropy fell from above {HEADS.born:percent} to below "
        "{HEADS.lowest:percent} of its maximum.",
        "Layers whose heads attend to one position by design.",
        (Remedy(Action.NORMALISE_OR_CLIP_QUERIES_AND_KEYS), LOWER_RATE_2_TO_5),
    ),
    CauseDocumentation(
        "router_collapse",
        "The router of a mixture of experts sent nearly all tokens to few experts.",
        "The entropy of the experts' shares fell below {LIMITS.router_entropy:percent} of its maximum and by "
        "{LIMITS.router_left:fall} of its earlier value.",
        "Routers that were trained before, and batches of one kind of token.",
        (Remedy(Action.ADD_BALANCING_LOSS), LOWER_RATE_2_TO_5),
    ),
    CauseDocumentation(
        "router_logit_growth",
        "The logits of a router grew until it chose experts with certainty.",
        "The largest logit, without the mean of its token, rose above {LIMITS.router_logit} and to twice its first "
        "value, or above {LIMITS.router_floor} and to ten times it.",
        "A learning rate that is too high makes logits grow as well; it is checked first.",
        (Remedy(Action.ADD_ROUTER_Z_LOSS), Remedy(Action.COMPUTE_ROUTER_IN_SINGLE), LOWER_RATE),
    ),
    CauseDocumentation(
        "sdr_collapse",
        "Sparse codes became nearly identical.",
        "Fewer than {LIMITS.bits_used:percent} of the codes were unique, or of the bits ever on, before the loss "
        "rose. Codes that were alike only in the next measurement are a possible cause, if the weight norm changed by "
        "less than {LIMITS.same_weights:percent} meanwhile.",
        "Few different inputs.",
        (RAISE_TEMPERATURE_2_TO_3, Remedy(Action.SEPARATE_TOKENS), Remedy(Action.USE_MORE_BITS)),
        phrase="collapse of sparse codes",
    ),
    CauseDocumentation(
        "saturated_activation",
        "Units were saturated.",
        "More than half of a layer's units were saturated, {LIMITS.more_units:percent} more than at the start.",
        "Units that are meant to be closed.",
        (LOWER_RATE, Remedy(Action.NORMALISE_BEFORE_ACTIVATION)),
    ),
    CauseDocumentation(
        "representation_collapse",
        "The outputs of a layer collapsed to few directions.",
        "Their effective rank fell to 10 % of its earlier value.",
        "A task with few classes needs few directions.",
        (LOWER_RATE, Remedy(Action.CHECK_LOSS_OF_CONSTANT)),
    ),
    CauseDocumentation(
        "dead_units",
        "Units died.",
        "More than half of a layer's units were never active, {LIMITS.more_units:percent} more than at the start. Or "
        "{LIMITS.born_dead:percent} were not from the first measurement on, and the loss never fell.",
        "Sparse activations by design.",
        (LOWER_RATE, Remedy(Action.USE_LEAKY_ACTIVATION)),
    ),
)
CHECKS = (
    Check(born_dead_check, {Symptom.STUCK: 32}, frozenset({"dead_units"})),
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
)
