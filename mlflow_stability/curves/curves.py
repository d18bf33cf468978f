"""The curves of a run that a judgement of the whole run looks at.

In: a run's history. Out: its losses, validation losses and gradient norms, each start of the training apart, one curve
for each thing that was measured: what was logged twice at two rates is there once. Guarantees: an infinity that a
tracking store turned into the largest float is infinite again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.loss_fall import FIRST_VALUES, LEARNT, negligible_level, start_level
from mlflow_stability.detectors.loss_level import keeps_changing_sign, take_turns
from mlflow_stability.detectors.micro_batches import with_usual_count
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel, level_of_code
from mlflow_stability.vocabulary.measured import of_the_whole
from mlflow_stability.vocabulary.run import Metric, RunHistory

LARGEST_STORED = 1.79e308
"""MLflow's SQL stores keep an infinity as the largest float."""
NORMS = frozenset({"grad_norm", "grad_norm_clipped", "update_norm", "update_ratio"})
"""Quantities that are no losses: those of several models are no parts of a sum."""
GAME_WORDS = re.compile(
    r"(?:^|[^a-z0-9])(?:disc(?:riminator)?|gen(?:erator)?|critic|actor|adv(?:ersarial)?|policy|vf|pg|kl|[dg]|(?:loss|err)[dg]"
    r"|value.loss|(?<!cross.)entropy.loss)(?:$|[^a-z0-9])"
)
"""Parts of a name that say: this loss is one side of a game, its level says nothing about progress."""
POLICY_WORDS = re.compile(r"(?:^|[^a-z0-9])(?:actor|policy|alpha|entropy|ent|temperature|pg)(?:$|[^a-z0-9])")
"""Parts of a name that say: this is the objective of a policy, which says less of the fit than a critic's error."""
REWARD_WORDS = re.compile(
    r"(?:^|[^a-z])(?:rewards?|ep_rew_mean|ep_len_mean|episodes?|(?:ep|episodic|mean|eval).returns?)(?:$|[^a-z])"
)
"""Parts of a name that only a reinforcement learner logs."""
RETURN_WORDS = re.compile(r"(?:^|[^a-z])(?:rewards?|returns?|ep_rew_mean)(?:$|[^a-z])")
"""Parts of a name that say: this is what a policy earns, and more is better."""
SCORE_WORDS = re.compile(r"(?:^|[^a-z])(?:m?ap|acc|accuracy|f1|recall|precision|m?iou|dice)(?:$|[^a-z])")
"""Parts of a name that say: this is a share of right answers."""


