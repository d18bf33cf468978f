"""What other tools find in loss curves, beside what this one finds.

Each tool reads the same files: a `trainer_state.json` of Hugging Face for each run, which all of them document as
input, by the command of its own documentation with default options. Published rules get the same losses one by one. A
run is flagged if a tool reports something at WARNING or above, of any kind; of an ill curve, if that is not over before
the onset, where the tool says when it was.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from benchmarks.detection import Rule, published
from benchmarks.peers.drawn_curves import OTHERS, PEERS
from benchmarks.real_records import HEALTHY, NAMED_BY, rows_of
from benchmarks.table import Cell, Table, table_of

from mlflow_stability.analysis.diagnose import concluded, diagnose_all, in_place
from mlflow_stability.errors import StabilityError
from mlflow_stability.importers.open_log import read
from mlflow_stability.reports.report import Failure
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory

Points = Sequence[tuple[int, float]]
Judge = Callable[["LossCurve"], "list[float]"]
"""Returns the last step of each warning, infinity where the tool does not say when it was over."""
OURS = "mlflow-stability"
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "runmedic": ("runmedic.cli", ("diagnose", "FILE", "--json")),
    "finetune-doctor": ("finetune_doctor.cli", ("diagnose", "FILE", "--format", "json")),
    "trainspotter": ("trainspotter.cli", ("analyze", "FILE", "--output", "json")),
    "losslint": ("losslint.cli", ("check", "FILE", "--format", "json")),
}
"""The module with the `main()` of each tool's command, and its arguments."""
SERIOUS = ("warning", "error", "critical")
ABOUT_THE_LOG = ("no_eval",)
"""Findings about what was not logged, which a loss alone cannot avoid."""
FOR_OTHER_SIGNALS = ("ZClip z 2.5",)
"""Published rules that are made for gradient norms."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of one run, and the file that holds them."""

    file: Path
    losses: Points
    validations: Points = ()

    def write(self) -> LossCurve:
        rows = [{"step": step, "loss": loss} for step, loss in self.losses]
        rows += [{"step": step, "eval_loss": loss} for step, loss in self.validations]
        history = sorted(rows, key=lambda row: row["step"])
        state = {"global_step": history[-1]["step"], "log_history": history}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(state))
        return self


def ours(curve: LossCurve) -> list[float]:
    steps: list[float] = []
    for diagnosis in diagnose_all([curve.file]):
        if isinstance(diagnosis, Failure):
            raise SystemExit(diagnosis.reason)
        steps += [finding.end for finding in diagnosis.findings if finding.severity >= Severity.WARNING]
    return steps


