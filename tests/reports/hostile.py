"""Reports in which every text from outside is hostile, for hypothesis."""

from __future__ import annotations

from dataclasses import replace

from findings import changed
from hypothesis import strategies as st
from reports.samples import broken, nan, spike

from mlflow_stability.reports.report import Failure, Report
from mlflow_stability.vocabulary.result import Action, Cause, Diagnosis, NotJudged, Remedy, Text

HOSTILE = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b2J",
    "[bold red]x[/]",
    "[link=http://evil]x[/link]",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='x",
    "</style>",
    "-->",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "| a | b |",
    "`code`",
    "```",
    "\n# heading",
    "\r\n\r\n- item",
    "1. first",
    "C #",
    "&copy;",
    "\\",
    "!",
    "(http://evil)",
    "    code",
    "> quote",
    "===",
    "[text](http://evil)",
    "www.evil.example",
    "a@evil.example",
    "**bold**",
    "_under_",
    "~~~",
    "$x$",
    "&lt;",
    "=1+1",
    "@SUM(A1)",
    "+1",
    "-1",
    "\u202egnp.exe",
    "\u2066\u2069",
    "\u200b",
    "\ufeff",
    "\x00",
    "\ud800",
    "\U000e0041",
    "loss",
    " ",
)
PIECES = st.sampled_from(HOSTILE)
TEXTS = st.one_of(
    st.lists(PIECES, min_size=1, max_size=4).map("".join),
    st.text(st.characters(codec=None), max_size=30),
)


@st.composite
def hostile_diagnoses(draw: st.DrawFn) -> Diagnosis:
    def text() -> str:
        return draw(TEXTS)

    def remedy() -> Remedy:
        drawn = draw(st.sampled_from([Action.INSPECT_MODULE, Action.INSPECT_BATCH, Action.IN_WORDS]))
        return Remedy(drawn, step=7, unit=text(), module=text(), path=text(), text=text())

    def hostile_cause() -> Cause:
        return Cause(text(), text(), (text(),), (text(),), (text(),), place=text(), kind=text(), step=1)

    whole = broken()
    return replace(
        whole,
        source=text(),
        name=text(),
        basis=text(),
        verdict=text(),
        ended=text(),
        findings=(
            changed(spike(), message=text(), metric=text(), place=text(), remedies=(remedy(),), cause=hostile_cause()),
            changed(nan(), kind=text(), also=(Text("", ((text(), 1.0),)),)),
        ),
        cause=hostile_cause(),
        remedies=(remedy(),),
        curves=(replace(whole.curves[0], metric=text(), trend=text()),),
        sketches=(replace(whole.sketches[0], metric=text()),),
        cannot_tell=(NotJudged(text()),),
        notes=(text(), text()),
    )


@st.composite
def hostile_reports(draw: st.DrawFn) -> Report:
    diagnoses = draw(st.lists(hostile_diagnoses(), max_size=2))
    failures = draw(st.lists(st.builds(Failure, TEXTS, TEXTS, st.booleans()), max_size=1))
    return Report(tuple(diagnoses), tuple(failures))
