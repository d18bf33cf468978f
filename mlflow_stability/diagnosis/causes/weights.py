"""Find causes in the weights and in what was changed: decay, settings, terms of the loss, frozen parameters, writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import changed_terms, curves_of
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, listed_steps, value_at
from mlflow_stability.diagnosis.causes.one_batch import LIMITS as BATCH_LIMITS
from mlflow_stability.diagnosis.causes.one_batch import jump_near, shrunk_weights
from mlflow_stability.diagnosis.recorded_settings import is_of_option, is_of_setting, settings_of
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts, StrongWeightDecay
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.kinds.reported.setup import LintFacts, Setting
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Action, Finding, Remedy
from mlflow_stability.vocabulary.text.phrases import capitalised, factor


@dataclass(frozen=True, slots=True)
class WeightLimits:
    mostly_frozen: float = 0.9  # share of frozen values above which a model may be unable to learn, ...
    nearly_frozen: float = 0.99  # ... and probably is
    beyond: float = 10.0  # minimum ratio of a jump of the weight norm to what the optimizer can do
    adam_step: float = 10.0  # maximum number of rates that Adam moves a parameter in a step, at usual betas: 7.3
    shown_steps: int = 6  # maximum number of steps that are listed
    in_a_row: int = 3  # number of broken batches in a row that are not bad batches
    term_grown: float = 2.0  # minimum factor on the weight of a term of the loss before an episode that it caused


LIMITS = WeightLimits()
OWN_PARAMS = "stability."  # prefix of the parameters that a recording writes into its run


def decay_check(context: EpisodeContext) -> CheckResult:
    norms, unit = context.model_curve("param_norm"), context.unit
    if norms is None or len(norms.steps) < 2:
        return not_checked("weight norm: not measured")
    steps, values = norms.steps.tolist(), norms.values.tolist()
    shrunk = shrunk_weights(context)
    if shrunk is not None:
        (first, last), (before, now) = steps[shrunk - 1 : shrunk + 1], values[shrunk - 1 : shrunk + 1]
        changes = [event for event in _recent_changes(context) if is_of_option(event, "weight_decay")]
        return cause_found(
            "weight_decay",
            f"The weight decay is far too strong: the weight norm fell from {before:.3g} at {unit} {first} to "
            f"{now:.3g} at {unit} {last}.{f' {changes[0].message}' if changes else ''}",
            f"weight norm x {now / before:.2g} in {last - first} {unit}s",
            since=first,
        )
    after = int(np.searchsorted(norms.steps, context.episode.start, side="left"))
    near = [place for place in (after, after + 1) if 0 < place < len(steps)]
    if not near:
        return not_checked("weight norm: not measured around it")
    before, now = values[near[0] - 1], values[near[-1]]
    if not math.isfinite(now):
        return not_checked("weight norm: non-finite afterwards")
    strong = next(filter(_is_unusual_decay, context.findings_of(StrongDecayFacts.kind)), None)
    if strong is not None and strong.step <= steps[near[-1]] and now < before:
        return cause_found(
            "weight_decay",
            f"The weight decay is too strong. {strong.message}",
            f"weight norm {before:.3g} before, {now:.3g} after",
            since=min(strong.step, context.episode.start),
            repeats=((strong.kind, strong.step),),
        )
    return ruled_out(f"weight decay: weight norm {before:.3g} before, {now:.3g} after")


def _is_unusual_decay(finding: Finding) -> bool:
    facts = finding.facts_as(StrongDecayFacts)
    return facts is not None and facts.weight_decay > StrongWeightDecay().usual


def setting_check(context: EpisodeContext) -> CheckResult:
    if context.history.events is None:
        return not_checked("changed settings: not recorded")
    changes, start, unit = _recent_changes(context), context.episode.start, context.unit
    if not changes:
        return ruled_out("changed settings: none just before")
    frozen = any(is_of_setting(event, Setting.TRAINED_PARAMETERS) for event in changes)
    return cause_found(
        "frozen_parameters" if frozen else "configuration_changed",
        f"A setting changed just before: {' '.join(event.message for event in changes[:2])}",
        f"{max(0, start - changes[0].step)} {unit}s before the first sign at {unit} {start}",
        since=changes[0].step - LOOKBACK.between_looks,
        certainty="possible",
    )


def _recent_changes(context: EpisodeContext) -> list[Finding]:
    since, last = context.episode.start - context.reach, context.episode.start + LOOKBACK.between_looks
    return [event for event in context.events_of("configuration_changed") if since < event.step <= last]


def frozen_check(context: EpisodeContext) -> CheckResult:
    counts = [context.history.params.get(f"{OWN_PARAMS}parameters_{name}", "") for name in ("total", "trainable")]
    if not all(map(str.isdigit, counts)):
        return not_checked("frozen parameters: their number was not recorded")
    total, trained = map(int, counts)
    frozen = 1 - trained / total if total else 0.0
    if frozen < LIMITS.mostly_frozen:
        return ruled_out(f"frozen parameters: {frozen:.0%} of all values")
    lints = [(event.message, event.facts) for event in context.events_of("model_lint")]
    messages = [message for message, facts in lints if isinstance(facts, LintFacts) and facts.check == "frozen"]
    return cause_found(
        "frozen_parameters",
        f"Only {trained:,} of {total:,} values of the model are trained; all others are frozen.",
        *messages[:1],
        since=context.span.first,
        certainty="likely" if frozen >= LIMITS.nearly_frozen else "possible",
    )


def damage_check(context: EpisodeContext) -> CheckResult:
    """Check whether every batch is non-finite on weights that worked until the step before."""
    loss, start, unit = context.loss, context.episode.start, context.unit
    if loss is None or not context.every_step:
        return not_checked("corrupted weights: the loss of each step was not logged")
    if start not in {event.step for event in context.events_of("step_skipped")}:
        return not_checked("corrupted weights: visible only where non-finite steps are skipped")
    since = slice(int(np.searchsorted(loss.steps, start, side="left")), None)
    finite_steps = loss.steps[since][loss.finite[since]]
    broken = int(np.argmax(loss.finite[since])) if len(finite_steps) else len(loss.steps[since])
    if broken < LIMITS.in_a_row:
        if broken and len(finite_steps):
            return ruled_out(f"corrupted weights: the same weights gave a finite loss at {unit} {finite_steps[0]}")
        return not_checked(f"corrupted weights: visible only in {LIMITS.in_a_row} non-finite losses in a row")
    before = context.before(loss)
    if not len(before):
        return not_checked("corrupted weights: no loss before it")
    restored = ""
    rollback = next((event for event in context.events_of("rollback") if event.step >= start), None)
    if rollback is not None:
        target = rollback.facts.target if isinstance(rollback.facts, RollbackFacts) else 0
        whole = context.whole_loss if context.whole_loss is not None else loss
        later = whole.values[whole.steps > rollback.step][:1]  # empty if the run ended before the next loss
        if len(later) and not np.isfinite(later[0]):
            return ruled_out(f"corrupted weights: the weights of {unit} {target} gave a non-finite loss, too")
        restored = f", and the weights of {unit} {target} gave normal losses" if len(later) else ""
    return cause_found(
        "damaged_weights",
        f"The weights were corrupted between {unit} {start - 1} and {unit} {start}: {broken} batches in a row gave a "
        f"non-finite loss, the batch before {before[-1]:.3g}{restored}. No gradient caused it: check the optimizer "
        "state, what writes to the weights, and the device memory.",
        f"{broken} non-finite steps in a row were skipped, so the weights did not change",
        since=start,
        certainty="likely" if restored else "possible",
    )


def replaced_check(context: EpisodeContext) -> CheckResult:
    """Check whether other code replaced the weights between two steps and the next loss was high at once."""
    loss, jump, unit = context.loss, jump_near(context), context.unit
    if loss is None:
        return not_checked("replaced weights: no loss was logged")
    step = context.episode.start if jump is None else jump.step
    at_jump = context.starting_at(step)
    before, value, write = at_jump.before(loss), value_at(loss, step), at_jump.foreign_write(step)
    if write is None or not len(before) or value is None or value <= float(before.max()):
        return CheckResult()
    about = "about " if write.share is None else ""
    again = "" if write.period is None else f" It repeats {about}every {write.period:,} {unit}s."
    effect = f"the loss jumped from about {np.median(before):.3g} to {value:.3g} in {unit} {step}, before any update"
    several = len(write.steps) > 1
    seen_at = f"seen at {listed_steps(write.steps, unit, LIMITS.shown_steps)}" if several else ""
    if write.share is None:
        statement = f"Other code wrote to the weights before {unit} {step}, and {effect}.{again}"
        return cause_found("weights_replaced", statement, seen_at, since=step)
    ratio = next((curve for curve in context.curves("update_ratio") if curve.place == loss.place), None)
    updates = np.zeros(0) if ratio is None else at_jump.before(ratio)
    usual = f"; the last measured update of the optimizer changed them by {updates[-1]:.2g}" if len(updates) else ""
    certain = not len(updates) or write.share > LIMITS.beyond * float(updates[-1])
    return cause_found(
        "weights_replaced",
        f"The weights were replaced by other code between {unit}s {step - 1} and {step}: they changed by "
        f"{write.share:.2g} of their norm{usual}.{again}",
        capitalised(effect),
        seen_at,
        since=step,
        certainty="certain" if certain else "likely",
    )


@dataclass(frozen=True, slots=True)
class NormJump:
    """A jump of the weight norm of one place between two measurements."""

    place: str
    before: float
    after: float
    first: int
    last: int


def overwritten_check(context: EpisodeContext) -> CheckResult:
    """Check whether the weights jumped by more than the optimizer can change them."""
    start, unit = context.episode.start, context.unit
    jumps, measured = [], ""
    for norm in context.curves("param_norm"):
        nearest = int(np.searchsorted(norm.steps, start, side="left"))
        # A divergence may be found to begin one step after the write.
        earlier = [nearest - 1] if nearest and start - norm.steps[nearest - 1] <= LOOKBACK.between_looks else []
        for at in (place for place in (*earlier, nearest) if 0 < place < len(norm.steps)):
            before, after = norm.values[at - 1 : at + 1].tolist()
            if is_whole_model(norm.place) and math.isfinite(before) and math.isfinite(after):
                measured = f"weight norm {before:.3g} before, {after:.3g} after"
            if math.isfinite(after) and after > BATCH_LIMITS.grown * before > 0:
                jumps.append(NormJump(norm.place, before, after, int(norm.steps[at - 1]), int(norm.steps[at])))
                break
    if not jumps:
        if not measured:
            return not_checked("corrupted weights: weight norm not measured")
        return ruled_out(f"corrupted weights: {measured}")
    bounds = {(jump.first, jump.last): _largest_change(context, jump.first, jump.last) for jump in jumps}
    # The shorter the distance between two measurements, the less the optimizer can have done.
    beyond = [
        jump
        for jump in jumps
        if (bound := bounds[jump.first, jump.last]) is not None and jump.after - jump.before >= LIMITS.beyond * bound
    ]
    jump = max(beyond or jumps, key=lambda jump: jump.after / jump.before)
    bound = bounds[jump.first, jump.last]
    if bound is None:
        settings = settings_of(context.history)
        unbounded = [pair for pair in settings.betas or () if _is_unbounded(*pair)]
        reason = "is not recorded"
        if settings.adam and unbounded:
            reason = "has no bound at betas=({:g}, {:g})".format(*unbounded[0])
        return not_checked(f"corrupted weights: their norm jumped, and how far the optimizer can change it {reason}")
    if jump.after - jump.before < LIMITS.beyond * bound:
        return not_checked("corrupted weights: their norm jumped, and the recorded updates are large enough for that")
    whole = is_whole_model(jump.place)
    return cause_found(
        "damaged_weights",
        f"The norm of {'the weights' if whole else f'the weights of {jump.place}'} jumped from {jump.before:.3g} at "
        f"{unit} {jump.first} to {jump.after:.3g} at {unit} {jump.last}. Learning rate and gradients of these steps "
        f"allow a change of at most {bound:.3g}: other code or the device probably wrote to the weights.",
        f"weight norm x {factor(jump.after / jump.before)} in {jump.last - jump.first} {unit}s",
        since=jump.first,
        place="" if whole else jump.place,
    )


def _largest_change(context: EpisodeContext, first: int, last: int) -> float | None:
    """Return how far the optimizer can have changed the weight norm between two steps; None if unknown.

    A recording measures a norm before the update of its step; elsewhere it may be after it, and both ends count. There
    is no bound for optimizers other than Adam and SGD, nor where a measured update exceeds it.
    """
    last -= any(name.startswith(OWN_PARAMS) for name in context.history.params)
    bound = _bound_of_optimizer(context, first, last)
    measured = [
        float(curve.values[(curve.steps >= first) & (curve.steps <= last) & curve.finite].max(initial=0.0))
        for curve in context.curves("update_norm")
        if is_whole_model(curve.place)
    ]
    return None if bound is None or max(measured, default=0.0) > bound else bound


def _bound_of_optimizer(context: EpisodeContext, first: int, last: int) -> float | None:
    params, settings, steps = context.history.params, settings_of(context.history), last - first + 1
    rates = [
        rate.values[(rate.steps >= first) & (rate.steps <= last) & rate.finite].max(initial=-np.inf)
        for rate in context.rates
    ]
    rate = float(max(rates, default=-np.inf))
    if not math.isfinite(rate):
        return None
    if settings.adam:
        count, adam_step = params.get("stability.parameters_total", ""), _largest_adam_step(settings.betas)
        if adam_step is None or not count.isdigit():
            return None
        return adam_step * rate * math.sqrt(int(count)) * steps
    if not settings.sgd:
        return None
    momentum = params.get("stability.momentum", "0")
    kept = 1 - min(0.999, float(momentum)) if momentum.replace(".", "", 1).isdigit() else 1.0
    if settings.max_norm is not None and context.clipped_norm is None:
        return rate * settings.max_norm * steps / kept
    norm = context.optimizer_norm
    norms = np.zeros(0) if norm is None else norm.values[(norm.steps >= first) & (norm.steps <= last)]
    return float(rate * norms.sum() / kept) if len(norms) == steps and np.isfinite(norms).all() else None


def _largest_adam_step(betas: Sequence[tuple[float, float]] | None) -> float | None:
    """Return how many learning rates one step of Adam can move a parameter; None if unbounded or unknown.

    Adam divides an average of gradients by the root of an average of their squares. By the Cauchy-Schwarz inequality
    the quotient is at most ``(1 - beta1) / sqrt((1 - beta2) * (1 - beta1^2 / beta2))``, if beta1^2 is below beta2.
    """
    if betas is None or any(_is_unbounded(*pair) for pair in betas):
        return None
    bounds = [(1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2)) for beta1, beta2 in betas]
    return max((LIMITS.adam_step, *bounds))


def _is_unbounded(beta1: float, beta2: float) -> bool:
    return beta1 * beta1 >= beta2


def terms_check(context: EpisodeContext) -> CheckResult:
    """Check whether the loss got another term, or a term a larger weight, before the episode."""
    distance = context.reach / LOOKBACK.just_before
    first, last = context.episode.start - LOOKBACK.points * distance, context.latest
    near = [change for change in changed_terms(context.history) if first <= change[0] <= last]
    if near and near[-1][1] < near[-1][2]:
        step, before, after = near[-1]
        return cause_found(
            "loss_term_changed",
            f"The loss got more terms at {context.unit} {step}: {before:.0f} before, {after:.0f} or more from then on.",
            since=step,
            certainty="certain" if step >= context.episode.start - context.reach else "possible",
        )
    for weight in curves_of(context.history, "loss_weight"):
        begin = max(0, int(np.searchsorted(weight.steps, first, "right")) - 1)  # in force at the first step
        values, steps = weight.values[begin:], weight.steps[begin:]
        values = values[steps <= last]
        if len(values) > 1 and 0 < LIMITS.term_grown * values[0] <= values[-1]:
            step, low, high = int(steps[1]), values[0], values[-1]
            return cause_found(
                "loss_term_changed",
                f"The weight of a term of the loss rose from {low:.3g} to {high:.3g} from {context.unit} {step} on.",
                since=step,
            )
    return CheckResult()


CAUSES = (
    CauseType(
        "weights_replaced",
        "Other code replaced the weights between two optimizer steps.",
        "The loss was high at once, before any update on what came then, and some weights had changed since the end "
        "of the step before by more than {LIMITS.beyond} times what an update changes (certain), or they were written "
        "to in place (likely; signals `foreign_update` and `foreign_writes`).",
        "A write that left the weights as they were, such as averaged weights that were taken out again, beside a bad "
        "batch.",
        (Remedy(Action.RESTORE_TRAINING_WEIGHTS), Remedy(Action.CHECK_COPIES_TO_WEIGHTS)),
        helped_by_smaller_updates=False,
        phrase="replaced weights",
    ),
    CauseType(
        "damaged_weights",
        "Weights or buffers were corrupted, but not by a gradient.",
        "Several batches in a row were non-finite on weights that worked one step before, or the weight norm jumped "
        "by more than {LIMITS.beyond} times what learning rate and gradients allow. How far Adam can change it "
        "follows from the recorded betas; it is not known where the square of the first reaches the second. How far "
        "SGD can change it follows from the gradient norm after clipping. Never named with other optimizers.",
        "A bad update that was not recorded.",
        (Remedy(Action.RESTART_BEFORE_STEP), Remedy(Action.CHECK_WRITER_OF_WEIGHTS)),
        helped_by_smaller_updates=False,
        phrase="corrupted weights",
    ),
    CauseType(
        "weight_decay",
        "The weights shrank because of the weight decay.",
        "Their norm fell by more than 30 % from one measurement to the next, or fell while the decay removed a large "
        "share of each weight per step. Never named where the weight decay is 0, or across a rollback.",
        "Weights that the script itself scales or replaces.",
        (Remedy(Action.LOWER_WEIGHT_DECAY), Remedy(Action.RESTART_BEFORE_STEP)),
        excluded_by=lambda used: "weight decay: 0" if used.weight_decay == 0 else "",
    ),
    CauseType(
        "configuration_changed",
        "A setting of the training changed just before.",
        "A recorded setting differs from its value {LOOKBACK.between_looks} steps earlier. Possible only: not all "
        "changes matter.",
        "An intended change, and a finding with another cause.",
        (Remedy(Action.CHECK_INTENDED_CHANGE),),
        phrase="changed setting",
    ),
    CauseType(
        "frozen_parameters",
        "Nearly all parameters are frozen, or the number of trained parameters changed just before.",
        "A loss that does not fall while {LIMITS.mostly_frozen:percent} of the model's values are frozen (possible) "
        "or {LIMITS.nearly_frozen:percent} (likely). Or parameters were frozen or unfrozen within the "
        "{LOOKBACK.between_looks} steps before.",
        "Adapters, such as LoRA, and training in stages, on purpose.",
        (Remedy(Action.CHECK_FROZEN_PARAMETERS),),
    ),
    CauseType(
        "loss_term_changed",
        "The loss got another term, or a term a larger weight.",
        "The graph of the loss adds up more terms than in the steps before, or multiplies one by a number that grew "
        "{LIMITS.term_grown}-fold, within the {LOOKBACK.points} points before.",
        "A term that is added at the same time as other data come.",
        (Remedy(Action.LOWER_WEIGHT_OF_TERM),),
    ),
)
CHECKS = (
    Check(
        decay_check,
        {Symptom.NON_FINITE: 50, Symptom.RISING: 30, Symptom.LARGE_UPDATES: 20},
        frozenset({"weight_decay"}),
    ),
    Check(
        setting_check,
        {
            Symptom.NON_FINITE: 120,
            Symptom.RISING: 35,
            Symptom.LARGE_UPDATES: 30,
            Symptom.VANISHING: 50,
            Symptom.DEAD_LAYER: 10,
        },
        frozenset({"configuration_changed"}),
    ),
    Check(replaced_check, {Symptom.RISING: 6, Symptom.LARGE_UPDATES: 6}, frozenset({"weights_replaced"})),
    Check(
        overwritten_check,
        {Symptom.NON_FINITE: 60, Symptom.RISING: 10, Symptom.LARGE_UPDATES: 10},
        frozenset({"damaged_weights"}),
    ),
    Check(frozen_check, {Symptom.STUCK: 5}, frozenset({"frozen_parameters"})),
    Check(damage_check, {Symptom.NON_FINITE: 70}, frozenset({"damaged_weights"})),
    Check(
        terms_check,
        {Symptom.RISING: 4, Symptom.NON_FINITE: 4, Symptom.LARGE_UPDATES: 4},
        frozenset({"loss_term_changed"}),
    ),
)
