"""The message of an alert: one event, or a burst of one type, with remedies and the run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from mlflow_stability.kinds.catalog import noun_of
from mlflow_stability.vocabulary.measured.signal import parse_condition
from mlflow_stability.vocabulary.result import Severity

_MAX_REMEDIES = 2
_MAX_CHARACTERS = 1500  # length of a text that every chat service accepts in one message
TEST = "test"  # the event type of `TEST_MESSAGE`
_LATE_SECONDS = 600.0  # minimum age of an event whose message has the time


@dataclass(frozen=True, slots=True)
class RunLink:
    run_id: str  # empty while the tracking server does not answer
    name: str = ""  # of the run; or where it trains, while there is no run
    url: str = ""  # its page on the tracking server; empty where the store is a file, or the server did not answer

    def text(self) -> str:
        """The run in a line or two."""
        if not self.run_id:
            return f"Run: {self.name}"
        named = f"Run: {self.name} ({self.run_id})" if self.name else f"Run: {self.run_id}"
        return f"{named}\n{self.url or f'mlflow-stability diagnose {self.run_id}'}"


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """An alert as a channel sends it, and as a Python callable gets it.

    Example:

        >>> AlertMessage("loss_spike", Severity.WARNING, 14, 400, 600, "Loss 7.47 at step 412.").title
        'WARNING: 14 loss spikes in 200 steps (400 to 600)'
    """

    kind: str
    """The event type, such as "loss_spike", or the text of a condition."""
    severity: Severity
    """The highest severity among its events."""
    count: int
    """Number of events that it stands for."""
    first_step: int
    """The step of the first of them."""
    last_step: int
    """The step of the last of them."""
    message: str
    """What happened, with numbers: the most severe event."""
    remedies: tuple[str, ...] = ()
    """What to try, most likely first."""
    time: float = 0.0
    """When the last of its events happened, in seconds since the epoch."""
    evidence: dict[str, float] | None = None
    """The numbers behind `message`."""
    run: RunLink | None = None
    """None while the run is not known."""

    @property
    def title(self) -> str:
        return f"{self.severity.name}: {self.what}"

    @property
    def what(self) -> str:
        """``divergence at step 412`` or ``14 loss spikes in 200 steps (400 to 600)``."""
        if self.kind == TEST:
            return "test message"
        noun = noun_of(self.kind, self.count)
        if parse_condition(self.kind) is not None:
            noun = f"{self.kind} ({self.count:,} times)" if self.count > 1 else self.kind
        for article in ("a ", "an "):
            noun = noun.removeprefix(article)
        steps = self.last_step - self.first_step
        if not steps:
            return f"{noun} at step {self.last_step}"
        return f"{noun} in {steps:,} step{'s' if steps > 1 else ''} ({self.first_step} to {self.last_step})"

    def text(self, now: float | None = None) -> str:
        """All of it, in plain text; `now` adds when it happened where that is long ago."""
        lines = [self.message if self.count == 1 else f"Most severe: {self.message}"]
        if now is not None and now - self.time > _LATE_SECONDS:
            lines.append(f"Happened at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.time))} UTC.")
        if self.remedies:
            lines += ["", "What to do:", *(f"- {remedy}" for remedy in self.remedies[:_MAX_REMEDIES])]
        body = "\n".join(lines)
        tail = "" if self.run is None else f"\n\n{self.run.text()}"
        room = _MAX_CHARACTERS - len(tail)
        return (body if len(body) <= room else f"{body[: room - 1]}…") + tail

    @property
    def key(self) -> str:
        """The same for the same alert, however often and by whichever process it is sent."""
        values = {**self.plain(), "run": self.run.run_id if self.run is not None else ""}
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]

    def plain(self) -> dict[str, Any]:
        """The message as plain JSON, which has no words for numbers that are not finite."""
        evidence = {name: repr(value) for name, value in (self.evidence or {}).items()}
        return {**asdict(self), "evidence": evidence}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> AlertMessage:
        """The message that `plain` wrote."""
        return cls(
            **{
                **values,
                "severity": Severity(values["severity"]),
                "remedies": tuple(values["remedies"]),
                "evidence": {name: float(value) for name, value in values["evidence"].items()},
                "run": RunLink(**values["run"]) if values.get("run") else None,
            }
        )


TEST_MESSAGE = AlertMessage(
    TEST, Severity.INFO, 1, 0, 0, "Test message of `mlflow-stability doctor --alerts`: alerts reach this channel."
)
