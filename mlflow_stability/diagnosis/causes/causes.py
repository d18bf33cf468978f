"""Find the most likely cause of each finding, from what the run recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import (
    CERTAINTIES,
    CheckResult,
    cause_phrase,
    causes,
    checks_of,
    excluded,
    not_checked,
    ruled_out,
    symptoms,
)
from mlflow_stability.diagnosis.causes.context import EpisodeContext, episode_context, first_step_of
from mlflow_stability.diagnosis.causes.learning_rate import RATE_CAUSES
from mlflow_stability.diagnosis.causes.non_finite import BROKEN_BATCH, NAN_ORIGIN, ORIGIN_LIMITS, origin_of
from mlflow_stability.diagnosis.findings.attempts import RunAttempts, attempts_of_run, batches_of, finite_again
from mlflow_stability.diagnosis.recorded_settings import settings_of
from mlflow_stability.diagnosis.verdict import deciding_of
from mlflow_stability.kinds.catalog import noun_of
from mlflow_stability.vocabulary.result import PROCESS_KINDS, RATE_TOPICS, Cause, Finding, Severity, without_topics
from mlflow_stability.vocabulary.run import RunHistory

SHARE_OF_RUN = 0.05
"""Two findings are the same trouble if the earlier one began within this share of the run before the later one, ..."""
POINTS = 64  # ... and within this number of logged points
RISING_KINDS = frozenset({"divergence", "loss_spike", "gradient_explosion"})
"""Where one of these lasted until another finding began, it led to that finding, however long before it began."""


@dataclass(frozen=True, slots=True)
class CheckedEpisode:
    episode: Finding
    results: list[CheckResult]

    @property
    def ruled_out(self) -> tuple[str, ...]:
        pairs = zip(checks_of(self.episode.kind), self.results, strict=True)
        return tuple(dict.fromkeys(name for check, result in pairs if result.ruled_out for name in sorted(check.finds)))

    def sentences(self, field: str, cause: Cause) -> tuple[str, ...]:
        """One field of all results, without checks that can find `cause` and would contradict it."""
        pairs = zip(checks_of(self.episode.kind), self.results, strict=True)
        sentences = (getattr(result, field) for check, result in pairs if cause.name not in check.finds)
        return tuple(dict.fromkeys(filter(None, sentences)))


def with_causes(episodes: Sequence[Finding], history: RunHistory, curves: RunCurves) -> tuple[Finding, ...]:
    """Add the most likely cause to each episode of at least WARNING."""
    attempts = attempts_of_run(history)
    checked = [
        CheckedEpisode(episode, check_results(episode, history, curves, attempts, episodes))
        for episode in explainable(episodes)
    ]
    explained = {}
    for item in checked:
        cause, remedies = _cause_of(item, checked, history, curves, attempts), item.episode.remedies
        if "learning_rate_too_high" in item.ruled_out and (cause is None or cause.name not in RATE_CAUSES):
            remedies = without_topics(remedies, RATE_TOPICS)
        explained[id(item.episode)] = replace(item.episode, cause=cause, remedies=remedies)
    return tuple(explained.get(id(episode), episode) for episode in episodes)


def deciding_cause(
    outcome: str, episodes: Sequence[Finding], history: RunHistory, curves: RunCurves
) -> tuple[Cause | None, tuple[str, ...]]:
    """Return the cause of the finding that decides the outcome; without one, a sentence on what was checked."""
    deciding = deciding_of(outcome, explainable(episodes))
    if deciding is None or deciding.cause is not None:
        return None if deciding is None else deciding.cause, ()
    results = check_results(deciding, history, curves, findings=episodes)
    excluded_by = [result.ruled_out for result in results if result.ruled_out]
    missing = dict.fromkeys(result.not_checked for result in results if result.not_checked)
    sentences = [f"No cause found for {noun_of(deciding.kind)} at {history.step_unit} {deciding.start}."]
    sentences += [f"Ruled out: {'; '.join(excluded_by)}."] if excluded_by else []
    sentences += [f"Not checked: {'; '.join(missing)}."] if missing else []
    return None, (" ".join(sentences),)


def explainable(episodes: Sequence[Finding]) -> list[Finding]:
    return [episode for episode in episodes if episode.severity >= Severity.WARNING and episode.kind in symptoms()]


def _cause_of(
    item: CheckedEpisode,
    checked: Sequence[CheckedEpisode],
    history: RunHistory,
    curves: RunCurves,
    attempts: RunAttempts,
) -> Cause | None:
    """Return the most likely cause, found for the episode or for an earlier finding of the same trouble."""
    episode = item.episode
    length = max((int(curve.steps[-1] - curve.steps[0]) for curve in curves.losses), default=0)
    reach = min(SHARE_OF_RUN * length, POINTS * max((curve.distance for curve in curves.losses), default=1.0))
    span = attempts.around(episode.attempt, episode.start)
    same = (item for item in checked if item.episode is episode or _led_to(item.episode, episode, reach))
    # Earliest first; learning rate jumps last, because their effect is explained.
    trouble = sorted(
        (item for item in same if item.episode.start in span),
        key=lambda item: (item.episode.kind == "learning_rate_jump", item.episode.start),
    )
    candidates = [(other, result.cause) for other in trouble for result in other.results if result.cause is not None]
    if not candidates:
        return None

    def rank(candidate: tuple[CheckedEpisode, Cause]) -> tuple[bool, bool, bool, int]:
        # The end of the process is certain, but mostly follows from trouble before it. Trouble that began long
        # before, such as a divergence before a NaN, led to the episode, unless that has a certain cause of its own.
        earlier, cause = candidate[0].episode, candidate[1]
        long_before = earlier.start < episode.start - reach
        return earlier.kind in PROCESS_KINDS, not cause.certain, not long_before, CERTAINTIES.index(cause.certainty)

    source, cause = min(candidates, key=rank)
    first = min((other.episode for other in trouble), key=lambda finding: finding.start)
    cause = _with_nan_origin(cause, episode_context(first, history, curves, attempts), source.episode)
    since = episode.start if cause.since is None else cause.since
    rerun = finite_again(batches_of(history, attempts).get((episode.attempt, since)))
    if rerun and (BROKEN_BATCH, since) not in cause.repeats:
        cause = replace(cause, evidence=(rerun, *cause.evidence))
    return replace(
        cause,
        ruled_out=source.sentences("ruled_out", cause),
        ruled_out_causes=tuple(name for name in source.ruled_out if name != cause.name),
        not_checked=source.sentences("not_checked", cause),
        kind=episode.kind,
        step=episode.start,
    )


def _with_nan_origin(cause: Cause, context: EpisodeContext, explained: Finding) -> Cause:
    """Add the origin of a NaN that appeared meanwhile, and the remedies against it."""
    breaks = symptoms()[explained.kind] in (Symptom.NON_FINITE, Symptom.RISING)
    last = max(explained.end, explained.start + ORIGIN_LIMITS.near) if breaks else -1
    since = context.episode.start - ORIGIN_LIMITS.near
    origin = next((event for event in context.events_of(NAN_ORIGIN) if since <= event.step <= last), None)
    if origin is None or (NAN_ORIGIN, origin.step) in cause.repeats:
        return cause
    statement = origin_of(origin).statement
    return replace(
        cause,
        evidence=(*cause.evidence, f"At {context.unit} {origin.step} {statement[:1].lower()}{statement[1:]}"),
        remedies=(*(cause.remedies or causes()[cause.name].remedies), *origin.remedies),
        repeats=(*cause.repeats, (NAN_ORIGIN, origin.step)),
    )


def _led_to(earlier: Finding, later: Finding, reach: float) -> bool:
    if earlier.attempt != later.attempt or earlier.kind in PROCESS_KINDS:
        return False
    if first_step_of(earlier) > first_step_of(later) or (earlier.recovered and earlier.end < later.start):
        return False
    lasting = earlier.recovered is False and earlier.end >= later.start and earlier.kind in RISING_KINDS
    return lasting or later.start - earlier.start <= reach


def check_results(
    episode: Finding,
    history: RunHistory,
    curves: RunCurves,
    attempts: RunAttempts | None = None,
    findings: Sequence[Finding] = (),
) -> list[CheckResult]:
    """Run all checks for one episode; ``findings``: all of the run."""
    context = episode_context(episode, history, curves, attempts, findings)
    settings = settings_of(history)
    results = []
    for check in checks_of(episode.kind):
        result = check.run(context)
        if (cause := result.cause) is not None:
            if reason := excluded(cause.name, settings):
                result = ruled_out(reason)
            elif cause.since is not None and cause.since > context.latest:
                result = not_checked(
                    f"{cause_phrase(cause.name)}: first seen at {context.unit} {cause.since}, after the start at "
                    f"{context.unit} {episode.start}"
                )
        results.append(result)
    return results
