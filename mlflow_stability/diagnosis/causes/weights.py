"""Looks for the cause in what was done to the weights: decay, a changed setting, damage that no gradient did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, listed_steps, shown
from mlflow_stability.diagnosis.causes.one_batch import jump_near, shrunk_weights, value_at
from mlflow_stability.diagnosis.parameters.recorded_settings import is_of_option, is_of_setting, settings_of
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.kinds.reported.setup import LintFacts, Setting
from mlflow_stability.vocabulary.measured import of_the_whole
from mlflow_stability.vocabulary.result import Action, Finding, Remedy
from mlflow_stability.vocabulary.text import factor


@dataclass(frozen=True, slots=True)
class WeightLimits:
    """Thresholds of the causes in the weights."""

    mostly_frozen: float = 0.9
    """Share of frozen values from which on a model may be unable to learn, ..."""
    nearly_frozen: float = 0.99
    """... and probably is."""
    jumped: float = 3.0
    """Minimum ratio of a weight norm to that of the measurement before, ..."""
    beyond: float = 10.0
    """... and minimum ratio of its change to what the optimizer can do."""
    adam_step: float = 10.0
    """Learning rates that a parameter moves in one step of Adam at most, at usual betas: 7.3 at the defaults."""
    shown_steps: int = 6
    """Maximum number of steps that are listed."""
    in_a_row: int = 3
    """Number of broken batches in a row that are not bad batches."""


LIMITS = WeightLimits()
OWN_PARAMS = "stability."
"""How the parameters begin that a recording writes into its run."""


def decay_check(around: EpisodeContext) -> CheckResult:
    """Whether the weights shrank away under a weight decay."""
    norms = around.whole("param_norm")
    if norms is None or len(norms.steps) < 2:
        return not_seen("weight norm: not measured")
    start = around.episode.start
    shrunk = shrunk_weights(around)
    if shrunk is not None:
        then, now = float(norms.values[shrunk - 1]), float(norms.values[shrunk])
        changed = [each for each in _changes(around) if is_of_option(each, "weight_decay")]
        setting = f" {changed[0].message}" if changed else ""
        return is_it(
            "weight_decay",
            f"The weight decay is far too strong: the weight norm fell from {shown(then)} at {around.unit} "
            f"{int(norms.steps[shrunk - 1])} to {shown(now)} at {around.unit} {int(norms.steps[shrunk])}.{setting}",
            f"weight norm x {now / then:.2g} in {int(norms.steps[shrunk] - norms.steps[shrunk - 1])} {around.unit}s",
            since=int(norms.steps[shrunk - 1]),
        )
    after = int(np.searchsorted(norms.steps, start, side="left"))
    around_it = [place for place in (after, after + 1) if 0 < place < len(norms.steps)]
    if not around_it:
        return not_seen("weight norm: not measured around it")
    now, then = float(norms.values[around_it[-1]]), float(norms.values[around_it[0] - 1])
    if not np.isfinite(now):
        return not_seen("weight norm: non-finite afterwards")
    return is_not(f"weight decay: weight norm {shown(then)} before, {shown(now)} after")


def setting_check(around: EpisodeContext) -> CheckResult:
    """Whether a setting of the training was changed just before."""
    changes = _changes(around)
    if around.history.events is None:
        return not_seen("changed settings: not recorded")
    if not changes:
        return is_not("changed settings: none just before")
    start, said = around.episode.start, " ".join(each.message for each in changes[:2])
    frozen = any(is_of_setting(each, Setting.TRAINED_PARAMETERS) for each in changes)
    return is_it(
        "frozen_parameters" if frozen else "configuration_changed",
        f"A setting changed just before: {said}",
        f"{max(0, start - changes[0].step)} {around.unit}s before the first sign at {around.unit} {start}",
        since=changes[0].step - LOOKBACK.between_looks,
        certainty="possible",
    )


def frozen_check(around: EpisodeContext) -> CheckResult:
    """Whether next to nothing is trained."""
    params = around.history.params
    counts = [params.get(f"{OWN_PARAMS}parameters_{each}", "") for each in ("total", "trainable")]
    if not all(map(str.isdigit, counts)):
        return not_seen("frozen parameters: their number was not recorded")
    total, trained = map(int, counts)
    frozen = 1 - trained / total if total else 0.0
    if frozen < LIMITS.mostly_frozen:
        return is_not(f"frozen parameters: {frozen:.0%} of all values")
    lints = [(each.message, each.facts) for each in around.said("model_lint")]
    said = [message for message, facts in lints if isinstance(facts, LintFacts) and facts.check == "frozen"]
    return is_it(
        "frozen_parameters",
        f"Only {trained:,} of {total:,} values of the model are trained; all others are frozen.",
        *said[:1],
        since=around.span.first,
        certainty="likely" if frozen >= LIMITS.nearly_frozen else "possible",
    )


def damage_check(around: EpisodeContext) -> CheckResult:
    """Whether every batch breaks on weights that had worked until the step before."""
    loss, start = around.loss, around.episode.start
    if loss is None or not around.every_step:
        return not_seen("corrupted weights: the loss of each step was not logged")
    place = int(np.searchsorted(loss.steps, start, side="left"))
    row = 0
    while place + row < len(loss.values) and not np.isfinite(loss.values[place + row]):
        row += 1
    if start not in {each.step for each in around.said("step_skipped")}:
        return not_seen("corrupted weights: visible only where non-finite steps are skipped")
    if row < LIMITS.in_a_row:
        if row and place + row < len(loss.values):
            return is_not(
                "corrupted weights: the same weights gave a finite loss at "
                f"{around.unit} {int(loss.steps[place + row])}"
            )
        return not_seen(f"corrupted weights: visible only in {LIMITS.in_a_row} non-finite losses in a row")
    before = around.before(loss)
    if not len(before):
        return not_seen("corrupted weights: no loss before it")
    back = next((each for each in around.said("rollback") if each.step >= start), None)
    target = back.facts.target if back is not None and isinstance(back.facts, RollbackFacts) else 0
    if back is not None:
        whole = around.whole_loss if around.whole_loss is not None else loss
        there = whole.values[whole.steps > back.step][:1]
        if len(there) and not np.isfinite(there[0]):
            return is_not(f"corrupted weights: the weights of {around.unit} {target} gave a non-finite loss, too")
        back = back if len(there) else None  # it ended before the restored weights gave a loss
    healed = "" if back is None else f", and the weights of {around.unit} {target} gave normal losses"
    return is_it(
        "damaged_weights",
        f"The weights were corrupted between {around.unit} {start - 1} and {around.unit} {start}: {row} batches in a "
        f"row gave a non-finite loss, the batch before {shown(float(before[-1]))}{healed}. No gradient caused it: "
        "check the optimizer state, what writes to the weights, and the device memory.",
        f"{row} non-finite steps in a row were skipped, so the weights did not change",
        since=start,
        certainty="possible" if back is None else "likely",
    )


def replaced_check(around: EpisodeContext) -> CheckResult:
    """Whether other code replaced the weights between two steps, and the loss of the second one was high at once."""
    loss, jump = around.loss, jump_near(around)
    if loss is None:
        return not_seen("replaced weights: no loss was logged")
    step = around.episode.start if jump is None else jump.step
    there = around.starting_at(step)
    before, value = there.before(loss), value_at(loss, step)
    written = there.foreign_write(step)
    if written is None or not len(before) or value is None or value <= float(before.max()):
        return CheckResult()
    about = "" if written.share is not None else "about "
    again = "" if written.period is None else f" It repeats {about}every {written.period:,} {around.unit}s."
    jumped = f"the loss jumped from {shown(float(np.median(before)))} to {shown(value)} in {around.unit} {step}"
    jumped = f"{jumped}, before any update"
    if written.share is None:
        what = f"Other code wrote to the weights before {around.unit} {step}, and {jumped}.{again}"
        return is_it("weights_replaced", what, *_when(written.steps, around.unit), since=step)
    ratio = next((each for each in around.of("update_ratio") if each.place == loss.place), None)
    known = np.zeros(0) if ratio is None else there.before(ratio)
    update = f"; the last measured update of the optimizer changed them by {known[-1]:.2g}" if len(known) else ""
    return is_it(
        "weights_replaced",
        f"The weights were replaced by other code between {around.unit}s {step - 1} and {step}: they changed by "
        f"{written.share:.2g} of their norm{update}.{again}",
        jumped[:1].upper() + jumped[1:],
        *_when(written.steps, around.unit),
        since=step,
        certainty="certain" if not len(known) or written.share > LIMITS.beyond * float(known[-1]) else "likely",
    )


def _when(steps: Sequence[int], unit: str) -> tuple[str, ...]:
    return (f"seen at {listed_steps(steps, unit, LIMITS.shown_steps)}",) if len(steps) > 1 else ()


def overwritten_check(around: EpisodeContext) -> CheckResult:
    """Whether the weights jumped by more than the optimizer can change them."""
    start = around.episode.start
    jumps, seen = [], ""
    for norm in around.of("param_norm"):
        nearest = int(np.searchsorted(norm.steps, start, side="left"))
        # A divergence may be said to begin one step after the weights were written to.
        earlier = [nearest - 1] if nearest and start - norm.steps[nearest - 1] <= LOOKBACK.between_looks else []
        for after in (each for each in (*earlier, nearest) if 0 < each < len(norm.steps)):
            then, now = float(norm.values[after - 1]), float(norm.values[after])
            if of_the_whole(norm.place) and np.isfinite((then, now)).all():
                seen = f"weight norm {shown(then)} before, {shown(now)} after"
            if np.isfinite(now) and now > LIMITS.jumped * then > 0:
                jumps.append((norm.place, then, now, int(norm.steps[after - 1]), int(norm.steps[after])))
                break
    if not jumps:
        return is_not(f"corrupted weights: {seen}") if seen else not_seen("corrupted weights: weight norm not measured")
    bounds = {each[3:]: _reachable(around, *each[3:]) for each in jumps}
    # What is measured most often is surrounded closest: in fewer steps the optimizer can do less.
    bounded = [(each, bound) for each in jumps if (bound := bounds[each[3:]]) is not None]
    beyond = [each for each, bound in bounded if each[2] - each[1] >= LIMITS.beyond * bound]
    place, then, now, first, last = max(beyond or jumps, key=lambda each: each[2] / each[1])
    bound = bounds[first, last]
    if not bounded or bound is None:
        settings = settings_of(around.history)
        free = [f"({first:g}, {second:g})" for first, second in settings.betas or () if _forgets_squares(first, second)]
        known = f"has no bound at betas={free[0]}" if settings.adam and free else "is not recorded"
        return not_seen(f"corrupted weights: their norm jumped, and how far the optimizer can change it {known}")
    if now - then < LIMITS.beyond * bound:
        return not_seen("corrupted weights: their norm jumped, and the recorded updates are large enough for that")
    whose = "the weights" if of_the_whole(place) else f"the weights of {place}"
    return is_it(
        "damaged_weights",
        f"The norm of {whose} jumped from {shown(then)} at {around.unit} {first} to {shown(now)} at {around.unit} "
        f"{last}. Learning rate and gradients of these steps allow a change of at most {shown(bound)}: other code or "
        "the device probably wrote to the weights.",
        f"weight norm x {factor(now / then)} in {last - first} {around.unit}s",
        since=first,
        place="" if of_the_whole(place) else place,
    )


def _reachable(around: EpisodeContext, first: int, last: int) -> float | None:
    """How far the optimizer can have changed the norm of the weights between two steps; None where nobody knows.

    A recording measures a norm before the update of its step. Elsewhere it may be after it: then both ends count. Of
    optimizers other than Adam and SGD no bound is known, nor where a measured update exceeds the bound.
    """
    params = around.history.params
    last -= any(each.startswith(OWN_PARAMS) for each in params)
    bound = _bound(around, first, last)
    updates = [each for each in around.of("update_norm") if of_the_whole(each.place)]
    measured = [
        float(each.values[(each.steps >= first) & (each.steps <= last) & each.finite].max(initial=0.0))
        for each in updates
    ]
    return None if bound is None or max(measured, default=0.0) > bound else bound


def _bound(around: EpisodeContext, first: int, last: int) -> float | None:
    params = around.history.params
    rates = [rate.values[(rate.steps >= first) & (rate.steps <= last)] for rate in around.rates]
    known = [float(each[np.isfinite(each)].max()) for each in rates if np.isfinite(each).any()]
    if not known:
        return None
    rate, settings = max(known), settings_of(around.history)
    if settings.adam:
        count, furthest = params.get("stability.parameters_total", ""), _adam_step(settings.betas)
        if furthest is None or not count.isdigit():
            return None
        return furthest * rate * math.sqrt(int(count)) * (last - first + 1)
    if not settings.sgd:
        return None
    momentum = params.get("stability.momentum", "0")
    kept = 1 - min(0.999, float(momentum)) if momentum.replace(".", "", 1).isdigit() else 1.0
    if settings.max_norm is not None and around.clipped_norm is None:
        return rate * settings.max_norm * (last - first + 1) / kept
    norm = around.given_norm
    if norm is None:
        return None
    there = norm.values[(norm.steps >= first) & (norm.steps <= last)]
    return float(rate * there.sum() / kept) if len(there) == last - first + 1 and np.isfinite(there).all() else None


def _adam_step(betas: tuple[tuple[float, float], ...] | None) -> float | None:
    """How many learning rates one parameter can move in one step of Adam; None where there is no bound, or none known.

    Adam divides an average over gradients by the root of an average over their squares. By the inequality of Cauchy and
    Schwarz the quotient is at most ``(1 - beta1) / sqrt((1 - beta2) * (1 - beta1^2 / beta2))``. Where beta1^2 reaches
    beta2 there is none.
    """
    if betas is None or any(_forgets_squares(*pair) for pair in betas):
        return None
    bounds = [(1 - first) / math.sqrt((1 - second) * (1 - first * first / second)) for first, second in betas]
    return max((LIMITS.adam_step, *bounds))


def _forgets_squares(first: float, second: float) -> bool:
    """Whether Adam forgets the square of a gradient before it forgets the gradient."""
    return first * first >= second


def _changes(around: EpisodeContext) -> list[Finding]:
    """The settings that were changed just before, as far as they were looked at."""
    start = around.episode.start
    return [
        each
        for each in around.said("configuration_changed")
        if start - around.reach < each.step <= start + LOOKBACK.between_looks
    ]


CAUSES = (
    CauseDocumentation(
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
    CauseDocumentation(
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
    CauseDocumentation(
        "weight_decay",
        "The weights shrank because of the weight decay.",
        "Their norm fell by more than 30 % from one measurement to the next. Never named where the weight decay is 0, "
        "or across a rollback.",
        "Weights that the script itself scales or replaces.",
        (Remedy(Action.LOWER_WEIGHT_DECAY), Remedy(Action.RESTART_BEFORE_STEP)),
        excluded_by=lambda known: "weight decay: 0" if known.weight_decay == 0 else "",
    ),
    CauseDocumentation(
        "configuration_changed",
        "A setting of the training changed just before.",
        "A recorded setting differs from its value {LOOKBACK.between_looks} steps earlier. Possible only: not all "
        "changes matter.",
        "An intended change, and a finding with another cause.",
        (Remedy(Action.CHECK_INTENDED_CHANGE),),
        phrase="changed setting",
    ),
    CauseDocumentation(
        "frozen_parameters",
        "Nearly all parameters are frozen, or the number of trained parameters changed just before.",
        "A loss that does not fall while {LIMITS.mostly_frozen:percent} of the model's values are frozen (possible) "
        "or {LIMITS.nearly_frozen:percent} (likely). Or parameters were frozen or unfrozen within the "
        "{LOOKBACK.between_looks} steps before.",
        "Adapters, such as LoRA, and training in stages, on purpose.",
        (Remedy(Action.CHECK_FROZEN_PARAMETERS),),
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
)
