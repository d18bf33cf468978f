"""Curves and events around the beginning of an episode, in which its cause may be seen.

No curve reaches across a rollback or a restart, so that nothing can be compared across one. There is one baseline of
the gradient norm for all sentences of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, RunCurves, curves_of, median_deviation
from mlflow_stability.diagnosis.findings.attempt_span import AttemptSpan, RunAttempts, attempts_of_run
from mlflow_stability.kinds.gradients.dead_layer import DeadLayerFacts
from mlflow_stability.kinds.loss.resume import ResumeFacts
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory


@dataclass(frozen=True, slots=True)
class Lookback:
    """How far back checks look, and what counts as early."""

    just_before: int = 50
    """Number of logged points before the first bad one that are just before it."""
    early: float = 0.05
    """An episode that begins within this share of the run is early."""
    clearly: int = 5
    """Number of losses of which most must be above all of those just before a divergence for it to be there for
    sure."""
    early_in_plateau: float = 1 / 3
    """What is measured in this first share of a plateau came with it."""
    between_looks: int = 10
    """Number of steps between two looks at settings and weights: what is seen at a step began at most so many
    before."""
    unusual_write: float = 5.0
    """Minimum ratio of a change of the weights by other code to the median of those just before."""
    points: int = 200
    """Number of points before an episode that are looked at."""
    recent: int = 10
    """Number of points before the first bad one that are just before it, and do not belong to the baseline."""


LOOKBACK = Lookback()


@dataclass(frozen=True, slots=True)
class ForeignWrite:
    """A change of the weights between two steps that the optimizer did not make."""

    step: int
    """The first step with the changed weights."""
    share: float | None
    """Of their norm; None: they were written to, and by how much is not known."""
    steps: tuple[int, ...]
    """All such steps of the run."""

    @property
    def period(self) -> int | None:
        """The distance at which it repeats, to `LOOKBACK.between_looks` steps; None: it does not."""
        apart = np.diff(self.steps)
        regular = len(apart) > 1 and int(apart.max() - apart.min()) <= LOOKBACK.between_looks
        return round(float(np.median(apart))) if regular else None


def begin_of(episode: Finding) -> int:
    """The step at which a finding began: of a dead layer the first one without a gradient, long before it is found."""
    dead = episode.known(DeadLayerFacts)
    return episode.start if dead is None else min(dead.first_step, episode.start)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeContext:
    """One episode and the curves around it."""

    episode: Finding
    history: RunHistory
    loss: Curve | None
    norm: Curve | None
    """Of the whole model, or of the episode's own place; that of another layer says nothing about it."""
    rates: tuple[Curve, ...]
    scale: Curve | None
    attempts: RunAttempts
    span: AttemptSpan
    """The attempt that it began in: all curves here end at its ends."""
    findings: tuple[Finding, ...]
    """All findings of the run, those of whole curves included."""
    whole_loss: Curve | None
    """The loss from the start of the training to its end, across rollbacks: fit for counting, not for comparing."""

    @property
    def unit(self) -> str:
        """What the log calls a step: ``step``, or ``epoch`` where it counts nothing else."""
        return self.history.step_unit

    def whole(self, quantity: str) -> Curve | None:
        """The curve of a quantity of the whole model."""
        return next((curve for curve in self.of(quantity) if not curve.place), None)

    @property
    def is_early(self) -> bool:
        """Whether it began while the training was starting."""
        if self.whole_loss is None or not self.span.begins_training:
            return False
        first, last = int(self.whole_loss.steps[0]), int(self.whole_loss.steps[-1])
        return self.episode.start - first <= LOOKBACK.early * (last - first)

    @property
    def before_any_update(self) -> bool:
        """Whether it began in the first step of the training: no optimizer step had been taken by then."""
        loss = self.whole_loss if self.whole_loss is not None else self.norm
        first = self.span.begins_training and self.episode.known(ResumeFacts) is None
        return first and loss is not None and self.episode.start <= int(loss.steps[0])

    @property
    def latest(self) -> int:
        """The last step at which what explains it may begin: mostly its own first.

        A plateau has no sharp beginning. Noise can make a divergence seem to begin early: until its loss has left the
        range of the losses before, it may not have begun.
        """
        start, end = begin_of(self.episode), self.episode.end
        if self.episode.kind == "plateau":
            return int(start + LOOKBACK.early_in_plateau * (end - start))
        if self.episode.kind != "divergence" or self.loss is None:
            return start
        before = self.before(self.loss)
        if not len(before):
            return start
        there = (self.loss.steps >= start) & (self.loss.steps <= self.episode.end)
        steps, high = self.loss.steps[there], self.loss.values[there] > before.max()
        # The first of a few points in a row, of which most are above that range.
        row = (
            np.lib.stride_tricks.sliding_window_view(high, LOOKBACK.clearly)
            if len(high) >= LOOKBACK.clearly
            else high[:0]
        )
        sure = [at for at in range(len(row)) if row[at][0] and row[at].mean() > 1 / 2]
        return int(steps[sure[0]]) if sure else start

    def starting_at(self, step: int) -> EpisodeContext:
        """The same curves around another step."""
        return replace(self, episode=self.episode.with_span(start=step))

    @property
    def every_step(self) -> bool:
        """Whether the loss of each step was logged, so that a point stands for one batch."""
        return self.loss is not None and len(self.loss.steps) > 1 and self.loss.distance < 2

    @property
    def reach(self) -> float:
        """How many steps lie in what counts as just before."""
        return LOOKBACK.just_before * (
            self.loss.distance if self.loss is not None and len(self.loss.steps) > 1 else 1.0
        )

    @property
    def given_norm(self) -> Curve | None:
        """The gradient norm that the optimizer was given: after clipping where the script clipped."""
        norm = self.norm
        clipped = None if norm is None else self.clipped_norm
        if norm is None or clipped is None:
            return norm
        values, known = norm.values.copy(), np.isin(norm.steps, clipped.steps)
        values[known] = clipped.values[np.searchsorted(clipped.steps, norm.steps[known])]
        return replace(norm, values=values)

    @property
    def clipped_norm(self) -> Curve | None:
        """The gradient norm after clipping, at the steps at which the script clipped."""
        place = "" if self.norm is None else self.norm.place
        return next((each for each in self.of("grad_norm_clipped") if each.place == place), None)

    def foreign_write(self, step: int) -> ForeignWrite | None:
        """What other code did to the weights right before a step, or a few steps around it; None: nothing unusual."""
        updates, writes = self._points("foreign_update"), self._points("foreign_writes")
        share = updates.get(step)
        if share is not None:
            lately = [each for at, each in updates.items() if step - LOOKBACK.just_before <= at < step]
            if not lately or share > LOOKBACK.unusual_write * float(np.median(lately)):
                alike = [at for at, each in updates.items() if each > share / LOOKBACK.unusual_write]
                return ForeignWrite(step, share, tuple(alike))
        seen = next((at for at in writes if step <= at < step + LOOKBACK.between_looks), None)
        regular = seen is not None and any(seen - 2 * LOOKBACK.between_looks < at < step for at in writes)
        return None if seen is None or regular else ForeignWrite(step, None, tuple(writes))

    def _points(self, quantity: str) -> dict[int, float]:
        """What was measured now and then of the whole model in this attempt, by step; a single point counts."""
        series = next((each.series for each in self.history.of(quantity) if not each.meaning.place), None)
        points = {} if series is None else dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        return {at: value for at, value in points.items() if self.span.first <= at <= self.span.last}

    def before(self, curve: Curve, points: int = LOOKBACK.just_before) -> NDArray[np.float64]:
        """The finite values just before the episode."""
        end = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        values = curve.values[max(0, end - points) : end]
        return values[np.isfinite(values)]

    def first_before(self, curve: Curve, points: int = LOOKBACK.just_before) -> int:
        """The first step of what counts as just before."""
        end = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        return int(curve.steps[max(0, end - points)])

    def at(self, curve: Curve) -> NDArray[np.float64]:
        """The values from the episode's first step to its worst, and the one after."""
        low = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        high = int(np.searchsorted(curve.steps, max(self.episode.peak, self.episode.start), side="right"))
        return curve.values[low : high + 1]

    def of(self, quantity: str) -> tuple[Curve, ...]:
        """The curves of one quantity, that of the whole model first, then layers in the order of the record."""
        measured = {metric.name for metric in self.history.of(quantity)}  # and no sums of them
        found = curves_of(self.history, quantity, self.attempts.starts) if measured else ()
        mine = [each for each in found if each.attempt == self.episode.attempt and each.name in measured]
        return tuple(part for each in mine if (part := self.span.cut(each)) is not None)

    def said(self, *kinds: str) -> list[Finding]:
        """What was said of these kinds while it trained, since this start of the training."""
        events = [each for each in self.history.events or () if each.kind in kinds]
        return [each for each in events if self.attempts.starts.get(each.attempt, each.attempt) == self.episode.attempt]

    def found(self, kind: str) -> list[Finding]:
        """What was found of this kind, live or in whole curves, since this start of the training."""
        whole = [finding for finding in self.findings if finding.kind == kind]
        starts = self.attempts.starts
        mine = [each for each in whole if starts.get(each.attempt, each.attempt) == self.episode.attempt]
        return mine or self.said(kind)


