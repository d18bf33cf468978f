"""Reads a line of names and numbers, as people print them: ``step:10/500 loss:2.31 lr=3e-4 | grad norm: 0.52``.

In: a line. Out: its values, and the step and epoch that it names. Guarantees: a name is what stands directly before its
number, and a number is whole: no piece of a date, a version, a hash or a path is one. Time is linear in the line.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from mlflow_stability.importers.assemble.step_names import is_epoch, step_rank
from mlflow_stability.importers.text.line_pattern import NUMBER, LineParts, number_of
from mlflow_stability.importers.text.log_line import LogLine
from mlflow_stability.vocabulary.text import HELD_OUT, LOSS_LIKE, LOSSES, split_words
from mlflow_stability.vocabulary.text.foreign_names import LAYER_QUANTITIES

LONGEST = 4000
"""Of a longer line only so many characters are looked at."""
_PAIR = re.compile(
    rf"(?<!\s)(?P<mark>\s*[:=：]\s*|\s+)(?:\w+\(|[\[(])?\s*(?P<number>{NUMBER})"
    r"(?:(?P<many>(?-i:[kKMB]))(?=\s*/\s*\d))?(?:\s*/\s*(?P<of>\d+))?"
    r"(?:(?P<unit>ms|us|s|sec|h|m|k|M|B|G|GB|MB|GiB|MiB|x|%)(?![\w/]))?(?!\w|[.:]\w|[-/]\w|,\d)",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?!\d)[\w%][\w./@%+#&*'-]*(?:\([\w()%.-]+\))?(?: (?:(?!\d)\w[\w./@%+#&*-]*|\(\w+\))){0,6}")
_BREAK = re.compile(r"[,;|\t{}:：>*\"~]|\]|\[|\s{2,}|\s[-–]\s")
# Counters: `Epoch: [3][ 10/500]`, `[1, 2000]`, `[3/5][10/500]`; `[640/60000 (1%)]`, `| 5/50 [`, `: 5 / 50 `, `[5] `.
_BRACKETS = re.compile(
    r"\[\s*(?P<epoch>\d+)\s*(?:/\s*\d+\s*)?(?:\]\s*\[|,)\s*(?P<step>\d+)\s*(?:/\s*(?P<total>\d+))?\s*\]"
)
_INNER = tuple(
    re.compile(form)
    for form in (
        r"\[\s*(?P<step>\d+)\s*/\s*(?P<total>\d+)(?: \(\d+%\))?\s*\]",
        r"(?:^|\|)\s*(?P<step>\d+)\s*/\s*(?P<total>\d+) (?:[\[━]|(?:mini-?)?(?:batch|iter|step)[a-z]*\b)",
        r"\d:\s+(?P<step>\d+) / (?P<total>\d+) ",
        r"(?:^|\s)\[(?P<step>\d+)\](?P<total>)\s",
    )
)
_MANY = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
"""What a count of steps may be written in: `step 5k/1.2M`."""
_SOMETHING = re.compile(r"\d|nan|inf", re.IGNORECASE)
_NO_PART = frozenset({"INFO", "WARNING", "DEBUG", "ERROR", "WARN", "NOTICE", "True", "False", "None"})
"""Words before a name that are no part of it: a logger's level, the value of what stands before."""
_MODULE = re.compile(r"(?:^|[\s|\]])([A-Za-z_]\w*(?:\.\w+)+)\s*:?\s+$")
"""A module or parameter in front of its numbers: `layer.3.weight grad_norm=0.52`."""
_SOURCES = (".py", ".cc", ".cpp", ".cu", ".rs")
"""`trainer.py:120` is a place in a program."""
_TELLING = (
    LOSSES
    | LOSS_LIKE
    | {"lr", "norm", "gnorm", "acc", "accuracy", "ppl", "perplexity", "grad", "reward", "return", "rate"}
    | {"step", "epoch", "iter", "iteration", "update", "batch", "val", "train", "auc", "f1", "miou", "map", "scale"}
)


def pair_line(line: str) -> tuple[LogLine, LineParts] | None:
    """The values of a line, if there are any, and where in the line they stand."""
    if not _SOMETHING.search(line):
        return None
    line = line[:LONGEST]
    read, parts = LogLine(form="text"), LineParts(line)
    end, rank = 0, 99
    for found in _PAIR.finditer(line):
        between, begin, end = line[end : found.start()], end, found.end()
        name = _name(between, found["mark"])
        if not name:
            continue
        start = begin + between.rfind(name)
        read.label = read.label or line[begin:start].strip() or name
        number = number_of(found["number"])
        its_rank = step_rank(name)
        if is_epoch(name):
            read.epoch = number
            parts.epoch(found.span("number"))
        elif its_rank >= 0:
            if its_rank < rank and number >= 0:
                read.step, read.total, rank = number, math.nan, its_rank
                parts.step(found.span("number"))
                _count_of(read, found, "of", parts)
                _count_in_thousands(read, found, parts)
        elif found["of"] is None:
            read.values[name] = number
            parts.value(found.span("number"), name)
        parts.name((start, start + len(name)))
    if "[" in line or "/" in line:
        _count_in_brackets(line, read, parts)
    if not (read.values or read.has_step or read.epoch == read.epoch):
        return None
    _say_on_what(read, parts)
    _say_of_what(line, read, parts)
    return read, parts


