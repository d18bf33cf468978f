"""Writes the lines of one session: recording begins, findings, rollbacks, the end.

In: what the session sees, and what the courier has concluded. Out: log lines of the logger `mlflow_stability`.
Guarantees: a silent session writes only that recorded data is lost or not delivered; of several processes that train
together one writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock, Timer
from typing import Any

from mlflow_stability.kinds.reported.autopilot import DataChanged
from mlflow_stability.kinds.reported.nan_origin import NanOrigin
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, MissingZeroGrad
from mlflow_stability.session.output.log_line import write_line
from mlflow_stability.session.output.troubles import Troubles
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing
from mlflow_stability.vocabulary.text import counted

MOST_ENDS = 5
"""So many runs of one process get a line of their own at its end."""


@dataclass(frozen=True, slots=True)
class DeliveredRun:
    """What the courier says of a recording's run."""

    run_id: str = ""
    name: str = ""
    url: str = ""
    """Its page, where a server shows it; without credentials."""
    command: str = ""
    """What starts a server that shows it, where none does."""
    verdict: str = ""
    cause: str = ""
    codes: str = ""
    checkpoint: str = ""
    """``Best checkpoint: step 900 (loss 0.0852).``; empty where there is none."""

    @property
    def called(self) -> str:
        """How a person names it."""
        return self.name or self.run_id

    @property
    def where(self) -> str:
        """Where to look at it."""
        return self.url or f"`mlflow-stability open {self.run_id}`"


def delivered_run(said: Mapping[str, Any]) -> DeliveredRun:
    """What a page of the courier says of a run."""
    return DeliveredRun(*(str(said.get(each) or "") for each in DeliveredRun.__slots__))


HELD_READINGS = 2
"""So many steps later a skipped step is known at the latest: processes that train together agree on it first."""
HELD_SECONDS = 2.0
"""No finding waits longer than this for what is done about it: a rollback may come many steps later."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A finding for which the autopilot may do something that says more."""

    event: Finding
    reading: int
    """How many readings there were before its own."""
    since: float

    @property
    def is_skip(self) -> bool:
        """Whether it says that a step was skipped."""
        return self.event.kind == "step_skipped"

    def answers(self, found: _Held) -> bool:
        """Whether a skipped step is what was done about a finding."""
        return found.reading == self.reading or found.event.step == self.event.step


