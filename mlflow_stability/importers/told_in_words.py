"""What a log tells beside its numbers: that steps were skipped, and how it ended.

In: the lines that hold no values, with the last step before them. Out: `Event`s, an outcome, notes. Promised: only what
comes after the last values says how it ended; an overflow while a loss scale is being searched is told as what it is.
"""

from __future__ import annotations

import re

from mlflow_stability.importers.gathered import Gathered
from mlflow_stability.importers.harmless import shown_text
from mlflow_stability.vocabulary.event import Event, Severity

MOST_EVENTS = 1000
"""How many skipped steps are kept one by one."""
SEARCH = 20
"""A loss scale is being searched while this few steps at most have gone by."""
_SKIPPED = re.compile(
    r"gradient overflow detected|OVERFLOW!.{0,80}loss scale|Gradient overflow\. +Skipping step|nonfinite_guard|"
    r"skipp(?:ed|ing) (?:this )?(?:step|update|batch|iteration)|non-?finite (?:grad|loss)|"
    r"(?:grad\w*|loss) (?:is|was|are|contains?) (?:nan|inf|non-?finite)",
    re.IGNORECASE,
)
_SCALE = re.compile(
    r"(?:reducing to|loss scale to:?|loss scale:(?!.*reducing to))\s*(?P<scale>\d[\d.e+]*)", re.IGNORECASE
)
_ENDINGS = (
    (
        "out_of_memory",
        re.compile(r"CUDA out of memory|OutOfMemoryError|CUDNN_STATUS_ALLOC_FAILED|oom-kill|MemoryError\b"),
    ),
    ("interrupted", re.compile(r"KeyboardInterrupt|Received SIGINT|Signal 2 \(SIGINT\)")),
    (
        "killed",
        re.compile(
            r"Signal 9|SIGKILL|exitcode\s*:\s*-9\b|^Killed\b|Signal 15|SIGTERM|DUE TO TIME LIMIT|CANCELLED AT"
            r"|DUE TO PREEMPTION"
        ),
    ),
    (
        "crashed",
        re.compile(
            r"Segmentation fault|core dumped|ChildFailedError|^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b(?::|$)"
        ),
    ),
    (
        "finished",
        re.compile(r"done training|[Tt]raining (?:is |was )?(?:complete|finished|done)|max_steps.{0,12}reached"),
    ),
)
_STRONGER = {"out_of_memory": 4, "killed": 3, "interrupted": 3, "crashed": 2, "finished": 1}
_HINT = re.compile(
    r"overflow|skip|non-?finite|nan|inf|error|exception|memory|kill|signal|exit|interrupt|fault|core|done|omplete|inished"
    r"|SIG|TIME|CANCEL|PREEMPT|reached",
    re.IGNORECASE,
)
"""A line without any of these says nothing that matters here."""


class Told:
    """Listens to the words of one log."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._skipped = 0
        self._last_step = self._last_skip = 0
        self._ending = ""
        self._detail = ""

    def value_came(self, step: int) -> None:
        """Training goes on, so nothing before was its end."""
        self._ending = self._detail = ""
        self._last_step = step

    def hear(self, line: str) -> None:
        """Take note of a line without values."""
        if not _HINT.search(line):
            return
        if _SKIPPED.search(line):
            self._skip(line)
        for outcome, words in _ENDINGS:
            if words.search(line) and _STRONGER[outcome] > _STRONGER.get(self._ending, 0):
                self._ending, self._detail = outcome, shown_text(line.strip())
                break

    def _skip(self, line: str) -> None:
        self._skipped += 1
        self._last_skip = self._last_step
        if len(self._events) < MOST_EVENTS:
            scale = _SCALE.search(line)
            evidence = {"loss_scale": float(scale["scale"].rstrip("."))} if scale else {}
            message = f"The log says after step {self._last_step}: {shown_text(line.strip())}"
            self._events.append(Event(self._last_step, "step_skipped", Severity.INFO, message, evidence=evidence))

    def give(self, gathered: Gathered) -> None:
        """Hand over what was heard."""
        gathered.reported.extend(self._events)
        gathered.outcome, gathered.outcome_detail = self._ending, "" if self._ending == "finished" else self._detail
        if not self._skipped:
            return
        times = "once" if self._skipped == 1 else f"{self._skipped:,} times"
        first = self._events[0].step
        where = (
            f"after step {first:,}" if first == self._last_skip else f"between steps {first:,} and {self._last_skip:,}"
        )
        note = f"The log says {times} that a step was skipped, {where}."
        if self._last_skip <= SEARCH and all(each.evidence for each in self._events):
            note += " At the beginning that is how a loss scale is found, and normal."
        gathered.notes.append(note)