def _count_in_brackets(line: str, read: LogLine, parts: LineParts) -> None:
    """The epoch and the step that stand in brackets, unless the line names its step."""
    if read.has_step:
        return
    both = _BRACKETS.search(line)
    if both is not None:
        read.epoch, read.step = float(both["epoch"]), float(both["step"])
        parts.epoch(both.span("epoch"))
        parts.step(both.span("step"))
        _count_of(read, both, "total", parts)
        return
    found = (form.search(line) for form in _INNER)
    inner = min((each for each in found if each is not None), key=lambda each: each.start(), default=None)
    if inner is not None:
        read.step = float(inner["step"])
        parts.step(inner.span("step"))
        _count_of(read, inner, "total", parts)


def _count_of(read: LogLine, found: re.Match[str], group: str, parts: LineParts) -> None:
    """Of how many steps it is one, where that stands behind a slash."""
    if found[group]:
        read.total = float(found[group])
        parts.total(found.span(group))


def _count_in_thousands(read: LogLine, found: re.Match[str], parts: LineParts) -> None:
    """A step or its total that is written in thousands or more; its number alone does not say it."""
    unit = _MANY.get(found["unit"] or "", 1.0)
    step, total = (_MANY.get(found["many"] or "", 1.0), unit) if found["of"] else (unit, 1.0)
    if step > 1 or total > 1:
        count = read.step * step
        read.step, read.total = float(round(count)) if math.isfinite(count) else count, read.total * total
        parts.whole = False


@lru_cache(maxsize=8192)
def _name(between: str, mark: str) -> str:
    """The name that ends where its number begins; empty if what stands there is no name."""
    name = _BREAK.split(_behind_a_closing(between[-200:]))[-1].strip(" \t-[(<'")
    words = name.split(" ")
    if mark == "=" or (mark == ":" and not _knows(name)):  # `run loss=2.3`: a tight mark belongs to the word before it
        words = words[-1:]
    while words[0] in _NO_PART and len(words) > 1:
        words = words[1:]
    if words[0] >= "\u2e80" and (is_epoch(words[-1]) or step_rank(words[-1]) >= 0):  # Chinese in front of `epoch`
        words = words[-1:]
    name = " ".join(words)
    if len(name) > 80 or not _NAME.fullmatch(name) or name.endswith(_SOURCES):
        return ""
    return "" if mark.isspace() and not _knows(name) else name  # prose: `Using 8 GPUs`


def _behind_a_closing(text: str) -> str:
    """What follows the last parenthesis that was opened further in front: `step` of `(Trainer pid=1) step:3`."""
    if ")" not in text:
        return text
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            depth, begin = 0, place + 1
    return text[begin:]


@lru_cache(maxsize=8192)
def _knows(name: str) -> bool:
    return any(word.lower() in _TELLING for word in split_words(name))


def held_out_in(words: str) -> str:
    """The word among these that says that something was measured on held-out data: of `Test set:` the first."""
    stripped = (word.strip("[](){}:|,=-").lower() for word in words[:200].split())
    return next((word for word in stripped if word in HELD_OUT), "")


def said_of(values: dict[str, float], held_out: str) -> dict[str, float]:
    """Values with names that say on which data they were measured."""
    return {_on(name, held_out): value for name, value in values.items()}


def _say_on_what(read: LogLine, parts: LineParts) -> None:
    """Of `Test set: loss: 0.04` the first words say on which data."""
    held_out = held_out_in(read.label)
    if held_out:
        parts.rename({name: _on(name, held_out) for name in read.values})
        read.values = said_of(read.values, held_out)


def _say_of_what(line: str, read: LogLine, parts: LineParts) -> None:
    """Name values by the module in front of them, where all of the line is measured by module."""
    if not read.values or "." not in line or not all(name in LAYER_QUANTITIES for name in read.values):
        return
    first = line.find(next(iter(read.values)))
    module = _MODULE.search(line[:first])
    if module is not None and not module[1].endswith(_SOURCES):
        names = {name: f"{name}_by_layer/{module[1]}" for name in read.values}
        parts.rename(names)
        parts.name(module.span(1))
        read.values = {names[name]: value for name, value in read.values.items()}


def _on(name: str, held_out: str) -> str:
    return name if any(word.lower() in HELD_OUT for word in split_words(name)) else f"{held_out} {name}"
