"""Shows a report to a person at a terminal.

In: a `Report` and a console. Out: for each run what became of it, its loss with the episodes marked beneath, what
happened, why, and what to do; a table above them where there are several. Promised: everything that only colour says
is said in words too, and nothing that a log brought along reaches the terminal as anything but visible text.

Shows one run on a terminal: verdict, loss, what happened, why, what to do, what could not be told.

Shows many runs on a terminal, a row for each, in the order asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.html_kit.sketched import Sketched, sketches_of
from mlflow_stability.reports.report import Report, is_from_store
from mlflow_stability.reports.terminal_kit import (
    GUTTER,
    OUTCOME_STYLES,
    Pen,
    axis,
    draw,
    mark_line,
    number_text,
    written,
)
from mlflow_stability.reports.words import run_phrases as wording
from mlflow_stability.vocabulary.result.cause import Cause
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity

CURVE_ROWS = 6
FEW_EPISODES, FEW_BIRTHS, FEW_CURVES, FEW_REMEDIES, FEW_REASONS = 12, 2, 2, 5, 4
_Row = tuple[Text, Text]
_Numbered = Sequence[tuple[int, Episode]]


def show_run(pen: Pen, diagnosis: Diagnosis) -> None:
    """Everything about one run; without `verbose`, what fits on a page."""
    numbered = _numbered(pen, diagnosis)
    pen.rule(diagnosis.name or diagnosis.source)
    pen.console.print(_headline(pen, diagnosis))
    pen.section("Summary", _facts(pen, diagnosis))
    _show_curves(pen, diagnosis, numbered)
    pen.section("What happened", _happened(pen, diagnosis, numbered))
    pen.section("Why", _why(pen, diagnosis))
    pen.section("What to do", _to_do(pen, diagnosis))
    pen.section("What could not be told", _some(pen, diagnosis.cannot_tell, FEW_REASONS))
    pen.section("Remarks", _some(pen, diagnosis.notes, FEW_REASONS))


def show_gist(pen: Pen, diagnosis: Diagnosis, title: str) -> None:
    """What became of a run and why, in a few lines."""
    pen.console.print()
    pen.console.print(pen.text(title, "bold"))
    pen.console.print(Padding(_headline(pen, diagnosis), (0, 0, 0, 2)))
    for _, cause in islice(_why(pen, diagnosis), 1):
        pen.console.print(Padding(Text.assemble("Cause: ", cause), (0, 0, 0, 2)))


def _headline(pen: Pen, diagnosis: Diagnosis) -> Text:
    word, sentence = wording.headline(diagnosis)
    return Text.assemble(pen.text(f"{word}:", OUTCOME_STYLES[diagnosis.outcome]), " ", pen.text(sentence))


def _numbered(pen: Pen, diagnosis: Diagnosis) -> _Numbered:
    """The episodes to show, in order of time; without `verbose` the worst of those above INFO and what is not said yet.

    Where a NaN was born is what people look for: it is shown unless the cause says it.
    """
    episodes = diagnosis.episodes
    places = [place for place, each in enumerate(episodes) if pen.verbose or each.severity > Severity.INFO]
    if not pen.verbose:
        places = sorted(places, key=lambda place: -episodes[place].severity)[:FEW_EPISODES]
        births = [place for place, each in enumerate(episodes) if wording.is_unsaid_birth(each, diagnosis)]
        places = sorted({*places, *births[:FEW_BIRTHS]})
    return [(number, episodes[place]) for number, place in enumerate(places, start=1)]


def _facts(pen: Pen, diagnosis: Diagnosis) -> Iterator[_Row]:
    if diagnosis.source != diagnosis.name:
        yield pen.text("source", "dim"), pen.text(diagnosis.source)
    yield pen.text("read", "dim"), pen.text(wording.basis(diagnosis))
    yield pen.text("judged", "dim"), pen.text(wording.judged(diagnosis))
    if pen.verbose:
        yield from ((pen.text("", "dim"), pen.text(reason, "dim")) for reason in diagnosis.judged.reasons)
    ending = wording.ending(diagnosis)
    if ending is not None:
        yield pen.text(ending[0], "dim"), pen.text(ending[1])
    yield pen.text("found", "dim"), pen.text(wording.counts_of(diagnosis))
    for reading in diagnosis.curves if pen.verbose else diagnosis.curves[:FEW_CURVES]:
        said = [wording.curve(reading), wording.character(reading), wording.figures(reading) if pen.verbose else ""]
        yield pen.text(reading.metric, "dim"), pen.text("; ".join(part for part in said if part))


def _show_curves(pen: Pen, diagnosis: Diagnosis, numbered: _Numbered) -> None:
    """The first curve with every mark, and that of the first bad episode; when asked for, all others."""
    decisive = next((each.metric for each in diagnosis.episodes if each.severity > Severity.INFO), "")
    for place, curve in enumerate(sketches_of(diagnosis)):
        if place == 0 or pen.verbose or curve.metric == decisive:
            _show_curve(
                pen, curve, diagnosis.unit, [one for one in numbered if place == 0 or one[1].metric == curve.metric]
            )


def _show_curve(pen: Pen, curve: Sketched, unit: str, numbered: _Numbered) -> None:
    width = pen.console.width - 2
    title = pen.text(curve.metric, "bold cyan")
    title.truncate(width // 2, overflow="ellipsis" if pen.unicode else "crop")
    last = f"{number_text(curve.final)} at {unit} {curve.last:,}" + (", log scale" if curve.logarithmic else "")
    pen.console.print()
    pen.console.print(Text.assemble(title, " " * max(1, width - title.cell_len - len(last)), last))
    for line in _drawn(pen, curve, width):
        pen.console.print(Text(line, "cyan", no_wrap=True))
    if numbered:
        pen.console.print(mark_line(numbered, curve.first, curve.last, width, unicode=pen.unicode))
    pen.console.print(Text(axis(curve.first, curve.last, width), "dim", no_wrap=True))


def _drawn(pen: Pen, curve: Sketched, width: int) -> list[str]:
    """The curve alone; its axis comes beneath the marks."""
    if not curve.finite.any():
        return [" " * GUTTER + "no finite value"]
    values = np.stack([curve.low, curve.high], axis=1).reshape(-1)
    steps, values = np.append(np.repeat(curve.steps, 2), curve.last), np.append(values, np.nan)
    return draw(steps, values, width, CURVE_ROWS, dots=pen.unicode, logarithmic=curve.logarithmic)[:-1]


def _happened(pen: Pen, diagnosis: Diagnosis, numbered: _Numbered) -> Iterator[_Row]:
    for number, episode in numbered:
        style = pen.style(episode.severity)
        head = Text.assemble(
            pen.text(f"{episode.severity.name} {episode.kind}", style), "  ", pen.text(wording.where(episode), "dim")
        )
        lines = _lines_about(pen, episode, wording.own_cause(episode, diagnosis))
        yield pen.text(str(number), style), Text("\n").join([head, *lines])
    hidden = Counter((each.severity > Severity.INFO, each.kind) for each in diagnosis.episodes)
    hidden.subtract((each.severity > Severity.INFO, each.kind) for _, each in numbered)
    for bad, title in ((True, "not shown"), (False, "for your information")):
        kinds = [
            f"{kind} ({left})" if left > 1 else kind
            for (is_bad, kind), left in hidden.items()
            if left and is_bad is bad
        ]
        if kinds:
            yield pen.text("-", "dim"), pen.text(f"{title}: {', '.join(kinds)}; --verbose shows more", "dim")


def _lines_about(pen: Pen, episode: Episode, cause: Cause | None) -> Iterator[Text]:
    yield pen.text(episode.message)
    if cause is not None:
        yield pen.text(f"cause: {wording.cause_name(cause)}: {cause.statement}", "dim")
    if pen.verbose:
        if episode.evidence:
            yield pen.text(wording.evidence(episode), "dim")
        for remedy in episode.remedies:
            yield pen.text(f"-> {remedy}", "green")


def _why(pen: Pen, diagnosis: Diagnosis) -> Iterator[_Row]:
    cause = diagnosis.cause
    if cause is None:
        return
    name, explained = pen.text(wording.cause_name(cause), "bold"), wording.explained(diagnosis)
    yield pen.text(""), Text.assemble(name, ": ", pen.text(cause.statement))
    if explained:
        yield pen.text(""), pen.text(f"explains {explained}", "dim")
    for said in cause.evidence:
        yield pen.text("+", "green"), pen.text(said)
    for word, said in wording.weighed(cause):
        yield pen.text("-", "dim"), pen.text(f"{word}: {said}", "dim")


def _to_do(pen: Pen, diagnosis: Diagnosis) -> Iterator[_Row]:
    shown = diagnosis.remedies if pen.verbose else diagnosis.remedies[:FEW_REMEDIES]
    for number, remedy in enumerate(shown, start=1):
        yield pen.text(f"{number}.", "green"), pen.text(remedy)


def _some(pen: Pen, sentences: Sequence[str], few: int) -> Iterator[_Row]:
    shown = sentences if pen.verbose or len(sentences) <= few + 1 else sentences[:few]
    for sentence in shown:
        yield pen.text("-", "dim"), pen.text(sentence)
    if len(shown) < len(sentences):
        yield pen.text("-", "dim"), pen.text(f"{len(sentences) - len(shown)} more; --verbose shows them", "dim")


SHORT = 12
"""A folder whose name is no longer than this is repeated in every row; a longer one is named once."""


def show_table(pen: Pen, report: Report) -> None:
    """What was read, what was found, and a row for each run."""
    pen.console.print(pen.text(f"{wording.read(report)}: {wording.counts(report)}", "bold"))
    if not report.diagnoses:
        return
    folder = _shared_folder(report.diagnoses)
    if folder:
        pen.console.print(pen.text(f"in {folder}", "dim"))
    pen.console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold", max_width=pen.console.width // 2)
    table.add_column("outcome", no_wrap=True)
    table.add_column("last step", no_wrap=True, justify="right")
    for severity in ("crit", "warn", "info"):
        table.add_column(severity, no_wrap=True, justify="right")
    for diagnosis in report.diagnoses:
        table.add_row(*_cells(pen, diagnosis, folder))
    pen.console.print(table)


def _cells(pen: Pen, diagnosis: Diagnosis, folder: str) -> list[Text]:
    source = diagnosis.source.removeprefix(folder)
    name = source if diagnosis.name in source else f"{diagnosis.name} ({source})"
    steps = f"{diagnosis.steps[1]:,}" if diagnosis.steps else "-"
    cells = [pen.text(name), pen.text(wording.outcome(diagnosis), OUTCOME_STYLES[diagnosis.outcome]), pen.text(steps)]
    for severity in sorted(Severity, reverse=True):
        count = sum(each.severity is severity for each in diagnosis.episodes)
        cells.append(pen.text(str(count), pen.style(severity)) if count else pen.text("-", "dim"))
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
    return written(lambda console: show(Pen(console, unicode=unicode, verbose=verbose), report), width)


def show(pen: Pen, report: Report) -> None:
    """Write the report."""
    alone = len(report.diagnoses) == 1
    if not alone:
        show_table(pen, report)
    left_out = []
    for diagnosis in report.diagnoses:
        if alone or pen.verbose or _worth_a_look(diagnosis):
            show_run(pen, diagnosis)
        else:
            left_out.append(diagnosis)
    unclear = [each for each in left_out if each.outcome == "cannot_tell"]
    rows = ((pen.text(each.name or each.source), pen.text(wording.headline(each)[1])) for each in unclear)
    pen.section("What could not be judged", rows)
    if left_out and len(left_out) < len(report.diagnoses):
        pen.console.print()
        others = "1 run without trouble is" if len(left_out) == 1 else f"{len(left_out)} runs without trouble are"
        pen.console.print(pen.text(f"{others} in the table alone; --verbose shows everything.", "dim"))


def _worth_a_look(diagnosis: Diagnosis) -> bool:
    return diagnosis.severity > Severity.INFO or diagnosis.outcome not in wording.WELL
