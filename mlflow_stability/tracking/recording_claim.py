"""Reserve the number, key prefix and step offset of a recording in a run.

Guarantees: the same recording always gets the same place; two recordings never share one, however many come at once; a
process that counts from 1 again writes no step twice; one that records again into the same run continues its prefix.

Each recording writes a tag of its own, `mlflow.stability.recording.<id>`. A tracking store can only set and read tags,
so numbers are given out by Lamport's bakery algorithm: https://lamport.azurewebsites.net/pubs/bakery.pdf. Of two with
the same number the one whose name comes later chooses again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.keys import PREFIX, prefix_of
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.tag_names import FOR_PROGRAMS
from mlflow_stability.vocabulary.run import Opening

LIVE_SECONDS = 30.0
CHOOSING_SECONDS = 20.0  # a recording that chooses for longer was killed
POLL_SECONDS = 0.1
MAX_ATTEMPTS = 50
CHOOSING = -1
_NAME = re.compile(r"(?:mlflow\.)?stability\.recording\.[\w\-]+")  # without `mlflow.` in runs of version 0.1


@dataclass(frozen=True, slots=True)
class RecordingTag:
    id: str
    number: int = 0  # its number in the run; `CHOOSING` while it looks for one
    host: str = ""
    pid: int = 0
    settled: bool = False  # whether no other recording can get the same number any more
    state: str = "live"  # `live` or `ended`
    first_step: int = 0
    last_step: int = 0
    time: float = 0.0  # when this was written
    prefix: str = PREFIX  # first part of its metric keys
    offset: int = 0  # what was added to its steps, because the run had those already
    events: dict[str, int] = field(default_factory=dict)  # number of events by severity
    rollbacks: int = 0
    skipped: int = 0
    job: str = ""  # the launcher's job that it is an attempt of
    restarts: int = 0  # number of attempts of the job before it

    @property
    def key(self) -> str:
        """The key of the tag, by which the run of a recording is found again."""
        return f"{FOR_PROGRAMS}recording.{self.id}"

    def lives(self, now: float) -> bool:
        """Return whether its process seems to be running."""
        return self.state == "live" and now - self.time < LIVE_SECONDS

    def text(self) -> str:
        return json.dumps(asdict(self))


def tags_of_recordings(tags: Mapping[str, str]) -> list[RecordingTag]:
    """Return the tags of all recordings in a run; one that was overwritten by other code is left out."""
    names = {field.name for field in fields(RecordingTag)}
    recordings = []
    for key, text in tags.items():
        if _NAME.fullmatch(key) is None:
            continue
        try:
            values = json.loads(text)
            values.setdefault("prefix", values.get("section", PREFIX))  # its name before 1.0
            tag = RecordingTag(**{name: values[name] for name in values if name in names})
        except (AttributeError, ValueError, TypeError, RecursionError):
            continue
        if isinstance(tag.id, str) and isinstance(tag.number, int):
            recordings.append(tag)
    return sorted(recordings, key=lambda tag: (tag.number, tag.id))


def recordings_in(tags: Mapping[str, str]) -> dict[int, RecordingTag]:
    return {tag.number: tag for tag in tags_of_recordings(tags) if tag.number != CHOOSING}


def claim_place(writer: RunWriter, opening: Opening) -> RecordingTag:
    own = next((tag for tag in tags_of_recordings(writer.tags()) if tag.id == opening.recording), None)
    if own is not None and own.number != CHOOSING and own.settled:
        return own
    if opening.restarts:
        _await_attempts_before(writer, opening)
    for _ in range(MAX_ATTEMPTS):
        _set(writer, RecordingTag(opening.recording, CHOOSING, opening.host, opening.pid, time=time.time()))
        others = _others(writer, opening)
        number = max((tag.number for tag in others), default=-1) + 1
        own = place_among([tag for tag in others if tag.number != CHOOSING], number, opening, time.time())
        _set(writer, own)
        if not _is_lost(writer, opening, number):
            own = replace(own, settled=True)
            _set(writer, own)
            return own
    raise TrackingError(f"Run {writer.run_id}: could not reserve a recording number in {MAX_ATTEMPTS} attempts.")


def place_among(others: list[RecordingTag], number: int, opening: Opening, now: float) -> RecordingTag:
    """Return the tag of a new recording: beside recordings that are being written, after those that have ended.

    An earlier recording of the same process has ended, though its courier may still deliver it.
    """
    living = [tag for tag in others if tag.lives(now) and tag.id not in opening.earlier]
    living = [tag for tag in living if not _is_attempt_before(tag, opening)]
    ended_at = max((tag.last_step for tag in others if tag not in living), default=0)
    return RecordingTag(
        id=opening.recording,
        number=number,
        host=opening.host,
        pid=opening.pid,
        first_step=opening.first_step,
        time=now,
        prefix=prefix_of(number + 1) if living else prefix_of(1),
        offset=ended_at if opening.first_step <= ended_at else 0,
        job=opening.job,
        restarts=opening.restarts,
    )


def earlier_left(tags: Mapping[str, str], opening: Opening, now: float) -> int:
    """Return the number of earlier recordings of the same process that this one should wait for.

    One without a place would get a number after this one; the findings of one that is being delivered would be missing
    from the outcome.
    """
    recordings = {tag.id: tag for tag in tags_of_recordings(tags)}
    return sum(earlier not in recordings or recordings[earlier].lives(now) for earlier in opening.earlier)


def _is_attempt_before(tag: RecordingTag, opening: Opening) -> bool:
    """Return whether the launcher ended its processes before it began this attempt."""
    return bool(opening.job) and tag.job == opening.job and tag.restarts < opening.restarts


def _await_attempts_before(writer: RunWriter, opening: Opening) -> None:
    """Wait until attempts before are delivered, because their steps come first; give up if no courier delivers them."""
    until = time.monotonic() + LIVE_SECONDS
    while time.monotonic() < until:
        tags = [tag for tag in tags_of_recordings(writer.tags()) if _is_attempt_before(tag, opening)]
        if not any(tag.lives(time.time()) for tag in tags):
            return
        time.sleep(5 * POLL_SECONDS)


def _is_lost(writer: RunWriter, opening: Opening, number: int) -> bool:
    """Return whether a recording whose name comes first has the same number, once all have chosen."""
    while True:
        others = _others(writer, opening)
        now = time.time()
        if not any(tag.number == CHOOSING and now - tag.time < CHOOSING_SECONDS for tag in others):
            return any(tag.number == number and (tag.settled or tag.id < opening.recording) for tag in others)
        time.sleep(POLL_SECONDS)


def _others(writer: RunWriter, opening: Opening) -> list[RecordingTag]:
    return [tag for tag in tags_of_recordings(writer.tags()) if tag.id != opening.recording]


def _set(writer: RunWriter, tag: RecordingTag) -> None:
    writer.set_tags({tag.key: tag.text()})
