"""Conclude what happened in a run in one word and one sentence.

The finding that decides the outcome also has the cause and the remedies of the verdict. A run that cannot be judged is
never called healthy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType

from mlflow_stability.curves.curve_shape import is_noisy, is_unmoved
from mlflow_stability.diagnosis.causes.non_finite import NAN_ORIGIN, origin_of
from mlflow_stability.diagnosis.findings.episodes import NON_FINITE, persists
from mlflow_stability.kinds.catalog import OF_HARDWARE, OF_SETUP, noun_of
from mlflow_stability.kinds.loss.divergence_curve import LastingRiseFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.optimizer.loss_scaling import SkippedStepsFacts, StepSkipped
from mlflow_stability.kinds.reported.autopilot import DataChangedFacts, EarlyStopFacts, SkippedStepFacts
from mlflow_stability.kinds.reported.rollback import GiveUp, GiveUpFacts, Rollback, RollbackFacts, is_revert
from mlflow_stability.vocabulary.facts import LossEndFacts, LossRiseFacts
from mlflow_stability.vocabulary.measured.signal import TRACK
from mlflow_stability.vocabulary.result import PROCESS_KINDS, CurveReading, Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text.phrases import counted, factor, times

NONE: Mapping[str, str] = MappingProxyType({})
KINDS_THAT_DECIDE: dict[str, tuple[str, ...]] = {
    "broken": NON_FINITE,
    "diverged": ("divergence", "loss_spike"),
    "stuck": ("plateau",),
    "overfitted": ("overfitting",),
    "out_of_memory": ("out_of_memory",),
    "killed": ("killed",),
    "crashed": ("crashed",),
}
"""For each outcome the kinds that decide it; any other outcome is that of the worst findings."""


def deciding_of(outcome: str, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that decides the outcome, of equals that passed one with a cause; None without warnings."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING]
    lost = [finding for finding in bad if finding.kind in KINDS_THAT_DECIDE.get(outcome, ())]
    if lost:
        # What lasted first, of the last start of the training; then a divergence, the worst, the earliest.
        return min(
            lost,
            key=lambda finding: (
                bool(finding.recovered),
                -finding.attempt,
                finding.kind == "loss_spike",
                -finding.severity,
                finding.start,
            ),
        )
    return min(
        bad,
        key=lambda finding: (-finding.severity, finding.cause is None, finding.attempt, finding.start),
        default=None,
    )


MAX_CURVES = 12  # maximum number of curves with a reading and a sketch
MIN_POINTS = 8  # a run is called healthy only if one of its losses has this number of points
MIN_POINTS_OF_LEVELS = 30  # minimum number of points for a verdict to name levels of three points or more
RECOVERED_FACTOR = 1.25  # a loss has recovered if it ended at most at this many times its level before the trouble
RISE_FACTOR = 1.1  # a loss rose if it ended at this many times the level where it began, or more
STOPPED = "Stopped"  # the title of a run without warnings that a condition of `stop_on` ended
RECOVERED = "recovered"  # the outcome of a run that was rolled back and trained on well
ENDED = ("out_of_memory", "killed", "crashed", "exited", "interrupted")


def outcome_of(
    findings: Sequence[Finding],
    readings: Sequence[CurveReading],
    ended: str,
    *,
    measured: bool,
    last_attempt: int | None = None,
    main: CurveReading | None = None,
    restored: float | None = None,
) -> str:
    """Return the outcome in one word.

    ``measured``: whether there is a loss that measures progress; ``main``: that loss. ``last_attempt``: the attempt at
    the end of a resumed run; None where attempts are runs of their own. ``restored``: its level in the state that the
    last rollback restored.
    """
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING]
    last = max((finding.attempt for finding in bad), default=0) if last_attempt is None else last_attempt
    remaining = [finding for finding in bad if not finding.recovered and finding.attempt == last]
    lasting = {finding.kind for finding in remaining}
    if lasting & set(NON_FINITE):
        return "broken"
    if any(_is_lost(finding) and _new_data_since(finding, findings) is None for finding in remaining):
        return "diverged"
    if ended in ENDED:
        return ended
    if "plateau" in lasting:
        return "stuck"
    if "overfitting" in lasting and not any(finding.severity is Severity.CRITICAL for finding in remaining):
        return "overfitted"
    if bad and _was_rescued(findings):
        if main is not None and _rose(main):
            return "diverged"
        return RECOVERED if main is None or _is_back(main, bad, restored) else "unstable"
    if bad:
        return "unstable"
    enough = measured and any(reading.points >= MIN_POINTS for reading in readings)
    no_fall = main is not None and (_rose(main) or all(map(is_unmoved, readings)))
    if not enough or no_fall:
        return "cannot_tell"
    return RECOVERED if _was_rescued(findings) else "healthy"


def training_outcome(diagnosis: Diagnosis) -> str:
    """Return the outcome of the training in one word, however its process ended."""
    if diagnosis.outcome not in ENDED:
        return diagnosis.outcome
    about_training = [finding for finding in diagnosis.findings if finding.kind not in PROCESS_KINDS]
    measured = bool(diagnosis.judged.losses or diagnosis.judged.validations)
    return outcome_of(about_training, diagnosis.curves, "", measured=measured)


def verdict_of(
    outcome: str,
    findings: Sequence[Finding],
    readings: Sequence[CurveReading],
    points: int,
    silence: str = "",
    without_level: Mapping[str, str] = NONE,
) -> str:
    """Return the verdict in a sentence; ``silence``: that the loss is missing at the end, or has a single point.

    ``without_level``: the losses whose level does not measure progress, each with the reason.
    """
    sentence = _training_sentence(outcome, findings, readings, points, silence, without_level)
    stop = _stop(findings)
    if outcome == "healthy" and stop is not None:
        sentence = f"{STOPPED}: {stop[1].reason_first(stop[0])}; {sentence.removeprefix('Healthy: ')}"
    else:
        sentence += end_on_purpose(findings)
    main = readings[0].metric if readings else ""
    if main not in without_level or outcome == "cannot_tell":
        return sentence
    return f"{sentence} The level of {main} was not judged: {without_level[main]}."


def title_of(outcome: str, findings: Sequence[Finding]) -> str:
    """Return the outcome as verdicts begin with it.

    A run with nothing but mistakes in its set-up, what they lead to, or a slow machine, is not called unstable. One
    that a condition of `stop_on` ended is not called healthy.
    """
    bad = {finding.kind for finding in not_led_to([f for f in findings if f.severity >= Severity.WARNING])}
    if outcome == "healthy" and _stop(findings) is not None:
        return STOPPED
    if outcome != "unstable" or not bad or not bad <= OF_SETUP | OF_HARDWARE:
        return outcome.capitalize()
    return "Check the hardware" if bad <= OF_HARDWARE else "Check the set-up"


def not_led_to(bad: Sequence[Finding]) -> list[Finding]:
    """Return the mistakes in the set-up, and of other findings those that none of them led to."""
    mistaken = any(finding.kind in OF_SETUP for finding in bad)
    return [f for f in bad if not (mistaken and f.kind not in OF_SETUP and f.cause and f.cause.name == "setup")]


def end_on_purpose(findings: Sequence[Finding]) -> str:
    """Return `` Stopped before step 74 was taken: loss is 0.0397 (stop_on=loss<0.05).``; empty if it was not stopped.

    An end by the autopilot is reported in the same place.
    """
    ended = ended_by_autopilot(findings)
    if ended is not None:
        return f" TrainingDiverged ended the training at {ended.unit} {ended.end}: {reason_of_end(ended)}"
    stop = _stop(findings)
    return "" if stop is None else f" Stopped {stop[1].statement(stop[0])}"


def _stop(findings: Sequence[Finding]) -> tuple[int, EarlyStopFacts] | None:
    """Return step and facts of the condition of `stop_on` that ended the training, if one did."""
    stops = ((finding.end, finding.facts) for finding in findings if isinstance(finding.facts, EarlyStopFacts))
    return next(stops, None) if ended_by_autopilot(findings) is None else None


def ended_by_autopilot(findings: Sequence[Finding]) -> Finding | None:
    """Return the end of the rollbacks, if it ended the training with `TrainingDiverged`."""
    return next(
        (finding for finding in findings if isinstance(finding.facts, GiveUpFacts) and finding.facts.ended_training),
        None,
    )


def reason_of_end(finding: Finding) -> str:
    return finding.facts.reason if isinstance(finding.facts, GiveUpFacts) else finding.message


def _training_sentence(
    outcome: str,
    findings: Sequence[Finding],
    readings: Sequence[CurveReading],
    points: int,
    silence: str,
    without_level: Mapping[str, str],
) -> str:
    main = readings[0] if readings else None
    if outcome == "cannot_tell":
        if main is None:
            why = "no loss among its metrics" if points else "no values were logged"
        elif main.points < MIN_POINTS:
            why = f"{main.metric} has {counted(main.points, 'point')}, {MIN_POINTS} are needed"
        elif main.metric not in without_level and _rose(main):
            why = f"{_movement(main)}, but its noise is as large"
        elif main.metric not in without_level and is_unmoved(main):
            why = _movement(main) + (", and its noise would hide a small fall" if main.best else "")
        else:
            why = f"{main.metric} stayed finite, but does not measure progress"
        return f"Cannot tell: {silence or why}."
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING]
    measures = main is None or main.metric not in without_level
    if main is None or measures:
        course = _course(main, bad, silence)
    else:
        state = "finite" if math.isfinite(main.last) else "not finite at the end"
        course = f"{main.metric} {state}, last value {main.last:.4g} after {_steps(main)}"
    course += _trainings_since(readings)
    last = ""
    if main is not None and measures and is_noisy(main) and "last value" not in course:
        last = f"; last value {main.last:.4g}"
    if outcome == "healthy":
        return f"Healthy: {course}; no warnings."
    back = _rollbacks_clause(findings, bad)
    if back and len(bad) > 1:
        back = f"{back} ({counted(len(bad) - 1, 'more finding')})"
    if outcome == RECOVERED:
        return f"Recovered: {back}; {course}{last}.{_origin(findings)}"
    deciding = deciding_of(outcome, bad)
    title = outcome.replace("_", " ").capitalize()
    if deciding is None:
        return f"{title}: {course}; no warnings before that."
    if outcome == "unstable" and back and any(map(persists, findings)):
        return f"Unstable: {back}, but zero_grad() is still missing; {course}{last}.{_origin(findings)}"
    if outcome == "unstable" and (new_data := _new_data(bad)):
        return f"Unstable: {new_data}{_origin(findings)}"
    if outcome == "unstable":
        bad = not_led_to(bad)
        unit, first = bad[0].unit, min(finding.start for finding in bad)
        where = f" at {unit} {first}" if all(finding.start == first for finding in bad) else f" from {unit} {first} on"
        if all(finding.kind in OF_SETUP for finding in bad):
            where = ""  # mistakes in the set-up are there from the start; the step is that of the check
        elif all(map(_was_skipped, bad)) and any(finding.kind != StepSkipped.kind for finding in bad):
            where += ", skipped"
        return (
            f"{title_of(outcome, bad)}: {listed(finding.kind for finding in bad)}{where}; {course}.{_origin(findings)}"
        )
    others = len(bad) - 1
    more = f" {others} more warning{'s' if others > 1 else ''} or worse." if others else ""
    return f"{title}: {_unrescued_sentence(deciding, findings, outcome)}{more}"


def _unrescued_sentence(deciding: Finding, findings: Sequence[Finding], outcome: str) -> str:
    """Return what decides the outcome, with the rollbacks that did not help against it."""
    rollbacks = [finding for finding in findings if finding.kind == Rollback.kind]
    message, facts = deciding.message, deciding.facts
    has_end = isinstance(facts, NonFiniteFacts) and facts.finite_afterwards is not None
    if deciding.kind in NON_FINITE and deciding.recovered is False and deciding.end > deciding.start and not has_end:
        first, _, more = message.partition(". ")
        message = f"{first.rstrip('.')}; non-finite up to {deciding.unit} {deciding.end}. {more}".rstrip()
    if not rollbacks:
        return message
    back = _rollbacks_clause(findings, [finding for finding in findings if finding.severity >= Severity.WARNING])
    was = f"The training was {back}"
    answered = any(finding.attempt >= deciding.attempt and finding.end >= deciding.start for finding in rollbacks)
    is_back = deciding.recovered and outcome != "diverged"
    if deciding.kind not in KINDS_THAT_DECIDE["diverged"] or not answered or is_back:
        return f"{message} {was}."
    ended = deciding.facts_as(LastingRiseFacts)
    if ended is None or ended.best <= 0:
        return f"{message} {was}; the loss has not come down again."
    return (
        f"{back}, but {deciding.metric or 'loss'} has not come down again: it ended at {ended.last:.4g}, "
        f"{factor(ended.last / ended.best)} times its best level of {ended.best:.4g}."
    )


def _was_rescued(findings: Sequence[Finding]) -> bool:
    """Whether a rollback helped: nothing critical is left, rollbacks were not given up, and no known cause persists."""
    undone = max(
        ((finding.attempt, finding.end) for finding in findings if finding.kind == Rollback.kind), default=(-1, -1)
    )
    critical = (finding for finding in findings if finding.severity is Severity.CRITICAL and finding.recovered is False)
    lasting = any((finding.attempt, finding.end) > undone for finding in critical)
    kinds = {finding.kind for finding in findings}
    held = GiveUp.kind in kinds or any(map(persists, findings))  # or it may break again at any step
    return _rollbacks_in_effect(findings) > 0 and not held and not lasting


def _rollbacks_in_effect(findings: Sequence[Finding]) -> int:
    """Return how many rollbacks were not reverted; several may be one finding."""
    rollbacks = [finding for finding in findings if finding.kind == Rollback.kind]
    return sum(-rollback.count if is_revert(rollback) else rollback.count for rollback in rollbacks)


def _is_back(reading: CurveReading, bad: Sequence[Finding], restored: float | None) -> bool:
    """Whether the loss ended near its level before the trouble or in the restored state, else near its start."""
    began, ended = reading.first_level, reading.last_level
    if began is None or ended is None or began <= 0:
        return True
    rises = (finding.facts_as(LossRiseFacts) for finding in bad if finding.metric == reading.metric)
    levels = [rise.baseline for rise in rises if rise is not None]
    levels += [] if restored is None else [restored]
    return ended <= RECOVERED_FACTOR * max(levels, default=0.0) or (
        not any(levels) and ended <= RECOVERED_FACTOR * began
    )


def _rose(reading: CurveReading) -> bool:
    """Whether the loss ended clearly above where it began."""
    began, ended = reading.first_level, reading.last_level
    return reading.best > 0 and began is not None and ended is not None and RISE_FACTOR * began <= ended


def _rollbacks_clause(findings: Sequence[Finding], bad: Sequence[Finding]) -> str:
    """Return ``rolled back 2 times, last to step 380 after a divergence at step 402``; empty if it never was."""
    rollbacks = [finding for finding in findings if finding.kind == Rollback.kind]
    if not rollbacks:
        return ""
    count = _rollbacks_in_effect(rollbacks)
    if count <= 0:
        undone = sum(map(is_revert, rollbacks))
        return f"rolled back {times(undone)} ({'reverted' if undone == 1 else 'all reverted'})"
    kept: list[Finding] = []
    for rollback in sorted(rollbacks, key=lambda finding: (finding.attempt, finding.start)):
        if not is_revert(rollback):
            kept.append(rollback)
        elif kept:
            kept.pop()
    last = kept[-1] if kept else rollbacks[-1]  # the pairs of findings that were merged are not known
    only = last.facts if last.count == 1 else None  # of several in one finding, the first is known
    if not isinstance(only, RollbackFacts):
        return f"rolled back {times(count)}" + (f" after {_worst_of(bad)}" if bad else "")
    state = f"{last.unit} {only.target:.0f}"
    to = f"rolled back to {state}" if count == 1 else f"rolled back {times(count)}, last to {state}"
    answered = [
        finding
        for finding in bad
        if finding.attempt == last.attempt and only.onset <= finding.end and finding.start <= last.end
    ]
    named = [finding for finding in answered if finding.kind == only.finding] or answered
    if named or (bad and not only.reason):
        return f"{to} after {_worst_of(named or bad)}"
    reason, _, _ = only.reason.partition(". ")
    return f"{to} ({reason[0].lower()}{reason[1:].rstrip('.')})" if reason else to


def _worst_of(bad: Sequence[Finding]) -> str:
    """Return ``a divergence at step 402``, which says more than what led to it."""
    lost = (*KINDS_THAT_DECIDE["diverged"], *NON_FINITE)
    order = {kind: place for place, kind in enumerate(lost)}
    worst = min(bad, key=lambda finding: (order.get(finding.kind, len(order)), -finding.severity, finding.start))
    return f"{listed([worst.kind])} at {worst.unit} {worst.start}"


def _was_skipped(finding: Finding) -> bool:
    """Whether the autopilot skipped the steps of a finding, so that they changed nothing."""
    return any(isinstance(facts, SkippedStepFacts | SkippedStepsFacts) for facts in (finding.facts, *finding.also))


def _origin(findings: Sequence[Finding]) -> str:
    """Return where the first non-finite number came from, if that was found."""
    origins = sorted(
        (finding for finding in findings if finding.kind == NAN_ORIGIN),
        key=lambda finding: (finding.attempt, finding.start),
    )
    if not origins:
        return ""
    return f" {origins[0].unit.capitalize()} {origins[0].start}: {origin_of(origins[0]).statement}"


def _is_lost(finding: Finding) -> bool:
    """Whether a loss rose for good, or is far up in its last points."""
    if finding.kind == "loss_spike":
        return finding.severity is Severity.CRITICAL
    return finding.kind == "divergence" and finding.recovered is False


def _new_data_since(divergence: Finding, findings: Sequence[Finding]) -> Finding | None:
    """Return the change of the data that a divergence was, if the loss has fallen since."""
    ended = divergence.facts_as(LossEndFacts)
    last = inf if ended is None else ended.last
    changes = (
        finding
        for finding in findings
        if isinstance(finding.facts, DataChangedFacts)
        and finding.attempt >= divergence.attempt
        and divergence.start <= finding.start <= divergence.end
        and last < finding.facts.loss
    )
    return next(changes, None)


def _new_data(bad: Sequence[Finding]) -> str:
    """Return that the data changed and how the loss continued; empty if a divergence has another reason."""
    lost = next((finding for finding in bad if _is_lost(finding)), None)
    change = None if lost is None else _new_data_since(lost, bad)
    facts = None if change is None else change.facts
    ended = None if lost is None else lost.facts_as(LossEndFacts)
    if lost is None or ended is None or not isinstance(facts, DataChangedFacts):
        return ""
    return (
        f"the data or the loss function changed at about {lost.unit} {facts.onset}; "
        f"{lost.metric or 'loss'} rose from {facts.level:.4g} to {facts.loss:.4g} "
        f"and has fallen to {ended.last:.4g} since."
    )


def _trainings_since(readings: Sequence[CurveReading]) -> str:
    """Name the trainings of other models that began after the main one had ended, such as trials; empty without any."""
    later = [
        reading
        for reading in readings[1:]
        if reading.place.startswith(TRACK) and reading.first_step > readings[0].last_step
    ]
    if not later:
        return ""
    if len(readings) == MAX_CURVES:
        return "; the first of many trainings"
    last = max(later, key=lambda reading: reading.first_step)
    return f"; the last of {len(later) + 1} trainings: {_movement(last)}"


def _course(reading: CurveReading | None, bad: Sequence[Finding], silence: str) -> str:
    if reading is None:
        return silence or "no loss was logged"
    mine = (finding for finding in bad if finding.metric == reading.metric and not finding.recovered)
    ends_in_it = is_noisy(reading) and any(finding.end >= reading.last_step for finding in mine)
    return _movement(reading) + (f"; last value {reading.last:.4g}" if ends_in_it else "")


def _movement(reading: CurveReading) -> str:
    steps, name, about, first, last = _steps(reading), reading.metric, "", f"{reading.first:.4g}", f"{reading.last:.4g}"
    if reading.points >= MIN_POINTS_OF_LEVELS and reading.first_level is not None:
        first, last = f"{reading.first_level:.4g}", f"{reading.last_level:.4g}"  # one step may be any batch
    if is_noisy(reading):
        name, about = f"{name} (noisy)", "about "
        first, last = f"{reading.first_level:.3g}", f"{reading.last_level:.3g}"
    if float(first) < float(last) < RISE_FACTOR * float(first):
        return f"{name} stayed between {about}{first} and {last} for {steps}"
    if first == last:
        return f"{name} stayed at {about}{last} for {steps}"
    return f"{name} {'fell' if float(last) < float(first) else 'rose'} from {about}{first} to {last} in {steps}"


def _steps(reading: CurveReading) -> str:
    """``1,000 steps``, or ``30 epochs``."""
    span = reading.last_step - reading.first_step
    steps = span + (reading.first_step == 1 or reading.points > span)  # each step has a point, the first one too
    return counted(steps, reading.unit)


def listed(kinds: Iterable[str]) -> str:
    """All of them: "2 loss spikes, a plateau and NaN"."""
    nouns = [noun_of(kind, count) for kind, count in Counter(kinds).items()]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} and {nouns[-1]}"
