"""What an assistant may ask about runs: each question a method, each answer small and plain JSON.

In: names of runs, and what is asked of them. Out: dictionaries; a sentence that says what to do where there is no
answer. Guarantees: nothing is written anywhere; an answer has at most some ten kilobytes, however long the run was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.diagnose import concluded, history_of
from mlflow_stability.analysis.named_run import last_runs
from mlflow_stability.diagnosis.checklist.checklist import checklist_of
from mlflow_stability.errors import SettingsError
from mlflow_stability.manual.references import explained_names, section
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.run.brief import brief, finding
from mlflow_stability.reports.run.json_document import number
from mlflow_stability.vocabulary.argument import did_you_mean
from mlflow_stability.vocabulary.result import Diagnosis, Severity
from mlflow_stability.vocabulary.run import Metric, RunCard, RunHistory

LAST = "last"
"""What names the newest run."""
REMEMBERED, FEW_REMEMBERED = 60.0, 4
"""For so many seconds what was read of so many runs is not read again."""
MOST_RUNS, MOST_FINDINGS, MOST_POINTS, MOST_NAMES, MOST_DIFFERENCES = 20, 50, 500, 100, 12
LONGEST, MOST_SHOWN = 300, 200


class RunTools:
    """Answers questions about the runs of one tracking store, and about logs on this machine."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self._uri = tracking_uri
        self._known: dict[str, tuple[float, RunHistory, Diagnosis]] = {}

    def diagnose_run(self, run: str = LAST) -> dict[str, Any]:
        """Diagnose one training run: verdict, likely cause with evidence, what to do, the worst findings.

        Begin with this. `run` is a run id, its beginning, the name of a run, the path of a training log, or "last".
        """
        return brief(self._read(run)[1])

    def compare_runs(
        self,
        runs: Sequence[str] = (),
        experiment: str = "",
        filter: str = "",  # noqa: A002 - as `compare` calls it
        last: int = 0,
        baseline: str = "",
    ) -> dict[str, Any]:
        """Compare runs: which are unstable, since which step, what they have in common, where two first differ.

        Give `runs` (ids, names or paths), or an `experiment` with an optional `filter` in MLflow's syntax, or `last`,
        the number of newest runs. With `baseline`, says which runs are worse than that one.
        """
        sources = [*runs, *(last_runs(last, self._uri) if last > 0 else ())]
        found = compare(
            sources,
            experiment=experiment or None,
            filter=filter or None,
            baseline=baseline or None,
            tracking_uri=self._uri,
        )
        cards = [each for each in found.cards if each.readable]
        shown = cards if len(cards) <= MOST_RUNS else [*cards[: MOST_RUNS // 2], *cards[-MOST_RUNS // 2 :]]
        said: dict[str, Any] = {
            "summary": found.summary,
            "runs_most_stable_first": [_card(each) for each in shown],
            "runs_left_out": len(cards) - len(shown),
            "associated_with_instability": [
                _cut(each.statement) for each in (found.cohort.associations if found.cohort else ())
            ],
            "differences": {
                _cut(each.name): [None if value is None else _cut(value, 60) for value in each.values[:MOST_RUNS]]
                for each in found.differences[:MOST_DIFFERENCES]
            },
            "not_read": [_cut(each.error) for each in found.unread[:MOST_DIFFERENCES]],
        }
        if found.first_difference is not None:
            said["first_difference"] = found.first_difference.sentence
        if found.gate is not None:
            said["baseline"] = {
                "passed": found.gate.passed,
                "worse": {
                    each.name or each.source: [_cut(reason) for reason in each.reasons]
                    for each in found.gate.verdicts[:MOST_RUNS]
                    if not each.passed
                },
            }
        return said

    def list_findings(
        self, run: str = LAST, issue_type: str = "", severity: str = "warning", limit: int = 20, offset: int = 0
    ) -> dict[str, Any]:
        """List the findings of a run in the order of their steps, with their numbers and remedies.

        `severity` is the lowest to list: "info", "warning" or "critical"; `issue_type` narrows to one, such as
        "loss_spike". `offset` and `limit` page through them.
        """
        floor = Severity.__members__.get(severity.upper())
        if floor is None:
            raise SettingsError(f"severity must be info, warning or critical; got {plain(severity, 60)!r}.")
        wanted = [
            each for each in self._read(run)[1].findings if each.severity >= floor and issue_type in ("", each.kind)
        ]
        shown = wanted[max(0, offset) :][: max(1, min(limit, MOST_FINDINGS))]
        told = [
            finding(each)
            | {"metrics": {name: number(value) for name, value in each.metrics.items()}}
            | {"remedies": [_cut(str(remedy)) for remedy in each.remedies]}
            for each in shown
        ]
        return {"total": len(wanted), "offset": max(0, offset), "findings": told}

    def explain(self, name: str) -> str:
        """Explain a finding or a cause, such as "loss_spike" or "bad_batch".

        What it means, how it is detected, what to do, when it is wrong, its thresholds.
        """
        asked = name.strip().lower().replace("-", "_").replace(" ", "_")
        text = section(asked)
        if text is None:
            names = explained_names()
            near = did_you_mean(asked, names) or f" There are {', '.join(names)}."
            raise SettingsError(f"No such finding or cause: {plain(name, 60)!r}.{near}")
        return text

    def load_series(
        self,
        run: str = LAST,
        metric: str = "",
        max_points: int = 200,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> dict[str, Any]:
        """Load one metric of a run as [step, value] pairs, thinned so that every extreme stays.

        Without `metric`, lists the metrics there are. `first_step` and `last_step` look closer at a stretch.
        """
        history, _ = self._read(run)
        names = [each.name for each in history.metrics]
        if not metric:
            return {"metrics": [_cut(each) for each in names[:MOST_NAMES]], "more": max(0, len(names) - MOST_NAMES)}
        found = _metric(history, metric)
        if found is None:
            near = did_you_mean(metric, names) or " Call load_series without metric to list them."
            raise SettingsError(f"The run has no metric {plain(metric, 60)!r}.{near}")
        series = found.series
        within = np.ones(len(series), bool)
        if first_step is not None:
            within &= series.steps >= first_step
        if last_step is not None:
            within &= series.steps <= last_step
        steps, values = series.steps[within], series.values[within]
        kept = thinned(values, max(2, min(max_points, MOST_POINTS)))
        return {
            "metric": _cut(found.name),
            "points": len(steps),
            "thinned_to": len(kept),
            "series": [[int(steps[each]), number(float(f"{values[each]:.6g}"))] for each in kept],
        }

    def run_checklist(self, run: str = LAST, finding: str = "") -> dict[str, Any]:
        """Go through what to check when a training is wrong, with what the run shows for each, and what to decide.

        `finding` chooses the questions, such as "nan_detected"; without it they are those of the run's worst finding.
        """
        found = checklist_of(finding, *self._read(run))
        return {
            "finding": found.kind,
            "note": found.note,
            "checks": [
                {"question": each.question, "state": each.state, "shows": _cut(each.finding, MOST_SHOWN)}
                | ({} if each.state == "ok" else {"manual_check": _cut(each.how, MOST_SHOWN)})
                for each in found.items
            ],
            "decisions": [{"when": each.when, "do": each.do} for each in found.decisions],
        }

    def _read(self, run: str) -> tuple[RunHistory, Diagnosis]:
        """A run and what is concluded about it; what was read just now is remembered."""
        now = time.monotonic()
        self._known = {name: each for name, each in self._known.items() if now - each[0] < REMEMBERED}
        if run not in self._known:
            source = last_runs(1, self._uri)[0] if run in ("", LAST) else run
            history = history_of(source, self._uri)
            while len(self._known) >= FEW_REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[run] = now, history, concluded(history, None)
        return self._known[run][1:]


def thinned(values: NDArray[np.float64], most: int) -> list[int]:
    """Which values to keep of a series: of each stretch its lowest, its highest, and what is not finite first."""
    if len(values) <= most:
        return list(range(len(values)))
    kept: set[int] = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), max(1, (most - 2) // 3)):
        known = values[stretch]
        finite = np.isfinite(known)
        if finite.any():
            kept |= {
                int(stretch[np.argmin(np.where(finite, known, np.inf))]),
                int(stretch[np.argmax(np.where(finite, known, -np.inf))]),
            }
        if not finite.all():
            kept.add(int(stretch[np.argmin(finite)]))
    return sorted(kept)


def _metric(history: RunHistory, asked: str) -> Metric | None:
    """By its own name; else by the quantity it is, of the whole model."""
    by_name = next((each for each in history.metrics if each.name == asked), None)
    return by_name or next(
        (each for each in history.metrics if each.meaning.quantity == asked and not each.meaning.place), None
    )


def _card(card: RunCard) -> dict[str, Any]:
    return {
        "source": _cut(card.source, 120),
        "name": _cut(card.name, 120),
        "outcome": card.outcome,
        "verdict": _cut(card.verdict, 160),
        "cause": card.cause,
        "first_issue_step": card.onset,
        "last_step": card.last_step,
        "final_loss": number(card.final_loss),
        "best_loss": number(card.best_loss),
    }


def _cut(text: str, longest: int = LONGEST) -> str:
    shown = plain(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
