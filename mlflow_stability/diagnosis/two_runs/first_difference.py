"""Says where two runs part.

In: everything that is known of two runs. Out: the first step at which their losses differ at all, and the first at
which they differ by more than their noise. Guarantees: only steps that both have a value at are compared; two runs that
differ by noise alone are not said to part.

The difference of the two curves is looked at in windows of 1, 8, 64 and 512 points. A window parts them when its mean
is so far from zero that noise as rough as that of the two curves would not bring it there in their whole length, and
the window after it says the same. Below 2 % they are not called apart, since two seeds of one training differ by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.levels import level_noise, to_judged_scale
from mlflow_stability.diagnosis.parameters.seeds import seeds_of
from mlflow_stability.diagnosis.run_card import main_curve
from mlflow_stability.vocabulary.result import FirstDifference
from mlflow_stability.vocabulary.run import RunHistory

FEWEST = 8
"""Common steps below which nothing is said about noise."""
SAME = 3
"""So many first values that are the same to the last digit are no coincidence."""
WINDOWS = (1, 8, 64, 512)
"""How many points a window has."""
DEVIATIONS = 8.0
"""So many standard deviations of its noise a window of one point has to be off; longer ones as many of theirs."""
STILL = 3.0
"""Once apart, they are so until a window is off by fewer standard deviations than this: not until it is off by 8."""
LEAST = 0.02
"""A smaller difference is none: as a share of the level, or of the curves' spread where they reach zero."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    steps: NDArray[np.int64]
    one: NDArray[np.float64]
    other: NDArray[np.float64]


def first_difference_of(first: RunHistory, second: RunHistory) -> FirstDifference:
    """Where these two part."""
    one, other = main_curve(first), main_curve(second)
    same_seed = _same_seed(first, second)
    if one is None or other is None:
        which = " and ".join(each.name for each, curve in ((first, one), (second, other)) if curve is None)
        said = f"No loss curve in {which}."
        return FirstDifference(first.source, second.source, "", same_seed=same_seed, sentence=said)
    metric = one.name if one.name == other.name else f"{one.name} and {other.name}"
    steps, of_one, of_other = np.intersect1d(one.steps, other.steps, return_indices=True)
    pair = _Pair(steps, one.values[of_one], other.values[of_other])
    with np.errstate(all="ignore"):
        found = _parted(pair)
    identical, differs, parts, gap, meets = found
    said = _sentence(pair, metric, same_seed, identical, differs, parts, _wide(gap, first, second), meets)
    if len(steps):
        said += _ends((first, second), (int(one.steps[-1]), int(other.steps[-1])))
    return FirstDifference(
        first.source, second.source, metric, len(steps), same_seed, identical, differs, parts, gap, meets, said
    )


def _same_seed(first: RunHistory, second: RunHistory) -> bool | None:
    one, other = seeds_of(first.params), seeds_of(second.params)
    common = set(one) & set(other)
    return all(one[name] == other[name] for name in common) if common else None


def _parted(pair: _Pair) -> tuple[int | None, int | None, int | None, float | None, int | None]:
    unequal = np.flatnonzero(~((pair.one == pair.other) | (np.isnan(pair.one) & np.isnan(pair.other))))
    first = int(unequal[0]) if len(unequal) else len(pair.steps)
    identical = int(pair.steps[first - 1]) if first >= min(SAME, len(pair.steps)) > 0 else None
    differs = int(pair.steps[first]) if first < len(pair.steps) else None
    apart = _apart(pair) if len(pair.steps) >= FEWEST and differs is not None else None
    if apart is None:
        return identical, differs, None, None, None
    begin, end, gap = apart
    begin = max(begin, first)  # what is equal to the last digit is not apart
    return identical, differs, int(pair.steps[begin]), gap, int(pair.steps[end]) if end is not None else None


