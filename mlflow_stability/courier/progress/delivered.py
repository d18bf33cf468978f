"""What of a recording has arrived: `delivered.json`, from which a new courier goes on.

It also tells the training which run its numbers go to (`run_id`), and when all of them are there (`complete`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_stability.courier.progress.json_file import read_page, write_page
from mlflow_stability.journal.layout import DELIVERED
from mlflow_stability.tracking.keys import SECTION


@dataclass(slots=True)
class Delivered:
    """The state of one recording's delivery; every field is plain JSON."""

    folder: Path
    recording: str = ""
    run_id: str | None = None
    run_name: str = ""
    url: str = ""
    """The page of the run, where a server shows it; without credentials."""
    command: str = ""
    """What starts a server that shows it, where there is none."""
    verdict: str = ""
    """The outcome of the training in a sentence; empty until it is known."""
    cause: str = ""
    """Why, in a sentence."""
    codes: str = ""
    """The diversity of sparse codes at the end, in a sentence."""
    creating: bool = False
    """Asked for a run and have not heard of it yet."""
    number: int | None = None
    """Which recording of its run this is."""
    section: str = SECTION
    offset: int = 0
    """What is added to its steps."""
    metrics_until: int = 0
    """The position in the journal up to which metrics have arrived."""
    thinning: dict[str, Any] = field(default_factory=dict)
    """The thinner's state at that position."""
    parts_until: int = 0
    """The position up to which the Parquet record has arrived."""
    events_files: int = 0
    """How many files of events are full and have arrived."""
    git: dict[str, str] | None = None
    """What git said of the training's code; None before it was asked."""
    complete: bool = False
    """Everything that was recorded has arrived."""
    filled_until: int = 0
    """The position up to which the points that a slow store was spared have arrived as well."""

    @classmethod
    def read(cls, folder: Path) -> Delivered:
        """Go on from what was delivered before, if anything was."""
        known = {each.name for each in fields(cls)} - {"folder"}
        return cls(folder, **{name: value for name, value in read_page(folder / DELIVERED).items() if name in known})

    def run(self) -> dict[str, str]:
        """What the training may tell of the run."""
        return {
            "run_id": self.run_id or "",
            "name": self.run_name,
            "url": self.url,
            "command": self.command,
            "verdict": self.verdict,
            "cause": self.cause,
            "codes": self.codes,
        }

    def save(self) -> None:
        """Keep it; where the disk is full, a new courier would only send something twice."""
        said = asdict(self)
        del said["folder"]
        write_page(self.folder / DELIVERED, said)
