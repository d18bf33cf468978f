"""The tag with which a recording takes its place in a run and shows that it lives.

`stability.recording.<n>` holds a JSON object: whose recording this is, how far it is and when that was written. It is
how two processes that write into the same run keep apart, and how a resumed run knows at which step to go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from mlflow_stability.tracking.keys import SECTION

LIVE_SECONDS = 30.0
_NAME = re.compile(r"stability\.recording\.(\d+)")


@dataclass(frozen=True, slots=True)
class RecordingTag:
    """What a run knows of one recording in it."""

    id: str
    host: str = ""
    pid: int = 0
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


def tag_name(number: int) -> str:
    """The key of the tag of the n-th recording."""
    return f"stability.recording.{number}"


def recordings_in(tags: Mapping[str, str]) -> dict[int, RecordingTag]:
    """The recordings of a run, by number; a tag that somebody else has written over is passed over."""
    known = {each.name for each in fields(RecordingTag)}
    found = {}
    for key, value in tags.items():
        name = _NAME.fullmatch(key)
        if name is None:
            continue
        try:
            said = json.loads(value)
            found[int(name[1])] = RecordingTag(**{key: said[key] for key in said if key in known})
        except (ValueError, TypeError):
            continue
    return dict(sorted(found.items()))