def surroundings_of(
    episode: Finding,
    history: RunHistory,
    curves: RunCurves,
    attempts: RunAttempts | None = None,
    findings: Sequence[Finding] = (),
) -> EpisodeContext:
    """What is known around an episode; ``attempts``: what `attempts_of_run` gives, for those who ask more than once."""
    attempts = attempts_of_run(history) if attempts is None else attempts
    span = attempts.around(episode.attempt, episode.start)

    def one(among: Iterable[Curve]) -> Curve | None:
        mine = [curve for curve in among if curve.attempt == episode.attempt]
        by_place = [curve for curve in mine if curve.place == episode.place]
        return next(iter((*by_place, *mine)), None)

    named = tuple(curve for curve in (*curves.losses, *curves.validations) if curve.name == episode.metric)
    loss = one(named or curves.losses or curves.validations)
    rates = [each for each in curves_of(history, "learning_rate", attempts.starts) if each.attempt == episode.attempt]
    return EpisodeContext(
        episode,
        history,
        span.cut(loss),
        span.cut(one(norm for norm in curves.norms if norm.place in ("", episode.place))),
        tuple(part for each in rates if (part := span.cut(each)) is not None),
        span.cut(one(curves_of(history, "loss_scale", attempts.starts))),
        attempts,
        span,
        tuple(findings),
        loss,
    )


