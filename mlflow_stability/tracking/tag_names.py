"""Names of the tags of a run, and what they hold, in this version and older ones.

What people read is in eight tags at most, and two more where settings changed or a condition stopped the training. Tags
for programs begin with `mlflow.`, which MLflow's pages do not show. MLflow is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.vocabulary.run import RUN_STATUS

PREFIX = "stability."
VERDICT = f"{PREFIX}verdict"
"""The outcome of the training in one word: ``healthy``, ``unstable``, ``recovered``, ``diverged``, ``broken``..."""
OUTCOME = f"{PREFIX}outcome"  # the same in a sentence with numbers. In runs of version 0.1 what `ENDED` is now.
ENDED = f"{PREFIX}ended"  # how the process ended: a word of `outcome.RUN_STATUS`
CAUSE = f"{PREFIX}cause"
FIRST_ISSUE_STEP = f"{PREFIX}first_issue_step"
FINDINGS = f"{PREFIX}findings"
ROLLBACKS = f"{PREFIX}rollbacks"
SKIPPED_STEPS = f"{PREFIX}skipped_steps"
CHANGED_SETTINGS = f"{PREFIX}changed_settings"
"""Of a run that was resumed with other settings: a line for each recording, ``recording 2: seed 2 (was 1)``."""
EARLY_STOPPING_STEP = f"{PREFIX}early_stopping_step"  # only in runs that a condition of `stop_on` has ended
RUNNING = "running"  # the verdict of a run that is training
COMPARISON = f"{PREFIX}comparison"  # only in runs that hold a comparison of others, and no training
FOR_PROGRAMS = "mlflow.stability."
LAST_STEP = f"{FOR_PROGRAMS}last_step"
JOB = f"{FOR_PROGRAMS}job"
"""Name of the job of a launcher that restarts its processes; the next attempt finds the run by it."""
DESCRIPTION = "mlflow.note.content"  # MLflow's own tag for the description of a run


def is_recorded(tags: Mapping[str, str]) -> bool:
    """Return whether this package recorded a run with these tags."""
    return any(tag.startswith((PREFIX, FOR_PROGRAMS)) for tag in tags)


def process_end(tags: Mapping[str, str]) -> tuple[str, str]:
    """Return how the process ended, and the detail; empty if the tags do not show it."""
    if ENDED in tags:
        return tags[ENDED], ""
    old = tags.get(OUTCOME, "")
    return (old, tags.get(f"{PREFIX}outcome_detail", "")) if old in RUN_STATUS else ("", "")


def last_step(tags: Mapping[str, str]) -> int:
    """Return the last step that the tags show; 0 if they do not."""
    step = tags.get(LAST_STEP, tags.get(f"{PREFIX}last_step", ""))
    return int(step) if step.isdecimal() else 0
