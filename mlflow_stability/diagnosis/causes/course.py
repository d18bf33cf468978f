"""Looks for the cause in the course of the run: a level of guessing, a fit that is too good, the end of the process,
the same batch again and again, other data than before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.chance_level import chance_of, classes_in
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts, Overfitting
from mlflow_stability.kinds.progress.plateau import LastLevelFacts, Plateau, PlateauFacts
from mlflow_stability.kinds.progress.repeated_data import ConstantOutput, NoNoiseFacts, RepeatedData
from mlflow_stability.kinds.progress.standstill import StandstillFacts
from mlflow_stability.kinds.reported.autopilot import DataChanged, DataChangedFacts
from mlflow_stability.kinds.reported.endings import WAYS_TO_END


def changed_data_check(around: EpisodeContext) -> CheckResult:
    """Whether restored weights showed that the data or the loss function changed; that none did says nothing."""
    within = (
        64  # steps between the change and the onset of a divergence: twice what a baseline needs (`engine.baseline`)
    )
    for event in around.said(DataChanged.kind):
        facts = event.facts
        if not isinstance(facts, DataChangedFacts):
            continue
        if facts.onset - within <= around.episode.start <= max(facts.onset + within, event.step):
            since = min(facts.onset, around.episode.start)
            return is_it("data_changed", facts.reason, since=since, certainty="certain")
    return CheckResult()


def chance_check(around: EpisodeContext) -> CheckResult:
    """Whether the model does no better than guessing."""
    flat, stuck = around.episode.known(LastLevelFacts), around.episode.known(PlateauFacts)
    stands = around.episode.known(StandstillFacts)
    last = math.nan if stuck is None else stuck.loss
    for whole in (flat, stands):
        last = last if whole is None else whole.last
    named = classes_in(around.history.params)
    # A loss that fell first has learnt something: only a number of classes that the run names is no coincidence.
    classes = chance_of(last, named) if last > 0 and (named or stands is None) else 0
    classes = classes or (stuck.classes if stuck is not None and stuck.classes else 0)
    if classes > 1:
        return is_it(
            "guessing",
            f"The loss is at chance level for {classes} classes ({shown(last)}): check labels, inputs and the learning "
            "rate.",
            f"ln {classes} = {math.log(classes):.4g}, loss {last:.4g}",
            since=None,
        )
    if named:
        levels = " or ".join(f"{shown(math.log(each))} for {each:,}" for each in sorted(set(named))[:3])
        return is_not(f"chance level: {levels} classes, loss {shown(last)}")
    return is_not(f"chance level: loss {shown(last)} matches none of the usual numbers of classes")


def memorising_check(around: EpisodeContext) -> CheckResult:
    """A validation loss that rises while the training loss falls is its own evidence."""
    facts = around.episode.known(LastBelowBestFacts)
    said = "The model overfits"
    if facts is None:
        return is_it("overfitting", f"{said}: the validation loss rises while the training loss falls.", since=None)
    return is_it(
        "overfitting",
        f"{said} since {around.unit} {facts.best_step}, the best validation loss.",
        f"validation loss {shown(facts.best)} at {around.unit} {facts.best_step}, {shown(facts.last)} at the end",
        since=None,
    )


def end_check(around: EpisodeContext) -> CheckResult:
    """How the process ended is known, not concluded."""
    detail = around.history.outcome_detail
    said = {
        "out_of_memory": "The process ran out of memory.",
        "killed": "The process was killed.",
        "crashed": "The script raised an exception.",
        "stall": "The process hung: no step finished for a long time.",
    }
    name = {"killed": "external_kill", "crashed": "exception"}.get(around.episode.kind, around.episode.kind)
    return is_it(name, said.get(around.episode.kind, around.episode.message), detail, since=None, certainty="certain")


def repeated_data_check(around: EpisodeContext) -> CheckResult:
    """Whether one batch comes again and again: the loss lost its noise, and falls."""
    loss, episode = around.loss, around.episode
    if loss is None:
        return not_seen("repeated data: no loss was logged")
    facts = episode.known(NoNoiseFacts)
    row, usual = (16, 0.0) if facts is None else (facts.steps, facts.usual)
    end = int(np.searchsorted(loss.steps, episode.start, side="right"))
    smooth, earlier = loss.values[max(0, end - row) : end], loss.values[: max(0, end - row)]
    smooth, earlier = smooth[np.isfinite(smooth)], earlier[np.isfinite(earlier)]
    if len(smooth) < 2 or len(earlier) < 2:
        return not_seen("repeated data: too few losses before it")
    first = min(episode.start - row + 1, int(loss.steps[_smooth_from(loss.values[:end], row, usual)]))
    if float(smooth[-1]) < float(earlier[-100:].min()):
        return is_it(
            "repeated_data",
            f"The same batch was repeated from about {around.unit} {first} on: the loss lost its noise and fell to "
            f"{shown(float(smooth[-1]))}, below all of the {min(100, len(earlier))} losses before. The model overfits "
            "one batch.",
            f"{row} losses in a row without noise from batch to batch; before, it was {usual:.1%} of the loss",
            since=min(first, episode.start),
        )
    return is_not(
        f"repeated data: the loss lost its noise and did not fall, {shown(float(earlier[-1]))} before and "
        f"{shown(float(smooth[-1]))} after {row} {around.unit}s"
    )


def _smooth_from(values: NDArray[np.float64], row: int, usual: float) -> int:
    """The first of the smooth losses that end here; a loss that had been very noisy is called so only after long.

    A few losses before the row look smooth by chance: only as many again count.
    """
    low = max(0, len(values) - row)
    positive = np.flatnonzero(~(values[:low] > 0))
    begin = int(positive[-1]) + 1 if len(positive) else 0
    bends = np.abs(np.diff(np.log(values[begin:]), 2))
    rough = np.flatnonzero(~(bends[: max(0, low - begin)] < RepeatedData().share * usual))
    first = begin + int(rough[-1]) + 2 if len(rough) else begin
    return first if first <= low - row else low


def constant_output_check(around: EpisodeContext) -> CheckResult:
    """Whether the loss lost its noise because the output does not depend on the input any more."""
    if around.loss is None or around.episode.kind not in (RepeatedData.kind, ConstantOutput.kind):
        return not_seen("constant output: no loss was logged")
    facts, how = around.episode.known(NoNoiseFacts), "without falling"
    if facts is not None and facts.before is not None:
        how = f"and rose from {shown(facts.before)} to {shown(facts.loss)}"
    return is_it(
        "constant_output",
        f"The loss lost its noise {how}: the output probably no longer depends on the input.",
        since=around.episode.start,
        certainty="possible",
    )


_ENDS = {each.kind: each.remedies for each in WAYS_TO_END}
CAUSES = (
    CauseDocumentation(
        "guessing",
        "The loss is at chance level.",
        "The loss stays at the logarithm of a number of classes.",
        "A loss that has such a value by coincidence.",
        Plateau.remedies,
        phrase="chance level",
    ),
    CauseDocumentation(
        "overfitting",
        "The model memorises its training data.",
        "The validation loss rises while the training loss falls.",
        "Validation data that differs from the training data.",
        Overfitting.remedies,
    ),
    CauseDocumentation(
        "repeated_data",
        "The same batch was repeated.",
        "The loss lost its noise from batch to batch and fell below all of the 100 losses before.",
        "Full-batch training, which has little noise from the start.",
        RepeatedData.remedies,
    ),
    CauseDocumentation(
        "data_changed",
        "The data or the loss function changed, and the weights are not to blame.",
        "After a rollback, before any update, the restored weights give a clearly higher loss than they gave before "
        "(certain). Or the loss jumped in one step, loss, gradient norm and learning rate of the step before were "
        "normal, and the next 8 losses are as high (possible).",
        "Noise with heavy tails, once in thousands of rollbacks. Without a rollback: weights or buffers that other "
        "code wrote to.",
        DataChanged.remedies,
        helped_by_smaller_updates=False,
        phrase="changed data",
    ),
    CauseDocumentation(
        "constant_output",
        "The output no longer depends on the input.",
        "The loss lost its noise without falling, and no collapse or vanishing gradient explains it; or it jumped in "
        "one step, and is the same number in each step since.",
        "A data set whose batches are nearly identical.",
        ConstantOutput.remedies,
    ),
    CauseDocumentation(
        "out_of_memory",
        "The process ran out of memory.",
        "The recorded end of the process.",
        "Memory that another process used.",
        _ENDS["out_of_memory"],
    ),
    CauseDocumentation(
        "external_kill",
        "The process was killed.",
        "It ended by a signal.",
        "The kernel kills processes that use too much memory.",
        _ENDS["killed"],
        phrase="killed process",
    ),
    CauseDocumentation(
        "exception",
        "The script raised an exception.",
        "The recorded end of the process, with the exception.",
        "An earlier finding may have caused the exception; it is checked first.",
        _ENDS["crashed"],
    ),
    CauseDocumentation(
        "stall",
        "The process hung: no step finished for a long time.",
        "The time since the last step was many times the usual step time.",
        "A long validation or checkpoint between two steps.",
        _ENDS["stall"],
    ),
)
CHECKS = (
    Check(changed_data_check, {Symptom.RISING: 12, Symptom.LARGE_UPDATES: 12}, frozenset({"data_changed"})),
    Check(chance_check, {Symptom.STUCK: 60}),
    Check(memorising_check, {Symptom.OVERFITTING: 10}),
    Check(end_check, {Symptom.ENDED: 10}),
    Check(repeated_data_check, {Symptom.REPEATED_DATA: 10}, frozenset({"repeated_data"})),
    Check(constant_output_check, {Symptom.REPEATED_DATA: 40}),
)
