"""The checklist of each kind of finding: its questions in their order, filled in from a run, and what to decide.

Guarantees: what the run does not show is unknown, never guessed. A decision names a rate or a step only if the run
recorded it, and nothing that was done already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.advice import MIN_STEPS_BEFORE
from mlflow_stability.diagnosis.causes.context import EpisodeContext, episode_context, jumps_in
from mlflow_stability.diagnosis.checklist.questions import QUESTIONS
from mlflow_stability.diagnosis.checklist.sources import Case, State
from mlflow_stability.diagnosis.findings.attempts import FOR_EVER
from mlflow_stability.kinds.progress.overfitting import BestStepFacts
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    RAISE_TEMPERATURE_2_TO_3,
    WARM_UP_LEARNING_RATE,
    Action,
    Diagnosis,
    Finding,
    Remedy,
    Severity,
    Text,
)
from mlflow_stability.vocabulary.run import RunHistory

RATE_FACTOR = 3.0  # factor by which a learning rate is lowered or raised if nothing shows to which value


RESTART = Action.RESTART_BEFORE_STEP
LOWER_RATE = Action.LOWER_LEARNING_RATE
RAISE_RATE = Action.RAISE_LEARNING_RATE
NEWEST = Action.RESTART_FROM_NEWEST
BF16 = Action.TRAIN_IN_BF16_OR_SCALE
TOO_FAST = (
    "learning_rate_too_high learning_rate_jump gradient_explosion optimizer_lag attention_logit_growth "
    "attention_collapse router_logit_growth dead_units saturated_activation"
)
"""Causes that show that optimizer steps were too large."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision, for cases that meet one of its conditions, for all without any; names are separated by spaces."""

    when: str
    actions: tuple[Action | Remedy, ...]
    causes: str = ""  # where one of these is the cause
    bad: str = ""  # where one of these questions has a bad answer
    if_recovered: bool = False  # where the trouble passed by itself
    unless_found: str = ""  # where no finding of these kinds began at the same time or later

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        return tuple(Remedy(action) if isinstance(action, Action) else action for action in self.actions)

    @property
    def is_always(self) -> bool:
        """Whether it applies to any case."""
        return not (self.causes or self.bad or self.if_recovered or self.unless_found)

    def applies(self, case: Case, states: Mapping[str, State]) -> bool:
        if self.is_always:
            return True
        episode = case.context.episode
        later = (finding.start >= episode.start for finding in case.findings(*self.unless_found.split()))
        return (
            (episode.cause is not None and episode.cause.name in self.causes.split())
            or any(states.get(key) == "bad" for key in self.bad.split())
            or (self.if_recovered and episode.recovered is True)
            or (bool(self.unless_found) and not any(later))
        )


