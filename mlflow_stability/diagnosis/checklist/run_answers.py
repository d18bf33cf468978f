"""Answers that need more than one metric or finding of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, decoded
from mlflow_stability.detectors.layer_values import BAND, gradient_flow
from mlflow_stability.diagnosis.advice.applicable import CHECKPOINTS_TAG
from mlflow_stability.diagnosis.causes.check import CheckResult
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, shown
from mlflow_stability.diagnosis.causes.gradient import vanishing_check
from mlflow_stability.diagnosis.causes.nan_origin import (
    BROKEN_BATCH,
    near,
    origin_near,
    origin_of,
    overflowed,
    range_of,
)
from mlflow_stability.diagnosis.causes.numeric import loss_scale_check
from mlflow_stability.diagnosis.checklist.question import Answer, Case, State, no_data
from mlflow_stability.diagnosis.checklist.sources import change_of, checked
from mlflow_stability.diagnosis.parameters.recorded_settings import settings_of
from mlflow_stability.kinds.reported.batches import BrokenBatchFacts
from mlflow_stability.kinds.reported.nan_origin import NanSource
from mlflow_stability.vocabulary.measured import UNCLIPPED, of_the_whole
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text import capitalised, counted, process_ended, sentence

NON_FINITE = ("nan_detected", "inf_detected")
BATCHES: dict[str, State] = {"broken_batch": "bad", "batch_discarded": "bad", "spike_batch": "unknown"}
"""Reports about a batch, and what they say of it: that of a spike is described, not judged."""
FALLEN = 0.9
"""A loss below this share of its first values has learned."""
FIRST_POINTS = 5
"""Number of first and of last points that are compared for it."""
HEALTHY_FLOW = 0.9
"""Minimum share of layers in the band for gradients that flow."""
LEAST_RATE = 0.01
"""Minimum share of its peak for a learning rate with which a training still learns."""
PEAK = 0.99
"""Minimum share of the highest learning rate at which a warm-up has ended."""
MEMORY_RISE = 1.5
"""Maximum ratio of the last to the first memory reading."""
EVEN = 0.1
"""Maximum spread of the distances between spikes at even distances, as a share of their mean."""
MOST_TENSORS = 4
"""Maximum number of tensors of a batch that an answer names."""
MOST_SPIKES = 5
"""Maximum number of spikes whose steps an answer names."""
NO_LOSS = no_data("no loss was logged")
NO_RATE = no_data("the learning rate was not logged")


def finite(case: Case) -> Answer | None:
    """Whether all points of the loss are finite; nothing where a finding says that they are not."""
    loss = case.around.whole_loss
    if case.findings(*NON_FINITE):
        return None
    if loss is None:
        return NO_LOSS
    count, points = int((~loss.finite).sum()), len(loss.values)
    if count:
        return Answer(f"{count} of the {points} points of {loss.name} are non-finite.", "bad")
    return Answer(f"All {points} points of {loss.name} are finite.", "ok")


def first_non_finite(case: Case) -> Answer | None:
    """Where the first non-finite value appeared; nothing where all are finite."""
    first = next(iter(case.findings(*NON_FINITE)), None)
    if first is None:
        return None
    place = f" of {first.place}" if first.place else ""
    origin = origin_near(case.around)
    statement = "" if origin is None else f" {origin_of(origin).statement}"
    return Answer(f"First seen in {first.metric or 'the loss'}{place} at step {first.start}.{statement}", "bad")


def batch_finite(case: Case) -> Answer:
    """Whether all of the batch was finite, and its range."""
    around = case.around
    batch = next((event for event in around.said(BROKEN_BATCH) if near(around, event)), None)
    if batch is None:
        return no_data(f"the inputs of step {around.episode.start} were not recorded")
    tensors = batch.facts.tensors if isinstance(batch.facts, BrokenBatchFacts) else ()
    broken = [f"{counted(each.nan + each.inf, 'number')} of {each.name}" for each in tensors if not each.is_finite]
    if broken:
        return Answer(f"Non-finite at step {batch.step}: {'; '.join(broken[:MOST_TENSORS])}.", "bad")
    ranges = [
        f"{each.name} from {shown(each.least)} to {shown(each.greatest)}"
        for each in tensors
        if each.least is not None and each.greatest is not None
    ]
    listed = f": {'; '.join(ranges[:MOST_TENSORS])}" if ranges else ""
    return Answer(f"All finite at step {batch.step}{listed}.", "ok")


def batch_of_its_step(case: Case) -> Answer:
    """What the recording reported of the batch of the trouble; without a finding, of the first batch that broke."""
    if case.around.history.events is None:
        return no_data("only `autolog()` records this")
    episode = case.around.episode
    for kind, state in BATCHES.items():
        batches = case.around.said(kind)
        steps = (episode.start, episode.peak) if case.has_finding else [batch.step for batch in batches]
        for step in steps:
            batch = next((batch for batch in batches if batch.step == step), None)
            if batch is not None:
                return Answer(capitalised(batch.message), state)
    at_that_step = f" at step {episode.start}" if case.has_finding else ""
    return Answer(f"No unusual batch recorded{at_that_step}.", "ok")


def overflow(case: Case) -> Answer | None:
    """Whether numbers overflowed where the first non-finite one appeared; nothing where that was not looked for."""
    origin = origin_near(case.around)
    if origin is None:
        return None
    facts = origin_of(origin)
    if facts.source is NanSource.INPUT:
        return Answer("No: the batch itself was non-finite.", "ok")
    if facts.source not in (NanSource.FORWARD, NanSource.BACKWARD):
        return None
    inputs = f" Its inputs range {range_of(facts)}." if facts.value_range is not None else ""
    if overflowed(facts):
        return Answer(f"Yes, in {origin.place or 'the model'} at step {origin.step}.{inputs}", "bad")
    return Answer(f"No: the operation is undefined for its inputs.{inputs}", "ok")


def loss_scale(case: Case) -> Answer | None:
    """Whether the loss scale is a cause; else whether the loss is finite."""
    result, answer = loss_scale_check(case.around), finite(case)
    if result.cause is not None or answer is None:
        return checked(loss_scale_check)(case)
    steady = f" {sentence(result.ruled_out)}" if result.ruled_out else ""
    return Answer(f"{answer.text}{steady}", answer.state, answer.has_data)


def spikes(case: Case) -> Answer:
    """Whether the loss spiked."""
    loss = case.around.whole_loss
    if loss is None:
        return NO_LOSS
    steps = [str(each.start) for each in case.findings("loss_spike", least=Severity.WARNING)]
    if not steps:
        return Answer(f"No spike among the {len(loss.values)} points of {loss.name}.", "ok")
    listed = ", ".join([*steps[:MOST_SPIKES], *(["..."] if len(steps) > MOST_SPIKES else [])])
    return Answer(f"{counted(len(steps), 'spike')} of the loss, at step {listed}.", "bad")


def spikes_recur(case: Case) -> Answer:
    """How often the loss spiked, and whether at even distances."""
    steps = [each.start for each in case.findings("loss_spike")]
    if len(steps) < 2:
        return Answer("It happened once.", "unknown") if steps else Answer("No loss spike.", "ok")
    distances = np.diff(steps)
    even = len(distances) > 1 and float(np.ptp(distances)) <= EVEN * float(distances.mean())
    pace = f", every {float(distances.mean()):.0f} steps" if even else ""
    return Answer(f"{len(steps)} loss spikes{pace}, first at step {steps[0]}.", "bad")


def loss_fell(case: Case) -> Answer:
    """Whether the loss ended below its first value."""
    loss = case.around.whole_loss
    if loss is None or not loss.finite.any():
        return NO_LOSS
    values = loss.values[loss.finite]
    first, last = float(values[0]), float(np.median(values[-max(1, len(values) // 10) :]))
    return Answer(f"The loss changed from {shown(first)} to {shown(last)}.", "ok" if last < first else "unknown")


def lost_gradients(around: EpisodeContext) -> CheckResult:
    """Whether gradients vanished before anything was learned: those of a training that has learned are small."""
    result, loss, episode = vanishing_check(around), around.loss, around.episode
    if result.cause is None or loss is None or episode.kind in ("gradient_vanishing", "plateau"):
        return result
    values = loss.values[loss.finite]
    first, last = values[:FIRST_POINTS], (around.before(loss) if episode.kind else values)[-FIRST_POINTS:]
    learned = len(last) == FIRST_POINTS and float(np.median(last)) < FALLEN * float(np.median(first))
    return CheckResult() if learned else result


def gradient_reach(case: Case) -> Answer:
    """The share of layers with a healthy gradient norm at the trouble."""
    layers = [curve for curve in case.around.of("grad_norm") if not of_the_whole(curve.place)]
    norms = {change.place: change.at for curve in layers if (change := change_of(case, curve)) is not None}
    if len(norms) < 2:
        return no_data("gradient norms of layers not logged")
    flow, least = gradient_flow(norms.values()), min(norms, key=norms.__getitem__)
    return Answer(
        f"Gradient flow {flow:.0%}: {round(flow * len(norms))} of {len(norms)} layers within a factor of {BAND:g} of "
        f"the median norm; smallest: {least} {shown(norms[least])}.",
        "ok" if flow >= HEALTHY_FLOW else "bad",
    )


def clipping(case: Case) -> Answer:
    """Whether gradients are clipped, and at which norm."""
    limit = settings_of(case.around.history).max_norm
    if limit is not None:
        share = _finite_values(case.around.of("clip_fraction"))
        clipped = f" {share[0].mean():.0%} of the steps were clipped." if share else ""
        return Answer(f"Yes, at a norm of {shown(limit)}.{clipped}", "ok")
    if UNCLIPPED in case.around.history.tags.get("stability.grad_norm", ""):
        return Answer("Gradients were not clipped.", "bad")
    return no_data("clipping not recorded")


def rate_range(case: Case) -> Answer | None:
    """The learning rates of a run without a finding."""
    if case.has_finding:
        return None
    rates = _finite_values(case.around.rates)
    if not rates:
        return NO_RATE
    low, high = min(each.min() for each in rates), max(each.max() for each in rates)
    return Answer(f"Between {shown(float(low))} and {shown(float(high))}.", "ok")


def warm_up(case: Case) -> Answer:
    """How the learning rate began."""
    rate = next((each for each in case.around.rates if each.finite.any()), None)
    if rate is None:
        return NO_RATE
    begin = case.around.episode.start if case.has_finding else int(rate.steps[-1]) + 1
    known = rate.finite & ((rate.steps < begin) | (rate.steps == rate.steps[0]))
    if not known.any():
        return no_data("the learning rate was not logged before it")
    values, steps = rate.values[known], rate.steps[known]
    highest, at = shown(float(values.max())), int(np.argmax(values >= PEAK * values.max()))
    if at:
        return Answer(f"It rose from {shown(float(values[0]))} to {highest} by step {int(steps[at])}.", "ok")
    too_early = case.has_finding and case.around.is_early
    text = f"No warm-up: the rate was at its highest, {highest}, from step {int(steps[0])} on."
    return Answer(text, "bad" if too_early else "ok")


def rate_left(case: Case) -> Answer:
    """Which share of its highest value the learning rate had when it began."""
    rates = _finite_values(case.around.rates)
    if not rates:
        return NO_RATE
    before = [values for rate in case.around.rates if len(values := case.around.before(rate))]
    highest = float(max(each.max() for each in rates))
    now = max((float(each[-1]) for each in before), default=float(rates[0][0]))
    share = now / highest if highest > 0 else 0.0
    text = f"It was {shown(now)}, {share:.2%} of its highest value {shown(highest)}."
    return Answer(text, "bad" if share < LEAST_RATE else "ok")


def validation_gap(case: Case) -> Answer:
    """How far the validation loss is above the training loss at the end."""
    validations, losses = _finite_values(case.around.of("val_loss")), _finite_values(case.around.of("loss"))
    if not validations or not losses:
        return no_data("training and validation loss were not both logged")
    validation, training = float(validations[0][-1]), float(np.median(losses[0][-LOOKBACK.just_before :]))
    first, gap = float(validations[0][0]) - float(np.median(losses[0][: LOOKBACK.just_before])), validation - training
    wide = gap > max(0.0, first) and validation > 2 * training > 0
    text = f"Validation {shown(validation)}, training {shown(training)} at the end: a gap of {shown(gap)}"
    return Answer(f"{text}; at the start {shown(first)}.", "bad" if wide else "ok")


def best_validation(case: Case) -> Answer:
    """When the validation loss was best."""
    readings = case.diagnosis.curves
    validation = next((each for each in readings if any(word in each.metric.lower() for word in ("val", "eval"))), None)
    if validation is None:
        return no_data("no validation loss was logged")
    best = f"{validation.metric} was best, {shown(validation.best)}, at step {validation.best_step}"
    return Answer(f"{best}, and {shown(validation.last)} at the end.", "ok")


def how_it_ended(case: Case) -> Answer:
    """How the process ended."""
    ended, detail = case.diagnosis.ended, case.around.history.outcome_detail
    if not ended:
        return no_data("the end of the process was not recorded")
    text = f"{process_ended(ended)}{f': {detail}' if detail else ''}".removesuffix(".")
    return Answer(f"{text}.", "ok" if ended in ("finished", "stopped", "running") else "bad")


def good_state(case: Case) -> Answer:
    """Whether the recording keeps checkpoints, and could write them."""
    history = case.around.history
    if history.events is None:
        return no_data("only `autolog()` records this")
    failed = case.around.said("checkpoint_failed")
    if failed:
        return Answer(capitalised(failed[-1].message), "bad")
    folder = history.tags.get(CHECKPOINTS_TAG)
    if folder is None:
        return Answer("The recording keeps no checkpoints; with rollback=True it does.", "unknown")
    return Answer(f"Checkpoints are in {folder}.", "ok")


def memory(case: Case) -> Answer:
    """Whether memory grew."""
    metrics = case.around.history.metrics
    metric = next((each for each in metrics if "memory" in each.meaning.quantity and len(each.series) > 1), None)
    if metric is None:
        return no_data("memory was not logged")
    first, last = map(float, decoded(metric.series.values)[[0, -1]])
    text = f"{metric.name} changed from {shown(first)} to {shown(last)}."
    return Answer(text, "bad" if last > MEMORY_RISE * first > 0 else "ok")


def _finite_values(curves: tuple[Curve, ...]) -> list[NDArray[np.float64]]:
    return [curve.values[curve.finite] for curve in curves if curve.finite.any()]
