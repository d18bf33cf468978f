"""Draw a run that is watched: two curves with their findings, signals, findings, rollbacks; or one line.

It fits into the window; colours repeat what is in words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from mlflow_stability.cli.watch.watched_run import WatchedRun
from mlflow_stability.figures.run_page import GRADIENT_NORM, Curve, zone_of
from mlflow_stability.kinds.reported.rollback import rollbacks_kept
from mlflow_stability.reports.terminal_kit import GUTTER, TerminalWriter, axis, draw, mark_line
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text import counted, number_text

LOSS_ROWS, NORM_ROWS = 5, 3
MAX_SILENCE = 60.0
"""Seconds without a step before the time of the last one is shown."""
ZONE_STYLES = {"danger": "bold red", "healthy": "green", "vanishing": "magenta"}
MIN_FINDINGS = 2


def view(out: TerminalWriter, run: WatchedRun, height: int) -> RenderableType:
    """Return the whole window, `height` lines of it."""
    lines = [_head(out, run), out.text(""), *_loss(out, run), *_norm(out, run), out.text(""), _signals(out, run)]
    if run.rollbacks:
        lines += [out.text("Last rollback", "bold"), out.text(f"  {run.rollbacks[-1].message}")]
    lines += _findings(out, run, max(MIN_FINDINGS, height - len(lines) - 2))
    lines = lines[:height]
    for line in lines:
        line.truncate(out.console.width, overflow="ellipsis" if out.unicode else "crop")
    return Group(*lines)


def status_line(run: WatchedRun) -> str:
    """Return `step 4,200  loss 0.553  grad norm 1.24 (healthy)  12 steps/s  8 min left`."""
    parts = [f"step {run.last_step:,}"]
    for quantity, words in (("loss", "loss"), ("grad_norm", "gradient norm")):
        value = run.value(quantity)
        if value is not None:
            zone = zone_of(value, GRADIENT_NORM) if quantity == "grad_norm" else None
            parts.append(f"{words} {number_text(value)}" + (f" ({zone.name})" if zone else ""))
    return "  ".join([*parts, *_pace(run)])


def finding_line(finding: Finding) -> str:
    """Return `WARNING loss_spike at step 400: ...`."""
    return f"{finding.severity.name} {finding.kind} at step {finding.start:,}: {finding.message}"


def _head(out: TerminalWriter, run: WatchedRun) -> Text:
    state = run.ended or "training"
    style = "bold green" if state in ("training", "finished", "stopped") else "bold red"
    facts = [f"step {run.last_step:,}", *([f"attempt {run.attempt + 1}"] if run.attempt else []), *_pace(run)]
    head = Text.assemble(out.text(run.name, "bold"), "  ", out.text(state, style), "  ", out.text("  ".join(facts)))
    head.no_wrap = True
    return head


def _pace(run: WatchedRun) -> Iterator[str]:
    pace = run.steps_per_second
    if pace is not None:
        yield f"{number_text(pace)} steps/s"
    if run.ended:
        return
    silent = time.time() - run.last_time
    if run.last_time and silent > MAX_SILENCE:
        yield f"last step {duration(silent)} ago"
        return
    left = run.seconds_left()
    if left is not None:
        yield f"{duration(left)} left"


def duration(seconds: float) -> str:
    """Format a time: `42 s`, `8 min`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _loss(out: TerminalWriter, run: WatchedRun) -> Iterator[Text]:
    best = "" if run.best_loss is None else f", best {number_text(run.best_loss[0])} at step {run.best_loss[1]:,}"
    yield _title(out, "loss", f"{_now(run, 'loss')}{best}")
    curve = run.curve("loss")
    if not len(curve):
        yield out.text(" " * GUTTER + "no step yet", "dim")
        return
    first, last = int(curve.steps.min()), run.last_step
    yield from _drawn(out, curve, LOSS_ROWS, (first, last))
    marks = [(number, finding) for number, finding in _warnings(run) if finding.end >= first]
    if marks:
        yield mark_line(marks, first, last, out.console.width - 2, unicode=out.unicode)
    yield Text(axis(first, last, out.console.width - 2), "dim", no_wrap=True)