def _apart(pair: _Pair) -> tuple[int, int | None, float | None] | None:
    """The first place at which they are apart, where they are together again, and the gap between."""
    finite = np.isfinite(pair.one) & np.isfinite(pair.other)
    broken = np.flatnonzero(np.isfinite(pair.one) != np.isfinite(pair.other))
    places = np.flatnonzero(finite)
    found = [(int(broken[0]), len(pair.steps))] if len(broken) else []
    difference, logarithmic = np.zeros(0), True
    if len(places) >= FEWEST:
        joint, logarithmic = to_judged_scale(np.concatenate([pair.one[places], pair.other[places]]))
        one, other = joint[: len(places)], joint[len(places) :]
        difference = other - one
        noise = math.hypot(level_noise(one), level_noise(other))
        spans = [span for size in WINDOWS if 2 * size <= len(places) and (span := _span(difference, size, noise))]
        found += [(int(places[begin]), int(places[min(end, len(places) - 1)])) for begin, end in spans]
    if not found:
        return None
    begin = min(each for each, _ in found)
    end = max(each for _, each in found)
    close = max(end for start, end in found if start == begin)
    inside = difference[(places >= begin) & (places < close)]
    gap = float(np.expm1(np.median(inside))) if len(inside) and logarithmic else None
    over = end < len(pair.steps) - max(2, len(pair.steps) // 50)
    return begin, end if over else None, gap


def _span(difference: NDArray[np.float64], size: int, noise: float) -> tuple[int, int] | None:
    """Where windows of this size begin to be off, and where the last of them ends."""
    count = len(difference) // size
    means = difference[: count * size].reshape(count, size).mean(axis=1)
    rough = noise / math.sqrt(size)
    if size > 1:  # what hangs together does not average out: then windows vary by more than their points suggest
        rough = max(rough, level_noise(means) if count >= 4 else 0.0)
    off = np.abs(means) > max(DEVIATIONS * rough, LEAST)
    if size > 1 and count > 1:  # and the next one says the same, on the same side
        again = np.append(off[1:] & (np.sign(means[1:]) == np.sign(means[:-1])), off[-1] and off[-2])
        off &= again
    hits = np.flatnonzero(off)
    if not len(hits):
        return None
    begin = _entered(difference, int(hits[0]) * size, size, float(means[hits[0]]))
    last = int(hits[-1]) + (1 if size > 1 else 0)
    side = np.sign(means[hits[-1]])
    while last + 1 < count and side * means[last + 1] > max(STILL * rough, LEAST):
        last += 1
    return begin, min(len(difference), (last + 1) * size)


def _entered(difference: NDArray[np.float64], place: int, size: int, mean: float) -> int:
    """Where within the window, or the one before, the difference takes the side that it stays on."""
    if size == 1:
        return place
    low = max(0, place - size)
    off = difference[low : place + size] * np.sign(mean) > abs(mean) / 2
    # The split that leaves the fewest on the wrong side: none of them off before it, all of them behind it.
    wrong = np.concatenate([[0], np.cumsum(off)]) + np.concatenate([np.cumsum(~off[::-1])[::-1], [0]])
    return low + min(int(np.argmin(wrong)), len(off) - 1)


def _sentence(
    pair: _Pair,
    metric: str,
    same_seed: bool | None,
    identical: int | None,
    differs: int | None,
    parts: int | None,
    wide: str,
    meets: int | None,
) -> str:
    if not len(pair.steps):
        return "The runs have no step in common."
    is_, differ = ("are", "differ") if " and " in metric else ("is", "differs")  # of two metrics by different names
    if differs is None:
        return f"{metric} {is_} identical at all {len(pair.steps):,} common steps."
    seeds = {True: "With the same seed,", False: "With different seeds,", None: ""}[same_seed]
    alike = [int(step) for step in pair.steps[pair.steps < differs]]
    if not alike:
        begun = f"{metric} {differ} from step {differs:,}"
    elif identical is None:  # so few may be equal by chance
        at = " and ".join(f"{step:,}" for step in alike)
        steps = f"step{'s' if len(alike) > 1 else ''} {at}"
        begun = f"{metric} {is_} identical at {steps} and {differ} from step {differs:,}"
    else:
        begun = f"{metric} {is_} identical up to step {identical:,} and {differ} from step {differs:,}"
    begun = f"{seeds} {begun}".lstrip()
    if parts is None:
        if len(pair.steps) < FEWEST:
            return f"{begun}; {len(pair.steps)} common steps are too few to separate this from noise."
        return f"{begun}, but always within its noise."
    again = "" if meets is None else f"; from step {meets:,} on they agree again"
    return f"{begun}. From step {parts:,} on the runs differ by more than their noise{wide}{again}."


def _wide(gap: float | None, first: RunHistory, second: RunHistory) -> str:
    """``, wild 12.4% above calm``, ``, wild 5.3 times calm``."""
    if gap is None:
        return ""
    far = f"{_times(1 + gap)} times" if gap > 1 else f"{abs(gap):.1%} {'above' if gap > 0 else 'below'}"
    one, other = _names((first, second))
    return f", {other} {far} {one}"


def _times(ratio: float) -> str:
    """``5.3``, ``120,280``, ``2.1e+09``."""
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.1e}"


def _ends(runs: tuple[RunHistory, RunHistory], last: tuple[int, int]) -> str:
    """That what is said holds for the steps of both alone; empty where both are about as long."""
    if abs(last[0] - last[1]) <= LEAST * max(last):
        return ""
    one, other = _names(runs)
    return f" Only common steps were compared: {one} ends at step {last[0]:,}, {other} at step {last[1]:,}."


def _names(runs: tuple[RunHistory, RunHistory]) -> tuple[str, str]:
    one, other = (each.name for each in runs)
    return (one, other) if one != other else ("the first", "the second")
