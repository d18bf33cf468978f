"""Names why each finding came about, as far as the run shows it; never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import cause_phrase, causes, checks_of, excluded, symptoms
from mlflow_stability.diagnosis.causes.check import CERTAINTIES, Check, CheckResult, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, begin_of, surroundings_of
from mlflow_stability.diagnosis.causes.learning_rate import OF_THE_RATE, rate_is_innocent
from mlflow_stability.diagnosis.causes.nan_origin import BROKEN_BATCH, KIND, ORIGIN_LIMITS, origin_of
from mlflow_stability.diagnosis.findings.attempt_span import RunAttempts, attempts_of_run
from mlflow_stability.diagnosis.findings.saved_batch import batches_of, finite_again
from mlflow_stability.diagnosis.parameters.recorded_settings import RecordedSettings, settings_of
from mlflow_stability.diagnosis.verdict import deciding_of, noun_of
from mlflow_stability.vocabulary.result import RATE_TOPICS, Cause, Finding, Severity, without_topics
from mlflow_stability.vocabulary.run import OF_THE_PROCESS, RunHistory


@dataclass(frozen=True, slots=True)
class SameTroubleLimits:
    """When two findings are the same trouble."""

    share_of_run: float = 0.05
    """The earlier one began within this share of the run before the later one, ..."""
    points: int = 64
    """... and within this number of logged points."""


LIMITS = SameTroubleLimits()
RISING_KINDS = frozenset({"divergence", "loss_spike", "gradient_explosion"})
"""What went on until another finding began is where that came from, however long before."""


def with_causes(episodes: Sequence[Finding], history: RunHistory, curves: RunCurves) -> tuple[Finding, ...]:
    """The same episodes, each that is above INFO with its likeliest cause."""
    attempts = attempts_of_run(history)
    looked = [
        CheckedEpisode(each, looks_at(each, history, curves, attempts, episodes)) for each in explainable(episodes)
    ]
    found = {id(one.episode): _cause_of(one, looked, history, curves, attempts) for one in looked}
    innocent = {id(one.episode) for one in looked if rate_is_innocent(one.ruled_out)}

    def explained(episode: Finding) -> Finding:
        cause = found.get(id(episode))
        if id(episode) not in innocent or (cause is not None and cause.name in OF_THE_RATE):
            return replace(episode, cause=cause)
        return replace(episode, cause=cause, remedies=without_topics(episode.remedies, RATE_TOPICS))

    return tuple(map(explained, episodes))


def deciding_cause(
    outcome: str, episodes: Sequence[Finding], history: RunHistory, curves: RunCurves
) -> tuple[Cause | None, tuple[str, ...]]:
    """The cause of the finding that decides the outcome, and what is not known about it."""
    deciding = deciding_of(outcome, explainable(episodes))
    if deciding is None or deciding.cause is not None:
        return None if deciding is None else deciding.cause, ()
    looks = looks_at(deciding, history, curves, findings=episodes)
    seen, unseen = [look.ruled_out for look in looks if look.ruled_out], [look.unseen for look in looks if look.unseen]
    said = [f"Ruled out: {'; '.join(seen)}."] if seen else []
    said += [f"Not checked: {'; '.join(dict.fromkeys(unseen))}."] if unseen else []
    return None, (
        " ".join([f"No cause found for {noun_of(deciding.kind)} at {history.step_unit} {deciding.start}.", *said]),
    )


def explainable(episodes: Sequence[Finding]) -> list[Finding]:
    """The episodes whose causes are looked for."""
    return [each for each in episodes if each.severity >= Severity.WARNING and each.kind in symptoms()]


@dataclass(frozen=True, slots=True)
class CheckedEpisode:
    """An episode, and all that was looked at for it."""

    episode: Finding
    looks: list[CheckResult]

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """The names of the causes that were shown not to be it."""
        looks = zip(checks_of(self.episode.kind), self.looks, strict=True)
        return tuple(dict.fromkeys(name for check, look in looks if look.ruled_out for name in sorted(check.finds)))


def _cause_of(
    one: CheckedEpisode, every: Sequence[CheckedEpisode], history: RunHistory, curves: RunCurves, attempts: RunAttempts
) -> Cause | None:
    """The likeliest cause of one episode, found by looking at it and at what is the same trouble, seen elsewhere."""
    span, reach = attempts.around(one.episode.attempt, one.episode.start), _reach(curves)
    trouble = [each for each in _same_trouble(one.episode, every, reach) if each.episode.start in span]
    found = [(each, look.cause) for each in trouble for look in each.looks if look.cause is not None]
    if not found:
        return None

    def order(each: tuple[CheckedEpisode, Cause]) -> tuple[bool, bool, bool, int]:
        """How the process ended is certain, and mostly what came of the trouble before it; and what was going on long
        before, as a divergence before a NaN, is where it came from, unless its own cause was seen directly.
        """
        episode, cause = each[0].episode, each[1]
        long_before = episode.start < one.episode.start - reach
        sure = CERTAINTIES.index(cause.certainty)
        return episode.kind in OF_THE_PROCESS, not cause.certain, not long_before, sure

    source, cause = min(found, key=order)
    first = min((each.episode for each in trouble), key=lambda each: each.start)
    cause = _with_birth(cause, surroundings_of(first, history, curves, attempts), source.episode)
    cause = _with_rerun(cause, one.episode, history, attempts)
    asked = checks_of(source.episode.kind)
    ruled_out = _said([look.ruled_out for look in source.looks], asked, cause)
    not_checked = _said([look.unseen for look in source.looks], asked, cause)
    return replace(
        cause,
        ruled_out=ruled_out,
        ruled_out_causes=tuple(name for name in source.ruled_out if name != cause.name),
        not_checked=not_checked,
        kind=one.episode.kind,
        step=one.episode.start,
    )


def _said(results: Sequence[str], asked: Sequence[Check], cause: Cause) -> tuple[str, ...]:
    """What looks ended in, once each, without what would deny the cause that was found."""
    pairs = zip(asked, results, strict=True)
    return tuple(dict.fromkeys(said for check, said in pairs if said and cause.name not in check.finds))


def _with_birth(cause: Cause, around: EpisodeContext, explained: Finding) -> Cause:
    """The cause, with where a NaN was born meanwhile and what goes against that, if it does not say so."""
    breaks = symptoms()[explained.kind] in (Symptom.NON_FINITE, Symptom.RISING)
    last = max(explained.end, explained.start + ORIGIN_LIMITS.near) if breaks else -1
    since = around.episode.start - ORIGIN_LIMITS.near
    first = next((each for each in around.said(KIND) if since <= each.step <= last), None)
    if first is None or (KIND, first.step) in cause.repeats:
        return cause
    said = origin_of(first).statement
    born = f"At {around.unit} {first.step} {said[:1].lower()}{said[1:]}"
    against = (*(cause.remedies or causes()[cause.name].remedies), *first.remedies)
    repeats = (*cause.repeats, (KIND, first.step))
    return replace(cause, evidence=(*cause.evidence, born), remedies=against, repeats=repeats)


def _with_rerun(cause: Cause, episode: Finding, history: RunHistory, attempts: RunAttempts) -> Cause:
    """The cause, with where to look for it if the model's output was finite when its batch was run again."""
    since = episode.start if cause.since is None else cause.since
    said = finite_again(batches_of(history, attempts).get((episode.attempt, since)))
    known = not said or (BROKEN_BATCH, since) in cause.repeats
    return cause if known else replace(cause, evidence=(said, *cause.evidence))


