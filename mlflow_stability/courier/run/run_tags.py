"""Keeps the run's tags up to date, and by them shows that the recording lives.

In: the story of the recording. Out: tags, those that changed, at most every ten seconds; the recording's own tag each
time, for its age tells others whether anybody still writes here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from mlflow_stability.courier.streams.run_summary import Story
from mlflow_stability.tracking.write.recording_claim import RecordingTag, recordings_in, tag_name
from mlflow_stability.tracking.write.run_writer import RunWriter
from mlflow_stability.vocabulary.run.milestone import Closing

_INTERVAL = 10.0


class RunTags:
    """The tags of one recording's run."""

    def __init__(self, writer: RunWriter, number: int, place: RecordingTag) -> None:
        self._writer = writer
        self._number = number
        self._place = place
        self._known: dict[str, str] = {}
        self._sent_at = 0.0
        self._others = {n: tag for n, tag in recordings_in(writer.tags()).items() if n != number}

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() - self._sent_at >= _INTERVAL

    def show(self, story: Story, every: int, asked: int, last_words: dict[str, Any]) -> None:
        """Bring the tags up to date; `every` and `asked`: how many steps are between points, and should be."""
        self._send(self._tags(story, every, asked, last_words, "live"))

    def close(self, story: Story, every: int, asked: int, last_words: dict[str, Any], closing: Closing) -> None:
        """Say how it ended."""
        tags = self._tags(story, every, asked, last_words, "ended")
        tags["stability.outcome"] = closing.outcome
        if closing.detail:
            tags["stability.outcome_detail"] = closing.detail
        self._send(tags)

    def others_live(self) -> bool:
        """Whether another recording is being written into the same run."""
        now = time.time()
        return any(tag.lives(now) for n, tag in recordings_in(self._writer.tags()).items() if n != self._number)

    def _tags(self, story: Story, every: int, asked: int, last_words: dict[str, Any], state: str) -> dict[str, str]:
        others = self._others.values()
        tags = story.tags(tag.events for tag in others)
        tags["stability.recordings"] = str(max([self._number, *self._others]) + 1)
        tags["stability.last_step"] = str(max([story.last_step, *(tag.last_step for tag in others)]))
        if every != asked:
            tags["stability.metrics_every"] = str(every)
        if last_words.get("stopped_at") is not None:
            step, reason = last_words["stopped_at"] + self._place.offset, last_words.get("reason", "")
            earlier = f"{tags['stability.recording_gap']}; " if "stability.recording_gap" in tags else ""
            tags["stability.recording_gap"] = (
                f"{earlier}recording stopped at step {step} ({reason}); training continued"
            )
        if self._writer.refused:
            tags["stability.refused"] = ", ".join(sorted(self._writer.refused))
        self._place = replace(
            self._place,
            state=state,
            first_step=story.first_step or self._place.first_step,
            last_step=story.last_step,
            time=time.time(),
            events=dict(story.events),
        )
        tags[tag_name(self._place.id)] = self._place.text()
        return tags

    def _send(self, tags: dict[str, str]) -> None:
        changed = {key: value for key, value in tags.items() if self._known.get(key) != value}
        self._writer.set_tags(changed)
        self._known.update(changed)
        self._sent_at = time.monotonic()
