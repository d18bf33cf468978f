"""Print the lines of one session: recording begins, findings, rollbacks, the end.

Guarantees: a silent session writes only that recorded data is lost or not delivered; of several ranks one writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock, Timer
from typing import Any

from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.kinds.catalog import of_instability
from mlflow_stability.kinds.reported.autopilot import DataChanged
from mlflow_stability.kinds.reported.broken_steps import NanOrigin
from mlflow_stability.kinds.reported.rollback import RollbackFacts, is_revert
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, MissingZeroGrad
from mlflow_stability.session.terminal_lines import write_line
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing
from mlflow_stability.vocabulary.text.phrases import counted

MOST_ENDS = 5  # runs of one process that get a line of their own at its end


@dataclass(frozen=True, slots=True)
class DeliveredRun:
    """What the courier says of a recording's run."""

    run_id: str = ""
    name: str = ""
    url: str = ""  # its page on a server, without credentials
    command: str = ""  # command that starts a server, if the store has no server
    verdict: str = ""
    cause: str = ""
    codes: str = ""
    checkpoint: str = ""  # ``Best checkpoint: step 900 (loss 0.0852).``, or empty

    @property
    def called(self) -> str:
        return self.name or self.run_id

    @property
    def where(self) -> str:
        return self.url or f"`mlflow-stability open {self.run_id}`"


def delivered_run(page: Mapping[str, Any]) -> DeliveredRun:
    """Parse what the courier says of a run."""
    return DeliveredRun(*(str(page.get(name) or "") for name in DeliveredRun.__slots__))


HELD_READINGS = 2  # steps until a skipped step is known at the latest: ranks agree on it first
HELD_SECONDS = 2.0
"""Longest time that a finding waits for the rollback that answers it, which may come many steps later."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A finding that the autopilot may answer."""

    event: Finding
    reading: int  # number of readings before its own
    since: float

    @property
    def is_skip(self) -> bool:
        return self.event.kind == "step_skipped"

    def answers(self, finding: _Held) -> bool:
        return finding.reading == self.reading or finding.event.step == self.event.step


