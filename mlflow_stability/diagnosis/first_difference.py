"""Find where two runs part: where their losses differ at all, and where by more than their noise.

Only steps at which both have a value are compared. The difference of the two curves is averaged over windows of 1, 8,
64 and 512 points. A window separates the runs if noise as rough as that of the two curves would not
bring its mean as far from zero in their whole length, and the next window is off on the same side. Differences below
2 % do not count, since two seeds of one training differ by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.levels import level_noise, to_judged_scale
from mlflow_stability.diagnosis.parameters import seeds_of
from mlflow_stability.diagnosis.run_card import main_curve
from mlflow_stability.vocabulary.result import FirstDifference
from mlflow_stability.vocabulary.run import RunHistory

MIN_COMMON_STEPS = 8
"""Minimum number of common steps for a comparison with noise."""
MIN_IDENTICAL = 3
"""This number of first values that are equal to the last digit is no coincidence."""
WINDOWS = (1, 8, 64, 512)  # points of a window
ENTER_DEVIATIONS = 8.0
"""Standard deviations of its noise that a window has to be off."""
LEAVE_DEVIATIONS = 3.0
"""Once apart, the runs agree again at a window that is off by fewer standard deviations than this."""
MIN_SHARE = 0.02
"""A smaller difference does not count: as a share of the level, or of the curves' spread where they reach zero."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    steps: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]


def first_difference_of(first: RunHistory, second: RunHistory) -> FirstDifference:
    curve, other = main_curve(first), main_curve(second)
    seeds, other_seeds = seeds_of(first.params), seeds_of(second.params)
    common = set(seeds) & set(other_seeds)
    same_seed = all(seeds[name] == other_seeds[name] for name in common) if common else None
    if curve is None or other is None:
        without = " and ".join(run.name for run, loss in ((first, curve), (second, other)) if loss is None)
        sentence = f"No loss curve in {without}."
        return FirstDifference(first.source, second.source, "", same_seed=same_seed, sentence=sentence)
    metric = curve.name if curve.name == other.name else f"{curve.name} and {other.name}"
    steps, places, other_places = np.intersect1d(curve.steps, other.steps, return_indices=True)
    pair = _Pair(steps, curve.values[places], other.values[other_places])
    with np.errstate(all="ignore"):
        parting = _parting(pair)
    difference = FirstDifference(first.source, second.source, metric, len(steps), same_seed, *parting)
    names = (first.name, second.name) if first.name != second.name else ("the first", "the second")
    sentence = _sentence(pair, difference, names)
    ends = int(curve.steps[-1]), int(other.steps[-1])
    if len(steps) and abs(ends[0] - ends[1]) > MIN_SHARE * max(ends):
        sentence += (
            f" Only common steps were compared: {names[0]} ends at step {ends[0]:,}, {names[1]} at step {ends[1]:,}."
        )
    return replace(difference, sentence=sentence)


def _parting(pair: _Pair) -> tuple[int | None, int | None, int | None, float | None, int | None]:
    """Return the last of the identical first steps, the first that differs, from where they part, by what, until where.

    None where there is no such step.
    """
    equal = (pair.first == pair.second) | (np.isnan(pair.first) & np.isnan(pair.second))
    unequal = np.flatnonzero(~equal)
    count = int(unequal[0]) if len(unequal) else len(pair.steps)
    identical = int(pair.steps[count - 1]) if count >= min(MIN_IDENTICAL, len(pair.steps)) > 0 else None
    differs = int(pair.steps[count]) if count < len(pair.steps) else None
    apart = _apart(pair) if len(pair.steps) >= MIN_COMMON_STEPS and differs is not None else None
    if apart is None:
        return identical, differs, None, None, None
    begin, end, gap = apart
    begin = max(begin, count)  # what is equal to the last digit is not apart
    return identical, differs, int(pair.steps[begin]), gap, None if end is None else int(pair.steps[end])


