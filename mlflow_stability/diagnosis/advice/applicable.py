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

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_stability.detectors.inside import ActivationNonfinite
from mlflow_stability.detectors.loss import InfDetected, NanDetected
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.causes.nan_origin import KIND, NEAR
from mlflow_stability.diagnosis.findings.attempt_span import FOR_EVER, RunAttempts, attempts_of_run
from mlflow_stability.diagnosis.findings.saved_batch import batches_of, file_of
from mlflow_stability.diagnosis.parameters.recorded_settings import RecordedSettings, settings_of
from mlflow_stability.vocabulary.result import Cause, Episode, Event
from mlflow_stability.vocabulary.run import RunHistory

OF_HALF_PRECISION = re.compile(r"\b(?:fp16|half precision|loss scale)\b", re.IGNORECASE)
OF_TEMPERATURE = "Raise the temperature"
"""How remedies begin that only codes made at a temperature can follow."""
INSTEAD = re.compile(r"^Train in bf16 instead of fp16")
IN_FP16 = "If it trains in fp16: "
CLIPPING = re.compile(r"\b(?P<clip>[Cc]lip gradients) at 1\.0")
USUAL_NORM = 1.0
"""The norm that gradients are told to be clipped at."""
GOING_BACK = re.compile(r"^(?:Restart from a checkpoint before |Enable rollback=True)")
THIS_STEP = re.compile(r"\bat this step\b")
"""In the remedy of an episode, the step it started at."""
LAST_CHECKPOINT = re.compile(r"^(?P<on>Restart from the last good checkpoint)\.")
CHECKPOINTS_TAG = "stability.checkpoints"
"""Where a recording says in which folder it keeps checkpoints."""
FIRST_STEPS = 10
"""Before a trouble that begins within so many steps of the training there is no state worth going back to."""
NON_FINITE = frozenset({"nan_detected", "inf_detected"})
BREAKING = NON_FINITE | {"activation_nonfinite", "loss_scale_collapse", "step_skipped"}
LOOKING = frozenset(
    {
        *NanDetected.remedies[:2],
        next(each for each in InfDetected.remedies if each.startswith("Find an unbounded")),
        *ActivationNonfinite.remedies,
    }
)
"""What to look for where nobody knows yet what broke."""
CALMER = re.compile(r"^(?:Lower the learning rate|Clip gradients|Lengthen the learning-rate warm-up|Warm up the )")
LOOKING_AT_BATCH = re.compile(r"^Inspect (?:the loss and )?the batch\b")
ABOUT_BATCH = re.compile(r"^(?:Inspect (?:the loss and )?the batch at this step|(?:Inspect|Open) the saved batch)\b")
"""What is to be done with the batch of one step, which may be saved."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides which remedies fit."""

    settings: RecordedSettings
    attempts: RunAttempts
    batches: Mapping[tuple[int, int], Event]
    """What is said of the batch of a step, by the start of the training and the step."""
    tempered: bool
    """Whether a temperature was measured."""
    keeps_checkpoints: bool


def with_fitting_remedies(episodes: Sequence[Episode], history: RunHistory) -> tuple[Episode, ...]:
    """The same episodes and causes, with remedies that fit this run."""
    tempered, keeps = bool(history.of("sdr_temperature")), CHECKPOINTS_TAG in history.tags
    attempts = attempts_of_run(history)
    facts = Facts(settings_of(history), attempts, batches_of(history, attempts), tempered, keeps)

    def fitted(episode: Episode) -> Episode:
        cause = episode.cause
        remedies = _fitting(_left_to_do(episode, episodes), episode, facts, episode.start)
        if cause is not None:
            against = cause.remedies or causes()[cause.name].remedies
            at = episode.start if cause.since is None else cause.since
            cause = replace(cause, remedies=_fitting(against, episode, facts, at))
        return replace(episode, remedies=remedies, cause=cause)

    return tuple(fitted(each) for each in episodes)


def _fitting(remedies: Iterable[str], episode: Episode, facts: Facts, at: int) -> tuple[str, ...]:
    """Those that fit, in words that do; ``at``: the step that they are about."""
    told = (_worded(each, episode, facts, at) for each in remedies)
    return tuple(dict.fromkeys(each for each in told if each))


