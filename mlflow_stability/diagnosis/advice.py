"""Choose remedies that fit a run and its causes, most useful first.

Guarantees: no remedy asks for what the run excludes, such as leaving fp16 where it is not used, or repeats what was
done. Nothing that was found is to be looked for again. Smaller updates are not advised where they do not help. Each
topic has one remedy, the most exact one, and none contradicts what goes against the cause. What the run does not show
becomes a condition. A clipping threshold is the run's own usual gradient norm, below the norms that exploded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.causes.context import LOOKBACK, first_step_of, norm_baseline
from mlflow_stability.diagnosis.causes.course import RAISE_LOSS
from mlflow_stability.diagnosis.causes.gradient import LIMITS as GRADIENT_LIMITS
from mlflow_stability.diagnosis.causes.learning_rate import RATE_CAUSES
from mlflow_stability.diagnosis.causes.non_finite import NAN_ORIGIN, ORIGIN_LIMITS
from mlflow_stability.diagnosis.findings.attempts import FOR_EVER, RunAttempts, attempts_of_run, batches_of, file_of
from mlflow_stability.diagnosis.recorded_settings import RecordedSettings, settings_of
from mlflow_stability.diagnosis.verdict import deciding_of, not_led_to
from mlflow_stability.kinds.catalog import OF_SETUP
from mlflow_stability.kinds.first_look.dimensions import SameOutput
from mlflow_stability.kinds.first_look.loss_function import AboveChance
from mlflow_stability.kinds.gradients.gradient_explosion import GradientSpikeFacts
from mlflow_stability.kinds.gradients.layers import DeadLayerFacts
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts
from mlflow_stability.kinds.optimizer.update_size import TinyUpdateFacts
from mlflow_stability.kinds.reported.setup import MissingZeroGrad
from mlflow_stability.vocabulary.result import (
    CLEARLY_ABOVE_USUAL,
    RATE_TOPICS,
    SMALLER_UPDATE_TOPICS,
    Action,
    Cause,
    Finding,
    Need,
    Remedy,
    Severity,
    Topic,
    clipping_norm,
    without_topics,
)
from mlflow_stability.vocabulary.run import RunHistory

CHECKPOINTS_TAG = "stability.checkpoints"  # tag with the folder in which a recording keeps checkpoints
MIN_STEPS_BEFORE = 10  # minimum number of steps before a trouble for a state worth restoring
SEEN_WITHIN = 64  # maximum number of steps from the start of a mistake in the set-up to the check that sees it
NON_FINITE = frozenset({"nan_detected", "inf_detected"})
JUDGED_BY_CURVES = frozenset(
    {"above_chance", "clipping_strong", "weight_decay_strong", "one_class", "learning_rate_zero", "learning_rate_rise"}
)
"""Mistakes in the set-up that curves, batches or a schedule only suggest."""
MAY_RAISE_LOSS = frozenset({MissingZeroGrad.kind, *RAISE_LOSS.split()})
"""Mistakes that let a loss rise, as a learning rate does that is too high."""
CERTAIN_MISTAKES = OF_SETUP - JUDGED_BY_CURVES | {MissingZeroGrad.kind}  # mistakes that are seen in the set-up itself
EQUAL_ROWS = frozenset({"same_input", "dead_units"})  # what makes the output the same for each row
RISING = NON_FINITE | {"divergence", "gradient_explosion"}  # what a higher learning rate makes worse
BREAKING = NON_FINITE | {"activation_nonfinite", "loss_scale_collapse", "step_skipped"}


@dataclass(frozen=True, slots=True)
class Situation:
    settings: RecordedSettings
    attempts: RunAttempts
    batches: Mapping[tuple[int, int], Finding]  # the event about the batch of a step, by start of the training and step
    norms: tuple[Curve, ...]  # the gradient norms of the whole model, one a start of the training
    explosions: tuple[Finding, ...]
    """The findings about such a norm that exploded; all that belongs to one of them names its usual norm."""
    has_temperature: bool
    keeps_checkpoints: bool
    unit: str

    def meets(self, need: Need | None) -> bool | None:
        """Return whether the run has what an action needs; None if it does not show that."""
        if need is Need.FP16:
            return self.settings.half_precision
        if need is Need.CHECKPOINT:
            return self.keeps_checkpoints or None
        return self.has_temperature if need is Need.TEMPERATURE else True


def with_fitting_remedies(episodes: Sequence[Finding], history: RunHistory, curves: RunCurves) -> tuple[Finding, ...]:
    """Return the same episodes and causes, with remedies that fit this run."""
    attempts = attempts_of_run(history)
    situation = Situation(
        settings_of(history),
        attempts,
        batches_of(history, attempts),
        tuple(norm for norm in curves.norms if not norm.place),
        tuple(episode for episode in episodes if isinstance(episode.facts, GradientSpikeFacts)),
        has_temperature=bool(history.of("sdr_temperature")),
        keeps_checkpoints=CHECKPOINTS_TAG in history.tags,
        unit=history.step_unit,
    )
    fitted = []
    for episode in episodes:
        remedies = _fitting(_useful_remedies(episode, episodes), episode, situation, episode.start)
        cause = episode.cause
        if cause is not None:
            at = episode.start if cause.since is None else cause.since
            cause = replace(cause, remedies=_fitting(_remedies_of_cause(cause), episode, situation, at))
        fitted.append(replace(episode, remedies=remedies, cause=cause))
    return tuple(fitted)


def _remedies_of_cause(cause: Cause) -> tuple[Remedy, ...]:
    return cause.remedies or causes()[cause.name].remedies


def _fitting(remedies: Iterable[Remedy], episode: Finding, situation: Situation, at: int) -> tuple[Remedy, ...]:
    """Return those that fit, with the numbers of this run; ``at``: the step that they are about."""
    fitted = (_fitted(remedy, episode, situation, at) for remedy in remedies)
    return tuple(dict.fromkeys(replace(remedy, unit=situation.unit) for remedy in fitted if remedy is not None))


def _fitted(remedy: Remedy, episode: Finding, situation: Situation, at: int) -> Remedy | None:
    action = remedy.action
    if action.topic is Topic.GO_BACK and "step" in action.parts:
        return _restart(episode, situation)
    is_met = situation.meets(action.need)
    if is_met is False:
        return None
    remedy = replace(remedy, conditional=is_met is None)
    if remedy.alternative is not None:
        remedy = replace(remedy, alternative=_fitted(remedy.alternative, episode, situation, at))
    if action is Action.CLIP_GRADIENTS:
        return _clipping(remedy, episode, situation)
    if action is Action.MATCH_SCHEDULE_LENGTH:
        return replace(remedy, module=situation.settings.schedule)
    if "saved" in action.parts:
        at = _step_of_batch(episode, at)
        remedy = replace(remedy, path=file_of(situation.batches.get((episode.attempt, at))))
    return replace(remedy, step=int(at)) if "step" in action.parts else remedy


def _clipping(remedy: Remedy, episode: Finding, situation: Situation) -> Remedy | None:
    """Return at which norm to clip; without a number if no norm exploded, None if the run clips near the usual norm."""
    norms, present = _usual_and_highest_norm(episode, situation), situation.settings.max_norm
    if norms is not None and present is not None and present < CLEARLY_ABOVE_USUAL * norms[0]:
        return None
    return replace(remedy, target=None if norms is None else clipping_norm(*norms), baseline=present)


def _usual_and_highest_norm(episode: Finding, situation: Situation) -> tuple[float, float] | None:
    """Return the usual gradient norm before the trouble and the highest one in it; None without enough norms."""
    cause = episode.cause
    begun = episode.start if cause is None or cause.since is None else min(cause.since, episode.start)
    for explosion in situation.explosions:
        spike = explosion.facts_as(GradientSpikeFacts)
        together = begun <= explosion.end and explosion.start <= episode.end
        if spike is not None and together and explosion.attempt == episode.attempt:
            return spike.baseline, spike.value
    norm = next((curve for curve in situation.norms if curve.attempt == episode.attempt), None)
    norm = situation.attempts.around(episode.attempt, episode.start).cut(norm)
    if norm is None:
        return None
    start = int(np.searchsorted(norm.steps, begun, side="left"))
    end = int(np.searchsorted(norm.steps, max(episode.start, episode.peak), side="right")) + 1
    usable = norm.finite & (norm.values > 0)
    before = norm.values[max(0, start - LOOKBACK.points) : start][usable[max(0, start - LOOKBACK.points) : start]]
    first = max(0, start - LOOKBACK.recent)
    trouble = norm.values[first:end][usable[first:end]]
    if len(before) < GRADIENT_LIMITS.min_norms:
        return None
    return norm_baseline(before)[1], float(trouble.max(initial=0.0))


def _step_of_batch(episode: Finding, at: int) -> int:
    """Return the step whose batch is to be inspected: that of the cause if one batch is the cause."""
    cause = episode.cause
    if cause is None or cause.since is None:
        return at
    return cause.since if any("saved" in remedy.action.parts for remedy in _remedies_of_cause(cause)) else at


def _restart(episode: Finding, situation: Situation) -> Remedy | None:
    """Return from which state to restart; None if that was done, the trouble passed, or there is no such state."""
    span = situation.attempts.around(episode.attempt, episode.start)
    too_early = span.begins_training and episode.start - span.first < MIN_STEPS_BEFORE
    if span.last < FOR_EVER or too_early or episode.recovered:
        return None
    step = int(_step_of_batch(episode, episode.start))
    return Remedy(Action.RESTART_BEFORE_STEP, step=step, conditional=not situation.keeps_checkpoints)


def _useful_remedies(episode: Finding, episodes: Sequence[Finding]) -> tuple[Remedy, ...]:
    """Return an episode's remedies without those that do not help against its cause or look for what was found.

    Remedies for a certain cause come first.
    """
    tiny = episode.facts_as(TinyUpdateFacts)
    if tiny is not None and tiny.value == 0.0:  # no learning rate helps a gradient of zero
        return Remedy(Action.LOOK_FOR_FROZEN_AND_DEAD), *without_topics(episode.remedies, {Topic.RAISE_RATE})
    if episode.kind == SameOutput.kind and any(other.kind in EQUAL_ROWS for other in episodes):
        return ()
    cause = _cause_near(episode, episodes)
    certain = cause is not None and cause.certain
    if episode.kind not in BREAKING and not certain:
        return episode.remedies
    own, against = episode.remedies, tuple[Remedy, ...]()
    if cause is not None and not causes()[cause.name].helped_by_smaller_updates:
        own = without_topics(own, SMALLER_UPDATE_TOPICS)
        if cause.name != "gradient_non_finite":  # which another number format may well fix
            own = tuple(remedy for remedy in own if remedy.action.need is not Need.FP16)
        if certain:
            against = _remedies_of_cause(cause)
            if all(remedy.topic is not Topic.INSPECT_BATCH for remedy in against):
                own = without_topics(own, {Topic.INSPECT_BATCH})
    likely = episode.cause
    # A likely cause that began while all values were finite: no operation is to be looked for.
    began = None if likely is None or likely.certainty == "possible" else likely.since
    began_finite = began is not None and began < episode.start
    if against or began_finite or _origin_was_found(episode, episodes):
        own = tuple(remedy for remedy in own if not remedy.action.looks_for_origin)
    return (*against, *own)


def _cause_near(episode: Finding, episodes: Sequence[Finding]) -> Cause | None:
    """Return its own cause; for a break without one, that of what broke at the same time."""
    if episode.cause is not None or episode.kind not in BREAKING:
        return episode.cause
    near = (
        other.cause
        for other in episodes
        if other.attempt == episode.attempt
        and other.kind in BREAKING
        and abs(other.start - episode.start) <= ORIGIN_LIMITS.near
    )
    return next(filter(None, near), None)


def _origin_was_found(episode: Finding, episodes: Sequence[Finding]) -> bool:
    """Return whether the origin of the non-finite value that the episode is about, or that led to it, is known."""
    near = ORIGIN_LIMITS.near
    same = [other for other in episodes if other.attempt == episode.attempt]
    breaks = [other.start for other in same if other.kind in NON_FINITE and other.start <= episode.start + near]
    begun = max(breaks, default=episode.start)
    return any(other.kind == NAN_ORIGIN and other.start - near <= begun <= other.end + near for other in same)


def remedies_of(episodes: Sequence[Finding], cause: Cause | None, outcome: str) -> tuple[Remedy, ...]:
    """Return what to change: against the cause, against the finding that decides the outcome, then against others.

    A certain mistake in the set-up comes before the deciding finding, and before a cause that is not certain, unless
    that cause began long after the mistake. If the cause is itself of the set-up, so do further mistakes in it.
    """
    serious = [episode for episode in episodes if episode.severity >= Severity.WARNING]
    deciding = deciding_of(outcome, serious)
    is_of_setup = cause is not None and cause.name == "setup"
    certain = [e for e in serious if deciding is not None and _is_certain_mistake(e, deciding, serious)]

    def rank(episode: Finding) -> tuple[bool, bool, int, int, int]:
        is_mistake = episode in certain or (is_of_setup and episode.kind in OF_SETUP)
        return not is_mistake, episode is not deciding, -episode.severity, episode.attempt, episode.start

    against = cause.remedies if cause is not None else ()
    first = tuple(remedy for mistake in sorted(certain, key=rank) for remedy in mistake.remedies)
    own = not_led_to(serious)
    others = tuple(remedy for episode in sorted(own, key=rank) for remedy in episode.remedies)
    if cause is not None and cause.name not in RATE_CAUSES and "learning_rate_too_high" in cause.ruled_out_causes:
        against, others = without_topics(against, RATE_TOPICS) or against, without_topics(others, RATE_TOPICS)
    if any(episode.kind in RISING for episode in serious):
        others = without_topics(others, {Topic.RAISE_RATE})
    if cause is not None and _comes_before(cause, certain):
        first = ()
    return one_of_each_topic(against, others, first)


def _is_certain_mistake(episode: Finding, deciding: Finding, serious: Sequence[Finding]) -> bool:
    """Return whether it is a fact about the set-up, not a judgement of curves, and from before the deciding finding."""
    dead = episode.facts_as(DeadLayerFacts)
    if dead is not None:  # without a gradient in its first measurement: initialised or connected so
        apart = (episode.start - dead.first_step) / max(1, dead.measurements - 1)
        is_first = episode.attempt == 0 and dead.first_step <= max(SEEN_WITHIN, apart)
        decays = any(other.facts_as(StrongDecayFacts) and other.start <= dead.first_step for other in serious)
        return is_first and not decays  # weights that decay to zero have no gradients
    is_own = episode.attempt <= deciding.attempt
    # A loss that never left chance level began there, long before some mistakes are seen.
    began = deciding.end if deciding.kind == AboveChance.kind else deciding.start
    return episode.kind in CERTAIN_MISTAKES and is_own and episode.start <= began + SEEN_WITHIN


def _comes_before(cause: Cause, mistakes: Sequence[Finding]) -> bool:
    if cause.certain or cause.name == "setup":
        return True
    if cause.name == "learning_rate_too_high" and cause.certainty == "likely":
        return all(mistake.kind not in MAY_RAISE_LOSS for mistake in mistakes)
    latest = max(map(first_step_of, mistakes), default=0)
    is_late = cause.since is not None and cause.since > latest + SEEN_WITHIN
    is_general = all(remedy.topic in SMALLER_UPDATE_TOPICS for remedy in cause.remedies[:1])
    return is_late and (cause.name in RATE_CAUSES or not is_general)


def one_of_each_topic(
    against: Sequence[Remedy], others: Sequence[Remedy] = (), first: Sequence[Remedy] = ()
) -> tuple[Remedy, ...]:
    """Return `first`, `against` and `others` in this order, the most exact remedy of each topic.

    ``against``: those of the cause; what contradicts them is left out.
    """
    contradicted = {topic for remedy in against for topic in remedy.action.contradicts}
    remedies = [remedy for remedy in dict.fromkeys((*first, *against, *others)) if remedy.topic not in contradicted]
    kept: dict[Topic | Remedy, Remedy] = {}
    for remedy in remedies:
        for part in _parts(remedy, remedies):
            key = part.topic or part
            if key not in kept or part.exactness > kept[key].exactness:
                kept[key] = part
    return tuple(kept.values())


def _parts(remedy: Remedy, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Return a remedy and its alternative apart if another remedy is about either of them."""
    if remedy.alternative is None:
        return (remedy,)
    topics = (remedy.topic, remedy.alternative.topic)
    if not any(other.topic in topics for other in remedies if other != remedy):
        return (remedy,)
    return replace(remedy, alternative=None), remedy.alternative
