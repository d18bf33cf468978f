"""What a run shows for the questions whose answers need more than one metric or finding.

In: the surroundings of an episode and the diagnosis. Out: a sentence with numbers, and whether that is as it should be.
"""

from __future__ import annotations

import numpy as np

from mlflow_stability.curves.chance_level import chance_of
from mlflow_stability.curves.curves import decoded
from mlflow_stability.diagnosis.causes.check import CheckResult
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.gradient import explosion_check, vanishing_check
from mlflow_stability.diagnosis.causes.learning_rate import learning_rate_check, rate_too_low_check
from mlflow_stability.diagnosis.causes.numeric import loss_scale_check, overflow_check
from mlflow_stability.diagnosis.checklist.batch_findings import birth_said, inputs_said, overflow_said
from mlflow_stability.diagnosis.checklist.question import Answer, Case, State
from mlflow_stability.vocabulary.result import Diagnosis, Episode, Severity
from mlflow_stability.vocabulary.text import process_ended, sentence

NON_FINITE = ("nan_detected", "inf_detected")
FALLEN = 0.9
"""A loss below this share of what it was at first has learned."""
AT_FIRST = 5
"""So many points, first ones and last ones, tell it."""


def locate(case: Case) -> Answer:
    """Where the first non-finite value appeared."""
    bad = _of(case.diagnosis, *NON_FINITE)
    if bad:
        seen = f"First seen in {bad[0].metric or 'the loss'}{_at(bad[0])} at step {bad[0].start}."
        return Answer(f"{seen} {birth_said(case.around)}".rstrip(), "bad")
    return Answer(*_finite(case.around))


def inputs(case: Case) -> Answer:
    """Whether the batch was finite."""
    looked = inputs_said(case.around)
    if looked is not None:
        return Answer(looked[0], "ok" if looked[1] else "bad")
    said = f"No data: the inputs of step {case.around.episode.start} were not recorded."
    return Answer(said, "unknown")


def overflow(case: Case) -> Answer:
    """Whether numbers overflowed first."""
    if not _of(case.diagnosis, *NON_FINITE):
        return Answer(*_finite(case.around))
    born = overflow_said(case.around)
    if born is not None:
        return Answer(born[0], "bad" if born[1] else "ok")
    return _answer(overflow_check(case.around))


def data(case: Case) -> Answer:
    """Whether the loss spiked."""
    loss = case.around.whole_loss
    if loss is None:
        return Answer("No data: no loss was logged.", "unknown")
    spikes = [each for each in _of(case.diagnosis, "loss_spike") if each.severity >= Severity.WARNING]
    if spikes:
        listed = ", ".join(str(each.start) for each in spikes[:5]) + (", ..." if len(spikes) > 5 else "")
        return Answer(f"{len(spikes)} spike{'s' if len(spikes) > 1 else ''} of the loss, at step {listed}.", "bad")
    return Answer(f"No spike among the {len(loss.values)} points of {loss.name}.", "ok")


