"""Read a line of names and numbers, as people print them: `step:10/500 loss:2.31 lr=3e-4 | grad norm: 0.52`.

A name is directly in front of its number, and a number is whole: no piece of a date, a version, a hash or a path. Time
is linear in the line. A pattern that is made from one line reads others that look like it, many times faster.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from mlflow_stability.importers.field_names import (
    BATCH_RANK,
    counts_episodes,
    is_epoch,
    split_verb,
    split_word,
    step_rank,
)
from mlflow_stability.importers.log_content import LogLine
from mlflow_stability.vocabulary.text.foreign_names import LAYER_QUANTITIES
from mlflow_stability.vocabulary.text.metric_names import HELD_OUT, LOSS_LIKE, LOSSES, split_words

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:nan|inf)(?:inity)?)"
)
MAX_PATTERNS = 64  # a log has a few kinds of lines
_MAX_CANDIDATES = 64 * MAX_PATTERNS
STEP, EPOCH, TOTAL = COUNTERS = "\0step", "\0epoch", "\0total"  # in place of a metric's name for a number that counts
_WORD = re.compile(r"[^\W\d_]+")
_VARIABLE = re.compile(r"(\d+)|(\s+)")


class LineParts:
    def __init__(self, line: str) -> None:
        self.line = line
        self.complete = True
        """Whether its values are its numbers and nothing else; else other lines like it are read in full."""
        self.numbers: dict[tuple[int, int], str] = {}
        self.names: list[tuple[int, int]] = []

    def number(self, span: tuple[int, int], name: str) -> None:
        """Add the number of a metric or, with `STEP`, `EPOCH` or `TOTAL`, of a counter; a later one replaces it."""
        self.numbers = {other: earlier for other, earlier in self.numbers.items() if earlier != name}
        self.numbers[span] = name

    def words(self) -> str:
        """Return the words in front of the first value."""
        values = [start for (start, _), name in self.numbers.items() if name not in COUNTERS]
        return " ".join(_WORD.findall(self.line[: min(values, default=0)]))

    def pattern(self) -> tuple[str, tuple[str, ...]]:
        """Return a regular expression for lines like this one, and the name of each of its groups."""
        spans = sorted([*self.numbers, *self.names])
        pieces, end = [], 0
        for span in spans:
            pieces.append(_varying(self.line[end : span[0]]))
            text = self.line[slice(*span)]
            if span not in self.numbers:
                pieces.append(re.escape(text))
            elif self.numbers[span] in COUNTERS and text.isdigit():
                pieces.append(r"(\d+)")
            else:
                pieces.append(f"({NUMBER})")
            end = span[1]
        pieces.append(_varying(self.line[end:]))
        return "".join(pieces), tuple(self.numbers[span] for span in spans if span in self.numbers)


def _varying(text: str) -> str:
    """Return a regular expression for a text whose digits and spaces may change."""
    pieces, end = [], 0
    for match in _VARIABLE.finditer(text):
        pieces.append(re.escape(text[end : match.start()]))
        pieces.append(r"\d+" if match[1] else r"\s+")
        end = match.end()
    return "".join(pieces) + re.escape(text[end:])


class LinePatterns:
    def __init__(self) -> None:
        self._candidates: set[str] = set()
        self._known: list[tuple[re.Pattern[str], tuple[str, ...], str]] = []
        """The most recent first: a pattern, the name of each group, and the words in front of the first value."""

    def read(self, line: str) -> LogLine | None:
        """Return the values of a line of a known kind."""
        for place, (pattern, names, words) in enumerate(self._known):
            match = pattern.fullmatch(line)
            if match is not None:
                if place:
                    self._known.insert(0, self._known.pop(place))
                values = dict(zip(names, map(number_of, match.groups()), strict=True))
                step, total, epoch = (values.pop(counter, math.nan) for counter in (STEP, TOTAL, EPOCH))
                return LogLine(values, step, total, epoch, form="text", words=words)
        return None

    def learn(self, parts: LineParts) -> None:
        """Remember a kind of line; the second line of a kind makes a pattern."""
        if not parts.complete:
            return
        text, names = parts.pattern()
        if text not in self._candidates:
            if len(self._candidates) < _MAX_CANDIDATES:
                self._candidates.add(text)
            return
        self._known.insert(0, (re.compile(text, re.IGNORECASE), names, parts.words()))
        del self._known[MAX_PATTERNS:]


def number_of(text: str) -> float:
    """Return the number that a text is; commas may separate thousands."""
    return float(text.replace(",", "") if "," in text else text)


MAX_CHARACTERS = 4000  # the rest of a longer line is ignored
_PAIR = re.compile(
    rf"(?<!\s)(?P<mark>\s*[:=：]\s*|\s+|(?=\[\d))(?:\w+\(|[\[(#])?\s*(?P<number>{NUMBER})"
    r"(?:(?P<many>(?-i:[kKMB]))(?=\s*/\s*\d))?(?:\s*/\s*(?P<of>\d+))?"
    r"(?:(?P<unit>ms|us|s|sec|h|m|k|M|B|G|GB|MB|GiB|MiB|x|%)(?![\w/]))?(?!\w|[.:]\w|[-/]\w|,\d)",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?!\d)[\w%][\w./@%+#&*'-]*(?:\([\w()%.-]+\))?(?: (?:(?!\d)\w[\w./@%+#&*-]*|\(\w+\))){0,6}")
_NAME_BREAK = re.compile(r"[,;|\t{}:：>*\"~]|\]|\[|\s{2,}|\s[-–]\s")
# Counters: `Epoch: [3][ 10/500]`, `[1, 2000]`, `[3/5][10/500]`; `[640/60000 (1%)]`, `| 5/50 [`, `: 5 / 50 `, `[5] `.
_EPOCH_AND_STEP = re.compile(
    r"\[\s*(?P<epoch>\d+)\s*(?:/\s*\d+\s*)?(?:\]\s*\[|,)\s*(?P<step>\d+)\s*(?:/\s*(?P<total>\d+))?\s*\]"
)
_STEP_AND_TOTAL = tuple(
    re.compile(form)
    for form in (
        r"\[\s*(?P<step>\d+)\s*/\s*(?P<total>\d+)(?: \(\d+%\))?\s*\]",
        r"(?:^|\|)\s*(?P<step>\d+)(?:\.\d+)?\s*/\s*(?P<total>\d+) (?:[\[━]|(?:mini-?)?(?:batch|iter|step)[a-z]*\b)",
        r"\d:\s+(?P<step>\d+) / (?P<total>\d+) ",
        r"(?:^|\s)\[(?P<step>\d+)\](?P<total>)\s",
    )
)
_EPOCH_ALONE = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        r"(?:\[e|\bep|\bepoch)[._-]?(?P<epoch>\d+)(?![\w.%])",
        r"(?:^|[\s\[(])(?P<epoch>\d+)\s*/\s*\d+\s*\]?\s*:\s+\d+%\|",
        r"\[\s*(?P<epoch>\d+)\s*/\s*\d+\s*\],? +(?:step|iter|batch)[a-z]* ",
    )
)
"""`[E3]`, `epoch3`, `epoch.3`; `3/200: 45%|`, the description of a progress bar; `[ 3/20] Step 050/335`."""
_NUMBERED_EPOCH = re.compile(r"ep(?:och)?[._-]?\d+", re.IGNORECASE)
_BAR_OF_EPOCHS = re.compile(r"\[[\d:]+<[\d:?]+, +[\d.?]*(?:s/epoch|epoch/s)\b", re.IGNORECASE)
_COUNT_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}  # units of a count of steps: `step 5k/1.2M`
_ANY_NUMBER = re.compile(r"\d|nan|inf", re.IGNORECASE)
_REMARK = re.compile(r" \([a-z]+(?: [a-z]+)+\)(?= [a-z])")
"""Words in parentheses within a name: `Training loss (for one batch) at step 100: 0.5`."""
_BEFORE_COUNT = frozenset({"at", "after", "in", "for", "on", "of"})
_VALUE = rf"(?:\s*[:=]\s*| is | was )(?P<value>{NUMBER})(?!\w|[.:]\w)"
_VALUE_BEHIND_COUNT = re.compile(rf"(?:\s*/\s*\d+| of \d+)?{_VALUE}")
_VALUE_BEHIND_UNIT = re.compile(rf" (?P<unit>epochs?|steps?|iterations?|iters?|batches|updates){_VALUE}", re.IGNORECASE)
_MAY_BE_TIMES = frozenset({"cost", "costs", "train cost", "val cost", "test cost"})
_TIME_UNIT = re.compile(r" ?(?:ms|s|secs?|seconds?|mins?|minutes?|hours?)\b")
_NO_NAMES = frozenset({"INFO", "WARNING", "DEBUG", "ERROR", "WARN", "NOTICE", "True", "False", "None"})
"""Words before a name that are no part of it: a logger's level, the value of another name."""
_DATA_SPLITS = HELD_OUT | {"train", "training"}
_JOINED = _DATA_SPLITS | {"time"}
"""Words before a name that belong to it however tight the mark is: `Train Loss=0.07, Val Loss=0.08`, `Time cost=9`."""
_MODULE = re.compile(r"(?:^|[\s|\]])([A-Za-z_]\w*(?:\.\w+)+)\s*:?\s+$")
"""A module or parameter in front of its numbers: `layer.3.weight grad_norm=0.52`."""
_WORD_BREAK = re.compile(r"[\s:]+")  # a logger's name is in front of a colon: `INFO:root:Evaluation`
_SOURCE_ENDINGS = (".py", ".cc", ".cpp", ".cu", ".rs")  # `trainer.py:120` is a place in a program
_KNOWN_WORDS = (
    LOSSES
    | LOSS_LIKE
    | {"lr", "norm", "gnorm", "acc", "accuracy", "ppl", "perplexity", "grad", "reward", "return", "rate"}
    | {"step", "epoch", "iter", "iteration", "update", "batch", "episode", "val", "train", "auc", "f1", "miou", "map"}
    | {"scale", "round", "itr"}
)


