"""Writes a report as Markdown, for a pull request, an issue or a notebook.

In: a `Report`. Out: GitHub-flavoured Markdown. Promised: nothing that a log brought along becomes structure: no
heading, link, table cell, code or HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.words import run_phrases as wording
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.episode import Episode


def render(report: Report) -> str:
    """The report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# Training diagnosis"
    yield ""
    yield f"{wording.read(report)}: {wording.counts(report)}."
    if len(report.diagnoses) > 1:
        yield from _overview(report)
    for diagnosis in report.diagnoses:
        yield from _run(diagnosis)
    if report.failures:
        yield from _list("What could not be read", [f"{each.source}: {each.message}" for each in report.failures], "##")


def _overview(report: Report) -> Iterator[str]:
    rows = [
        (
            each.source,
            wording.outcome(each),
            f"{each.steps[1]:,}" if each.steps else "",
            wording.counts_of(each),
            each.verdict,
        )
        for each in report.diagnoses
    ]
    yield from _table(("run", "outcome", "last step", "found", "verdict"), rows)


def _run(diagnosis: Diagnosis) -> Iterator[str]:
    yield ""
    yield f"## {markdown(diagnosis.name or diagnosis.source)}"
    yield ""
    word, sentence = wording.headline(diagnosis)
    yield f"**{markdown(word)}:** {markdown(sentence)}"
    yield ""
    if diagnosis.source != diagnosis.name:
        yield f"- source: {markdown(diagnosis.source)}"
    yield f"- read: {markdown(wording.basis(diagnosis))}"
    yield f"- judged: {markdown(wording.judged(diagnosis))}"
    ending = wording.ending(diagnosis)
    if ending is not None:
        yield f"- {ending[0]}: {markdown(ending[1])}"
    yield f"- found: {wording.counts_of(diagnosis)}"
    if diagnosis.episodes:
        yield from _heading("What happened")
        rows = [(e.severity.name, e.kind, wording.where(e), _told(e, diagnosis)) for e in diagnosis.episodes]
        yield from _table(("severity", "issue", "where", "what"), rows)
    if diagnosis.cause is not None:
        yield from _heading("Why")
        yield ""
        yield f"**{markdown(wording.cause_name(diagnosis.cause))}**: {markdown(diagnosis.cause.statement)}"
        yield ""
        if wording.explained(diagnosis):
            yield f"- explains {markdown(wording.explained(diagnosis))}"
        yield from (f"- {markdown(each)}" for each in diagnosis.cause.evidence)
        yield from (f"- {word}: {markdown(each)}" for word, each in wording.weighed(diagnosis.cause))
    yield from _list("What to do", diagnosis.remedies)
    if diagnosis.curves:
        yield from _heading("Curves")
        curves = [(r.metric, wording.curve(r), wording.character(r), wording.figures(r)) for r in diagnosis.curves]
        yield from _table(("metric", "course", "character", "figures"), curves)
    yield from _list("What could not be told", diagnosis.cannot_tell)
    yield from _list("Remarks", diagnosis.notes)


def _told(episode: Episode, diagnosis: Diagnosis) -> str:
    """What happened, and why, where the cause is not that of the run."""
    cause = wording.own_cause(episode, diagnosis)
    if cause is None:
        return episode.message
    return f"{episode.message} Cause: {wording.cause_name(cause)}: {cause.statement}"


def _heading(title: str, level: str = "###") -> Iterator[str]:
    yield ""
    yield f"{level} {title}"


def _list(title: str, sentences: Sequence[str], level: str = "###") -> Iterator[str]:
    if sentences:
        yield from _heading(title, level)
        yield ""
        yield from (f"- {markdown(each)}" for each in sentences)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(markdown(cell) for cell in row)} |"