HAS_LEVEL = LossLevel(None)
MOST_SCORES = 50
"""Of so many scores at most the curves are looked at."""
BEFORE_PHASE = 32
"""So many losses before another optimizer say what was normal."""
NEW_LEVEL = 1.5
"""Minimum ratio of the first loss under another optimizer, which no update of it has changed, to their median."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One metric from one start of the training to the next, or to the end."""

    name: str
    """What the script called it."""
    quantity: str
    place: str
    attempt: int
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    part: bool = False
    """Whether the loss of the whole model is logged beside it."""
    level: LossLevel = HAS_LEVEL
    """Whether its level measures progress, and if not, why."""
    made_of: tuple[str, ...] = ()
    """Of a sum, the metrics that were added up."""
    phases: tuple[int, ...] = ()
    """The steps from which on another optimizer trained."""

    @property
    def last_phase(self) -> Curve:
        """What has come since the loss had another level from the first step of another optimizer on; else all."""
        for step in reversed(self.phases):
            first = int(np.argmax(self.steps >= step))  # 0 where there is none
            before = self.values[max(0, first - BEFORE_PHASE) : first]
            if len(before) == BEFORE_PHASE and self.values[first] > max(
                NEW_LEVEL * float(np.median(before)), float(before.max())
            ):
                return self.of_points(first, len(self.values))
        return self

    @property
    def has_level(self) -> bool:
        """Whether its level measures progress."""
        return self.level.reason is None

    @property
    def distance(self) -> float:
        """How many steps lie between two points, on average; 1 at least."""
        return max(1.0, float(self.steps[-1] - self.steps[0]) / max(1, len(self.steps) - 1))

    def of_points(self, low: int, high: int) -> Curve:
        """The same curve between two of its points."""
        return replace(self, steps=self.steps[low:high], values=self.values[low:high])

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which points are numbers that one can reckon with."""
        return np.isfinite(self.values)

    @property
    def floor(self) -> float:
        """Below this level it has been learnt, and no rise is trouble; nobody can say so of what reaches below zero."""
        values = self.values[self.finite]
        return LEARNT * start_level(values[:FIRST_VALUES].tolist()) if len(values) and values.min() >= 0 else -np.inf

    def floor_above(self, level: float, noise: float) -> float:
        """The same of a rise from a level, where the noise is so many nats."""
        values = self.values[self.finite]
        reaches_below = len(values) == 0 or values.min() < 0
        return -np.inf if reaches_below else negligible_level(values[:FIRST_VALUES].tolist(), level, noise)

    @property
    def early_size(self) -> float:
        """How large its first values usually were, whatever their sign."""
        values = self.values[self.finite]
        return float(np.median(np.abs(values[:FIRST_VALUES]))) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class RunCurves:
    """What one run has of each quantity, the curve of the whole model first."""

    losses: tuple[Curve, ...]
    validations: tuple[Curve, ...]
    norms: tuple[Curve, ...]
    scores: tuple[Curve, ...]
    """Accuracies and the like, which rise from 0 to 1."""
    skips: tuple[Curve, ...] = ()
    """How many steps have been skipped so far."""
    returns: tuple[Curve, ...] = ()
    """What a policy earns, as the script logged it."""
    averages: tuple[Curve, ...] = ()
    """Means over epochs of losses that are logged by steps as well, one step in many: each sees what the other does
    not."""
    updates: tuple[Curve, ...] = ()
    """Norms of updates as shares of the weight norm, of whole models."""
    rates: tuple[Curve, ...] = ()
    """Learning rates, of each parameter group."""
    clipped: tuple[Curve, ...] = ()
    """Gradient norms after clipping, of whole models."""
    chances: tuple[Curve, ...] = ()
    """Losses of a model that gives each class the same probability, where the loss is cross entropy alone."""
    target_variances: tuple[Curve, ...] = ()
    """Losses of a model that answers the mean of the targets, where the loss is a mean squared error alone."""
    moves: tuple[Curve, ...] = ()
    """Norms of updates, of whole models."""


def run_curves(history: RunHistory) -> RunCurves:
    """The curves that rules look at."""
    starts = starts_of(history)
    named = [metric for metric in history.metrics if not metric.meaning.known and not metric.meaning.bookkeeping]
    scores = {metric.meaning.quantity: None for metric in named if SCORE_WORDS.search(metric.name.lower())}
    returns = {metric.meaning.quantity: None for metric in named if RETURN_WORDS.search(metric.name.lower())}
    return RunCurves(
        curves_of(history, "loss", starts),
        curves_of(history, "val_loss", starts),
        curves_of(history, "grad_norm", starts),
        tuple(curve for quantity in list(scores)[:MOST_SCORES] for curve in curves_of(history, quantity, starts)),
        curves_of(history, "skipped_steps", starts),
        tuple(curve for quantity in list(returns)[:MOST_SCORES] for curve in curves_of(history, quantity, starts)),
        tuple(curve for quantity in ("loss", "val_loss") for curve in _averages(history, quantity, starts)),
        _curves(history, "update_ratio", _of_whole_models(history, "update_ratio"), starts),
        curves_of(history, "learning_rate", starts),
        clipped=_curves(history, "grad_norm_clipped", _of_whole_models(history, "grad_norm_clipped"), starts),
        chances=_curves(history, "chance_loss", _of_whole_models(history, "chance_loss"), starts),
        target_variances=_curves(history, "target_variance", _of_whole_models(history, "target_variance"), starts),
        moves=_curves(history, "update_norm", _of_whole_models(history, "update_norm"), starts),
    )


def decoded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values with infinities as infinities."""
    huge = np.abs(values) >= LARGEST_STORED
    return np.where(huge, np.copysign(np.inf, values), values) if huge.any() else values


