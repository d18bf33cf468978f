"""Takes a place in a run for one recording.

In: the run's writer and the recording. Out: its number, its section and what is added to its steps. Promised: the same
recording always gets the same place back; two recordings never share one; steps that the run has already are not
written a second time by a process that started to count at 1 again.
"""

from __future__ import annotations

import random
import time

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.keys import section_of
from mlflow_stability.tracking.recording_tag import RecordingTag, recordings_in, tag_name
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.milestone import Opening

_ATTEMPTS = 20
_SETTLE_SECONDS = (0.2, 0.6)


def claim_place(writer: RunWriter, opening: Opening) -> tuple[int, RecordingTag]:
    """The number of this recording in its run, and the tag that says so."""
    for _ in range(_ATTEMPTS):
        known = recordings_in(writer.tags())
        for number, tag in known.items():
            if tag.id == opening.recording:
                return number, tag
        number = max(known, default=-1) + 1
        mine = place_among(known, number, opening, time.time())
        writer.set_tags({tag_name(number): mine.text()})
        # Whoever wrote at the same moment has written over us, or we over them: look again once that is settled.
        time.sleep(random.uniform(*_SETTLE_SECONDS))
        settled = recordings_in(writer.tags()).get(number)
        if settled is not None and settled.id == opening.recording:
            return number, mine
    raise TrackingError(f"Run {writer.run_id} gave no place to this recording in {_ATTEMPTS} attempts.")


def place_among(known: dict[int, RecordingTag], number: int, opening: Opening, now: float) -> RecordingTag:
    """The tag of a newcomer: beside recordings that are still being written, behind those that have ended."""
    beside_others = any(tag.lives(now) for tag in known.values())
    ended_at = max((tag.last_step for tag in known.values() if not tag.lives(now)), default=0)
    return RecordingTag(
        id=opening.recording,
        host=opening.host,
        pid=opening.pid,
        first_step=opening.first_step,
        time=now,
        section=section_of(number + 1) if beside_others else section_of(1),
        offset=ended_at if opening.first_step <= ended_at else 0,
    )
