"""The run of a recording: found or created exactly once; its place in the run; tags and description show that it lives.

Guarantees: whichever process is killed at whatever moment, there is one run for the recording; the training can read
its id from `delivered.json` at once. The same recording always gets the same number, key prefix and step offset; two
never share one, however many come at once; a process that counts from 1 again writes no step twice; one that records
again into the same run continues its prefix.

Each recording writes a tag of its own, `mlflow.stability.recording.<id>`. A tracking store can only set and read tags,
so numbers are given out by Lamport's bakery algorithm: https://lamport.azurewebsites.net/pubs/bakery.pdf. Of two with
the same number the one whose name comes later chooses again. Tags are sent at most every ten seconds if they changed,
the recording's own each time: its age tells other couriers whether it lives; the description once a minute.
"""

from __future__ import annotations

import getpass
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mlflow_stability.courier.processes import TrainingProcess
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.event_sink import RunSummary, events_in_words
from mlflow_stability.courier.sinks.sink import upload_file
from mlflow_stability.errors import TrackingError
from mlflow_stability.reports.escape import markdown
from mlflow_stability.tracking import tag_names
from mlflow_stability.tracking.artifacts import DATA_FOLDER, README, bookkeeping_name
from mlflow_stability.tracking.client import run_page
from mlflow_stability.tracking.keys import PREFIX, prefix_of
from mlflow_stability.tracking.run_writer import RunWriter, TrackingStore, description_summary, tracking_store
from mlflow_stability.tracking.tag_names import FOR_PROGRAMS, JOB
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing, Opening
from mlflow_stability.vocabulary.text.phrases import times

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
        """Return the key of the tag that marks the run of a recording."""
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


LONGEST_WAIT = 30.0
"""Seconds without progress of earlier recordings of the process: after as long, a recording counts as dead."""
_LOOK_SECONDS = 0.5


def open_run(
    opening: Opening, delivered: Delivered, uri: str, process: TrainingProcess
) -> tuple[RunWriter, RecordingTag]:
    store = tracking_store(uri)
    delivered.recording = opening.recording
    if delivered.run_id is None:
        delivered.run_id = (
            opening.run_id or _run_of_job(store, opening) or _make_run(store, opening, delivered, process)
        )
        delivered.creating = False
        delivered.save()
    writer = store.writer(delivered.run_id)
    place = claim_place(writer, opening)
    delivered.number = place.number
    if (opening.resumed or opening.restarts) and place.state == "live":
        writer.resume()
    delivered.prefix, delivered.offset = place.prefix, place.offset
    writer.set_tags(opening.tags)  # the name of the run may be one of them
    page = run_page(delivered.run_id, uri)
    delivered.run_name, delivered.command = page.name, page.command
    delivered.url = "" if page.command else page.url
    delivered.save()
    return writer, place


class EarlierRecordings:
    """Waits for earlier recordings of the same process in its run, but not for ever."""

    def __init__(self) -> None:
        self._look_at = float("-inf")
        self._left = 0
        self._until = 0.0

    def awaited(self, opening: Opening, uri: str, own: Sequence[str]) -> bool:
        """Whether to wait; `own`: undelivered recordings of this courier, which need no request.

        Waiting continues while their number changes, and then at most `LONGEST_WAIT` seconds.
        """
        if not opening.earlier or opening.run_id is None:
            return False
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + _LOOK_SECONDS
        left = len(set(own) & set(opening.earlier))
        if not left:
            tags = tracking_store(uri).writer(opening.run_id).tags()
            left = earlier_left(tags, opening, time.time())
        if left != self._left:
            self._left, self._until = left, now + LONGEST_WAIT
        return left > 0 and now < self._until


def _run_of_job(store: TrackingStore, opening: Opening) -> str | None:
    """Return the run of earlier attempts, where a launcher has restarted the job."""
    if not opening.job or not opening.restarts:
        return None
    return store.find_run(store.experiment(opening.experiment_id), JOB, opening.job)


def _make_run(store: TrackingStore, opening: Opening, delivered: Delivered, process: TrainingProcess) -> str:
    experiment_id = store.experiment(opening.experiment_id)
    place = replace(place_among([], 0, opening, opening.time), settled=True)
    if delivered.creating:  # asked before, and the answer was lost
        run_id = store.find_run(experiment_id, place.key, opening.recording)
        if run_id:
            return run_id
    delivered.creating = True
    delivered.save()
    tags = {**_first_tags(opening, process), place.key: place.text()}
    return store.create_run(experiment_id, tags, opening.time)


def _first_tags(opening: Opening, process: TrainingProcess) -> dict[str, str]:
    """Return the tags that MLflow itself sets on a run that it starts."""
    tags = {"mlflow.autologging": "stability", "mlflow.source.type": "LOCAL", **opening.tags}
    try:
        tags["mlflow.user"] = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for this user
        tags["mlflow.user"] = "unknown"
    script = next((word for word in process.command()[1:] if word.endswith(".py")), None)
    if script is not None:
        tags["mlflow.source.name"] = str(Path(opening.directory, script))
    if opening.job:
        tags[JOB] = opening.job
    return tags


SHOWN = {"loss": "loss", "grad_norm": "gradient norm", "learning_rate": "learning rate"}
"""Quantities in the description, and their names."""
FOUND = frozenset({Severity.CRITICAL.name, Severity.WARNING.name})