def starts_of(history: RunHistory) -> dict[int, int]:
    """For each attempt the one in which its training was started: a rollback goes on, a restart begins again."""
    spans = spans_of(history)
    starts: dict[int, int] = {}
    current, reached = 0, 0
    for attempt in sorted(spans):
        first, last = spans[attempt]
        if not starts or first <= reached:
            current, reached = attempt, last
        starts[attempt] = current
        reached = max(reached, last)
    return starts


def spans_of(history: RunHistory) -> dict[int, tuple[int, int]]:
    """For each attempt its first step and its last, by what was recorded, if anything was.

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
    """The curves of one quantity, that of the whole model first, each start of the training apart.

    ``starts`` is what `starts_of` gives, for those who ask more than once.
    """
    metrics = [metric for metric in history.of(quantity) if not metric.meaning.duplicate_of and len(metric.series) > 1]
    return _curves(history, quantity, metrics, starts)


def _of_whole_models(history: RunHistory, quantity: str) -> list[Metric]:
    return [metric for metric in history.of(quantity) if of_the_whole(metric.meaning.place) and len(metric.series) > 1]


def _averages(history: RunHistory, quantity: str, starts: Mapping[int, int]) -> tuple[Curve, ...]:
    """The curves that are logged at a second rate, of the whole model, unless they only repeat some of the values."""
    finer = {metric.name: metric.series.values for metric in history.metrics}
    metrics = [
        metric
        for metric in history.of(quantity)
        if metric.meaning.duplicate_of in finer
        and not metric.meaning.place
        and len(metric.series) > 1
        and not np.isin(metric.series.values, finer[metric.meaning.duplicate_of]).all()
    ]
    return _curves(history, quantity, metrics, starts)


def _curves(
    history: RunHistory, quantity: str, metrics: Sequence[Metric], starts: Mapping[int, int] | None
) -> tuple[Curve, ...]:
    recorded = recorded_level(history)
    learns_by_reward = any(REWARD_WORDS.search(metric.name.lower()) for metric in history.metrics)
    whole = any(not metric.meaning.place for metric in metrics)
    if not whole:  # then none is the first by its name: the longest is, whatever the order of the columns
        metrics = sorted(metrics, key=lambda metric: (_is_policy(metric), -len(metric.series), metric.name))
    sides = _sides(metrics) if quantity not in NORMS else frozenset()
    starts = starts_of(history) if starts is None else starts
    phases = _phases(history)
    found = []
    for metric in metrics:
        place = metric.meaning.place
        named = learns_by_reward or bool(GAME_WORDS.search(metric.name.lower()))
        level = HAS_LEVEL if quantity in NORMS else _level(recorded, named, place in sides)
        part = whole and place != "" and place not in sides
        for start, chosen in _pieces(metric, starts):
            steps, values = metric.series.steps[chosen], _evened(history, metric, decoded(metric.series.values))[chosen]
            signed = level is HAS_LEVEL and quantity in ("loss", "val_loss") and _is_signed(values)
            known = LossLevel(NoLevel.SIGNED) if signed and not recorded.by_user else level
            found.append(Curve(metric.name, quantity, place, start, steps, values, part, known, phases=phases))
    sums = list(_sums(found)) if not whole and quantity not in NORMS else []
    summed = {curve.attempt for curve in sums}
    parts = [replace(each, part=True) if each.attempt in summed and each.has_level else each for each in found]
    return (*sums, *parts)


def _evened(history: RunHistory, metric: Metric, losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The losses, as if each step had accumulated the usual number of micro-batches, where that was recorded."""
    if metric.meaning.quantity != "loss" or metric.of_the_script:
        return losses
    for counted in history.of("micro_batches"):
        series = counted.series
        if counted.meaning.place == metric.meaning.place and np.array_equal(series.steps, metric.series.steps):
            return with_usual_count(losses, series.values)
    return losses


