"""The recording of one run in this process: journal, detectors, loss checks.

Guarantees: detectors see what the journal holds, in the same order; every step is judged once; a missing loss is
reported once, discarded losses at most once in `REPORT_EVERY_STEPS` steps.

Detectors run in batches of steps: three times cheaper than step by step. Where nothing acts on findings, within a
second, also while the training is paused, by a thread of ours; non-finite values are judged at once, with all steps
before. The thread does not run while the process forks, nor in the forked process, nor after `stop`; its error is
raised in the next call of the training. Where the autopilot acts on findings, only normal steps wait, by their number
and not by the clock: the same training is rolled back at the same steps again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import Enum
from math import isfinite
from pathlib import Path
from weakref import WeakSet

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.journal.array_files import write_attention_map, write_layer_table
from mlflow_stability.journal.journal import JournalWriter, SlowWrites
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.kinds.reported.setup import BatchDiscarded, DiscardedBatchFacts, NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.forward.forward_passes import ForwardObserver
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.step.capture import COPIED, ProbeReading
from mlflow_stability.probes.step.rolling_statistics import WINDOW, RollingStatistics
from mlflow_stability.session.broken_batches import BatchReport, SpikeBatches
from mlflow_stability.session.recording.representation_totals import RepresentationTotals
from mlflow_stability.session.recording.script_metrics import ScriptMetric
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.measured.signal import UNCLIPPED, Signal, StepReading, shared_layout
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity, Source
from mlflow_stability.vocabulary.run import Closing, Fact, Note, Opening, Reset, Returned

SIGNALS = signals(
    SignalType(
        "rollbacks",
        "rollbacks so far",
        topic="optimizer",
        unit="{rollback}",
        exported="llm_rollbacks_total",
        counter=True,
    ),
    SignalType(
        "overhead_fraction",
        "share of the time that recording takes, every 100 steps",
        topic="timing",
        exported="llm_recording_overhead_fraction",
    ),
    interval="every step",
)

STEPS_WITHOUT_LOSS = 20  # number of steps without a loss after which none is expected
REPORT_EVERY_STEPS = 100
NO_LOSS = (
    "no loss recorded: no backward pass began at a scalar tensor (torch.func, torch.autograd.grad, a "
    "pipeline stage, a CUDA graph, or gradients set by the script)"
)


class LossCount:
    """Reports a training without losses, and discarded losses."""

    def __init__(self) -> None:
        self.seen = self._told = False  # whether any step had a loss, and whether it was reported that none had
        self._steps = 0
        self._discarded = 0
        self._last_report: int | None = None

    def take(self, step: int, reading: ProbeReading) -> list[Finding]:
        """Note a step; return findings."""
        self._steps += 1
        self.seen = self.seen or any(signal.quantity == "loss" for signal in reading.signals)
        findings = self.missing(step) if self._steps >= STEPS_WITHOUT_LOSS else []
        if reading.discarded:
            self._discarded += len(reading.discarded)
            if self._last_report is None or step - self._last_report >= REPORT_EVERY_STEPS:
                self._last_report = step
                facts = DiscardedBatchFacts(tuple(reading.discarded[:3]), self._discarded)
                findings.append(Finding.at(facts, step, Severity.INFO, remedies=BatchDiscarded.remedies))
        return findings

    def missing(self, step: int) -> list[Finding]:
        """Return the finding of a training without a loss; also called at the end of a short one."""
        if self.seen or self._told or not self._steps:
            return []
        self._told = True
        remedy = Remedy(Action.PASS_LOSS)
        facts = NotMeasuredFacts(Unmeasured.LOSS, steps=self._steps)
        return [Finding.at(facts, step, Severity.INFO, place="loss", remedies=(remedy,))]


MAX_WAITING_STEPS = 64  # steps that wait at most; in groups of 32 each costs 5 % more, in larger ones nothing less
SECONDS = 0.25  # none waits once so long has passed since the last step that was judged: slow steps are judged at once
IDLE_SECONDS = 0.5  # interval of the thread's checks; what waits at two of them is judged
GROUP = 8  # normal steps judged together where the autopilot acts on findings


class Judging(Enum):
    AT_ONCE = "each step at once"
    GROUPED = "usual steps in groups, any other step at once"
    DEFERRED = "within a second"


class GroupedDetection:
    """Judges normal steps in groups, and any other step at once, after those that wait.

    A sudden rise from a steady level is found at its own step, everything else at most seven steps later.
    """

    def __init__(self, judge: Callable[[StepReading], list[Finding]], is_usual: Callable[[StepReading], bool]) -> None:
        self._judge, self._is_usual = judge, is_usual
        self._waiting: deque[StepReading] = deque()

    def take(self, step: StepReading) -> list[Finding]:
        """Judge this step now or later; return what was found now, also in earlier steps."""
        self._waiting.append(step)
        if len(self._waiting) < GROUP and self._is_usual(step):
            return []
        return self.settle()

    def settle(self) -> list[Finding]:
        findings: list[Finding] = []
        while self._waiting:
            findings += self._judge(self._waiting.popleft())
        return findings

    def stop(self) -> None:
        """Do nothing: no thread is running."""


class DeferredDetection:
    """Judges steps within a second."""

    def __init__(self, judge: Callable[[StepReading], list[Finding]]) -> None:
        self._judge = judge
        self._waiting: deque[StepReading] = deque()
        self._judged_at = 0.0  # time of the last step that was judged
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._failure: Exception | None = None

    def take(self, step: StepReading) -> list[Finding]:
        with self._lock:
            self._waiting.append(step)
            late = step.time - self._judged_at
            if len(self._waiting) >= MAX_WAITING_STEPS or not 0 <= late < SECONDS or not isfinite(sum(step.values)):
                return self.settle()
        if self._thread is None and not self._start():
            return self.settle()
        return []

    def settle(self) -> list[Finding]:
        findings: list[Finding] = []
        with self._lock:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            while self._waiting:
                step = self._waiting.popleft()
                self._judged_at = step.time
                findings += self._judge(step)
        return findings

    def stop(self) -> None:
        """End the thread; it starts again with the next step that waits."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            thread.join(2 * IDLE_SECONDS)

    def resume(self) -> None:
        if self._waiting:
            self._start()

    def _start(self) -> bool:
        """Start the thread; False where that is impossible: at the exit of the process, or at its limit."""
        with self._lock:  # the training thread, and a thread that has just forked
            if self._thread is not None:
                return True
            self._over = threading.Event()
            thread = threading.Thread(
                target=self._look_after, args=(self._over,), name="mlflow-stability judge", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
            _live.add(self)
            return True

    def _look_after(self, over: threading.Event) -> None:
        before: StepReading | None = None
        while not over.wait(IDLE_SECONDS):
            first = self._first()
            # Where the lock is taken, another thread judges.
            if first is not None and first is before and self._lock.acquire(blocking=False):
                try:
                    self.settle()
                except Exception as error:
                    self._failure = error
                    return
                finally:
                    self._lock.release()
            before = first

    def _first(self) -> StepReading | None:
        try:
            return self._waiting[0]
        except IndexError:
            return None


_live: WeakSet[DeferredDetection] = WeakSet()


def _before_fork() -> None:
    for detection in list(_live):
        detection.stop()


def _after_fork() -> None:
    for detection in list(_live):
        detection.resume()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


DETECTORS = "detectors"
OWN_COST_EVERY = 100
_OVERHEAD = Signal("overhead_fraction")
_ROLLBACKS = Signal("rollbacks")


class Recording:
    """Journal and detectors of one run."""

    def __init__(
        self,
        folder: Path,
        opening: Opening,
        detectors: Sequence[Detector],
        guard: PartGuard,
        on_event: Callable[[Finding], None],
        say: Callable[[str], None] = lambda _: None,
        judging: Judging = Judging.AT_ONCE,
    ) -> None:
        self.folder = folder
        self.opening = opening
        self.step = opening.first_step - 1  # the last step that was recorded
        self.attempt = 0  # number of rollbacks
        self.closed = False
        self.failure = ""  # why steps are not being written; empty while they are
        self.say = say  # prints a line for the user, unless silent
        self.listener: Callable[[ScriptMetric], None] | None = None  # called with metrics that the script has logged
        self.before_forward: ForwardObserver | None = None  # also observes the forward passes
        self.batches: BatchReport | None = None  # report of its batches, if any
        self.spikes: SpikeBatches | None = None  # holds batches of spikes where the autopilot does not
        self.last: StepReading | None = None
        self._journal = JournalWriter(folder, opening)
        self._panel = Panel(detectors)
        self._representations = RepresentationTotals()
        self._losses = LossCount()
        self._running = RollingStatistics(opening.log_every_n_steps)
        self._guard = guard
        self._late: DeferredDetection | GroupedDetection  # judges steps later, or at once where each is unusual
        if judging is Judging.DEFERRED:
            self._late = DeferredDetection(self._panel_judges)
        else:
            is_usual = self._panel.is_usual if judging is Judging.GROUPED else lambda _: False
            self._late = GroupedDetection(self._panel_judges, is_usual)
        self._judge = self._late.take
        self._judge_heard = guard(DETECTORS, self._judge)
        self.settle: Callable[[], object] = guard(DETECTORS, self._late.settle)
        self._keep_table = guard("layer tables", self._table)
        self._report_sums = guard("summary of representations", self._emit_representation_events)
        self._account = guard("losses", lambda reading: self._emit_loss_events(self._losses.take(self.step, reading)))
        self._account_at_end = guard("losses", self._emit_loss_events)
        self._on_event = on_event
        self._cost_since: tuple[float, float] | None = None
        self._norm_bases: dict[str, list[str]] = {}  # meanings of the gradient norm, by place
        self._basis_of: tuple[tuple[Signal, ...], str] = ((), "")  # the last signals and meaning noted

    def slow_writes(self) -> SlowWrites | None:
        """Return the cost of slow journal writes, the first time that it is high."""
        return self._journal.slow_writes()

    @property
    def no_level(self) -> NoLevel | None:
        """Why the level of the loss does not measure progress; None if it does."""
        return self._panel.no_level

    @property
    def micro_batches(self) -> int:
        """Backward passes of the last step; 0 if unknown."""
        read = () if self.last is None else zip(self.last.signals, self.last.values, strict=True)
        return int(next((value for signal, value in read if signal.quantity == "micro_batches"), 0))

    def next_step(self) -> int:
        return self.step + 1

    def record(self, reading: ProbeReading) -> tuple[StepReading, list[Finding]]:
        """Write and judge one capture; return the step and the findings."""
        self.step += reading.begins_step
        signals, values = reading.signals, reading.values
        running = self._running
        running.waiting.append((self.step, signals, values))
        more = running.statistics(self.step) if self.step >= running.due_at or len(running.waiting) >= WINDOW else []
        if self.attempt and reading.begins_step:
            more.append((_ROLLBACKS, float(self.attempt)))
        if self.step % OWN_COST_EVERY == 0 and reading.begins_step:
            now, own = time.perf_counter(), self._guard.seconds
            before, self._cost_since = self._cost_since, (now, own)
            share = None if before is None else (own - before[1]) / (now - before[0])
            if share is not None:
                more.append((_OVERHEAD, share))
        if more:
            signals = shared_layout((*signals, *(signal for signal, _ in more)))
            values = (*values, *(value for _, value in more))
        step = StepReading(self.step, signals, values, self.attempt, reading.time)
        self._journal.append(step)
        self.failure = self._journal.failure
        spikes = self.spikes
        if spikes is not None and signals and (signals[0] is not spikes.first or values[0] > spikes.highest):
            spikes.see(self.step, signals, values)
        events: list[Finding] = []
        if DETECTORS not in self._guard.off:
            try:
                events = self._judge(step)
            except BaseException as error:
                self._guard.contain(DETECTORS, error)
        self.last = step
        if reading.discarded or not self._losses.seen:
            self._account(reading)
        if reading.norm_basis and (reading.signals is not self._basis_of[0] or reading.norm_basis != self._basis_of[1]):
            # Each meaning is noted once: clipping may come and go from step to step.
            self._basis_of = reading.signals, reading.norm_basis
            place = next(signal.place for signal in reading.signals if signal.quantity == "grad_norm")
            bases = self._norm_bases.setdefault(place, [])
            if reading.norm_basis not in bases:
                if reading.norm_basis == COPIED and UNCLIPPED in bases:  # unknown at the first steps
                    bases.remove(UNCLIPPED)
                bases.append(reading.norm_basis)
                self.note(f"grad_norm.{place}" if place else "grad_norm", ", ".join(bases))
        for table, numbers in reading.tables:
            self._keep_table(table, numbers)
        return step, events

    def emit(self, event: Finding) -> None:
        """Write a reported finding: judging the record again does not find it."""
        where = replace(event.where, attempt=self.attempt)
        finding = replace(event, source=Source.REPORTED, where=where, time=event.time or time.time())
        self._journal.append(finding)
        self._on_event(finding)

    def rolled_back(self, reason: str) -> None:
        """Start another attempt after a rollback, with new detectors."""
        self.settle()
        self.attempt += 1
        self._panel.reset()
        self._running.reset()
        self._journal.append(Reset(self.step + 1, self.attempt, reason, time.time()))

    def note(self, key: str, value: str) -> None:
        """Write a fact that becomes a tag of the run."""
        self._journal.append(Note(key, value, self.step, time.time()))

    def know(self, facts: Sequence[Fact]) -> None:
        """Write facts that become parameters of the run."""
        for fact in facts:
            self._journal.append(replace(fact, step=self.step, time=fact.time or time.time()))

    def record_script_metrics(self, metrics: Sequence[ScriptMetric]) -> None:
        """Write and judge metrics that the script has logged, at the last recorded step."""
        self.settle()
        for metric in metrics:
            if self.listener is not None:
                self.listener(metric)
            if not metric.signals:
                continue
            # A record knows one time for each step, and what is judged again must be what was judged.
            when = metric.time if self.last is None else self.last.time
            step = StepReading(self.step, metric.signals, metric.values, self.attempt, when)
            self._journal.append(step)
            self._judge_heard(step)
        self.settle()

    def keep_attention(self, attention: AttentionMap) -> None:
        write_attention_map(self.folder, replace(attention, attempt=self.attempt))

    def returned(self, closing: Closing) -> None:
        """Note the end of the training thread; a later step takes it back."""
        if not self.closed:
            self.settle()
            self._journal.append(Returned(**asdict(replace(closing, step=self.step, time=time.time()))))

    def close(self, closing: Closing) -> None:
        """End the recording; its end is written whatever fails before it."""
        if self.closed:
            return
        try:
            self.settle()
            if self.spikes is not None:
                self.spikes.close()
            self._report_sums()
            self._account_at_end(self._losses.missing(self.step))
        finally:
            self.closed = True
            self._late.stop()
            self._journal.append(replace(closing, step=self.step, time=time.time()))
            self._journal.close()
            if self.batches is not None:
                self.batches.stop()

    def _table(self, table: Table, numbers: Sequence[float]) -> None:
        write_layer_table(self.folder, replace(table.read(numbers, self.attempt), step=self.step))

    def _panel_judges(self, step: StepReading) -> list[Finding]:
        self._representations.take(step)
        events = self._panel.judge(step)
        if self.spikes is not None:
            self.spikes.judged(step.step, events)
        for event in events:
            self._journal.append(event)
            self._representations.count(event)
        # A learning rate jump is found one step late, together with its consequence: report the jump first.
        for event in sorted(events, key=lambda event: event.step):
            self._on_event(event)
        return events

    def _emit_representation_events(self) -> None:
        for event in self._representations.events(self.step):
            self.emit(event)

    def _emit_loss_events(self, events: Sequence[Finding]) -> None:
        for event in events:
            self.emit(event)
            if event.place == "loss":
                self.note("loss", NO_LOSS)
                self.say(f"{event.message} {event.remedies[0]}")
