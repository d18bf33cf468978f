"""One episode with the curves and events around its start.

No curve reaches across a rollback or a restart: values before and after one cannot be compared. All sentences of a
report use the same baseline of the gradient norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, RunCurves, curves_of, median_deviation
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.learning_rate_restart import MIN_RISE, RateRestart
from mlflow_stability.diagnosis.findings.attempts import AttemptSpan, RunAttempts, attempts_of_run
from mlflow_stability.diagnosis.recorded_settings import optimizers_of
from mlflow_stability.kinds.gradients.layers import DeadLayerFacts
from mlflow_stability.kinds.loss.divergence_rules import ResumeFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump, LearningRateJumpFacts
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory


@dataclass(frozen=True, slots=True)
class Lookback:
    just_before: int = 50  # number of logged points that count as just before an episode
    early: float = 0.05  # share of the run within which an episode is early
    clearly: int = 5  # a divergence has begun when most of this number of losses exceed all losses just before
    early_in_plateau: float = 1 / 3  # share of a plateau within which what is measured came with it
    between_looks: int = 10  # maximum number of steps from a change of settings or weights to the look at them
    unusual_write: float = 5.0  # minimum ratio of a change of weights by other code to the median of those before
    points: int = 200  # number of points before an episode that are compared with it
    recent: int = 10  # number of points just before an episode that are not in the baseline of the gradient norm


LOOKBACK = Lookback()


@dataclass(frozen=True, slots=True)
class ForeignWrite:
    """A change of the weights between two steps that the optimizer did not make."""

    step: int  # the first step with the changed weights
    share: float | None  # size of the change as a share of the weight norm; None if only the write was detected
    steps: tuple[int, ...]  # all steps of the run that have one

    @property
    def period(self) -> int | None:
        """The distance in steps at which it repeats, or None."""
        apart = np.diff(self.steps)
        regular = len(apart) > 1 and int(apart.max() - apart.min()) <= LOOKBACK.between_looks
        return round(float(np.median(apart))) if regular else None


def first_step_of(episode: Finding) -> int:
    """Return the step at which a finding began; for a dead layer, its first step without a gradient."""
    dead = episode.facts_as(DeadLayerFacts)
    return episode.start if dead is None else min(dead.first_step, episode.start)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeContext:
    """One episode and the curves around it, cut at the ends of its attempt."""

    episode: Finding
    history: RunHistory
    loss: Curve | None
    norm: Curve | None  # gradient norm of the whole model, or of the episode's own place
    rates: tuple[Curve, ...]
    scale: Curve | None
    attempts: RunAttempts
    span: AttemptSpan
    findings: tuple[Finding, ...]
    whole_loss: Curve | None  # the loss of the whole training, across rollbacks: for counting, not for comparing

    @property
    def unit(self) -> str:
        """What the log counts: ``step``, or ``epoch`` where it counts nothing else."""
        return self.history.step_unit

    def curves(self, quantity: str) -> tuple[Curve, ...]:
        measured = {metric.name for metric in self.history.of(quantity)}  # without sums of them
        curves = curves_of(self.history, quantity, self.attempts.starts) if measured else ()
        cut = (self.span.cut(curve) for curve in curves if self._is_own(curve) and curve.name in measured)
        return tuple(curve for curve in cut if curve is not None)

    def model_curve(self, quantity: str) -> Curve | None:
        return next((curve for curve in self.curves(quantity) if not curve.place), None)

    def events_of(self, *kinds: str) -> list[Finding]:
        """Return the recorded events of these kinds since this start of the training."""
        return [event for event in self.history.events or () if event.kind in kinds and self._is_own(event)]

    def findings_of(self, kind: str) -> list[Finding]:
        """Return the findings of this kind since this start of the training; without any, its events."""
        findings = [finding for finding in self.findings if finding.kind == kind and self._is_own(finding)]
        return findings or self.events_of(kind)

    def _is_own(self, item: Curve | Finding) -> bool:
        return self.attempts.starts.get(item.attempt, item.attempt) == self.episode.attempt

    @property
    def is_early(self) -> bool:
        if self.whole_loss is None or not self.span.begins_training:
            return False
        first, last = int(self.whole_loss.steps[0]), int(self.whole_loss.steps[-1])
        return self.episode.start - first <= LOOKBACK.early * (last - first)

    @property
    def before_any_update(self) -> bool:
        """Whether it began in the first step of the training, before any optimizer step."""
        loss = self.whole_loss if self.whole_loss is not None else self.norm
        first = self.span.begins_training and self.episode.facts_as(ResumeFacts) is None
        return first and loss is not None and self.episode.start <= int(loss.steps[0]) and not self.is_inside_step

    @property
    def is_inside_step(self) -> bool:
        """Whether LBFGS, which moves the weights several times in a step, broke one whose first loss was finite."""
        first = None if self.loss is None else value_at(self.loss, self.episode.start)
        return self.by_lbfgs and first is not None and math.isfinite(first)

    @property
    def by_lbfgs(self) -> bool:
        return {name.lower() for name in optimizers_of(self.history)} == {"lbfgs"}

    @property
    def latest(self) -> int:
        """The last step at which its cause may begin: mostly its own first.

        A plateau has no sharp start. Noise can make a divergence seem to begin early: until its loss has left the
        range of the losses before, it may not have begun.
        """
        start, end = first_step_of(self.episode), self.episode.end
        if self.episode.kind == "plateau":
            return int(start + LOOKBACK.early_in_plateau * (end - start))
        if self.episode.kind != "divergence" or self.loss is None:
            return start
        before = self.before(self.loss)
        inside = (self.loss.steps >= start) & (self.loss.steps <= end)
        steps, high = self.loss.steps[inside], self.loss.values[inside] > before.max(initial=-np.inf)
        if not len(before) or len(high) < LOOKBACK.clearly:
            return start
        rows = np.lib.stride_tricks.sliding_window_view(high, LOOKBACK.clearly)
        certain = np.flatnonzero(rows[:, 0] & (rows.mean(axis=1) > 1 / 2))
        return int(steps[certain[0]]) if len(certain) else start

    def starting_at(self, step: int) -> EpisodeContext:
        return replace(self, episode=self.episode.with_span(start=step))

    @property
    def every_step(self) -> bool:
        """Whether the loss of each step was logged, so that a point is one batch."""
        return self.loss is not None and len(self.loss.steps) > 1 and self.loss.distance < 2

    @property
    def reach(self) -> float:
        """Number of steps that count as just before."""
        return LOOKBACK.just_before * (1.0 if self.loss is None else self.loss.distance)

    @property
    def optimizer_norm(self) -> Curve | None:
        """Gradient norm that the optimizer gets: after clipping where the script clips."""
        norm = self.norm
        clipped = None if norm is None else self.clipped_norm
        if norm is None or clipped is None:
            return norm
        values, is_clipped = norm.values.copy(), np.isin(norm.steps, clipped.steps)
        values[is_clipped] = clipped.values[np.searchsorted(clipped.steps, norm.steps[is_clipped])]
        return replace(norm, values=values)

    @property
    def clipped_norm(self) -> Curve | None:
        """Gradient norm after clipping, at the steps at which the script clipped."""
        place = "" if self.norm is None else self.norm.place
        return next((curve for curve in self.curves("grad_norm_clipped") if curve.place == place), None)

    def foreign_write(self, step: int) -> ForeignWrite | None:
        """Return what other code did to the weights right before a step, if that is unusual."""
        updates, writes = self._points("foreign_update"), self._points("foreign_writes")
        share = updates.get(step)
        if share is not None:
            recent = [size for at, size in updates.items() if step - LOOKBACK.just_before <= at < step]
            if not recent or share > LOOKBACK.unusual_write * float(np.median(recent)):
                alike = [at for at, size in updates.items() if size > share / LOOKBACK.unusual_write]
                return ForeignWrite(step, share, tuple(alike))
        write = next((at for at in writes if step <= at < step + LOOKBACK.between_looks), None)
        if write is None or any(write - 2 * LOOKBACK.between_looks < at < step for at in writes):
            return None
        return ForeignWrite(step, None, tuple(writes))

    def _points(self, quantity: str) -> dict[int, float]:
        """Return what was measured of the whole model in this attempt by step; unlike a curve, one point is enough."""
        series = next((metric.series for metric in self.history.of(quantity) if not metric.meaning.place), None)
        points = {} if series is None else dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        return {step: value for step, value in points.items() if step in self.span}

    def before(self, curve: Curve, points: int = LOOKBACK.just_before) -> NDArray[np.float64]:
        end = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        values = curve.values[max(0, end - points) : end]
        return values[np.isfinite(values)]

    def highest_rate_before(self, rate: Curve) -> float | None:
        """Return the highest learning rate of the optimizers that had ended when this one took over; None without."""
        ended = (other for other in self.rates if len(other.steps) and other.steps[-1] < rate.steps[0])
        return max((float(other.values.max()) for other in ended), default=None)

    def first_before(self, curve: Curve) -> int:
        """Return the first step that counts as just before the episode."""
        end = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        return int(curve.steps[max(0, end - LOOKBACK.just_before)])

    def during(self, curve: Curve) -> NDArray[np.float64]:
        """Return the values from the episode's first step to one after its worst."""
        low = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        high = int(np.searchsorted(curve.steps, max(self.episode.peak, self.episode.start), side="right"))
        return curve.values[low : high + 1]


