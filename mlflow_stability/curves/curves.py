"""Curves of a run for rules that judge whole curves.

Each start of the training has curves of its own, and a metric that was logged at two rates has one curve. Pieces of a
training that was resumed can be joined again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.growing_weight import term_changes
from mlflow_stability.detectors.learning_rate_restart import RANGE_TEST_RISE, RANGE_TEST_STEPS, RangeTest
from mlflow_stability.detectors.loss_fall import FIRST_VALUES, LEARNT, negligible_level, start_level
from mlflow_stability.detectors.loss_level import keeps_changing_sign, take_turns
from mlflow_stability.detectors.micro_batches import with_usual_count
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_from_code
from mlflow_stability.vocabulary.measured.signal import SHARED_TRACK, TRACK, is_whole_model
from mlflow_stability.vocabulary.run import Metric, RunHistory

STORED_INFINITY = 1.79e308  # MLflow's SQL stores replace infinity by the largest float
NORMS = frozenset({"grad_norm", "grad_norm_clipped", "update_norm", "update_ratio"})
"""Quantities that are not losses: values of several models are not added up."""
GAME_WORDS = re.compile(
    r"(?:^|[^a-z0-9])(?:dis(?:c(?:riminator)?)?|gen(?:erator)?|(?:ls|w|c)?gan|gp|critic|actor|adv(?:ersarial)?|policy|vf"
    r"|pg|kl|[dg]|(?:loss|err)[dg]|(?:cycle|idt)_[ab]|value.loss|(?<!cross.)entropy.loss)(?:$|[^a-z0-9])"
)
"""Parts of names of losses that are one side of a game, so that their level does not measure progress."""
POLICY_WORDS = re.compile(r"(?:^|[^a-z0-9])(?:actor|policy|alpha|entropy|ent|temperature|pg)(?:$|[^a-z0-9])")
"""Parts of names of a policy's objective, which says less about the fit than the error of a critic."""
_NO_PREFERENCE = r"(?![/_](?:chosen|rejected|margins|accuracies))"
"""Preference optimisation, as DPO, calls log-ratios of two answers rewards; its loss is a cross entropy."""
REWARD_WORDS = re.compile(
    rf"(?:^|[^a-z])(?:rewards?{_NO_PREFERENCE}|rew|ep_rew_mean|ep_len_mean|episodes?|(?:ep|episodic|mean|eval).returns?"
    r"|self.?play)(?:$|[^a-z])"
)
"""Parts of names that only reinforcement learning logs."""
POLICY_UPDATE_WORDS = tuple(
    tuple(re.compile(rf"(?:^|[^a-z])(?:{words})(?:$|[^a-z])") for words in pair)
    for pair in (
        (r"explained.?var\w*", "kl|entropy"),  # how well a value function fits, and how far the policy moved
        ("(?:policy|actor|pg).?loss|loss.?(?:policy|actor|pg)", "(?:value|vf|critic).?loss|loss.?(?:value|vf|critic)"),
        ("pol.?loss", "val.?loss"),  # the same, shortened
    )
)
"""The same of two names beside each other."""
RETURN_WORDS = re.compile(rf"(?:^|[^a-z])(?:rewards?{_NO_PREFERENCE}|returns?|ep_rew_mean)(?:$|[^a-z])")
"""Parts of names of a policy's return, which should rise."""
SCORE_WORDS = re.compile(r"(?:^|[^a-z])(?:m?ap|acc|accuracy|f1|recall|precision|m?iou|dice)(?:$|[^a-z])")
"""Parts of names of scores between 0 and 1."""


