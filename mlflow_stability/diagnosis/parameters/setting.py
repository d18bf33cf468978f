"""Reads the setting of a run: its parameters but for the seed and for what only names it, each value in one spelling.

In: a card. Out: names and values in the order of their names. Guarantees: ``1e-3`` and ``0.001`` are one value,
``True`` and ``true`` are, and a parameter that is ``None`` is one that is not set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from mlflow_stability.diagnosis.parameters.parameter_difference import told_params
from mlflow_stability.diagnosis.parameters.redundant_parameters import told_otherwise
from mlflow_stability.diagnosis.parameters.seeds import is_seed
from mlflow_stability.vocabulary.result import RunCard

OF_ONE_RUN = re.compile(
    r"(?:^|[._/ -])(?:(?:time|date)_?stamp|(?:start|launch|submit|created|creation)(?:ed)?_?(?:time|date|at)"
    r"|datetime|date_?time|u?uid|guid|hash|pid|process_?id|(?:master_?)?port"
    r"|(?:job|run|trial|task|slurm\w*|sweep|worker|array)_?(?:id|no|nr|num|number|index|idx|count)|run|trial|job)$",
    re.IGNORECASE,
)
"""Parameters that number or date a run: what goes with them goes with the time of day."""
MOMENT = re.compile(
    r"\d{4}[-_/.]?\d{2}[-_/.]?\d{2}[T _-]+\d{2}[:h_.-]?\d{2}.*|.*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}.*"
)
"""Values that are a date with its time, or a UUID."""
NOTHING = frozenset({"none", "null", "nan", "n/a", ""})
WHOLE = 2.0**53
"""Up to here a float holds every whole number."""


def setting_of(card: RunCard) -> dict[str, str]:
    """What was set for this run; what is ``None`` is left out."""
    told = {name: spelled(value) for name, value in sorted(told_params(card).items()) if not _of_one_run(name, value)}
    return {name: value for name, value in told.items() if value}


def settings_of(cards: Sequence[RunCard]) -> list[dict[str, str]]:
    """The setting of each, without what another parameter tells in all of them."""
    told = [setting_of(card) for card in cards]
    twice = told_otherwise(told)
    return [{name: value for name, value in each.items() if name not in twice} for each in told]


def spelled(value: str) -> str:
    """The value in one spelling; empty for none."""
    text = value.strip()
    if text.lower() in NOTHING:
        return ""
    if text.lower() in ("true", "false"):
        return text.capitalize()
    number = number_of(text)
    return text if number is None or abs(number) > WHOLE else f"{number:.15g}"


def number_of(text: str) -> float | None:
    """The finite number that a parameter's text is; None for words."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _of_one_run(name: str, value: str) -> bool:
    return _names_one_run(name) or MOMENT.fullmatch(value.strip()) is not None


@lru_cache(maxsize=4096)
def _names_one_run(name: str) -> bool:
    return is_seed(name) or OF_ONE_RUN.search(name) is not None