def episode_context(
    episode: Finding,
    history: RunHistory,
    curves: RunCurves,
    attempts: RunAttempts | None = None,
    findings: Sequence[Finding] = (),
) -> EpisodeContext:
    """Return an episode with its context; ``attempts``: of `attempts_of_run`, to compute them once."""
    attempts = attempts_of_run(history) if attempts is None else attempts
    span = attempts.around(episode.attempt, episode.start)

    def own(candidates: Iterable[Curve]) -> Curve | None:
        """Return the curve of the episode's attempt, of its place if there is one."""
        same = [curve for curve in candidates if curve.attempt == episode.attempt]
        return min(same, key=lambda curve: curve.place != episode.place, default=None)

    named = tuple(curve for curve in (*curves.losses, *curves.validations) if curve.name == episode.metric)
    loss = own(named or curves.losses or curves.validations)
    rates = (
        span.cut(rate)
        for rate in curves_of(history, "learning_rate", attempts.starts)
        if rate.attempt == episode.attempt
    )
    return EpisodeContext(
        episode,
        history,
        loss=span.cut(loss),
        norm=span.cut(own(norm for norm in curves.norms if norm.place in ("", episode.place))),
        rates=tuple(rate for rate in rates if rate is not None),
        scale=span.cut(own(curves_of(history, "loss_scale", attempts.starts))),
        attempts=attempts,
        span=span,
        findings=tuple(findings),
        whole_loss=loss,
    )