HAS_LEVEL = LossLevel(None)
NO_TEST = (0, -1)
MAX_SCORES = 50  # number of scores whose curves are judged
PHASE_LOOKBACK = 32  # number of losses before another optimizer that give the normal level
NEW_LEVEL_RATIO = 1.5
"""Minimum ratio of the first loss under another optimizer, before its first update, to their median."""
FIRST_SUMS = 8  # number of first values that show whether the first is a loss and the others are sums of losses
LEAST_SUMMED = 5  # minimum number of steps in such a sum
SUM_TOLERANCE = 0.2  # maximum relative distance of these values to the level that the others give
NEW_TERMS_POINTS = 10  # number of losses that show its level with other terms
NEW_TERMS_RATIO = 1.05  # minimum ratio of their median to that before


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One metric from one start of the training to the next, or to the end."""

    name: str  # name in the script
    quantity: str
    place: str
    attempt: int
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    part: bool = False  # whether the loss of the whole model is logged beside it
    level: LossLevel = HAS_LEVEL  # whether its level measures progress, and if not, why
    made_of: tuple[str, ...] = ()  # the metrics that were added up, where it is a sum
    phases: tuple[int, ...] = ()  # first steps of further optimizers
    other_terms: tuple[int, ...] = ()  # first steps with another number of terms of the loss
    tested: tuple[int, int] = NO_TEST  # first and last step of a learning-rate range test; (0, -1) without one

    @property
    def since_test(self) -> Curve:
        """The part after a learning-rate range test, whose loss rises on purpose; all of it without one."""
        tested = int(np.searchsorted(self.steps, self.tested[1], side="right"))
        return self.of_points(tested, len(self.values)) if tested else self

    @property
    def last_phase(self) -> Curve:
        """The part since the loss jumped to another level with another optimizer or other terms; else all of it."""
        begins = [(step, NEW_LEVEL_RATIO, 1) for step in self.phases]
        begins += [(step, NEW_TERMS_RATIO, NEW_TERMS_POINTS) for step in self.other_terms]
        for step, ratio, points in sorted(begins, reverse=True):
            first = int(np.argmax(self.steps >= step))  # 0 without a later point
            before = self.values[max(0, first - PHASE_LOOKBACK) : first]
            level = np.median(self.values[first : first + points])
            if len(before) == PHASE_LOOKBACK and level > max(ratio * float(np.median(before)), float(before.max())):
                return self.of_points(first, len(self.values))
        return self

    @property
    def has_level(self) -> bool:
        return self.level.reason is None

    @property
    def distance(self) -> float:
        """Mean number of steps between two points, at least 1."""
        return max(1.0, float(self.steps[-1] - self.steps[0]) / max(1, len(self.steps) - 1))

    def of_points(self, low: int, high: int) -> Curve:
        return replace(self, steps=self.steps[low:high], values=self.values[low:high])

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Mask of the finite values."""
        return np.isfinite(self.values)

    @property
    def floor(self) -> float:
        """Level below which the loss is learnt, so that no rise is trouble; -inf for values below zero."""
        values = self.values[self.finite]
        return LEARNT * start_level(values[:FIRST_VALUES].tolist()) if len(values) and values.min() >= 0 else -np.inf

    def floor_above(self, level: float, noise: float) -> float:
        values = self.values[self.finite]
        reaches_below = len(values) == 0 or values.min() < 0
        return -np.inf if reaches_below else negligible_level(values[:FIRST_VALUES].tolist(), level, noise)

    @property
    def early_size(self) -> float:
        """Median absolute value of its first points."""
        values = self.values[self.finite]
        return float(np.median(np.abs(values[:FIRST_VALUES]))) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The curves of a run by quantity, that of the whole model first."""

    losses: tuple[Curve, ...]
    validations: tuple[Curve, ...]
    norms: tuple[Curve, ...]
    scores: tuple[Curve, ...]  # accuracies and the like, which rise from 0 to 1
    skips: tuple[Curve, ...] = ()  # numbers of skipped steps, cumulative
    returns: tuple[Curve, ...] = ()  # returns of a policy, as the script logged them
    averages: tuple[Curve, ...] = ()  # epoch means of losses that are also logged for some of the steps
    updates: tuple[Curve, ...] = ()  # norms of updates as shares of the weight norm, of whole models
    rates: tuple[Curve, ...] = ()  # learning rates, of each parameter group
    clipped: tuple[Curve, ...] = ()  # gradient norms after clipping, of whole models
    chances: tuple[Curve, ...] = ()  # loss of a uniform prediction, where the loss is cross entropy alone
    target_variances: tuple[Curve, ...] = ()  # loss of predicting the mean, where the loss is mean squared error alone
    moves: tuple[Curve, ...] = ()  # norms of updates, of whole models
    weights: tuple[Curve, ...] = ()  # weights of terms of the loss
    counts_epochs: bool = False  # whether a step is an epoch


def run_curves(history: RunHistory) -> RunCurves:
    starts = start_by_attempt(history)
    named = [metric for metric in history.metrics if not metric.meaning.is_known and not metric.meaning.bookkeeping]
    scores = {metric.meaning.quantity: None for metric in named if SCORE_WORDS.search(metric.name.lower())}
    returns = {metric.meaning.quantity: None for metric in named if RETURN_WORDS.search(metric.name.lower())}
    return RunCurves(
        curves_of(history, "loss", starts),
        curves_of(history, "val_loss", starts),
        curves_of(history, "grad_norm", starts),
        tuple(curve for quantity in list(scores)[:MAX_SCORES] for curve in curves_of(history, quantity, starts)),
        curves_of(history, "skipped_steps", starts),
        tuple(curve for quantity in list(returns)[:MAX_SCORES] for curve in curves_of(history, quantity, starts)),
        tuple(curve for quantity in ("loss", "val_loss") for curve in _averages(history, quantity, starts)),
        _whole_model_curves(history, "update_ratio", starts),
        curves_of(history, "learning_rate", starts),
        clipped=_whole_model_curves(history, "grad_norm_clipped", starts),
        chances=_whole_model_curves(history, "chance_loss", starts),
        target_variances=_whole_model_curves(history, "target_variance", starts),
        moves=_whole_model_curves(history, "update_norm", starts),
        weights=curves_of(history, "loss_weight", starts),
        counts_epochs=history.step_unit == "epoch",
    )


def restore_infinities(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace the largest floats by infinities."""
    huge = np.abs(values) >= STORED_INFINITY
    return np.where(huge, np.copysign(np.inf, values), values) if huge.any() else values


