"""Finds the parameters and tags in which runs differ.

In: cards. Out: for each that is not the same in all of them its values, those that people choose first. Guarantees:
what only names a run (its id, its folders, its time, our own tags) is left out, and so are an optimizer's own defaults;
a command line tells what no parameter does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from mlflow_stability.diagnosis.parameters.parameter_order import place_of
from mlflow_stability.diagnosis.parameters.redundant_parameters import told_otherwise
from mlflow_stability.diagnosis.parameters.seeds import is_seed
from mlflow_stability.vocabulary.result import Difference, RunCard

IDENTITY = re.compile(
    r"(?:^|[._/ -])(?:(?:run|exp|experiment|job|trial)[_-]?(?:name|id)"
    r"|(?:output|out|log|logging|checkpoint|ckpt|save|work|default_root|results?)[_-]?(?:dir|path|folder))$",
    re.I,
)
"""Parameters that say where a run lies or what it is called, and nothing about what it does."""
OF_THE_MACHINE = frozenset({"system", "processors", "threads", "device_name"})
"""Parameters that say on what kind of machine a run was, which is no part of what is repeated."""
COMMAND = "argv"
"""The parameter that holds how the training was started."""
TAGS_THAT_SAY_SOMETHING = ("mlflow.source.name", "mlflow.source.git.commit", "mlflow.source.git.branch", "mlflow.user")
"""Of MLflow's own tags those that may explain a difference."""
_OPTION = re.compile(r"(?:--?|\+{1,2})?(?P<name>[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
_VALUE = re.compile(r"(?!-)|-[\d.]")


def differences_of(cards: Sequence[RunCard]) -> tuple[Difference, ...]:
    """Parameters first, those that people choose before all others; then tags, the fewest different values first."""
    told = [told_params(card) for card in cards]
    twice = told_otherwise(told)
    once = [{name: value for name, value in each.items() if name not in twice} for each in told]
    params = _differing([{**_of_the_machine(card), **each} for card, each in zip(cards, once, strict=True)])
    tags = _differing([_told_tags(card.tags) for card in cards], are_tags=True)
    return (*params, *tags)


def told_params(card: RunCard) -> dict[str, str]:
    """The parameters that say what a run does; of its command line what no other of them says."""
    told = {n: value for n, value in card.params.items() if not IDENTITY.search(n) and n not in OF_THE_MACHINE}
    if COMMAND in told:
        others = {name: value for name, value in card.params.items() if name != COMMAND}
        told[COMMAND] = " ".join(_unsaid(_words(told[COMMAND]), others))
    return told


def _of_the_machine(card: RunCard) -> dict[str, str]:
    return {name: card.params[name] for name in OF_THE_MACHINE if name in card.params}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote that was not closed, or an apostrophe
        return command.split()


def _unsaid(words: Sequence[str], params: Mapping[str, str]) -> Iterator[str]:
    """The words without options that name the run or its seed, or that say what a parameter says."""
    names = {_plain(name) for name in params}
    numbers = {_fraction(each) for each in params.values()} - {None}
    place = 0
    while place < len(words):
        taken = [words[place]]
        option = _OPTION.fullmatch(words[place])
        place += 1
        if option is not None:
            value = option["value"]
            if value is None and taken[0].startswith("-") and place < len(words) and _VALUE.match(words[place]):
                value = words[place]
                taken.append(value)
                place += 1
            name = option["name"]
            if value is not None and (
                is_seed(name) or IDENTITY.search(name) or _plain(name) in names or _fraction(value) in numbers
            ):
                continue
        yield from taken


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _fraction(text: str) -> float | None:
    """A number such as 0.003, that two parameters hardly have by chance; None for words and whole numbers."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value.is_integer() else value


def _told_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in tags.items()
        if name in TAGS_THAT_SAY_SOMETHING or not name.startswith(("mlflow.", "stability."))
    }


def _differing(found: Sequence[Mapping[str, str]], *, are_tags: bool = False) -> list[Difference]:
    names = dict.fromkeys(name for each in found for name in each)
    rows = [Difference(name, tuple(each.get(name) for each in found), are_tags) for name in names]
    rows = [row for row in rows if len(set(row.values)) > 1]
    return sorted(rows, key=lambda row: (0 if are_tags else place_of(row.name), len(set(row.values)), row.name))
