"""Read the messages of a log: skipped steps, findings, and its end.

Only a message after the last values is the end of a training; before them it is an event at its line. Overflows while
a loss scale is calibrated are recognised as such.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from mlflow_stability.importers.log_content import LogContent, LogEvent
from mlflow_stability.importers.log_text import printable
from mlflow_stability.kinds.reported.endings import LogLineFacts, LogSays
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.foreign_names import MAY_NAME_FINDING, kinds_in_line, unique_share_in

MAX_EVENTS = 1000  # events that are kept, the last ones of a log
MAX_FORMS = 1000  # kinds of lines without a step that are remembered
CALIBRATION_STEPS = 20  # a loss scale is calibrated within the first steps
_SKIPPED = re.compile(
    r"gradient overflow detected|OVERFLOW!.{0,80}(?:loss scale|skipping)|Gradient overflow\. +Skipping step|"
    r"nonfinite_guard(?!\W*(?:true|false|on|off|enabled|disabled|\d))|"
    r"skipp(?:ed|ing) (?:this )?(?:step|update|batch|iteration)|"
    r"(?<![a-z])(?:nan|inf|infinite)\b.{0,60}\bskipp(?:ed|ing)|non-?finite (?:grad|loss)|"
    r"(?:grad\w*|loss) (?:is|was|are|contains?) (?:nan|inf|non-?finite)",
    re.IGNORECASE,
)
_NAN = re.compile(r"(?<![a-z])nan(?![a-z])", re.IGNORECASE)
_NOT_FINITE = re.compile(
    r"(?<![a-z])(?:nan|inf|infinity|infinite|(?:non-?|not )finite)(?![a-z])|nonfinite", re.IGNORECASE
)
_STOPS = re.compile(
    r"(?<![a-z])(?:stopping|stop training|emergency stop|abort(?:ing|ed)?|terminat(?:ing|ed)|exiting)(?![a-z])",
    re.IGNORECASE,
)
_FATAL_LOSS = re.compile(
    r"invalid loss, terminating|minimum loss scale reached|loss scale already at minimum"
    r"|loss returned in .{1,40} is (?:nan|inf)",
    re.IGNORECASE,
)
"""Messages of Keras, fairseq, DeepSpeed and Lightning when they stop."""
_OWN_STEP = re.compile(
    r"(?<![a-z])(?:[a-z]+_)?(?:step|iter|iteration|update|batch)s?\s*[:=#]?\s*(?P<step>\d{1,15})(?![\d.])",
    re.IGNORECASE,
)
_SCALE = re.compile(
    r"(?:reducing to|loss scale to:?|loss scale:(?!.*reducing to))\s*(?P<scale>\d+(?:\.\d+)?(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
_ENDINGS = (
    (
        "out_of_memory",
        re.compile(
            r"\b(?i:cuda|hip|mps|xpu|npu)\b.{0,60}out of memory|OutOfMemoryError|CUDNN_STATUS_ALLOC_FAILED|oom-kill|"
            r"MemoryError\b|OOM when allocating|RESOURCE_EXHAUSTED: Out of memory|not enough memory: you tried to alloc"
        ),
    ),
    ("interrupted", re.compile(r"KeyboardInterrupt|Received SIGINT|Signal 2 \(SIGINT\)")),
    (
        "killed",
        re.compile(
            r"Signal 9|SIGKILL|exitcode\s*:\s*-9\b|^Killed\b|Signal 15|SIGTERM|DUE TO TIME LIMIT|CANCELLED AT"
            r"|DUE TO PREEMPTION"
        ),
    ),
    ("stopped", re.compile(r"\bTrainingDiverged: |\b(?i:emergency stop)\b|\bSTOP TRAINING\b")),
    (
        "crashed",
        re.compile(
            r"Segmentation fault|core dumped|ChildFailedError|\b[Cc]rashed (?:at|in|after|on|during)\b"
            r"|^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b(?::|$)"
        ),
    ),
    (
        "finished",
        re.compile(r"done training|[Tt]raining (?:is |was )?(?:complete|finished|done)|max_steps.{0,12}reached"),
    ),
)
_GOOD_ENDINGS = ("", "finished")
_ENDING_RANKS = {"out_of_memory": 4, "killed": 3, "interrupted": 3, "stopped": 3, "crashed": 2, "finished": 1}
_ANY_HINT = re.compile(
    r"overflow|skip|non-?finite|nan|inf|error|exception|memory|kill|signal|exit|interrupt|fault|core|done|omplete|inished"
    r"|SIG|TIME|CANCEL|PREEMPT|reached|abort|stop|invalid|crashed",
    re.IGNORECASE,
)
"""A line without any of these is skipped at once."""


def says_skipped(line: str) -> bool:
    return _SKIPPED.search(line) is not None


class MessageReader:
    """Reads the words of one log; `add_to` adds them to its content."""

    def __init__(self) -> None:
        self._events: list[LogEvent] = []
        self._skipped_steps: set[int] = set()
        self._last_steps: dict[str, int] = {}
        self._skipped = 0
        self._first_skip = self._last_skip = 0
        self._all_with_scale = True
        self._last_step = self._row = 0
        self._ending = ""
        self._detail = ""
        self._ending_line = 0
        self._stop: tuple[str, int, LogLineFacts] | None = None  # a line that ends it, unless values follow
        self._forms: set[frozenset[str]] = set()
        self._forms_after_end: set[frozenset[str]] = set()

    def note_step(self, step: float, row: int = 0) -> None:
        """Note a step with values: training goes on, so nothing before was its end."""
        self._continue()
        self._last_step, self._row = int(max(-(2**53), min(step, 2**53))), row

    def note_values(self, names: Collection[str], row: int = 0) -> None:
        """Note values without a step.

        Training goes on if a line of this form came before the supposed end, or comes twice after it.
        """
        form = frozenset(names)
        if form in self._forms or form in self._forms_after_end:
            self._continue()
        goes_on = self._ending in _GOOD_ENDINGS and self._stop is None
        forms = self._forms if goes_on else self._forms_after_end
        if len(forms) < MAX_FORMS:
            forms.add(form)
        self._row = row

    def read(self, line: str, number: int = 0) -> None:
        """Read a line; `number`: which line of the log it is, 0 where it has no lines."""
        if not _ANY_HINT.search(line) and not MAY_NAME_FINDING.search(line):
            return
        stops = (_STOPS.search(line) and _NOT_FINITE.search(line)) or _FATAL_LOSS.search(line)
        if says_skipped(line) and not stops:
            self._note_skip(line, number)
        if self._row and not stops:  # before the first values a log shows its source or its settings
            self._note_findings(line, number)
        if stops:
            kind = "nan_detected" if _NAN.search(line) or not _NOT_FINITE.search(line) else "inf_detected"
            self._stop = kind, *self._facts(LogSays.STOPPED, line, number)
        for outcome, pattern in _ENDINGS:
            if pattern.search(line) and _ENDING_RANKS[outcome] > _ENDING_RANKS.get(self._ending, 0):
                self._ending, self._detail, self._ending_line = outcome, printable(line.strip()), number
                break

    def _continue(self) -> None:
        """Turn the supposed end into an event, since training goes on."""
        if self._ending not in _GOOD_ENDINGS:
            line = self._ending_line or None
            facts = LogLineFacts(LogSays.ENDED, self._detail, self._last_step, line, went_on=True, outcome=self._ending)
            self._keep(LogEvent(_event(self._ending, self._last_step, facts), self._row))
        if self._stop is not None:
            kind, step, facts = self._stop
            self._keep(LogEvent(_event(kind, step, replace(facts, went_on=True)), self._row))
        self._ending = self._detail = ""
        self._stop = None
        self._forms |= self._forms_after_end
        self._forms_after_end.clear()

    def _note_findings(self, line: str, number: int) -> None:
        """Note the findings that a line names, once for each step: other processes say the same."""
        for kind in kinds_in_line(line):
            step, facts = self._facts(LogSays.FINDING, line, number)
            if step == self._last_steps.get(kind):
                continue
            self._last_steps[kind] = step
            share = unique_share_in(line) if kind == "sdr_collapse" else None
            event = _event(kind, step, replace(facts, sdr_unique_ratio=share))
            self._keep(LogEvent(event, self._row, own_step=_OWN_STEP.search(line) is not None))

    def _note_skip(self, line: str, number: int) -> None:
        own = _OWN_STEP.search(line)
        step, facts = self._facts(LogSays.SKIPPED, line, number)
        if own and step in self._skipped_steps:
            return  # another process has the same message
        scale = _SCALE.search(line)
        event = _event(
            "step_skipped",
            step,
            replace(
                facts,
                loss_scale=float(scale["scale"]) if scale else None,
                names_nan=_NAN.search(line) is not None,
                names_not_finite=_NOT_FINITE.search(line) is not None,
            ),
        )
        self._first_skip = event.step if not self._skipped else min(self._first_skip, event.step)
        self._last_skip = max(self._last_skip, event.step)
        self._all_with_scale = self._all_with_scale and scale is not None
        self._skipped += 1
        self._skipped_steps.add(event.step)
        self._keep(LogEvent(event, self._row, own_step=own is not None))

    def _facts(self, says: LogSays, line: str, number: int) -> tuple[int, LogLineFacts]:
        own = _OWN_STEP.search(line)
        step = int(own["step"]) if own and int(own["step"]) >= self._last_step else self._last_step
        return step, LogLineFacts(says, printable(line.strip()), self._last_step, number or None)

    def _keep(self, event: LogEvent) -> None:
        self._events.append(event)
        if len(self._events) > 2 * MAX_EVENTS:
            del self._events[:MAX_EVENTS]

    def add_to(self, content: LogContent) -> None:
        """Add events, outcome and notes to the content of the log."""
        if self._stop is not None:
            self._keep(LogEvent(_event(*self._stop), self._row))
        for event in self._events[-MAX_EVENTS:]:
            facts = event.finding.facts
            if isinstance(facts, LogLineFacts) and facts.says is LogSays.FINDING:
                facts = replace(facts, went_on=event.row < self._row or says_skipped(facts.text))
                event = replace(event, finding=replace(event.finding, facts=facts))
            content.reported.append(event)
        content.outcome, content.outcome_detail = self._ending, "" if self._ending == "finished" else self._detail
        for event in self._events:
            facts = event.finding.facts
            if isinstance(facts, LogLineFacts) and facts.says in (LogSays.STOPPED, LogSays.ENDED):
                content.notes.append(event.finding.message)
        if not self._skipped:
            return
        times = "once" if self._skipped == 1 else f"{self._skipped:,} times"
        first, last = self._first_skip, self._last_skip
        where = f"after step {first:,}" if first == last else f"between steps {first:,} and {last:,}"
        note = f"The log reports {times} that a step was skipped, {where}."
        if last <= CALIBRATION_STEPS and self._all_with_scale:
            note += " At the start of training this is normal: the loss scale is being calibrated."
        content.notes.append(note)


def _event(kind: str, step: int, facts: LogLineFacts) -> Finding:
    return Finding.at(facts, step, Severity.INFO, kind=kind)
