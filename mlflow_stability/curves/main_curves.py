"""Chooses the curve that is the loss of a run, and the one that is its validation loss.

In: a run's history, and the names that somebody asked for, if any. Out: the history in which those two have the place
of the whole model, with the reason where the names alone did not say it. Guarantees: neither the order of the metrics
nor how clocks and counters are called matters; a name that is not there is an error that tells which ones are near.

What names say is settled by `metric_names`; here the curves decide what names leave open: a loss that is the sum of the
others is their total; of one loss at two rates the averages over epochs count where they are about as many as the
single steps, for each of them knows all steps, or where single steps are mostly noise; a validation with a handful of
points gives way to a test with more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.curves.levels import noise_of, scaled
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.measured import Signal, of_the_whole
from mlflow_stability.vocabulary.run import AskedCurves, JudgedCurves, Metric, RunHistory
from mlflow_stability.vocabulary.text import COARSE, FINE, TESTS, Meaning, counted, words_of

AS_MANY = 0.5
"""Averages over epochs are taken if they are at least so many, as a share of the single steps."""
NOISY, ENOUGH = 0.2, 30
"""Where single steps vary by so many nats, so many averages are enough: at 8 deviations a spike would be fivefold."""
FEW = 6
"""With fewer points than this a validation cannot be judged."""
SAME_SUM = 0.01
"""How far, as a share, a total may be from the sum of its parts, in half of its points."""
FEWEST_PARTS = 2
LONGER = 10
"""So many times as long is a curve that is taken instead of one that is called the same but for capital letters."""
SUGGESTED = 5
"""So many names are suggested at most for one that is not there."""

NEAR = 0.55
"""How alike a name is that is suggested, from 0 to 1."""


def with_main_curves(history: RunHistory, asked: AskedCurves | None = None) -> RunHistory:
    """The history with its loss and its validation loss in place."""
    asked = asked or AskedCurves()
    for quantity, name in (("loss", asked.loss), ("val_loss", asked.val_loss)):
        history = _as_asked(history, quantity, name) if name else _as_curves_say(history, quantity)
    if asked and history.events is not None and history.complete:
        note = "Judged again, by other curves than during training."
        history = replace(history, events=None, notes=(*history.notes, note))
    return history


def _as_asked(history: RunHistory, quantity: str, name: str) -> RunHistory:
    chosen = _named(history, name)
    option = "--loss" if quantity == "loss" else "--val-loss"
    return _with_whole(history, quantity, chosen, f"{chosen.name} was chosen with {option}")


def _named(history: RunHistory, name: str) -> Metric:
    """The metric of this name; as it was written, or with other capitals and separators where only one is called so."""
    metrics = {metric.name: metric for metric in history.metrics}
    words = [word.lower() for word in words_of(name)]
    alike = [each for each in metrics if [word.lower() for word in words_of(each)] == words]
    found = metrics.get(name) or (metrics[alike[0]] if len(alike) == 1 else None)
    if found is None:
        raise SettingsError(f"No metric {name!r} in {history.source}. {_near(name, list(metrics))}")
    if len(found.series) < 2:
        raise SettingsError(f"{found.name!r} in {history.source} has a single value; a curve needs at least two.")
    return found


def _near(name: str, known: Sequence[str]) -> str:
    by_small = {each.lower(): each for each in known}
    within = [each for small, each in sorted(by_small.items()) if name.lower() in small]
    near = [by_small[each] for each in get_close_matches(name.lower(), list(by_small), n=SUGGESTED, cutoff=NEAR)]
    suggested = list(dict.fromkeys([*near, *within]))[:SUGGESTED]
    if suggested:
        return f"Did you mean {' or '.join(map(repr, suggested))}?"
    if len(known) <= 2 * SUGGESTED:
        return f"Its metrics: {', '.join(sorted(known)) or 'none'}."
    first = sorted(known, key=lambda each: ("loss" not in each.lower(), Signal.parse(each).place != "", each))
    return f"It has {counted(len(known), 'metric')}, among them {', '.join(first[: 2 * SUGGESTED])}."


def _with_whole(history: RunHistory, quantity: str, chosen: Metric, reason: str) -> RunHistory:
    """The history in which this metric is that of the whole model, and what was so before is beside it."""
    before = {
        metric.name
        for metric in history.metrics
        if metric.meaning.quantity == quantity and not metric.meaning.place and metric.name != chosen.name
    }

    def meant(metric: Metric) -> Meaning:
        meaning = metric.meaning
        if metric.name == chosen.name:
            return Meaning(quantity, known=True)
        if metric.name in before:
            again = chosen.meaning.duplicate_of == metric.name or meaning.duplicate_of == chosen.name
            same = chosen.meaning.quantity == quantity and not chosen.meaning.place
            if again or (same and meaning.duplicate_of):
                return replace(meaning, duplicate_of=chosen.name)
            return replace(meaning, place=metric.name, duplicate_of="")
        if meaning.duplicate_of == chosen.name and meaning.quantity != quantity:
            return replace(meaning, duplicate_of="")
        return meaning

    metrics = tuple(_meaning(metric, meant(metric)) for metric in history.metrics)
    return replace(history, metrics=metrics, choice=(*history.choice, reason))


def _meaning(metric: Metric, meaning: Meaning) -> Metric:
    if meaning == metric.meaning:
        return metric
    return replace(metric, meaning=meaning, series=replace(metric.series, signal=meaning.signal))


def _as_curves_say(history: RunHistory, quantity: str) -> RunHistory:
    """What the curves themselves say, where there is something to decide."""
    metrics = [metric for metric in history.of(quantity) if len(metric.series) > 1]
    if any(metric.name.startswith("stability") or _is_a_track(metric) for metric in metrics):
        return history  # recorded by us: it is known what is what
    singles = sorted((each for each in metrics if not each.meaning.duplicate_of), key=lambda each: each.name)
    for chosen, reason in (*_totals(singles), *_tests(singles), *_namesakes(singles)):
        return _with_averages(_with_whole(history, quantity, chosen, reason), quantity)
    return _with_averages(history, quantity)


def _is_a_track(metric: Metric) -> bool:
    return metric.meaning.place != "" and of_the_whole(metric.meaning.place)


def _totals(metrics: Sequence[Metric]) -> Iterator[tuple[Metric, str]]:
    """Where none is called the whole: the one that the others add up to."""
    if len(metrics) <= FEWEST_PARTS or any(not metric.meaning.place for metric in metrics):
        return
    steps = metrics[0].series.steps
    if any(not np.array_equal(metric.series.steps, steps) for metric in metrics[1:]):
        return
    values = np.array([metric.series.values for metric in metrics])
    with np.errstate(all="ignore"):
        rest = values.sum(axis=0) - values
        far_off = np.abs(values - rest) / np.abs(values)
        off = np.median(np.where(np.isnan(far_off), np.inf, far_off), axis=1)
    parts = (np.abs(values) > 0).any(axis=1).sum() - 1
    for metric, far in zip(metrics, off, strict=True):
        if far <= SAME_SUM and parts >= FEWEST_PARTS:
            yield metric, f"{metric.name} is the sum of the {len(metrics) - 1} other losses"
            return


def _tests(metrics: Sequence[Metric]) -> Iterator[tuple[Metric, str]]:
    """Where the validation has too few points to be judged: a test of the same loss that has enough."""
    whole = next((metric for metric in metrics if not metric.meaning.place), None)
    if whole is None or whole.meaning.quantity != "val_loss" or len(whole.series) >= FEW:
        return
    for metric in sorted(metrics, key=lambda each: (-len(each.series), each.name)):
        if metric.meaning.place in TESTS and len(metric.series) >= FEW:
            yield metric, f"{metric.name} has {len(metric.series):,} points, {whole.name} {len(whole.series)}"
            return


def _namesakes(metrics: Sequence[Metric]) -> Iterator[tuple[Metric, str]]:
    """Beside a few points: a curve called the same but for capitals, as `loss` beside two sentences with `Loss=8.2`."""
    whole = next((metric for metric in metrics if not metric.meaning.place), None)
    if whole is None or len(whole.series) >= FEW:
        return
    longest = max(metrics, key=lambda metric: len(metric.series))
    same_words = [word.lower() for word in words_of(whole.name)] == [word.lower() for word in words_of(longest.name)]
    if same_words and len(longest.series) >= LONGER * len(whole.series):
        yield longest, f"{longest.name} has {len(longest.series):,} points, {whole.name} {len(whole.series)}"


def _with_averages(history: RunHistory, quantity: str) -> RunHistory:
    """Where a loss was logged for single steps and as the mean of each epoch: the means, if they are as many."""
    whole = next(
        (each for each in history.of(quantity) if not (each.meaning.place or each.meaning.duplicate_of)),
        None,
    )
    if whole is None or len(whole.series) < FEWEST_PARTS:
        return history
    single = _says(whole, FINE)
    least = AS_MANY * len(whole.series) if quantity == "loss" else FEW
    if quantity == "loss" and _noise(whole) >= NOISY:
        least = min(least, ENOUGH)
    enough = [
        each
        for each in history.of(quantity)
        if each.meaning.duplicate_of == whole.name
        and _says(each, COARSE)
        and (single or len(each.series) < len(whole.series))
        and len(each.series) >= max(least, FEWEST_PARTS)
    ]
    if not enough:
        return history
    chosen = max(enough, key=lambda each: (len(each.series), each.name))
    points = f"{len(chosen.series):,} points, {whole.name} {len(whole.series):,}"
    return _with_whole(history, quantity, chosen, f"{chosen.name} is the mean of each epoch ({points})")


def _noise(metric: Metric) -> float:
    """How much a value differs from those around it, in nats; 0 where that cannot be said."""
    values = metric.series.values[np.isfinite(metric.series.values)]
    if len(values) < FEW:
        return 0.0
    x, logarithmic = scaled(values)
    return noise_of(x) if logarithmic else 0.0


def _says(metric: Metric, words: frozenset[str]) -> bool:
    return not words.isdisjoint(word.lower() for word in words_of(metric.name))


def judged_curves(history: RunHistory, curves: RunCurves) -> JudgedCurves:
    """What a diagnosis of these curves was made from."""
    losses, validations = (
        dict.fromkeys(curve.name for curve in found if not curve.part) for found in (curves.losses, curves.validations)
    )
    within = {name for curve in (*curves.losses, *curves.validations) for name in curve.made_of}
    others = sum(
        len(metric.series) > 1
        and not metric.meaning.bookkeeping
        and metric.name not in losses
        and metric.name not in validations
        and metric.name not in within
        and not (history.format == "recorded" and metric.meaning.place)  # the layers of our own record
        for metric in history.metrics
    )
    return JudgedCurves(tuple(losses), tuple(validations), others, history.choice)
