"""The pages of the manual, in reading order.

A page needs no network, no torch and no MLflow. Tables are made from the code.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, documentation, name_of
from mlflow_stability.kinds.documentation import FindingDocumentation
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.manual import python_api
from mlflow_stability.vocabulary.measured.signal_type import signal_types
from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.result import Severity
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
    name: str  # what is typed after `mlflow-stability manual`, and the name of the file
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


def preset_rows() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield group, name and values of every option that a preset sets: the default, then the value in each preset."""
    presets = tuple(PRESETS.values())
    defaults = Settings()
    policy_defaults = {setting.name: setting.default for setting in fields(RollbackPolicy)}
    for name in presets[0].settings:
        values = [getattr(defaults, name), *(preset.settings[name] for preset in presets)]
        off = "never" if name == "attention_every_n_steps" else "0"
        yield WITHOUT_ROLLBACK, name, tuple(off if str(value) == "0" else str(value) for value in values)
    intervals = ("every step" if preset.adam_rms_every_step else "with layers" for preset in presets)
    yield WITHOUT_ROLLBACK, "RMS of AdamW", ("with layers", *intervals)
    for name in presets[0].policy:
        values = [policy_defaults[name], *(preset.policy[name] for preset in presets)]
        yield WITH_ROLLBACK, name, tuple(map(str, values))


