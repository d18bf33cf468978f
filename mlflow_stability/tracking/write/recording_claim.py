"""Reserves the number and section of a recording in a run.

In: the run's writer and the recording. Out: its number, its section, its step offset. Guarantees: the same recording
always gets the same place; two recordings never share one, however many come at once; a process that counts from 1
again writes no step twice; a process that records again into the same run continues, it is no second process.

The tag `mlflow.stability.recording.<id>` holds a JSON object: number, progress, time. Each recording writes its own tag
only. A tracking store can only set and read tags, so numbers are given out by Lamport's bakery algorithm:
https://lamport.azurewebsites.net/pubs/bakery.pdf. Of two with the same number the one whose name comes later chooses
again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.keys import SECTION, section_of
from mlflow_stability.tracking.tag_names import FOR_PROGRAMS
from mlflow_stability.tracking.write.run_writer import RunWriter
from mlflow_stability.vocabulary.run import Opening

LIVE_SECONDS = 30.0
CHOOSING = -1
_NAME = re.compile(r"(?:mlflow\.)?stability\.recording\.[\w\-]+")  # without `mlflow.` in runs of version 0.1


@dataclass(frozen=True, slots=True)
class RecordingTag:
    """What a run knows of one recording in it."""

    id: str
    number: int = 0
    """Its number in the run; `CHOOSING` while it looks for one."""
    host: str = ""
    pid: int = 0
    settled: bool = False
    """Nobody else can have the same number any more."""
    state: str = "live"
    """`live` or `ended`."""
    first_step: int = 0
    last_step: int = 0
    time: float = 0.0
    """When this was written."""
    section: str = SECTION
    """The prefix of its metric keys."""
    offset: int = 0
    """What was added to its steps, because the run had those already."""
    events: dict[str, int] = field(default_factory=dict)
    """How many events of which severity."""
    rollbacks: int = 0
    skipped: int = 0
    job: str = ""
    """The launcher's job that it is an attempt of."""
    restarts: int = 0
    """How many attempts of the job there were before."""

    @property
    def key(self) -> str:
        """The key of the tag, by which the run of the recording is found again."""
        return tag_name(self.id)

    def lives(self, now: float) -> bool:
        """Whether its process is still at work, as far as one can tell from here."""
        return self.state == "live" and now - self.time < LIVE_SECONDS

    def text(self) -> str:
        """The value of the tag."""
        return json.dumps(asdict(self))


def tag_name(recording: str) -> str:
    """The key of the tag of a recording."""
    return f"{FOR_PROGRAMS}recording.{recording}"


def tags_of_recordings(tags: Mapping[str, str]) -> list[RecordingTag]:
    """What a run knows of its recordings; a tag that somebody else has written over is passed over."""
    known = {each.name for each in fields(RecordingTag)}
    found = []
    for key, value in tags.items():
        if _NAME.fullmatch(key) is None:
            continue
        try:
            said = json.loads(value)
            found.append(RecordingTag(**{key: said[key] for key in said if key in known}))
        except (ValueError, TypeError):
            continue
    return sorted(found, key=lambda tag: (tag.number, tag.id))


def recordings_in(tags: Mapping[str, str]) -> dict[int, RecordingTag]:
    """The recordings of a run, by number."""
    return {tag.number: tag for tag in tags_of_recordings(tags) if tag.number != CHOOSING}


_ATTEMPTS = 50
_POLL_SECONDS = 0.1
_CHOOSING_SECONDS = 20.0  # who chooses for longer has died over it


def claim_place(writer: RunWriter, opening: Opening) -> RecordingTag:
    """The place of this recording in its run, as its tag says it."""
    mine = next((tag for tag in tags_of_recordings(writer.tags()) if tag.id == opening.recording), None)
    if mine is not None and mine.number != CHOOSING and mine.settled:
        return mine
    if opening.restarts:
        await_attempts_before(writer, opening)
    for _ in range(_ATTEMPTS):
        _say(writer, RecordingTag(opening.recording, CHOOSING, opening.host, opening.pid, time=time.time()))
        others = _others(writer, opening)
        number = max((tag.number for tag in others), default=-1) + 1
        mine = place_among([tag for tag in others if tag.number != CHOOSING], number, opening, time.time())
        _say(writer, mine)
        if not _lost(writer, opening, number):
            mine = replace(mine, settled=True)
            _say(writer, mine)
            return mine
    raise TrackingError(f"Run {writer.run_id}: could not reserve a recording number in {_ATTEMPTS} attempts.")


def place_among(known: list[RecordingTag], number: int, opening: Opening, now: float) -> RecordingTag:
    """The tag of a newcomer: beside recordings that are still being written, behind those that have ended.

    An earlier recording of the same process has ended, though its courier may still deliver it.
    """
    living = [tag for tag in known if tag.lives(now) and not _goes_before(tag, opening)]
    beside_others = bool(living)
    ended_at = max((tag.last_step for tag in known if tag not in living), default=0)
    return RecordingTag(
        id=opening.recording,
        number=number,
        host=opening.host,
        pid=opening.pid,
        first_step=opening.first_step,
        time=now,
        section=section_of(number + 1) if beside_others else section_of(1),
        offset=ended_at if opening.first_step <= ended_at else 0,
        job=opening.job,
        restarts=opening.restarts,
    )


def _goes_before(tag: RecordingTag, opening: Opening) -> bool:
    return tag.id in opening.earlier or is_attempt_before(tag, opening)


def earlier_left(tags: Mapping[str, str], opening: Opening, now: float) -> int:
    """How many earlier recordings of the same process have not arrived in the run, for which this one should wait.

    One that has no place yet would get a number behind this one; the findings of one that is still being delivered
    would be missing from the outcome.
    """
    there = {tag.id: tag for tag in tags_of_recordings(tags)}
    return sum(each not in there or there[each].lives(now) for each in opening.earlier)


def is_attempt_before(tag: RecordingTag, opening: Opening) -> bool:
    """Whether its processes are gone: the launcher ends them before it begins the next attempt."""
    return bool(opening.job) and tag.job == opening.job and tag.restarts < opening.restarts


def await_attempts_before(writer: RunWriter, opening: Opening) -> None:
    """Wait until attempts before are delivered, for their steps come before ours; not for ever, if nobody delivers."""
    until = time.monotonic() + LIVE_SECONDS
    while time.monotonic() < until:
        tags = [tag for tag in tags_of_recordings(writer.tags()) if is_attempt_before(tag, opening)]
        if not any(tag.lives(time.time()) for tag in tags):
            return
        time.sleep(5 * _POLL_SECONDS)


def _lost(writer: RunWriter, opening: Opening, number: int) -> bool:
    """Whether somebody whose name comes first has chosen the same number, once all have chosen."""
    while True:
        others = _others(writer, opening)
        now = time.time()
        if not any(tag.number == CHOOSING and now - tag.time < _CHOOSING_SECONDS for tag in others):
            return any(tag.number == number and (tag.settled or tag.id < opening.recording) for tag in others)
        time.sleep(_POLL_SECONDS)


def _others(writer: RunWriter, opening: Opening) -> list[RecordingTag]:
    return [tag for tag in tags_of_recordings(writer.tags()) if tag.id != opening.recording]


def _say(writer: RunWriter, tag: RecordingTag) -> None:
    writer.set_tags({tag.key: tag.text()})
