"""The recording of one run in this process: journal, detectors, loss checks.

In: readings of captures. Out: one journal line for each, judged by the detectors; the halves of a GAN have lines of
the same step. Events where no step has a loss, or where the script discarded losses. Guarantees: detectors see what
the journal holds, in the same order; where nothing acts on findings, they are found within a second, many steps at a
time; a missing loss is reported once, discarded losses at most once in `TELL_EVERY` steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.journal.attention_maps import write_attention_map
from mlflow_stability.journal.layer_tables import write_layer_table
from mlflow_stability.journal.slow_writes import SlowWrites
from mlflow_stability.journal.writer import JournalWriter
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.kinds.reported.setup import BatchDiscarded, DiscardedBatchFacts, NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.forward import ForwardObserver
from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.step import WINDOW, RollingStatistics
from mlflow_stability.probes.step.reading import COPIED, ProbeReading
from mlflow_stability.session.broken_batch.batch_report import BatchReport
from mlflow_stability.session.broken_batch.spike_batches import SpikeBatches
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording.deferred_detection import (
    DeferredDetection,
    Detection,
    GroupedDetection,
    Judging,
)
from mlflow_stability.session.recording.representation_summary import RepresentationTotals
from mlflow_stability.session.recording.script_metrics import ScriptMetric
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.measured import UNCLIPPED, AttentionMap, Signal, SignalType, StepReading, one_layout
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity, Source
from mlflow_stability.vocabulary.run import Closing, Fact, Note, Opening, Reset, Returned

SIGNALS = (
    SignalType(
        "rollbacks",
        "rollbacks so far",
        "optimizer",
        unit="{rollback}",
        interval="every step",
        exported="llm_rollbacks_total",
        counter=True,
    ),
    SignalType(
        "overhead_fraction",
        "share of the time that recording takes, every 100 steps",
        "timing",
        interval="every step",
        exported="llm_recording_overhead_fraction",
    ),
)

STEPS_WITHOUT_LOSS = 20
"""After so many steps without a loss there will be none."""
TELL_EVERY = 100
NO_LOSS = (
    "no loss recorded: no backward pass began at a scalar tensor (torch.func, torch.autograd.grad, a "
    "pipeline stage, a CUDA graph, or gradients set by the script)"
)


class LossCount:
    """The losses of one recording."""

    def __init__(self) -> None:
        self.seen = self._told = False
        """Whether any step had one."""
        self._steps = 0
        self._discarded = 0
        self._last_told: int | None = None

    def take(self, step: int, reading: ProbeReading) -> list[Finding]:
        """Runs with each step; gives what is to be said now."""
        self._steps += 1
        self.seen = self.seen or any(each.quantity == "loss" for each in reading.signals)
        found = self.missing(step) if self._steps >= STEPS_WITHOUT_LOSS else []
        if reading.discarded:
            found += self._of_discarded(step, reading)
        return found

    def missing(self, step: int) -> list[Finding]:
        """What is to be said of a training without a loss; asked at the end, too: it may be a short one."""
        if self.seen or self._told or not self._steps:
            return []
        self._told = True
        remedy = Remedy(Action.PASS_LOSS)
        facts = NotMeasuredFacts(Unmeasured.LOSS, steps=self._steps)
        return [Finding.at(facts, step, Severity.INFO, place="loss", remedies=(remedy,))]

    def _of_discarded(self, step: int, reading: ProbeReading) -> list[Finding]:
        self._discarded += len(reading.discarded)
        if self._last_told is not None and step - self._last_told < TELL_EVERY:
            return []
        self._last_told = step
        facts = DiscardedBatchFacts(tuple(reading.discarded[:3]), self._discarded)
        return [Finding.at(facts, step, Severity.INFO, remedies=BatchDiscarded.remedies)]


DETECTORS = "detectors"
OWN_COST_EVERY = 100
_OVERHEAD = Signal("overhead_fraction")
_ROLLBACKS = Signal("rollbacks")


class Recording:
    """The journal and the panel of one run."""

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
        self.step = opening.first_step - 1
        """The last step that was recorded."""
        self.attempt = 0
        """How many times the training was rolled back."""
        self.closed = False
        self.failure = ""
        """Why steps are not being kept at the moment; empty while all is well."""
        self.say = say
        """Tells a person who looks at the training's output, unless it is to be silent."""
        self.listener: Callable[[ScriptMetric], None] | None = None
        """Who wants to know what the script has logged."""
        self.before_forward: ForwardObserver | None = None
        """Who else wants to know when its forward passes begin."""
        self.batches: BatchReport | None = None
        """Who holds its batches, where somebody does."""
        self.spikes: SpikeBatches | None = None
        """Who keeps those of spikes, where that is not the autopilot."""
        self.last: StepReading | None = None
        """What was recorded last."""
        self._journal = JournalWriter(folder, opening)
        self._panel = Panel(detectors)
        self._representations = RepresentationTotals()
        self._losses = LossCount()
        self._running = RollingStatistics(opening.log_every_n_steps)
        self._guard = guard
        self._late: Detection | None = None
        """Holds the steps that are judged later; None where each is judged at once."""
        if judging is Judging.GROUPED:
            self._late = GroupedDetection(self._panel_judges, self._panel.is_usual)
        elif judging is Judging.DEFERRED:
            self._late = DeferredDetection(self._panel_judges)
        self._judge = self._panel_judges if self._late is None else self._late.take
        self._judge_heard = guard(DETECTORS, self._judge)
        self._settle = guard(DETECTORS, self._nothing_waits if self._late is None else self._late.settle)
        self._keep_table = guard("layer tables", self._table)
        self._tell_sums = guard("summary of representations", self._emit_representation_events)
        self._account = guard("losses", self._account_for_losses)
        self._account_at_end = guard("losses", self._emit_loss_events)
        self._on_event = on_event
        self._cost_since: tuple[float, float] | None = None
        self._norm_bases: dict[str, list[str]] = {}
        """What gradient norms stood for, by place."""
        self._basis_of: tuple[tuple[Signal, ...], str] = ((), "")
        """Of which signals that was noted last, and what it was."""

    def slow_writes(self) -> SlowWrites | None:
        """What slow writes of the journal cost, the first time that it is much."""
        return self._journal.slow_writes()

    @property
    def no_level(self) -> NoLevel | None:
        """Why the level of the losses does not measure progress; None where it does, as far as is known."""
        return self._panel.no_level

    @property
    def micro_batches(self) -> int:
        """How many backward passes the last step had; 0 where none was counted."""
        read = () if self.last is None else zip(self.last.signals, self.last.values, strict=True)
        return int(next((value for signal, value in read if signal.quantity == "micro_batches"), 0))

    def record(self, reading: ProbeReading) -> tuple[StepReading, list[Finding]]:
        """Judge and keep one capture; gives what was kept, and what was found."""
        self.step += reading.begins_step
        signals, values = reading.signals, reading.values
        running = self._running
        running.waiting.append((self.step, signals, values))
        more = running.say(self.step) if self.step >= running.due_at or len(running.waiting) >= WINDOW else []
        if self.attempt and reading.begins_step:
            more.append((_ROLLBACKS, float(self.attempt)))
        if self.step % OWN_COST_EVERY == 0 and reading.begins_step:
            share = self._own_share()
            if share is not None:
                more.append((_OVERHEAD, share))
        if more:
            signals = one_layout((*signals, *(each for each, _ in more)))
            values = (*values, *(each for _, each in more))
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
            self._note_basis(reading)
        for table, numbers in reading.tables:
            self._keep_table(table, numbers)
        return step, events

    def emit(self, event: Finding) -> None:
        """Keep what was said by one who acts: judging the record again does not find it, and so it is marked."""
        where = replace(event.where, attempt=self.attempt)
        said = replace(event, source=Source.REPORTED, where=where, time=event.time or time.time())
        self._journal.append(said)
        self._on_event(said)

    def rolled_back(self, reason: str) -> None:
        """The training was rolled back: from the next step on it is another attempt, and the detectors begin afresh."""
        self.settle()
        self.attempt += 1
        self._panel.reset()
        self._running.reset()
        self._journal.append(Reset(self.step + 1, self.attempt, reason, time.time()))

    def note(self, key: str, value: str) -> None:
        """Keep a fact that becomes a tag of the run."""
        self._journal.append(Note(key, value, self.step, time.time()))

    def know(self, facts: Sequence[Fact]) -> None:
        """Keep what tells this training from others; each becomes a parameter of the run."""
        for fact in facts:
            self._journal.append(replace(fact, step=self.step, time=fact.time or time.time()))

    def hear(self, heard: Sequence[ScriptMetric]) -> None:
        """Judge and keep what the script has measured itself and logged, as of the step that was recorded last."""
        self.settle()
        for each in heard:
            if self.listener is not None:
                self.listener(each)
            if not each.signals:
                continue
            # A record knows one time for each step, and what is judged again must be what was judged.
            when = each.time if self.last is None else self.last.time
            step = StepReading(self.step, each.signals, each.values, self.attempt, when)
            self._journal.append(step)
            self._judge_heard(step)
        self.settle()

    def settle(self) -> None:
        """Have judged what was kept."""
        self._settle()

    def keep_attention(self, attention: AttentionMap) -> None:
        """Keep a map of attention beside the journal."""
        write_attention_map(self.folder, replace(attention, attempt=self.attempt))

    def returned(self, closing: Closing) -> None:
        """The thread that trained has ended; if another step comes, it was not the end."""
        if not self.closed:
            self.settle()
            self._journal.append(Returned(**asdict(replace(closing, step=self.step, time=time.time()))))

    def close(self, closing: Closing) -> None:
        """End it; what comes later belongs to another recording. Its end is recorded whatever fails before it."""
        if self.closed:
            return
        try:
            self.settle()
            if self.spikes is not None:
                self.spikes.close()
            self._tell_sums()
            self._account_at_end(self._losses.missing(self.step))
        finally:
            self.closed = True
            if self._late is not None:
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
        # A jump of the learning rate is known one step late, together with what came of it: it is told first.
        for event in sorted(events, key=lambda each: each.step):
            self._on_event(event)
        return events

    @staticmethod
    def _nothing_waits() -> None:
        """Every step was judged at once."""

    def _emit_representation_events(self) -> None:
        for event in self._representations.events(self.step):
            self.emit(event)

    def _account_for_losses(self, reading: ProbeReading) -> None:
        self._emit_loss_events(self._losses.take(self.step, reading))

    def _emit_loss_events(self, events: Sequence[Finding]) -> None:
        for event in events:
            self.emit(event)
            if event.place == "loss":
                self.note("loss", NO_LOSS)
                self.say(f"{event.message} {event.remedies[0]}")

    def _note_basis(self, reading: ProbeReading) -> None:
        """Once for each meaning: clipping may come and go from step to step, and from track to track."""
        self._basis_of = reading.signals, reading.norm_basis
        place = next(each.place for each in reading.signals if each.quantity == "grad_norm")
        known = self._norm_bases.setdefault(place, [])
        if reading.norm_basis not in known:
            if reading.norm_basis == COPIED and UNCLIPPED in known:  # at the first steps that was not known
                known.remove(UNCLIPPED)
            known.append(reading.norm_basis)
            self.note(f"grad_norm.{place}" if place else "grad_norm", ", ".join(known))

    def _own_share(self) -> float | None:
        """Our part of the time since it was last asked."""
        now, own = time.perf_counter(), self._guard.seconds
        before, self._cost_since = self._cost_since, (now, own)
        return None if before is None else (own - before[1]) / (now - before[0])
