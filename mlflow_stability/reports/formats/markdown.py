"""Markdown for pull requests and wikis.

Text from a log never becomes a heading, link, table cell, code or HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlflow_stability.reports import comparison_phrases, run_phrases
from mlflow_stability.reports.comparison_sections import comparison_sections, lead, with_distinct_names
from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.reports.run_sections import RunSections, overview, run_sections
from mlflow_stability.reports.sections import Row, Section, Sign, failures
from mlflow_stability.vocabulary.result import Compared, Comparison

MAX_STABLEST, MAX_UNSTABLE = 25, 25


def run(report: Report) -> str:
    return "\n".join(_report_lines(report)) + "\n"


def comparison(compared: Comparison) -> str:
    return "\n".join(_comparison_lines(with_distinct_names(compared))) + "\n"


FORMAT = ReportFormat("markdown", run, comparison, (".md", ".markdown"), order=30)


def _report_lines(report: Report) -> Iterator[str]:
    yield from ("# Training diagnosis", "", f"{run_phrases.read(report)}: {run_phrases.counts(report)}.")
    if len(report.diagnoses) > 1:
        yield from _section(overview(report))
    for diagnosis in report.diagnoses:
        yield from _run_lines(run_sections(diagnosis))
    yield from _section(failures((failure.source, failure.message) for failure in report.failures))


def _run_lines(sections: RunSections) -> Iterator[str]:
    yield from ("", f"## {markdown(sections.title)}", "")
    yield f"**{markdown(sections.outcome)}:** {markdown(sections.verdict)}"
    for section in sections.lead:
        yield from _section(section, "###")
    yield from _section(replace(sections.summary, title=""))
    if sections.findings:
        yield from ("", "### Findings")
        rows = []
        for row in sections.findings:
            finding = row.episode
            message = finding.message + (f" Cause: {row.cause}" if row.cause else "")
            rows.append((finding.severity.name, finding.kind, row.where, message))
        yield from _table(("severity", "finding", "where", "what"), rows)
    for section in sections.after_findings:
        yield from _section(section, "###")


def _comparison_lines(compared: Comparison) -> Iterator[str]:
    head = (compared.summary, comparison_phrases.unfinished(compared), lead(compared))
    yield from ("# Training comparison", "", markdown(" ".join(filter(None, head))))
    gate, *others = comparison_sections(compared).all()
    yield from _section(gate)
    if compared.runs:
        yield from _run_tables(compared)
    for section in others:
        yield from _section(section)


def _run_tables(compared: Comparison) -> Iterator[str]:
    first, last, between = comparison_phrases.chosen(compared.runs, MAX_STABLEST, MAX_UNSTABLE)
    head = comparison_phrases.RUNS_HEAD
    gap = [("…", *("" for _ in head[1:]))] if between else []
    yield from ("", f"## {comparison_phrases.RUNS_TITLE}")
    yield from _table(head, [*map(_compared_row, first), *gap, *map(_compared_row, last)])
    if between:
        yield from ("", comparison_phrases.left_out(between))
    cards = [run.card for run in (*first, *last)]
    if columns := comparison_phrases.number_columns(cards):
        cells = [(comparison_phrases.name(card), *(column.text(card) for column in columns)) for card in cards]
        yield from ("", f"## {comparison_phrases.NUMBERS_TITLE}")
        yield from _table(("run", *(column.title for column in columns)), cells)
        yield from ("", comparison_phrases.meanings(columns))


def _compared_row(run: Compared) -> tuple[str, ...]:
    card = run.card
    return (
        comparison_phrases.name(card),
        comparison_phrases.outcome(card),
        comparison_phrases.steps(card.onset),
        comparison_phrases.rate(run.spike_rate),
        comparison_phrases.recovery(card),
        comparison_phrases.number(card.final_loss),
        comparison_phrases.number(card.best_loss),
        comparison_phrases.lost_steps(card),
        card.verdict,
    )


def _section(section: Section, level: str = "##") -> Iterator[str]:
    if not section:
        return
    if section.title:
        yield from ("", f"{level} {markdown(section.title)}")
    if section.head:
        rows = [(f"{row.label} ({row.note})" if row.note else row.label, *row.cells) for row in section.rows]
        yield from _table(section.head, rows)
    elif section.rows:
        yield ""
        yield from (_item(row, number) for number, row in enumerate(section.rows[: section.most], start=1))
    for remark in (*([section.beyond] if section.beyond else []), *section.remarks):
        yield from ("", markdown(remark))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(markdown, row))} |"


def _item(row: Row, number: int) -> str:
    sign = f"{number}." if row.sign is Sign.NUMBER else "-"
    word = f"{row.sign.value}: " if row.sign in (Sign.PASSED, Sign.FAILED) else ""
    label = f"{markdown(row.label)}: " if row.label else ""
    note = f" ({markdown(row.note)})" if row.note else ""
    return f"{sign} {word}{label}{markdown(row.text)}{note}"
