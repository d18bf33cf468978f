"""The order of checks that people who train models go through, filled in with what a run shows.

In: a kind of trouble, and a run or none. Out: questions in their classic order (data, gradients, learning rate,
numerics; for NaN: locate, inputs, overflow), each with what the run shows and how to check it by hand. Promised: what
the run does not show is unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.diagnosis.causes.context import surroundings_of
from mlflow_stability.diagnosis.checklist.check_findings import FINDINGS, Case, State
from mlflow_stability.diagnosis.curves.curves import run_curves
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity
from mlflow_stability.vocabulary.run.run_history import RunHistory


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One thing to check."""

    question: str
    finding: str = ""
    """What this run shows; empty where no run was given."""
    state: State = "unknown"
    how: str = ""
    """How to check it by hand."""


QUESTIONS: dict[str, tuple[str, str]] = {
    "locate": (
        "Where did the first non-finite value appear?",
        "Test every output with torch.isfinite in forward hooks; torch.autograd.set_detect_anomaly(True).",
    ),
    "inputs": (
        "Are the inputs of that step finite and in range?",
        "Test inputs and targets with torch.isfinite; look for empty targets, divisions by zero, logarithms of zero.",
    ),
    "overflow": (
        "Did numbers overflow before they became NaN?",
        "Look for an infinity before the first NaN; try bf16 or fp32; bound exponentials and divisions.",
    ),
    "data": (
        "Is a batch, or the data, the cause?",
        "Inspect the batch at that step, and train on it alone; check shuffling, duplicates and labels.",
    ),
    "labels": (
        "Is the loss below chance level?",
        "Overfit ten samples on purpose; if that fails, labels or the loss are wrong.",
    ),
    "gradients": (
        "Are the gradient norms normal, in every layer?",
        "Log the norm before clipping, of the model and by layer; clip at 1.0.",
    ),
    "learning_rate": (
        "Are the learning rate and its schedule right?",
        "Log it; try 3 times higher and lower; warm up over 1-5 % of the steps.",
    ),
    "numerics": (
        "Are all values finite, and is the loss scale steady?",
        "Train some steps in fp32; log the loss scale; use bf16 where the device has it.",
    ),
    "validation": (
        "Does the validation loss follow the training loss?",
        "Validate often enough to see the best step, on data that was never trained on.",
    ),
    "end": (
        "How did the process end?",
        "Read the last lines of its output, `dmesg`, and the scheduler's record of the job.",
    ),
    "memory": (
        "Did memory grow?",
        "Log torch.cuda.memory_allocated() every 100 steps; look for losses that are kept with their graph.",
    ),
}
"""Each question, and how to answer it by hand."""

CLASSIC = ("data", "gradients", "learning_rate", "numerics")
ORDERS: dict[str, tuple[str, ...]] = {
    "nan_detected": ("locate", "inputs", "overflow", "learning_rate", "gradients", "numerics"),
    "inf_detected": ("locate", "inputs", "overflow", "learning_rate", "gradients", "numerics"),
    "loss_scale_collapse": ("numerics", "overflow", "gradients", "learning_rate"),
    "step_skipped": ("numerics", "overflow", "gradients", "learning_rate"),
    "loss_spike": CLASSIC,
    "divergence": ("learning_rate", "gradients", "data", "numerics"),
    "gradient_explosion": ("gradients", "learning_rate", "data", "numerics"),
    "gradient_vanishing": ("gradients", "learning_rate", "numerics"),
    "learning_rate_jump": ("learning_rate", "gradients"),
    "plateau": ("labels", "data", "learning_rate", "gradients"),
    "overfitting": ("validation", "data", "learning_rate"),
    "crashed": ("end", "memory", "numerics"),
    "killed": ("end", "memory"),
    "stall": ("end", "memory"),
    "out_of_memory": ("memory", "end"),
}
"""For each kind the questions in their order; for any other kind the classic four."""


def checklist_of(
    kind: str = "", history: RunHistory | None = None, diagnosis: Diagnosis | None = None
) -> tuple[ChecklistItem, ...]:
    """The checklist of one kind of trouble, filled in where a run and its diagnosis are given.

    Of a run and no kind: that of the worst thing that happened in it.
    """
    episodes = diagnosis.episodes if diagnosis is not None else ()
    episode = _episode(kind, episodes)
    order = ORDERS.get(kind or (episode.kind if episode is not None else ""), CLASSIC)
    if history is None or diagnosis is None:
        return tuple(ChecklistItem(QUESTIONS[each][0], how=QUESTIONS[each][1]) for each in order)
    curves = run_curves(history)
    if episode is None:
        last = diagnosis.steps[1] if diagnosis.steps else 0
        attempt = max((curve.attempt for curve in curves.losses), default=0)
        episode = Episode("", Severity.INFO, last, last, last, "", attempt=attempt)
    around = surroundings_of(episode, history, curves)
    items = []
    for each in order:
        found = FINDINGS[each](Case(around, diagnosis))
        items.append(ChecklistItem(QUESTIONS[each][0], found.finding, found.state, QUESTIONS[each][1]))
    return tuple(items)


def _episode(kind: str, episodes: Sequence[Episode]) -> Episode | None:
    """The first episode of the kind; without a kind the worst, and of the worst the first."""
    if kind:
        return next((each for each in episodes if each.kind == kind), None)
    return min(episodes, key=lambda each: (-each.severity, each.attempt, each.start), default=None)
