"""The tag with which a recording takes its place in a run and shows that it lives.

`stability.recording.<id>` holds a JSON object: which number this recording has in the run, how far it is and when that
was written. It is how two processes that write into the same run keep apart, and how a resumed run knows at which step
to go on. Each recording writes its own tag only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from mlflow_stability.tracking.keys import SECTION

LIVE_SECONDS = 30.0
CHOOSING = -1
_NAME = re.compile(r"stability\.recording\.[\w\-]+")


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

    def lives(self, now: float) -> bool:
        """Whether its process is still at work, as far as one can tell from here."""
        return self.state == "live" and now - self.time < LIVE_SECONDS

    def text(self) -> str:
        """The value of the tag."""
        return json.dumps(asdict(self))


def tag_name(recording: str) -> str:
    """The key of the tag of a recording."""
    return f"stability.recording.{recording}"


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
