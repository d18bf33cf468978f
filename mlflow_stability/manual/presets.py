"""The page of the presets, made from the one table of them.

In: the presets, and the defaults of `autolog()` and `RollbackPolicy`. Out: rows, and the page as Markdown. Guarantees:
what is shown is what `preset=` sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Settings

COLUMNS = ("default", *PRESETS)
WITHOUT_ROLLBACK, WITH_ROLLBACK = (
    "Arguments of autolog() and fields of its Options",
    "Fields of RollbackPolicy, where rollback or guard is on",
)
PRECEDENCE = (
    "An argument that you give comes first, even if it is the default. A RollbackPolicy that you give decides "
    "everything about skipping, checkpoints and rollbacks; the preset sets the rest."
)


@dataclass(frozen=True, slots=True)
class PresetRow:
    """One option."""

    group: str
    name: str
    values: tuple[str, ...]
    """By default, then in each preset."""


def preset_rows() -> Iterator[PresetRow]:
    """Every option that a preset sets."""
    presets = tuple(PRESETS.values())
    usual = {each.name: getattr(Settings(), each.name) for each in fields(Settings)}
    of_policy = {each.name: each.default for each in fields(RollbackPolicy)}
    for name in presets[0].settings:
        yield _row(WITHOUT_ROLLBACK, name, usual[name], *(each.settings[name] for each in presets))
    often = ("every step" if each.adam_rms_every_step else "with layers" for each in presets)
    yield _row(WITHOUT_ROLLBACK, "RMS of AdamW", "with layers", *often)
    for name in presets[0].policy:
        yield _row(WITH_ROLLBACK, name, of_policy[name], *(each.policy[name] for each in presets))


def page() -> str:
    """The page, as Markdown."""
    lines = ["# Presets", "", "`autolog(preset=NAME)` gives other defaults, with or without `rollback=True`:", ""]
    lines += [f"- `{each.name}`: {each.meaning}" for each in PRESETS.values()]
    rows = tuple(preset_rows())
    for group in (WITHOUT_ROLLBACK, WITH_ROLLBACK):
        lines += ["", f"## {group}", "", f"| option | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 1) + "|"]
        for each in rows:
            if each.group == group:
                name = f"`{each.name}`" if each.name.islower() else each.name
                lines.append(f"| {name} | {' | '.join(each.values)} |")
    lines += ["", PRECEDENCE, "", "`mlflow-stability presets` prints this table; the meaning of each option is in"]
    lines += ["[Options](options.md)."]
    return "\n".join(lines) + "\n"


def _row(group: str, name: str, *values: object) -> PresetRow:
    never = name == "attention_every_n_steps"
    return PresetRow(group, name, tuple("never" if never and each == 0 else str(each) for each in values))