def pair_line(line: str) -> tuple[LogLine, LineParts] | None:
    """Return the values of a line and where in the line they are; None for a line without values."""
    if not _ANY_NUMBER.search(line):
        return None
    line = line[:MAX_CHARACTERS]
    read, parts = LogLine(form="text"), LineParts(line)
    end, counters, split = 0, [], ""
    for match in _PAIR.finditer(line):
        between, begin, end = line[end : match.start()], end, match.end()
        name = _name(between, match["mark"])
        if not name:
            continue
        in_name = not match["mark"] or line[match.start("number") - 1] == "#"
        if in_name and not is_epoch(name) and step_rank(name) < 0:
            continue  # `loss #2: 0.5`, `loss[2]: 0.5`, but `Epoch[2]`
        start = begin + between.rfind(name)
        read.label = read.label or line[:start].strip() or name
        number = number_of(match["number"])
        if start >= begin:
            parts.names.append((start, start + len(name)))
        metric, counter, value = _value_behind(line, end, name)
        if value is not None:  # `Loss at step 10: 0.5`
            read.values[metric] = number_of(value["value"])
            parts.number(value.span("value"), metric)
            end, name = value.end(), counter
        own_rank = step_rank(name)
        if is_epoch(name) or own_rank >= 0:
            split = split or held_out_in(name)
        if is_epoch(name):
            read.epoch = number
            parts.number(match.span("number"), EPOCH)
        elif own_rank >= 0:
            if number >= 0:
                counters.append((own_rank, match))
        elif (match["of"] is None or counts_episodes(name)) and not (
            name.lower() in _MAY_BE_TIMES and _TIME_UNIT.match(line, end)
        ):
            if not read.values and (word := split_word(between[: between.rfind(name)])) in HELD_OUT:
                split = split or word  # `epoch: 3 validation, acc: 0.6, loss: 1.2`
            read.values[name] = number
            parts.number(match.span("number"), name)
    _read_counters(line, read, parts, counters)
    if read.values and read.epoch != read.epoch:
        matches = (form.search(line) for form in _EPOCH_ALONE)
        if (epoch := next(filter(None, matches), None)) is not None:  # that no name is in front of
            read.epoch = float(epoch["epoch"])
            parts.number(epoch.span("epoch"), EPOCH)
    if not (read.values or read.has_step or read.epoch == read.epoch):
        return None
    held_out = held_out_in(read.label) or split  # `Test set: loss: 0.04`, `val step: 10 loss: 0.04`
    if held_out:
        _rename(read, parts, {name: name_split(name, held_out) for name in read.values})
    _name_module(line, read, parts)
    read.words = parts.words()
    return read, parts


