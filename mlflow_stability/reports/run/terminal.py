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
    TerminalWriter,
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


def show_run(out: TerminalWriter, diagnosis: Diagnosis) -> None:
    """Everything about one run; without `verbose`, what fits on a page."""
    numbered = _numbered(out, diagnosis)
    out.rule(diagnosis.name or diagnosis.source)
    out.console.print(_headline(out, diagnosis))
    out.section("Summary", _facts(out, diagnosis))
    _show_curves(out, diagnosis, numbered)
    out.section("What happened", _happened(out, diagnosis, numbered))
    out.section("Why", _why(out, diagnosis))
    out.section("What to do", _to_do(out, diagnosis))
    out.section("What could not be told", _some(out, diagnosis.cannot_tell, FEW_REASONS))
    out.section("Remarks", _some(out, diagnosis.notes, FEW_REASONS))


def show_gist(out: TerminalWriter, diagnosis: Diagnosis, title: str) -> None:
    """What became of a run and why, in a few lines."""
    out.console.print()
    out.console.print(out.text(title, "bold"))
    out.console.print(Padding(_headline(out, diagnosis), (0, 0, 0, 2)))
    for _, cause in islice(_why(out, diagnosis), 1):
        out.console.print(Padding(Text.assemble("Cause: ", cause), (0, 0, 0, 2)))


def _headline(out: TerminalWriter, diagnosis: Diagnosis) -> Text:
    word, sentence = wording.headline(diagnosis)
    return Text.assemble(out.text(f"{word}:", OUTCOME_STYLES[diagnosis.outcome]), " ", out.text(sentence))


def _numbered(out: TerminalWriter, diagnosis: Diagnosis) -> _Numbered:
    """The episodes to show, in order of time; without `verbose` the worst of those above INFO and what is not said yet.

    Where a NaN was born is what people look for: it is shown unless the cause says it.
    """
    episodes = diagnosis.episodes
    places = [place for place, each in enumerate(episodes) if out.verbose or each.severity > Severity.INFO]
    if not out.verbose:
        places = sorted(places, key=lambda place: -episodes[place].severity)[:FEW_EPISODES]
        births = [place for place, each in enumerate(episodes) if wording.is_unsaid_birth(each, diagnosis)]
        places = sorted({*places, *births[:FEW_BIRTHS]})
    return [(number, episodes[place]) for number, place in enumerate(places, start=1)]


def _facts(out: TerminalWriter, diagnosis: Diagnosis) -> Iterator[_Row]:
    if diagnosis.source != diagnosis.name:
        yield out.text("source", "dim"), out.text(diagnosis.source)
    yield out.text("read", "dim"), out.text(wording.basis(diagnosis))
    yield out.text("judged", "dim"), out.text(wording.judged(diagnosis))
    if out.verbose:
        yield from ((out.text("", "dim"), out.text(reason, "dim")) for reason in diagnosis.judged.reasons)
    ending = wording.ending(diagnosis)
    if ending is not None:
        yield out.text(ending[0], "dim"), out.text(ending[1])
    yield out.text("found", "dim"), out.text(wording.counts_of(diagnosis))
    for reading in diagnosis.curves if out.verbose else diagnosis.curves[:FEW_CURVES]:
        said = [wording.curve(reading), wording.character(reading), wording.figures(reading) if out.verbose else ""]
        yield out.text(reading.metric, "dim"), out.text("; ".join(part for part in said if part))


def _show_curves(out: TerminalWriter, diagnosis: Diagnosis, numbered: _Numbered) -> None:
    """The first curve with every mark, and that of the first bad episode; when asked for, all others."""
    decisive = next((each.metric for each in diagnosis.episodes if each.severity > Severity.INFO), "")
    for place, curve in enumerate(sketches_of(diagnosis)):
        if place == 0 or out.verbose or curve.metric == decisive:
            _show_curve(
                out, curve, diagnosis.unit, [one for one in numbered if place == 0 or one[1].metric == curve.metric]
            )


def _show_curve(out: TerminalWriter, curve: Sketched, unit: str, numbered: _Numbered) -> None:
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


def _drawn(out: TerminalWriter, curve: Sketched, width: int) -> list[str]:
    """The curve alone; its axis comes beneath the marks."""
    if not curve.finite.any():
        return [" " * GUTTER + "no finite value"]
    values = np.stack([curve.low, curve.high], axis=1).reshape(-1)
    steps, values = np.append(np.repeat(curve.steps, 2), curve.last), np.append(values, np.nan)
    return draw(steps, values, width, CURVE_ROWS, dots=out.unicode, logarithmic=curve.logarithmic)[:-1]