CHOICES: dict[str, Choice] = {
    "passed": Choice(
        "the run recovered by itself", (Action.CONTINUE, Action.LEAVE_OUT_BATCH_IF_AGAIN), if_recovered=True
    ),
    "continue": Choice("the run recovered by itself", (Action.CONTINUE,), if_recovered=True),
    "one_batch": Choice(
        "one batch is the cause", (RESTART, Action.LEAVE_OUT_BATCH), causes="bad_batch tensor_from_outside"
    ),
    "damaged": Choice(
        "weights, optimizer state or the device are damaged",
        (RESTART, Action.KEEP_LEARNING_RATE, Action.TEST_DEVICE_IF_AGAIN),
        causes="damaged_weights optimizer_state hardware",
    ),
    "changed": Choice(
        "a setting changed just before",
        (Action.UNDO_CHANGE, RESTART),
        causes="configuration_changed frozen_parameters gradients_not_cleared repeated_data weight_decay",
    ),
    "no_warm_up": Choice(
        "the learning rate was not warmed up",
        (Action.RESTART_FROM_START, WARM_UP_LEARNING_RATE, Action.KEEP_PEAK_RATE),
        causes="no_warm_up",
    ),
    "slower": Choice("steps were too large", (RESTART, LOWER_RATE), causes=TOO_FAST),
    "undefined": Choice(
        "an operation or the loss is undefined for its inputs",
        (Action.FIX_OPERATION, RESTART, Action.KEEP_LEARNING_RATE),
        causes="loss_function invalid_operation",
    ),
    "overflow": Choice(
        "numbers overflowed in half precision", (RESTART, BF16), causes="overflow fp16_scale gradient_non_finite"
    ),
    "clip": Choice("gradients are not clipped", (CLIP_GRADIENTS, RESTART, Action.KEEP_LEARNING_RATE), bad="clipping"),
    "otherwise": Choice("no cause was found", (RESTART, Action.LEAVE_OUT_BATCHES, Action.LOWER_RATE_IF_AGAIN)),
    "units_died": Choice(
        "units died or saturated at a high rate",
        (RESTART, LOWER_RATE),
        causes=TOO_FAST,
        bad="dead_units saturated_activation",
    ),
    "rate_too_low": Choice(
        "the learning rate is too low", (RAISE_RATE, Action.CONTINUE), causes="learning_rate_too_low"
    ),
    "unreached": Choice(
        "the gradient does not reach the first layers",
        (Action.RESTART_FROM_START, Action.ADD_RESIDUALS_OR_NORMALISE, Action.CHECK_INITIALISATION),
    ),
    "at_chance": Choice(
        "the loss never left chance level",
        (Action.CHECK_LABELS, Action.LOOK_FOR_FROZEN_PARAMETERS, Action.RESTART_FROM_START),
        causes="guessing constant_output",
    ),
    "rate_ended": Choice(
        "the learning rate is too low, or its schedule ended",
        (RAISE_RATE, NEWEST),
        causes="learning_rate_too_low",
        bad="rate_left update_ratio_low",
    ),
    "collapsed": Choice(
        "units died, saturated or collapsed",
        (RESTART, LOWER_RATE),
        causes=TOO_FAST,
        bad="dead_units saturated_activation representation_collapse noise",
    ),
    "exhausted": Choice("no cause was found", (LOWER_RATE, Action.STOP_UNLESS_LOSS_FALLS)),
    "overfitted": Choice(
        "the validation loss rises while the training loss falls", (Action.STOP_AT_BEST, Action.RESTART_REGULARISED)
    ),
    "waits": Choice(
        "the training waits for data", (NEWEST, Action.ADD_WORKERS, Action.KEEP_LEARNING_RATE), bad="data_time"
    ),
    "nearly_full": Choice("memory is nearly full", (NEWEST, Action.HALVE_MICRO_BATCH), bad="memory_pressure"),
    "device": Choice("the device computes more slowly", (Action.CONTINUE_OR_CHANGE_DEVICE,)),
    "leaks": Choice("memory grew from step to step", (Action.LOOK_FOR_KEPT_TENSORS, NEWEST), bad="memory host_memory"),
    "full": Choice("memory was full from the start", (NEWEST, Action.HALVE_MICRO_BATCH)),
    "alike": Choice(
        "the inputs of the encoder are alike",
        (Action.FIX_DATA, RESTART, Action.KEEP_LEARNING_RATE),
        bad="code_inputs repeated_data",
    ),
    "cold": Choice("the temperature is too low", (RAISE_TEMPERATURE_2_TO_3, RESTART), bad="sdr_temperature"),
    "codes": Choice("codes collapsed without another cause", (RESTART, Action.SEPARATE_CODES, LOWER_RATE)),
    "logits": Choice(
        "attention logits grew",
        (RESTART, Action.NORMALISE_QUERIES_AND_KEYS, LOWER_RATE),
        bad="attention_logit_growth logit_size",
    ),
    "falls": Choice("the loss still falls", (Action.CONTINUE_WHILE_LOSS_FALLS,)),
    "router_logits": Choice("router logits grew", (RESTART, Action.ADD_ROUTER_Z_LOSS, LOWER_RATE), bad="router_logits"),
    "unused": Choice("experts are not used", (RESTART, Action.ADD_WEIGHTED_BALANCING_LOSS)),
    "low_scale": Choice("the loss scale stays low", (RESTART, BF16)),
    "ended": Choice("the process ended before its time", (Action.FIX_CAUSE, NEWEST)),
    "loss_normal": Choice(
        "the loss was normal after it",
        (Action.CONTINUE_AT_NEW_RATE,),
        unless_found="loss_spike divergence nan_detected inf_detected",
    ),
    "loss_rose": Choice("the loss rose after it", (RESTART, Action.CHECK_SCHEDULE)),
}
"""Choices by key: the first one of a checklist that applies is its decision."""