def presets_page() -> str:
    lines = ["# Presets", "", "`autolog(preset=NAME)` gives other defaults, with or without `rollback=True`:", ""]
    lines += [f"- `{preset.name}`: {preset.meaning}" for preset in PRESETS.values()]
    for group in (WITHOUT_ROLLBACK, WITH_ROLLBACK):
        lines += ["", f"## {group}", "", f"| option | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 1) + "|"]
        for group_of_row, name, values in preset_rows():
            if group_of_row == group:
                lines.append(f"| {f'`{name}`' if name.islower() else name} | {' | '.join(values)} |")
    lines += ["", PRECEDENCE, "", "`mlflow-stability presets` prints this table; the meaning of each option is in"]
    lines += ["[Options](options.md)."]
    return "\n".join(lines) + "\n"


INTRODUCTION_TO_FINDINGS = (
    "What `diagnose` and the detectors report: what each finding sees, why it matters, what to do, when it is wrong, "
    "and by which thresholds it is decided. `mlflow-stability explain NAME` prints one."
)
INTRODUCTION_TO_CAUSES = (
    "A finding says what happened; a cause says why. A diagnosis names the likely cause of the finding that decides "
    "its verdict, the evidence for it, and what was ruled out."
)
PICTURES = FOLDER / "findings"  # examples from recorded runs, drawn by `tests/manual/draw_findings.py`
FALSE_ALARMS = FOLDER / "false_alarms.json"  # written by `python -m tests.benchmarks false_alarms`
_LOSS_QUANTITIES = frozenset({"loss", "val_loss", "score", "val_score"})
"""Quantities of a log with losses alone; findings in other quantities were not tried on such logs."""
_PICTURE = re.compile(r"^!\[.*\n+", re.MULTILINE)


def findings_page() -> str:
    """Return the page of findings, each with its rules."""
    lines = [
        "# Findings reference",
        "",
        INTRODUCTION_TO_FINDINGS,
        "",
        "Experimental findings are INFO at most: they change no verdict and no exit code.",
        "",
        "| finding | severity | meaning |",
        "| --- | --- | --- |",
    ]
    kinds = [documentation(kind) for kind in KINDS]
    lines += [f"| [{about.name}](#{about.name}) | {_severity(about)} | {_cell(about.sentence)} |" for about in kinds]
    for about in kinds:
        lines += ["", f"## {about.name}", "", *_finding(about)]
        for rule in (*DETECTORS, *ON_REQUEST):
            if rule.kind == about.kind and rule.rule:
                lines += ["", f"### {name_of(rule)}", "", *_finding(documentation(name_of(rule)))]
    return "\n".join(lines) + "\n"


def causes_page() -> str:
    lines = ["# Causes reference", "", INTRODUCTION_TO_CAUSES]
    for cause in causes().values():
        lines += ["", f"## {cause.name}", "", cause.meaning, ""]
        lines += [f"**Evidence:** {cause.evidence}", "", f"**When it is wrong:** {cause.wrong}", ""]
        lines += ["**What to do:**", "", *(f"{number}. {remedy}" for number, remedy in enumerate(cause.remedies, 1))]
    return "\n".join(lines) + "\n"


def explained_names() -> tuple[str, ...]:
    """Return every finding and cause that `reference` knows."""
    return (*KINDS, *causes())


def reference(name: str) -> str | None:
    """Return the reference of one finding or cause; None for an unknown name."""
    page = findings_page() if name in KINDS else causes_page() if name in causes() else ""
    match = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return None if match is None else _PICTURE.sub("", match[0]).strip() + "\n"


def _finding(about: FindingDocumentation) -> Iterator[str]:
    yield from (about.sentence, "")
    if not about.rule and (PICTURES / f"{about.kind}.png").is_file():
        yield from (f"![A recorded run with {about.kind}](findings/{about.kind}.png)", "")
    for title, text in _paragraphs(about):
        if text:
            yield from (f"**{title}:** {text}", "")
    if about.thresholds:
        yield from ("| threshold | default | meaning |", "| --- | --- | --- |")
        for threshold in about.thresholds:
            yield f"| `{threshold.name}` | {threshold.text} | {_cell(threshold.meaning)} |"
        if about.own_thresholds:
            yield from ("", f"Thresholds of your own: {about.own_thresholds}")


def _paragraphs(about: FindingDocumentation) -> Iterator[tuple[str, str]]:
    """Yield titles and texts, which may be empty."""
    yield "Severity", _severity(about)
    yield "Signals", ", ".join(f"`{quantity}`" for quantity in about.quantities)
    yield "What it sees", about.sees
    yield "Why it matters", about.why
    yield "What to do", about.try_
    yield "When it is wrong", about.wrong
    if not about.rule:
        for rule in RULES:
            if rule.kind == about.kind:
                yield "In a whole curve, afterwards", rule_paragraph(rule, "What it sees")
                yield "When that is wrong", rule_paragraph(rule, "When it is wrong")
        if about.severities[-1] >= Severity.WARNING and about.quantities:
            yield "Measured false alarms", f"{false_alarms_of(about.kind, about.quantities) or 'not measured'}."
    yield "Reference", about.reference


def _severity(about: FindingDocumentation) -> str:
    names = " or ".join(Severity(level).name for level in about.severities)
    return f"{names}, experimental" if about.experimental else names


def rule_paragraph(rule: type[Rule], title: str) -> str:
    paragraphs = (" ".join(text.split()) for text in (inspect.getdoc(rule) or "").split("\n\n"))
    return next((text.removeprefix(f"{title}: ") for text in paragraphs if text.startswith(f"{title}: ")), "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@dataclass(frozen=True, slots=True)
class Measured:
    """False alarms in one set of healthy runs."""

    what: str
    runs: int
    kinds: Collection[str]
    flagged: Mapping[str, int]  # number of runs with each finding as a WARNING or worse; kinds without any are left out
    loss_alone: bool  # whether the runs had nothing but loss curves


@cache
def measured() -> tuple[Measured, ...]:
    """Return all measurements of false alarms."""
    return tuple(Measured(**entry) for entry in json.loads(FALSE_ALARMS.read_text(encoding="utf-8")))


def false_alarms_of(kind: str, quantities: Collection[str]) -> str:
    """Return `2 of 128 healthy trainings …; none of 1,600 drawn curves …` for a finding that judges these quantities.

    Empty for a kind that is newer than the measurement. A finding that needs more than a loss curve is given no figure
    from loss curves.
    """
    sets = [data for data in measured() if kind in data.kinds]
    fitting = [data for data in sets if not data.loss_alone or _LOSS_QUANTITIES & set(quantities)]
    return "; ".join(f"{data.flagged.get(kind, 0) or 'none'} of {data.runs:,} {data.what}" for data in fitting)


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
    Page("findings", "Findings reference", findings_page),
    Page("causes", "Causes reference", causes_page),
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
