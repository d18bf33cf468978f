"""Shows a report to a person at a terminal.

In: a `Report` and a console. Out: for each run what became of it, its loss with the episodes marked beneath, what
happened, why, and what to do; a table above them where there are several. Promised: everything that only colour says
is said in words too, and nothing that a log brought along reaches the terminal as anything but visible text.
"""

from __future__ import annotations

from mlflow_stability.reports import wording
from mlflow_stability.reports.pen import Pen, written
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.terminal_run import show_run
from mlflow_stability.reports.terminal_table import show_table
from mlflow_stability.vocabulary.diagnosis import Diagnosis
from mlflow_stability.vocabulary.event import Severity

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