@dataclass(frozen=True, slots=True)
class Order:
    """One checklist; keys of `QUESTIONS` and `CHOICES`, separated by spaces."""

    kinds: str  # the kinds of finding that it is for
    questions: str
    choices: str


GENERAL = Order("", "data gradients learning_rate numerics", "passed one_batch slower otherwise")
"""For kinds without a checklist of their own: the order that experienced people use."""
NOTHING_FOUND = Order("", f"{GENERAL.questions} validation model_check memory good_state", GENERAL.choices)
"""For a run without findings."""
ORDERS: dict[str, Order] = {
    kind: order
    for order in (
        Order(
            "nan_detected inf_detected activation_nonfinite",
            "locate inputs overflow loss_function activation_nonfinite activations_large learning_rate "
            "learning_rate_jump gradients clipping numerics loss_scale_collapse step_skipped precision eps "
            "optimizer_state weight_spike logit_size configuration_changed anomaly",
            "one_batch undefined overflow damaged changed no_warm_up slower otherwise",
        ),
        Order(
            "loss_spike",
            "good_state data batch recurs gradients layer_explosion clipping learning_rate learning_rate_jump "
            "warm_up update_ratio_high adam_rms_high beta2 weight_spike attention_logit_growth qk_scale "
            "activations_large norm_eps numerics precision batch_size micro_batches memory_then "
            "configuration_changed rollbacks",
            "passed one_batch damaged changed no_warm_up slower otherwise",
        ),
        Order(
            "divergence",
            "learning_rate learning_rate_jump warm_up gradients layer_explosion clipping missing_zero_grad "
            "update_ratio_high adam_rms_high beta2 weight_spike weight_decay attention_logit_growth data "
            "repeated_data batch_size numerics precision configuration_changed rollbacks seed",
            "one_batch damaged changed no_warm_up slower passed otherwise",
        ),
        Order(
            "gradient_explosion layer_explosion",
            "gradients gradient_explosion layer_explosion flow clipping missing_zero_grad learning_rate "
            "learning_rate_jump warm_up data batch update_ratio_high weight_spike weight_imbalance activations_large "
            "attention_logit_growth reduction residual numerics precision",
            "one_batch damaged changed no_warm_up slower passed clip otherwise",
        ),
        Order(
            "gradient_vanishing dead_layer gradient_imbalance",
            "gradients gradient_vanishing flow gradient_imbalance dead_layer dead_units saturated_activation "
            "activation_scale weight_imbalance residual activation_function depth learning_rate rate_left "
            "update_ratio_low weight_decay model_check labels numerics precision",
            "changed units_died rate_too_low continue unreached",
        ),
        Order(
            "plateau slow_progress",
            "labels overfit_batch data repeated_data shuffling learning_rate rate_left warm_up noise gradients flow "
            "dead_layer dead_units saturated_activation update_ratio_low model_check representation_collapse "
            "weight_decay batch_size skipped_rounding",
            "changed at_chance rate_ended collapsed exhausted",
        ),
        Order(
            "overfitting",
            "validation gap epochs data repeated_data shuffling leak eval_mode augmentation dropout weight_decay "
            "model_size learning_rate batch_size seed",
            "continue overfitted",
        ),
        Order(
            "step_time_increase throughput_drop low_mfu low_gpu_utilization",
            "step_time_increase throughput_drop data_time forward_time backward_time optimizer_time overhead low_mfu "
            "low_gpu_utilization batch_size precision matmul compiled threads devices memory_pressure "
            "synchronisation io heat",
            "waits nearly_full continue device",
        ),
        Order(
            "memory_pressure out_of_memory",
            "memory memory_pressure host_memory end batch_size lengths accumulation precision checkpointing "
            "optimizer_memory graph no_grad fragmentation threads devices compiled",
            "leaks full",
        ),
        Order(
            "sdr_collapse sdr_low_diversity sdr_bit_usage sdr_temperature",
            "sdr_collapse sdr_low_diversity unique_ratio code_inputs repeated_data active_bits sdr_bit_usage duty "
            "sdr_temperature code_loss code_width rank representation_collapse learning_rate learning_rate_jump "
            "gradients dead_layer weight_spike",
            "alike slower cold continue codes",
        ),
        Order(
            "attention_collapse attention_logit_growth",
            "attention_collapse entropy attention_logit_growth logit_size qk_scale mask positions learning_rate "
            "learning_rate_jump warm_up gradients clipping layer_explosion weight_growth weight_decay "
            "update_ratio_high representation_collapse precision",
            "no_warm_up changed continue logits falls",
        ),
        Order(
            "router_collapse dead_expert",
            "router_collapse dead_expert load router_logits dropped balance capacity learning_rate "
            "learning_rate_jump warm_up gradients clipping dead_layer update_ratio_high weight_spike data batch_size "
            "precision",
            "changed no_warm_up continue router_logits unused",
        ),
        Order(
            "loss_scale_collapse step_skipped",
            "numerics loss_scale_collapse step_skipped overflow activation_nonfinite activations_large gradients "
            "clipping learning_rate precision eps loss_function",
            "continue low_scale",
        ),
        Order(
            "learning_rate_jump",
            "learning_rate learning_rate_jump warm_up configuration_changed gradients update_ratio_high",
            "loss_normal loss_rose",
        ),
        Order("crashed killed stall", "end memory host_memory numerics stall io", "ended"),
    )
    for kind in order.kinds.split()
}
"""The checklist of each kind of finding that has one."""


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    question: str
    finding: str = ""  # what this run shows; empty where no run was given
    state: State = "unknown"
    how: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    when: str  # on what it depends; of a run, what was found
    remedies: tuple[Remedy, ...]

    @property
    def do(self) -> str:
        return " ".join(map(str, self.remedies))