def start_by_attempt(history: RunHistory) -> dict[int, int]:
    """Return for each attempt the attempt that started its training: a rollback continues, a restart begins again."""
    spans = attempt_spans(history)
    starts: dict[int, int] = {}
    current, reached = 0, 0
    for attempt in sorted(spans):
        first, last = spans[attempt]
        if not starts or first <= reached:
            current, reached = attempt, last
        starts[attempt] = current
        reached = max(reached, last)
    return starts


def attempt_spans(history: RunHistory) -> dict[int, tuple[int, int]]:
    """Return the first and last step of each attempt, by recorded signals where there are any.

    A script that counts from 0, or by epochs, logs another step at the same time: a rollback would look like a restart.
    """
    spans: dict[int, tuple[int, int]] = {}
    recorded = [metric for metric in history.metrics if not metric.of_the_script]
    for metric in recorded or history.metrics:
        attempts, steps = metric.series.attempts, metric.series.steps
        if metric.meaning.bookkeeping or not len(steps):
            continue
        edges = np.flatnonzero(np.diff(attempts)) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(steps)], strict=True):
            first, last = int(steps[low:high].min()), int(steps[low:high].max())
            before = spans.get(int(attempts[low]), (first, last))
            spans[int(attempts[low])] = min(before[0], first), max(before[1], last)
    return spans


def curves_of(history: RunHistory, quantity: str, starts: Mapping[int, int] | None = None) -> tuple[Curve, ...]:
    """Return the curves of one quantity, that of the whole model first; each start of the training has its own.

    ``starts``: from `start_by_attempt`, for callers that have it.
    """
    metrics = [metric for metric in history.of(quantity) if not metric.meaning.duplicate_of]
    return _curves(history, quantity, metrics, starts)


def _whole_model_curves(history: RunHistory, quantity: str, starts: Mapping[int, int]) -> tuple[Curve, ...]:
    metrics = [metric for metric in history.of(quantity) if is_whole_model(metric.meaning.place)]
    return _curves(history, quantity, metrics, starts)


def _averages(history: RunHistory, quantity: str, starts: Mapping[int, int]) -> tuple[Curve, ...]:
    """Return the coarser curves of the whole model, unless they only repeat some of the finer values."""
    finer = {metric.name: metric.series.values for metric in history.metrics}
    metrics = [
        metric
        for metric in history.of(quantity)
        if metric.meaning.duplicate_of in finer
        and not metric.meaning.place
        and not np.isin(metric.series.values, finer[metric.meaning.duplicate_of]).all()
    ]
    return _curves(history, quantity, metrics, starts)