def shown(value: float) -> str:
    """A number as sentences have it."""
    return f"{value:.3g}"


def listed_steps(steps: Sequence[int], unit: str, most: int) -> str:
    """``steps 3, 6, 9, …``: the first ones, `most` of them."""
    return f"{unit}s {', '.join(map(str, steps[:most]))}{', …' if len(steps) > most else ''}"


def usual_norm(around: EpisodeContext) -> float | None:
    """The usual one; None where there was none."""
    norms = norms_before(around)
    return usual_of(split(norms)[1])[0] if len(norms) else None


def norms_before(around: EpisodeContext) -> NDArray[np.float64]:
    """The gradient norms before an episode, without those that are zero."""
    norms = np.zeros(0) if around.norm is None else around.before(around.norm, LOOKBACK.points)
    return norms[norms > 0]


def split(norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Those just before, and those that tell what is usual."""
    return norms[-LOOKBACK.recent :], norms[: -LOOKBACK.recent] if len(norms) > 2 * LOOKBACK.recent else norms


def usual_of(norms: NDArray[np.float64]) -> tuple[float, float]:
    """The middle, and the spread of their logarithms."""
    logs = np.log(norms)
    return float(np.exp(np.median(logs))), NORMAL_MAD * median_deviation(logs) + 0.02
