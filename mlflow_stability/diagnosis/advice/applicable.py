"""Fits remedies to what a run recorded of itself, whatever found its troubles.

In: a run, its episodes and their causes. Out: the episodes and causes with remedies that fit. Guarantees: nobody is
told to leave fp16 who does not train in it, to raise a temperature that was not measured, to clip at a norm at which
gradients are clipped already, or to go back where there is nothing to go back to or where that has just been done;
where it was found where a NaN was born, or what it came of, nobody is told to look for it; the batch to inspect is that
of the cause; where one operation or one batch broke, nobody
is told to lower the learning rate or to clip, for a NaN is left as it is by both. Where it was seen directly what
smaller steps do nothing about, as a missing zero_grad(), that comes first, and smaller steps are left out. What a run
does not say is a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.causes.nan_origin import KIND, ORIGIN_LIMITS
from mlflow_stability.diagnosis.findings.attempt_span import FOR_EVER, RunAttempts, attempts_of_run
from mlflow_stability.diagnosis.findings.saved_batch import batches_of, file_of
from mlflow_stability.diagnosis.parameters.recorded_settings import RecordedSettings, settings_of
from mlflow_stability.vocabulary.result import (
    CLIP_AT_1,
    SMALLER_UPDATE_TOPICS,
    Action,
    Cause,
    Finding,
    Need,
    Remedy,
    Topic,
    without_topics,
)
from mlflow_stability.vocabulary.run import RunHistory

CHECKPOINTS_TAG = "stability.checkpoints"
"""Where a recording says in which folder it keeps checkpoints."""
FIRST_STEPS = 10
"""Before a trouble that begins within so many steps of the training there is no state worth going back to."""
NON_FINITE = frozenset({"nan_detected", "inf_detected"})
BREAKING = NON_FINITE | {"activation_nonfinite", "loss_scale_collapse", "step_skipped"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides which remedies fit."""

    settings: RecordedSettings
    attempts: RunAttempts
    batches: Mapping[tuple[int, int], Finding]
    """What is said of the batch of a step, by the start of the training and the step."""
    tempered: bool
    """Whether a temperature was measured."""
    keeps_checkpoints: bool
    unit: str
    """What the log calls a step."""

    def meet(self, need: Need | None) -> bool | None:
        """Whether the run has what an action needs; None where it does not show that."""
        if need is Need.FP16:
            return self.settings.half_precision
        if need is Need.CHECKPOINT:
            return self.keeps_checkpoints or None
        return self.tempered if need is Need.TEMPERATURE else True


def with_fitting_remedies(episodes: Sequence[Finding], history: RunHistory) -> tuple[Finding, ...]:
    """The same episodes and causes, with remedies that fit this run."""
    tempered, keeps = bool(history.of("sdr_temperature")), CHECKPOINTS_TAG in history.tags
    attempts = attempts_of_run(history)
    facts = Facts(settings_of(history), attempts, batches_of(history, attempts), tempered, keeps, history.step_unit)

    def fitted(episode: Finding) -> Finding:
        cause = episode.cause
        remedies = _fitting(_left_to_do(episode, episodes), episode, facts, episode.start)
        if cause is not None:
            at = episode.start if cause.since is None else cause.since
            cause = replace(cause, remedies=_fitting(_against(cause), episode, facts, at))
        return replace(episode, remedies=remedies, cause=cause)

    return tuple(map(fitted, episodes))


def _against(cause: Cause) -> tuple[Remedy, ...]:
    return cause.remedies or causes()[cause.name].remedies


def _fitting(remedies: Iterable[Remedy], episode: Finding, facts: Facts, at: int) -> tuple[Remedy, ...]:
    """Those that fit, with the numbers of this run; ``at``: the step that they are about."""
    fitted = (_fitted(remedy, episode, facts, at) for remedy in remedies)
    return tuple(dict.fromkeys(replace(remedy, unit=facts.unit) for remedy in fitted if remedy is not None))


