"""Names of the tags of a run, and what they say.

In: the tags of a run, of this version or an older one. Out: how its process ended, its last step, whether we recorded
it. Guarantees: MLflow is not needed; what people read is in eight tags at most, and two more where settings changed or
a condition stopped the training; tags for programs begin with `mlflow.`, which MLflow's pages do not show.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.vocabulary.run import RUN_STATUS

OURS = "stability."
VERDICT = f"{OURS}verdict"
"""The outcome of the training in one word: ``healthy``, ``unstable``, ``recovered``, ``diverged``, ``broken``..."""
OUTCOME = f"{OURS}outcome"
"""The same in a sentence with numbers. In runs of version 0.1 what `ENDED` is now."""
ENDED = f"{OURS}ended"
"""How the process ended: a word of `outcome.RUN_STATUS`."""
CAUSE = f"{OURS}cause"
FIRST_ISSUE_STEP = f"{OURS}first_issue_step"
FINDINGS = f"{OURS}findings"
ROLLBACKS = f"{OURS}rollbacks"
SKIPPED_STEPS = f"{OURS}skipped_steps"
CHANGED_SETTINGS = f"{OURS}changed_settings"
"""Of a run that was resumed with other settings: a line for each recording, ``recording 2: seed 2 (was 1)``."""
EARLY_STOPPING_STEP = f"{OURS}early_stopping_step"
"""Only in runs that a condition of `stop_on` has ended."""
READ_BY_PEOPLE = (
    VERDICT,
    OUTCOME,
    CAUSE,
    FIRST_ISSUE_STEP,
    FINDINGS,
    ROLLBACKS,
    SKIPPED_STEPS,
    ENDED,
    CHANGED_SETTINGS,
    EARLY_STOPPING_STEP,
)

RUNNING = "running"
"""The verdict while it trains."""

COMPARISON = f"{OURS}comparison"
"""Only in runs that hold a comparison of others, and no training."""

FOR_PROGRAMS = "mlflow.stability."
LAST_STEP = f"{FOR_PROGRAMS}last_step"
JOB = f"{FOR_PROGRAMS}job"
"""Of a launcher that starts its processes again: the name of the job, by which its next attempt finds the run."""
DESCRIPTION = "mlflow.note.content"
"""MLflow's own tag for the description of a run."""


def is_recorded(tags: Mapping[str, str]) -> bool:
    """Whether a run with these tags is one that we wrote into."""
    return any(tag.startswith((OURS, FOR_PROGRAMS)) for tag in tags)


def process_end(tags: Mapping[str, str]) -> tuple[str, str]:
    """How the process ended, and the detail; empty where the run does not say."""
    if ENDED in tags:
        return tags[ENDED], ""
    before = tags.get(OUTCOME, "")
    return (before, tags.get(f"{OURS}outcome_detail", "")) if before in RUN_STATUS else ("", "")


def last_step(tags: Mapping[str, str]) -> int:
    """The last step that the run has, as far as its tags say it; 0 where they say nothing."""
    said = tags.get(LAST_STEP, tags.get(f"{OURS}last_step", ""))
    return int(said) if said.isdecimal() else 0