@dataclass(frozen=True, slots=True)
class Checklist:
    kind: str  # the type of finding it is for; empty for the general one
    items: tuple[ChecklistItem, ...]
    decisions: tuple[Decision, ...]  # of a run, the one that applies; else all, each with its condition
    note: str = ""  # what to know of it: this type has no checklist of its own, or the run has no such finding


def checklist_of(kind: str = "", history: RunHistory | None = None, diagnosis: Diagnosis | None = None) -> Checklist:
    """Return the checklist of a kind, else of the run's worst finding, filled in if a run and a diagnosis are given."""
    episode = _episode(kind, diagnosis.findings if diagnosis is not None else ())
    kind_asked = kind or (episode.kind if episode is not None else "")
    order = NOTHING_FOUND if history is not None and not kind_asked else ORDERS.get(kind_asked, GENERAL)
    own = [kind_asked] if kind_asked in QUESTIONS and order is GENERAL else []
    questions = {key: QUESTIONS[key] for key in (*own, *order.questions.split())}
    choices = [CHOICES[key] for key in order.choices.split()]
    is_general = kind_asked and kind_asked not in ORDERS
    note = f"{kind_asked} has no checklist of its own: this is the general one." if is_general else ""
    if history is None or diagnosis is None:
        items = tuple(ChecklistItem(question.text, how=question.check_by_hand) for question in questions.values())
        conditions = (Decision(choice.when, tuple(map(_with_factor, choice.remedies))) for choice in choices)
        return Checklist(kind_asked, items, tuple(conditions), note)
    curves = run_curves(history)
    if episode is None:
        last = diagnosis.steps[1] if diagnosis.steps else 0
        attempt = max((curve.attempt for curve in curves.losses), default=0)
        episode = Finding.at(Text(""), last, Severity.INFO, attempt=attempt)
        note = " ".join(filter(None, (note, f"The run has no {kind} finding." if kind else "")))
    case = Case(episode_context(episode, history, curves), diagnosis)
    answers = {key: question.answer(case) for key, question in questions.items()}
    items = tuple(
        ChecklistItem(question.text, answers[key].text, answers[key].state, question.check_by_hand)
        for key, question in questions.items()
    )
    states = {key: answer.state for key, answer in answers.items()}
    return Checklist(kind_asked, items, _decisions(choices, case, states), note)