class TrainingOutput:
    def __init__(self, silent: bool, rolls_back: bool = False) -> None:
        self.silent = silent
        self.rolls_back = rolls_back  # a rollback may answer a finding, not only a skipped step
        self.held: list[_Held] = []  # findings that wait for what the autopilot does
        self.readings = 0  # steps read so far
        self._lock = RLock()  # findings are held by the training thread, and reported late by a timer
        self._timer: Timer | None = None
        self._forget_findings()
        self._begun: set[str] = set()  # runs whose beginning was reported
        self._not_begun: tuple[str, Callable[[], DeliveredRun]] | None = None
        """A recording whose beginning was not reported: where it goes, and its run."""
        self._begun_early = False  # it was reported before its run was known

    def warn(self, message: str, *args: Any, if_silent: bool = False) -> None:
        """Write a warning; ``if_silent``: also in a silent session, because recorded data is lost or not delivered."""
        if if_silent or not self.silent:
            write_line(logging.WARNING, message, *args)

    def warn_early(self, message: str) -> None:
        """Write a warning about what may happen at the next steps."""
        if not self.silent:
            with self._lock:
                self._begins_before_trouble()
                self.warn("%s", message)

    def info(self, message: str, *args: Any) -> None:
        if not self.silent:
            write_line(logging.INFO, message, *args)

    def recording_begins(self, where: str, run: Callable[[], DeliveredRun]) -> None:
        """Note a recording: `where` it goes, and a function that returns its run once that is created."""
        with self._lock:
            self._release(lambda _: True)  # they are of the recording before
            self._forget_findings()
            self._not_begun, self._begun_early = (where, run), False

    def _forget_findings(self) -> None:
        """Begin with no memory of findings: those of one training are no advice for the next one."""
        self._troubles = Troubles()
        self._not_cleared: set[int] = set()  # steps since which gradients are not cleared, while that lasts
        self._origin: Finding | None = None  # where the last NaN was traced to
        self._changed_at = -2  # step of the last reported change of the data

    def begins(self, run: DeliveredRun) -> bool:
        """Report once which run is recorded and where to see it; False while that is not known."""
        if not run.run_id or not (run.url or run.command):
            return False
        with self._lock:
            self._not_begun = None
            if run.run_id not in self._begun:
                self._begun.add(run.run_id)
                where = run.url or f"`{run.command}` shows it."
                self.info("The run is %s: %s" if self._begun_early else "Recording run %s: %s", run.called, where)
        return True

    def _begins_before_trouble(self) -> None:
        """Report the beginning of a recording before its first finding."""
        if self._not_begun is None:
            return
        where, run = self._not_begun
        if not self.begins(run()):
            self._not_begun, self._begun_early = None, True
            self.info("Recording %s", where)

    def found(self, event: Finding, may_act: bool = False) -> None:
        """Report a finding, if it is news; `may_act`: only once it is known that nothing is done about it."""
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
                message = self._rollback_message(event)
                self._forget_held()
                self._troubles.answered(event.step)
                if not is_revert(event) or event.step > self._changed_at + 1:
                    self._begins_before_trouble()
                    self.warn("%s", message)  # else `data_changed` reported it
            elif event.kind == "give_up":  # its message names the finding, too
                self._forget_held()
                self._say(event)
            elif may_act and self._troubles.is_instability(event):
                self.held.append(_Held(event, self.readings, time.monotonic()))
                self._set_timer()
            else:
                self._say(event)

    def step_done(self) -> None:
        """Report the held findings for which nothing more is done after this number of `readings`."""
        if not self.rolls_back:
            with self._lock:
                self._release(lambda held: self.readings - held.reading >= HELD_READINGS)

    def all_done(self) -> None:
        """Report all findings that wait."""
        with self._lock:
            self._release(lambda _: True)

    def _rollback_message(self, event: Finding) -> str:
        """Return the message of a rollback; short where its reason was reported before."""
        before = self._troubles.said_before(event.step)
        reported = [] if before is None else [before, *(held.event for held in self.held)]
        facts = event.facts
        if before is None or not isinstance(facts, RollbackFacts) or facts.reverts:
            return event.message
        answered = (facts.finding, facts.finding_step)
        reason = next((finding for finding in reported if (finding.kind, finding.step) == answered), None)
        if reason is None:
            return event.message
        signs = [before] if reason.kind == before.kind else [before, reason]
        after = " and the ".join(f"{finding.kind} at step {finding.step}" for finding in signs)
        rate = facts.learning_rate
        now = "" if rate is None else f" Learning rate now {rate:.4g}."
        back = f"Rolled back from step {event.step} to step {facts.target} ({counted(facts.steps_lost, 'step')} lost)"
        return f"{back} after the {after}.{now}"

    def _forget_held(self) -> None:
        self.held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, due: Callable[[_Held], bool]) -> None:
        due_now = [held for held in self.held if due(held)]
        # What was done about a step says more than what was found in it: a skip comes with it, however soon it was due.
        skips = [held for held in self.held if held.is_skip and any(held.answers(other) for other in due_now)]
        left = [held for held in self.held if held not in due_now and held not in skips]
        if not left:
            self._forget_held()
        self.held = left
        due_now = [held for held in due_now if held.is_skip or not any(skip.answers(held) for skip in skips)]
        due_now += [held for held in skips if held not in due_now]
        for held in sorted(due_now, key=lambda held: held.reading):
            self._say(held.event)

    def _set_timer(self) -> None:
        if self._timer is None and self.held:
            left = self.held[0].since + HELD_SECONDS - time.monotonic()
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
        """Report that a notebook's cell has ended a recording."""
        how = "" if closing.outcome == "finished" else f" ({closing.outcome})"
        of_run = f" of run {run.called}" if run.called else ""
        self.info("Recorded %s steps%s%s. Show how it went: mlflow_stability.diagnose()", f"{steps:,}", of_run, how)

    def ended(self, runs: Sequence[DeliveredRun]) -> None:
        """Report the outcome of the training, when everything is delivered."""
        self._begun.update(run.run_id for run in runs)
        for run in runs[-MOST_ENDS:]:
            verdict = run.verdict or f"No verdict yet: `mlflow-stability diagnose {run.run_id}` gives it."
            message = " ".join(filter(None, [verdict, run.cause, run.codes, run.checkpoint, f"Report: {run.where}"]))
            self.info("%s", f"Run {run.called}: {message}" if len(runs) > 1 else message)
        if len(runs) > MOST_ENDS:
            self.info(
                "%s recorded before. Compare them all: `mlflow-stability compare --experiment NAME`.",
                "1 more run was" if len(runs) == MOST_ENDS + 1 else f"{len(runs) - MOST_ENDS} more runs were",
            )

    def _say(self, event: Finding) -> None:
        if not self._troubles.is_news(event):
            return
        origin = self._origin if self._origin is not None and self._troubles.is_traced(event, self._origin) else None
        message = event.message if origin is None else f"{event.message} {origin.message}"
        remedies = event.remedies if origin is None or not origin.remedies else origin.remedies
        if self._not_cleared and self._troubles.is_instability(event):  # other remedies would only treat the symptom
            remedies = MissingZeroGrad.remedies
        self._begins_before_trouble()
        self.warn("%s: %s%s", event.kind, message, f" {remedies[0]}" if remedies else "")


