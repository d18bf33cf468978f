"""Looks for the cause in what was done to the weights: decay, a changed setting, damage that no gradient did."""

from __future__ import annotations

import numpy as np

from mlflow_stability.detectors.engine.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import Surroundings, shown
from mlflow_stability.vocabulary.result.event import Event

SHRUNK = 0.7
"""Weights whose norm falls below this share of itself from one measurement to the next are decayed away."""
BETWEEN_LOOKS = 10
"""A setting is looked at every so many steps: what is seen at a step was changed at most so many before."""
IN_A_ROW = 3
"""So many batches in a row that all break are not bad batches."""


def decay_look(around: Surroundings) -> Look:
    """Whether the weights shrank away under a weight decay."""
    norms = next((each for each in around.of("param_norm") if not each.place), None)
    if norms is None or len(norms.steps) < 2:
        return not_seen("weight norm: not measured")
    start = around.episode.start
    after = int(np.searchsorted(norms.steps, start, side="left"))
    around_it = [place for place in (after, after + 1) if 0 < place < len(norms.steps)]
    for place in around_it:
        then, now = float(norms.values[place - 1]), float(norms.values[place])
        if not (np.isfinite(then) and np.isfinite(now) and now < SHRUNK * then):
            continue
        changed = [each for each in _changes(around) if each.message.startswith("weight_decay")]
        setting = f" {changed[0].message}" if changed else ""
        return is_it(
            "weight_decay",
            f"The weight decay is far too strong: the weight norm fell from {shown(then)} at step "
            f"{int(norms.steps[place - 1])} to {shown(now)} at step {int(norms.steps[place])}.{setting}",
            f"weight norm x {now / then:.2g} in {int(norms.steps[place] - norms.steps[place - 1])} steps",
            since=int(norms.steps[place - 1]),
        )
    if not around_it:
        return not_seen("weight norm: not measured around it")
    now, then = float(norms.values[around_it[-1]]), float(norms.values[around_it[0] - 1])
    if not np.isfinite(now):
        return not_seen("weight norm: non-finite afterwards")
    return is_not(f"weight decay: weight norm {shown(then)} before, {shown(now)} after")


def setting_look(around: Surroundings) -> Look:
    """Whether a setting of the training was changed just before."""
    changes = _changes(around)
    if around.history.events is None:
        return not_seen("changed settings: not recorded")
    if not changes:
        return is_not("changed settings: none just before")
    said = " ".join(each.message for each in changes[:2])
    frozen = any("parameters that are trained" in each.message for each in changes)
    return is_it(
        "frozen_parameters" if frozen else "configuration_changed",
        f"A setting changed just before: {said}",
        f"{max(0, around.episode.start - changes[0].step)} steps before the first sign at step {around.episode.start}",
        since=changes[0].step - BETWEEN_LOOKS,
        certainty="possible",
    )


def damage_look(around: Surroundings) -> Look:
    """Whether every batch breaks on weights that had worked until the step before."""
    loss, start = around.loss, around.episode.start
    if loss is None or not around.every_step:
        return not_seen("corrupted weights: the loss of each step was not logged")
    place = int(np.searchsorted(loss.steps, start, side="left"))
    row = 0
    while place + row < len(loss.values) and not np.isfinite(loss.values[place + row]):
        row += 1
    skipped = {each.step for each in around.said("step_skipped")}
    if row < IN_A_ROW or start not in skipped:
        return not_seen("corrupted weights: visible only where non-finite steps are skipped")
    before = around.before(loss)
    if not len(before):
        return not_seen("corrupted weights: no loss before it")
    back = next((each for each in around.said("rollback") if each.step >= start), None)
    healed = (
        "" if back is None else f", and the weights of step {back.evidence.get('target', 0):.0f} gave normal losses"
    )
    return is_it(
        "damaged_weights",
        f"The weights were corrupted between step {start - 1} and step {start}: {row} batches in a row gave a "
        f"non-finite loss, the batch before {shown(float(before[-1]))}{healed}. No gradient caused it: check the "
        "optimizer state, what writes to the weights, and the device memory.",
        f"{row} non-finite steps in a row were skipped, so the weights did not change",
        since=start,
        certainty="possible" if back is None else "likely",
    )


def _changes(around: Surroundings) -> list[Event]:
    """The settings that were changed just before, as far as they were looked at."""
    start = around.episode.start
    return [
        each
        for each in around.said("configuration_changed")
        if start - around.reach < each.step <= start + BETWEEN_LOOKS
    ]


CAUSES = (
    CauseDocumentation(
        "damaged_weights",
        "Weights or buffers were corrupted, but not by a gradient.",
        "Several batches in a row were non-finite on weights that worked one step before, or a normal batch gave "
        "extremely large values.",
        "A bad update that was not recorded.",
        (
            "Restart from a checkpoint before this step.",
            "Check what writes to the weights besides the optimizer, and the device memory.",
        ),
        helped_by_smaller_updates=False,
        phrase="corrupted weights",
    ),
    CauseDocumentation(
        "weight_decay",
        "The weights shrank because of the weight decay.",
        "Their norm fell by more than 30 % from one measurement to the next. Never named where the weight decay is 0, "
        "or across a rollback.",
        "Weights that the script itself scales or replaces.",
        ("Lower the weight decay.", "Restart from a checkpoint before this step."),
        excluded_by=lambda known: "weight decay: 0" if known.weight_decay == 0 else "",
    ),
    CauseDocumentation(
        "configuration_changed",
        "A setting of the training changed just before.",
        "A recorded setting differs from its value 10 steps earlier. Possible only: not all changes matter.",
        "An intended change, and a finding with another cause.",
        ("Check whether the change is intended.",),
        phrase="changed setting",
    ),
    CauseDocumentation(
        "frozen_parameters",
        "The number of trained parameters changed just before.",
        "Parameters were frozen or unfrozen within the 10 steps before.",
        "Training in stages, on purpose.",
        ("Check whether these parameters should be frozen.",),
    ),
)
CHECKS = (
    Check(
        decay_look, {Symptom.NON_FINITE: 50, Symptom.RISING: 30, Symptom.LARGE_UPDATES: 20}, frozenset({"weight_decay"})
    ),
    Check(
        setting_look,
        {
            Symptom.NON_FINITE: 120,
            Symptom.RISING: 70,
            Symptom.LARGE_UPDATES: 30,
            Symptom.VANISHING: 50,
            Symptom.DEAD_LAYER: 10,
        },
        frozenset({"configuration_changed"}),
    ),
    Check(damage_look, {Symptom.NON_FINITE: 70}, frozenset({"damaged_weights"})),
)