def _is_policy(metric: Metric) -> bool:
    return POLICY_WORDS.search(metric.name.lower()) is not None


def _sides(metrics: Sequence[Metric]) -> frozenset[str]:
    """The places of whole trainings that take turns; empty where there is one, or one follows upon the other."""
    own = [metric for metric in metrics if of_the_whole(metric.meaning.place)]
    turns = take_turns([metric.series.steps for metric in own])
    return frozenset(metric.meaning.place for metric in own) if turns else frozenset()


def _phases(history: RunHistory) -> tuple[int, ...]:
    """The first steps of optimizers that have taken over for good: from there on none steps that did before."""
    rates = [metric.series.steps for metric in history.of("learning_rate") if len(metric.series)]
    spans = sorted((int(steps.min()), int(steps.max())) for steps in rates)
    firsts = sorted({first for first, _ in spans})[1:]
    return tuple(step for step in firsts if all(last < step for first, last in spans if first < step))


def recorded_level(history: RunHistory) -> LossLevel:
    """What was recorded last about the level of the losses."""
    series = [metric.series for metric in history.of(LOSS_LEVEL) if len(metric.series)]
    codes = max(series, key=lambda each: (each.attempts[-1], each.steps[-1])).values if series else ()
    known = [level for code in codes if (level := level_of_code(float(code))) is not None]
    return known[-1] if known else HAS_LEVEL


def _level(recorded: LossLevel, named: bool, alternates: bool) -> LossLevel:
    if recorded.by_user or recorded.reason is not None:
        return recorded
    if alternates:
        return LossLevel(NoLevel.ADVERSARIAL)
    return LossLevel(NoLevel.NAMED) if named else HAS_LEVEL


def _is_signed(values: NDArray[np.float64]) -> bool:
    return bool(values.min() < 0 < values.max()) and keeps_changing_sign(values.tolist())


def _pieces(metric: Metric, starts: Mapping[int, int]) -> Iterator[tuple[int, NDArray[np.bool_] | slice]]:
    attempts = metric.series.attempts
    if not len(attempts):
        return
    different = np.unique(attempts)
    if len({starts.get(int(each), int(each)) for each in different}) == 1:
        yield starts.get(int(different[0]), int(different[0])), slice(None)
        return
    begun = np.array([starts.get(int(each), int(each)) for each in different])[np.searchsorted(different, attempts)]
    for start in np.unique(begun):
        yield int(start), begun == start


def _sums(curves: list[Curve]) -> Iterator[Curve]:
    """Where only the parts of a loss were logged, their sum stands for the whole."""
    for attempt in sorted({curve.attempt for curve in curves}):
        parts = [curve for curve in curves if curve.attempt == attempt and curve.has_level]
        if len(parts) < 2 or any(len(each.steps) < 2 for each in parts):
            continue
        if all(np.array_equal(each.steps, parts[0].steps) for each in parts[1:]):
            names = ", ".join(each.name for each in parts[:3]) + (", …" if len(parts) > 3 else "")
            with np.errstate(invalid="ignore"):
                total = np.sum([each.values for each in parts], axis=0)
            made_of = tuple(each.name for each in parts)
            yield Curve(f"sum of {names}", parts[0].quantity, "", attempt, parts[0].steps, total, made_of=made_of)


NORMAL_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


def median_deviation(values: NDArray[np.float64]) -> float:
    """The median absolute deviation from the median."""
    return float(np.median(np.abs(values - np.median(values))))