def _norm(out: TerminalWriter, run: WatchedRun) -> Iterator[Text]:
    curve = run.curve("grad_norm")
    if not len(curve):
        return
    value = run.value("grad_norm")
    zone = None if value is None else zone_of(value, GRADIENT_NORM)
    state = Text(_now(run, "grad_norm"))
    if zone is not None:
        state.append(f", {zone.name} ({zone.limits})", ZONE_STYLES[zone.name])
    yield _title(out, "gradient norm", state)
    loss = run.curve("loss")  # the axis of both is below its curve
    first = int((loss if len(loss) else curve).steps.min())
    yield from _drawn(out, curve, NORM_ROWS, (first, run.last_step), zones=True)


def _title(out: TerminalWriter, name: str, state: str | Text) -> Text:
    right = state if isinstance(state, Text) else out.text(state)
    room = max(1, out.console.width - 2 - len(name) - right.cell_len)
    return Text.assemble(out.text(name, "bold cyan"), " " * room, right, no_wrap=True)


def _now(run: WatchedRun, quantity: str) -> str:
    value = run.value(quantity)
    return "" if value is None else number_text(value)


def _drawn(
    out: TerminalWriter, curve: Curve, rows: int, reach: tuple[int, int], *, zones: bool = False
) -> Iterator[Text]:
    """Draw a curve over a range of steps; with `zones` each row has the colour of the zone at its middle."""
    width = out.console.width - 2
    if not curve.counts.any():
        yield out.text(" " * GUTTER + "no finite value", "dim")
        return
    values = np.stack([curve.low, curve.high], axis=1).reshape(-1)
    finite = values[np.isfinite(values)]
    logarithmic = bool(finite.size and finite.min() > 0)
    steps = np.concatenate([[reach[0]], np.repeat(curve.steps, 2), [reach[1]]])
    values = np.concatenate([[np.nan], values, [np.nan]])
    lines = draw(steps, values, width, rows, dots=out.unicode, logarithmic=logarithmic)[:-1]
    for number, line in enumerate(lines):
        style = "cyan"
        if zones and logarithmic:
            share = 1 - (number + 0.5) / rows
            zone = zone_of(float(finite.min() * (finite.max() / finite.min()) ** share), GRADIENT_NORM)
            style = ZONE_STYLES[zone.name] if zone else "yellow"
        yield Text(line, style, no_wrap=True)


def _signals(out: TerminalWriter, run: WatchedRun) -> Text:
    named = (("learning_rate", "learning rate"), ("update_ratio", "update ratio"))
    parts = [f"{words} {_now(run, quantity)}" for quantity, words in named if run.value(quantity) is not None]
    parts.append(f"{counted(round(run.value('skipped_steps') or 0), 'step')} skipped")
    parts.append(counted(rollbacks_kept(rollback.facts for rollback in run.rollbacks), "rollback"))
    return out.text("  ".join(parts), "dim")


def _warnings(run: WatchedRun) -> list[tuple[int, Finding]]:
    """Return the findings above INFO, numbered in the order of their steps."""
    return list(enumerate((finding for finding in run.findings if finding.severity > Severity.INFO), start=1))


def _findings(out: TerminalWriter, run: WatchedRun, most: int) -> Iterator[Text]:
    findings = _warnings(run)
    yield out.text("Findings" if findings else "No warnings so far.", "bold" if findings else "green")
    for number, finding in findings[: -most - 1 : -1]:
        span = f"step {finding.start:,}" if finding.end == finding.start else f"steps {finding.start:,}-{finding.end:,}"
        head = out.text(f"{number:>3} {finding.severity.name} {finding.kind}", out.style(finding.severity))
        yield Text.assemble(head, out.text(f"  {span}  ", "dim"), out.text(finding.message), no_wrap=True)
    if len(findings) > most:
        yield out.text(f"    {len(findings) - most} earlier", "dim")
