"""Writes the lines of one session: recording begins, findings, rollbacks, the end.

In: what the session sees, and what the courier has concluded. Out: log lines of the logger `mlflow_stability`.
Guarantees: a silent session writes nothing at all; of several processes that train together one writes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_stability.session.output.log_line import write_line
from mlflow_stability.session.output.troubles import Troubles
from mlflow_stability.vocabulary.result.event import Event
from mlflow_stability.vocabulary.run.milestone import Closing

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


class TrainingOutput:
    """What one session prints."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self._troubles = Troubles()
        self._held: list[Event] = []
        """Findings of a step for which the autopilot may do something that says more."""
        self._begun: set[str] = set()
        """Runs whose beginning was said."""

    def warn(self, message: str, *args: Any) -> None:
        """Write a line about something that needs attention."""
        if not self.silent:
            write_line(logging.WARNING, message, *args)

    def info(self, message: str, *args: Any) -> None:
        """Write a line about what was done."""
        if not self.silent:
            write_line(logging.INFO, message, *args)

    def begins(self, run: DeliveredRun, over: bool = False) -> bool:
        """Say once which run is recorded and where to look at it; False while that is not known. `over`: it was."""
        if not run.run_id or not (run.url or run.command):
            return False
        if run.run_id not in self._begun:
            self._begun.add(run.run_id)
            self._troubles = Troubles()
            where = run.url or f"`{run.command}` shows it."
            self.info("%s run %s: %s", "Recorded" if over else "Recording", run.called, where)
        return True

    def found(self, event: Event, may_act: bool = False) -> None:
        """Say a finding, if it is news; `may_act`: only when the step is over and nothing was done about it."""
        if event.kind == "rollback":
            self._held.clear()
            self._troubles.answered(event.step)
            self.warn("%s", event.message)
        elif may_act and event.kind not in ("give_up",):
            self._held.append(event)
        else:
            self._say(event)

    def step_done(self) -> None:
        """Nothing more is done about the findings of the steps before this one."""
        held, self._held = self._held, []
        # What was done about a step says more than what was found in it.
        for event in [each for each in held if each.kind == "step_skipped"] or held:
            self._say(event)

    def cell_ended(self, steps: int, closing: Closing, run: DeliveredRun) -> None:
        """Say that a notebook's cell has ended a recording; how it went is known when everything is delivered."""
        how = "" if closing.outcome == "finished" else f" ({closing.outcome})"
        of_run = f" of run {run.called}" if run.called else ""
        self.info("Recorded %s steps%s%s. Show how it went: mlflow_stability.diagnose()", f"{steps:,}", of_run, how)

    def ended(self, runs: Sequence[DeliveredRun]) -> None:
        """Say how the training went, when everything is delivered."""
        self._begun.update(run.run_id for run in runs)
        for run in runs[-MOST_ENDS:]:
            said = run.verdict or "Training has ended."
            self.info("%s", " ".join(filter(None, [said, run.cause, f"Report: {run.where}"])))
        if len(runs) > MOST_ENDS:
            self.info(
                "%d more runs were recorded before. Compare them all: `mlflow-stability compare --experiment NAME`.",
                len(runs) - MOST_ENDS,
            )

    def _say(self, event: Event) -> None:
        if self._troubles.is_news(event):
            advice = f" {event.remedies[0]}" if event.remedies else ""
            self.warn("%s: %s%s", event.kind, event.message, advice)
