"""Find the run of a recording: the run in progress, or a new run, created exactly once.

Guarantees: whichever process is killed at whatever moment, there is one run for the recording; the training can read
its id from `delivered.json` at once.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlflow_stability.courier.processes import TrainingProcess
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.tracking.client import run_page
from mlflow_stability.tracking.recording_claim import RecordingTag, claim_place, earlier_left, place_among
from mlflow_stability.tracking.run_writer import RunWriter, TrackingStore, tracking_store
from mlflow_stability.tracking.tag_names import JOB
from mlflow_stability.vocabulary.run import Opening

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
