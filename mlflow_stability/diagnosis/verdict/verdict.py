"""Puts the conclusion about a run into one word and one sentence.

In: its episodes and curves, and how its process ended. Out: the outcome, a sentence with numbers, and the episode that
decides them, whose cause and remedies are those of the verdict. Guarantees: a run that cannot be judged is never called
healthy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType

from mlflow_stability.diagnosis.causes.non_finite import NAN_ORIGIN, origin_of
from mlflow_stability.diagnosis.findings.episodes import persists
from mlflow_stability.diagnosis.verdict.finding_phrases import listed
from mlflow_stability.kinds.catalog import OF_HARDWARE, OF_SETUP
from mlflow_stability.kinds.loss.divergence_curve import LastingRiseFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.reported.autopilot import DataChangedFacts, EarlyStopFacts
from mlflow_stability.kinds.reported.rollback import GiveUp, GiveUpFacts, Rollback, RollbackFacts
from mlflow_stability.vocabulary.facts import LossEndFacts, LossRiseFacts
from mlflow_stability.vocabulary.result import PROCESS_KINDS, CurveReading, Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text import counted, factor, times

NONE: Mapping[str, str] = MappingProxyType({})
NON_FINITE = ("nan_detected", "inf_detected")
KINDS_THAT_DECIDE: dict[str, tuple[str, ...]] = {
    "broken": NON_FINITE,
    "diverged": ("divergence", "loss_spike"),
    "stuck": ("plateau",),
    "overfitted": ("overfitting",),
    "out_of_memory": ("out_of_memory",),
    "killed": ("killed",),
    "crashed": ("crashed",),
}
"""For each outcome what it is concluded from; any other outcome is that of the worst findings."""


def deciding_of(outcome: str, episodes: Sequence[Finding]) -> Finding | None:
    """The episode that the outcome is concluded from; None where there is nothing above INFO.

    Of several that are equally bad and that passed, the first whose cause is known.
    """
    bad = [each for each in episodes if each.severity >= Severity.WARNING]
    lost = [each for each in bad if each.kind in KINDS_THAT_DECIDE.get(outcome, ())]
    if lost:
        return min(lost, key=_order_of_loss)
    return min(bad, key=lambda each: (-each.severity, each.cause is None, each.attempt, each.start), default=None)


def _order_of_loss(episode: Finding) -> tuple[bool, int, bool, int, int]:
    """What lasted comes first, of the last start of the training; then a divergence, the worst, the earliest."""
    recovered = bool(episode.recovered)
    return recovered, -episode.attempt, episode.kind == "loss_spike", -episode.severity, episode.start


FEWEST = 8
"""A run none of whose losses has so many points is not called healthy."""
FEWEST_OF_LEVELS = 30
"""From so many points on a verdict names levels of three points or more; shorter logs have one point for many steps."""
LOUD = 0.05
"""A loss that varies by more than this share is told by its course, not by its first and last value."""
NEAR_ITS_LEVEL = 1.25
"""A loss has recovered that ended at most at so many times its level before the trouble."""
RISEN = 1.1
"""A loss rose that ended at so many times the level where it began, or more."""
STOPPED = "Stopped"
"""The title of a run without warnings that a condition of `stop_on` ended."""
RECOVERED = "recovered"
"""The outcome of a run that was rolled back and trained on well."""
ENDED = ("out_of_memory", "killed", "crashed", "exited", "interrupted")


def outcome_of(
    episodes: Sequence[Finding],
    readings: Sequence[CurveReading],
    ended: str,
    *,
    measured: bool,
    last_attempt: int | None = None,
    main: CurveReading | None = None,
) -> str:
    """The one word; ``measured``: whether there is a loss that says how well the training goes; ``main``: that loss.

    ``last_attempt``: the one that a run which was resumed ended in; None where attempts are runs of their own.
    """
    bad = [each for each in episodes if each.severity >= Severity.WARNING]
    last = max((each.attempt for each in bad), default=0) if last_attempt is None else last_attempt
    remaining = [each for each in bad if not each.recovered and each.attempt == last]
    lasting = {each.kind for each in remaining}
    if lasting & set(NON_FINITE):
        return "broken"
    if any(_gone(each) and _learnt_since(each, episodes) is None for each in remaining):
        return "diverged"
    if ended in ENDED:
        return ended
    if "plateau" in lasting:
        return "stuck"
    if "overfitting" in lasting and not any(each.severity is Severity.CRITICAL for each in remaining):
        return "overfitted"
    if bad and _rescued(episodes):
        return RECOVERED if main is None or _is_back(main, bad) else "diverged" if _rose(main) else "unstable"
    if bad:
        return "unstable"
    enough = measured and any(each.points >= FEWEST for each in readings)
    return "healthy" if enough and not (main is not None and _rose(main)) else "cannot_tell"


def training_outcome(diagnosis: Diagnosis) -> str:
    """The outcome of the training in one word, however its process ended."""
    if diagnosis.outcome not in ENDED:
        return diagnosis.outcome
    about_training = [each for each in diagnosis.findings if each.kind not in PROCESS_KINDS]
    measured = bool(diagnosis.judged.losses or diagnosis.judged.validations)
    return outcome_of(about_training, diagnosis.curves, "", measured=measured)


def verdict_of(
    outcome: str,
    episodes: Sequence[Finding],
    readings: Sequence[CurveReading],
    points: int,
    silence: str = "",
    without_level: Mapping[str, str] = NONE,
) -> str:
    """What is said of the run; ``silence``: that the loss is missing at the end, or has a single point, if it is so.

    ``without_level``: the losses whose level does not measure progress, each with the reason.
    """
    said = _training_sentence(outcome, episodes, readings, points, silence, without_level)
    stop = _stop(episodes)
    if outcome == "healthy" and stop is not None:
        said = f"{STOPPED}: {stop[1].reason_first(stop[0])}; {said.removeprefix('Healthy: ')}"
    else:
        said += end_on_purpose(episodes)
    main = readings[0].metric if readings else ""
    if main not in without_level or outcome == "cannot_tell":
        return said
    return f"{said} The level of {main} was not judged: {without_level[main]}."


def title_of(outcome: str, episodes: Sequence[Finding]) -> str:
    """The outcome as verdicts begin with it; a run with nothing but mistakes in its set-up, or a slow machine, is not
    called unstable, nor one that a condition of `stop_on` ended healthy.
    """
    bad = {each.kind for each in episodes if each.severity >= Severity.WARNING}
    if outcome == "healthy" and _stop(episodes) is not None:
        return STOPPED
    if outcome != "unstable" or not bad or not bad <= OF_SETUP | OF_HARDWARE:
        return outcome.capitalize()
    return "Check the hardware" if bad <= OF_HARDWARE else "Check the set-up"


def end_on_purpose(episodes: Sequence[Finding]) -> str:
    """`` Stopped before step 74 was taken: loss is 0.0397 (stop_on=loss<0.05).``; empty where nothing stopped it."""
    ended = ended_by_autopilot(episodes)
    if ended is not None:
        return f" TrainingDiverged ended the training at {ended.unit} {ended.end}: {reason_of_end(ended)}"
    stop = _stop(episodes)
    return "" if stop is None else f" Stopped {stop[1].statement(stop[0])}"


def _stop(episodes: Sequence[Finding]) -> tuple[int, EarlyStopFacts] | None:
    """Step and facts of the condition of `stop_on` that ended the training; None where none did."""
    stops = ((each.end, each.facts) for each in episodes if isinstance(each.facts, EarlyStopFacts))
    return next(stops, None) if ended_by_autopilot(episodes) is None else None


def ended_by_autopilot(episodes: Sequence[Finding]) -> Finding | None:
    """The end of the rollbacks, where it ended the training with `TrainingDiverged`."""
    return next((each for each in episodes if isinstance(each.facts, GiveUpFacts) and each.facts.ended_training), None)


def reason_of_end(episode: Finding) -> str:
    """Why the autopilot ended the training."""
    return episode.facts.reason if isinstance(episode.facts, GiveUpFacts) else episode.message


def _training_sentence(
    outcome: str,
    episodes: Sequence[Finding],
    readings: Sequence[CurveReading],
    points: int,
    silence: str,
    without_level: Mapping[str, str],
) -> str:
    main = readings[0] if readings else None
    if outcome == "cannot_tell":
        rose = main is not None and main.metric not in without_level and _rose(main)
        why = f"{_moved(main)}, but its noise is as large" if rose and main is not None else _too_little(main, points)
        return f"Cannot tell: {silence or why}."
    bad = [each for each in episodes if each.severity >= Severity.WARNING]
    measures = main is None or main.metric not in without_level
    course = _course(main, bad, silence) if main is None or measures else _size(main)
    last = ""
    if main is not None and measures and _is_noisy(main) and "last value" not in course:
        last = f"; last value {main.last:.4g}"
    if outcome == "healthy":
        return f"Healthy: {course}; no warnings."
    deciding = deciding_of(outcome, bad)
    title = outcome.replace("_", " ").capitalize()
    if deciding is None:
        return f"{title}: {course}; no warnings before that."
    back = _back(episodes, bad)
    if back and len(bad) > 1:
        back = f"{back} ({counted(len(bad) - 1, 'more finding')})"
    if outcome == "unstable" and back and any(map(persists, episodes)):
        return f"Unstable: {back}, but zero_grad() is still missing; {course}{last}.{_born(episodes)}"
    if outcome == "unstable" and (said := _new_data(bad)):
        return f"Unstable: {said}{_born(episodes)}"
    if outcome == "unstable":
        unit, first = bad[0].unit, min(each.start for each in bad)
        where = f" at {unit} {first}" if all(each.start == first for each in bad) else f" from {unit} {first} on"
        if all(each.kind in OF_SETUP for each in bad):
            where = ""  # such a mistake is there from the start; its step is that of the look
        return f"{title_of(outcome, bad)}: {listed(each.kind for each in bad)}{where}; {course}.{_born(episodes)}"
    if outcome == RECOVERED:
        return f"Recovered: {back}; {course}{last}.{_born(episodes)}"
    others = len(bad) - 1
    more = f" {others} more finding{'s' if others > 1 else ''} of at least WARNING." if others else ""
    return f"{title}: {_not_rescued(deciding, episodes)}{more}"


def _not_rescued(deciding: Finding, episodes: Sequence[Finding]) -> str:
    """What decides the outcome, with the rollbacks that did not help against it, or not yet."""
    rollbacks = [each for each in episodes if each.kind == Rollback.kind]
    message = _to_the_end(deciding)
    if not rollbacks:
        return message
    back = _back(episodes, [each for each in episodes if each.severity >= Severity.WARNING])
    was = f"The training was {back}"
    answered = any(each.attempt >= deciding.attempt and each.end >= deciding.start for each in rollbacks)
    if deciding.kind not in KINDS_THAT_DECIDE["diverged"] or not answered:
        return f"{message} {was}."
    ended = deciding.known(LastingRiseFacts)
    if ended is None or ended.best <= 0:
        return f"{message} {was}; the loss has not come down again."
    return (
        f"{back}, but {deciding.metric or 'loss'} has not come down again: it ended at {ended.last:.4g}, "
        f"{factor(ended.last / ended.best)} times its best level of {ended.best:.4g}."
    )


def _to_the_end(deciding: Finding) -> str:
    """Its sentence; of what stayed non-finite also until when, which the step where it began does not say."""
    first, _, more = deciding.message.partition(". ")
    stayed = deciding.kind in NON_FINITE and deciding.recovered is False and deciding.end > deciding.start
    facts = deciding.facts
    told = isinstance(facts, NonFiniteFacts) and facts.finite_afterwards is not None
    if not stayed or told:
        return deciding.message
    return f"{first.rstrip('.')}; non-finite up to {deciding.unit} {deciding.end}. {more}".rstrip()


def _rescued(episodes: Sequence[Finding]) -> bool:
    """Whether a rollback helped: nothing critical is left that none undid, rollbacks were not given up, and no cause
    is known to go on.
    """
    undone = max(((each.attempt, each.end) for each in episodes if each.kind == Rollback.kind), default=(-1, -1))
    critical = (each for each in episodes if each.severity is Severity.CRITICAL and each.recovered is False)
    lasting = any((each.attempt, each.end) > undone for each in critical)
    kinds = {each.kind for each in episodes}
    held = GiveUp.kind in kinds or any(map(persists, episodes))  # or it may break again at any step
    return Rollback.kind in kinds and not held and not lasting


def _is_back(reading: CurveReading, bad: Sequence[Finding]) -> bool:
    """Whether the loss ended near its level before the trouble; near where it began if no finding names that level."""
    began, ended = reading.first_level, reading.last_level
    if began is None or ended is None or began <= 0:
        return True
    rises = (each.known(LossRiseFacts) for each in bad if each.metric == reading.metric)
    levels = [rise.baseline for rise in rises if rise is not None]
    return ended <= NEAR_ITS_LEVEL * max(levels, default=0.0) or (not any(levels) and ended <= NEAR_ITS_LEVEL * began)


def _rose(reading: CurveReading) -> bool:
    """Whether the loss ended clearly above where it began."""
    began, ended = reading.first_level, reading.last_level
    return reading.best > 0 and began is not None and ended is not None and RISEN * began <= ended


def _back(episodes: Sequence[Finding], bad: Sequence[Finding]) -> str:
    """``rolled back 2 times, last to step 380 after a divergence at step 402``; empty where it never was."""
    rollbacks = [each for each in episodes if each.kind == Rollback.kind]
    if not rollbacks:
        return ""
    undone = sum(each.count for each in rollbacks if _is_reverted(each))
    count = max(1, sum(each.count for each in rollbacks) - 2 * undone)  # to undo one is one more
    last = max(rollbacks, key=lambda each: (each.attempt, each.start))
    only = last.facts if last.count == 1 else None  # of several in one episode, the first is known
    if not isinstance(only, RollbackFacts):
        return f"rolled back {times(count)} after {_worst_of(bad)}"
    state = f"{last.unit} {only.target:.0f}"
    to = f"rolled back to {state}" if count == 1 else f"rolled back {times(count)}, last to {state}"
    answered = [
        each for each in bad if each.attempt == last.attempt and only.onset <= each.end and each.start <= last.end
    ]
    named = [each for each in answered if each.kind == only.finding] or answered
    if named or not only.reason:
        return f"{to} after {_worst_of(named or bad)}"
    reason, _, _ = only.reason.partition(". ")
    return f"{to} ({reason[0].lower()}{reason[1:].rstrip('.')})"


def _is_reverted(rollback: Finding) -> bool:
    return isinstance(rollback.facts, RollbackFacts) and rollback.facts.steps_regained is not None


def _worst_of(bad: Sequence[Finding]) -> str:
    """``a divergence at step 402``: what was lost, had it gone on, tells more than what led to it."""
    lost = (*KINDS_THAT_DECIDE["diverged"], *NON_FINITE)
    order = {kind: place for place, kind in enumerate(lost)}
    worst = min(bad, key=lambda each: (order.get(each.kind, len(order)), -each.severity, each.start))
    return f"{listed([worst.kind])} at {worst.unit} {worst.start}"


def _born(episodes: Sequence[Finding]) -> str:
    """Where the first number that is not finite was born, where that was found: nothing tells more."""
    births = sorted((each for each in episodes if each.kind == NAN_ORIGIN), key=lambda each: (each.attempt, each.start))
    if not births:
        return ""
    return f" {births[0].unit.capitalize()} {births[0].start}: {origin_of(births[0]).statement}"


def _gone(episode: Finding) -> bool:
    """Whether it is a loss that was lost: one that rose for good, or far up in its last points."""
    if episode.kind == "loss_spike":
        return episode.severity is Severity.CRITICAL
    return episode.kind == "divergence" and episode.recovered is False


def _learnt_since(divergence: Finding, episodes: Sequence[Finding]) -> Finding | None:
    """The change of the data that a divergence was, where the loss has come down since from what that made of it."""
    ended = divergence.known(LossEndFacts)
    last = inf if ended is None else ended.last
    changes = (
        each
        for each in episodes
        if isinstance(each.facts, DataChangedFacts)
        and each.attempt >= divergence.attempt
        and divergence.start <= each.start <= divergence.end
        and last < each.facts.loss
    )
    return next(changes, None)


def _new_data(bad: Sequence[Finding]) -> str:
    """That the data changed, and how the loss went on; empty where nothing else than that would be left out."""
    lost = next((each for each in bad if _gone(each)), None)
    change = None if lost is None else _learnt_since(lost, bad)
    facts = None if change is None else change.facts
    ended = None if lost is None else lost.known(LossEndFacts)
    if lost is None or ended is None or not isinstance(facts, DataChangedFacts):
        return ""
    return (
        f"the data or the loss function changed at about {lost.unit} {facts.onset}; "
        f"{lost.metric or 'loss'} rose from {facts.level:.4g} to {facts.loss:.4g} "
        f"and has fallen to {ended.last:.4g} since."
    )


def _course(reading: CurveReading | None, bad: Sequence[Finding], silence: str) -> str:
    if reading is None:
        return silence or "no loss was logged"
    ends_in_it = any(
        each.metric == reading.metric and not each.recovered and each.end >= reading.last_step for each in bad
    )
    return f"{_moved(reading)}; last value {reading.last:.4g}" if ends_in_it and _is_noisy(reading) else _moved(reading)


def _size(reading: CurveReading) -> str:
    """The course of a loss that measures no progress: neither a first value nor a fall is told."""
    state = "finite" if math.isfinite(reading.last) else "not finite at the end"
    return f"{reading.metric} {state}, last value {reading.last:.4g} after {_steps(reading)}"


def _is_noisy(reading: CurveReading) -> bool:
    return reading.first_level is not None and reading.best > 0 and (reading.volatility or 0.0) > LOUD


def _moved(reading: CurveReading) -> str:
    steps, name, about, first, last = _steps(reading), reading.metric, "", f"{reading.first:.4g}", f"{reading.last:.4g}"
    if reading.points >= FEWEST_OF_LEVELS and reading.first_level is not None:
        first, last = f"{reading.first_level:.4g}", f"{reading.last_level:.4g}"  # one step may be any batch
    if _is_noisy(reading):
        name, about = f"{name} (noisy)", "about "
        first, last = f"{reading.first_level:.3g}", f"{reading.last_level:.3g}"
    if float(first) < float(last) < RISEN * float(first):
        return f"{name} stayed between {about}{first} and {last} for {steps}"
    if first == last:
        return f"{name} stayed at {about}{last} for {steps}"
    return f"{name} {'fell' if float(last) < float(first) else 'rose'} from {about}{first} to {last} in {steps}"


def _steps(reading: CurveReading) -> str:
    """``1,000 steps``, or ``30 epochs``."""
    span = reading.last_step - reading.first_step
    steps = span + (reading.first_step == 1 or reading.points > span)  # each step has a point, the first one too
    return f"{steps:,} {reading.unit}s"


def _too_little(reading: CurveReading | None, points: int) -> str:
    if reading is None:
        return "no loss among its metrics" if points else "no values were logged"
    if reading.points >= FEWEST:
        return f"{reading.metric} stayed finite, but does not measure progress"
    return f"{reading.metric} has {counted(reading.points, 'point')}, {FEWEST} are needed"