def _curves(
    history: RunHistory, quantity: str, metrics: Sequence[Metric], starts: Mapping[int, int] | None
) -> tuple[Curve, ...]:
    metrics = [metric for metric in metrics if len(metric.series) > 1]
    recorded = recorded_level(history)
    names = [metric.name.lower() for metric in history.metrics]
    learns_by_reward = any(map(REWARD_WORDS.search, names)) or any(
        all(any(map(words.search, names)) for words in pair) for pair in POLICY_UPDATE_WORDS
    )
    whole = any(not metric.meaning.place for metric in metrics)
    if not whole:  # no name decides which is first: the longest, whatever the order of the columns
        metrics.sort(key=lambda m: (POLICY_WORDS.search(m.name.lower()) is not None, -len(m.series), m.name))
    own = [metric for metric in metrics if is_whole_model(metric.meaning.place)]
    alternate = quantity not in NORMS and take_turns([metric.series.steps for metric in own])
    sides = {metric.meaning.place for metric in own} if alternate else set()
    main_ends = max((metric.series.steps[-1] for metric in own if not metric.meaning.place), default=0)
    later = {  # trainings of their own
        metric.meaning.place
        for metric in own
        if metric.meaning.place.startswith(TRACK) and metric.series.steps[0] > main_ends
    } - {SHARED_TRACK}
    starts = start_by_attempt(history) if starts is None else starts
    phases, tested = _phases(history), _range_test(history) if quantity == "loss" else NO_TEST
    terms = tuple(step for step, _, _ in changed_terms(history)) if quantity == "loss" else ()
    curves = []
    for metric in metrics:
        place = metric.meaning.place
        level = HAS_LEVEL
        if quantity not in NORMS:
            if recorded.by_user or recorded.reason is not None:
                level = recorded
            elif place in sides:
                level = LossLevel(NoLevel.ADVERSARIAL)
            elif learns_by_reward or GAME_WORDS.search(metric.name.lower()):
                level = LossLevel(NoLevel.NAMED)
        part = whole and place != "" and place not in sides and place not in later
        attempts, places = np.unique(metric.series.attempts, return_inverse=True)
        start_of_point = np.array([starts.get(attempt, attempt) for attempt in attempts.tolist()])[places]
        for start in np.unique(start_of_point).tolist():
            chosen = start_of_point == start
            losses = _even_micro_batches(history, metric, restore_infinities(metric.series.values))
            steps, values = metric.series.steps[chosen], losses[chosen]
            if quantity == "loss" and history.format != "recorded" and _begins_with_a_part(steps, values):
                steps, values = steps[1:], values[1:]
            judged = level is HAS_LEVEL and quantity in ("loss", "val_loss") and not recorded.by_user
            signed = judged and values.min() < 0 < values.max() and keeps_changing_sign(values.tolist())
            own_level = LossLevel(NoLevel.SIGNED) if signed else level
            curve = Curve(metric.name, quantity, place, start, steps, values, part, own_level)
            curves.append(replace(curve, phases=phases, other_terms=terms, tested=tested))
    sums = list(_sums(curves)) if not whole and quantity not in NORMS else []
    summed = {curve.attempt for curve in sums}
    changing = {curve.attempt for curve in curves if not _is_constant(curve)}
    if quantity != "loss" or history.format == "recorded":
        changing = set()  # a recorded loss is that of a training of its own
    parts = [
        replace(curve, part=True)
        if (curve.attempt in summed and curve.has_level)
        # A setting, or a term without effect, beside a loss that changes.
        or (curve.place and curve.attempt in changing and _is_constant(curve))
        else curve
        for curve in curves
    ]
    return (*sums, *parts)


def _is_constant(curve: Curve) -> bool:
    return bool((curve.values == curve.values[:1]).all())