def labels(case: Case) -> Answer:
    """Whether the loss left chance level."""
    if case.around.whole_loss is None or not case.around.whole_loss.finite.any():
        return Answer("No data: no loss was logged.", "unknown")
    values = case.around.whole_loss.values[case.around.whole_loss.finite]
    last = float(np.median(values[-max(1, len(values) // 10) :]))
    stuck = _of(case.diagnosis, "plateau")
    classes = chance_of(last) if last > 0 else 0
    if stuck:
        among = f", chance level for {classes} classes" if classes else ""
        return Answer(f"The loss stayed at {shown(last)}{among}.", "bad")
    state: State = "ok" if last < values[0] else "unknown"
    return Answer(f"The loss changed from {shown(float(values[0]))} to {shown(last)}.", state)


def gradients(case: Case) -> Answer:
    """Whether gradients exploded or vanished."""
    seen = _of(case.diagnosis, "gradient_explosion", "gradient_vanishing")
    trouble = [each for each in seen if each.severity >= Severity.WARNING]
    if trouble:
        return Answer(trouble[0].message, "bad")
    look = vanishing_check(case.around)
    # The gradients of a training that has learned are small: that is no trouble of its own.
    lost = look.cause is not None and not _learned(case)
    return _answer(look if lost else explosion_check(case.around))


def _learned(case: Case) -> bool:
    """Whether the loss had fallen when it began; for a run without trouble, at the end."""
    loss, episode = case.around.loss, case.around.episode
    if loss is None or episode.kind in ("gradient_vanishing", "plateau"):
        return False
    values = case.around.before(loss) if episode.kind else loss.values[loss.finite]
    first = loss.values[loss.finite][:AT_FIRST]
    return len(values) >= AT_FIRST and float(np.median(values[-AT_FIRST:])) < FALLEN * float(np.median(first))


def learning_rate(case: Case) -> Answer:
    """Whether the learning rate is a cause."""
    if case.around.episode.kind == "":
        rates = [rate.values[rate.finite] for rate in case.around.rates if rate.finite.any()]
        if not rates:
            return Answer("No data: the learning rate was not logged.", "unknown")
        every = np.concatenate(rates)
        return Answer(f"Between {shown(float(every.min()))} and {shown(float(every.max()))}.", "ok")
    low = rate_too_low_check(case.around)
    return _answer(low if low.cause is not None else learning_rate_check(case.around))


def numerics(case: Case) -> Answer:
    """Whether values were finite and the loss scale steady."""
    bad = _of(case.diagnosis, *NON_FINITE)
    if bad:
        return Answer(bad[0].message, "bad")
    look = loss_scale_check(case.around)
    if look.cause is not None:
        return _answer(look)
    finding, state = _finite(case.around)
    scale = f" {sentence(look.ruled_out)}" if look.ruled_out else ""
    return Answer(finding + scale, state)


def validation(case: Case) -> Answer:
    """Whether validation follows the training."""
    over = _of(case.diagnosis, "overfitting")
    if over:
        return Answer(over[0].message, "bad")
    validated = [
        each for each in case.diagnosis.curves if "val" in each.metric.lower() or "eval" in each.metric.lower()
    ]
    if not validated:
        return Answer("No data: no validation loss was logged.", "unknown")
    first = validated[0]
    best = f"{first.metric} was best, {shown(first.best)}, at step {first.best_step}"
    return Answer(f"{best}, and {shown(first.last)} at the end.", "ok")


def end(case: Case) -> Answer:
    """How the process ended."""
    if not case.diagnosis.ended:
        return Answer("No data: the end of the process was not recorded.", "unknown")
    detail = f": {case.around.history.outcome_detail.removesuffix('.')}" if case.around.history.outcome_detail else ""
    state: State = "ok" if case.diagnosis.ended in ("finished", "stopped", "running") else "bad"
    return Answer(f"{process_ended(case.diagnosis.ended)}{detail}.", state)


def memory(case: Case) -> Answer:
    """Whether memory grew."""
    for metric in case.around.history.metrics:
        if "memory" in metric.meaning.quantity and len(metric.series) > 1:
            values = decoded(metric.series.values)
            grown = float(values[-1]) > 1.5 * float(values[0]) > 0
            said = f"{metric.name} changed from {shown(float(values[0]))} to {shown(float(values[-1]))}."
            return Answer(said, "bad" if grown else "ok")
    return Answer("No data: memory was not logged.", "unknown")


def _of(diagnosis: Diagnosis, *kinds: str) -> list[Episode]:
    return [each for each in diagnosis.episodes if each.kind in kinds]


def _at(episode: Episode) -> str:
    return f" of {episode.place}" if episode.place else ""


def _finite(around: EpisodeContext) -> tuple[str, State]:
    loss = around.whole_loss
    if loss is None:
        return "No data: no loss was logged.", "unknown"
    count = int((~loss.finite).sum())
    if count:
        return f"{count} of the {len(loss.values)} points of {loss.name} are non-finite.", "bad"
    return f"All {len(loss.values)} points of {loss.name} are finite.", "ok"


def _answer(look: CheckResult) -> Answer:
    if look.cause is not None:
        return Answer(look.cause.statement, "bad")
    return Answer(sentence(look.ruled_out or look.unseen), "ok" if look.ruled_out else "unknown")