def _worded(remedy: str, episode: Episode, facts: Facts, at: int) -> str:
    """A remedy as it fits this run; empty: it does not."""
    if remedy.startswith(OF_TEMPERATURE) and not facts.tempered:
        return ""
    if OF_HALF_PRECISION.search(remedy) and not facts.settings.half_precision:
        return "" if facts.settings.half_precision is False else _if_in_fp16(remedy)
    if GOING_BACK.search(remedy):
        return _going_back(episode, facts)
    if not facts.keeps_checkpoints:
        remedy = LAST_CHECKPOINT.sub(r"\g<on>, if there is one.", remedy)
    limit = facts.settings.max_norm
    if limit is not None:
        lower = USUAL_NORM if limit > USUAL_NORM else limit / 2
        remedy = CLIPPING.sub(rf"\g<clip> at {lower:.3g} instead of {limit:.3g}", remedy)
    of_a_batch = ABOUT_BATCH.search(remedy) is not None
    at = _batch_to_inspect(episode, at) if of_a_batch else at
    file = file_of(facts.batches.get((episode.attempt, at))) if of_a_batch else ""
    saved = f" (saved as {file})." if file else "."
    return THIS_STEP.sub(f"at step {at}", remedy.removesuffix(".") + saved if file else remedy)


def _batch_to_inspect(episode: Episode, at: int) -> int:
    """The step whose batch is to be inspected: that of the cause where one batch is the cause."""
    cause = episode.cause
    if cause is None or cause.since is None:
        return at
    against = cause.remedies or causes()[cause.name].remedies
    return cause.since if any(map(ABOUT_BATCH.search, against)) else at


def _if_in_fp16(remedy: str) -> str:
    if INSTEAD.search(remedy):
        return INSTEAD.sub(f"{IN_FP16}train in bf16 instead", remedy)
    return remedy if "where" in remedy else f"{IN_FP16}{remedy[:1].lower()}{remedy[1:]}"


def _going_back(episode: Episode, facts: Facts) -> str:
    """To which state; empty where it has been done, where it passed by itself, or where there is none."""
    span = facts.attempts.around(episode.attempt, episode.start)
    nothing_before = span.begins_training and episode.start - span.first < FIRST_STEPS
    if span.last < FOR_EVER or nothing_before or episode.recovered:
        return ""
    condition = "" if facts.keeps_checkpoints else ", if there is one"
    return f"Restart from a checkpoint before step {_batch_to_inspect(episode, episode.start)}{condition}."


def _left_to_do(episode: Episode, episodes: Sequence[Episode]) -> tuple[str, ...]:
    """An episode's remedies, without those to find out what was found out, or that do nothing against its cause.

    What goes against a cause that was seen directly comes first.
    """
    cause = _cause_near(episode, episodes)
    certain = cause is not None and cause.certain
    if episode.kind not in BREAKING and not certain:
        return episode.remedies
    useless = [] if cause is None or causes()[cause.name].helped_by_smaller_updates else [CALMER]
    if useless and cause is not None and cause.name != "gradient_non_finite":  # which another type may well mend
        useless.append(OF_HALF_PRECISION)
    against: tuple[str, ...] = ()
    if useless and cause is not None and certain:
        against = cause.remedies or causes()[cause.name].remedies
        if not any(map(LOOKING_AT_BATCH.search, against)):
            useless.append(LOOKING_AT_BATCH)
    found = bool(against) or _was_found(episode, episodes) or _came_of_finite_numbers(episode)
    left = [each for each in episode.remedies if not any(one.search(each) for one in useless)]
    return (*against, *(each for each in left if not (found and each in LOOKING)))


def _cause_near(episode: Episode, episodes: Sequence[Episode]) -> Cause | None:
    """Its own cause, or for a break that is only mentioned that of what broke at the same time."""
    if episode.cause is not None or episode.kind not in BREAKING:
        return episode.cause
    beside = [each for each in episodes if each.attempt == episode.attempt and each.kind in BREAKING]
    near = [each for each in beside if each.start - NEAR <= episode.start <= each.start + NEAR]
    return next((each.cause for each in near if each.cause is not None), None)


def _came_of_finite_numbers(episode: Episode) -> bool:
    """Whether what it likely came of was there while all was finite: then no operation is to be looked for."""
    cause = episode.cause
    return (
        cause is not None and cause.certainty != "possible" and cause.since is not None and cause.since < episode.start
    )


def _was_found(episode: Episode, episodes: Sequence[Episode]) -> bool:
    """Whether it is known where that was born of which the episode is, or which it came of."""
    mine = [each for each in episodes if each.attempt == episode.attempt]
    breaks = [each for each in mine if each.kind in NON_FINITE and each.start <= episode.start + NEAR]
    begun = max((each.start for each in breaks), default=episode.start)
    return any(each.kind == KIND and each.start - NEAR <= begun <= each.end + NEAR for each in mine)
