"""Choose the loss and the validation loss of a run.

`metric_names` decides by names; here the curves decide what names leave open. A loss that is the sum of the others is
their total. Epoch means replace the losses of single steps where they are about as many, because each of them knows all
steps, or where single steps are mostly noise. A validation with a handful of points is replaced by a test with more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.curves.levels import level_noise, to_judged_scale
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.measured.signal import Signal, is_whole_model
from mlflow_stability.vocabulary.result import AskedCurves, JudgedCurves
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import COARSE, FINE, TESTS, Meaning, split_words
from mlflow_stability.vocabulary.text.phrases import counted

MIN_AVERAGES_SHARE = 0.5  # minimum number of epoch means that replace single steps, as a share of these
NOISY_NATS, MIN_AVERAGES_IF_NOISY = 0.2, 30
"""Where single steps have this noise in nats, this number of means is enough: at 8σ a spike would be fivefold."""
MIN_POINTS = 6  # minimum number of points to judge a validation
SUM_TOLERANCE = 0.01  # maximum median relative distance of a total to the sum of its parts
MIN_PARTS = 2
NAMESAKE_RATIO = 10  # minimum ratio of lengths for a curve that replaces one of the same name in other capitals
MAX_SUGGESTIONS = 5  # number of names that are suggested for an unknown one

MIN_LIKENESS = 0.55  # minimum similarity of a suggested name, from 0 to 1


def with_main_curves(history: RunHistory, asked: AskedCurves | None = None) -> RunHistory:
    """Return the history with its loss and validation loss in the place of the whole model, and the reason."""
    asked = asked or AskedCurves()
    for quantity, name, option in (("loss", asked.loss, "--loss"), ("val_loss", asked.val_loss, "--val-loss")):
        if name:
            chosen = _find_metric(history, name)
            history = _with_whole(history, quantity, chosen, f"{chosen.name} was chosen with {option}")
        else:
            history = _with_inferred(history, quantity)
    if asked and history.events is not None and history.complete:
        note = "Judged again, by other curves than during training."
        history = replace(history, events=None, notes=(*history.notes, note))
    return history


def _find_metric(history: RunHistory, name: str) -> Metric:
    """Find a metric by its name, or the only one that differs in capitals and separators."""
    metrics = {metric.name: metric for metric in history.metrics}
    similar = [other for other in metrics if _lower_words(other) == _lower_words(name)]
    metric = metrics.get(name) or (metrics[similar[0]] if len(similar) == 1 else None)
    if metric is None:
        raise SettingsError(f"No metric {name!r} in {history.source}. {_suggestion(name, list(metrics))}")
    if len(metric.series) < 2:
        raise SettingsError(f"{metric.name!r} in {history.source} has a single value; a curve needs at least two.")
    return metric


def _suggestion(name: str, names: Sequence[str]) -> str:
    by_lower_case = {other.lower(): other for other in names}
    similar = get_close_matches(name.lower(), list(by_lower_case), n=MAX_SUGGESTIONS, cutoff=MIN_LIKENESS)
    containing = [lower for lower in sorted(by_lower_case) if name.lower() in lower]
    suggested = [by_lower_case[lower] for lower in dict.fromkeys([*similar, *containing])][:MAX_SUGGESTIONS]
    if suggested:
        return f"Did you mean {' or '.join(map(repr, suggested))}?"
    if len(names) <= 2 * MAX_SUGGESTIONS:
        return f"Its metrics: {', '.join(sorted(names)) or 'none'}."
    losses_first = sorted(
        names, key=lambda other: ("loss" not in other.lower(), Signal.parse(other).place != "", other)
    )
    return f"It has {counted(len(names), 'metric')}, among them {', '.join(losses_first[: 2 * MAX_SUGGESTIONS])}."


def _with_whole(history: RunHistory, quantity: str, chosen: Metric, reason: str) -> RunHistory:
    """Give this metric the place of the whole model, and another place to its previous holder."""
    replaced = {
        metric.name
        for metric in history.metrics
        if metric.meaning.quantity == quantity and not metric.meaning.place and metric.name != chosen.name
    }

    def new_meaning(metric: Metric) -> Meaning:
        meaning = metric.meaning
        if metric.name == chosen.name:
            return Meaning(quantity, is_known=True)
        if metric.name in replaced:
            again = chosen.meaning.duplicate_of == metric.name or meaning.duplicate_of == chosen.name
            same = chosen.meaning.quantity == quantity and not chosen.meaning.place
            if again or (same and meaning.duplicate_of):
                return replace(meaning, duplicate_of=chosen.name)
            return replace(meaning, place=metric.name, duplicate_of="")
        if meaning.duplicate_of == chosen.name and meaning.quantity != quantity:
            return replace(meaning, duplicate_of="")
        return meaning

    metrics = []
    for metric in history.metrics:
        meaning = new_meaning(metric)
        series = metric.series if meaning == metric.meaning else replace(metric.series, signal=meaning.signal)
        metrics.append(replace(metric, meaning=meaning, series=series))
    return replace(history, metrics=tuple(metrics), choice=(*history.choice, reason))


def _with_inferred(history: RunHistory, quantity: str) -> RunHistory:
    """Decide by the curves what the names leave open."""
    metrics = [metric for metric in history.of(quantity) if len(metric.series) > 1]
    tracks = [metric for metric in metrics if metric.meaning.place and is_whole_model(metric.meaning.place)]
    if tracks or any(metric.name.startswith("stability") for metric in metrics):
        return history  # recorded: the meanings are known
    singles = sorted((metric for metric in metrics if not metric.meaning.duplicate_of), key=lambda metric: metric.name)
    choice = _sum_of_others(singles) or _longer(singles) or _finer_mean(metrics)
    if choice is not None:
        history = _with_whole(history, quantity, *choice)
    return _with_averages(history, quantity)


def _whole(metrics: Iterable[Metric]) -> Metric | None:
    return next((metric for metric in metrics if not metric.meaning.place), None)


def _sum_of_others(metrics: Sequence[Metric]) -> tuple[Metric, str] | None:
    """Find the loss that is the sum of the others, where no name is that of the whole loss."""
    if len(metrics) <= MIN_PARTS or _whole(metrics) is not None:
        return None
    steps = metrics[0].series.steps
    if any(not np.array_equal(metric.series.steps, steps) for metric in metrics[1:]):
        return None
    values = np.array([metric.series.values for metric in metrics])
    if (np.abs(values) > 0).any(axis=1).sum() - 1 < MIN_PARTS:
        return None
    with np.errstate(all="ignore"):
        others = values.sum(axis=0) - values
        distances = np.abs(values - others) / np.abs(values)
        medians = np.median(np.where(np.isnan(distances), np.inf, distances), axis=1)
    for metric, distance in zip(metrics, medians, strict=True):
        if distance <= SUM_TOLERANCE:
            return metric, f"{metric.name} is the sum of the {len(metrics) - 1} other losses"
    return None


def _longer(metrics: Sequence[Metric]) -> tuple[Metric, str] | None:
    """Find what replaces a curve with too few points.

    A test with enough of them replaces a validation; a long curve of the same name in other capitals any curve: `loss`
    beside two sentences with `Loss=8.2`.
    """
    whole = _whole(metrics)
    if whole is None or len(whole.series) >= MIN_POINTS:
        return None
    by_length = sorted(metrics, key=lambda metric: (-len(metric.series), metric.name))
    longest = by_length[0]
    longer = [
        metric
        for metric in (by_length if whole.meaning.quantity == "val_loss" else ())
        if metric.meaning.place in TESTS and len(metric.series) >= MIN_POINTS
    ]
    is_longer = len(longest.series) >= NAMESAKE_RATIO * len(whole.series)
    if is_longer and _lower_words(whole.name) == _lower_words(longest.name):
        longer.append(longest)
    if not longer:
        return None
    return longer[0], f"{longer[0].name} has {len(longer[0].series):,} points, {whole.name} {len(whole.series)}"


def _finer_mean(metrics: Sequence[Metric]) -> tuple[Metric, str] | None:
    """Find the mean of a loss that itself was logged now and then, as every hundred steps of short epochs."""
    whole = _whole(metric for metric in metrics if not metric.meaning.duplicate_of)
    means = [metric for metric in metrics if whole is not None and metric.meaning.duplicate_of == whole.name]
    longest = max(means, key=lambda metric: len(metric.series), default=None)
    if whole is None or longest is None or len(longest.series) < NAMESAKE_RATIO * len(whole.series):
        return None
    return longest, f"{longest.name} has {len(longest.series):,} points, {whole.name} {len(whole.series):,}"


def _lower_words(name: str) -> list[str]:
    return [word.lower() for word in split_words(name)]


def _with_averages(history: RunHistory, quantity: str) -> RunHistory:
    """Choose the epoch means of a loss that was also logged for single steps, if there are enough of them."""
    whole = _whole(metric for metric in history.of(quantity) if not metric.meaning.duplicate_of)
    if whole is None or len(whole.series) < MIN_PARTS:
        return history
    min_points = MIN_AVERAGES_SHARE * len(whole.series) if quantity == "loss" else MIN_POINTS
    if quantity == "loss" and _noise(whole) >= NOISY_NATS:
        min_points = min(min_points, MIN_AVERAGES_IF_NOISY)
    of_steps = not FINE.isdisjoint(_lower_words(whole.name))
    averages = [
        metric
        for metric in history.of(quantity)
        if metric.meaning.duplicate_of == whole.name
        and not COARSE.isdisjoint(_lower_words(metric.name))
        and (of_steps or len(metric.series) < len(whole.series))
        and len(metric.series) >= max(min_points, MIN_PARTS)
    ]
    if not averages:
        return history
    chosen = max(averages, key=lambda metric: (len(metric.series), metric.name))
    points = f"{len(chosen.series):,} points, {whole.name} {len(whole.series):,}"
    return _with_whole(history, quantity, chosen, f"{chosen.name} is the mean of each epoch ({points})")


def _noise(metric: Metric) -> float:
    """Return the noise of single values in nats; 0 where it cannot be estimated."""
    values = metric.series.values[np.isfinite(metric.series.values)]
    if len(values) < MIN_POINTS:
        return 0.0
    x, logarithmic = to_judged_scale(values)
    return level_noise(x) if logarithmic else 0.0


def judged_curves(history: RunHistory, curves: RunCurves) -> JudgedCurves:
    """Return the names of the curves that a diagnosis is made from."""
    losses, validations = (
        dict.fromkeys(curve.name for curve in group if not curve.part) for group in (curves.losses, curves.validations)
    )
    summed = {name for curve in (*curves.losses, *curves.validations) for name in curve.made_of}
    others = sum(
        len(metric.series) > 1
        and not metric.meaning.bookkeeping
        and metric.name not in losses
        and metric.name not in validations
        and metric.name not in summed
        and not (history.format == "recorded" and metric.meaning.place)  # layers of a recorded run
        for metric in history.metrics
    )
    return JudgedCurves(tuple(losses), tuple(validations), others, history.choice)
