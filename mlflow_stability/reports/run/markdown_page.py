"""Writes a report as Markdown, for a pull request, an issue or a notebook.

In: a `Report`. Out: GitHub-flavoured Markdown. Guarantees: text from a log stays text: no heading, link, table cell,
code or HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.markdown_sections import section_lines, table_lines
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run.sections import FindingRow, RunSections, overview, run_sections
from mlflow_stability.reports.sections import failures
from mlflow_stability.reports.words import run_phrases as wording


def render(report: Report) -> str:
    """The report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# Training diagnosis"
    yield ""
    yield f"{wording.read(report)}: {wording.counts(report)}."
    if len(report.diagnoses) > 1:
        yield from section_lines(overview(report))
    for diagnosis in report.diagnoses:
        yield from _run(run_sections(diagnosis))
    yield from section_lines(failures((each.source, each.message) for each in report.failures))


def _run(run: RunSections) -> Iterator[str]:
    yield from ("", f"## {markdown(run.title)}", "")
    yield f"**{markdown(run.outcome)}:** {markdown(run.verdict)}"
    for section in run.lead:
        yield from section_lines(section, "###")
    yield from section_lines(replace(run.summary, title=""))
    if run.findings:
        yield from ("", "### Findings")
        rows = [(e.episode.severity.name, e.episode.kind, e.where, _said(e)) for e in run.findings]
        yield from table_lines(("severity", "finding", "where", "what"), rows)
    for section in run.after_findings:
        yield from section_lines(section, "###")


def _said(finding: FindingRow) -> str:
    """What happened, and why, where the cause is not that of the run."""
    return finding.episode.message + (f" Cause: {finding.cause}" if finding.cause else "")