def _happened(out: TerminalWriter, diagnosis: Diagnosis, numbered: _Numbered) -> Iterator[_Row]:
    for number, episode in numbered:
        style = out.style(episode.severity)
        head = Text.assemble(
            out.text(f"{episode.severity.name} {episode.kind}", style), "  ", out.text(wording.where(episode), "dim")
        )
        lines = _lines_about(out, episode, wording.own_cause(episode, diagnosis))
        yield out.text(str(number), style), Text("\n").join([head, *lines])
    hidden = Counter((each.severity > Severity.INFO, each.kind) for each in diagnosis.episodes)
    hidden.subtract((each.severity > Severity.INFO, each.kind) for _, each in numbered)
    for bad, title in ((True, "not shown"), (False, "for your information")):
        kinds = [
            f"{kind} ({left})" if left > 1 else kind
            for (is_bad, kind), left in hidden.items()
            if left and is_bad is bad
        ]
        if kinds:
            yield out.text("-", "dim"), out.text(f"{title}: {', '.join(kinds)}; --verbose shows more", "dim")


def _lines_about(out: TerminalWriter, episode: Episode, cause: Cause | None) -> Iterator[Text]:
    yield out.text(episode.message)
    if cause is not None:
        yield out.text(f"cause: {wording.cause_name(cause)}: {cause.statement}", "dim")
    if out.verbose:
        if episode.evidence:
            yield out.text(wording.evidence(episode), "dim")
        for remedy in episode.remedies:
            yield out.text(f"-> {remedy}", "green")


def _why(out: TerminalWriter, diagnosis: Diagnosis) -> Iterator[_Row]:
    cause = diagnosis.cause
    if cause is None:
        return
    name, explained = out.text(wording.cause_name(cause), "bold"), wording.explained(diagnosis)
    yield out.text(""), Text.assemble(name, ": ", out.text(cause.statement))
    if explained:
        yield out.text(""), out.text(f"explains {explained}", "dim")
    for said in cause.evidence:
        yield out.text("+", "green"), out.text(said)
    for word, said in wording.weighed(cause):
        yield out.text("-", "dim"), out.text(f"{word}: {said}", "dim")


def _to_do(out: TerminalWriter, diagnosis: Diagnosis) -> Iterator[_Row]:
    shown = diagnosis.remedies if out.verbose else diagnosis.remedies[:FEW_REMEDIES]
    for number, remedy in enumerate(shown, start=1):
        yield out.text(f"{number}.", "green"), out.text(remedy)


def _some(out: TerminalWriter, sentences: Sequence[str], few: int) -> Iterator[_Row]:
    shown = sentences if out.verbose or len(sentences) <= few + 1 else sentences[:few]
    for sentence in shown:
        yield out.text("-", "dim"), out.text(sentence)
    if len(shown) < len(sentences):
        yield out.text("-", "dim"), out.text(f"{len(sentences) - len(shown)} more; --verbose shows them", "dim")


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
    name = source if diagnosis.name in source else f"{diagnosis.name} ({source})"
    steps = f"{diagnosis.steps[1]:,}" if diagnosis.steps else "-"
    cells = [out.text(name), out.text(wording.outcome(diagnosis), OUTCOME_STYLES[diagnosis.outcome]), out.text(steps)]
    for severity in sorted(Severity, reverse=True):
        count = sum(each.severity is severity for each in diagnosis.episodes)
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
    left_out = []
    for diagnosis in report.diagnoses:
        if alone or out.verbose or _worth_a_look(diagnosis):
            show_run(out, diagnosis)
        else:
            left_out.append(diagnosis)
    unclear = [each for each in left_out if each.outcome == "cannot_tell"]
    rows = ((out.text(each.name or each.source), out.text(wording.headline(each)[1])) for each in unclear)
    out.section("What could not be judged", rows)
    if left_out and len(left_out) < len(report.diagnoses):
        out.console.print()
        others = "1 run without trouble is" if len(left_out) == 1 else f"{len(left_out)} runs without trouble are"
        out.console.print(out.text(f"{others} in the table alone; --verbose shows everything.", "dim"))


def _worth_a_look(diagnosis: Diagnosis) -> bool:
    return diagnosis.severity > Severity.INFO or diagnosis.outcome not in wording.WELL
