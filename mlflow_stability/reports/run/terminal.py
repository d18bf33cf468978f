"""Shows a report on a terminal: of one run all sections, of many a table and those worth a look.

In: a `Report` and a console. Out: text with the loss drawn in characters and its findings marked beneath.
Guarantees: what colour says is said in words too; text from a log reaches the terminal as visible text only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.html_kit.sketched import DrawnCurve, sketches_of
from mlflow_stability.reports.report import Report, is_from_store
from mlflow_stability.reports.run.sections import FindingRow, RunSections, run_sections
from mlflow_stability.reports.terminal_kit import (
    GUTTER,
    OUTCOME_STYLES,
    TerminalWriter,
    axis,
    draw,
    mark_line,
    number_text,
    written,
)
from mlflow_stability.reports.terminal_kit.section_rows import draw_section
from mlflow_stability.reports.words import run_phrases as wording
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text import counted

CURVE_ROWS = 6
FEW_FINDINGS, FEW_ORIGINS, FEW_CURVES = 12, 2, 2
_Row = tuple[Text, Text]
_Numbered = Sequence[tuple[int, FindingRow]]
_Episodes = Sequence[tuple[int, Finding]]


def show_run(out: TerminalWriter, diagnosis: Diagnosis) -> None:
    """Everything about one run; without `verbose`, what fits on a page."""
    run = run_sections(diagnosis)
    shown = _shown(out, run)
    out.rule(run.title)
    out.console.print(_headline(out, run))
    for section in run.lead:
        draw_section(out, section)
    out.section(run.summary.title, _facts(out, run))
    _show_curves(out, diagnosis, [(number, each.episode) for number, each in shown])
    out.section("Findings", _findings(out, run, shown))
    for section in run.after_findings:
        if section is not run.curves:
            draw_section(out, section)


def show_gist(out: TerminalWriter, diagnosis: Diagnosis, title: str) -> None:
    """Outcome and cause of a run, in a few lines."""
    run = run_sections(diagnosis)
    out.console.print()
    out.console.print(out.text(title, "bold"))
    out.console.print(Padding(_headline(out, run), (0, 0, 0, 2)))
    for row in run.cause.rows[:1]:
        said = Text.assemble(f"{run.cause.title}: ", out.text(f"{row.label}: ", "bold"), out.text(row.text))
        out.console.print(Padding(said, (0, 0, 0, 2)))


def show_brief(out: TerminalWriter, report: Report) -> None:
    """Verdict, cause and actions of each run."""
    for diagnosis in report.diagnoses:
        run = run_sections(diagnosis)
        out.rule(run.title)
        out.console.print(_headline(out, run))
        for section in run.lead:
            draw_section(out, section)


def _headline(out: TerminalWriter, run: RunSections) -> Text:
    outcome = out.text(f"{run.outcome}:", OUTCOME_STYLES[run.diagnosis.outcome])
    return Text.assemble(outcome, " ", out.text(run.verdict))


def _shown(out: TerminalWriter, run: RunSections) -> _Numbered:
    """The findings to show, in order of time; without `verbose` the worst of those above INFO and what is not said yet.

    The origin of a NaN is shown unless the cause says it.
    """
    mild_too = out.verbose or run.diagnosis.asked_kinds
    findings = [each for each in run.findings if mild_too or each.episode.severity > Severity.INFO]
    if not out.verbose:
        findings = sorted(findings, key=lambda each: -each.episode.severity)[:FEW_FINDINGS]
        origins = [each for each in run.findings if wording.is_unsaid_birth(each.episode, run.diagnosis)]
        findings = sorted({each.number: each for each in (*findings, *origins[:FEW_ORIGINS])}.values(), key=_number)
    return list(enumerate(findings, start=1))


def _number(finding: FindingRow) -> int:
    return finding.number


def _facts(out: TerminalWriter, run: RunSections) -> Iterator[_Row]:
    for row in run.summary.rows:
        yield out.text(row.label, "dim"), out.text(row.text)
        if out.verbose and row.label == "judged":
            yield from ((out.text(""), out.text(reason, "dim")) for reason in run.diagnosis.judged.reasons)
    for row in run.curves.rows if out.verbose else run.curves.rows[:FEW_CURVES]:
        first, last, best, shape, figures = row.cells
        said = [f"{first} -> {last}, best {best}", shape, figures if out.verbose else ""]
        yield out.text(row.label, "dim"), out.text("; ".join(part for part in said if part))


def _show_curves(out: TerminalWriter, diagnosis: Diagnosis, numbered: _Episodes) -> None:
    """The first curve with every mark, and that of the first bad episode; when asked for, all others."""
    decisive = next((each.metric for each in diagnosis.findings if each.severity > Severity.INFO), "")
    for place, curve in enumerate(sketches_of(diagnosis)):
        if place == 0 or out.verbose or curve.metric == decisive:
            _show_curve(
                out, curve, diagnosis.unit, [one for one in numbered if place == 0 or one[1].metric == curve.metric]
            )


def _show_curve(out: TerminalWriter, curve: DrawnCurve, unit: str, numbered: _Episodes) -> None:
    width = out.console.width - 2
    title = out.text(curve.metric, "bold cyan")
    title.truncate(width // 2, overflow="ellipsis" if out.unicode else "crop")
    last = f"{number_text(curve.final)} at {unit} {curve.last:,}" + (", log scale" if curve.logarithmic else "")
    out.console.print()
    out.console.print(Text.assemble(title, " " * max(1, width - title.cell_len - len(last)), last))
    for line in _drawn(out, curve, width):
        out.console.print(Text(line, "cyan", no_wrap=True))
    if numbered:
        out.console.print(mark_line(numbered, curve.first, curve.last, width, unicode=out.unicode))
    out.console.print(Text(axis(curve.first, curve.last, width), "dim", no_wrap=True))


def _drawn(out: TerminalWriter, curve: DrawnCurve, width: int) -> list[str]:
    """The curve alone; its axis comes beneath the marks."""
    if not curve.finite.any():
        return [" " * GUTTER + "no finite value"]
    values = np.stack([curve.low, curve.high], axis=1).reshape(-1)
    steps, values = np.append(np.repeat(curve.steps, 2), curve.last), np.append(values, np.nan)
    return draw(steps, values, width, CURVE_ROWS, dots=out.unicode, logarithmic=curve.logarithmic)[:-1]


def _findings(out: TerminalWriter, run: RunSections, shown: _Numbered) -> Iterator[_Row]:
    for number, finding in shown:
        episode = finding.episode
        style = out.style(episode.severity)
        head = Text.assemble(
            out.text(f"{episode.severity.name} {episode.kind}", style), "  ", out.text(finding.where, "dim")
        )
        yield out.text(str(number), style), Text("\n").join([head, *_lines_about(out, finding)])
    hidden = Counter((each.episode.severity > Severity.INFO, each.episode.kind) for each in run.findings)
    hidden.subtract((each.episode.severity > Severity.INFO, each.episode.kind) for _, each in shown)
    for bad, title in ((True, "not shown"), (False, "for your information")):
        kinds = [
            f"{kind} ({left})" if left > 1 else kind
            for (is_bad, kind), left in hidden.items()
            if left and is_bad is bad
        ]
        if kinds:
            yield out.text("-", "dim"), out.text(f"{title}: {', '.join(kinds)}; --verbose shows more", "dim")


def _lines_about(out: TerminalWriter, finding: FindingRow) -> Iterator[Text]:
    yield out.text(finding.episode.message)
    if finding.cause:
        yield out.text(f"Cause: {finding.cause}", "dim")
    if out.verbose:
        if finding.evidence:
            yield out.text(finding.evidence, "dim")
        for remedy in finding.remedies:
            yield out.text(f"-> {remedy}", "green")


SHORT_ID = 8
"""Of a run id, which wherever it goes may be given by its beginning."""
SHORT = 12
"""A folder whose name is no longer than this is repeated in every row; a longer one is named once."""


def show_table(out: TerminalWriter, report: Report) -> None:
    """What was read, what was found, and a row for each run."""
    out.console.print(out.text(f"{wording.read(report)}: {wording.counts(report)}", "bold"))
    if not report.diagnoses:
        return
    folder = _shared_folder(report.diagnoses)
    if folder:
        out.console.print(out.text(f"in {folder}", "dim"))
    out.console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold", max_width=out.console.width // 2)
    table.add_column("outcome", no_wrap=True)
    table.add_column("last step", no_wrap=True, justify="right")
    for severity in ("crit", "warn", "info"):
        table.add_column(severity, no_wrap=True, justify="right")
    for diagnosis in report.diagnoses:
        table.add_row(*_cells(out, diagnosis, folder))
    out.console.print(table)


def _cells(out: TerminalWriter, diagnosis: Diagnosis, folder: str) -> list[Text]:
    source = diagnosis.source.removeprefix(folder)
    telling = source[:SHORT_ID] if is_from_store(diagnosis) else source
    name = source if diagnosis.name in source else f"{diagnosis.name} ({telling})"
    steps = f"{diagnosis.steps[1]:,}" if diagnosis.steps else "-"
    cells = [out.text(name), out.text(wording.outcome(diagnosis), OUTCOME_STYLES[diagnosis.outcome]), out.text(steps)]
    for severity in sorted(Severity, reverse=True):
        count = sum(each.severity is severity for each in diagnosis.findings)
        cells.append(out.text(str(count), out.style(severity)) if count else out.text("-", "dim"))
    return cells


def _shared_folder(diagnoses: Sequence[Diagnosis]) -> str:
    """The folder that all of them lie in, with its separator at the end; empty where naming it once saves nothing."""
    sources = [each.source for each in diagnoses if not is_from_store(each)]
    if len(sources) < 2 or len(sources) < len(diagnoses):
        return ""
    folders = zip(*(Path(source).parent.parts for source in sources), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)]
    folder = f"{Path(*shared)}{os.sep}" if shared else ""
    is_prefix = all(source.startswith(folder) for source in sources)
    return folder if len(folder) > SHORT and is_prefix else ""


WIDTH_OF_A_FILE = 100


def render(report: Report, *, verbose: bool = False, width: int = WIDTH_OF_A_FILE, unicode: bool = True) -> str:
    """The report as plain text, for a file or a pipe."""
    return written(lambda console: show(TerminalWriter(console, unicode=unicode, verbose=verbose), report), width)


def show(out: TerminalWriter, report: Report) -> None:
    """Write the report."""
    alone = len(report.diagnoses) == 1
    if not alone:
        show_table(out, report)
        out.section("Findings by type", _by_type(out, report))
    left_out = []
    for diagnosis in report.diagnoses:
        if alone or out.verbose or _worth_a_look(diagnosis):
            show_run(out, diagnosis)
        else:
            left_out.append(diagnosis)
    unclear = [each for each in left_out if each.outcome == "cannot_tell"]
    rows = ((out.text(each.name or each.source), out.text(wording.headline(each)[1])) for each in unclear)
    out.section("Not judged", rows)
    if left_out and len(left_out) < len(report.diagnoses):
        out.console.print()
        others = "1 run without warnings is" if len(left_out) == 1 else f"{len(left_out)} runs without warnings are"
        out.console.print(out.text(f"{others} only listed in the table; --verbose shows everything.", "dim"))


def _by_type(out: TerminalWriter, report: Report) -> Iterator[_Row]:
    """How many findings of each type there are, and in how many runs, the worst type first."""
    found: dict[str, list[tuple[Severity, int]]] = {}
    for number, diagnosis in enumerate(report.diagnoses):
        for each in diagnosis.findings:
            found.setdefault(each.kind, []).append((each.severity, number))
    for kind, those in sorted(found.items(), key=lambda each: (-max(each[1])[0], -len(each[1]), each[0])):
        by_severity = Counter(severity for severity, _ in those)
        counts = ", ".join(f"{by_severity[each]} {each.name}" for each in sorted(by_severity, reverse=True))
        runs = len({number for _, number in those})
        yield out.text(kind), out.text(f"{counts}, in {counted(runs, 'run')} of {len(report.diagnoses)}")


def _worth_a_look(diagnosis: Diagnosis) -> bool:
    return diagnosis.severity > Severity.INFO or diagnosis.outcome not in wording.WELL