def _reach(curves: RunCurves) -> float:
    """How many steps before a finding another one may have begun to be taken for the same trouble."""
    losses = [curve for curve in curves.losses if len(curve.steps) > 1]
    span = max((int(curve.steps[-1] - curve.steps[0]) for curve in losses), default=0)
    return min(LIMITS.share_of_run * span, LIMITS.points * max((curve.distance for curve in losses), default=1.0))


def _same_trouble(episode: Finding, every: Sequence[CheckedEpisode], reach: float) -> list[CheckedEpisode]:
    """What the episode came of, the earliest first: itself, and what began before it and was still going on.

    What had passed by then is another trouble. A jump of the learning rate comes last, for what it did is what there is
    to explain.
    """
    same = [each for each in every if each.episode is episode or _led_to(each.episode, episode, reach)]
    return sorted(same, key=lambda each: (each.episode.kind == "learning_rate_jump", each.episode.start))


def _led_to(earlier: Finding, later: Finding, reach: float) -> bool:
    if earlier.attempt != later.attempt or begin_of(earlier) > begin_of(later) or earlier.kind in OF_THE_PROCESS:
        return False
    passed = bool(earlier.recovered) and earlier.end < later.start
    lasting = earlier.recovered is False and earlier.end >= later.start and earlier.kind in RISING_KINDS
    return not passed and (later.start - earlier.start <= reach or lasting)


def looks_at(
    episode: Finding,
    history: RunHistory,
    curves: RunCurves,
    attempts: RunAttempts | None = None,
    findings: Sequence[Finding] = (),
) -> list[CheckResult]:
    """All that is looked at for one episode; ``findings``: all of the run."""
    around = surroundings_of(episode, history, curves, attempts, findings)
    settings = settings_of(history)
    return [admitted(check.look(around), around, settings) for check in checks_of(episode.kind)]


def admitted(look: CheckResult, around: EpisodeContext, settings: RecordedSettings) -> CheckResult:
    """A look's result, if what is known of the run allows it: no cause comes later than what it explains, and none is
    named that the recorded settings exclude.
    """
    cause = look.cause
    if cause is None:
        return look
    excluding = excluded(cause.name, settings)
    if excluding:
        return is_not(excluding)
    if cause.since is not None and cause.since > around.latest:
        name, unit = cause_phrase(cause.name), around.unit
        return not_seen(f"{name}: first seen at {unit} {cause.since}, after the start at {unit} {around.episode.start}")
    return look