def _value_behind(line: str, end: int, name: str) -> tuple[str, str, re.Match[str] | None]:
    """Return metric, name of its count and value: `Cost after iteration 100: 0.5`, `Cost after 100 iterations: 0.5`."""
    *metric, last = name.split(" ")
    if last.lower() in _BEFORE_COUNT and (counted := _VALUE_BEHIND_UNIT.match(line, end)):
        return " ".join(metric), counted["unit"], counted
    if len(metric) > 1 and metric[-1].lower() in _BEFORE_COUNT and (is_epoch(last) or step_rank(last) >= 0):
        return " ".join(metric[:-1]), last, _VALUE_BEHIND_COUNT.match(line, end)
    return "", "", None


def _read_counters(line: str, read: LogLine, parts: LineParts, counters: list[tuple[int, re.Match[str]]]) -> None:
    """Read the step that the line names, or the one in its brackets."""
    rank, step = min(counters, key=lambda counter: counter[0], default=(BATCH_RANK, None))
    if rank == BATCH_RANK and (step is None or step["of"] is None) and ("[" in line or "/" in line):
        _read_brackets(line, read, parts)  # `[500/50000] … batch 16` ends with the size of a batch
    if step is None or read.has_step:
        return
    read.step = number_of(step["number"])
    parts.number(step.span("number"), STEP)
    _read_total(read, step, "of", parts)
    unit = _COUNT_UNITS.get(step["unit"] or "", 1.0)
    many, of_total = (_COUNT_UNITS.get(step["many"] or "", 1.0), unit) if step["of"] else (unit, 1.0)
    if many > 1 or of_total > 1:  # `step 5k/1.2M`
        count = read.step * many
        read.step, read.total = float(round(count)) if math.isfinite(count) else count, read.total * of_total
        parts.complete = False
    first = counters[0][1]
    if first is not step and step["of"] and not first["of"] and read.epoch != read.epoch:
        read.epoch = number_of(first["number"])  # `iteration:2 step:13/1687`
        parts.number(first.span("number"), EPOCH)