GAP_STEPS = 100  # steps between two measurements by layer, which see the same trouble later
ALWAYS_REPORTED = 4
"""Times a kind of finding is reported when it starts again; later each time that its number has doubled."""
ACTIONS = frozenset({"rollback", "data_changed", "give_up", "checkpoint_failed", "checkpoint_not_finite"})
"""Findings that say what was done."""
_SAME_TROUBLE = of_instability(Instability.SIGN, Instability.HARMFUL)
"""Kinds of findings that come together: one leads to the others."""
_NON_FINITE = frozenset({"activation_nonfinite", "inf_detected", "nan_detected"})
_JUMPS = frozenset({"gradient_explosion", "layer_explosion", "loss_spike", "update_ratio_high", "weight_spike"})
"""One jump is seen in several signals."""


@dataclass(slots=True)
class _Trouble:
    last: int  # step of its last finding
    rank: int  # severity of the worst one reported
    types: set[str]  # kinds that were reported
    reported: Finding | None = None  # the last finding reported; None after a rollback


class Troubles:
    """Decide which findings are reported while a training runs: each trouble once.

    A trouble is a series of findings less than `GAP_STEPS` apart: the learning rate jumps, the gradient explodes, the
    loss spikes, the training diverges. Its first finding is reported, and later ones that are worse.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Trouble] = {}
        self._begun: dict[str, int] = {}

    def is_news(self, event: Finding) -> bool:
        if event.severity < Severity.WARNING:
            return False
        if event.kind in ACTIONS:
            return True
        family = "" if event.kind in _SAME_TROUBLE else f"{event.kind}@{event.place}"
        rank = _rank(event)
        trouble = self._open.get(family)
        if trouble is None or abs(event.step - trouble.last) > GAP_STEPS:
            times = self._begun[event.kind] = self._begun.get(event.kind, 0) + 1
            is_said = times <= ALWAYS_REPORTED or times & (times - 1) == 0
            self._open[family] = _Trouble(event.step, rank, {event.kind}, event if is_said else None)
            return is_said
        trouble.last = max(trouble.last, event.step)
        if rank <= trouble.rank or event.kind in trouble.types:
            return False
        trouble.rank = rank
        trouble.types.add(event.kind)
        trouble.reported = event
        return True

    def said_before(self, step: int) -> Finding | None:
        """Return what was reported of the instability at this step, if anything."""
        trouble = self._open.get("")
        return trouble.reported if trouble is not None and abs(step - trouble.last) <= GAP_STEPS else None

    def answered(self, step: int) -> None:
        """Note a rollback: findings in the next steps belong to the same trouble."""
        self._open[""] = _Trouble(step, 2, {"divergence"})

    @staticmethod
    def is_instability(event: Finding) -> bool:
        """Whether skipping a step or a rollback may answer it."""
        return event.kind in _SAME_TROUBLE

    @staticmethod
    def is_traced(event: Finding, origin: Finding) -> bool:
        """Whether a finding is the NaN whose origin was found, or its consequence."""
        late = event.step - origin.step
        return late == 0 if event.kind == "step_skipped" else event.kind in _NON_FINITE and 0 <= late <= GAP_STEPS


def _rank(event: Finding) -> int:
    if event.kind in _NON_FINITE:
        return 3
    return 2 if event.severity >= Severity.CRITICAL and event.kind not in _JUMPS else 1
