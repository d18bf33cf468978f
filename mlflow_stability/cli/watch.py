"""`watch`: follow a run in its journal, if that is on this machine, else in the tracking store.

A journal that its courier has delivered and removed is followed up in the store; while a store does not answer, the
last state is shown.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from mlflow_stability.analysis.source import last_runs, run_id_of
from mlflow_stability.cli.options import journal_root, last_option, tracking_uri_option
from mlflow_stability.cli.output import present, result_console, speaks_unicode
from mlflow_stability.courier.processes import process_of
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.figures.curve import Curve, CurveSketch
from mlflow_stability.figures.dashboard_data import GRADIENT_NORM, zone_of
from mlflow_stability.journal.journal import JOURNAL, JournalFollower, Record, is_deleted, opening_if_readable
from mlflow_stability.journal.layout import recording_folders, session_folders
from mlflow_stability.kinds.reported.rollback import rollbacks_kept
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import GUTTER, TerminalWriter, axis, draw, mark_line
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity, Span
from mlflow_stability.vocabulary.run import Closing, Reset, Returned
from mlflow_stability.vocabulary.text.phrases import counted, number_text

WINDOW_LINES = 40  # height of the view with `--once`
CURVES = ("loss", "grad_norm")
QUANTITIES = (*CURVES, "learning_rate", "update_ratio", "eta_seconds", "skipped_steps")
"""Quantities of the whole model that are shown."""
MERGE_STEPS = 16  # steps between two events of one kind that are merged
MAX_FINDINGS = 200
PACE_READINGS = 100  # the newest readings give the pace
LINE_INTERVAL = 10.0  # seconds between two status lines where there is no terminal; findings are printed at once
STORE_INTERVAL = 10.0  # seconds between two requests to a tracking store


class WatchedRun:
    """State of a run: its curves, findings, rollbacks and pace, in bounded memory."""

    def __init__(self, name: str = "", run_id: str | None = None) -> None:
        self.name = name
        self.run_id = run_id
        self.ended = ""  # its outcome; empty while it trains
        self.last_step = 0
        self.last_time = 0.0
        self.attempt = 0
        self.latest: dict[str, tuple[float, float]] = {}
        """The newest value of each quantity, and when it was measured."""
        self.best_loss: tuple[float, int] | None = None
        self.findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)
        self.rollbacks: list[Finding] = []
        self._curves = {quantity: CurveSketch(Signal(quantity)) for quantity in CURVES}
        self._pace: deque[tuple[float, int]] = deque(maxlen=PACE_READINGS)

    def add(self, record: Record, offset: int = 0) -> None:
        """Add a record, the next in order; `offset`: what the run adds to its steps."""
        if isinstance(record, StepReading):
            self._add_step(record, record.step + offset)
        elif isinstance(record, Finding):
            self._add_event(record, offset)
        elif isinstance(record, Reset):
            self.attempt = record.attempt
        elif isinstance(record, Closing | Returned):
            self.ended = record.outcome.replace("_", " ")

    def curve(self, quantity: str) -> Curve:
        return self._curves[quantity].curve()

    def value(self, quantity: str) -> float | None:
        latest = self.latest.get(quantity)
        return None if latest is None else latest[0]

    @property
    def steps_per_second(self) -> float | None:
        """Pace of its newest steps; None while it has too few."""
        if len(self._pace) < 2:
            return None
        (start, first), (end, last) = self._pace[0], self._pace[-1]
        return (last - first) / (end - start) if end > start and last > first else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the time that is left, where the training knows its number of steps."""
        latest = self.latest.get("eta_seconds")
        if latest is None:
            return None
        seconds, measured = latest
        return max(0.0, seconds - ((time.time() if now is None else now) - measured))

    def _add_step(self, reading: StepReading, step: int) -> None:
        self.ended = ""
        self.last_step = max(step, self.last_step)
        self.last_time = max(reading.time, self.last_time)
        self.attempt = max(self.attempt, reading.attempt)
        if not self._pace or step > self._pace[-1][1]:
            self._pace.append((reading.time, step))
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if signal.place or signal.quantity not in QUANTITIES:
                continue
            self.latest[signal.quantity] = value, reading.time
            if signal.quantity in self._curves:
                self._curves[signal.quantity].add(step, value, reading.attempt)
            if signal.quantity == "loss" and value < (math.inf if self.best_loss is None else self.best_loss[0]):
                self.best_loss = value, step

    def _add_event(self, event: Finding, offset: int) -> None:
        if event.kind == "rollback":
            self.rollbacks.append(event)
        step = event.step + offset
        for number in range(len(self.findings) - 1, -1, -1):
            earlier = self.findings[number]
            if (earlier.kind, earlier.place) == (event.kind, event.place) and step - earlier.end <= MERGE_STEPS:
                worse = event.severity > earlier.severity
                self.findings[number] = replace(
                    event.shifted(offset) if worse else earlier,
                    severity=max(earlier.severity, event.severity),
                    span=Span(earlier.start, step if worse else earlier.peak, max(step, earlier.end)),
                    count=earlier.count + 1,
                    statements=event.stated if worse else earlier.stated,
                )
                return
        self.findings.append(replace(event.shifted(offset), statements=event.stated))


