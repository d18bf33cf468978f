"""The pages of the manual, in reading order.

A page needs no network, no torch and no MLflow. Tables are made from the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from mlflow_stability.manual import python_api, references
from mlflow_stability.vocabulary.measured.signal_type import signal_types
from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Settings
from mlflow_stability.vocabulary.text.recorded_keys import MAIN_CHARTS, TOPICS

FOLDER = Path(__file__).parent
_CODE_MAP = FOLDER.parent / "README.md"

COLUMNS = ("default", *PRESETS)
WITHOUT_ROLLBACK = "Arguments of autolog() and fields of its Options"
WITH_ROLLBACK = "Fields of RollbackPolicy, where rollback or guard is on"
PRECEDENCE = (
    "An argument that you give comes first, even if it is the default. A RollbackPolicy that you give decides "
    "everything about skipping, checkpoints and rollbacks; the preset sets the rest."
)
_SIGNAL_TABLE = re.compile(r"^<!-- signals: (?P<interval>.+) -->\n\n(?:\|.*\n)*", re.MULTILINE)
_OPTION_TABLE = re.compile(r"^<!-- (?P<name>arguments of \w+|fields of \w+) -->\n\n(?:\|.*\n)*", re.MULTILINE)
_UNITS = {"1": "", "s": "seconds", "By": "bytes"}


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    """What is typed after `mlflow-stability manual`, and the name of the file."""
    title: str
    make: Callable[[], str] | None = None
    """Makes the text from the code; the text of other pages is a file beside this one."""

    def text(self) -> str:
        return self.make() if self.make else _written(self.name)


def _written(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def options_page() -> str:
    """Return the page of options, with a table below each `<!-- arguments of autolog -->` and the like.

    The file holds the tables, too, for those who read it beside the code.
    """
    tables = {
        "arguments of autolog": python_api.argument_rows("autolog"),
        "fields of Options": python_api.field_rows("Options"),
    }

    def with_table(match: re.Match[str]) -> str:
        return f"<!-- {match['name']} -->\n\n" + "\n".join(tables[match["name"]]).strip() + "\n"

    return _OPTION_TABLE.sub(with_table, _written("options"))


def signals_page() -> str:
    """Return the page of signals, with a row for each signal below each line `<!-- signals: INTERVAL -->`.

    The file holds the tables, too, for those who read it beside the code.
    """
    return _SIGNAL_TABLE.sub(lambda match: "".join(_signal_rows(match["interval"])), _written("signals"))


def _signal_rows(interval: str) -> Iterator[str]:
    yield f"<!-- signals: {interval} -->\n\n| signal | section | unit | what it is |\n| --- | --- | --- | --- |\n"
    for topic in TOPICS:
        for signal in signal_types().values():
            if (signal.topic, signal.interval) == (topic, interval):
                place = "first" if signal.quantity in MAIN_CHARTS else topic
                unit = _UNITS.get(signal.unit, re.sub(r"[{}]", "", signal.unit))
                meaning = signal.meaning + ("; by layer, too" if signal.by_layer else "")
                yield f"| `{signal.quantity}` | {place} | {unit} | {meaning} |\n"


@dataclass(frozen=True, slots=True)
class PresetRow:
    group: str
    name: str
    values: tuple[str, ...]
    """The default, then the value in each preset."""


def preset_rows() -> Iterator[PresetRow]:
    """Yield every option that a preset sets."""
    presets = tuple(PRESETS.values())
    defaults = Settings()
    policy_defaults = {setting.name: setting.default for setting in fields(RollbackPolicy)}
    for name in presets[0].settings:
        values = [getattr(defaults, name), *(preset.settings[name] for preset in presets)]
        off = "never" if name == "attention_every_n_steps" else "0"
        yield PresetRow(WITHOUT_ROLLBACK, name, tuple(off if str(value) == "0" else str(value) for value in values))
    intervals = ("every step" if preset.adam_rms_every_step else "with layers" for preset in presets)
    yield PresetRow(WITHOUT_ROLLBACK, "RMS of AdamW", ("with layers", *intervals))
    for name in presets[0].policy:
        values = [policy_defaults[name], *(preset.policy[name] for preset in presets)]
        yield PresetRow(WITH_ROLLBACK, name, tuple(map(str, values)))


def presets_page() -> str:
    lines = ["# Presets", "", "`autolog(preset=NAME)` gives other defaults, with or without `rollback=True`:", ""]
    lines += [f"- `{preset.name}`: {preset.meaning}" for preset in PRESETS.values()]
    for group in (WITHOUT_ROLLBACK, WITH_ROLLBACK):
        lines += ["", f"## {group}", "", f"| option | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 1) + "|"]
        for row in preset_rows():
            if row.group == group:
                name = f"`{row.name}`" if row.name.islower() else row.name
                lines.append(f"| {name} | {' | '.join(row.values)} |")
    lines += ["", PRECEDENCE, "", "`mlflow-stability presets` prints this table; the meaning of each option is in"]
    lines += ["[Options](options.md)."]
    return "\n".join(lines) + "\n"


PAGES = (
    Page("getting_started", "Getting started"),
    Page("from_other_tools", "From other tools"),
    Page("mlflow", "Watching a run in MLflow"),
    Page("diagnosis", "Reading a diagnosis"),
    Page("recovery", "Rollback and recovery"),
    Page("model_check", "Checking a model"),
    Page("simulations", "Practising on failures"),
    Page("comparing", "Comparing runs and CI gates"),
    Page("assistants", "Assistants"),
    Page("alerts", "Alerts and metrics elsewhere"),
    Page("attention", "Attention and representations"),
    Page("signals", "Signals reference", signals_page),
    Page("findings", "Findings reference", references.findings),
    Page("causes", "Causes reference", references.causes),
    Page("options", "Options", options_page),
    Page("presets", "Presets", presets_page),
    Page("python_api", "Python API", python_api.page),
    Page("public_interface", "Public interface"),
    Page("log_formats", "Log formats"),
    Page("frameworks", "Frameworks"),
    Page("distributed", "Distributed training"),
    Page("costs", "Costs and guarantees"),
    Page("troubleshooting", "Troubleshooting"),
    Page("limits", "Limits"),
    Page("security", "Security"),
    Page("design", "Design and glossary", lambda: _CODE_MAP.read_text(encoding="utf-8")),
    Page("contributing", "Contributing"),
    Page("changes", "Changes"),
)
"""All pages but that of the command line, which only the command line can make."""