def _fitted(remedy: Remedy, episode: Finding, facts: Facts, at: int) -> Remedy | None:
    """A remedy as it fits this run; None: it does not."""
    action = remedy.action
    if action.topic is Topic.GO_BACK and "step" in action.parts:
        return _going_back(episode, facts)
    met = facts.meet(action.need)
    if met is False:
        return None
    remedy = replace(remedy, conditional=met is None)
    if remedy.alternative is not None:
        remedy = replace(remedy, alternative=_fitted(remedy.alternative, episode, facts, at))
    limit = facts.settings.max_norm
    if remedy == CLIP_AT_1 and limit is not None:
        return replace(remedy, target=1.0 if limit > 1.0 else limit / 2, baseline=limit)
    if action is Action.MATCH_SCHEDULE_LENGTH:
        return replace(remedy, module=facts.settings.schedule)
    if "saved" in action.parts:
        at = _batch_to_inspect(episode, at)
        remedy = replace(remedy, path=file_of(facts.batches.get((episode.attempt, at))))
    return replace(remedy, step=int(at)) if "step" in action.parts else remedy


def _batch_to_inspect(episode: Finding, at: int) -> int:
    """The step whose batch is to be inspected: that of the cause where one batch is the cause."""
    cause = episode.cause
    if cause is None or cause.since is None:
        return at
    return cause.since if any("saved" in remedy.action.parts for remedy in _against(cause)) else at


def _going_back(episode: Finding, facts: Facts) -> Remedy | None:
    """To which state; None where it has been done, where it passed by itself, or where there is none."""
    span = facts.attempts.around(episode.attempt, episode.start)
    nothing_before = span.begins_training and episode.start - span.first < FIRST_STEPS
    if span.last < FOR_EVER or nothing_before or episode.recovered:
        return None
    step = int(_batch_to_inspect(episode, episode.start))
    return Remedy(Action.RESTART_BEFORE_STEP, step=step, conditional=not facts.keeps_checkpoints)


def _left_to_do(episode: Finding, episodes: Sequence[Finding]) -> tuple[Remedy, ...]:
    """An episode's remedies, without those to find out what was found out, or that do nothing against its cause.

    What goes against a cause that was seen directly comes first.
    """
    cause = _cause_near(episode, episodes)
    certain = cause is not None and cause.certain
    if episode.kind not in BREAKING and not certain:
        return episode.remedies
    left, against = episode.remedies, tuple[Remedy, ...]()
    if cause is not None and not causes()[cause.name].helped_by_smaller_updates:
        left = without_topics(left, SMALLER_UPDATE_TOPICS)
        if cause.name != "gradient_non_finite":  # which another type may well mend
            left = tuple(remedy for remedy in left if remedy.action.need is not Need.FP16)
        if certain:
            against = _against(cause)
            if all(remedy.topic is not Topic.INSPECT_BATCH for remedy in against):
                left = without_topics(left, {Topic.INSPECT_BATCH})
    found = bool(against) or _was_found(episode, episodes) or _came_of_finite_numbers(episode)
    return (*against, *(remedy for remedy in left if not (found and remedy.action.looks_for_origin)))


def _cause_near(episode: Finding, episodes: Sequence[Finding]) -> Cause | None:
    """Its own cause, or for a break that is only mentioned that of what broke at the same time."""
    if episode.cause is not None or episode.kind not in BREAKING:
        return episode.cause
    beside = [each for each in episodes if each.attempt == episode.attempt and each.kind in BREAKING]
    near = [
        each for each in beside if each.start - ORIGIN_LIMITS.near <= episode.start <= each.start + ORIGIN_LIMITS.near
    ]
    return next((each.cause for each in near if each.cause is not None), None)


def _came_of_finite_numbers(episode: Finding) -> bool:
    """Whether what it likely came of was there while all was finite: then no operation is to be looked for."""
    cause = episode.cause
    return (
        cause is not None and cause.certainty != "possible" and cause.since is not None and cause.since < episode.start
    )


def _was_found(episode: Finding, episodes: Sequence[Finding]) -> bool:
    """Whether it is known where that was born of which the episode is, or which it came of."""
    mine = [each for each in episodes if each.attempt == episode.attempt]
    breaks = [each for each in mine if each.kind in NON_FINITE and each.start <= episode.start + ORIGIN_LIMITS.near]
    begun = max((each.start for each in breaks), default=episode.start)
    return any(
        each.kind == KIND and each.start - ORIGIN_LIMITS.near <= begun <= each.end + ORIGIN_LIMITS.near for each in mine
    )
