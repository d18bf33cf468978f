"""What a log tells beside its numbers: that steps were skipped, and how it ended.

In: the lines that hold no values, with the last step before them. Out: `Finding`s, an outcome, notes. Guarantees: only
what comes after the last values says how it ended, and what came before is an event at its line; an overflow while a
loss scale is being searched is told as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from mlflow_stability.importers.assemble.log_content import LogContent, LogWords
from mlflow_stability.importers.decode import shown_text
from mlflow_stability.kinds.reported.endings import LogLineFacts, LogSays
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text import MAY_NAME_FINDING, kinds_in_line, unique_share_in

MOST_EVENTS = 1000
"""How many of the last skipped steps are kept one by one."""
MOST_FORMS = 1000
"""Of so many kinds of lines without a step it is known that they came before."""
SEARCH = 20
"""A loss scale is being searched while this few steps at most have gone by."""
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
_INVALID_LOSS = re.compile(
    r"invalid loss, terminating|minimum loss scale reached|loss scale already at minimum"
    r"|loss returned in .{1,40} is (?:nan|inf)",
    re.IGNORECASE,
)
"""What Keras, fairseq, DeepSpeed and Lightning say when they give up."""
_OWN_STEP = re.compile(
    r"(?<![a-z])(?:[a-z]+_)?(?:step|iter|iteration|update|batch)s?\s*[:=#]?\s*(?P<step>\d{1,15})(?![\d.])",
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
_GOOD = ("", "finished")
_STRONGER = {"out_of_memory": 4, "killed": 3, "interrupted": 3, "stopped": 3, "crashed": 2, "finished": 1}
_HINT = re.compile(
    r"overflow|skip|non-?finite|nan|inf|error|exception|memory|kill|signal|exit|interrupt|fault|core|done|omplete|inished"
    r"|SIG|TIME|CANCEL|PREEMPT|reached|abort|stop|invalid|crashed",
    re.IGNORECASE,
)
"""A line without any of these says nothing that matters here."""


def says_skipped(line: str) -> bool:
    """Whether a line says that a step was skipped."""
    return _SKIPPED.search(line) is not None


class _Heard(NamedTuple):
    """A line that ends the training, unless values follow."""

    kind: str
    step: int
    facts: LogLineFacts


class LogWordReader:
    """Listens to the words of one log."""

    def __init__(self) -> None:
        self._heard: list[LogWords] = []
        self._steps: set[int] = set()
        self._said: dict[str, int] = {}
        self._skipped = 0
        self._first_skip = self._last_skip = 0
        self._all_scaled = True
        self._last_step = self._row = 0
        self._ending = ""
        self._detail = ""
        self._line = 0
        self._stop: _Heard | None = None
        self._forms: set[frozenset[str]] = set()

    def value_came(self, step: int, row: int = 0) -> None:
        """Training goes on, so nothing before was its end."""
        self._went_on()
        self._last_step, self._row = step, row

    def line_without_step(self, names: Collection[str], row: int = 0) -> None:
        """Values without a step: training goes on if such a line came before the end that the log spoke of."""
        form = frozenset(names)
        if form in self._forms:
            self._went_on()
        elif len(self._forms) < MOST_FORMS and self._ending in _GOOD and self._stop is None:
            self._forms.add(form)
        self._row = row

    def hear(self, line: str, number: int = 0) -> None:
        """Take note of a line without values; ``number``: which line of the log it is, where it has lines."""
        if not _HINT.search(line) and not MAY_NAME_FINDING.search(line):
            return
        stops = (_STOPS.search(line) and _NOT_FINITE.search(line)) or _INVALID_LOSS.search(line)
        if says_skipped(line) and not stops:
            self._skip(line, number)
        if self._row and not stops:  # before the first values a log shows its source or its settings
            self._say(line, number)
        if stops:
            kind = "nan_detected" if _NAN.search(line) or not _NOT_FINITE.search(line) else "inf_detected"
            self._stop = _Heard(kind, *self._facts(LogSays.STOPPED, line, number))
        for outcome, words in _ENDINGS:
            if words.search(line) and _STRONGER[outcome] > _STRONGER.get(self._ending, 0):
                self._ending, self._detail, self._line = outcome, shown_text(line.strip()), number
                break

    def _went_on(self) -> None:
        """What the log took for the end was none: it is an event where it stands."""
        if self._ending not in _GOOD:
            line = self._line or None
            facts = LogLineFacts(LogSays.ENDED, self._detail, self._last_step, line, went_on=True, outcome=self._ending)
            self._keep(LogWords(_event(self._ending, self._last_step, facts), self._row))
        if self._stop is not None:
            kind, step, facts = self._stop
            self._keep(LogWords(_event(kind, step, replace(facts, went_on=True)), self._row))
        self._ending = self._detail = ""
        self._stop = None

    def _say(self, line: str, number: int) -> None:
        """Note what a line says of findings, each once for a step: other processes say the same."""
        for kind in kinds_in_line(line):
            step, facts = self._facts(LogSays.FINDING, line, number)
            if step == self._said.get(kind):
                continue
            self._said[kind] = step
            share = unique_share_in(line) if kind == "sdr_collapse" else None
            event = _event(kind, step, replace(facts, sdr_unique_ratio=share))
            self._keep(LogWords(event, self._row, own_step=_OWN_STEP.search(line) is not None))

    def _skip(self, line: str, number: int) -> None:
        own = _OWN_STEP.search(line)
        step, facts = self._facts(LogSays.SKIPPED, line, number)
        if own and step in self._steps:
            return  # another process says the same
        scale = _SCALE.search(line)
        event = _event(
            "step_skipped",
            step,
            replace(
                facts,
                loss_scale=float(scale["scale"].rstrip(".")) if scale else None,
                names_nan=_NAN.search(line) is not None,
                names_not_finite=_NOT_FINITE.search(line) is not None,
            ),
        )
        self._first_skip = event.step if not self._skipped else min(self._first_skip, event.step)
        self._last_skip = max(self._last_skip, event.step)
        self._all_scaled = self._all_scaled and scale is not None
        self._skipped += 1
        self._steps.add(event.step)
        self._keep(LogWords(event, self._row, own_step=own is not None))

    def _facts(self, says: LogSays, line: str, number: int) -> tuple[int, LogLineFacts]:
        """The step that a line is about, and what it says."""
        own = _OWN_STEP.search(line)
        step = int(own["step"]) if own and int(own["step"]) >= self._last_step else self._last_step
        return step, LogLineFacts(says, shown_text(line.strip()), self._last_step, number or None)

    def _keep(self, heard: LogWords) -> None:
        self._heard.append(heard)
        if len(self._heard) > 2 * MOST_EVENTS:
            del self._heard[:MOST_EVENTS]

    def _with_what_followed(self, heard: LogWords) -> LogWords:
        """The same; of a finding also whether training went on after it."""
        facts = heard.event.facts
        if not isinstance(facts, LogLineFacts) or facts.says is not LogSays.FINDING:
            return heard
        went_on = heard.row < self._row or says_skipped(facts.text)
        return replace(heard, event=replace(heard.event, facts=replace(facts, went_on=went_on)))

    def give(self, content: LogContent) -> None:
        """Hand over what was heard."""
        if self._stop is not None:
            self._keep(LogWords(_event(*self._stop), self._row))
        content.reported.extend(map(self._with_what_followed, self._heard[-MOST_EVENTS:]))
        content.outcome, content.outcome_detail = self._ending, "" if self._ending == "finished" else self._detail
        for each in self._heard:
            facts = each.event.facts
            if isinstance(facts, LogLineFacts) and facts.says in (LogSays.STOPPED, LogSays.ENDED):
                content.notes.append(each.event.message)
        if not self._skipped:
            return
        times = "once" if self._skipped == 1 else f"{self._skipped:,} times"
        first, last = self._first_skip, self._last_skip
        where = f"after step {first:,}" if first == last else f"between steps {first:,} and {last:,}"
        note = f"The log reports {times} that a step was skipped, {where}."
        if last <= SEARCH and self._all_scaled:
            note += " At the start of training this is normal: the loss scale is being calibrated."
        content.notes.append(note)


def _event(kind: str, step: int, facts: LogLineFacts) -> Finding:
    return Finding.at(facts, step, Severity.INFO, kind=kind)
