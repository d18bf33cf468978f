"""Chooses the probes of a recording: what is measured beside loss, gradient norm and learning rate, and how often.

In: settings. Out: a survey. Guarantees: what was not asked for is not there, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.nn import Module

from mlflow_stability.probes.activations.activation_probe import ActivationProbe
from mlflow_stability.probes.attention.attention_probe import AttentionProbe
from mlflow_stability.probes.forward.forward_scheduler import ForwardProbe, ForwardScheduler
from mlflow_stability.probes.parameters.adam_rms import AdamRms
from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, WeightExtremes
from mlflow_stability.probes.parameters.layer_norms import LayerNorms
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.parameters.momentum_norm import MomentumNorm
from mlflow_stability.probes.parameters.nonfinite_count import NonfiniteCount
from mlflow_stability.probes.parameters.weight_updates import WeightUpdates
from mlflow_stability.probes.performance.training_pace import TrainingPace
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler
from mlflow_stability.probes.representations.representation_probe import RepresentationProbe
from mlflow_stability.probes.routing import RouterProbe
from mlflow_stability.session.broken_batch.held_batches import held_batches
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording import Recording
from mlflow_stability.session.run_facts import FactsProbe
from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.settings import Settings

NORMS_EVERY = 10
"""Every how many steps the whole model's weights, updates and momentum are measured."""
EXTREMES_EVERY = 1000
"""Every how many steps weights are looked at that are huge, tiny or not finite."""
FULL_EVERY = 10
"""Every how many looks at the layers percentiles and histograms are taken, too."""


def probe_scheduler_of(settings: Settings, guard: PartGuard, recording: Recording) -> ProbeScheduler:
    """The probes that these settings ask for."""
    layers, budget = settings.layers_every_n_steps, settings.memory_budget
    every_step = settings.preset is not None and PRESETS[settings.preset].adam_rms_every_step
    facts = FactsProbe(recording)
    batches, broken = held_batches(settings, guard, recording)
    holders = [] if batches is None else [batches]
    looks = _forward_probes(settings, guard, recording, lambda: pace.models)
    forward = ForwardScheduler(guard, looks, recording.step + 1, recording.emit)
    probes = Probes(
        by_step=[facts],
        before_steps=[] if batches is None else [batches.before_steps],
        by_own_step=[
            LayerNorms(NORMS_EVERY, layers),
            WeightUpdates(NORMS_EVERY, layers, budget),
            MomentumNorm(NORMS_EVERY, layers),
            AdamRms(1 if every_step else layers, layers, budget),
            GradientExtremes(layers),
            WeightExtremes(EXTREMES_EVERY, budget),
        ],
        forward=forward,
        spread=LayerStatistics(layers, FULL_EVERY * layers),
        nonfinite=NonfiniteCount(budget),
        broken=broken,
    )
    pace = TrainingPace(guard, lambda: guard.seconds, settings.tokens_per_step, [forward, facts, *holders])
    facts.flops = pace.throughput.flops
    return ProbeScheduler(guard, probes, pace, recording.step + 1)


def _forward_probes(
    settings: Settings, guard: PartGuard, recording: Recording, models: Callable[[], Sequence[Module]]
) -> list[ForwardProbe]:
    every = settings.layers_every_n_steps
    found: list[ForwardProbe] = [ActivationProbe(guard, every, models), RouterProbe(guard, every, models)]
    if settings.sdr_check_interval:
        asked = settings.representations, settings.sdr_check_interval
        found.append(RepresentationProbe(guard, *asked, models, recording.say))
    if settings.attention_every:
        keep = recording.keep_attention
        found.append(AttentionProbe(settings.attention_every, settings.attention_max_seq_len, guard, keep, models))
    return found
