"""Names why the trouble began, as far as the run shows it.

In: the episodes of a run and its history. Out: the likeliest cause of the first bad episode, with what speaks for it
and what was ruled out; or none, and a sentence about what would have to be known. Promised: never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.accumulation_cause import accumulation_look
from mlflow_stability.diagnosis.course_cause import chance_look, end_look, memorising_look
from mlflow_stability.diagnosis.curves import RunCurves, starts_of
from mlflow_stability.diagnosis.data_cause import deaf_look, repeated_data_look
from mlflow_stability.diagnosis.first_steps_cause import first_steps_look
from mlflow_stability.diagnosis.gradient_cause import explosion_look, growth_look, vanishing_look
from mlflow_stability.diagnosis.inside_cause import inside_look
from mlflow_stability.diagnosis.learning_rate_cause import learning_rate_look, rate_too_low_look
from mlflow_stability.diagnosis.look import CERTAINTIES, Look
from mlflow_stability.diagnosis.nouns import noun_of
from mlflow_stability.diagnosis.numeric_cause import gradient_first_look, loss_scale_look, overflow_look
from mlflow_stability.diagnosis.one_batch_cause import bad_batch_look
from mlflow_stability.diagnosis.origin_cause import hardware_look, one_step_look, origin_look
from mlflow_stability.diagnosis.origin_reading import KIND, NEAR, said_of
from mlflow_stability.diagnosis.remedies import AGAINST
from mlflow_stability.diagnosis.surroundings import Surroundings, surroundings_of
from mlflow_stability.diagnosis.weights_cause import damage_look, decay_look, setting_look
from mlflow_stability.vocabulary.diagnosis import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity
from mlflow_stability.vocabulary.run_card import OF_THE_PROCESS
from mlflow_stability.vocabulary.run_history import RunHistory

NON_FINITE = (
    loss_scale_look,
    learning_rate_look,
    hardware_look,
    one_step_look,
    decay_look,
    explosion_look,
    damage_look,
    inside_look,
    origin_look,
    gradient_first_look,
    overflow_look,
    setting_look,
)
RISING = (
    learning_rate_look,
    bad_batch_look,
    decay_look,
    accumulation_look,
    explosion_look,
    inside_look,
    setting_look,
    growth_look,
)
STUCK = (first_steps_look, vanishing_look, rate_too_low_look, inside_look, chance_look)
UPDATES = (learning_rate_look, decay_look, setting_look)
LOOKS: dict[str, tuple[Callable[[Surroundings], Look], ...]] = {
    "nan_detected": NON_FINITE,
    "inf_detected": NON_FINITE,
    "activation_nonfinite": NON_FINITE,
    "loss_scale_collapse": NON_FINITE,
    "step_skipped": NON_FINITE,
    "divergence": RISING,
    "loss_spike": RISING,
    "gradient_explosion": RISING,
    "gradient_vanishing": (first_steps_look, vanishing_look, rate_too_low_look, inside_look, setting_look),
    "plateau": STUCK,
    "dead_layer": (setting_look, inside_look, vanishing_look),
    "learning_rate_jump": (learning_rate_look,),
    "update_ratio_high": UPDATES,
    "weight_spike": UPDATES,
    "repeated_data": (repeated_data_look, vanishing_look, inside_look, deaf_look),
    "overfitting": (memorising_look,),
    "attention_collapse": (learning_rate_look, inside_look),
    "attention_logit_growth": (learning_rate_look, inside_look),
    "dead_units": (learning_rate_look, inside_look),
    "saturated_activation": (learning_rate_look, inside_look),
    "representation_collapse": (learning_rate_look, inside_look),
    "sdr_collapse": (learning_rate_look, inside_look),
    "out_of_memory": (end_look,),
    "killed": (end_look,),
    "crashed": (end_look,),
    "stall": (end_look,),
}
"""For each kind where to look, in the order in which causes of the same certainty are believed."""
FINDS: dict[Callable[[Surroundings], Look], frozenset[str]] = {
    accumulation_look: frozenset({"gradients_not_cleared"}),
    bad_batch_look: frozenset({"bad_batch"}),
    damage_look: frozenset({"damaged_weights"}),
    decay_look: frozenset({"weight_decay"}),
    explosion_look: frozenset({"gradient_explosion"}),
    gradient_first_look: frozenset({"gradient_non_finite"}),
    growth_look: frozenset({"gradient_explosion"}),
    hardware_look: frozenset({"hardware"}),
    learning_rate_look: frozenset({"learning_rate_jump", "learning_rate_too_high", "no_warm_up"}),
    loss_scale_look: frozenset({"fp16_scale"}),
    one_step_look: frozenset({"bad_batch"}),
    overflow_look: frozenset({"fp16_scale", "overflow"}),
    rate_too_low_look: frozenset({"learning_rate_too_low"}),
    repeated_data_look: frozenset({"repeated_data"}),
    setting_look: frozenset({"configuration_changed"}),
    vanishing_look: frozenset({"vanishing_gradients"}),
}
"""Which causes a look can find: where another one has found the same, it says nothing against it."""
SAME_TROUBLE = 0.05
"""Episodes that begin within this share of the run after the first one have its cause, ..."""
SAME_POINTS = 64
"""... and within so many logged points."""


def cause_of(
    episodes: Sequence[Episode], history: RunHistory, curves: RunCurves
) -> tuple[Cause | None, tuple[str, ...]]:
    """The likeliest cause of the first bad episode, and what could not be told about it."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING and each.kind in LOOKS]
    serious.sort(key=lambda each: (each.attempt, each.start, -each.severity))
    if not serious:
        return None, ()
    starts = starts_of(history)
    looked = [(each, looks_at(each, history, curves, starts)) for each in _soon_after_the_first(serious, curves)]
    found = [(each, looks, look.cause) for each, looks in looked for look in looks if look.cause is not None]
    if found:
        # How the process ended is certain, and mostly what came of the trouble before it.
        episode, looks, cause = min(
            found, key=lambda each: (each[0].kind in OF_THE_PROCESS, CERTAINTIES.index(each[2].certainty))
        )
        cause = _with_birth(cause, surroundings_of(serious[0], history, curves, starts), episode)
        ruled_out = _ruled_out(cause, LOOKS[episode.kind], looks)
        return replace(cause, ruled_out=ruled_out, kind=episode.kind, step=episode.start), ()
    first, looks = serious[0], looks_at(serious[0], history, curves, starts)
    seen, unseen = [look.ruled_out for look in looks if look.ruled_out], [look.unseen for look in looks if look.unseen]
    said = [f"Not it: {'; '.join(seen)}."] if seen else []
    said += [f"Not seen: {'; '.join(dict.fromkeys(unseen))}."] if unseen else []
    return None, (" ".join([f"Why there was {noun_of(first.kind)} at step {first.start}.", *said]),)