class TrainingOutput:
    """What one session prints."""

    def __init__(self, silent: bool, rolls_back: bool = False) -> None:
        self.silent = silent
        self.rolls_back = rolls_back
        """Whether a rollback may answer a finding, and not only a skipped step."""
        self._troubles = Troubles()
        self._held: list[_Held] = []
        self._readings = 0
        self._lock = RLock()
        """Findings are held by the thread that trains, and reported late by a timer."""
        self._timer: Timer | None = None
        self._not_cleared: set[int] = set()
        """The steps since which gradients are not cleared, for as long as that is so."""
        self._origin: Finding | None = None
        """Where the last NaN was traced to: who knows that need not look for it by hand."""
        self._changed_at = -2
        """The step of the last change of the data that was said."""
        self._begun: set[str] = set()
        """Runs whose beginning was said."""
        self._unsaid: tuple[str, Callable[[], DeliveredRun]] | None = None
        """A recording whose beginning was not said yet: where it goes, and what is known of its run by now."""
        self._said_early = False
        """Whether its beginning was said before its run was known."""

    def warn(self, message: str, *args: Any, if_silent: bool = False) -> None:
        """Write a line about something that needs attention; ``if_silent``: also in a silent session, because recorded
        data is lost or not delivered, and no run can say so.
        """
        if if_silent or not self.silent:
            write_line(logging.WARNING, message, *args)

    def warn_early(self, message: str) -> None:
        """Write a line about what may be done at the next steps."""
        if not self.silent:
            with self._lock:
                self._begins_before_trouble()
                self.warn("%s", message)

    def info(self, message: str, *args: Any) -> None:
        """Write a line about what was done."""
        if not self.silent:
            write_line(logging.INFO, message, *args)

    def recording_begins(self, where: str, run: Callable[[], DeliveredRun]) -> None:
        """Take note of a recording: `where` it goes, and what tells its run, as soon as it was created."""
        with self._lock:
            self._unsaid, self._said_early = (where, run), False

    def begins(self, run: DeliveredRun) -> bool:
        """Say once which run is recorded and where to look at it; False while that is not known."""
        if not run.run_id or not (run.url or run.command):
            return False
        with self._lock:
            self._unsaid = None
            if run.run_id not in self._begun:
                if self._begun:  # else they are this run's: its page may be known later than its first findings
                    self._troubles = Troubles()
                self._begun.add(run.run_id)
                where = run.url or f"`{run.command}` shows it."
                self.info("The run is %s: %s" if self._said_early else "Recording run %s: %s", run.called, where)
        return True

    def _begins_before_trouble(self) -> None:
        """Say that a recording has begun before anything is said of what was found in it."""
        if self._unsaid is None:
            return
        where, run = self._unsaid
        if not self.begins(run()):
            self._unsaid, self._said_early = None, True
            self.info("Recording %s", where)

    def found(self, event: Finding, may_act: bool = False) -> None:
        """Say a finding, if it is news; `may_act`: only when it is known that nothing is done about it."""
        if self.silent:
            return
        with self._lock:
            if event.kind == MissingZeroGrad.kind:
                self._not_cleared.add(event.step)
            if isinstance(event.facts, ConfigurationFacts) and event.facts.not_cleared_since is not None:
                self._not_cleared.discard(event.facts.not_cleared_since)
            if event.kind == NanOrigin.kind:
                self._origin = event
            if event.kind == DataChanged.kind:
                self._changed_at = event.step
            if event.kind == "rollback":
                said = self._said_of_rollback(event)
                self._forget_held()
                self._troubles.answered(event.step)
                reverted = isinstance(event.facts, RollbackFacts) and event.facts.steps_regained is not None
                if not reverted or event.step > self._changed_at + 1:
                    self._begins_before_trouble()
                    self.warn("%s", said)  # else `data_changed` has said so
            elif event.kind == "give_up":  # it says what was found, too
                self._forget_held()
                self._say(event)
            elif may_act and self._troubles.is_instability(event):
                self._held.append(_Held(event, self._readings, time.monotonic()))
                self._set_timer()
            else:
                self._say(event)

    def step_done(self) -> None:
        """Another step was read: say the findings for which nothing more is done."""
        with self._lock:
            self._readings += 1
            if self._held and not self.rolls_back:
                self._release(lambda held: self._readings - held.reading >= HELD_READINGS)

    def all_done(self) -> None:
        """Say all findings that wait: no step comes soon."""
        with self._lock:
            self._release(lambda _: True)

    def _said_of_rollback(self, event: Finding) -> str:
        """All of it; in short where its reason was said before, because that came so much earlier."""
        before = self._troubles.said_before(event.step)
        known = [] if before is None else [before, *(each.event for each in self._held)]
        facts = event.facts
        if before is None or not isinstance(facts, RollbackFacts):
            return event.message
        answered = (facts.finding, facts.finding_step)
        reason = next((each for each in known if (each.kind, each.step) == answered), None)
        if reason is None:
            return event.message
        signs = [before] if reason.kind == before.kind else [before, reason]
        after = " and the ".join(f"{each.kind} at step {each.step}" for each in signs)
        rate = facts.learning_rate
        now = "" if rate is None else f" Learning rate now {rate:.4g}."
        back = f"Rolled back from step {event.step} to step {facts.target} ({counted(facts.steps_lost, 'step')} lost)"
        return f"{back} after the {after}.{now}"

    def _forget_held(self) -> None:
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, due: Callable[[_Held], bool]) -> None:
        said = [each for each in self._held if due(each)]
        # What was done about a step says more than what was found in it: a skip comes with it, however soon it was due.
        skips = [each for each in self._held if each.is_skip and any(each.answers(other) for other in said)]
        left = [each for each in self._held if each not in said and each not in skips]
        if not left:
            self._forget_held()
        self._held = left
        said = [each for each in said if each.is_skip or not any(skip.answers(each) for skip in skips)]
        said += [each for each in skips if each not in said]
        for each in sorted(said, key=lambda each: each.reading):
            self._say(each.event)

    def _set_timer(self) -> None:
        if self._timer is None and self._held:
            left = self._held[0].since + HELD_SECONDS - time.monotonic()
            self._timer = Timer(max(0.0, left), self._time_is_up)
            self._timer.daemon = True
            self._timer.start()

    def _time_is_up(self) -> None:
        with self._lock:
            self._timer = None
            now = time.monotonic()
            self._release(lambda held: now - held.since >= HELD_SECONDS)
            self._set_timer()

    def cell_ended(self, steps: int, closing: Closing, run: DeliveredRun) -> None:
        """Say that a notebook's cell has ended a recording; how it went is known when everything is delivered."""
        how = "" if closing.outcome == "finished" else f" ({closing.outcome})"
        of_run = f" of run {run.called}" if run.called else ""
        self.info("Recorded %s steps%s%s. Show how it went: mlflow_stability.diagnose()", f"{steps:,}", of_run, how)

    def ended(self, runs: Sequence[DeliveredRun]) -> None:
        """Say how the training went, when everything is delivered."""
        self._begun.update(run.run_id for run in runs)
        for run in runs[-MOST_ENDS:]:
            said = run.verdict or f"No verdict yet: `mlflow-stability diagnose {run.run_id}` gives it."
            self.info(
                "%s", " ".join(filter(None, [said, run.cause, run.codes, run.checkpoint, f"Report: {run.where}"]))
            )
        if len(runs) > MOST_ENDS:
            self.info(
                "%d more runs were recorded before. Compare them all: `mlflow-stability compare --experiment NAME`.",
                len(runs) - MOST_ENDS,
            )

    def _say(self, event: Finding) -> None:
        if not self._troubles.is_news(event):
            return
        origin = self._origin if self._origin is not None and self._troubles.is_traced(event, self._origin) else None
        message = event.message if origin is None else f"{event.message} {origin.message}"
        remedies = event.remedies if origin is None or not origin.remedies else origin.remedies
        if self._is_of_uncleared(event):
            remedies = MissingZeroGrad.remedies
        self._begins_before_trouble()
        self.warn("%s: %s%s", event.kind, message, f" {remedies[0]}" if remedies else "")

    def _is_of_uncleared(self, event: Finding) -> bool:
        """Whether sums of old gradients explain it: smaller steps, or clipping, would only treat the symptom."""
        return bool(self._not_cleared) and self._troubles.is_instability(event)