def by_command(module: str, arguments: Sequence[str], curve: LossCurve) -> list[float]:
    """Run a tool's command in this process and read its JSON."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        importlib.import_module(module).main(
            [str(curve.file) if argument == "FILE" else argument for argument in arguments]
        )
    reports = json.loads(output.getvalue())
    findings = [
        finding for report in (reports if isinstance(reports, list) else [reports]) for finding in report["findings"]
    ]
    serious = [row for row in findings if row["severity"].lower() in SERIOUS and row.get("check") not in ABOUT_THE_LOG]
    return [item.get("step_end", math.inf) for item in serious]


def by_rule(name: str, curve: LossCurve) -> list[float]:
    rule: Rule = published()[name]
    return [step for step, loss in curve.losses if rule.bad(loss)]


def judges() -> dict[str, Judge | None]:
    """Return this tool, the others, and the published rules; None for what is not installed."""
    tools: dict[str, Judge | None] = {OURS: ours}
    for name, (module, arguments) in COMMANDS.items():
        try:
            tools[f"{name} {version(name)}"] = partial(by_command, module, arguments)
        except PackageNotFoundError:
            tools[name] = None
    return tools | {name: partial(by_rule, name) for name in published() if name not in FOR_OTHER_SIGNALS}


@dataclass(slots=True)
class Count:
    """How many of how many were flagged, and for how many a tool ended with an error."""

    flagged: int = 0
    of: int = 0
    errors: int = 0

    def add(self, judge: Judge, curve: LossCurve, onset: float) -> None:
        self.of += 1
        try:
            self.flagged += any(last >= onset for last in judge(curve))
        except Exception:  # what another tool fails with is a result
            self.errors += 1

    def __str__(self) -> str:
        return f"{self.flagged}/{self.of}" + (f", {self.errors} errors" if self.errors else "")


Counts = dict[tuple[str, str], Count]
"""By tool and group of curves."""


def counted(tools: Mapping[str, Judge | None], runs: Iterator[tuple[str, LossCurve, float]]) -> Counts:
    """Let each tool judge each run: its group, its curve, and its onset."""
    counts: Counts = {}
    for group, curve, onset in runs:
        for name, judge in tools.items():
            if judge is not None:
                counts.setdefault((name, group), Count()).add(judge, curve, onset)
    return counts


def total(counts: Counts, tool: str, groups: Sequence[str]) -> str:
    parts = [counts[tool, group] for group in groups if (tool, group) in counts]
    return str(Count(*(sum(getattr(part, name) for part in parts) for name in Count.__slots__))) if parts else ""


def drawn_runs(seeds: int) -> Iterator[tuple[str, LossCurve, float]]:
    curves = {**PEERS, **{name: (maker, "", 0) for name, maker in OTHERS.items()}}
    for name, (maker, _, onset) in curves.items():
        for seed in range(seeds):
            losses = maker(np.random.default_rng(seed)).tolist()
            yield name, LossCurve(Path(f"{name}-{seed}", "trainer_state.json"), list(enumerate(losses))).write(), onset


def real_runs(folder: Path, most: int) -> Iterator[tuple[str, LossCurve, float]]:
    """Yield the main loss of each labelled record and its validation loss; the longest run of a file speaks for it."""
    for number, row in enumerate(labelled(folder, most)):
        with contextlib.suppress(StabilityError):
            runs = [main_curves(item) for item in read(folder / "data" / row["file"])]
            losses, validations = max(runs, key=lambda pair: len(pair[0]))
            if losses:
                file = Path("real", str(number), "trainer_state.json")
                yield row["label"], LossCurve(file, losses, validations).write(), -math.inf


def labelled(folder: Path, most: int) -> list[dict[str, str]]:
    rows = [row for row in rows_of(folder / "index.csv", ()) if row["label"] in (HEALTHY, *NAMED_BY)]
    return rows[: most or None]


def main_curves(history: RunHistory) -> tuple[Points, Points]:
    """Return the main loss of a run and its validation loss, as the diagnosis of the record itself reads them."""
    history = in_place(history)
    judged = concluded(history, None).judged
    by_name = {metric.name: metric.series for metric in history.metrics}
    series = [by_name.get(names[0]) if names else None for names in (judged.losses, judged.validations)]
    losses, validations = (
        list(zip(reading.steps.tolist(), reading.values.tolist(), strict=True)) if reading else [] for reading in series
    )
    return losses, validations


def peers(seeds: int = 20, folder: Path | None = None, most: int = 0) -> Iterator[Table]:
    """Judge drawn curves, and real records of a folder if there is one (`--set folder=FOLDER`, the first `most`)."""
    tools = judges()
    drawn = counted(tools, drawn_runs(seeds))
    real = counted(tools, real_runs(folder, most)) if folder else {}
    healthy = [name for name, (_, wanted, _) in PEERS.items() if not wanted] + [*OTHERS]
    ill = [name for name in PEERS if name not in healthy]
    rows: list[dict[str, Cell]] = []
    for name, judge in tools.items():
        row: dict[str, Cell] = {"tool": name if judge else f"{name} (not installed)"}
        row["drawn: ill found"], row["drawn: healthy flagged"] = total(drawn, name, ill), total(drawn, name, healthy)
        if folder:
            row["real: ill found"] = total(real, name, [*NAMED_BY])
            row["real: healthy flagged"] = total(real, name, [HEALTHY])
        rows.append(row)
    notes = []
    if folder:
        judged = sum(count.of for (name, _), count in real.items() if name == OURS)
        notes.append(f"{judged} of {len(labelled(folder, most))} labelled records have a loss that can be read")
    yield table_of("Runs with a finding at WARNING or above", rows, notes)
    if folder:
        labels = [label for label in (*NAMED_BY, HEALTHY) if any(label == group for _, group in real)]
        yield by_group("Real records, by label", tools, real, labels)
    yield by_group("Drawn curves: ill ones", tools, drawn, ill)
    yield by_group("Drawn curves: healthy ones", tools, drawn, healthy)


def by_group(title: str, tools: Mapping[str, Judge | None], counts: Counts, groups: Sequence[str]) -> Table:
    installed = [name for name, judge in tools.items() if judge]
    return table_of(
        title, [{"tool": name, **{group: total(counts, name, [group]) for group in groups}} for name in installed]
    )