def _ruled_out(cause: Cause, asked: Sequence[Callable[[Surroundings], Look]], looks: Sequence[Look]) -> tuple[str, ...]:
    """What was looked at and is not it, without what would deny the cause that was found."""
    pairs = zip(asked, looks, strict=True)
    said = [each.ruled_out for look, each in pairs if cause.name not in FINDS.get(look, frozenset())]
    return tuple(each for each in said if each)


def _with_birth(cause: Cause, around: Surroundings, explained: Episode) -> Cause:
    """The cause, with where a NaN was born meanwhile and what goes against that, if it does not say so."""
    last = max(explained.end, explained.start + NEAR) if LOOKS[explained.kind] in (NON_FINITE, RISING) else -1
    since = around.episode.start - NEAR
    first = next((each for each in around.said(KIND) if since <= each.step <= last), None)
    said = "" if first is None else said_of(first.message)
    if first is None or any(said in one for one in (cause.statement, *cause.evidence)):
        return cause
    born = f"At step {first.step} {said[:1].lower()}{said[1:]}"
    against = (*(cause.remedies or AGAINST.get(cause.name, ())), *first.remedies)
    return replace(cause, evidence=(*cause.evidence, born), remedies=against)


def _soon_after_the_first(serious: list[Episode], curves: RunCurves) -> list[Episode]:
    """The first bad episode and those that followed it so soon that they are the same trouble, seen elsewhere.

    What a jump of the learning rate did comes before the jump, for that is what there is to explain.
    """
    losses = [curve for curve in curves.losses if len(curve.steps) > 1]
    span = max((int(curve.steps[-1] - curve.steps[0]) for curve in losses), default=0)
    reach = min(SAME_TROUBLE * span, SAME_POINTS * max((curve.distance for curve in losses), default=1.0))
    same = [each for each in serious if each.attempt == serious[0].attempt and each.start - serious[0].start <= reach]
    return sorted(same, key=lambda each: each.kind == "learning_rate_jump")


def looks_at(
    episode: Episode, history: RunHistory, curves: RunCurves, starts: Mapping[int, int] | None = None
) -> list[Look]:
    """All that is looked at for one episode."""
    around = surroundings_of(episode, history, curves, starts)
    return [look(around) for look in LOOKS.get(episode.kind, ())]
