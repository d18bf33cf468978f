"""The recording of one run in this process: journal, detectors, loss checks.

Each capture gets a journal line; the halves of a GAN have lines of the same step. Guarantees: detectors see what the
journal holds, in the same order; a missing loss is reported once, discarded losses at most once in
`REPORT_EVERY_STEPS` steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.journal.array_files import write_attention_map, write_layer_table
from mlflow_stability.journal.writer import JournalWriter, SlowWrites
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.kinds.reported.endings import (
    OF_CODES,
    OF_ROWS,
    VERDICTS,
    RepresentationSummary,
    RepresentationSummaryFacts,
)
from mlflow_stability.kinds.reported.setup import BatchDiscarded, DiscardedBatchFacts, NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.forward.forward_watch import ForwardObserver
from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.step.reading import COPIED, ProbeReading
from mlflow_stability.probes.step.rolling_statistics import WINDOW, RollingStatistics
from mlflow_stability.session.broken_batches import BatchReport, SpikeBatches
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording.deferred_detection import (
    DeferredDetection,
    Detection,
    GroupedDetection,
    Judging,
)
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
        self.seen = self._told = False
        """Whether any step had a loss, and whether it was reported that none had."""
        self._steps = 0
        self._discarded = 0
        self._last_report: int | None = None

    def take(self, step: int, reading: ProbeReading) -> list[Finding]:
        """Note a step; return findings."""
        self._steps += 1
        self.seen = self.seen or any(signal.quantity == "loss" for signal in reading.signals)
        findings = self.missing(step) if self._steps >= STEPS_WITHOUT_LOSS else []
        if reading.discarded:
            findings += self._of_discarded(step, reading)
        return findings

    def missing(self, step: int) -> list[Finding]:
        """Return the finding of a training without a loss; also called at the end of a short one."""
        if self.seen or self._told or not self._steps:
            return []
        self._told = True
        remedy = Remedy(Action.PASS_LOSS)
        facts = NotMeasuredFacts(Unmeasured.LOSS, steps=self._steps)
        return [Finding.at(facts, step, Severity.INFO, place="loss", remedies=(remedy,))]

    def _of_discarded(self, step: int, reading: ProbeReading) -> list[Finding]:
        self._discarded += len(reading.discarded)
        if self._last_report is not None and step - self._last_report < REPORT_EVERY_STEPS:
            return []
        self._last_report = step
        facts = DiscardedBatchFacts(tuple(reading.discarded[:3]), self._discarded)
        return [Finding.at(facts, step, Severity.INFO, remedies=BatchDiscarded.remedies)]


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
        self.listener: Callable[[ScriptMetric], None] | None = None
        """Called with metrics that the script has logged."""
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
        self._late: Detection | None = None  # judges steps later; None where each is judged at once
        if judging is Judging.GROUPED:
            self._late = GroupedDetection(self._panel_judges, self._panel.is_usual)
        elif judging is Judging.DEFERRED:
            self._late = DeferredDetection(self._panel_judges)
        self._judge = self._panel_judges if self._late is None else self._late.take
        self._judge_heard = guard(DETECTORS, self._judge)
        self._settle = guard(DETECTORS, (lambda: None) if self._late is None else self._late.settle)
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
            share = self._own_share()
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
            self._note_basis(reading)
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

    def settle(self) -> None:
        """Judge the steps that wait."""
        self._settle()

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

    def _note_basis(self, reading: ProbeReading) -> None:
        """Note each meaning once: clipping may come and go from step to step."""
        self._basis_of = reading.signals, reading.norm_basis
        place = next(signal.place for signal in reading.signals if signal.quantity == "grad_norm")
        bases = self._norm_bases.setdefault(place, [])
        if reading.norm_basis not in bases:
            if reading.norm_basis == COPIED and UNCLIPPED in bases:  # unknown at the first steps
                bases.remove(UNCLIPPED)
            bases.append(reading.norm_basis)
            self.note(f"grad_norm.{place}" if place else "grad_norm", ", ".join(bases))

    def _own_share(self) -> float | None:
        """Return our share of the time since the last call."""
        now, own = time.perf_counter(), self._guard.seconds
        before, self._cost_since = self._cost_since, (now, own)
        return None if before is None else (own - before[1]) / (now - before[0])


MEASURED = frozenset({"effective_rank", "stable_rank", "mean_cosine", "sdr_input_ratio", "sdr_unique_ratio"}) | {
    f"sdr_{name}"
    for name in ("width", "active_bits", "bit_usage", "duty_entropy", "overlap", "overlap_expected", "temperature")
}


@dataclass(slots=True)
class _Module:
    sums: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    warned_at: dict[str, int] = field(default_factory=dict)  # first warning of each kind

    def add(self, quantity: str, value: float) -> None:
        if value == value:
            self.sums[quantity] = self.sums.get(quantity, 0.0) + value
            self.counts[quantity] += 1
            self.last[quantity] = value

    def mean(self, quantity: str) -> float:
        return self.sums[quantity] / self.counts[quantity] if self.counts[quantity] else 0.0


class RepresentationTotals:
    """Summarise the representations of a training at its end: averages, last values, warnings, a verdict.

    Guarantees: a reading without representations costs one comparison; only sums are kept.
    """

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._layout: tuple[Signal, ...] | None = None
        self._columns: tuple[int, ...] = ()  # indices of representations in readings of that layout

    def take(self, reading: StepReading) -> None:
        if reading.signals is not self._layout:
            self._layout = reading.signals
            self._columns = tuple(at for at, signal in enumerate(reading.signals) if signal.quantity in MEASURED)
        inputs = 1.0
        for at in self._columns:
            signal, value = reading.signals[at], reading.values[at]
            if signal.quantity == "sdr_input_ratio":
                inputs = value if value > 0 else 1.0
                continue
            if signal.quantity == "sdr_unique_ratio":  # equal inputs may have equal codes
                value, inputs = min(value / inputs, 1.0), 1.0
            self._modules.setdefault(signal.place, _Module()).add(signal.quantity, value)

    def count(self, event: Finding) -> None:
        if event.kind in VERDICTS and event.place in self._modules:
            module = self._modules[event.place]
            module.warnings[event.kind] += 1
            module.warned_at.setdefault(event.kind, event.step)

    def events(self, step: int) -> list[Finding]:
        """Return one finding for each module."""
        return [_event(place, module, step) for place, module in self._modules.items() if module.counts]


def _event(place: str, module: _Module, step: int) -> Finding:
    total = sum(module.warnings.values())
    worst = next((kind for kind in VERDICTS if module.warnings[kind]), "")
    facts = RepresentationSummaryFacts(
        place,
        module.counts[OF_CODES] or module.counts[OF_ROWS],
        tuple((quantity, module.mean(quantity)) for quantity in sorted(module.counts)),
        tuple(sorted(module.last.items())),
        total,
        worst,
        module.warned_at.get(worst),
    )
    remedies = RepresentationSummary.remedies if total else ()
    return Finding.at(facts, step, Severity.INFO, place=place, remedies=remedies)