def _apart(pair: _Pair) -> tuple[int, int | None, float | None] | None:
    """Return the first place at which they are apart, where they are together again, and the gap between."""
    first_finite, second_finite = np.isfinite(pair.first), np.isfinite(pair.second)
    broken = np.flatnonzero(first_finite != second_finite)
    places = np.flatnonzero(first_finite & second_finite)
    spans = [(int(broken[0]), len(pair.steps))] if len(broken) else []
    difference, logarithmic = np.zeros(0), True
    if len(places) >= MIN_COMMON_STEPS:
        joint, logarithmic = to_judged_scale(np.concatenate([pair.first[places], pair.second[places]]))
        first, second = joint[: len(places)], joint[len(places) :]
        difference = second - first
        noise = math.hypot(level_noise(first), level_noise(second))
        for size in WINDOWS:
            span = _span(difference, size, noise) if 2 * size <= len(places) else None
            if span is not None:
                spans.append((int(places[span[0]]), int(places[min(span[1], len(places) - 1)])))
    if not spans:
        return None
    begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
    first_end = max(span_end for span_begin, span_end in spans if span_begin == begin)
    inside = difference[(places >= begin) & (places < first_end)]
    gap = float(np.expm1(np.median(inside))) if len(inside) and logarithmic else None
    is_over = end < len(pair.steps) - max(2, len(pair.steps) // 50)
    return begin, end if is_over else None, gap


def _span(difference: NDArray[np.float64], size: int, noise: float) -> tuple[int, int] | None:
    """Return where windows of this size begin to be off, and where the last of them ends."""
    count = len(difference) // size
    means = difference[: count * size].reshape(count, size).mean(axis=1)
    window_noise = noise / math.sqrt(size)
    if size > 1:  # correlated noise does not average out: then windows vary by more than their points suggest
        window_noise = max(window_noise, level_noise(means) if count >= 4 else 0.0)
    off = np.abs(means) > max(ENTER_DEVIATIONS * window_noise, MIN_SHARE)
    if size > 1 and count > 1:  # and the next one is off on the same side
        off &= np.append(off[1:] & (np.sign(means[1:]) == np.sign(means[:-1])), off[-1] and off[-2])
    hits = np.flatnonzero(off)
    if not len(hits):
        return None
    begin = _onset(difference, int(hits[0]) * size, size, float(means[hits[0]]))
    last = int(hits[-1]) + (1 if size > 1 else 0)
    side = np.sign(means[hits[-1]])
    while last + 1 < count and side * means[last + 1] > max(LEAVE_DEVIATIONS * window_noise, MIN_SHARE):
        last += 1
    return begin, min(len(difference), (last + 1) * size)


def _onset(difference: NDArray[np.float64], place: int, size: int, mean: float) -> int:
    """Return where within the window, or the one before, the difference takes the side that it stays on."""
    if size == 1:
        return place
    low = max(0, place - size)
    off = difference[low : place + size] * np.sign(mean) > abs(mean) / 2
    # The split that leaves the fewest on the wrong side: none of them off before it, all of them behind it.
    wrong = np.concatenate([[0], np.cumsum(off)]) + np.concatenate([np.cumsum(~off[::-1])[::-1], [0]])
    return low + min(int(np.argmin(wrong)), len(off) - 1)


def _sentence(pair: _Pair, difference: FirstDifference, names: tuple[str, str]) -> str:
    metric, same_seed, differs = difference.metric, difference.same_seed, difference.differs_at
    if not len(pair.steps):
        return "The runs have no step in common."
    is_, differ = ("are", "differ") if " and " in metric else ("is", "differs")  # of two metrics with different names
    if differs is None:
        return f"{metric} {is_} identical at all {len(pair.steps):,} common steps."
    equal = [int(step) for step in pair.steps[pair.steps < differs]]
    if not equal:
        begun = f"{metric} {differ} from step {differs:,}"
    elif difference.identical_until is None:  # few values may be equal by chance
        at = f"step{'s' if len(equal) > 1 else ''} {' and '.join(f'{step:,}' for step in equal)}"
        begun = f"{metric} {is_} identical at {at} and {differ} from step {differs:,}"
    else:
        begun = f"{metric} {is_} identical up to step {difference.identical_until:,} and {differ} from step {differs:,}"
    if same_seed is not None:
        begun = f"With {'the same seed' if same_seed else 'different seeds'}, {begun}"
    if difference.parts_at is None:
        if len(pair.steps) < MIN_COMMON_STEPS:
            return f"{begun}; {len(pair.steps)} common steps are too few to separate this from noise."
        return f"{begun}, but always within its noise."
    gap = "" if difference.gap is None else _gap_words(difference.gap, names)
    again = "" if difference.meets_at is None else f"; from step {difference.meets_at:,} on they agree again"
    return f"{begun}. From step {difference.parts_at:,} on the runs differ by more than their noise{gap}{again}."


def _gap_words(gap: float, names: tuple[str, str]) -> str:
    """``, wild 12.4% above calm``, ``, wild 5.3 times calm``."""
    ratio = 1 + gap
    if gap > 1:
        times = f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.1e}"
        return f", {names[1]} {times} times {names[0]}"
    return f", {names[1]} {abs(gap):.1%} {'above' if gap > 0 else 'below'} {names[0]}"
