"""Carries what a run should know about itself into its parameters.

In: the facts that the training has told, as the story has heard them, and what git says of its code. Out: parameters of
the run; where one is longer than a parameter can be, all of them uncut in `stability/environment.json`. Promised: git
is asked once, and only while its answer is still true; what the store will not take is told once and holds nothing up.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from mlflow_stability.courier.delivered import Delivered
from mlflow_stability.courier.event_stream import EventStream
from mlflow_stability.courier.git_state import git_state
from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.run_params import is_cut
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.milestone import Opening

ASK_WITHIN = 600.0
"""For how many seconds after the beginning of a recording the code on the disk is taken for the one that runs."""
FOLDER = "stability"


class FactsStream:
    """The facts of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter, events: EventStream) -> None:
        self.done = False
        self._delivered = delivered
        self._writer = writer
        self._params = writer.params(delivered.number or 0)
        self._events = events
        self._sent: dict[str, str] = {}

    @property
    def reached(self) -> int:
        """The place in the journal up to which facts were heard: the events' own."""
        return self._events.reached

    def advance(self, over: bool) -> bool:
        """Send what is new, if anything is."""
        facts = {**self._events.story.facts, **(self._delivered.git or {})}
        new = {key: value for key, value in facts.items() if key not in self._sent}
        if new:
            self._params.write(new)
            self._writer.refused.update(self._params.refused)
            if any(map(is_cut, facts.values())):
                self._upload(facts)
            self._sent |= new
        self.done = over and self._events.done
        return False

    def _upload(self, facts: dict[str, str]) -> None:
        number = self._delivered.number or 0
        name = f"environment_{number + 1}.json" if number else "environment.json"
        try:
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, name)
                file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                self._writer.upload(file, FOLDER)
        except OSError as error:
            raise TrackingError(f"Could not write {name}: {error}") from error


def ask_git(delivered: Delivered, opening: Opening) -> None:
    """Ask what the training's code is, unless that was done before; the answer is kept with the recording."""
    if delivered.git is None:
        fresh = time.time() - opening.time < ASK_WITHIN
        delivered.git = git_state(opening.directory) if fresh else {}
        delivered.save()