def _even_micro_batches(history: RunHistory, metric: Metric, losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale losses to the usual number of micro-batches in a step, where that was recorded."""
    if metric.meaning.quantity != "loss" or metric.of_the_script:
        return losses
    for counted in history.of("micro_batches"):
        series = counted.series
        if counted.meaning.place == metric.meaning.place and np.array_equal(series.steps, metric.series.steps):
            return with_usual_count(losses, series.values)
    return losses


def _begins_with_a_part(steps: NDArray[np.int64], values: NDArray[np.float64]) -> bool:
    """Whether the first value is the loss of one step and later ones are sums over all steps since the one before.

    A log that is written every 10 steps then begins at a tenth of its level.
    """
    later, apart = values[1:FIRST_SUMS], np.diff(steps[1:FIRST_SUMS])
    if len(later) < FIRST_SUMS - 1 or not (later > 0).all() or apart.min() != apart.max() or apart[0] < LEAST_SUMMED:
        return False
    summed = float(np.median(later)) / float(apart[0])
    return bool(abs(values[0] / summed - 1) <= SUM_TOLERANCE and later.max() <= (1 + SUM_TOLERANCE) * np.median(later))


def _phases(history: RunHistory) -> tuple[int, ...]:
    """Return the first steps of optimizers that replaced all earlier ones."""
    rates = [metric.series.steps for metric in history.of("learning_rate") if len(metric.series)]
    spans = sorted((int(steps.min()), int(steps.max())) for steps in rates)
    firsts = sorted({first for first, _ in spans})[1:]
    return tuple(step for step in firsts if all(last < step for first, last in spans if first < step))


def changed_terms(history: RunHistory) -> list[tuple[int, float, float]]:
    """Return the steps at which the loss got another number of terms, and the numbers before and after."""
    series = next((metric.series for metric in history.of("loss_terms")), None)
    return [] if series is None else term_changes(list(zip(series.steps.tolist(), series.values.tolist(), strict=True)))


def _range_test(history: RunHistory) -> tuple[int, int]:
    """Return the first and last step of a learning-rate range test."""
    span = NO_TEST
    for metric in history.of("learning_rate"):
        steps, rates = metric.series.steps.tolist(), metric.series.values
        if len(rates) <= RANGE_TEST_STEPS or rates.max() < RANGE_TEST_RISE * rates[rates > 0].min(initial=np.inf):
            continue
        test = RangeTest()
        for at, rate in enumerate(rates.tolist()):
            test.see(rate)
            if test.is_running and steps[at] > span[1]:
                span = steps[at - test.steps], steps[at]
    return span


def recorded_level(history: RunHistory) -> LossLevel:
    """Return the last recorded level of the losses."""
    series = [metric.series for metric in history.of(LOSS_LEVEL) if len(metric.series)]
    codes = max(series, key=lambda values: (values.attempts[-1], values.steps[-1])).values if series else ()
    levels = [level for code in codes if (level := level_from_code(float(code))) is not None]
    return levels[-1] if levels else HAS_LEVEL


def _sums(curves: list[Curve]) -> Iterator[Curve]:
    """Add up the parts of a loss, where the whole loss was not logged."""
    for attempt in sorted({curve.attempt for curve in curves}):
        parts = [curve for curve in curves if curve.attempt == attempt and curve.has_level]
        positive = [part for part in parts if part.values[part.finite].min(initial=0.0) >= 0]
        parts = positive if len(positive) > 1 else parts  # a term below zero would hide how the others move
        if len(parts) < 2 or any(len(part.steps) < 2 for part in parts):
            continue
        if all(np.array_equal(part.steps, parts[0].steps) for part in parts[1:]):
            names = ", ".join(part.name for part in parts[:3]) + (", …" if len(parts) > 3 else "")
            with np.errstate(invalid="ignore"):
                total = np.sum([part.values for part in parts], axis=0)
            made_of = tuple(part.name for part in parts)
            yield Curve(f"sum of {names}", parts[0].quantity, "", attempt, parts[0].steps, total, made_of=made_of)


NORMAL_MAD = 1.4826  # standard deviation of a normal distribution as a multiple of its median absolute deviation


def median_deviation(values: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def after_last(where: NDArray[np.bool_]) -> int:
    """Return the place after the last one that is true; 0 if none is."""
    places = np.flatnonzero(where)
    return int(places[-1]) + 1 if len(places) else 0


MIN_LATER_SHARE = 0.1  # a start continues a training if it begins at least this share of its steps after its first step


def continues(before: Curve, after: Curve) -> bool:
    """Whether a piece continues where the one before ended, or somewhat earlier."""
    first, last = int(before.steps[0]), int(before.steps[-1])
    return int(after.steps[0]) > first + max(3 * before.distance, MIN_LATER_SHARE * (last - first))


def pieces_by_metric(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Return the pieces of each metric, in order of time."""
    by_name: dict[str, list[Curve]] = {}
    for curve in curves:
        by_name.setdefault(curve.name, []).append(curve)
    return [sorted(pieces, key=lambda curve: curve.attempt) for pieces in by_name.values()]


def resumed_attempt(curves: Sequence[Curve]) -> int | None:
    """Return the last start of a training that was resumed; None for a training that was not, or several runs."""
    in_pieces = [pieces for pieces in pieces_by_metric(curves) if len(pieces) > 1]
    if not in_pieces or not all(continues(*pair) for pieces in in_pieces for pair in pairwise(pieces)):
        return None
    return max(pieces[-1].attempt for pieces in in_pieces)


def join_pieces(curves: Sequence[Curve]) -> list[Curve]:
    """Join the pieces of each metric; for steps that were repeated the later values count."""
    joined = []
    for pieces in pieces_by_metric(curves):
        whole = pieces[0]
        for piece in pieces[1:]:
            kept = int(np.searchsorted(whole.steps, int(piece.steps[0])))
            steps = np.concatenate([whole.steps[:kept], piece.steps])
            values = np.concatenate([whole.values[:kept], piece.values])
            whole = replace(piece, steps=steps, values=values)
        joined.append(whole)
    return joined
