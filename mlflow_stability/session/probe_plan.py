"""Choose the detectors and probes of a recording, and who holds its batches.

Guarantees: what was not asked for costs nothing. Without the guard only the first broken step is inspected, as the
weights are broken after it; and only on the host, where the gradient norm is known before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from torch.optim import Optimizer

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.kinds.catalog import choose_detectors, detectors_named
from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.kinds.loss.divergence_early import DivergenceAhead
from mlflow_stability.probes.first_look.first_look import FirstLook
from mlflow_stability.probes.first_look.loss_graph import LossTerms
from mlflow_stability.probes.forward.forward_passes import ForwardScheduler
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.model_discovery import ObjectMemory
from mlflow_stability.probes.parameters.extreme_values import NonfiniteCount
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.probe import Probe, ProbeContext
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler, TrainingPace
from mlflow_stability.session.broken_batches import BatchReport, SpikeBatches
from mlflow_stability.session.facts_probe import FactsProbe
from mlflow_stability.session.rank_comparison import rank_and_world_size
from mlflow_stability.session.recording.recording import Judging, Recording
from mlflow_stability.vocabulary.judging import DEFAULT
from mlflow_stability.vocabulary.measured.signal_type import modules_with
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, Settings


def chosen_detectors(settings: Settings) -> tuple[Detector, ...]:
    """Those that the settings name; SettingsError for a name that there is not."""
    detectors = choose_detectors((DEFAULT,) if settings.detectors is None else settings.detectors, settings.sensitivity)
    policy, ahead = settings.policy, DivergenceAhead.kind
    if policy.act_ahead is not None and all(detector.kind != ahead for detector in detectors):
        detectors = (*detectors, *at_sensitivity(detectors_named([ahead]), settings.sensitivity))
    if policy.divergence_threshold is None:
        return detectors
    own = DivergenceClassic(policy.divergence_threshold, policy.consecutive_divergence_steps)
    return (*(detector for detector in detectors if not isinstance(detector, DivergenceClassic)), own)


def judging_of(settings: Settings) -> Judging:
    """When they look at a step. Other thresholds than the usual ones may be met by values that are usual."""
    if not settings.uses_autopilot:
        return Judging.DEFERRED
    policy = settings.policy
    as_usual = settings.detectors in (None, (DEFAULT,)) and settings.sensitivity == "normal"
    as_usual = as_usual and policy.divergence_threshold is None and policy.act_ahead is None
    return Judging.GROUPED if as_usual else Judging.AT_ONCE


def report_of(settings: Settings, guard: PartGuard, recording: Recording, host_only: bool = False) -> BatchReport:
    """Make the batch report of a recording. Only rank 0 has a recording, so only its batches are inspected."""
    folder = settings.journal_root() / BATCHES_FOLDER / recording.opening.recording

    def sent() -> None:
        recording.note(BATCHES_FOLDER, str(folder))

    announce: Callable[[], None] | None = sent if settings.capture_batch == "upload" else None
    of_several = rank_and_world_size()[1] > 1
    recording.batches = BatchReport(guard, folder, of_several, announce, host_only=host_only)
    return recording.batches


def held_batches(
    settings: Settings, guard: PartGuard, recording: Recording
) -> tuple[BatchReport | None, FirstBrokenStep | None]:
    """Return who holds the batches, and who inspects broken steps where the autopilot does not."""
    if recording.batches is not None:
        return recording.batches, None
    if not settings.capture_batch or rank_and_world_size()[1] > 1:
        return None, None
    report = report_of(settings, guard, recording, host_only=True)
    recording.spikes = SpikeBatches(report, recording.emit, guard)
    return report, FirstBrokenStep(report, recording)


class FirstBrokenStep:
    """Inspects the first broken step that is taken."""

    def __init__(self, report: BatchReport, recording: Recording) -> None:
        self._report = report
        self._recording = recording
        self._is_over = False

    def inspect_step(self, _step: int, optimizers: Sequence[Optimizer]) -> None:
        """Runs before a step with a non-finite gradient norm."""
        if not self._is_over:
            self._report.inspect_step(self._report.batch_number, optimizers)

    def taken(self, step: int) -> None:
        """Runs after that step: later ones say nothing more."""
        if not self._is_over:
            self._is_over = True
            self._report.report(step, self._recording.emit)
            self._report.stop()


FULL_EVERY = 10  # interval, in measurements of layers, of percentiles and histograms


def probe_scheduler_of(
    settings: Settings, guard: PartGuard, recording: Recording, objects: ObjectMemory | None = None
) -> ProbeScheduler:
    layers = settings.layers_every_n_steps
    facts = FactsProbe(recording)

    terms = LossTerms(recording.next_step, lambda: scheduler.ask_again())

    def look_at_losses(is_on: bool) -> None:
        pace.looks = (terms, look) if is_on else (terms,)

    look = FirstLook(recording.emit, lambda: pace.models, recording.next_step, look_at_losses)
    batches, broken = held_batches(settings, guard, recording)
    capture = None if batches is None else batches.capture
    listeners = [observer for observer in (capture, recording.before_forward) if observer is not None]
    context = ProbeContext(settings, guard, lambda: pace.models, recording.say, recording.keep_attention)
    # Every factory in `PROBES`, in the order of the files.
    factories = [make for name in modules_with("PROBES") for make in import_module(name).PROBES]
    probes_asked_for = [probe for make in factories if (probe := make(context)) is not None]
    inside = [probe for probe in probes_asked_for if not isinstance(probe, Probe)]
    forward = ForwardScheduler(guard, inside, recording.step + 1, recording.emit)
    probes = Probes(
        by_step=[facts, look, terms],
        before_steps=[] if batches is None else [batches.before_steps],
        by_own_step=[probe for probe in probes_asked_for if isinstance(probe, Probe)],
        forward=forward,
        spread=LayerStatistics(layers, FULL_EVERY * layers),
        nonfinite=NonfiniteCount(settings.memory_budget),
        broken=broken,
    )
    pace = TrainingPace(
        guard,
        lambda: guard.seconds,
        settings.tokens_per_step,
        [forward, facts, *listeners],
        settings.total_steps,
        settings.total_tokens,
    )
    facts.flops = pace.throughput.flops
    look_at_losses(True)
    scheduler = ProbeScheduler(guard, probes, pace, recording.step + 1, objects)
    return scheduler
