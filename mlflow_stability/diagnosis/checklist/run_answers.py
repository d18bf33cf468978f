"""Sources of answers that need several metrics or findings of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, restore_infinities
from mlflow_stability.detectors.layer_values import BAND, gradient_flow
from mlflow_stability.diagnosis.advice import CHECKPOINTS_TAG
from mlflow_stability.diagnosis.causes.catalog import CheckResult
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext
from mlflow_stability.diagnosis.causes.gradient import vanishing_check
from mlflow_stability.diagnosis.causes.non_finite import (
    BROKEN_BATCH,
    FP16_LARGEST,
    infinite_in_fp16,
    input_range,
    is_near,
    loss_scale_check,
    origin_near,
    origin_of,
    overflowed,
)
from mlflow_stability.diagnosis.checklist.sources import Answer, Case, State, change_of, check, no_data
from mlflow_stability.diagnosis.recorded_settings import settings_of
from mlflow_stability.kinds.reported.broken_steps import BrokenBatchFacts, NanSource
from mlflow_stability.vocabulary.measured.signal import UNCLIPPED, is_whole_model
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text.phrases import capitalised, counted, how_process_ended, sentence

NON_FINITE = ("nan_detected", "inf_detected")
BATCHES: dict[str, State] = {"broken_batch": "bad", "batch_discarded": "bad", "spike_batch": "unknown"}
"""Events about a batch, and what they show: that of a spike is only described."""
LEARNED_SHARE = 0.9  # a loss below this share of its first values has learned
END_POINTS = 5  # number of first and of last points that are compared for it
HEALTHY_FLOW = 0.9  # minimum share of layers in the band for gradients that flow
MIN_RATE_SHARE = 0.01  # minimum share of its peak for a learning rate with which a training still learns
PEAK_SHARE = 0.99  # minimum share of the highest learning rate at which a warm-up has ended
MAX_MEMORY_RISE = 1.5  # maximum ratio of the last to the first memory reading
EVEN_SPREAD = 0.1  # maximum spread of the distances between spikes at even distances, as a share of their mean
MAX_TENSORS = 4  # maximum number of tensors of a batch that an answer names
MAX_SPIKES = 5  # maximum number of spikes whose steps an answer names
NO_LOSS = no_data("no loss was logged")
NO_RATE = no_data("the learning rate was not logged")


def finite(case: Case) -> Answer | None:
    """Answer whether all points of the loss are finite; nothing where a finding says that they are not."""
    loss = case.context.whole_loss
    if case.findings(*NON_FINITE):
        return None
    if loss is None:
        return NO_LOSS
    count, points = int((~loss.finite).sum()), len(loss.values)
    if count:
        return Answer(f"{count} of the {points} points of {loss.name} are non-finite.", "bad")
    return Answer(f"All {points} points of {loss.name} are finite.", "ok")


def first_non_finite(case: Case) -> Answer | None:
    """Answer where the first non-finite value appeared; nothing where all are finite."""
    first = next(iter(case.findings(*NON_FINITE)), None)
    if first is None:
        return None
    place = f" of {first.place}" if first.place else ""
    origin = origin_near(case.context)
    statement = "" if origin is None else f" {origin_of(origin).statement}"
    return Answer(f"First seen in {first.metric or 'the loss'}{place} at step {first.start}.{statement}", "bad")


def batch_finite(case: Case) -> Answer:
    context = case.context
    batch = next((event for event in context.events_of(BROKEN_BATCH) if is_near(context, event)), None)
    if batch is None:
        return no_data(f"the inputs of step {context.episode.start} were not recorded")
    tensors = batch.facts.tensors if isinstance(batch.facts, BrokenBatchFacts) else ()
    broken = [
        f"{counted(tensor.nan + tensor.inf, 'number')} of {tensor.name}" for tensor in tensors if not tensor.is_finite
    ]
    if broken:
        return Answer(f"Non-finite at step {batch.step}: {'; '.join(broken[:MAX_TENSORS])}.", "bad")
    ranges = [
        f"{tensor.name} from {tensor.least:.3g} to {tensor.greatest:.3g}"
        for tensor in tensors
        if tensor.least is not None and tensor.greatest is not None
    ]
    listed = f": {'; '.join(ranges[:MAX_TENSORS])}" if ranges else ""
    return Answer(f"All finite at step {batch.step}{listed}.", "ok")


def batch_of_its_step(case: Case) -> Answer:
    """Answer what was recorded of the batch of the trouble; without a finding, of the first batch that broke."""
    if case.context.history.events is None:
        return no_data("only `autolog()` records this")
    episode = case.context.episode
    for kind, state in BATCHES.items():
        batches = case.context.events_of(kind)
        steps = (episode.start, episode.peak) if case.has_finding else [batch.step for batch in batches]
        for step in steps:
            batch = next((batch for batch in batches if batch.step == step), None)
            if batch is not None:
                return Answer(capitalised(batch.message), state)
    at_that_step = f" at step {episode.start}" if case.has_finding else ""
    return Answer(f"No unusual batch recorded{at_that_step}.", "ok")


def overflow(case: Case) -> Answer | None:
    """Answer whether the first non-finite value came from an overflow; nothing if that was not looked for."""
    origin = origin_near(case.context)
    if origin is None:
        return None
    facts = origin_of(origin)
    if infinite_in_fp16(facts):
        return Answer(f"Possible: in fp16, numbers above {FP16_LARGEST:.0f} are infinite, and the batch was.", "bad")
    if facts.source is NanSource.INPUT:
        return Answer("No: the batch itself was non-finite.", "ok")
    if facts.source not in (NanSource.FORWARD, NanSource.BACKWARD):
        return None
    inputs = f" Its inputs range {input_range(facts)}." if facts.value_range is not None else ""
    if overflowed(facts):
        return Answer(f"Yes, in {origin.place or 'the model'} at step {origin.step}.{inputs}", "bad")
    return Answer(f"No: the operation is undefined for its inputs.{inputs}", "ok")


def loss_scale(case: Case) -> Answer | None:
    """Answer whether the loss scale is a cause; else whether the loss is finite."""
    result, answer = loss_scale_check(case.context), finite(case)
    if result.cause is not None or answer is None:
        return check(loss_scale_check)(case)
    steady = f" {sentence(result.ruled_out)}" if result.ruled_out else ""
    return Answer(f"{answer.text}{steady}", answer.state, answer.has_data)


def spikes(case: Case) -> Answer:
    loss = case.context.whole_loss
    if loss is None:
        return NO_LOSS
    steps = [str(spike.start) for spike in case.findings("loss_spike", least=Severity.WARNING)]
    if not steps:
        return Answer(f"No spike among the {len(loss.values)} points of {loss.name}.", "ok")
    listed = ", ".join([*steps[:MAX_SPIKES], *(["..."] if len(steps) > MAX_SPIKES else [])])
    return Answer(f"{counted(len(steps), 'spike')} of the loss, at step {listed}.", "bad")


def spikes_recur(case: Case) -> Answer:
    steps = [spike.start for spike in case.findings("loss_spike")]
    if len(steps) < 2:
        return Answer("It happened once.", "unknown") if steps else Answer("No loss spike.", "ok")
    distances = np.diff(steps)
    even = len(distances) > 1 and float(np.ptp(distances)) <= EVEN_SPREAD * float(distances.mean())
    pace = f", every {float(distances.mean()):.0f} steps" if even else ""
    return Answer(f"{len(steps)} loss spikes{pace}, first at step {steps[0]}.", "bad")


def loss_fell(case: Case) -> Answer:
    loss = case.context.whole_loss
    if loss is None or not loss.finite.any():
        return NO_LOSS
    values = loss.values[loss.finite]
    first, last = float(values[0]), float(np.median(values[-max(1, len(values) // 10) :]))
    return Answer(f"The loss changed from {first:.3g} to {last:.3g}.", "ok" if last < first else "unknown")


def lost_gradients(context: EpisodeContext) -> CheckResult:
    """Check for gradients that vanished before anything was learned; those of a training that has learned are small."""
    result, loss, episode = vanishing_check(context), context.loss, context.episode
    if result.cause is None or loss is None or episode.kind in ("gradient_vanishing", "plateau"):
        return result
    values = loss.values[loss.finite]
    first, last = values[:END_POINTS], (context.before(loss) if episode.kind else values)[-END_POINTS:]
    learned = len(last) == END_POINTS and float(np.median(last)) < LEARNED_SHARE * float(np.median(first))
    return CheckResult() if learned else result


def gradient_reach(case: Case) -> Answer:
    """Answer with the share of layers with a healthy gradient norm at the trouble."""
    layers = [curve for curve in case.context.curves("grad_norm") if not is_whole_model(curve.place)]
    norms = {change.place: change.at for curve in layers if (change := change_of(case, curve)) is not None}
    if len(norms) < 2:
        return no_data("gradient norms of layers not logged")
    flow, least = gradient_flow(norms.values()), min(norms, key=norms.__getitem__)
    return Answer(
        f"Gradient flow {flow:.0%}: {round(flow * len(norms))} of {len(norms)} layers within a factor of {BAND:g} of "
        f"the median norm; smallest: {least} {norms[least]:.3g}.",
        "ok" if flow >= HEALTHY_FLOW else "bad",
    )


def clipping(case: Case) -> Answer:
    limit = settings_of(case.context.history).max_norm
    if limit is not None:
        share = _finite_values(case.context.curves("clip_fraction"))
        clipped = f" {share[0].mean():.0%} of the steps were clipped." if share else ""
        return Answer(f"Yes, at a norm of {limit:.3g}.{clipped}", "ok")
    if UNCLIPPED in case.context.history.tags.get("stability.grad_norm", ""):
        return Answer("Gradients were not clipped.", "bad")
    return no_data("clipping not recorded")


def rate_range(case: Case) -> Answer | None:
    """Answer with the learning rates of a run without a finding."""
    if case.has_finding:
        return None
    rates = _finite_values(case.context.rates)
    if not rates:
        return NO_RATE
    low, high = min(values.min() for values in rates), max(values.max() for values in rates)
    return Answer(f"Between {low:.3g} and {high:.3g}.", "ok")


def warm_up(case: Case) -> Answer:
    rate = next((curve for curve in case.context.rates if curve.finite.any()), None)
    if rate is None:
        return NO_RATE
    begin = case.context.episode.start if case.has_finding else int(rate.steps[-1]) + 1
    usable = rate.finite & ((rate.steps < begin) | (rate.steps == rate.steps[0]))
    if not usable.any():
        return no_data("the learning rate was not logged before it")
    values, steps = rate.values[usable], rate.steps[usable]
    highest, at = f"{values.max():.3g}", int(np.argmax(values >= PEAK_SHARE * values.max()))
    if at:
        return Answer(f"It rose from {values[0]:.3g} to {highest} by step {int(steps[at])}.", "ok")
    too_early = case.has_finding and case.context.is_early
    text = f"No warm-up: the rate was at its highest, {highest}, from step {int(steps[0])} on."
    return Answer(text, "bad" if too_early else "ok")


def rate_left(case: Case) -> Answer:
    rates = _finite_values(case.context.rates)
    if not rates:
        return NO_RATE
    before = [values for rate in case.context.rates if len(values := case.context.before(rate))]
    highest = float(max(values.max() for values in rates))
    now = max((float(values[-1]) for values in before), default=float(rates[0][0]))
    share = now / highest if highest > 0 else 0.0
    text = f"It was {now:.3g}, {share:.2%} of its highest value {highest:.3g}."
    return Answer(text, "bad" if share < MIN_RATE_SHARE else "ok")


def validation_gap(case: Case) -> Answer:
    """Answer how far the validation loss is above the training loss at the end."""
    validations, losses = _finite_values(case.context.curves("val_loss")), _finite_values(case.context.curves("loss"))
    if not validations or not losses:
        return no_data("training and validation loss were not both logged")
    validation, training = float(validations[0][-1]), float(np.median(losses[0][-LOOKBACK.just_before :]))
    first, gap = float(validations[0][0]) - float(np.median(losses[0][: LOOKBACK.just_before])), validation - training
    wide = gap > max(0.0, first) and validation > 2 * training > 0
    text = f"Validation {validation:.3g}, training {training:.3g} at the end: a gap of {gap:.3g}"
    return Answer(f"{text}; at the start {first:.3g}.", "bad" if wide else "ok")


def best_validation(case: Case) -> Answer:
    readings = case.diagnosis.curves
    validation = next((reading for reading in readings if "val" in reading.metric.lower()), None)
    if validation is None:
        return no_data("no validation loss was logged")
    best = f"{validation.metric} was best, {validation.best:.3g}, at step {validation.best_step}"
    return Answer(f"{best}, and {validation.last:.3g} at the end.", "ok")


def how_it_ended(case: Case) -> Answer:
    ended, detail = case.diagnosis.ended, case.context.history.outcome_detail
    if not ended:
        return no_data("the end of the process was not recorded")
    text = f"{how_process_ended(ended)}{f': {detail}' if detail else ''}".removesuffix(".")
    return Answer(f"{text}.", "ok" if ended in ("finished", "stopped", "running") else "bad")


def good_state(case: Case) -> Answer:
    """Answer whether the recording keeps checkpoints, and could write them."""
    history = case.context.history
    if history.events is None:
        return no_data("only `autolog()` records this")
    failed = case.context.events_of("checkpoint_failed")
    if failed:
        return Answer(capitalised(failed[-1].message), "bad")
    folder = history.tags.get(CHECKPOINTS_TAG)
    if folder is None:
        return Answer("The recording keeps no checkpoints; with rollback=True it does.", "unknown")
    return Answer(f"Checkpoints are in {folder}.", "ok")


def memory(case: Case) -> Answer:
    metrics = case.context.history.metrics
    metric = next((item for item in metrics if "memory" in item.meaning.quantity and len(item.series) > 1), None)
    if metric is None:
        return no_data("memory was not logged")
    first, last = map(float, restore_infinities(metric.series.values)[[0, -1]])
    text = f"{metric.name} changed from {first:.3g} to {last:.3g}."
    return Answer(text, "bad" if last > MAX_MEMORY_RISE * first > 0 else "ok")


def _finite_values(curves: tuple[Curve, ...]) -> list[NDArray[np.float64]]:
    return [curve.values[curve.finite] for curve in curves if curve.finite.any()]
