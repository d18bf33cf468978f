"""Tools for assistants: questions about runs, with small answers in plain JSON; and the MCP server that offers them.

Guarantees: nothing is written anywhere; an answer has at most about ten kilobytes, however long the run is. Every tool
is marked as read-only; an error about a run is answered in one sentence; only the protocol goes to stdout.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from numpy.typing import NDArray

import mlflow_stability
from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.diagnose import concluded, history_of
from mlflow_stability.analysis.source import last_runs
from mlflow_stability.diagnosis.checklist.checklist import checklist_of
from mlflow_stability.errors import SettingsError, StabilityError
from mlflow_stability.manual.pages import Page, explained_names, reference
from mlflow_stability.reports.brief import brief, brief_finding
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.formats.json import json_value
from mlflow_stability.vocabulary.argument import did_you_mean
from mlflow_stability.vocabulary.result import Diagnosis, RunCard, Severity
from mlflow_stability.vocabulary.run import RunHistory

LAST = "last"  # name of the newest run
CACHE_SECONDS, CACHED_RUNS = 60.0, 4
MAX_RUNS, MAX_FINDINGS, MAX_POINTS, MAX_NAMES, MAX_DIFFERENCES = 20, 50, 500, 100, 12
MAX_TEXT, MAX_ANSWER = 300, 200  # characters of a text


class RunTools:
    """Answers questions about the runs of one tracking store, and about logs on this machine."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self._uri = tracking_uri
        self._cache: dict[str, tuple[float, RunHistory, Diagnosis]] = {}

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
        comparison = compare(
            sources,
            experiment=experiment or None,
            filter=filter or None,
            baseline=baseline or None,
            tracking_uri=self._uri,
        )
        cards = [card for card in comparison.cards if card.readable]
        shown = cards if len(cards) <= MAX_RUNS else [*cards[: MAX_RUNS // 2], *cards[-MAX_RUNS // 2 :]]
        answer: dict[str, Any] = {
            "summary": comparison.summary,
            "runs_most_stable_first": [_card(card) for card in shown],
            "runs_left_out": len(cards) - len(shown),
            "associated_with_instability": [
                _cut(association.statement)
                for association in (comparison.cohort.associations if comparison.cohort else ())
            ],
            "differences": {
                _cut(param.name): [None if value is None else _cut(value, 60) for value in param.values[:MAX_RUNS]]
                for param in comparison.differences[:MAX_DIFFERENCES]
            },
            "not_read": [_cut(card.error) for card in comparison.unread[:MAX_DIFFERENCES]],
        }
        if comparison.first_difference is not None:
            answer["first_difference"] = comparison.first_difference.sentence
        if comparison.gate is not None:
            answer["baseline"] = {
                "passed": comparison.gate.passed,
                "worse": {
                    verdict.name or verdict.source: [_cut(reason) for reason in verdict.reasons]
                    for verdict in comparison.gate.verdicts[:MAX_RUNS]
                    if not verdict.passed
                },
            }
        return answer

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
        findings = [
            item for item in self._read(run)[1].findings if item.severity >= floor and issue_type in ("", item.kind)
        ]
        page = [
            brief_finding(item)
            | {"metrics": {name: json_value(value) for name, value in item.metrics.items()}}
            | {"remedies": [_cut(str(remedy)) for remedy in item.remedies]}
            for item in findings[max(0, offset) :][: max(1, min(limit, MAX_FINDINGS))]
        ]
        return {"total": len(findings), "offset": max(0, offset), "findings": page}

    def explain(self, name: str) -> str:
        """Explain a finding or a cause, such as "loss_spike" or "bad_batch".

        What it means, how it is detected, what to do, when it is wrong, its thresholds.
        """
        key = name.strip().lower().replace("-", "_").replace(" ", "_")
        text = reference(key)
        if text is None:
            names = explained_names()
            near = did_you_mean(key, names) or f" There are {', '.join(names)}."
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
        names = [metric.name for metric in history.metrics]
        if not metric:
            return {"metrics": [_cut(name) for name in names[:MAX_NAMES]], "more": max(0, len(names) - MAX_NAMES)}
        by_name = [item for item in history.metrics if item.name == metric]
        whole = [item for item in history.metrics if item.meaning.quantity == metric and not item.meaning.place]
        chosen = next(iter([*by_name, *whole]), None)
        if chosen is None:
            near = did_you_mean(metric, names) or " Call load_series without metric to list them."
            raise SettingsError(f"The run has no metric {plain(metric, 60)!r}.{near}")
        series = chosen.series
        within = np.ones(len(series), bool)
        if first_step is not None:
            within &= series.steps >= first_step
        if last_step is not None:
            within &= series.steps <= last_step
        steps, values = series.steps[within], series.values[within]
        kept = thinned(values, max(2, min(max_points, MAX_POINTS)))
        return {
            "metric": _cut(chosen.name),
            "points": len(steps),
            "thinned_to": len(kept),
            "series": [[int(steps[index]), json_value(float(f"{values[index]:.6g}"))] for index in kept],
        }

    def run_checklist(self, run: str = LAST, finding: str = "") -> dict[str, Any]:
        """Go through what to check when a training is wrong, with what the run shows for each, and what to decide.

        `finding` chooses the questions, such as "nan_detected"; without it they are those of the run's worst finding.
        """
        checklist = checklist_of(finding, *self._read(run))
        return {
            "finding": checklist.kind,
            "note": checklist.note,
            "checks": [
                {"question": item.question, "state": item.state, "shows": _cut(item.finding, MAX_ANSWER)}
                | ({} if item.state == "ok" else {"manual_check": _cut(item.how, MAX_ANSWER)})
                for item in checklist.items
            ],
            "decisions": [{"when": decision.when, "do": decision.do} for decision in checklist.decisions],
        }

    def _read(self, run: str) -> tuple[RunHistory, Diagnosis]:
        now = time.monotonic()
        self._cache = {name: entry for name, entry in self._cache.items() if now - entry[0] < CACHE_SECONDS}
        if run not in self._cache:
            source = last_runs(1, self._uri)[0] if run in ("", LAST) else run
            history = history_of(source, self._uri)
            while len(self._cache) >= CACHED_RUNS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[run] = now, history, concluded(history, None)
        return self._cache[run][1:]


def thinned(values: NDArray[np.float64], max_points: int) -> list[int]:
    """Return the indices to keep of a series: in each stretch the lowest, the highest and the first non-finite one."""
    if len(values) <= max_points:
        return list(range(len(values)))
    kept: set[int] = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), max(1, (max_points - 2) // 3)):
        part = values[stretch]
        finite = np.isfinite(part)
        if finite.any():
            kept |= {
                int(stretch[np.argmin(np.where(finite, part, np.inf))]),
                int(stretch[np.argmax(np.where(finite, part, -np.inf))]),
            }
        if not finite.all():
            kept.add(int(stretch[np.argmin(finite)]))
    return sorted(kept)


def _card(card: RunCard) -> dict[str, Any]:
    return {
        "source": _cut(card.source, 120),
        "name": _cut(card.name, 120),
        "outcome": card.outcome,
        "verdict": _cut(card.verdict, 160),
        "cause": card.cause,
        "first_issue_step": card.onset,
        "last_step": card.last_step,
        "final_loss": json_value(card.final_loss),
        "best_loss": json_value(card.best_loss),
    }


def _cut(text: str, max_length: int = MAX_TEXT) -> str:
    escaped = plain(text)
    return escaped if len(escaped) <= max_length else f"{escaped[: max_length - 3]}..."


INSTRUCTIONS = (
    "Diagnoses PyTorch training runs in MLflow, and training logs: what went wrong, when, why, what to change. "
    "Call diagnose_run first; list_findings, load_series and explain look closer; compare_runs is for several runs. "
    "Pages of the manual are resources: manual://diagnosis says how to read a diagnosis. Everything is read-only."
)


def server_of(tools: RunTools, pages: Iterable[Page]) -> MCPServer[Any]:
    """Return the server, ready to run over stdin and stdout."""
    server: MCPServer[Any] = MCPServer(
        "mlflow-stability", instructions=INSTRUCTIONS, version=mlflow_stability.__version__, log_level="WARNING"
    )
    for tool in (
        tools.diagnose_run,
        tools.compare_runs,
        tools.list_findings,
        tools.explain,
        tools.load_series,
        tools.run_checklist,
    ):
        server.add_tool(
            _with_tool_errors(tool), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False)
        )
    for page in pages:
        server.resource(
            f"manual://{page.name}", name=page.name, title=page.title, description=f"Manual: {page.title}",
            mime_type="text/markdown",
        )(page.text)  # fmt: skip
    return server


def _with_tool_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors of this package into answers that an assistant can act on."""

    @functools.wraps(tool)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except StabilityError as error:
            raise ToolError(str(error)) from None

    return wrapper
