"""Looks for the cause in the course of the run: a level of guessing, a fit that is too good, the end of the process."""

from __future__ import annotations

import math

from mlflow_stability.diagnosis.chance_level import chance_of, classes_in
from mlflow_stability.diagnosis.look import Look, is_it, is_not
from mlflow_stability.diagnosis.surroundings import Surroundings, shown


def chance_look(around: Surroundings) -> Look:
    """Whether the model does no better than guessing."""
    last = around.episode.evidence.get("last", math.nan)
    named = classes_in(around.history.params)
    classes = (chance_of(last, named) if last > 0 else 0) or int(around.episode.evidence.get("classes", 0))
    if classes > 1:
        return is_it(
            "guessing",
            f"The model guesses: a loss of {shown(last)} is that of a uniform guess among {classes} classes. Labels of "
            "other inputs, inputs that carry nothing, or a learning rate far off would all look like this.",
            f"ln {classes} = {math.log(classes):.4g}, the loss is {last:.4g}",
            since=None,
        )
    if named:
        levels = " or ".join(f"{shown(math.log(each))} among {each:,}" for each in sorted(set(named))[:3])
        return is_not(f"guessing: it costs {levels} classes, the loss is {shown(last)}")
    return is_not(f"guessing among a usual number of classes: a loss of {shown(last)} is no such level")


def memorising_look(around: Surroundings) -> Look:
    """A validation loss that rises while the training loss falls is its own evidence."""
    evidence = around.episode.evidence
    best, last, step = evidence.get("best"), evidence.get("last"), evidence.get("best_step")
    said = "The model learns its training data by heart"
    if best is None or last is None or step is None:
        return is_it("overfitting", f"{said}: the validation loss rises while the training loss falls.", since=None)
    return is_it(
        "overfitting",
        f"{said} since step {step:.0f}, its best validation: stop there, or regularise.",
        f"validation loss {shown(best)} at step {step:.0f}, {shown(last)} at the end",
        since=None,
    )


def end_look(around: Surroundings) -> Look:
    """How the process ended is known, not concluded."""
    detail = around.history.outcome_detail
    said = {
        "out_of_memory": "The process ran out of memory.",
        "killed": "The process was killed from outside.",
        "crashed": "The script raised an exception.",
        "stall": "No step was finished for a long time: the process hung.",
    }
    name = {"killed": "external_kill", "crashed": "exception"}.get(around.episode.kind, around.episode.kind)
    return is_it(name, said.get(around.episode.kind, around.episode.message), detail, since=None, certainty="certain")
