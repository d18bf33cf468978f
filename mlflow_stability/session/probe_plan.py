"""Chooses the probes of a recording: what is measured beside loss, gradient norm and learning rate, and how often.

In: settings. Out: a survey. Guarantees: what was not asked for is not there, and costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from mlflow_stability.probes.first_look import FirstLook
from mlflow_stability.probes.forward import ForwardScheduler
from mlflow_stability.probes.objects import ObjectMemory
from mlflow_stability.probes.parameters import NonfiniteCount
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.performance.training_pace import TrainingPace
from mlflow_stability.probes.probe import ForwardProbe, Probe, ProbeContext
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler
from mlflow_stability.session.broken_batch.held_batches import held_batches
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording import Recording
from mlflow_stability.session.run_facts import FactsProbe
from mlflow_stability.vocabulary.measured import modules_with
from mlflow_stability.vocabulary.settings import Settings

FULL_EVERY = 10
"""Every how many looks at the layers percentiles and histograms are taken, too."""


def probe_scheduler_of(
    settings: Settings, guard: PartGuard, recording: Recording, objects: ObjectMemory | None = None
) -> ProbeScheduler:
    """The probes that these settings ask for."""
    layers = settings.layers_every_n_steps
    facts = FactsProbe(recording)

    def look_at_losses(is_on: bool) -> None:
        pace.look = guard(FirstLook.part, look.at_loss) if is_on else None

    look = FirstLook(recording.emit, lambda: pace.models, lambda: recording.step + 1, look_at_losses)
    batches, broken = held_batches(settings, guard, recording)
    capture = None if batches is None else batches.capture
    listeners = [each for each in (capture, recording.before_forward) if each is not None]
    context = ProbeContext(settings, guard, lambda: pace.models, recording.say, recording.keep_attention)
    found = probes_for(context)
    inside = [each for each in found if isinstance(each, ForwardProbe)]
    forward = ForwardScheduler(guard, inside, recording.step + 1, recording.emit)
    probes = Probes(
        by_step=[facts, look],
        before_steps=[] if batches is None else [batches.before_steps],
        by_own_step=[each for each in found if not isinstance(each, ForwardProbe)],
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
    return ProbeScheduler(guard, probes, pace, recording.step + 1, objects)


def probes_for(context: ProbeContext) -> list[Probe | ForwardProbe]:
    """What each file with `PROBES` makes of these settings, in the order of their paths."""
    factories = [make for name in modules_with("PROBES") for make in import_module(name).PROBES]
    return [probe for make in factories if (probe := make(context)) is not None]