def _episode(kind: str, episodes: Sequence[Finding]) -> Finding | None:
    """Return the first episode of the kind; without a kind, the first of the worst above INFO."""
    if kind:
        return next((episode for episode in episodes if episode.kind == kind), None)
    bad = [episode for episode in episodes if episode.severity > Severity.INFO]
    return min(bad, key=lambda episode: (-episode.severity, episode.attempt, episode.start), default=None)


def _decisions(choices: Iterable[Choice], case: Case, states: Mapping[str, State]) -> tuple[Decision, ...]:
    """Return the first choice that applies to a run."""
    last = case.context.span.last
    if not case.has_finding:
        return (Decision("nothing was found", (Remedy(Action.CONTINUE),)),)
    if last < FOR_EVER:
        return (Decision(f"the run was rolled back at step {last}", (Remedy(Action.CONTINUE),)),)
    choice = next((choice for choice in choices if choice.applies(case, states)), None)
    if choice is None:
        return ()
    return (Decision(choice.when, tuple(_of_run(remedy, case) for remedy in choice.remedies)),)


def _with_factor(remedy: Remedy) -> Remedy:
    needs_factor = "change" in remedy.action.parts and remedy.factor is None
    return replace(remedy, factor=RATE_FACTOR) if needs_factor else remedy


def _of_run(remedy: Remedy, case: Case) -> Remedy:
    context, episode = case.context, case.context.episode
    if remedy.action is Action.STOP_AT_BEST:
        best = episode.facts_as(BestStepFacts)
        validations = (curve.best_step for curve in case.diagnosis.curves if "val" in curve.metric.lower())
        return replace(remedy, step=next(validations, None) if best is None else best.best_step, unit=episode.unit)
    if "change" in remedy.action.parts and remedy.factor is None:
        remedy = _with_rate(remedy, context)
    if "step" not in remedy.action.parts:
        return remedy
    if remedy.action is not Action.RESTART_BEFORE_STEP:
        return replace(remedy, step=episode.start, unit=episode.unit)
    since = episode.cause.since if episode.cause is not None else None
    first = episode.start if since is None else min(since, episode.start)
    if context.loss is None or first - int(context.loss.steps[0]) < MIN_STEPS_BEFORE:
        return Remedy(Action.RESTART_FROM_START)
    return replace(remedy, step=first, unit=episode.unit)


def _with_rate(remedy: Remedy, context: EpisodeContext) -> Remedy:
    """Return a remedy with the old and the new rate: those of the cause, back from a jump, or by a factor."""
    cause, is_raise = context.episode.cause, remedy.action is Action.RAISE_LEARNING_RATE
    if not is_raise and cause is not None:
        for other in cause.remedies:
            if other.action is Action.LOWER_LEARNING_RATE and other.baseline is not None:
                return replace(remedy, baseline=other.baseline, target=other.target, factor=other.factor)
        jumps = [jump for rate in context.rates for jump in jumps_in(rate) if jump.step <= context.episode.start]
        if cause.name == "learning_rate_jump" and jumps:
            return replace(remedy, baseline=jumps[-1].after, target=jumps[-1].before)
    rates = np.concatenate([context.during(rate) for rate in context.rates] or [np.zeros(0)])
    now = float(np.max(rates, where=np.isfinite(rates), initial=0.0))
    if now <= 0:
        return _with_factor(remedy)
    target = now * RATE_FACTOR if is_raise else now / RATE_FACTOR
    return replace(remedy, baseline=now, target=float(f"{target:.1g}"), factor=RATE_FACTOR)
