"""Show a report on a terminal: all sections of one run; of many runs a table and the sections of those with trouble.

The loss is drawn in characters, with its findings marked beneath.
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

from mlflow_stability.reports import run_phrases as wording
from mlflow_stability.reports.report import Report, is_from_store
from mlflow_stability.reports.run_sections import (
    DrawnCurve,
    FindingRow,
    RunSections,
    drawn_curves,
    marked_at,
    run_sections,
)
from mlflow_stability.reports.terminal_kit import (
    GUTTER,
    OUTCOME_STYLES,
    TerminalWriter,
    axis,
    draw,
    draw_section,
    mark_line,
    written,
)
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text.phrases import counted, number_text

FILE_WIDTH = 100
CURVE_ROWS = 6
MAX_FINDINGS, MAX_ORIGINS, MAX_CURVES = 12, 2, 2  # shown without --verbose
SHORT_ID = 8  # characters of a run id; commands take the beginning of an id
MAX_REPEATED_FOLDER = 12  # a folder of at most this many characters is in every row; a longer one is named once
_Row = tuple[Text, Text]
_Numbered = Sequence[tuple[int, FindingRow]]


def render(report: Report, *, verbose: bool = False, width: int = FILE_WIDTH, unicode: bool = True) -> str:
    """Return the report as plain text, for a file or a pipe."""
    return written(lambda console: show(TerminalWriter(console, unicode=unicode, verbose=verbose), report), width)


def show(out: TerminalWriter, report: Report) -> None:
    alone = len(report.diagnoses) == 1
    if not alone:
        _show_table(out, report)
        out.section("Findings by type", _findings_by_type(out, report))
    left_out = []
    for diagnosis in report.diagnoses:
        trouble = diagnosis.severity > Severity.INFO or diagnosis.outcome not in wording.NO_TROUBLE
        if alone or out.verbose or trouble:
            _show_run(out, diagnosis)
        else:
            left_out.append(diagnosis)
    out.section(
        "Not judged",
        (
            (out.text(diagnosis.name or diagnosis.source), out.text(wording.headline(diagnosis)[1]))
            for diagnosis in left_out
            if diagnosis.outcome == "cannot_tell"
        ),
    )
    if left_out and len(left_out) < len(report.diagnoses):
        out.console.print()
        others = "1 run without warnings is" if len(left_out) == 1 else f"{len(left_out)} runs without warnings are"
        out.console.print(out.text(f"{others} only listed in the table; --verbose shows everything.", "dim"))


def show_gist(out: TerminalWriter, diagnosis: Diagnosis, title: str) -> None:
    run = run_sections(diagnosis)
    out.console.print()
    out.console.print(out.text(title, "bold"))
    out.console.print(Padding(_headline(out, run), (0, 0, 0, 2)))
    for row in run.cause.rows[:1]:
        cause = Text.assemble(f"{run.cause.title}: ", out.text(f"{row.label}: ", "bold"), out.text(row.text))
        out.console.print(Padding(cause, (0, 0, 0, 2)))


def show_brief(out: TerminalWriter, report: Report) -> None:
    for diagnosis in report.diagnoses:
        _show_lead(out, run_sections(diagnosis))


def _show_lead(out: TerminalWriter, run: RunSections) -> None:
    out.rule(run.title)
    out.console.print(_headline(out, run))
    for section in run.lead:
        draw_section(out, section)


def _headline(out: TerminalWriter, run: RunSections) -> Text:
    outcome = out.text(f"{run.outcome}:", OUTCOME_STYLES[run.diagnosis.outcome])
    return Text.assemble(outcome, " ", out.text(run.verdict))


def _show_run(out: TerminalWriter, diagnosis: Diagnosis) -> None:
    run = run_sections(diagnosis)
    shown = _shown(out, run)
    _show_lead(out, run)
    out.section(run.summary.title, _facts(out, run))
    decisive = next((finding.metric for finding in diagnosis.findings if finding.severity > Severity.INFO), "")
    drawn = enumerate(drawn_curves(diagnosis))
    curves = [curve for place, curve in drawn if place == 0 or out.verbose or curve.metric == decisive]
    rows = [(number, row.episode) for number, row in shown]
    for curve in curves:
        _show_curve(out, curve, diagnosis.unit, marked_at(curve, curves, rows))
    out.section("Findings", _findings(out, run, shown))
    for section in run.after_findings:
        if section is not run.curves:
            draw_section(out, section)


def _shown(out: TerminalWriter, run: RunSections) -> _Numbered:
    """The findings to show; without --verbose the worst above INFO, and no origin of a NaN that the cause reports."""
    mild_too = out.verbose or run.diagnosis.asked_kinds
    rows = [row for row in run.findings if mild_too or row.episode.severity > Severity.INFO]
    if not out.verbose:
        worst = sorted(rows, key=lambda row: -row.episode.severity)[:MAX_FINDINGS]
        origins = [row for row in run.findings if wording.is_unreported_origin(row.episode, run.diagnosis)]
        numbers = {row.number for row in (*worst, *origins[:MAX_ORIGINS])}
        rows = [row for row in run.findings if row.number in numbers]
    return list(enumerate(rows, start=1))


def _facts(out: TerminalWriter, run: RunSections) -> Iterator[_Row]:
    for row in run.summary.rows:
        yield out.text(row.label, "dim"), out.text(row.text)
        if out.verbose and row.label == "judged":
            yield from ((out.text(""), out.text(reason, "dim")) for reason in run.diagnosis.judged.reasons)
    for row in run.curves.rows if out.verbose else run.curves.rows[:MAX_CURVES]:
        first, last, best, shape, figures = row.cells
        parts = [f"{first} -> {last}, best {best}", shape, figures if out.verbose else ""]
        yield out.text(row.label, "dim"), out.text("; ".join(filter(None, parts)))


def _show_curve(out: TerminalWriter, curve: DrawnCurve, unit: str, marked: Sequence[tuple[int, Finding]]) -> None:
    width = out.console.width - 2
    title = out.text(curve.metric, "bold cyan")
    title.truncate(width // 2, overflow="ellipsis" if out.unicode else "crop")
    last = f"{number_text(curve.final)} at {unit} {curve.last:,}" + (", log scale" if curve.logarithmic else "")
    out.console.print()
    out.console.print(Text.assemble(title, " " * max(1, width - title.cell_len - len(last)), last))
    for line in _curve_lines(out, curve, width):
        out.console.print(Text(line, "cyan", no_wrap=True))
    if marked:
        out.console.print(mark_line(marked, curve.first, curve.last, width, unicode=out.unicode))
    out.console.print(Text(axis(curve.first, curve.last, width), "dim", no_wrap=True))


def _curve_lines(out: TerminalWriter, curve: DrawnCurve, width: int) -> list[str]:
    """The curve alone; its axis comes beneath the marks."""
    if not curve.finite.any():
        return [" " * GUTTER + "no finite value"]
    values = np.stack([curve.low, curve.high], axis=1).reshape(-1)
    steps, values = np.append(np.repeat(curve.steps, 2), curve.last), np.append(values, np.nan)
    return draw(steps, values, width, CURVE_ROWS, dots=out.unicode, logarithmic=curve.logarithmic)[:-1]


def _findings(out: TerminalWriter, run: RunSections, shown: _Numbered) -> Iterator[_Row]:
    for number, row in shown:
        finding = row.episode
        style = out.style(finding.severity)
        head = Text.assemble(
            out.text(f"{finding.severity.name} {finding.kind}", style), "  ", out.text(row.where, "dim")
        )
        yield out.text(str(number), style), Text("\n").join([head, *_finding_lines(out, row)])
    hidden = Counter((row.episode.severity > Severity.INFO, row.episode.kind) for row in run.findings)
    hidden.subtract((row.episode.severity > Severity.INFO, row.episode.kind) for _, row in shown)
    for bad, title in ((True, "not shown"), (False, "for your information")):
        kinds = [
            f"{kind} ({count})" if count > 1 else kind
            for (is_bad, kind), count in hidden.items()
            if count and is_bad is bad
        ]
        if kinds:
            yield out.text("-", "dim"), out.text(f"{title}: {', '.join(kinds)}; --verbose shows more", "dim")


def _finding_lines(out: TerminalWriter, row: FindingRow) -> Iterator[Text]:
    yield out.text(row.episode.message)
    if row.cause:
        yield out.text(f"Cause: {row.cause}", "dim")
    if out.verbose:
        if row.evidence:
            yield out.text(row.evidence, "dim")
        for remedy in row.remedies:
            yield out.text(f"-> {remedy}", "green")


def _show_table(out: TerminalWriter, report: Report) -> None:
    """Show what was read, the number of findings, and a row for each run."""
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
    short_source = source[:SHORT_ID] if is_from_store(diagnosis) else source
    name = source if diagnosis.name in source else f"{diagnosis.name} ({short_source})"
    steps = f"{diagnosis.steps[1]:,}" if diagnosis.steps else "-"
    cells = [out.text(name), out.text(wording.outcome(diagnosis), OUTCOME_STYLES[diagnosis.outcome]), out.text(steps)]
    for severity in sorted(Severity, reverse=True):
        count = sum(finding.severity is severity for finding in diagnosis.findings)
        cells.append(out.text(str(count), out.style(severity)) if count else out.text("-", "dim"))
    return cells


def _shared_folder(diagnoses: Sequence[Diagnosis]) -> str:
    """The folder of all logs, with a separator at its end; empty where naming it once saves nothing."""
    sources = [diagnosis.source for diagnosis in diagnoses if not is_from_store(diagnosis)]
    if len(sources) < 2 or len(sources) < len(diagnoses):
        return ""
    folders = zip(*(Path(source).parent.parts for source in sources), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)]
    folder = f"{Path(*shared)}{os.sep}" if shared else ""
    is_prefix = all(source.startswith(folder) for source in sources)
    return folder if len(folder) > MAX_REPEATED_FOLDER and is_prefix else ""


def _findings_by_type(out: TerminalWriter, report: Report) -> Iterator[_Row]:
    """The number of findings of each type, and of runs that have them, the worst type first."""
    by_kind: dict[str, list[tuple[Severity, int]]] = {}
    for number, diagnosis in enumerate(report.diagnoses):
        for finding in diagnosis.findings:
            by_kind.setdefault(finding.kind, []).append((finding.severity, number))
    for kind, findings in sorted(by_kind.items(), key=lambda item: (-max(item[1])[0], -len(item[1]), item[0])):
        by_severity = Counter(severity for severity, _ in findings)
        counts = ", ".join(f"{by_severity[severity]} {severity.name}" for severity in sorted(by_severity, reverse=True))
        runs = len({number for _, number in findings})
        yield out.text(kind), out.text(f"{counts}, in {counted(runs, 'run')} of {len(report.diagnoses)}")