class _JournalSource:
    def __init__(self, folder: Path) -> None:
        self._run = WatchedRun(f"recording {folder.parent.name}")
        self._folder = folder
        self._follower = JournalFollower(folder / JOURNAL)
        self._process = process_of(folder.parent, opening_if_readable(folder))

    def read(self) -> WatchedRun:
        """Read what was appended; return the state of the run."""
        alive = self._process.alive()  # before reading, so that its last records are not missed
        delivered = Delivered.read(self._folder)
        if delivered.run_id:
            self._run.run_id, self._run.name = delivered.run_id, f"run {delivered.run_id[:12]}"
        while entries := self._follower.read():
            for entry in entries:
                self._run.add(entry.record, delivered.offset)
        if not self.is_removed() and not alive and not self._run.ended:
            self._run.ended = "its process is gone"
        return self._run

    def is_removed(self) -> bool:
        return is_deleted(self._folder)


class _StoreSource:
    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self._run_id, self._uri = run_id, tracking_uri
        self._last: WatchedRun | None = None
        self._last_time = 0.0

    def read(self) -> WatchedRun:
        """Return the state of the run; the store is asked only after a while."""
        if self._last is not None and time.monotonic() - self._last_time < STORE_INTERVAL:
            return self._last
        try:
            self._last = self._request()
        except TrackingError:
            if self._last is None:
                raise
        self._last_time = time.monotonic()
        return self._last

    def _request(self) -> WatchedRun:
        from mlflow_stability.tracking.read.run_reader import RunReader

        reader = RunReader(self._run_id, self._uri)
        run = WatchedRun(reader.name, reader.run_id)
        points = reader.metric_points(QUANTITIES)
        if points is None:
            # A run that has just begun may get its first metrics in a moment.
            soon = " yet; the first arrive a few seconds after the first steps" if reader.status == "RUNNING" else ""
            raise RunNotFoundError(
                f"Run {self._run_id} has no metrics of mlflow-stability{soon}. "
                "To record a training, call mlflow_stability.autolog() in its script, or start it with "
                "`mlflow-stability run train.py`. "
                f"What others logged is judged by `mlflow-stability diagnose {self._run_id[:8]}`."
            )
        for reading in points.readings():
            run.add(reading)
        for _, event in reader.event_lines():
            run.add(event)
        run.ended = "" if reader.status == "RUNNING" else run.ended or reader.status.lower()
        return run


_Source = _JournalSource | _StoreSource


@click.command("watch")
@click.argument("run", required=False)
@last_option
@click.option("--once", is_flag=True, help="Show how it is now, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, metavar="S", help="Seconds between looks."
)
@click.option(
    "--journal",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where its journal is.  [where autolog() would keep it here]",
)
@tracking_uri_option
def command(
    run: str | None, last: bool, once: bool, interval: float, journal: Path | None, tracking_uri: str | None
) -> None:
    """Watch a run while it trains: curves, findings, rollbacks, time left.

    Without RUN the newest training that is recorded in this directory, else the newest run. Read from its journal if
    that is on this machine, else from the tracking store every ten seconds. Ends with the training, or with Ctrl-C.
    """
    if run is not None and last:
        raise click.UsageError("Give a run or --last, not both.")
    states = _states(_source(run, last, journal or journal_root(), tracking_uri), tracking_uri)
    try:
        if once:
            state = next(states)
            present(lambda out: out.console.print(view(out, state, WINDOW_LINES)))
        elif result_console().is_terminal:
            console = result_console()
            out = TerminalWriter(console, unicode=speaks_unicode(console))
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                for state in states:
                    live.update(view(out, state, console.height), refresh=True)
                    if not state.ended:
                        time.sleep(interval)
        else:
            _print_lines(states, interval)
    except KeyboardInterrupt:  # the usual way to leave it
        return


def _source(run: str | None, last: bool, journal: Path, tracking_uri: str | None) -> _Source:
    """Return the journal of the run that was meant, else the store."""
    recordings = [folder for session in session_folders(journal) for folder in recording_folders(session)]
    if run is None and not last and recordings:
        return _JournalSource(recordings[-1])
    run_id = last_runs(1, tracking_uri)[0] if run is None else run_id_of(run, tracking_uri)
    for folder in reversed(recordings):
        if Delivered.read(folder).run_id == run_id.lower():
            return _JournalSource(folder)
    return _StoreSource(run_id, tracking_uri)


def _states(source: _Source, tracking_uri: str | None) -> Iterator[WatchedRun]:
    """Yield the state of the run again and again, until the training has ended."""
    while True:
        run = source.read()
        if isinstance(source, _JournalSource) and source.is_removed() and run.run_id is not None:
            source = _StoreSource(run.run_id, tracking_uri)
            continue
        yield run
        if run.ended:
            return


def _print_lines(states: Iterator[WatchedRun], interval: float) -> None:
    """Print a line now and then, and one for each finding, for a file or a pipe."""
    last_line = -LINE_INTERVAL
    printed: set[tuple[str, int]] = set()
    for run in states:
        for finding in list(run.findings):
            if finding.severity > Severity.INFO and (finding.kind, finding.start) not in printed:
                printed.add((finding.kind, finding.start))
                click.echo(
                    plain(f"{finding.severity.name} {finding.kind} at step {finding.start:,}: {finding.message}")
                )
        if run.ended or time.monotonic() - last_line >= LINE_INTERVAL:
            last_line = time.monotonic()
            click.echo(plain(f"{run.ended}: {status_line(run)}" if run.ended else status_line(run)))
        if not run.ended:
            time.sleep(interval)


LOSS_ROWS, NORM_ROWS = 5, 3
MAX_SILENCE = 60.0  # seconds without a step before the time of the last one is shown
ZONE_STYLES = {"danger": "bold red", "healthy": "green", "vanishing": "magenta"}
MIN_FINDINGS = 2


def view(out: TerminalWriter, run: WatchedRun, height: int) -> RenderableType:
    """Return the whole window, `height` lines of it; colours repeat what is in words."""
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