def listed_steps(steps: Sequence[int], unit: str, most: int) -> str:
    """Return the first steps, at most `most`: ``steps 3, 6, 9, …``."""
    return f"{unit}s {', '.join(map(str, steps[:most]))}{', …' if len(steps) > most else ''}"


def value_at(curve: Curve, step: int) -> float | None:
    place = int(np.searchsorted(curve.steps, step, side="left"))
    return float(curve.values[place]) if place < len(curve.steps) and curve.steps[place] == step else None


def norms_before(context: EpisodeContext) -> NDArray[np.float64]:
    norms = np.zeros(0) if context.norm is None else context.before(context.norm, LOOKBACK.points)
    return norms[norms > 0]


def norm_baseline(norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """Return the most recent norms, the geometric median of those before, and the spread of their logarithms."""
    recent = norms[-LOOKBACK.recent :]
    logs = np.log(norms[: -LOOKBACK.recent] if len(norms) > 2 * LOOKBACK.recent else norms)
    return recent, float(np.exp(np.median(logs))), NORMAL_MAD * median_deviation(logs) + 0.02


def usual_norm(context: EpisodeContext) -> float | None:
    norms = norms_before(context)
    return norm_baseline(norms)[1] if len(norms) else None


@dataclass(frozen=True, slots=True)
class RateRise:
    step: int
    before: float
    after: float


def jumps_in(rate: Curve) -> list[RateRise]:
    if not _rises_in_one_step(rate):
        return []
    detector = LearningRateJump()
    state, jumps = detector.begin(), []
    for step, value in _points(rate):
        state, event = detector.step(state, Point("learning_rate", rate.place, step, value))
        if event is not None and isinstance(event.facts, LearningRateJumpFacts):
            jumps.append(RateRise(event.step, event.facts.before, event.facts.learning_rate))
    return jumps


def restart_before(rate: Curve, step: int) -> RateRise | None:
    """Return the warm restart that explains a rise of the loss at this step, or None."""
    if not _rises_in_one_step(rate):
        return None
    watch, last, restart = RateRestart(), 0.0, None
    for at, value in _points(rate):
        if at > step:
            break
        watch.see(value, at)
        if watch.at == at:
            restart = RateRise(at, last, value)
        last = value
    return restart if watch.excuses(step) else None


def _points(rate: Curve) -> list[tuple[int, float]]:
    return list(zip(rate.steps[rate.finite].tolist(), rate.values[rate.finite].tolist(), strict=True))


def _rises_in_one_step(rate: Curve) -> bool:
    """Return whether any point may be a jump, so that going through all of them is worth while."""
    return bool((rate.values[rate.finite][1:] >= MIN_RISE * rate.values[rate.finite][:-1]).any())
