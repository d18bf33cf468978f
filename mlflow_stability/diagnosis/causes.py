"""Names why the trouble began, as far as the run shows it.

In: the episodes of a run and its history. Out: the likeliest cause of the first bad episode, with what speaks for it
and what was ruled out; or none, and a sentence about what would have to be known. Promised: never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.course_cause import chance_look, end_look, memorising_look
from mlflow_stability.diagnosis.curves import RunCurves
from mlflow_stability.diagnosis.gradient_cause import bad_batch_look, explosion_look, growth_look, vanishing_look
from mlflow_stability.diagnosis.learning_rate_cause import learning_rate_look, rate_too_low_look
from mlflow_stability.diagnosis.look import Look
from mlflow_stability.diagnosis.nouns import noun_of
from mlflow_stability.diagnosis.numeric_cause import gradient_first_look, loss_scale_look, overflow_look
from mlflow_stability.diagnosis.surroundings import Surroundings, surroundings_of
from mlflow_stability.vocabulary.diagnosis import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity
from mlflow_stability.vocabulary.run_history import RunHistory

NON_FINITE = (loss_scale_look, overflow_look, learning_rate_look, gradient_first_look, explosion_look)
LOOKS: dict[str, tuple[Callable[[Surroundings], Look], ...]] = {
    "nan_detected": NON_FINITE,
    "inf_detected": NON_FINITE,
    "loss_scale_collapse": NON_FINITE,
    "step_skipped": NON_FINITE,
    "divergence": (learning_rate_look, explosion_look, growth_look),
    "loss_spike": (learning_rate_look, bad_batch_look, explosion_look),
    "gradient_explosion": (learning_rate_look, bad_batch_look, growth_look),
    "gradient_vanishing": (vanishing_look, rate_too_low_look),
    "plateau": (vanishing_look, rate_too_low_look, chance_look),
    "learning_rate_jump": (learning_rate_look,),
    "overfitting": (memorising_look,),
    "out_of_memory": (end_look,),
    "killed": (end_look,),
    "crashed": (end_look,),
    "stall": (end_look,),
}
"""For each kind where to look, in the order in which a cause is believed."""
SAME_TROUBLE = 0.05
"""Episodes that begin within this share of the run after the first one have its cause."""


def cause_of(
    episodes: Sequence[Episode], history: RunHistory, curves: RunCurves
) -> tuple[Cause | None, tuple[str, ...]]:
    """The likeliest cause of the first bad episode, and what could not be told about it."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING and each.kind in LOOKS]
    serious.sort(key=lambda each: (each.attempt, each.start, -each.severity))
    for each in _soon_after_the_first(serious, curves):
        looks = looks_at(each, history, curves)
        cause = next((look.cause for look in looks if look.cause is not None), None)
        if cause is not None:
            return replace(cause, ruled_out=tuple(look.ruled_out for look in looks if look.ruled_out)), ()
    if not serious:
        return None, ()
    first = serious[0]
    looks = looks_at(first, history, curves)
    seen, unseen = [look.ruled_out for look in looks if look.ruled_out], [look.unseen for look in looks if look.unseen]
    said = [f"Not it: {'; '.join(seen)}."] if seen else []
    said += [f"Not seen: {'; '.join(dict.fromkeys(unseen))}."] if unseen else []
    return None, (" ".join([f"Why there was {noun_of(first.kind)} at step {first.start}.", *said]),)


def _soon_after_the_first(serious: list[Episode], curves: RunCurves) -> list[Episode]:
    """The first bad episode and those that followed it so soon that they are the same trouble, seen elsewhere.

    What a jump of the learning rate did comes before the jump, for that is what there is to explain.
    """
    span = max((int(curve.steps[-1] - curve.steps[0]) for curve in curves.losses), default=0)
    same = [
        each
        for each in serious
        if each.attempt == serious[0].attempt and each.start - serious[0].start <= SAME_TROUBLE * span
    ]
    return sorted(same, key=lambda each: each.kind == "learning_rate_jump")


def looks_at(episode: Episode, history: RunHistory, curves: RunCurves) -> list[Look]:
    """All that is looked at for one episode."""
    around = surroundings_of(episode, history, curves)
    return [look(around) for look in LOOKS.get(episode.kind, ())]