def _read_brackets(line: str, read: LogLine, parts: LineParts) -> None:
    both = _EPOCH_AND_STEP.search(line)
    if both is not None:
        read.epoch, read.step = float(both["epoch"]), float(both["step"])
        parts.number(both.span("epoch"), EPOCH)
        parts.number(both.span("step"), STEP)
        _read_total(read, both, "total", parts)
        return
    matches = (form.search(line) for form in _STEP_AND_TOTAL)
    first = min((match for match in matches if match is not None), key=lambda match: match.start(), default=None)
    if first is not None and _BAR_OF_EPOCHS.search(line):
        read.epoch = float(first["step"])
        parts.number(first.span("step"), EPOCH)
    elif first is not None:
        read.step = float(first["step"])
        parts.number(first.span("step"), STEP)
        _read_total(read, first, "total", parts)


def _read_total(read: LogLine, match: re.Match[str], group: str, parts: LineParts) -> None:
    """Read the number of all steps, which may follow behind a slash."""
    if match[group]:
        read.total = float(match[group])
        parts.number(match.span(group), TOTAL)


@lru_cache(maxsize=8192)
def _name(between: str, mark: str) -> str:
    """Return the name that ends where its number begins; empty for a text that is no name."""
    text = _REMARK.sub("", _after_parenthesis(between[-200:]))
    name = _NAME_BREAK.split(text)[-1].strip(" \t-[(<'").lstrip(". ").removeprefix("#")
    words = name.split(" ")
    # `run loss=2.3`: a tight mark belongs to the word before it.
    if mark == "=" or (mark == ":" and not _has_known_word(name)):
        words = words[-2:] if len(words) > 1 and words[-2].lower() in _JOINED else words[-1:]
    while len(words) > 1 and (words[0] in _NO_NAMES or _NUMBERED_EPOCH.fullmatch(words[0])):
        words = words[1:]
    if len(words) > 1 and words[-1] in ("is", "was", "of"):  # `loss is 0.5`
        words = words[:-1]
    if words[0] >= "\u2e80" and (is_epoch(words[-1]) or step_rank(words[-1]) >= 0):  # Chinese in front of `epoch`
        words = words[-1:]
    name = " ".join(words)
    if len(name) > 80 or not _NAME.fullmatch(name) or name.endswith(_SOURCE_ENDINGS):
        return ""
    return "" if mark.isspace() and not _has_known_word(name) else name  # prose: `Using 8 GPUs`


def _after_parenthesis(text: str) -> str:
    """Return what follows a parenthesis that was opened further in front: `step` of `(Trainer pid=1) step:3`."""
    if ")" not in text:
        return text
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            depth, begin = 0, place + 1
    return text[begin:]


@lru_cache(maxsize=8192)
def _has_known_word(name: str) -> bool:
    return any(word.lower() in _KNOWN_WORDS for word in split_words(name))


def held_out_in(words: str) -> str:
    """Return the first word for held-out data among these: `test` of `Test set:`."""
    stripped = (word.strip("[](){}|,=-.").lower() for word in _WORD_BREAK.split(words[:200]))
    return next((word for word in map(split_verb, stripped) if word in HELD_OUT), "")


def name_split(name: str, held_out: str) -> str:
    """Return a metric's name with the word for held-out data, unless it names its data."""
    return name if any(word.lower() in _DATA_SPLITS for word in split_words(name)) else f"{held_out} {name}"


def _rename(read: LogLine, parts: LineParts, names: dict[str, str]) -> None:
    parts.numbers = {span: names.get(name, name) for span, name in parts.numbers.items()}
    read.values = {names[name]: value for name, value in read.values.items()}


def _name_module(line: str, read: LogLine, parts: LineParts) -> None:
    """Name values by the module in front of them, where all of the line is measured by module."""
    if not read.values or "." not in line or not all(name in LAYER_QUANTITIES for name in read.values):
        return
    first = line.find(next(iter(read.values)))
    module = _MODULE.search(line[:first])
    if module is not None and not module[1].endswith(_SOURCE_ENDINGS):
        _rename(read, parts, {name: f"{name}_by_layer/{module[1]}" for name in read.values})
        parts.names.append(module.span(1))