def live_description(story: RunSummary, findings: Counter[str]) -> str:
    how = events_in_words(findings) if any(findings[severity] for severity in FOUND) else "healthy"
    back = f", rolled back {times(story.rollbacks)}" if story.rollbacks else ""
    event = story.stalled or story.worst_event
    paragraphs = [] if event is None else [f"**Finding:** {markdown(story.told(event))}"]
    paragraphs += (
        [f"**What to do:** {markdown(str(event.remedies[0]))}"] if event is not None and event.remedies else []
    )
    return description_summary(f"running, step {story.last_step:,}{back}, {how}", [*paragraphs, figures(story)])


def figures(story: RunSummary) -> str:
    """The newest values: ``loss 0.53 · gradient norm 1.2 · 1 rollback``."""
    values = {words: story.value(quantity) for quantity, words in SHOWN.items()}
    parts = [f"{words} {value:.4g}" for words, value in values.items() if value is not None]
    seconds = story.value("step_time")
    parts += [f"{1 / seconds:.3g} steps/s"] if seconds else []
    parts += [f"rollbacks {story.rollbacks}"] if story.rollbacks else []
    parts += [f"skipped steps {story.skipped_steps}"] if story.skipped_steps else []
    return " · ".join(parts)


_INTERVAL = 10.0
_DESCRIBED_EVERY = 60.0


class RunTags:
    def __init__(self, writer: RunWriter, number: int, place: RecordingTag, facts: Mapping[str, Any]) -> None:
        """`facts`: constant facts for the run's artifacts."""
        self._writer = writer
        self._number = number
        self._place = place
        self._facts = dict(facts)
        self._known: dict[str, str] = {}
        self._kept: dict[str, Any] = {}
        self._described = ""
        self._sent_at = 0.0
        self._described_at = float("-inf")
        self._concluded: dict[str, str] = {}  # tags of the outcome, once known
        self._others = {n: tag for n, tag in recordings_in(writer.tags()).items() if n != number}

    def due(self) -> bool:
        return time.monotonic() - self._sent_at >= _INTERVAL

    def show(self, story: RunSummary, last_words: Mapping[str, Any]) -> None:
        self._send({tag_names.VERDICT: tag_names.RUNNING, **self._tags(story, "live")})
        now = time.monotonic()
        if story.last_step and now - self._described_at >= _DESCRIBED_EVERY:
            self._described_at = now
            self._keep(self._bookkeeping(story, last_words))
            self.describe(live_description(story, self._findings(story)))

    def close(self, story: RunSummary, last_words: Mapping[str, Any], closing: Closing) -> None:
        self._keep({**self._bookkeeping(story, last_words), "ended": closing.outcome, "ended_detail": closing.detail})
        self._send({**self._tags(story, "ended"), tag_names.ENDED: closing.outcome, **self._concluded})

    def conclude(self, tags: Mapping[str, str], description: str) -> None:
        self._concluded = dict(tags)
        self._send(self._concluded)
        self.describe(description)

    def describe(self, description: str) -> None:
        if description != self._described:
            self._writer.describe(description)
            self._described = description

    def others_live(self) -> bool:
        """Whether another recording is being written into the same run."""
        now = time.time()
        return any(tag.lives(now) for n, tag in recordings_in(self._writer.tags()).items() if n != self._number)

    def _findings(self, story: RunSummary) -> Counter[str]:
        return story.findings(tag.events for tag in self._others.values())

    def _tags(self, story: RunSummary, state: str) -> dict[str, str]:
        others = self._others.values()
        self._place = replace(
            self._place,
            state=state,
            first_step=story.first_step or self._place.first_step,
            last_step=story.last_step,
            time=time.time(),
            events=dict(story.events),
            rollbacks=story.rollbacks,
            skipped=story.skipped_steps,
        )
        return {
            tag_names.FINDINGS: events_in_words(self._findings(story)),
            tag_names.ROLLBACKS: str(story.rollbacks + sum(tag.rollbacks for tag in others)),
            tag_names.SKIPPED_STEPS: str(story.skipped_steps + sum(tag.skipped for tag in others)),
            tag_names.LAST_STEP: str(max([story.last_step, *(tag.last_step for tag in others)])),
            self._place.key: self._place.text(),
        }

    def _bookkeeping(self, story: RunSummary, last_words: Mapping[str, Any]) -> dict[str, Any]:
        missing = [story.missing] if story.missing else []
        if last_words.get("stopped_at") is not None:
            step, reason = last_words["stopped_at"] + self._place.offset, last_words.get("reason", "")
            missing.append(f"recording stopped at step {step} ({reason}); training continued")
        return {
            **self._facts,
            "recording": self._place.id,
            "recordings": max([self._number, *self._others]) + 1,
            "section": self._place.prefix,
            "steps_added": self._place.offset,
            "notes": story.notes,
            "missing": "; ".join(missing),
            "refused": dict(self._writer.refused),
            "last_finding": story.last_event,
        }

    def _keep(self, content: dict[str, Any]) -> None:
        if content == self._kept:
            return
        files = {} if self._kept else {"README.md": README}
        files[bookkeeping_name(self._number)] = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        for name, text in files.items():
            upload_file(self._writer, DATA_FOLDER, name, text)
        self._kept = content

    def _send(self, tags: dict[str, str]) -> None:
        changed = {key: value for key, value in tags.items() if self._known.get(key) != value}
        self._writer.set_tags(changed)
        self._known.update(changed)
        self._sent_at = time.monotonic()
